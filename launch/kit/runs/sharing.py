"""Share a run with the members of its directory's group: they read it, and leave requests.

What is opened to them is what `kit status`, `logs` and `why` read, and nothing else: log/ and
run.json. launch/scripts/lib/share.sh does the same for what a job writes.
"""

from __future__ import annotations

import errno
import grp
import os
import stat
import tempfile
from pathlib import Path
from typing import Optional

from kit import slurm
from kit.base.errors import KitError, UsageError, warn
from kit.files import safe_read
from kit.plan.run_paths import RunPaths

_RECORD = 0o640
_FOLDERS = 0o2750  # what is made in them has the same group
_ENTRY = 0o2710  # the names of its files need not be known


def open_to_group(folder: Path) -> None:
    """Open a run directory that is being made to its group, as far as members need it.

    Raise KitError where this user cannot do that.
    """
    gid = os.stat(folder).st_gid
    if gid not in (os.getegid(), *os.getgroups()) and os.geteuid() != 0:
        whom = f"{group(folder)}, the group of {folder.parent}"
        problem = f"`share: group` would share this run with {whom}, but you are not a member"
        raise KitError(problem, "start in a folder of your group: chgrp GROUP DIR; chmod g+s DIR")
    paths = RunPaths(folder)
    for entry in os.scandir(folder):
        if not entry.is_symlink():
            os.chmod(entry.path, stat.S_IMODE(entry.stat().st_mode) & 0o700)
    for path, mode in ((paths.record, _RECORD), (paths.log, _FOLDERS), (folder, _ENTRY)):
        os.chown(path, -1, gid)
        os.chmod(path, mode)
        if stat.S_IMODE(os.stat(path).st_mode) != mode:
            problem = f"the file system of {folder.parent} does not keep permissions"
            raise KitError(f"`share: group` cannot share: {problem}", "start in another folder")


def mode_of_record(folder: Path) -> int:
    """Return the mode with which run.json is to be written."""
    try:
        mode = stat.S_IMODE(os.stat(RunPaths(folder).record).st_mode)
    except OSError:  # for the first time
        return 0o600
    return mode if mode == _RECORD else 0o600


def warn_of_closed_folders(folder: Path) -> None:
    """Warn where members cannot come to a shared run directory, or it has none but its owner."""
    gid = os.stat(folder).st_gid
    name = group(folder)
    # Many systems give each user such a group.
    if name == owner_name(str(folder)) and not name.isdecimal() and not grp.getgrgid(gid).gr_mem:
        fix = "start in a folder of your team's group: chgrp GROUP DIR; chmod g+s DIR"
        warn(f"kit: this run is shared with the group {name}, which is yours alone\n  fix: {fix}")
        return
    for parent in reversed(Path(os.path.realpath(folder)).parents):
        facts = os.stat(parent)
        if not facts.st_mode & (0o010 if facts.st_gid == gid else 0o001):
            who = f"members of {group(folder)}, with whom this run is shared,"
            fix = f"chmod {'g' if facts.st_gid == gid else 'o'}+x {parent}"
            elsewhere = "or start in a folder that the group can enter"
            warn(f"kit: {who} may not be able to enter {parent}\n  fix: {fix}; {elsewhere}")
            return


def group(folder: Path) -> str:
    gid = os.stat(folder).st_gid
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def owner(folder: str) -> int:
    """Return whose a run directory is, as a number; this user's where it is gone."""
    try:
        return os.stat(folder).st_uid
    except OSError:
        return os.geteuid()


def is_own(folder: str) -> bool:
    """Return whether this user may do with a run what its owner may."""
    return os.geteuid() in (0, owner(folder))


def refuse_others(folder: str, what: str) -> None:
    """Raise KitError for another user's run: its record may name any job as its own."""
    if not is_own(folder):
        raise KitError(
            f"{folder} belongs to {owner_name(folder)}, and only they can {what}", "ask them"
        )


def owner_name(folder: str) -> str:
    return slurm.user(owner(folder))


def leave_request(place: Path, request: str) -> None:
    """Leave a request: an empty file of that name, whose owner is who asks.

    Raise OSError where that is not possible. A link could lead to any folder of this user's.
    """
    if place.is_symlink():
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(place))
    handle, _ = tempfile.mkstemp(prefix=f"{request}.", dir=place)
    os.close(handle)


def refusal(folder: str) -> Optional[UsageError]:
    """Return why this user cannot read a run directory; None where that is not the problem."""
    try:
        with safe_read.opened(RunPaths(folder).record):
            return None
    except PermissionError:
        pass
    except OSError:
        return None
    ways = [*reversed(Path(folder).parents), Path(folder)]
    closed = next((path for path in ways if not os.access(path, os.X_OK)), None)
    whose = f"{owner_name(str(closed or folder))}'s"
    copy = (  # of what kit why reads; the rest may hold secrets
        "of a run that has ended, ask for a copy: mkdir PLACE; cp -r RUN/log RUN/run.json PLACE; "
        "chmod -R go+rX PLACE"
    )
    if closed and str(closed) != folder:
        fix = f"if the run is shared (`share: group`), ask for chmod o+x {closed}; else, {copy}"
        return UsageError(f"{folder} cannot be read: {closed} is {whose}, and closed to you", fix)
    fix = f"let the job say `share: group`, in a folder whose group you are a member of; {copy}"
    return UsageError(f"{folder} cannot be read: it is {whose}, and not shared with you", fix)
