"""List the causes that lie with Slurm, the nodes, the container runtime and the image file."""

from __future__ import annotations

from kit.diagnose.why import resources
from kit.diagnose.why.cause import ANYWHERE, BATCH, NODE, Cause, Weight, own_cause
from kit.slurm import sentences


def _verdict(name: str, title: str, fix: str, *patterns: str, local_fix: str = "") -> Cause:
    """Return the cause for a job that Slurm ended."""
    where = (BATCH, NODE)
    return Cause(name, title, fix, patterns, Weight.VERDICT, where, local_fix=local_fix)


VERDICTS = (
    _verdict(
        "time-limit",
        "the time limit was reached",
        "ask for more time: {again:--time HH:MM:SS} (it had {time}); or write checkpoints, and "
        "let the job continue by itself: {again:--on-preempt checkpoint}",
        r"DUE TO TIME LIMIT",
        r"DUE to TIME LIMIT",
    ),
    _verdict(
        "preempted",
        "a job of higher priority took the nodes",
        "write checkpoints, and let the job continue by itself: {again:--on-preempt checkpoint} "
        "(docs/preemption.md); or use a partition whose jobs are not preempted",
        r"DUE TO PREEMPTION",
        r"DUE to PREEMPTION",
    ),
    _verdict(
        "node-failed",
        "a node went down: {node}",
        "submit without it: {again:--slurm exclude={node}}; and tell the administrators: "
        "scontrol show node {node}",
        sentences.cancelled("NODE FAILURE"),
        r"srun: error: Node failure on (?P<node>\S+)",
        r"DUE to NODE FAILURE",
    ),
    _verdict(
        "cancelled",
        "somebody cancelled it: you, an administrator, or Ctrl-C",
        "start it again: {again}; if it was not you, ask who may cancel jobs: sacct -j {job} -o "
        "User,State,ExitCode",
        sentences.cancelled(),
        local_fix="start it again: {again}",
    ),
    _verdict(
        "deadline",
        "its deadline passed, or its node could not be booted",
        "see what Slurm says about it: scontrol show job {job}; then {again}",
    ),
)

