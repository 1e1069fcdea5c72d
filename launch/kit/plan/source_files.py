"""Find the files of a project that are its code.

With git they are the files that git does not ignore; without git, all but those that plainly are
something else.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from itertools import accumulate
from pathlib import Path
from typing import Callable, NamedTuple

from kit.base.errors import Problems
from kit.base.formats import first, size
from kit.config import image_files
from kit.files import dockerignore, safe_write
from kit.plan import file_list, file_words, git_files, key_files, run_paths

LARGE = 10 << 20  # bytes of one file
MOST_BYTES = 200 << 20
MOST_FILES = 20_000
MOST_LINKS = 200  # to what has one ending, or files without any, in one folder
OUTPUT = (".err", ".log", ".out", ".pyc", ".tmp")  # not looked for beside the code
IGNORE = ".kitignore"
_LINKED = "{} in the snapshot of the code, but linked there, and live"
OTHER_WAYS = f"or in {IGNORE}, which is written as .dockerignore is; or run live code: `code: live`"


class Sources(NamedTuple):
    """The files, relative to `root`; bytes that are no UTF-8 are Python's surrogates in them."""

    root: str
    names: tuple[str, ...]  # files and symbolic links
    bytes: int
    by_git: bool
    left_out: tuple[str, ...]  # what a program may still look for, without what git ignores
    notes: tuple[str, ...]  # what the user should know of the files
    keys: tuple[str, ...] = ()  # in `left_out`, the files that hold keys
    tracked_keys: tuple[str, ...] = ()  # among `names`
    tracked: frozenset[str] = frozenset()  # those of `names` that git is known to track

    def to_link(self) -> tuple[list[str], list[str]]:
        """Return what is linked to, of `left_out` and what git ignores, and notes on the rest."""
        # A dry run needs none.
        ignored = git_files.ignored(self.root, self.names) if self.by_git else []
        wanted = [name for name in ignored if _may_be_looked_for(self.root, name)]
        # A folder comes before what is in it.
        names = sorted({*self.left_out, *(name.rstrip("/") for name in wanted)})
        kinds = [(os.path.dirname(name), _ending(self.root, name)) for name in names]
        # Links to each old result would fill a quota of files.
        many = {kind: n for kind, n in Counter(kinds).items() if kind[1] and n > MOST_LINKS}
        notes = [
            f"no links in the snapshot of the code to {count:,} ignored files: "
            f"{os.path.join(folder, '*')}{ending}; a program finds them in the working directory"
            for (folder, ending), count in many.items()
        ]
        return [name for name, kind in zip(names, kinds) if kind not in many], notes


def copied_behind(real_root: str, names: AbstractSet[str], link: str) -> str:
    """Return the file, or the folder of a package, that a link leads to if it is among `names`."""
    name = os.path.relpath(os.path.realpath(os.path.join(real_root, link)), real_root)
    return name if name in names or f"{name}/__init__.py" in names else ""


