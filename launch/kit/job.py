"""A job as the user wrote it. The fields of Job are the keys of a job file and the options of the command line.

No dataclasses here, nor in what else a dry run loads where no Slurm is asked: they load inspect, which takes a sixth of its time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from kit import cluster as clusters
from kit import given, images, regular, shell_words, tokens, values
from kit.errors import Problem, Problems, UsageError
from kit.given import Given

if TYPE_CHECKING:
    from kit import secret_values, sweeps


class Job(NamedTuple):
    """Every key is optional but `command`; None means that the user did not say."""

    name: Optional[str] = None
    command: Optional[tuple[str, ...]] = None
    image: Optional[str] = None
    runtime: Optional[str] = None
    launcher: Optional[str] = None
    nodes: Optional[values.Nodes] = None
    spares: Optional[int] = None
    processes_per_node: Optional[int] = None
    gpus_per_node: Optional[int] = None
    max_restarts: Optional[int] = None
    stage: Optional[str] = None
    ready_timeout_s: Optional[int] = None
    on_preempt: Optional[str] = None
    checkpoint_s: Optional[int] = None
    max_requeues: Optional[int] = None
    time: Optional[str] = None
    workdir: Optional[str] = None
    code: Optional[str] = None
    mounts: Optional[tuple[values.Mount, ...]] = None
    env: Optional[dict[str, str]] = None
    inherit: Optional[tuple[str, ...]] = None
    secrets: Optional[dict[str, secret_values.Secret]] = None
    array: Optional[str] = None
    sweep: Optional[sweeps.Sweep] = None
    slurm: Optional[dict[str, Given]] = None
    cluster: Optional[str] = None
    remap_root: Optional[bool] = None

    # Where each key was given: "job.yaml:4" or "--nodes".
    places: Mapping[str, str] = MappingProxyType({})

    def where(self, key: str) -> str:
        return self.places.get(key, "")


class Key(NamedTuple):
    parse: Callable[[Given, Problems], Any]
    meaning: str  # for the help, the documents and editors
    metavar: str  # empty for a flag
    option: str = ""  # where it is not called like the key
    many: bool = False  # the option may be given again


KEYS = {
    "name": Key(values.line, "the job's name [the file's name; that of job.yaml's folder]", "TEXT"),
    "command": Key(values.command, "the training script and its arguments", "TEXT"),
    "image": Key(values.line, "container image: a name of kit build, a file (.sif, .sqsh) or an Apptainer sandbox folder; for docker: docker://NAME", "FILE"),
    "runtime": Key(values.line, "what runs the container [auto: by the image, the cluster's profile, and what is installed here]", "NAME"),
    "launcher": Key(values.line, "what starts the ranks [torchrun]", "NAME"),
    "nodes": Key(values.nodes, "number of nodes, or a range 2-4 of which as many are taken as are free [1]", "N"),
    "spares": Key(values.count_or_zero, "nodes to ask for beyond those; bad ones are found before the start, and left out [0]", "N"),
    "processes_per_node": Key(values.count, "ranks per node [gpus_per_node, or 1]", "N"),
    "gpus_per_node": Key(values.count_or_zero, "GPUs per node [0]", "N"),
    "max_restarts": Key(values.count_or_zero, "how often torchrun starts all ranks again when one fails [0]", "N"),
    "stage": Key(values.line, "local: every node copies the image to its own disk, once; sbcast: Slurm hands it on; auto: kit chooses [none]", "NAME"),
    "ready_timeout_s": Key(values.count, "seconds for all nodes to have their container [1200]", "N"),
    "on_preempt": Key(values.line, "checkpoint: ask the ranks for one in time, and start the job again [none]", "NAME"),
    "checkpoint_s": Key(values.count, "seconds before the time limit at which the ranks are asked for a checkpoint [120]", "N"),
    "max_requeues": Key(values.count_or_zero, "how often the job is started again [as long as it makes progress]", "N"),
    "time": Key(values.time_limit, "time limit, as sbatch takes it", "HH:MM:SS"),
    "workdir": Key(values.line, "where the command runs; mounted in the container [the job file's folder]", "DIR"),
    "code": Key(values.code, "snapshot: what runs is the code as it was at submission; live: as it is at the start [snapshot; kit run: live]", "snapshot|live"),
    "mounts": Key(values.mounts, "folders or files for the container, SOURCE:TARGET[:ro]", "S:T[:ro]", option="--mount", many=True),
    "env": Key(values.environment, "variables for the training processes", "NAME=VALUE", many=True),
    "inherit": Key(values.inherit, "variables of this shell for the training processes: names, patterns, all; none [none]", "NAME", many=True),
    "secrets": Key(
        values.secrets,
        "variables with values that nothing shows, read at submission: from the environment, file:PATH, command:LINE",
        "NAME[=SOURCE]",
        option="--secret",
        many=True,
    ),
    "array": Key(values.array, "a job array: the tasks' numbers, as sbatch takes them; with a sweep only %4, four at a time", "LIST"),
    "sweep": Key(values.sweep, "values for {NAME} in the command; every combination is a task of an array", "NAME=V,V", many=True),
    "slurm": Key(values.options, "any sbatch option by its long name", "OPTION=VALUE", many=True),
    "cluster": Key(values.line, "the cluster's profile: a name in env/, or a file [generic]", "NAME"),
    "remap_root": Key(values.flag, "be root inside the container (enroot --root, apptainer --fakeroot)", ""),
}


def option_name(key: str) -> str:
    return KEYS[key].option or "--" + key.replace("_", "-")


def load(target: str, overrides: dict[str, Given], arguments: list[str], problems: Problems) -> Job:
    """The job of a YAML file or of a bare program, with the command line's values over it.

    Relative paths of a job file start at its folder, those of the command line at the current one.
    """
    path = Path(target)
    if path.is_dir():
        raise UsageError(f"{target} is a folder", "name a job file or a program: kit submit job.yaml")
    if path.suffix.lower() in (".yaml", ".yml"):
        keys = given.read(path, problems)
        base = path.absolute().parent
    else:
        _refuse_other_files(path)
        keys = {"command": Given([Given(target, target)], target)}
        base = Path.cwd()
    meant = _reject_unknown(keys, problems)
    theirs, ours = _parse(keys, base, problems), _parse(overrides, Path.cwd(), problems)
    parsed = {**theirs, **ours, **{key: _added(key, theirs[key], ours[key]) for key in theirs.keys() & ours.keys() if KEYS[key].many}}
    parsed.setdefault("name", _name(path, base))
    parsed.setdefault("workdir", str(base))
    if parsed.get("command") is None and "command" not in (*keys, *meant):
        problems.add(target, "no command is given", "add `command: train.py`")
    elif parsed.get("command"):
        words = [values.no_nul(word, "arguments after --", problems) for word in arguments]
        for word in words:
            tokens.refuse_text("an argument", word, "arguments after --", problems)
        shell_words.warn_of_literals(words, "the program", "arguments after --", problems)
        parsed["command"] = (*parsed["command"], *words)
    places = {key: item.where for key, item in {**keys, **overrides}.items()}
    return Job(**parsed, places={"command": target, **places})


def _refuse_other_files(path: Path) -> None:
    """Raise UsageError for what is named in the place of a job and is none, nor a program."""
    if path.suffix.lower() in images.FILES:
        raise UsageError(f"{path} is an image, not a job", f"name your program, and the image by its option: train.py --image {path}")
    if path.suffix.lower() == ".json":
        raise UsageError(f"{path} is neither a job file nor a program", "job files are YAML, and JSON is YAML, too: give it a name that ends with .yaml")
    try:
        start = b"" if path.suffix == ".py" else regular.start(path, 1 << 16)
    except OSError:
        return
    if re.search(rb"^#SBATCH\s", start, re.MULTILINE):
        fix = f"for Slurm as it is: sbatch {path}; for kit name the program that it starts, and its #SBATCH options under `slurm` in a job file"
        raise UsageError(f"{path} is a batch script", fix)


def _name(path: Path, base: Path) -> str:
    """A job's where it has none: its file's, or where that is called job.yaml, as all are, its folder's."""
    name = base.name if path.stem == "job" and path.suffix.lower() in (".yaml", ".yml") else path.stem
    return name if name and not values.CONTROL.search(name) else "job"


