"""What the container sees of the host: the job's mounts, the working directory and the run directory."""

from __future__ import annotations

import os
from typing import Callable, NamedTuple, Optional

from kit import shell_words
from kit.errors import Problems
from kit.job import Job
from kit.plugins import Plugin
from kit.values import Mount

# What the words of a runtime's `# mounts-refuse:` line stand for.
CHARACTERS = {"space": " \t\n\r\v\f", "colon": ":", "comma": ",", "backslash": "\\", "dollar": "$", "backtick": "`", "quote": "'\""}


class Place(NamedTuple):
    """Where the paths of a job are."""

    name: str  # " on login", or nothing for this machine
    exists: Callable[[str], bool]
    is_folder: Callable[[str], bool]


HERE = Place("", os.path.exists, os.path.isdir)


def complete(job: Job, run_dir: str, runtime: Optional[Plugin], problems: Problems, place: Place = HERE) -> tuple[Mount, ...]:
    """The mounts in the order in which they are made; what cannot be mounted becomes a problem."""
    own = job.mounts or ()
    _check_own(own, problems, place)
    if job.workdir and not place.is_folder(job.workdir):
        problems.add(job.where("workdir"), f"no such folder{place.name}: {job.workdir}", "name an existing one")
    if runtime is None or runtime.name == "none":
        _check_without_container(own, problems)
        return own
    if job.workdir == "/":
        fix = "start from the project's folder, or name it: --workdir DIR"
        problems.add(job.where("workdir"), "the working directory is /, which would replace the container's", fix)
    mounts = list(own)
    if job.workdir and not any(mount.target == job.workdir for mount in own):
        mounts.insert(0, Mount(job.workdir, job.workdir, False, job.where("workdir")))
    if not is_there(run_dir, mounts):
        # Last, so that no other mount hides it or makes it read-only.
        mounts.append(Mount(run_dir, run_dir, False, "the run directory"))
    check_expressible(mounts, runtime, problems)
    return tuple(mounts)


def is_there(path: str, mounts: list[Mount]) -> bool:
    """Whether these mounts show a folder under its own name, writable. Each mount less is 10 ms of Apptainer's start."""
    for mount in reversed(mounts):
        inner = os.path.relpath(path, mount.target)
        if not inner.startswith(".."):
            # A link in between may lead out of what is mounted.
            same = os.path.realpath(path) == os.path.normpath(os.path.join(os.path.realpath(mount.source), inner))
            return same and mount.source == mount.target and not mount.read_only
    return False


def _check_own(own: tuple[Mount, ...], problems: Problems, place: Place) -> None:
    for index, mount in enumerate(own):
        if not place.exists(mount.source):
            fix = "mounts are paths over there: copy it there, and name it by its absolute path" if place.name else "check the path"
            if expansions := shell_words.expansions(mount.source):
                fix = f"write the path out: no shell puts a value in the place of {expansions}"
            problems.add(mount.where, f"no such file or folder to mount{place.name}: {mount.source}", fix)
        if any(other.target == mount.target for other in own[:index]):
            problems.add(mount.where, f"two mounts have the target {mount.target}", "keep one")


def _check_without_container(own: tuple[Mount, ...], problems: Problems) -> None:
    for mount in own:
        if mount.source != mount.target:
            fix = "use an image, or mount it under its own name"
            problems.add(mount.where, f"without a container, {mount.source} cannot appear as {mount.target}", fix)


def check_expressible(mounts: list[Mount], runtime: Plugin, problems: Problems) -> None:
    for mount in mounts:
        for word in runtime.words("mounts-refuse"):
            for path in sorted({mount.source, mount.target}):
                if any(character in path for character in CHARACTERS[word]):
                    fix = "rename it, or use the apptainer runtime"
                    problems.add(mount.where, f"{runtime.name} cannot mount '{path}', which contains a {word}", fix)
