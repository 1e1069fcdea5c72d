"""List the options of sbatch: those a job may set, those a key replaces, those the scripts set."""

from __future__ import annotations

# Options that a key of the job file stands for.
KEYS = {
    "job-name": "name",
    "nodes": "nodes",
    "ntasks-per-node": "processes_per_node",
    "ntasks": "processes_per_node",
    "ntasks-per-gpu": "processes_per_node",  # sbatch takes it only without --ntasks-per-node
    "gpus-per-node": "gpus_per_node",
    "time": "time",
    "array": "array",
}
# Options whose value makes the generated scripts work.
OWNED = set(
    """
    output error input chdir export export-file wrap parsable test-only wait ignore-pbs open-mode
    quiet verbose help usage version cpu-bind
    """.split()
)
# What an allocation by salloc does not have: a script of its own, its output, a second start, an
# array. For the last four salloc has no option.
OF_BATCH = set(
    "output error open-mode requeue no-requeue signal array"
    " batch get-user-env kill-on-invalid-dep propagate".split()
)
# Every letter of sbatch, for scripts that use it.
LETTERS = {
    **{"A": "account", "C": "constraint", "c": "cpus-per-task", "d": "dependency"},
    **{"p": "partition", "q": "qos", "w": "nodelist", "x": "exclude"},
    **{"a": "array", "b": "begin", "B": "extra-node-info", "D": "chdir", "e": "error"},
    **{"F": "nodefile", "G": "gpus", "H": "hold", "i": "input", "J": "job-name", "k": "no-kill"},
    **{"L": "licenses", "m": "distribution", "M": "clusters", "n": "ntasks", "N": "nodes"},
    **{"o": "output", "O": "overcommit", "Q": "quiet", "s": "oversubscribe", "S": "core-spec"},
    **{"t": "time", "v": "verbose", "W": "wait"},
}
ALIASES = {"tasks-per-node": "ntasks-per-node"}  # that sbatch and srun take without listing them
# Options so common that kit submit and its kin take them as sbatch does, without --slurm.
COMMON = {
    "partition": "NAMES",
    "account": "NAME",
    "qos": "NAME",
    "constraint": "FEATURES",
    "nodelist": "NODES",
    "exclude": "NODES",
    "cpus-per-task": "N",
}
# The letters of these, and of what --after stands for.
SHORT = {letter: name for letter, name in LETTERS.items() if name in {*COMMON, "dependency"}}
# Options that Pyxis and the Container Engine add to srun, and the key of a job for each, in the
# order of the job files that kit import writes.
CONTAINERS = {
    "environment": "image",
    "container-image": "image",
    "container-workdir": "workdir",
    "container-mounts": "mounts",
    "container-remap-root": "remap_root",
}
# Options that sbatch takes without a value, or with one that may be left out.
FLAGS = frozenset(
    "contiguous exclusive get-user-env hold immediate no-kill no-requeue nice overcommit "
    "oversubscribe propagate reboot requeue resv-ports spread-job stepmgr use-min-nodes".split()
)
# Likewise, of those that no job may set.
OWNED_FLAGS = frozenset(
    """
    container-entrypoint container-mount-home container-readonly container-remap-root
    container-writable help ignore-pbs no-container-entrypoint no-container-mount-home
    no-container-remap-root parsable quiet test-only usage verbose version wait
    """.split()
)
# Options whose value is a plain number.
NUMBERS = frozenset("cpus-per-task cpus-per-gpu ntasks-per-core ntasks-per-socket".split())
# What a job or a profile may set, of sbatch 22.05 to 26.05; plug-ins such as Pyxis add more, so
# this list only serves to recognise misspellings.
KNOWN = """
    account acctg-freq batch bb bbf begin clusters comment constraint container container-id
    contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot
    dependency distribution exclude exclusive extra extra-node-info get-user-env gid gpu-bind
    gpu-freq gpus gpus-per-socket gpus-per-task gres gres-flags hint hold immediate
    kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu
    mincpus network nice no-kill no-requeue nodefile nodelist ntasks-per-core ntasks-per-socket
    overcommit oversubscribe partition power prefer priority profile propagate qos
    reboot requeue reservation resv-ports segment signal sockets-per-node spread-job stepmgr
    switches thread-spec threads-per-core time-min tmp tres-bind tres-per-task uid use-min-nodes
    wait-all-nodes wckey
""".split()


def every() -> set[str]:
    """Return the long names of all options of sbatch, those that kit sets itself included."""
    return {*KNOWN, *KEYS, *OWNED, *CONTAINERS}


def refused() -> dict[str, str]:
    """Return the key of the job file that replaces each option; "" if the scripts set it."""
    return {**dict.fromkeys(OWNED, ""), **KEYS}


def long(words: list[str]) -> list[str]:
    """Return words for `kit submit` with long options in the place of sbatch's letters."""
    letters = {**SHORT, "N": "nodes", "t": "time", "J": "name"}
    found: list[str] = []
    for word in words:
        name = letters.get(word[1:2], "") if word.startswith("-") else ""
        found += [f"--{name}", *filter(None, [word[2:]])] if name else [word]
    return found
