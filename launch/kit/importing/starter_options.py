"""List the options of srun, torchrun and mpirun, and what kit import does with each."""

from __future__ import annotations

import re

from kit.config import sbatch_options
from kit.importing.getopt import Syntax

SRUN_SYNTAX = Syntax(
    {**sbatch_options.LETTERS, "l": "label", "u": "unbuffered", "K": "kill-on-bad-exit"}
    | {"E": "preserve-env", "X": "disable-status", "r": "relative", "T": "threads"},
    sbatch_options.FLAGS
    | (sbatch_options.OWNED_FLAGS - {"wait"})  # of srun it has a value
    | {"label", "unbuffered", "kill-on-bad-exit", "multi-prog", "overlap", "exact", "interactive"}
    | {"pty", "preserve-env", "disable-status", "quit-on-interrupt"},
    aliases=sbatch_options.ALIASES,
)
# Options of srun that starters.py and containers.py read.
SRUN_READ = {
    *("nodes", "ntasks", "ntasks-per-node", "mpi", *sbatch_options.CONTAINERS),
    *("container-env", "container-save", "container-mount-home"),
}
# Options of srun for which kit's own step stands, or its logs and reports.
SRUN_OF_KIT = set(
    """
    label unbuffered kill-on-bad-exit wait output error open-mode cpu-bind cpu_bind mem-bind
    jobid job-name overlap exact exclusive verbose quiet container-name
    container-writable no-container-mount-home container-entrypoint
    no-container-entrypoint no-container-remap-root accel-bind disable-status preserve-env
    quit-on-interrupt input gres-flags
    """.split()
).difference(sbatch_options.CONTAINERS)
# Options of srun that sbatch has as well, for the job as a whole.
SRUN_OF_JOB = set(
    """
    distribution hint threads-per-core mem mem-per-cpu mem-per-gpu account partition qos network
    constraint reservation cpu-freq comment
    """.split()
)
TORCHRUN_SYNTAX = Syntax(
    {"m": "module"},
    "standalone no-python no_python run-path run_path module use-env use_env".split(),
)
# Those that say where and how many, which kit sets itself; and those for which kit's own stand.
TORCHRUN_READ = set(
    "nnodes node-rank master-addr master-port rdzv-backend rdzv-endpoint rdzv-id local-addr "
    "nproc-per-node max-restarts standalone use-env module no-python".split()
)
TORCHRUN_OF_KIT = set(
    "rdzv-conf log-dir redirects tee role start-method monitor-interval run-path "
    "local-ranks-filter logs-specs numa-binding".split()
)
MPI_VALUES = {
    **dict.fromkeys("np n npernode ppn N H host hostfile machinefile map-by bind-to".split(), 1),
    **dict.fromkeys("rank-by wdir x envlist report-bindings-to display".split(), 1),
    **dict.fromkeys("output-filename output timeout prefix wd path rankfile rf tune".split(), 1),
    **dict.fromkeys("perhost f hosts npersocket start-timeout log-level genvlist".split(), 1),
    **dict.fromkeys("mca pmixmca prtemca gmca genv env".split(), 2),
}
MPI_KNOWN = MPI_VALUES.keys() | set(
    """
    oversubscribe nooversubscribe allow-run-as-root report-bindings tag-output timestamp-output
    quiet q verbose v display-map display-allocation bynode byslot nolocal use-hwthread-cpus
    bind-to-none bind-to-core l prepend-rank genvall envall gloo mpi tcp merge-stderr-to-stdout
    """.split()
)
OF_SRUN = {f"--{name}" for name in {*sbatch_options.every(), *SRUN_OF_KIT, "mpi"}}
_PLACES = re.compile("(?:map|mask)_(?:cpu|ldom)")
_WITH_PORT = re.compile(r"--((main|master|main[-_]process)[-_]port|rdzv[-_]endpoint)\Z")
_PORT = re.compile(r"(?:\A|(?<=:))[0-9]+\Z")  # 29500, or that of node1:29500


def of_site(name: str, value: str) -> str:
    """Return what becomes of an option of the site's plug-in, or of its binding; "" for others."""
    if name == "auto-resume":  # of SageMaker HyperPod's plug-in
        return "with `max_restarts` and `spares` kit starts the ranks again: docs/restarts.md"
    if name == "gpu-bind":
        return "each rank sees all GPUs of its node with kit"
    if name in ("cpu-bind", "cpu_bind") and _PLACES.search(value):
        return "kit gives each rank the next CPUs of its node; to bind by hand: docs/affinity.md"
    return ""


def with_port(words: list[str], port: str) -> list[str]:
    """Return the words of what starts a node's ranks, with the job's port for a fixed one."""
    found = []
    for before, word in zip(["", *words], words):
        name, equals, value = word.partition("=")
        if not equals:
            name, value = before, word
        if _WITH_PORT.match(name) and (number := _PORT.search(value)):
            word = word[: len(word) - len(number[0])] + port
        found.append(word)
    return found
