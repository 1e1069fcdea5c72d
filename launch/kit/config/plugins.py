"""Find runtimes, launchers and stages, one bash file each, by listing their folders.

The first lines of such a file hold the facts that Python needs before submission:

    # images: .sif folder            image files it runs; `none` where it runs without one
    # mounts-refuse: space colon     what a mount's path cannot hold under it
    # tool: enroot                   the program that it needs on a node; `kit doctor` looks for it
    # is-not: podman                 what another program under that name calls itself (--version)
    # srun-option: --container-image it is there if srun has this option, otherwise if its tool is
    # auto: 2                        its turn where kit chooses among those that run the image
    # instead-of: NAME               it runs the same files: kit chooses it where it alone is there
    # remap-root: no                 a user cannot be root inside its containers
    # user-namespaces: yes           it needs them; or `unless-setuid`
    # own-disk: yes                  its containers cannot lie on a network file system
    # containers-variable: NAME      the user's variable that says where its containers are
    # unpacks: yes                   each node makes a container of the image before the first start
    # mounts-image: for-task         it can mount an image instead: for each task, or `for-node`
    # mounts-data-images: yes        a mount of a squashfs file shows the file's content
    # where: local                   a runtime for `kit run` alone
    # tasks-per-node: 1              Slurm tasks per node: 1, or `processes`
    # processes-per-node: 1          a launcher whose programs drive all GPUs of a node
    # cpu-bind: cores                srun's --cpu-bind for its tasks; none where this is not said
    # mpi: yes                       its programs learn their rank from Slurm's PMIx
    # addresses: all                 it needs every node's address, not the first one's alone
    # sets: NAME                     a variable of its programs that no job may set
    # elastic: yes                   it can start failed ranks again itself
    # signals: passed-on             a signal from Slurm to the job's steps reaches the program
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from kit.base import assets
from kit.base.errors import UsageError, did_you_mean

_FACT = re.compile(r"# ([a-z-]+): (.+)")
# Names of other tools, or of a framework's own launcher, and the plug-in that replaces each.
_OTHER_NAMES = {
    "charliecloud": "apptainer",
    "nvidia-docker": "docker",
    "accelerate": "torchrun",
    "deepspeed": "torchrun",
    "lightning": "torchrun",
    "elastic": "torchrun",
    "slurm": "srun",
    "mpirun": "mpi",
    "mpiexec": "mpi",
    "openmpi": "mpi",
    "horovod": "mpi",
    "horovodrun": "mpi",
}


class Plugin(NamedTuple):
    name: str
    path: Path
    facts: dict[str, str]

    def words(self, fact: str) -> list[str]:
        return self.facts.get(fact, "").split()

    @property
    def is_local(self) -> bool:
        """A runtime for `kit run` alone."""
        return self.words("where") == ["local"]

    @property
    def srun_option(self) -> str:
        """The option of srun that tells that the runtime is there; "" where its tool tells it."""
        return self.facts.get("srun-option", "")

    @property
    def tool(self) -> str:
        return self.facts.get("tool", "")


def names(kind: str) -> list[str]:
    """Return the names of all plug-ins of a kind, such as "runtimes" or "launchers"."""
    return sorted(path.stem for path in _folder(kind).glob("*.sh"))


def choices(kind: str) -> list[str]:
    """Return the names that a job may choose from, `auto` included if kit can choose."""
    return sorted([*names(kind), *(["auto"] if kind in ("runtimes", "stages") else [])])


def find(kind: str, name: str, where: str) -> Plugin:
    """Return the plug-in. Raises UsageError with the known names if there is no such plug-in."""
    known = names(kind)
    if name not in known:
        raise UsageError(f"unknown {kind[:-1]} '{name}'", _suggest(kind, name, known), where=where)
    path = _folder(kind) / f"{name}.sh"
    return Plugin(name, path, _facts(path))


def runtimes(image_kind: str = "", *, local: Optional[bool] = None) -> list[Plugin]:
    """Return the runtimes with containers, in the order in which `auto` tries them.

    `image_kind` is a file's extension, "folder" or "docker://"; "" stands for any. `local` keeps
    the runtimes for `kit run` alone, or with False those for nodes.
    """
    found = [find("runtimes", name, "") for name in names("runtimes")]
    fitting = [
        item
        for item in found
        if item.tool
        and (not image_kind or image_kind in item.words("images"))
        and local in (None, item.is_local)
    ]
    return sorted(fitting, key=lambda item: (int(item.facts.get("auto", "99")), item.name))


def without_twins(able: list[Plugin], is_there: Callable[[Plugin], bool]) -> list[Plugin]:
    """Return one of each two that run the same files; the second only where it alone is there."""
    seconds = {item.facts["instead-of"]: item for item in able if "instead-of" in item.facts}

    def choose(item: Plugin) -> Plugin:
        second = seconds.get(item.name)
        return second if second and is_there(second) and not is_there(item) else item

    return [choose(item) for item in able if "instead-of" not in item.facts]


def tools() -> list[str]:
    """Return the programs that runtimes need, those for nodes first."""
    found = [*runtimes(local=False), *runtimes(local=True)]
    return list(dict.fromkeys(item.tool for item in found))


def srun_options() -> list[str]:
    """Return the options of srun by which runtimes are known to be there."""
    return [item.srun_option for item in runtimes() if item.srun_option]


def _suggest(kind: str, name: str, known: list[str]) -> str:
    other = _OTHER_NAMES.get(name.lower())
    if other in known:
        return f"write `{kind[:-1]}: {other}`, which takes its place"
    return did_you_mean(name, choices(kind), f"the {kind} are {', '.join(choices(kind))}")


def _folder(kind: str) -> Path:
    return assets.folder("launch/scripts") / kind


def _facts(path: Path) -> dict[str, str]:
    """Return the `# key: value` lines of the comment at the head of the file."""
    facts = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if match := _FACT.fullmatch(line):
            facts[match[1]] = match[2].strip()
    return facts
