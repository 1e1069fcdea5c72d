"""Find, digest and copy the files that a recipe takes in."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import re
import shutil
import stat
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Callable

from kit.base.errors import KitError
from kit.base.formats import first, size
from kit.base.progress import Note
from kit.config import paths
from kit.files import safe_read, safe_write
from kit.files.digests import Digests
from kit.plan import git_files

LARGE = 500 * 10**6  # bytes: kit says so if a recipe takes in more
WORTH_NOTING = 64 << 10  # bytes: a smaller file is read about as fast as its digest is found


def matching(
    folder: Path, pattern: str, real: Callable[[Path], Path] = lambda path: path
) -> list[Path]:
    """Return the files and folders that a word of COPY means, including hidden names.

    ** stands for folders at any depth. `real` tells where a folder on the way really is.
    """
    found = [folder]
    for part in pattern.split("/"):
        starts = [real(path) for path in found]
        if part == "**":
            below = [path for start in starts for path in (start, *start.rglob("*"))]
            found = [path for path in below if path.is_dir()]
        elif glob.has_magic(part):
            is_meant = re.compile(fnmatch.translate(part.replace("[^", "[!"))).match
            inside = [path for start in starts if start.is_dir() for path in start.iterdir()]
            found = sorted(path for path in inside if is_meant(path.name))
        elif part not in ("", "."):
            found = [start / part for start in starts if os.path.lexists(start / part)]
    return found


def archive(folder: Path, name: str) -> str:
    """Return the file's path in the name of an archive's image, which may go on with :TAG."""
    return name if os.path.lexists(folder / name) else name.partition(":")[0]


def digest_tree(path: Path, read_before: Digests) -> str:
    """Return a digest of a file, or of what a sandbox folder holds: names, sizes and times."""
    if not path.is_dir():
        return digest(path, read_before)
    found = hashlib.sha256()
    for folder, folders, files in os.walk(path):
        folders.sort()
        inside = os.path.relpath(folder, path)  # the digest stays where the folder is moved
        for name in sorted((*folders, *files)):
            facts = os.lstat(os.path.join(folder, name))
            line = f"{inside}/{name} {facts.st_mode:o} {facts.st_size} {facts.st_mtime_ns}\n"
            found.update(line.encode("utf-8", "surrogateescape"))
    return f"folder of {found.hexdigest()}"


def digest(path: Path, read_before: Digests) -> str:
    """Return a digest of content and mode. Times are left out: a fresh clone has the same."""
    begun_ns = time.time_ns()
    try:
        facts = path.lstat()
        mode = stat.S_IMODE(facts.st_mode)
        if stat.S_ISLNK(facts.st_mode):
            return f"link to {os.readlink(path)}"
        if stat.S_ISDIR(facts.st_mode):
            return f"folder {mode:o}"
        known = read_before.find(path, facts) if facts.st_size >= WORTH_NOTING else None
        if known:
            return known
        digest = hashlib.sha256(f"{mode:o}\n".encode())
        with safe_read.opened(path) as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise KitError(f"{path} cannot be read: {error.strerror}", "check its rights") from None
    # A file that has just changed may change again within the same tick of the file system's clock.
    if facts.st_size >= WORTH_NOTING and facts.st_ctime_ns < begun_ns - 2 * 10**9:
        read_before.note(path, facts, digest.hexdigest())
    return digest.hexdigest()


def name_large(folder: Path, names: list[str], ignore_file: Path, note: Note) -> None:
    """Note if the files are large, with the file or folder at the top that has most of it."""
    sizes: Counter[str] = Counter()
    for name in names:
        with suppress(OSError):  # reported when the file is read
            is_folder = name.endswith("/")
            sizes[name.partition("/")[0]] += 0 if is_folder else os.lstat(folder / name).st_size
    total = sum(sizes.values())
    if total <= LARGE:
        return
    ((largest, most),) = sizes.most_common(1)
    note(
        f"the recipe takes in {size(total)} of {folder}, {size(most)} of it in "
        f"{largest}: where no step needs that, write {largest} in {ignore_file}"
    )


def name_windows_scripts(folder: Path, names: list[str], note: Note) -> None:
    """Note which shell scripts no shell of an image can read."""
    shells = (name for name in names if name.endswith((".sh", ".bash")))
    if found := [name for name in shells if safe_read.is_of_windows(folder / name)]:
        fix = "where a step runs one: perl -pi -e 's/\\r$//' FILE"
        note(f"lines end as on Windows (CRLF) in {first(found, 5)}; {fix}")


def name_missed(folder: Path, words: list[str], images: str, note: Note) -> None:
    """Note what git tracks in the folder of images, which a COPY of the whole folder leaves out."""
    if not {".", "./", "*"} & {*words} or paths.leads_out(images):
        return
    found = [str(path.relative_to(folder)) for path in (folder / images).rglob("*")]
    if missed := sorted(git_files.tracked(str(folder), found)):
        fix = "to take it in, have kit's own images elsewhere: --images DIR"
        note(f"{images}/ is not in the image, though git tracks {first(missed, 5)}; {fix}")


def copy(folder: Path, names: list[str], target: Path, besides: Path) -> None:
    """Link or copy the files to `target`, except `besides`: through a link its file would change.

    A file behind a link comes with what the link leads to, if anything does.
    """
    for name in names:
        place = target / name
        if place == besides or safe_write.is_behind_link(target, name):
            continue
        if name.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(folder / name, place, follow_symlinks=False)
        except OSError:  # another file system, or one without links
            shutil.copy2(folder / name, place, follow_symlinks=False)
