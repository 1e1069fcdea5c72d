"""On the login node, before kit is there: finds or makes kit's folder, and says what is in it.

This file travels as text, and needs nothing but Python. It removes nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from typing import Any

MARK = ".made-by-kit"  # a file that marks what kit made
BROUGHT = ".kit-brought.json"  # in a project's folder: what kit copied there


def absolute(folder: str) -> str:
    """Return the path of a folder; a relative one is in the home."""
    return os.path.join(os.path.expanduser("~"), folder[2:] if folder.startswith("~/") else folder)


def claim(folder: str) -> str:
    """Make the folder kit's; return "", or why it cannot be.

    That is `foreign` where something else is in it, `open` where others may have prepared it, or
    the system's words.
    """
    if ".." in folder.split("/") or not may_claim(folder):
        return "foreign"
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        if not is_private(folder):
            return "open"
        os.close(os.open(os.path.join(folder, MARK), os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError as error:
        return str(error.strerror)
    return ""


def may_claim(folder: str) -> bool:
    """Return whether the folder has kit's mark, is empty, or is not there."""
    if not os.path.exists(folder):
        return True
    if any(os.path.samefile(folder, other) for other in ("/", os.path.expanduser("~"))):
        return False
    try:
        # The mark is looked for once more at the end: another call may just have made the folder.
        return is_marked(folder) or not os.listdir(folder) or is_marked(folder)
    except OSError:  # anything may be in it
        return False


def is_private(folder: str) -> bool:
    """Return whether nobody else can write to the folder: what is in it runs as this user."""
    facts, link = os.stat(folder), os.lstat(folder.rstrip("/"))
    is_own = facts.st_uid == os.getuid() and link.st_uid in (os.getuid(), 0)
    return is_own and not facts.st_mode & 0o022


def is_marked(folder: str) -> bool:
    """Return whether the folder has the mark, as a regular file."""
    mark = os.path.join(folder, MARK)
    return os.path.isfile(mark) and not os.path.islink(mark)


def renew_dates(place: str) -> None:
    """Give the files of a copy of kit today's date: some sites remove old files, used or not."""
    os.utime(place)
    mark = os.path.join(place, MARK)
    if time.time() - os.stat(mark).st_mtime < 86400:
        return
    for folder, _, names in os.walk(place):
        for name in names:
            with suppress(OSError):  # another process is just compiling it
                os.utime(os.path.join(folder, name), follow_symlinks=False)
    os.utime(mark)


def project_folder(folder: str, name: str, origin: str) -> str:
    """Return the folder of a project: its name, with a suffix where another project has that."""
    places = [os.path.join(folder, "work", word) for word in (name, name + suffix(origin))]
    theirs = [read(os.path.join(place, BROUGHT)).get("origin") for place in places]
    if origin in theirs:
        return places[theirs.index(origin)]
    return places[0] if theirs[0] is None else places[1]


def suffix(origin: str) -> str:
    """Return what the name of a project's folder ends with where another project has that name."""
    return "-" + origin[:8]


def read(path: str) -> dict[str, Any]:
    """Return the mapping of a JSON file; an empty one where it has none."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def history_bytes() -> int:
    """Return how long the history of runs is."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    try:
        return os.path.getsize(os.path.join(state, "kit", "runs.jsonl"))
    except OSError:
        return 0


def prepare(folder: str, kit: str, name: str, origin: str, ssh_python: str) -> dict[str, Any]:
    """Make kit's folder; return what is in it of the copy called `kit`, and of a project."""
    folder = absolute(folder)
    refusal = claim(folder)
    if refusal:
        return {"folder": folder, "refusal": refusal}
    place = os.path.join(folder, kit)
    if os.path.lexists(place):
        if not is_marked(place) or not is_private(place):
            return {"folder": place, "refusal": "open" if is_marked(place) else "foreign"}
        renew_dates(place)
    os.utime(os.path.join(folder, MARK))
    # The Python that the copy was tried with may be on another login node, or was removed.
    tried = read(os.path.join(place, "python.json")).get("python", "")
    return {
        "folder": folder,
        "history": history_bytes(),
        "work": project_folder(folder, name, origin),
        "python": tried if not ssh_python and os.access(tried, os.X_OK) else sys.executable,
        "has_copy": is_marked(place),
    }


def main(mark: str, **request: str) -> None:
    """Print the answer behind the mark."""
    os.umask(0o077)
    print("\n" + mark + " " + json.dumps(prepare(**request)))