def find(root: str, where: str, problems: Problems, keyrings: Iterable[str]) -> Sources:
    """Return the files of the code, without keys and without `keyrings`, files that secrets name.

    More than a snapshot should hold becomes a problem.
    """
    is_ignored, is_simple = dockerignore.read(Path(root, IGNORE), IGNORE)
    notes: list[str] = []
    left_out: dict[str, None] = {}
    listed, by_git = _listed(root, is_ignored if is_simple else lambda name: False, notes, left_out)
    names = []
    for name in _of_this_project(listed, left_out):
        if not is_ignored(name):
            names.append(name)
            continue
        # Where no pattern takes something in again, an ignored folder is left out as a whole.
        left_out[next(filter(is_ignored, _paths(name))) if is_simple else name] = None
    sizes, large = _sizes_with_images(root, names, left_out)
    shown = first([f"{name} ({size(count)})" for name, count in large.items()], 3)
    if large and by_git:
        fix = f"ignore what is not code in .gitignore, if git does not track it, {OTHER_WAYS}"
        problems.add(where, f"too large for a snapshot of the code: {shown}", fix)
    elif large:
        left_out |= dict.fromkeys(large)
        notes.append(f"{_LINKED.format('not')}: {shown}")
    found: list[str] = []
    if _is_small_enough(root, len(sizes), sum(sizes.values()), where, problems):
        found = key_files.among(root, sizes, keyrings)
    kept = tuple(name for name in found if not listed[name])
    tracked_keys = tuple(name for name in found if listed[name])
    notes += [f"{_LINKED.format('keys are not')}: {key_files.shown(kept)}"] if kept else []
    notes += [key_files.COPIED.format(key_files.shown(tracked_keys))] if tracked_keys else []
    left_out |= dict.fromkeys(kept)
    own = {name: count for name, count in sizes.items() if name not in left_out}
    total = sum(own.values())
    tracked = frozenset(name for name in own if listed[name])
    return Sources(
        root, tuple(own), total, by_git, tuple(left_out), tuple(notes), kept, tracked_keys, tracked
    )


