"""Causes that lie with Slurm, the nodes, the container and the image, or in how kit was asked."""

from __future__ import annotations

from kit.slurm import sentences
from kit.why import programs
from kit.why.cause import ANYWHERE, BATCH, NODE, RANK, Cause, Weight

VERDICT, REFUSAL, KERNEL, OWN, SIGNAL = Weight.VERDICT, Weight.REFUSAL, Weight.KERNEL, Weight.OWN, Weight.SIGNAL

# What kit itself says has its fix on the next line.
_SAID = r"kit: error: (?P<node>[^:\n]+): (?P<said>[^\n]*{0}[^\n]*)\n  fix: (?P<own_fix>[^\n]*)"


def _refusal(name: str, title: str, *words: str) -> Cause:
    """What kit says of a node, or of the whole job, before any rank starts."""
    return Cause(name, title, "{own_fix}", REFUSAL, (NODE, BATCH), tuple(_SAID.format(word) for word in words))


VERDICTS = (
    Cause(
        "time-limit",
        "the time limit was reached",
        "ask for more time: {again:--time HH:MM:SS} (it had {time}); or write checkpoints, and have the job go on by itself: {again:--on-preempt checkpoint}",
        VERDICT,
        (BATCH, NODE),
        (r"DUE TO TIME LIMIT", r"this job is being ended \(TIMEOUT\)", r"DUE to TIME LIMIT"),
    ),
    Cause(
        "preempted",
        "a job of higher priority took the nodes",
        "write checkpoints, and have the job go on by itself: {again:--on-preempt checkpoint} (docs/preemption.md); or a partition that is not preempted",
        VERDICT,
        (BATCH, NODE),
        (r"DUE TO PREEMPTION", r"this job is being ended \(PREEMPTED\)", r"DUE to PREEMPTION"),
    ),
    Cause(
        "node-failed",
        "a node went down: {node}",
        "submit without it: {again:--slurm exclude={node}}; and tell the administrators: scontrol show node {node}",
        VERDICT,
        (BATCH, NODE),
        (
            r"^kit: error: (?P<node>[\w.-]+): this node is (?:down|fail|\S*\*)",
            sentences.cancelled("NODE FAILURE"),
            r"this job is being ended \(NODE_FAIL\)",
            r"srun: error: Node failure on (?P<node>\S+)",
            r"DUE to NODE FAILURE",
        ),
    ),
    Cause(
        "cancelled",
        "somebody cancelled it: you, an administrator, or Ctrl-C",
        "start it again: {again}; if it was not you, ask who may cancel jobs: sacct -j {job} -o User,State,ExitCode",
        VERDICT,
        (BATCH, NODE),
        (sentences.cancelled(), r"this job is being ended \(CANCELLED\)"),
        here="start it again: {again}",
    ),
    Cause(
        "deadline",
        "its deadline passed, or its node could not be booted",
        "see what Slurm says of it: scontrol show job {job}; then {again}",
        VERDICT,
        (BATCH, NODE),
        (r"this job is being ended \((?:DEADLINE|BOOT_FAIL)\)",),
    ),
)

