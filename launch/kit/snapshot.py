"""The code of a run, frozen at submission: which words of its command are taken from the copy, and the copy itself.

Only code is frozen. The job still works in its working directory, where its data are and where its results go.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Optional

from kit import program
from kit.errors import KitError, Problems
from kit.job import Job
from kit.plugins import Plugin
from kit.sources import Sources, find
from kit.values import Mount

FOLDER = "code"  # in the run directory
STARTER = "module.py"  # of launch/scripts; in the run directory where the program is a module
ENDINGS = (".py", ".sh", ".bash", ".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
# The file that an option with such a word names is written: in the copy nobody would look for it. In small letters:
# to have the expression ignore their case would take a millisecond of every start.
WRITES = re.compile(r"[-_.](out|save|log|result|metric|dump|export|write|report|checkpoint|ckpt)(?!.*(conf|cfg))")


class Snapshot(NamedTuple):
    sources: Sources
    workdir: str  # what the program calls sources.root
    used: tuple[str, ...]  # the files of the command
    is_module: bool
    notes: tuple[str, ...] = ()  # what the user should know of it


class _Word(NamedTuple):
    """A word of the command that names a file, or, in a sweep, one for each task."""

    before: str  # --option=
    path: str  # in the working directory
    names: tuple[str, ...]


class Code(NamedTuple):
    """What runs, and from where."""

    command: tuple[str, ...]
    env: dict[str, str]
    snapshot: Optional[Snapshot]
    why_live: str  # though a snapshot was asked for
    key: str = ""  # a file of the command that is one


def take(
    job: Job,
    run_dir: str,
    env: dict[str, str],
    mounts: tuple[Mount, ...],
    runtime: Optional[Plugin],
    default: str,
    problems: Problems,
    keyrings: Iterable[str] = (),
) -> Code:
    """The command and the variables as the run has them. Nothing is copied yet; the files of secrets never are."""
    command, workdir = job.command or (), job.workdir or ""
    if (job.code or default) == "live" or not command or not runtime or not os.path.isdir(workdir):
        return Code(command, env, None, "")
    root = program.on_this_side(workdir, mounts, contained=runtime.name != "none")
    module = program.module(command)
    candidates = _files(job, workdir, root, mounts, contained=runtime.name != "none")
    if root is None or not (candidates or (module is not None and _is_there(root, command[module]))):
        return Code(command, env, None, "the command names no file of the working directory")
    sources = find(root, job.where("code") or "code", problems, keyrings)
    names = set(sources.names)
    used = {index: word for index, word in candidates.items() if names.issuperset(os.path.normpath(name) for name in word.names)}
    is_module = module is not None and any(name.startswith(f"{_top(command[module])}/") or name == f"{_top(command[module])}.py" for name in names)
    if not used and not is_module:
        of_keys = {os.path.normpath(name) for word in candidates.values() for name in word.names} & set(sources.keys)
        if of_keys:
            return Code(command, env, None, f"{min(of_keys)} looks like a key, or has one in its text, and is not copied", min(of_keys))
        return Code(command, env, None, "git or .kitignore ignores what the command names")
    place = f"{run_dir}/{FOLDER}"
    words = [f"{used[index].before}{place}/{used[index].path}" if index in used else word for index, word in enumerate(command)]
    if is_module and module is not None:
        words[module - 1] = f"{run_dir}/{STARTER}"  # instead of -m
    if "PYTHONPATH" in env:
        env = {**env, "PYTHONPATH": _python_path(env["PYTHONPATH"], workdir, place, names)}
    frozen = tuple(os.path.normpath(name) for word in used.values() for name in word.names)
    notes = (*sources.notes, *(note for name in frozen for note in _starts_live_code(root, name, names)))
    return Code(tuple(words), env, Snapshot(sources, workdir, frozen, is_module, notes), "")


def _files(job: Job, workdir: str, root: Optional[str], mounts: tuple[Mount, ...], *, contained: bool) -> dict[int, _Word]:
    """{index of a word: what it is} of those that name code or settings of the working directory."""
    found = {}
    command = job.command or ()
    for index, word in enumerate(command):
        option, equals, path = word.partition("=") if index and word.startswith("-") else ("", "", word)
        before = option if equals else command[index - 1] if index else ""
        if before.startswith("-") and WRITES.search(before.lower()):
            continue
        paths = _points(path, job)
        if not all(each and (each.endswith(ENDINGS) if index else program.is_path(each)) for each in paths):
            continue
        names = [_name(each, workdir, root, mounts, contained=contained) for each in paths]
        if len(paths) == 1 and names[0]:
            found[index] = _Word(option + equals, names[0], (names[0],))
        elif len(paths) > 1 and all(name == os.path.normpath(each) for name, each in zip(names, paths)):
            found[index] = _Word(option + equals, path, tuple(paths))  # the sweep's {name} stays in it
    return found


def _points(path: str, job: Job) -> list[str]:
    """All that a path becomes, in the tasks of a sweep."""
    if not job.sweep:
        return [path]
    from kit import sweeps

    return sweeps.programs(path, job.sweep)


def _name(path: str, workdir: str, root: Optional[str], mounts: tuple[Mount, ...], *, contained: bool) -> Optional[str]:
    """A file of the working directory, by its path there; None for any other."""
    full = os.path.normpath(os.path.join(workdir, path))
    name = os.path.relpath(full, workdir)
    here = program.on_this_side(full, mounts, contained=contained)
    return name if root and here == os.path.join(root, name) and not name.startswith("../") and os.path.isfile(here) else None


def _starts_live_code(root: str, name: str, names: set[str]) -> list[str]:
    """A shell script names its programs as the working directory has them, which is live."""
    if not name.endswith((".sh", ".bash")):
        return []
    try:
        with open(os.path.join(root, name), encoding="utf-8", errors="replace") as file:
            text = file.read(1 << 20)
    except OSError:
        return []
    if "KIT_CODE" in text:
        return []
    started = [word for word in dict.fromkeys(re.findall(r"[\w./-]+\.py\b", text)) if os.path.normpath(word) in names]
    return [f'{name} is a snapshot, but the {word} that it names is live: write "${{KIT_CODE:-.}}"/{os.path.normpath(word)} there' for word in started[:1]]


def _top(module: str) -> str:
    return module.partition(".")[0]


def _is_there(root: str, module: str) -> bool:
    return os.path.isdir(os.path.join(root, _top(module))) or os.path.isfile(os.path.join(root, f"{_top(module)}.py"))


def _python_path(value: str, workdir: str, place: str, names: set[str]) -> str:
    """The copy's root, then the job's own folders, those of the working directory in the copy."""
    folders = [place]
    for entry in value.split(":"):
        name = os.path.relpath(os.path.join(workdir, entry), workdir)
        if name == ".":
            continue  # an empty entry is the working directory, too
        is_copied = any(file.startswith(name + "/") for file in names)
        folders.append(f"{place}/{name}" if is_copied else entry)
    return ":".join(folders)


# ---------------------------------------------------------------- the copy


def copy(snapshot: Snapshot, place: Path) -> dict[str, Any]:
    """Copies the files to a new folder; what run.json says of it. Symbolic links remain links, and what was left out is linked to."""
    files = total = 0
    place.mkdir(mode=0o700)
    for name in snapshot.sources.names:
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        size = _copy_one(snapshot, name, target)
        if size is not None:
            files, total = files + 1, total + size
    linked = [name for name in snapshot.sources.to_link() if _link(snapshot, name, place)]
    return {"live": False, "folder": FOLDER, "files": files, "bytes": total, "used": list(snapshot.used), "linked": len(linked)}


def _copy_one(snapshot: Snapshot, name: str, target: Path) -> Optional[int]:
    """The size of the copy in bytes; None where the file is gone meanwhile, as an editor's temporary ones are."""
    import shutil

    source = os.path.join(snapshot.sources.root, name)
    try:
        if os.path.islink(source):
            os.symlink(_link_target(os.readlink(source), name, snapshot.workdir), target)
            return 0
        # No hard link: an editor that writes in place would change the copy.
        file = open(source, "rb")  # noqa: SIM115 - only opening may fail for reasons of the source's
    except FileNotFoundError:
        return None
    except OSError as error:
        fix = "make it readable, or take it out in .kitignore; or run live code: `code: live`"
        raise KitError(f"cannot read {source} for the snapshot of the code: {error.strerror}", fix) from None
    with file, target.open("wb") as out:
        shutil.copyfileobj(file, out, 1 << 20)
        facts = os.fstat(file.fileno())
    target.chmod(0o700 if facts.st_mode & stat.S_IXUSR else 0o600)
    return facts.st_size


def _link_target(target: str, name: str, workdir: str) -> str:
    """A link that stays inside is kept; one that leaves points to where the original does."""
    if os.path.isabs(target):
        return target
    inner = os.path.normpath(os.path.join(os.path.dirname(name), target))
    return os.path.join(workdir, inner) if inner.startswith("..") else target


def _link(snapshot: Snapshot, name: str, place: Path) -> bool:
    """Data, and modules that were built in place, are found beside the code as ever; but they are the live ones."""
    target = place / name
    original = os.path.join(snapshot.workdir, name)
    if os.path.lexists(target) or not os.path.lexists(os.path.join(snapshot.sources.root, name)) or f"{place}/".startswith(original + "/"):
        return False
    if any(parent.is_symlink() for parent in target.parents if parent.is_relative_to(place)):
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    os.symlink(original, target)
    return True
