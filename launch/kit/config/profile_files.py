"""Find the files of cluster profiles: the user's own, the site's, kit's in env/."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Optional

from kit.base import assets
from kit.base.errors import Problem, UsageError
from kit.config.yaml_source import ENDINGS

SITE = Path("/etc/kit/clusters")  # for all users of a login node


def folders() -> list[Path]:
    """Return the folders with profiles: KIT_CLUSTERS, the user's own, the site's, then kit's."""
    named = os.environ.get("KIT_CLUSTERS")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    own = [Path(named)] if named else []
    return [*own, Path(config, "kit", "clusters"), *site_folders(), assets.folder("env")]


def site_folders() -> list[Path]:
    """Return the folders in which a site keeps profiles for all its users."""
    shared = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    return [*(Path(each, "kit", "clusters") for each in shared.split(":") if each), SITE]


def names() -> list[str]:
    return sorted(files())


def files() -> dict[str, list[Path]]:
    """Return {name: files}: the one that counts, then those of later folders that it hides."""
    found: dict[str, list[Path]] = {}
    for folder in folders():
        for path in (path for ending in ENDINGS for path in sorted(folder.glob(f"*{ending}"))):
            # kit init gets a profile ready under a hidden name, which it leaves where it is killed.
            if os.path.isfile(path) and not path.name.startswith("."):
                found.setdefault(path.stem, []).append(path)
    return found


def unlisted() -> list[Problem]:
    """Return a problem for each folder whose profiles kit cannot list."""
    found = {}
    for folder in folders():
        try:
            os.listdir(folder)
            os.stat(f"{folder}/.")  # which asks for the right to enter it
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            found[folder] = _closed(folder, error)
    return list(found.values())


def site_file(name: str) -> Optional[Path]:
    """Return the site's profile of this name, if there is one and no user's own hides it."""
    found = first(name, folders()[:-1])
    return found if found and found.parent in site_folders() else None


def first(name: str, places: list[Path]) -> Optional[Path]:
    """Return the first profile of this name in these folders.

    Raises UsageError for a folder that the user may not enter: the profile may be in it.
    """
    for folder, path in ((each, each / f"{name}{end}") for each in places for end in ENDINGS):
        try:
            if stat.S_ISREG(os.stat(path).st_mode):
                return path
        except PermissionError as error:
            raise UsageError(*_closed(folder, error)[1:], where=str(folder)) from None
        except (OSError, ValueError):  # it is not there, or the name can be no file's
            continue
    return None


def _closed(folder: Path, error: OSError) -> Problem:
    fix = f"kit looks for profiles there: have it opened, or the folder above it: namei -l {folder}"
    return Problem(str(folder), f"cannot be read: {error.strerror}", fix)
