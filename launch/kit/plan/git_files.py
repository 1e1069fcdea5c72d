"""List the files of a project by git: those that it tracks, new ones, and those that it ignores."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from itertools import accumulate
from pathlib import Path
from typing import Optional

from kit.plan import git_facts


def listed(root: str, notes: list[str]) -> Optional[dict[str, bool]]:
    """Return {file: whether git tracks it} for tracked and new files.

    Returns None where this is no checkout, git cannot read it, or the whole folder is ignored.
    """
    if not _in_checkout(root):
        return None
    names = _list(root, "--cached", "--others")
    if names is None:
        rest = "the snapshot of the code holds what looks like code"
        fix = "`git status` there tells why, and fetches what a partial clone lacks"
        notes.append(f"git cannot list the files of {root}: {rest}; {fix}")
        return None
    found = _with_submodules(root, names)
    # As without git: nobody has said that a hidden folder is code.
    return {
        name: is_tracked
        for name, is_tracked in found.items()
        if is_tracked or "/." not in f"/{os.path.dirname(name)}"
    } or None


def _in_checkout(root: str) -> bool:
    """Return True if `root` is inside a git repository. Cheaper than calling git."""
    folder = Path(os.path.realpath(root))
    return any(os.path.lexists(place / ".git") for place in (folder, *folder.parents))


def _list(root: str, *which: str) -> Optional[dict[str, bool]]:
    """Return {file: whether git tracks it} for the files that `git ls-files` lists."""
    output = git_facts.output(root, "ls-files", "-z", "-t", *which, "--exclude-standard")
    if output is None:
        return None
    lines = (os.fsdecode(line) for line in output.split(b"\0") if line)
    # A file in conflict is listed several times.
    return {line[2:]: line[0] != "?" for line in lines}


def tracked(root: str, names: Collection[str]) -> set[str]:
    """Return the files that git tracks, among these."""
    found = _list(root, "--cached") if names and _in_checkout(root) else None
    return set(names) & _with_submodules(root, found or {}).keys()


def _with_submodules(root: str, names: dict[str, bool]) -> dict[str, bool]:
    """Return the files with those of submodules, which git names by their folders alone."""
    files: dict[str, bool] = {}
    for name, is_tracked in names.items():
        inner = os.path.join(root, name)
        is_new_file = not is_tracked and not name.endswith("/")
        if is_new_file or os.path.islink(inner) or not os.path.isdir(inner):
            files[name] = is_tracked
        elif os.path.lexists(os.path.join(inner, ".git")):
            prefix = name.rstrip("/") + "/"
            listed = _list(inner, "--cached", "--others") or {}
            below = _with_submodules(inner, listed)
            files |= {prefix + file: known for file, known in below.items()}
    return files


def ignored(root: str, names: Iterable[str]) -> list[str]:
    """Return what git ignores, also in submodules and repositories inside; folders end with /."""
    parents = {os.path.dirname(name) for name in names}
    folders = {each for name in parents for each in accumulate(name.split("/"), "{}/{}".format)}
    inner = {each for each in folders if os.path.lexists(os.path.join(root, each, ".git"))}
    which = ("--others", "--ignored", "--directory")
    return [
        os.path.join(folder, name)
        for folder in sorted({"", *inner})
        for name in _list(os.path.join(root, folder), *which) or {}
    ]
