"""On the login node: takes in what a laptop brings, and loses nothing that somebody else put there.

A file is kit's while it is as kit brought it at some time. What was changed there stays, and so
does whatever is in a file's way; files that kit brought and the project no longer has are removed.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Optional

from kit.base.errors import KitError
from kit.base.formats import DAY_S
from kit.config import image_files
from kit.files import remove, replace
from kit.remote import landing, session
from kit.remote.landing import BROUGHT, MARK, is_marked, read

FileState = list[Any]  # [size, seconds, whether it is a program] of a file, [target] of a link
REMEMBERED = 4  # states of one file
GIVEN = "given"  # in kit's folder: files that belong to no project
_COPIES = r"(kit-[^/]+-[0-9a-f]{16}|\.kit-[^/]+-[0-9a-f]{16}\.[0-9a-f]{8})"


def file_state(path: str) -> Optional[FileState]:
    """Return the state of a file or a link; None where nothing is, [] for anything else."""
    try:
        facts = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(facts.st_mode):
        return [os.readlink(path)]
    if not stat.S_ISREG(facts.st_mode):
        return []
    return [facts.st_size, int(facts.st_mtime), bool(facts.st_mode & 0o100)]


def receive(
    work: str,
    folder: str,
    origin: str,
    here: str,
    git: Optional[dict[str, str]],
    files: dict[str, Any],
) -> dict[str, Any]:
    """Make a project's folder ready for its `files`: {name: {"tracked": BOOL, "state": FileState}}.

    Returns `needed`, the files to send, `kept`, the files that others are in the way of, and
    `other`, whose folder has the project's name where this one is new and has a suffix.
    """
    plain = work.removesuffix(landing.suffix(origin))
    is_second = plain != work and not os.path.lexists(work)
    os.makedirs(work, exist_ok=True)
    before = read(f"{work}/{BROUGHT}")
    if before.get("origin") not in (None, origin):
        raise KitError(f"{work} is another project's", "type the same command again")
    known = {name: facts["states"] for name, facts in before.get("files", {}).items()}
    brought, kept, needed = {}, [], []
    for name, file in files.items():
        new, states, found = file["state"], known.get(name, []), _state_in(work, name)
        if found in (None, new, *states):
            others = [other for other in states if other != new]
            brought[name] = {"tracked": file["tracked"], "states": [new, *others][:REMEMBERED]}
            if found != new:
                needed.append(name)
        else:
            kept.append(name)
    for name in known.keys() - brought.keys():
        # The project no longer has it; what was changed there stays.
        if _state_in(work, name) in known[name]:
            with suppress(OSError):
                os.unlink(f"{work}/{name}")
    place = os.path.realpath(work)  # in a copy of the folder, the list is not true
    content = {"origin": origin, "here": here, "place": place, "files": brought, "git": git}
    replace.text(Path(work, BROUGHT), json.dumps({**content, "came": False}))
    images = f"{folder}/{image_files.FOLDER}"  # which all projects share
    os.makedirs(images, exist_ok=True)
    with suppress(FileExistsError):
        os.symlink(os.path.relpath(images, work), f"{work}/{image_files.FOLDER}")
    other = read(f"{plain}/{BROUGHT}") if is_second else {}
    whose = {"folder": plain, "origin": other.get("origin"), "here": other.get("here")}
    return {"kept": kept, "needed": needed, "other": whose if other else None}


def _state_in(work: str, name: str) -> Optional[FileState]:
    """Return a file's state; [] where something else than a folder has the name of one above it."""
    *folders, _ = (Path(work, folder) for folder in Path(name).parents)
    if any(path.is_symlink() or (path.exists() and not path.is_dir()) for path in folders):
        return []
    return file_state(f"{work}/{name}")


def note_arrival(work: str) -> None:
    """Record the files as they came: one may have been changed since it was listed."""
    found = read(f"{work}/{BROUGHT}")
    if found.get("came") is not False:
        return
    for name, facts in found["files"].items():
        now = file_state(f"{work}/{name}")
        if now and now not in facts["states"]:
            facts["states"] = [now, *facts["states"]][:REMEMBERED]
    replace.text(Path(work, BROUGHT), json.dumps({**found, "came": True}))


# ---------------------------------------------------------------- kit, images and other files


def place_kit(part: str, place: str, python: str) -> None:
    """Give a complete copy of kit its name; remove copies that nobody has used for a week."""
    Path(part, "python.json").write_text(json.dumps({"python": python}), encoding="utf-8")
    try:
        os.rename(part, place)
    except OSError:
        remove.tree(Path(part), _COPIES, MARK)
        if not is_marked(place):  # else another call was quicker
            raise
    folder = Path(place).parent
    session.sweep(folder, _COPIES, 7 * DAY_S)
    session.sweep(folder / GIVEN, r"[^/]+-[0-9a-f]{16}", 2 * DAY_S)


def given_folder(
    folder: str, name: str, files: Mapping[str, str] = MappingProxyType({}), inside: str = "."
) -> str:
    """Return the folder for files that belong to no project, with a folder `inside` it."""
    made = Path(folder, GIVEN, name)
    if not is_marked(str(made)):
        made.mkdir(parents=True)
        (made / MARK).touch()
    (made / inside).mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        path, content = made / file, text.encode("utf-8", "surrogateescape")
        if not (path.is_file() and path.read_bytes() == content):  # a full disk may have cut it off
            replace.text(path, text)
    os.utime(made)
    os.utime(made / MARK)
    return str(made)


def image_state(folder: str, name: str, size: int) -> dict[str, Any]:
    """Return whether an image is there whole."""
    path = Path(folder, image_files.FOLDER, name)
    path.parent.mkdir(exist_ok=True)
    return {"is_there": path.is_file() and path.stat().st_size == size}


def place_image(part: str, name: str, sha256: str) -> dict[str, Any]:
    """Give a complete copy of an image its name; remove the copy where it is another file."""
    place = Path(part).with_name(name)
    try:
        is_whole = image_files.sha256(Path(part)) == sha256
        if is_whole:
            os.utime(part)  # it has the date of the laptop's file, and some sites remove old files
            os.replace(part, place)
        else:
            os.unlink(part)
    except FileNotFoundError:  # this request has come before, and its answer was lost
        is_whole = place.is_file() and image_files.sha256(place) == sha256
    return {"is_whole": is_whole}