REFUSALS = (
    _refusal("node-not-ready", "nodes were not ready in time", r"not ready after \d+ s"),
    _refusal("nodes-bad", "too few of the nodes can work, spares included", r"\d+ of \d+ nodes can work, and the job needs", "nodes were allocated, of which "),
    _refusal("image-differs", "a node sees another image than the first node", "is another image here than on the first node"),
    _refusal("image-replaced", "the image was replaced after submission", "is not the image that this job was submitted with"),
    _refusal(
        "image-missing", "the image is not there, or not readable", "does not exist here or cannot be read", "there is no image ", "the image .* cannot be read"
    ),
    _refusal(
        "image-damaged",
        "the image, or a copy of it, is damaged",
        "the copy of the image on this node's disk is damaged",
        "is damaged: its sha256 is",
        "enroot cannot unpack ",
    ),
    _refusal("mount-missing", "a folder to be mounted is not there, or not readable", "the mount source "),
    _refusal("no-progress", "the run was started again and again, and does not get on", "this run makes no progress", r"this run was started again \d+ times"),
    _refusal("disk-full", "a disk is full", "MiB free; "),
    _refusal("no-torch", "no Python in the image has torch", "no Python here has torch", "there is no Python here"),
    _refusal("fewer-gpus", "a node shows fewer GPUs than the job asked for", "GPUs are visible in the container", "no GPU's device file"),
    _refusal("workdir-missing", "the working directory is not in the container", "the working directory "),
    _refusal("run-directory-missing", "the first node does not see the run directory", "no env.sh in "),
    Cause(
        "run-directory-missing-on-a-node",
        "{node} does not see the run directory",
        "put {folder} on a file system that every node sees; look there: srun --nodelist={node} ls {folder}",
        REFUSAL,
        (BATCH,),
        (
            r"^kit: error: (?P<node>[^:\n]+): nothing there could say why its part of the job ended \(srun: Exited with exit code 12[67][;)]",
            r"^kit: error: (?P<node>[^:\n]+): no answer to the preparing step",
        ),
    ),
    Cause(
        "ranks-unaccounted",
        "not all ranks of {node} began and ended, though srun says that the job ended well",
        "see what srun says in the job's log, and the node: scontrol show node {node}; without it: {again:--slurm exclude={node}}",
        REFUSAL,
        (BATCH,),
        (r"^kit: error: (?P<node>[^:\n]+): ranks there did not all begin and end",),
    ),
    Cause(
        "node-task-killed",
        "the process that starts the ranks of {node} was killed with SIGKILL: by the kernel, because memory ran out, or by hand",
        "ask for more memory: {again:--slurm mem=0} takes all of each node's; the kernel's word on the node: dmesg | grep -i oom",
        REFUSAL,
        (BATCH,),
        (r"^kit: error: (?P<node>[^:\n]+): nothing there could say why its part of the job ended \(srun: Killed[;)]",),
    ),
    _refusal(
        "runtime-missing",
        "what runs the container is not installed on a node",
        "is not installed here",
        "no Docker Engine answers",
        "Pyxis is not set up",
        "Pyxis of this site is too old",
    ),
    _refusal("address-unknown", "the first node's address is not the one that the others look for", "has no IPv4 address but loopback", "but not the address "),
    _refusal("port-in-use", "no port is free on the first node", "all ports from "),
    # Any other; what kit says of Slurm's verdicts is none.
    Cause(
        "refused",
        "kit refused: {said}",
        "{own_fix}",
        REFUSAL,
        (NODE, BATCH),
        (_SAID.format("").replace("(?P<said>", r"(?P<said>(?!this job is being ended|this node is |nothing there could say why)"),),
    ),
)

# Of a job that failed and left no log at all.
NO_LOG = Cause(
    "run-directory-missing",
    "its nodes do not see the run directory: they could not even write its log",
    "put {folder} on a file system that every node sees, and submit from there; look there: srun ls {folder}; kit doctor finds it before the job",
    REFUSAL,
    (),
    (),
)