def _sizes_with_images(
    root: str, names: list[str], left_out: dict[str, None]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the same as `_sizes`, with no more of images/ than a snapshot may hold.

    Its large files are left out, and all of it where its other files are too much.
    """
    sizes, large = _sizes(root, names)
    images = {name for name in names if name.startswith(f"{image_files.FOLDER}/")}
    if images and (len(sizes) > MOST_FILES or sum(sizes.values()) > MOST_BYTES):
        left_out[image_files.FOLDER] = None
        return _sizes(root, [name for name in names if name not in images])
    left_out |= dict.fromkeys(name for name in large if name in images)
    return sizes, {name: count for name, count in large.items() if name not in images}


def _sizes(root: str, names: list[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Return {file: bytes} of the files and links, and of the files that are too large."""
    found, large = {}, {}
    for name in names:
        if safe_write.is_behind_link(root, name):
            continue  # git still knows the folder that was there before the link
        try:
            facts = os.lstat(os.path.join(root, name))
        except OSError:
            continue  # git knows it, but it was deleted
        is_file = stat.S_ISREG(facts.st_mode)
        if is_file and facts.st_size > LARGE:
            large[name] = facts.st_size
        elif is_file or stat.S_ISLNK(facts.st_mode):
            found[name] = facts.st_size
        if len(found) > MOST_FILES:
            break  # too many, whatever follows
    return found, large


def _listed(
    root: str, is_ignored: Callable[[str], bool], notes: list[str], left_out: dict[str, None]
) -> tuple[dict[str, bool], bool]:
    """Return {file: whether git tracks it} of a folder, and whether git listed the files."""
    if found := file_list.read(root):
        left_out |= dict.fromkeys(filter(_is_no_output, file_list.others(root, found.tracked)))
        return found.tracked, False
    listed = git_files.listed(root, notes)
    if listed is not None:
        return listed, True
    return dict.fromkeys(_by_walking(root, is_ignored, notes, left_out), False), False


def _is_small_enough(root: str, count: int, total: int, where: str, problems: Problems) -> bool:
    snapshot = "for a snapshot of the code"
    if count > MOST_FILES:
        problem = f"{root} holds more than {MOST_FILES:,} files, too many {snapshot}"
    elif total > MOST_BYTES:
        problem = f"the files of {root} are too large {snapshot}, together: {size(total)}"
    else:
        return True
    fix = "start from the project's own folder; name what is not code in .gitignore"
    problems.add(where, problem, f"{fix}, {OTHER_WAYS}")
    return False


def _of_this_project(listed: dict[str, bool], left_out: dict[str, None]) -> list[str]:
    """Return the names without what is no code: runs, virtual environments and caches.

    Of images/ it keeps what `_images` takes for code.
    """
    foreign = set()
    for name in listed:
        folder, _, file = name.rpartition("/")
        is_run = file == run_paths.SCRIPT and f"{folder}/{run_paths.ENV}" in listed
        if folder and (file == "pyvenv.cfg" or is_run):  # not the project itself
            foreign.add(folder)
    of_runs = {*foreign, "runs"}  # results that git tracks, such as weights, are no code either
    images = _images(listed, left_out)
    kept = []
    for name, is_tracked in listed.items():
        parts = name.split("/")
        folders = {"/".join(parts[:count]) for count in range(1, len(parts))}
        is_code = is_tracked and name.endswith(file_words.ENDINGS)
        is_kits = parts[-1] == file_list.NAME or image_files.KEPT_CACHE.fullmatch(parts[-1])
        if name in images or is_kits:
            continue
        if "__pycache__" not in parts and folders.isdisjoint(foreign if is_code else of_runs):
            kept.append(name)
    return kept


def _images(listed: dict[str, bool], left_out: dict[str, None]) -> set[str]:
    """Return the files of images/ that are no code, and leave the folders out that hold no other.

    Where git tracks a program in it, the folder is a part of the project like any other.
    """
    inside = [name for name in listed if name.startswith(f"{image_files.FOLDER}/")]
    is_code = any(listed[name] and name.endswith(file_words.PROGRAMS) for name in inside)
    code = [
        name for name in inside if is_code and listed[name] and not name.endswith(image_files.FILES)
    ]
    folders = {os.path.dirname(path) for name in code for path in _paths(name)}
    others = set(inside).difference(code)
    for name in inside:
        if name in others:
            left_out[next(path for path in _paths(name) if path not in folders)] = None
    return others


def _paths(name: str) -> Iterable[str]:
    """Return the folders of a file from the outermost one on, and at last the file."""
    return accumulate(name.split("/"), "{}/{}".format)


def _is_no_output(name: str) -> bool:
    parts = name.split("/")
    return parts[0] != "runs" and "__pycache__" not in parts


def _may_be_looked_for(root: str, name: str) -> bool:
    """Return whether an ignored file may be data or a built module, no cache or earlier run."""
    if name.endswith("/"):
        is_environment = os.path.exists(os.path.join(root, name, "pyvenv.cfg"))
        if os.path.basename(name[:-1]).startswith(".") or is_environment:
            return False
    return _is_no_output(name.rstrip("/")) and not name.endswith(OUTPUT)


def _ending(root: str, name: str) -> str:
    """Return the ending of a file, or that it has none, in words; of most folders nothing."""
    if ending := os.path.splitext(name)[1]:
        return ending
    return "" if os.path.isdir(os.path.join(root, name)) else " without an ending"


def _by_walking(
    root: str, is_ignored: Callable[[str], bool], notes: list[str], left_out: dict[str, None]
) -> list[str]:
    names: list[str] = []

    def leave_out(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            name = os.path.relpath(error.filename, root)
            left_out[name] = None
            notes.append(f"{_LINKED.format('not')}: {name} ({error.strerror})")

    for folder, folders, files in os.walk(root, onerror=leave_out):
        inner = os.path.relpath(folder, root)
        prefix = "" if inner == "." else inner + "/"
        if prefix and ("pyvenv.cfg" in files or {run_paths.ENV, run_paths.SCRIPT} <= set(files)):
            folders.clear()
            continue
        names += [prefix + name for name in sorted(files) if name != ".git"]
        kept = []
        for name in sorted(folders):
            if os.path.islink(os.path.join(folder, name)):
                names.append(prefix + name)
            elif (not prefix and name == image_files.FOLDER) or is_ignored(prefix + name):
                left_out[prefix + name] = None
            elif not name.startswith(".") and name != "__pycache__" and (prefix or name != "runs"):
                kept.append(name)
        folders[:] = kept
        if len(names) > MOST_FILES:
            break  # too many, whatever follows
    return names
