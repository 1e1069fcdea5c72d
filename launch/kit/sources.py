"""Which files of a project are its code: those that git does not ignore, or, without git, all but what is plainly something else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from kit import keys
from kit.errors import Problems
from kit.progress import size

LARGE = 10 << 20  # bytes of one file
MOST_BYTES = 200 << 20
MOST_FILES = 20_000
IGNORE = ".kitignore"
ELSE = f"or in {IGNORE}, which is written as .dockerignore is; or run live code: `code: live`"


class Sources(NamedTuple):
    """Paths relative to `root`; bytes that are no UTF-8 are in them as Python's surrogates."""

    root: str
    names: tuple[str, ...]  # files and symbolic links
    bytes: int
    by_git: bool
    left_out: tuple[str, ...]  # files and folders that a program may still look for, but those that git ignores
    notes: tuple[str, ...]  # what the user should know of it
    keys: tuple[str, ...] = ()  # of what was left out, the files that hold keys
    tracked_keys: tuple[str, ...] = ()  # among `names`

    def to_link(self) -> list[str]:
        """All that was left out. What git ignores is asked for here: a dry run has no need of it."""
        ignored = _git_lists(self.root, "--others", "--ignored", "--directory") if self.by_git else None
        return [*self.left_out, *(name.rstrip("/") for name in ignored or [] if _may_be_looked_for(self.root, name))]


def find(root: str, where: str, problems: Problems, keyrings: Iterable[str] = ()) -> Sources:
    """What is there now, but for keys, among them `keyrings`: the files that secrets name. More than a snapshot should hold becomes a problem."""
    is_ignored, is_simple = _kitignore(root)
    notes: list[str] = []
    left_out: dict[str, None] = {}
    listed = _by_git(root, notes)
    by_git = listed is not None
    if listed is None:
        listed = dict.fromkeys(_by_walking(root, is_ignored if is_simple else lambda name: False, left_out), False)
    names, total, large = [], 0, []
    for name in _of_this_project(list(listed), left_out):
        if is_ignored(name):
            left_out[_outermost(name, is_ignored) if is_simple else name] = None
            continue
        try:
            facts = os.lstat(os.path.join(root, name))
        except OSError:
            continue  # git knows it, but it was deleted
        if stat.S_ISREG(facts.st_mode) and facts.st_size > LARGE:
            large.append((name, facts.st_size))
        elif stat.S_ISREG(facts.st_mode) or stat.S_ISLNK(facts.st_mode):
            names.append(name)
            total += facts.st_size
    shown = ", ".join(f"{name} ({size(count)})" for name, count in large[:3]) + (f" and {len(large) - 3} more" if len(large) > 3 else "")
    if large and by_git:
        problems.add(where, f"too large for a snapshot of the code: {shown}", f"ignore in .gitignore what is no code, {ELSE}")
    elif large:
        left_out |= dict.fromkeys(name for name, _ in large)
        notes.append(f"not in the snapshot of the code, but linked there, and live: {shown}")
    kept: tuple[str, ...] = ()
    tracked_keys: tuple[str, ...] = ()
    if _is_small_enough(root, len(names), total, where, problems):
        found = keys.among(root, names, keyrings)
        kept = tuple(name for name in found if not listed[name])
        tracked_keys = tuple(name for name in found if listed[name])
        notes += [f"keys are not in the snapshot of the code, but linked there, and live: {keys.shown(kept)}"] if kept else []
        notes += [keys.COPIED.format(keys.shown(tracked_keys))] if tracked_keys else []
        left_out |= dict.fromkeys(kept)
        total -= sum(os.lstat(os.path.join(root, name)).st_size for name in kept)
    names = [name for name in names if name not in left_out]
    return Sources(root, tuple(names), total, by_git, tuple(left_out), tuple(notes), kept, tracked_keys)


def _is_small_enough(root: str, count: int, total: int, where: str, problems: Problems) -> bool:
    if count > MOST_FILES:
        problems.add(
            where,
            f"{root} holds more than {MOST_FILES:,} files, too many for a snapshot of the code",
            f"start from the project's own folder; name what is no code in .gitignore, {ELSE}",
        )
    elif total > MOST_BYTES:
        fix = f"start from the project's own folder; name what is no code in .gitignore, {ELSE}"
        problems.add(where, f"the files of {root} are too large for a snapshot of the code, together: {size(total)}", fix)
    return count <= MOST_FILES and total <= MOST_BYTES


def _kitignore(root: str) -> tuple[Callable[[str], bool], bool]:
    """Whether a name stays out; and whether with a folder all stays out that is in it."""
    if not os.path.lexists(os.path.join(root, IGNORE)):
        return (lambda name: False), True
    from kit.build import ignore

    lines = ignore.lines(Path(root, IGNORE)) or []
    return ignore.matcher(lines, IGNORE), not any(line.startswith("!") for line in lines)


def _outermost(name: str, is_ignored: Callable[[str], bool]) -> str:
    parts = name.split("/")
    return next(path for path in ("/".join(parts[: count + 1]) for count in range(len(parts))) if is_ignored(path))