MACHINE = (
    Cause(
        "host-out-of-memory",
        "the node's memory ran out, or the job's share of it: the kernel killed a process",
        "ask for more memory: {again:--slurm mem=0} takes all memory of each node; or use fewer "
        "DataLoader workers, smaller batches, less cached data",
        (
            r"Detected \d+ oom[_-]kill events? in [^\n]*",
            r"error: (?P<node>[\w.-]+): tasks? [\d,-]+: Out Of Memory",
            r"oom-kill:constraint|Out of memory: Killed process \d+[^\n]*",
        ),
        weight=Weight.KERNEL,
        where=ANYWHERE,
        local_fix=resources.LESS_MEMORY,
    ),
    Cause(
        "gpu-fault",
        "the driver reported a fault of a GPU (Xid {xid})",
        "submit without this node: {again:--slurm exclude={node}}; and tell the administrators: "
        "dmesg | grep Xid",
        (r"NVRM: Xid \([^)\n]*\): (?P<xid>\d+)", r"Xid(?: error)?[ :=]+(?P<xid>\d+)\b"),
        weight=Weight.KERNEL,
        where=ANYWHERE,
        local_fix=(
            "see what else it reported (dmesg | grep Xid), and choose other GPUs "
            "(CUDA_VISIBLE_DEVICES), or restart the machine"
        ),
    ),
    Cause(
        "gpu-broken",
        "a GPU is broken, or has fallen off the bus",
        "submit without this node: {again:--slurm exclude={node}}; and tell the administrators: "
        "nvidia-smi -q | grep -i -A 3 ecc",
        (
            r"uncorrectable (?:ECC|NVLink) error[^\n]*",
            r"GPU has fallen off the bus",
            (
                r"CUDA error: (?:unknown error|hardware stack error|all CUDA-capable devices are "
                r"busy or unavailable)[^\n]*"
            ),
            r"Unable to determine the device handle for (?:GPU|gpu)[^\n]*",
        ),
        weight=Weight.KERNEL,
        where=ANYWHERE,
        local_fix=(
            "choose other GPUs (CUDA_VISIBLE_DEVICES), or restart the machine: nvidia-smi -q | "
            "grep -i -A 3 ecc"
        ),
    ),
    own_cause(
        "image-damaged",
        "the image file is damaged or not an image",
        "build or copy it again: {image}; then {again}",
        (
            r"FATAL:[^\n]*(?:image format not recognized|could not open image|while (?:opening|"
            r"loading) (?:image|SIF)|invalid (?:SIF|squashfs))[^\n]*"
        ),
        r"FATAL:[^\n]*(?:trying to read the squashfs image|squashfuse\S* exited)[^\n]*",
        (
            r"(?:FATAL|squashfuse|SQUASHFS)[^\n]*(?:not a squashfs|superblock|[Cc]orrupt|"
            r"decompress)[^\n]*"
        ),
        r"(?:Input/output error|lzma|zstd|zlib)[^\n]*squashfs[^\n]*",
        where=(BATCH, NODE),
    ),
    own_cause(
        "image-missing",
        "the image is not there",
        "look for it on the node: ls -l {image}; or build it: kit build",
        r"(?:manifest unknown|pull access denied|repository does not exist)[^\n]*",
        r"Unable to find image [^\n]*",
        where=(BATCH, NODE),
    ),
    own_cause(
        "image-not-mounted",
        "a node cannot mount the image",
        "have it unpacked: unpack: yes; kit doctor says what is missing; then {again}",
        r"\[ERROR\] Failed to mount: [^\n]*",
        where=(BATCH, NODE),
    ),
    own_cause(
        "container-not-started",
        "the container could not be started",
        "the line is the runtime's own message; check mounts, workdir and image, which kit submit "
        "JOB --dry-run shows; then {again}",
        r"^docker: Error response from daemon: [^\n]*",
        r"^Error: (?:OCI runtime|crun|runc|creating container|statfs)[^\n]*",
        r"^FATAL: [^\n]*",
        r"^\[ERROR\] [^\n]*",
        r"(?:pyxis: [^\n]*error|error: pyxis: )[^\n]*",
        r"(?:enroot|enroot-\w+): [^\n]*",
        where=(BATCH, NODE),
    ),
    own_cause(
        "step-not-started",
        "Slurm could not start the tasks",
        "see what Slurm says about the nodes: sinfo -R; scontrol show job {job}; to run without a "
        "node: {again:--slurm exclude=NODE}",
        (
            r"srun: error: [^\n]*(?:Unable to create step|launch failed|Unable to confirm "
            r"allocation|Task launch for)[^\n]*"
        ),
        rf"{sentences.STEPD} (?:execve|couldn't chdir|Unable to create|_fork_all_tasks)[^\n]*",
        where=(BATCH,),
    ),
    own_cause(
        "node-unreachable",
        "Slurm lost the connection to a node",
        "see whether it is up: sinfo -N; to run without it: {again:--slurm exclude={node}}",
        (
            r"srun: error: (?:Node failure|.*Communication connection failure|.*Socket timed "
            r"out|.*Zero Bytes were transmitted)[^\n]*"
        ),
        where=(BATCH,),
    ),
    Cause(
        "unhandled-signal",
        "a user signal (SIGUSR1 or SIGUSR2) reached a program that does not handle it",
        "handle it (Python: signal.signal(signal.SIGUSR1, ...)); {sender}",
        (
            r"task[s ]*[\d,-]*: User defined signal [12]",
            r"got signal: 1[02]\b|Signals\.SIGUSR[12]",
            r"task ended with code 1(?:38|40)\b",
        ),
        weight=Weight.SIGNAL,
        where=(BATCH, NODE),
        codes=(
            138,
            140,
        ),
    ),
    Cause(
        "terminated",
        "something outside the run ended a process with SIGTERM",
        "nothing in the run sent it; it may be the notice before a preemption, a limit, an "
        "administrator, or a kill by hand: sacct -j {job}; then {again}",
        (
            r"SignalException: Process \d+ got signal: 15",
            r"task ended with code 143\b",
        ),
        weight=Weight.SIGNAL,
        where=(BATCH, NODE),
        codes=(143,),
        local_fix=(
            "nothing in the run sent it; it may be the machine's service manager, or a kill by "
            "hand; start it again: {again}"
        ),
    ),
)
