"""The code of a run, frozen at submission: which words of its command name files of the copy.

Only code is frozen. The job still works in its working directory, where its data are and where its
results go.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Callable, NamedTuple, Optional, TypedDict

from kit.base.errors import KitError, Problems, warn
from kit.config import paths, sweeps
from kit.config.job import Job
from kit.files import safe_write
from kit.plan import file_words, program, run_paths, snapshot_notes
from kit.plan.mounting import FileView
from kit.plan.plan import RankProgram, Snapshot
from kit.plan.source_files import copied_behind, find


class CodeRecord(TypedDict, total=False):
    """What run.json says of the code."""

    live: bool
    why: str  # it is live, though a snapshot was asked for
    folder: str
    files: int
    bytes: int
    used: tuple[str, ...]  # the files of the command
    linked: int


class _Word(NamedTuple):
    """A word of the command that names a file, or, in a sweep, one for each task."""

    before: str  # --option=
    path: str  # in the working directory
    files: tuple[str, ...]
    is_surely_read: bool  # else, it is frozen only if git tracks it


def freeze(
    live: RankProgram,
    job: Job,
    run_dir: str,
    view: FileView,
    keyrings: Iterable[str],
    problems: Problems,
) -> tuple[RankProgram, str]:
    """Return the program from a copy of the working directory, or live with the reason.

    Nothing is copied yet. The copy never has `keyrings`, the files that secrets name.
    """
    root = view.on_this_side(job.workdir)
    words = _file_words(live.command, job, root, view) if root else {}
    in_script = _words_of_script(live.script, root, view) if root else {}
    module = program.module(live.command)
    package = "" if module is None else live.command[module].partition(".")[0]
    is_named = file_words.names_copy(live.script)
    if not root or not (words or in_script or is_named or _has_package(root, package)):
        return live, snapshot_notes.why_not_found(live.script)
    sources = find(root, job.where("code") or "code", problems, keyrings)
    named = sorted({*in_script.values(), *(name for word in words.values() for name in word.files)})
    made = {name: key for name in named if (key := file_words.writer(job, name, view))}
    names, tracked = set(sources.names) - made.keys(), sources.tracked - made.keys()
    used = {
        index: word
        for index, word in words.items()
        if (names if word.is_surely_read else tracked).issuperset(word.files)
    }
    is_module = package != "" and any(
        name.startswith(f"{package}/") or name == f"{package}.py" for name in names
    )
    frozen = {
        word: name
        for word, name in in_script.items()
        if name in (names if word.is_surely_read else tracked)
    }
    if not (used or is_module or frozen or is_named):
        return live, snapshot_notes.why_not_copied(named, sources, made)
    files = tuple(name for word in used.values() for name in word.files)
    files += tuple(dict.fromkeys(frozen.values()))
    notes = snapshot_notes.of_copy(job, sources, files, made)
    read = {name for word in words.values() if word.is_surely_read for name in word.files}
    read |= {in_script[word] for word in in_script if word.is_surely_read}
    notes += snapshot_notes.of_live(read - made.keys(), sources)
    snapshot = Snapshot(sources, job.workdir, files, is_module, tuple(notes))
    command = _frozen_command(live.command, used, module if is_module else None, run_dir)
    env = tuple(_frozen_env(dict(live.env), snapshot, f"{run_dir}/{run_paths.CODE}").items())
    script = file_words.with_frozen(live.script, frozen)
    return replace(live, command=command, env=env, code=snapshot, script=script), ""


def _frozen_command(
    command: tuple[str, ...], used: dict[int, _Word], module: Optional[int], run_dir: str
) -> tuple[str, ...]:
    """Return the command with the copies of these words, and of a module that it names."""
    found = list(command)
    for index, word in used.items():
        found[index] = f"{word.before}{run_dir}/{run_paths.CODE}/{word.path}"
    if module is not None:
        found[module - 1] = f"{run_dir}/{run_paths.STARTER}"  # instead of -m
    return tuple(found)


def _file_words(command: tuple[str, ...], job: Job, root: str, view: FileView) -> dict[int, _Word]:
    """Return {index: word} of the words that name code or settings of the working directory."""
    found = {}
    is_moved = file_words.changes_folder(job.script)
    for index, word in enumerate(command):
        is_option = index > 0 and word.startswith("-")
        option, equals, path = word.partition("=") if is_option else ("", "", word)
        before = option if equals else command[index - 1] if index else ""
        if file_words.is_written(before):
            continue  # nobody would look for it in the copy
        programs = sweeps.programs(path, job.sweep)
        if is_moved and not all(map(os.path.isabs, programs)):
            continue
        if not all(
            each.endswith(file_words.ENDINGS) if index else program.is_path(each)
            for each in programs
        ):
            continue
        files = tuple(filter(None, (_name(each, root, view) for each in programs)))
        is_read = all(file_words.is_surely_read(before, each) for each in programs)
        if len(programs) == len(files) == 1:
            found[index] = _Word(option + equals, files[0], files, is_read)
        elif list(files) == list(map(os.path.normpath, programs)):
            # The sweep's {name} stays in it.
            found[index] = _Word(option + equals, path, files, is_read)
    return found


def _words_of_script(script: str, root: str, view: FileView) -> dict[file_words.Word, str]:
    """Return {word: file} of the words that name code or settings of the working directory."""
    return {
        word: name
        for word in file_words.words(script)
        if file_words.is_of_run(word) and word.is_placed
        if (name := _name(word.path, root, view))
    }


def _name(path: str, root: str, view: FileView) -> Optional[str]:
    """Return the path of a file within the working directory; None for any other file."""
    name = os.path.relpath(view.full(path), view.workdir)
    here = view.on_this_side(path)
    is_inside = here == os.path.join(root, name) and not paths.leads_out(name)
    return name if is_inside and os.path.isfile(here or "") else None


def _has_package(root: str, package: str) -> bool:
    path = os.path.join(root, package)
    return package != "" and (os.path.isdir(path) or os.path.isfile(f"{path}.py"))


def _frozen_env(env: dict[str, str], snapshot: Snapshot, place: str) -> dict[str, str]:
    """Return the variables; on PYTHONPATH come the copy and what it has of the job's folders."""
    if "PYTHONPATH" not in env:
        return env
    folders = [place]
    for entry in env["PYTHONPATH"].split(":"):
        name = os.path.relpath(os.path.join(snapshot.workdir, entry), snapshot.workdir)
        if name == ".":
            continue  # an empty entry is the working directory, too
        is_copied = any(file.startswith(name + "/") for file in snapshot.sources.names)
        folders.append(f"{place}/{name}" if is_copied else entry)
    return {**env, "PYTHONPATH": ":".join(folders)}