def _of_this_project(names: list[str], left_out: dict[str, None]) -> list[str]:
    """Without run directories, images, virtual environments and Python's caches, whatever git thinks of them."""
    there = set(names)
    foreign = {"runs"}
    for name in names:
        folder, _, file = name.rpartition("/")
        if file == "pyvenv.cfg" or (file == "run_script.sh" and f"{folder}/env.sh".lstrip("/") in there):
            foreign.add(folder)
    foreign.discard("")  # the project itself
    kept = []
    for name in names:
        parts = name.split("/")
        if parts[0] == "images" and len(parts) > 1:
            left_out["images"] = None
        elif "__pycache__" not in parts and not any("/".join(parts[:count]) in foreign for count in range(1, len(parts))):
            kept.append(name)
    return kept


# ---------------------------------------------------------------- with git


def _by_git(root: str, notes: list[str]) -> Optional[dict[str, bool]]:
    """{file: whether git tracks it} of tracked and new files; None where this is no checkout, or none that git can read."""
    if not _in_checkout(root):
        return None
    names = _git_lists(root, "--cached", "--others")
    if names is None:
        notes.append(f"git cannot list the files of {root}: the snapshot of the code holds what looks like code")
        return None
    found = _with_submodules(root, names)
    # As without git: nobody has said that a hidden folder is code.
    return {name: tracked for name, tracked in found.items() if tracked or not _is_hidden(name)} or None  # none where the whole folder is ignored


def _is_hidden(name: str) -> bool:
    """Whether a file is in a folder whose name begins with a dot."""
    return (name.startswith(".") and "/" in name) or "/." in name.rpartition("/")[0]


def _in_checkout(root: str) -> bool:
    """Whether git would find a repository; asking it costs more than a look."""
    folder = os.path.realpath(root)
    while not os.path.lexists(os.path.join(folder, ".git")):
        if folder == (folder := os.path.dirname(folder)):
            return False
    return True


def git(root: str, *arguments: str, timeout_s: float = 120) -> Optional[bytes]:
    """What git prints; None where it fails. A checkout's own configuration can have it start no watcher of files."""
    import subprocess

    # A git hook that calls this sets these for its own repository.
    env = {name: value for name, value in os.environ.items() if name not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")}
    command = ["git", "-C", root, "-c", "core.fsmonitor=false", "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, env=env, timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _git_lists(root: str, *which: str) -> Optional[dict[str, bool]]:
    """{file: whether git tracks it}"""
    output = git(root, "ls-files", "-z", "-t", *which, "--exclude-standard")
    if output is None:
        return None
    lines = (os.fsdecode(line) for line in output.split(b"\0") if line)
    return {line[2:]: line[0] != "?" for line in lines}  # a file in conflict is listed several times


def tracked(root: str, names: Iterable[str]) -> set[str]:
    """Those of the files that git tracks."""
    wanted = list(names)
    found = _git_lists(root, "--cached") if wanted and _in_checkout(root) else None
    return set(wanted) & _with_submodules(root, found or {}).keys()


def _with_submodules(root: str, names: dict[str, bool]) -> dict[str, bool]:
    """git names a repository inside another one by its folder alone."""
    files: dict[str, bool] = {}
    for name, is_tracked in names.items():
        inner = os.path.join(root, name)
        if os.path.islink(inner) or not os.path.isdir(inner):
            files[name] = is_tracked
        elif os.path.lexists(os.path.join(inner, ".git")):
            prefix = name.rstrip("/") + "/"
            files |= {prefix + file: of for file, of in _with_submodules(inner, _git_lists(inner, "--cached", "--others") or {}).items()}
    return files


def _may_be_looked_for(root: str, name: str) -> bool:
    """Of what git ignores, data and built modules; not caches, environments and earlier runs."""
    parts = name.rstrip("/").split("/")
    if name.endswith("/") and (parts[-1].startswith(".") or os.path.exists(os.path.join(root, name, "pyvenv.cfg"))):
        return False
    return parts[0] != "runs" and "__pycache__" not in parts and not name.endswith(".pyc")


# ---------------------------------------------------------------- without


def _by_walking(root: str, is_ignored: Callable[[str], bool], left_out: dict[str, None]) -> list[str]:
    names: list[str] = []
    for folder, folders, files in os.walk(root):
        inner = os.path.relpath(folder, root)
        prefix = "" if inner == "." else inner + "/"
        if prefix and ("pyvenv.cfg" in files or {"env.sh", "run_script.sh"} <= set(files)):
            folders.clear()
            continue
        names += [prefix + name for name in sorted(files) if name != ".git"]
        kept = []
        for name in sorted(folders):
            if os.path.islink(os.path.join(folder, name)):
                names.append(prefix + name)
            elif (not prefix and name == "images") or is_ignored(prefix + name):
                left_out[prefix + name] = None
            elif not name.startswith(".") and name != "__pycache__" and (prefix or name != "runs"):
                kept.append(name)
        folders[:] = kept
        if len(names) > MOST_FILES:
            break  # too many, whatever follows
    return names
