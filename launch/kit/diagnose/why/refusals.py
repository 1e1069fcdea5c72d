"""List the errors with which kit itself ends a job before its ranks start.

The scripts name them: the third word of kit::die.
"""

from __future__ import annotations

from kit.diagnose.why.cause import Cause, Weight


def _refusal(name: str, title: str, fix: str = "{own_fix}") -> Cause:
    """Return the cause of an event that has its name."""
    return Cause(name, title, fix, weight=Weight.REFUSAL, where=())


REFUSALS = (
    _refusal("node-not-ready", "nodes were not ready in time"),
    _refusal("nodes-bad", "too few of the nodes can work, spares included"),
    _refusal("node-unhealthy", "a node is not healthy"),
    _refusal("image-differs", "a node sees another image than the first node"),
    _refusal("image-replaced", "the image was replaced after submission"),
    _refusal("image-missing", "the image is not there, or not readable"),
    _refusal("image-damaged", "the image, or a copy of it, is damaged"),
    _refusal("packages-replaced", "the Python packages were replaced after submission"),
    _refusal("packages-missing", "the Python packages are not there, or not readable"),
    _refusal("image-not-mounted", "a node cannot mount the image"),
    _refusal("data-not-mounted", "a node cannot mount a squashfs file of data"),
    _refusal("mount-missing", "a folder to be mounted is not there, or not readable"),
    _refusal("no-progress", "the run was started again and again, without progress"),
    _refusal("stalled", "the ranks stood still"),
    _refusal("no-checkpoint", "the ranks were asked for a checkpoint, and did not end"),
    _refusal("disk-full", "a disk is full"),
    _refusal("no-torch", "there is no Python with torch where the ranks start"),
    _refusal("fewer-gpus", "a node shows fewer GPUs than the job asked for"),
    _refusal("workdir-missing", "the working directory is not in the container"),
    _refusal(
        "run-directory-missing-on-a-node",
        "{node} does not see the run directory",
        "put {folder} on a file system that every node sees; to check: srun --nodelist={node} ls "
        "{folder}",
    ),
    _refusal(
        "ranks-unaccounted",
        "not all ranks of {node} began and ended, though srun says that the job ended well",
        "see what srun says in the job's log, and look at the node: scontrol show node {node}; to "
        "run without it: {again:--slurm exclude={node}}",
    ),
    Cause(
        "node-task-killed",
        "the process that starts the ranks of {node} was killed with SIGKILL: by the kernel if "
        "memory ran out (dmesg | grep -i oom there), else by a user or an administrator",
        "if memory ran out, ask for more: {again:--slurm mem=0} takes all memory of each node; "
        "else start it again: {again}",
        weight=Weight.REFUSAL,
        where=(),
        local_fix=(
            "if memory ran out: use fewer ranks, smaller batches; else start it again: {again}"
        ),
    ),
    _refusal("setup-failed", "a line of the job's setup failed"),
    _refusal("runtime-missing", "the container runtime is not installed on a node"),
    _refusal("address-unknown", "the other nodes look for the first node at a wrong address"),
    _refusal("port-in-use", "no port is free on the first node"),
    _refusal("refused", "kit refused: {said}"),
)

# A job that failed and left no log of its own.
NO_LOG = _refusal(
    "run-directory-missing",
    "its nodes do not see the run directory",
    "put {folder} on a file system that every node sees, and submit from there; to check: srun "
    "ls {folder}; kit doctor finds this before you submit",
)
