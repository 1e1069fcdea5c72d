"""Where the values of options and arguments come from. What cannot be found out is no error: then there is nothing to offer."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, NamedTuple

from kit import assets, cluster, plugins, sbatch
from kit.errors import KitError


class Candidate(NamedTuple):
    value: str  # one that ends with / or = goes on: no space behind it
    meaning: str = ""


Source = Callable[[str], list[Candidate]]  # of what there is of the word

SLURM_S = 1.0  # how long Slurm may take to name its partitions
NEWEST = 200  # runs; a longer list helps nobody
_JOBS = (".yaml", ".yml", ".py")
_IMAGES = (".sif", ".sqsh", ".squashfs")
_FLAGS = ("contiguous", "exclusive", "hold", "no-kill", "no-requeue", "overcommit", "oversubscribe", "reboot", "requeue", "spread-job", "use-min-nodes")


def of(parameter: Any, command: Any) -> Source:
    """By the parameter's name, or by what its help calls its value: RUN, FILE, DIR, this|that."""
    kind = str(parameter.metavar or "").strip("[]")
    if re.fullmatch(r"[a-z]+(\|[a-z]+)+", kind):
        return lambda current: _plain(kind.split("|"))
    if kind == "RUN" and command.name == "cancel":
        return _active_runs
    return _BY_NAME.get(parameter.name) or _BY_KIND.get(kind) or _nothing


def paths(current: str, endings: tuple[str, ...] = (), *, folders_only: bool = False) -> list[Candidate]:
    """Files with one of these endings, and all folders, in the folder that is typed; a ~ stays as it is typed."""
    typed, start = current[: current.rfind("/") + 1], current[current.rfind("/") + 1 :]
    found = []
    with suppress(OSError), os.scandir(os.path.expanduser(typed) or ".") as entries:
        for entry in entries:
            if not entry.name.startswith(start) or (entry.name.startswith(".") and not start.startswith(".")):
                continue
            if entry.is_dir():
                found.append(f"{typed}{entry.name}/")
            elif not folders_only and (not endings or entry.name.lower().endswith(endings)):
                found.append(typed + entry.name)
    return _plain(sorted(found))


def _partitions() -> list[str]:
    from kit import slurm

    return slurm.partitions(SLURM_S)


def _plain(values: list[str]) -> list[Candidate]:
    return [Candidate(value) for value in values]


def _nothing(current: str) -> list[Candidate]:
    return []


def _runs(current: str, *, ended: bool = True) -> list[Candidate]:
    """Ids and names, the newest first."""
    from kit.runs import history

    known = [run for run in reversed(history.newest(NEWEST)) if ended or not run.state]
    ids = [Candidate(run.id, " ".join(filter(None, [run.name, run.shape, run.state]))) for run in known]
    names: dict[str, Candidate] = {}
    for run in known:
        names.setdefault(run.name, Candidate(run.name, f"the newest: {run.id}"))
    return [*ids, *names.values()]


def _active_runs(current: str) -> list[Candidate]:
    return _runs(current, ended=False)


def _runs_to_wait_for(current: str) -> list[Candidate]:
    kind, colon, _ = current.rpartition(":")
    return [Candidate(f"{kind}{colon}{run.value}", run.meaning) for run in _runs(current)]


def _slurm_options(current: str) -> list[Candidate]:
    name, equals, _ = current.partition("=")
    if not equals:
        return _plain([option if option in _FLAGS else f"{option}=" for option in sbatch.options()])
    return _plain([f"{name}={value}" for value in _partitions()]) if name == "partition" else []


def _clusters(current: str) -> list[Candidate]:
    return [*_plain(cluster.names()), *(paths(current, (".yaml", ".yml")) if "/" in current else [])]


def _images(current: str) -> list[Candidate]:
    """Names of kit build, and files."""
    names = sorted(path.stem for path in Path("images").glob("*.json") if path.is_symlink())
    return [*_plain(names), *paths(current, _IMAGES)]


def _recipes(current: str) -> list[Candidate]:
    places = [Path("containers"), assets.folder("containers")]
    names = sorted({path.parent.name for place in places for path in place.glob("*/Dockerfile")})
    return [*_plain(names), *paths(current)]


def _engines(current: str) -> list[Candidate]:
    return _plain(["docker", "podman", "apptainer", "enroot"])


def _plugins(kind: str, *more: str) -> Source:
    def names(current: str) -> list[Candidate]:
        with suppress(OSError, KitError):
            return _plain([*plugins.names(kind), *more])
        return []

    return names


_BY_NAME: dict[str, Source] = {
    "runtime": _plugins("runtimes", "auto"),
    "launcher": _plugins("launchers"),
    "stage": _plugins("stages", "auto"),
    "on_preempt": _plugins("preempt"),
    "cluster": _clusters,
    "partition": lambda current: _plain(_partitions()),
    "slurm": _slurm_options,
    "image": _images,
    "engine": _engines,
    "after": _runs_to_wait_for,
    "mounts": paths,
    "arguments": paths,
    "state": lambda current: _plain(["PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"]),
}
_BY_KIND: dict[str, Source] = {
    "JOB": lambda current: paths(current, _JOBS),
    "RUN": _runs,
    "DIR": lambda current: paths(current, folders_only=True),
    "FOLDER|PROGRAM": lambda current: paths(current, (".py",)),
    "FILE": paths,
    "RECIPE|IMAGE": _recipes,
}