MACHINE = (
    Cause(
        "host-out-of-memory",
        "the node's memory ran out, or the job's share of it: the kernel killed a process",
        "ask for more memory: {again:--slurm mem=0} takes all of each node's; or fewer DataLoader workers, smaller batches, less cached data",
        KERNEL,
        (NODE, BATCH, RANK),
        (
            r"Detected \d+ oom[_-]kill events? in [^\n]*",
            r"error: (?P<node>[\w.-]+): tasks? [\d,-]+: Out Of Memory",
            r"oom-kill:constraint|Out of memory: Killed process \d+[^\n]*",
            r"this job is being ended \(OUT_OF_MEMORY\)",
        ),
        here=programs.LESS,
    ),
    Cause(
        "gpu-fault",
        "the driver reported a fault of a GPU (Xid {xid})",
        "submit without this node: {again:--slurm exclude={node}}; and tell the administrators: dmesg | grep Xid",
        KERNEL,
        ANYWHERE,
        (r"NVRM: Xid \([^)\n]*\): (?P<xid>\d+)", r"Xid(?: error)?[ :=]+(?P<xid>\d+)\b"),
        here="see what else it said, and choose other GPUs (CUDA_VISIBLE_DEVICES), or restart the machine: dmesg | grep Xid",
    ),
    Cause(
        "gpu-broken",
        "a GPU is broken, or has fallen off the bus",
        "submit without this node: {again:--slurm exclude={node}}; and tell the administrators: nvidia-smi -q | grep -i -A 3 ecc",
        KERNEL,
        ANYWHERE,
        (
            r"uncorrectable (?:ECC|NVLink) error[^\n]*",
            r"GPU has fallen off the bus",
            r"CUDA error: (?:unknown error|hardware stack error|all CUDA-capable devices are busy or unavailable)[^\n]*",
            r"Unable to determine the device handle for (?:GPU|gpu)[^\n]*",
        ),
        here="choose other GPUs (CUDA_VISIBLE_DEVICES), or restart the machine: nvidia-smi -q | grep -i -A 3 ecc",
    ),
    Cause(
        "image-damaged",
        "the image file is damaged or not an image",
        "build or copy it again: {image}; then {again}",
        OWN,
        (NODE, BATCH),
        (
            r"FATAL:[^\n]*(?:image format not recognized|could not open image|while (?:opening|loading) (?:image|SIF)|invalid (?:SIF|squashfs))[^\n]*",
            r"FATAL:[^\n]*(?:trying to read the squashfs image|squashfuse\S* exited)[^\n]*",
            r"(?:FATAL|squashfuse|SQUASHFS)[^\n]*(?:not a squashfs|superblock|[Cc]orrupt|decompress)[^\n]*",
            r"(?:Input/output error|lzma|zstd|zlib)[^\n]*squashfs[^\n]*",
        ),
    ),
    Cause(
        "image-missing",
        "the image is not there",
        "look for it on the node: ls -l {image}; or build it: kit build",
        OWN,
        (NODE, BATCH),
        (r"(?:manifest unknown|pull access denied|repository does not exist)[^\n]*", r"Unable to find image [^\n]*"),
    ),
    Cause(
        "container-not-started",
        "the container could not be started",
        "the line is the runtime's own; check mounts, workdir and image: kit submit JOB --dry-run shows them; then {again}",
        OWN,
        (NODE, BATCH),
        (
            r"^docker: Error response from daemon: [^\n]*",
            r"^Error: (?:OCI runtime|crun|runc|creating container|statfs)[^\n]*",
            r"^FATAL: [^\n]*",
            r"^\[ERROR\] [^\n]*",
            r"(?:pyxis: [^\n]*error|error: pyxis: )[^\n]*",
            r"(?:enroot|enroot-\w+): [^\n]*",
        ),
    ),
    Cause(
        "step-not-started",
        "Slurm could not start the tasks",
        "see what it says of the nodes: sinfo -R; scontrol show job {job}; without a node: {again:--slurm exclude=NODE}",
        OWN,
        (BATCH,),
        (
            r"srun: error: [^\n]*(?:Unable to create step|launch failed|Unable to confirm allocation|Task launch for)[^\n]*",
            rf"{sentences.STEPD} (?:execve|couldn't chdir|Unable to create|_fork_all_tasks)[^\n]*",
        ),
    ),
    Cause(
        "node-unreachable",
        "Slurm lost the connection to a node",
        "see whether it is up: sinfo -N; without it: {again:--slurm exclude={node}}",
        OWN,
        (BATCH,),
        (r"srun: error: (?:Node failure|.*Communication connection failure|.*Socket timed out|.*Zero Bytes were transmitted)[^\n]*",),
    ),
    Cause(
        "unhandled-signal",
        "a signal for users (SIGUSR1 or SIGUSR2) reached a program that does not handle it",
        "handle it (Python: signal.signal(signal.SIGUSR1, ...)); {sender}",
        SIGNAL,
        (BATCH, NODE),
        (
            r"task[s ]*[\d,-]*: User defined signal [12]",
            r"got signal: 1[02]\b|Signals\.SIGUSR[12]",
            r"task ended with code 1(?:38|40)\b",
        ),
        codes=(
            138,
            140,
        ),
    ),
    Cause(
        "terminated",
        "something outside of the run ended a process with SIGTERM",
        "nothing in the run did it: the notice before a preemption, a limit, an administrator, or a kill by hand; sacct -j {job}; then {again}",
        SIGNAL,
        (NODE, BATCH),
        (r"SignalException: Process \d+ got signal: 15", r"no rank could say why it ended[^\n]*\(srun: code 143\)[^\n]*", r"task ended with code 143\b"),
        codes=(143,),
        here="nothing in the run did it: the machine's service manager, or a kill by hand; start it again: {again}",
    ),
)