# ---------------------------------------------------------------- the copy


def copy(snapshot: Snapshot, place: Path, written: dict[str, str]) -> CodeRecord:
    """Copy the files to a new folder, and return what run.json says of it; add their sums.

    Symbolic links remain links, and what was left out is linked to.
    """
    place.mkdir(mode=0o700)
    names = snapshot.sources.names
    behind = partial(copied_behind, os.path.realpath(snapshot.sources.root), frozenset(names))
    sizes = [_copy_one(snapshot, name, place, written, behind) for name in names]
    copied = [size for size in sizes if size is not None]
    wanted, notes = snapshot.sources.to_link()
    linked = [name for name in wanted if _link(snapshot, name, place)]
    for note in notes:
        warn(f"kit: {note}")
    return {
        "live": False,
        "folder": run_paths.CODE,
        "files": len(copied),
        "bytes": sum(copied),
        "used": snapshot.used,
        "linked": len(linked),
    }


def _copy_one(
    snapshot: Snapshot,
    name: str,
    place: Path,
    written: dict[str, str],
    behind: Callable[[str], str],
) -> Optional[int]:
    """Return the size of the copy in bytes; None where the file, such as an editor's, is gone.

    behind: returns what of the copy a link leads to, or "".
    """
    source, target = os.path.join(snapshot.sources.root, name), place / name
    if safe_write.is_behind_link(place, name) or os.path.lexists(target):
        return None  # a Mac's disk takes Data and data for one name
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        if os.path.islink(source):
            os.symlink(_link_target(os.readlink(source), name, snapshot.workdir, behind), target)
            return 0
        # No hard link: an editor that writes in place would change the copy.
        file = open(source, "rb")  # noqa: SIM115 - copying fails for other reasons
    except FileNotFoundError:
        return None
    except OSError as error:
        fix = "make it readable, or take it out in .kitignore; or run live code: `code: live`"
        raise KitError(
            f"cannot read {source} for the snapshot of the code: {error.strerror}", fix
        ) from None
    with file, target.open("xb") as out:
        content = file.read()  # source_files.LARGE at most
        out.write(content)
        facts = os.fstat(file.fileno())
    target.chmod(0o700 if facts.st_mode & stat.S_IXUSR else 0o600)
    written[f"{run_paths.CODE}/{name}"] = hashlib.sha256(content).hexdigest()
    return len(content)


def _link_target(target: str, name: str, workdir: str, behind: Callable[[str], str]) -> str:
    """Return a link's target: code in the copy, or what is outside as the original finds it."""
    if os.path.isabs(target):
        copied = behind(name)
        return os.path.relpath(copied, os.path.dirname(name)) if copied else target
    inner = os.path.normpath(os.path.join(os.path.dirname(name), target))
    return os.path.join(workdir, inner) if paths.leads_out(inner) else target


def _link(snapshot: Snapshot, name: str, place: Path) -> bool:
    """Link to what is not copied, and return whether it was possible.

    Data, and modules that were built in place, are found beside the code as before.
    """
    target = place / name
    original = os.path.join(snapshot.workdir, name)
    if (
        os.path.lexists(target)
        or not os.path.lexists(os.path.join(snapshot.sources.root, name))
        or f"{place}/".startswith(original + "/")
        or safe_write.is_behind_link(place, name)
    ):
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    os.symlink(original, target)
    return True