def _reject_unknown(keys: dict[str, Given], problems: Problems) -> list[str]:
    """The keys that were probably meant, whose lack is then no second mistake."""
    meant = []
    for key in [key for key in keys if key not in KEYS]:
        from kit import mistakes  # imported late: only a mistake needs it

        likely, fix = mistakes.key(key, list(KEYS))
        problems.add(keys[key].where, f"unknown key '{key}'", fix)
        meant += likely
        del keys[key]
    return meant


def _parse(keys: dict[str, Given], base: Path, problems: Problems) -> dict[str, Any]:
    parsed = {}
    for key, item in keys.items():
        before = len(problems.found)
        value = KEYS[key].parse(item, problems)
        problems.found[before:] = [_with_key(key, problem) for problem in problems.found[before:]]
        if value is not None:
            parsed[key] = _from(base, key, value)
    return parsed


def _with_key(key: str, problem: Problem) -> Problem:
    """With the key's name where only a line is named: on the command line the option names it."""
    is_unnamed = problem.problem.startswith(("expected ", "contains ")) and not problem.where.startswith("-")
    return problem._replace(problem=f"{key}: {problem.problem}") if is_unnamed else problem


def _added(key: str, theirs: Any, ours: Any) -> Any:
    """The command line's variables, options and mounts added to the file's; the same name or target replaces."""
    if isinstance(ours, dict):
        return {**theirs, **ours}
    if key == "inherit":
        return (*theirs, *ours) if ours else ()  # `--inherit none` takes back what the file says
    targets = {mount.target for mount in ours}
    return (*(mount for mount in theirs if mount.target not in targets), *ours)


def _from(base: Path, key: str, value: Any) -> Any:
    """Paths made absolute, symbolic links kept: a path is what the user calls it."""
    if key == "image" and (named := images.named(value, base, Path.cwd())):
        return named
    if key == "secrets":
        from kit import secret_values

        return secret_values.anchored(value, base)
    if key == "mounts":
        return tuple(mount._replace(source=absolute(mount.source, base)) for mount in value)
    if (key in ("image", "workdir") and "://" not in value) or (key == "cluster" and clusters.is_file_name(value)):
        return absolute(value, base)
    return value


def absolute(path: str, base: Path) -> str:
    return os.path.normpath(os.path.join(base, os.path.expanduser(path)))


def pairs(option: str, items: list[str], problems: Problems) -> Given:
    """NAME=VALUE words of the command line, as a mapping; an sbatch option may have no value."""
    mapping = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals and option == "--env":
            problems.add(option, f"'{item}' is not NAME=VALUE", f"write {option} {item}=VALUE")
        else:
            mapping[name] = Given(value if equals else "true", option)
    return Given(mapping, option)
