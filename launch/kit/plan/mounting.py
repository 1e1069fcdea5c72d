"""Complete the mounts of a container: the job's own, the working and the run directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Optional

from kit.base.errors import KitError, Problems
from kit.config import expansion, mount_list, paths, plugins
from kit.config.job import Job
from kit.config.mount_list import Mount
from kit.config.plugins import Plugin
from kit.files import safe_read

_MAGIC = b"hsqs"  # Linux's Documentation/filesystems/squashfs.rst
_FACT = "mounts-data-images"  # of the runtimes that can
# What the words of a runtime's `# mounts-refuse:` line stand for.
CHARACTERS = {
    "space": " \t\n\r\v\f",
    "colon": ":",
    "comma": ",",
    "backslash": "\\",
    "dollar": "$",
    "backtick": "`",
    "quote": "'\"",
}


@dataclass(frozen=True)
class FileView:
    """Which of this machine's files a program sees, and by which names."""

    mounts: tuple[Mount, ...]
    has_container: bool
    workdir: str  # as the program sees it; relative names begin there

    def full(self, name: str) -> str:
        """Return the path by which the program sees a file that it calls so."""
        return os.path.normpath(os.path.join(self.workdir, name))

    def on_this_side(self, name: str) -> Optional[str]:
        """Return the path of a file outside the container; None where it is the image's own."""
        path = self.full(name)
        if not self.has_container:
            return path
        mount = self._mount_of(path)
        if mount is None or mount.is_data:
            return None
        return mount.source.rstrip("/") + path[len(mount.target.rstrip("/")) :]

    def hidden(self, name: str) -> str:
        """Return what this machine has by a name, a link included, and no mount shows; or ""."""
        mount, here = self._mount_of(self.full(name)), self.on_this_side(name) or self.full(name)
        if not self.has_container or (mount and mount.is_data) or not os.path.exists(here):
            return ""
        if mount is None:
            return "" if self._holds_mount(self.full(name)) else here
        real = os.path.realpath(here)
        inside = (os.path.relpath(real, os.path.realpath(each.source)) for each in self.mounts)
        return real if all(map(paths.leads_out, inside)) else ""

    def inside(self, path: str) -> str:
        """Return the container's name for a path of this machine that is mounted; or ""."""
        for mount in reversed(self.mounts):
            relative = os.path.relpath(path, mount.source)
            if not paths.leads_out(relative):
                return os.path.normpath(os.path.join(mount.target, relative))
        return ""

    def _holds_mount(self, folder: str) -> bool:
        """Return whether the job mounts something below a folder, which the container then has."""
        below = folder.rstrip("/") + "/"
        own = (mount.target for mount in self.mounts if mount.target != self.workdir)
        return any(target.startswith(below) for target in own)

    def is_on_nodes(self, name: str) -> bool:
        """Return whether a mount shows a file that this machine may lack."""
        mount = self._mount_of(self.full(name))
        return mount is not None and mount.on_nodes

    def is_read_only(self, name: str) -> bool:
        """Return whether a mount keeps the program from writing to a path."""
        mount = self._mount_of(self.full(name)) if self.has_container else None
        return mount is not None and mount.read_only

    def _mount_of(self, path: str) -> Optional[Mount]:
        for mount in reversed(self.mounts):
            target = mount.target.rstrip("/")
            if path == target or path.startswith(target + "/"):
                return mount
        return None


def complete(job: Job, run_dir: str, runtime: Optional[Plugin], problems: Problems) -> FileView:
    """Return what the program sees, by mounts in the order in which they are made."""
    own = tuple(_as_data(mount, problems) for mount in job.mounts)
    _check_own(own, problems, is_elsewhere=job.is_dry and not shutil.which("sinfo"))
    own = tuple(sorted(own, key=_depth))
    if job.workdir and not os.path.isdir(job.workdir):
        fix = "name an existing one"
        if outside := FileView(own, True, "").on_this_side(job.workdir):
            by = "the container has it by the same name"
            fix = f"name the folder of this machine, `workdir: {outside}`; {by}"
        fix = expansion.fix(job.workdir, fix)
        problems.add(job.where("workdir"), f"no such folder: {job.workdir}", fix)
    if runtime is None or runtime.name == "none":
        for mount in own:
            if mount.source != mount.target:
                fix = "use an image, or mount it under its own name"
                problem = f"without a container, {mount.source} cannot appear as {mount.target}"
                problems.add(mount.where, problem, fix)
        return FileView(own, False, job.workdir)
    if job.workdir == "/":
        fix = "start from the project's folder, or name it: --workdir DIR"
        problem = "the working directory is /, which would replace the container's"
        problems.add(job.where("workdir"), problem, fix)
    mounts = list(own)
    if job.workdir and not any(mount.target == job.workdir for mount in own):
        mounts.insert(0, Mount(job.workdir, job.workdir, False, job.where("workdir")))
        mounts.sort(key=_depth)
    if not is_there(run_dir, mounts):
        # Last, so that no other mount hides it or makes it read-only.
        mounts.append(Mount(run_dir, run_dir, False, "the run directory"))
    check_expressible(mounts, runtime, problems)
    return FileView(tuple(mounts), True, job.workdir)


def _depth(mount: Mount) -> int:
    """Return how deep a target lies: what is mounted later hides what lies below it."""
    return len(PurePath(mount.target).parts)


def is_there(path: str, mounts: list[Mount]) -> bool:
    """Return whether these mounts show a folder under its own name, writable.

    Each mount less saves 10 ms of Apptainer's start.
    """
    for mount in reversed(mounts):
        inner = os.path.relpath(path, mount.target)
        if not paths.leads_out(inner):
            # A link in between may lead out of what is mounted.
            mounted = os.path.join(os.path.realpath(mount.source), inner)
            same = os.path.realpath(path) == os.path.normpath(mounted)
            return same and mount.source == mount.target and not mount.read_only
    return False


def _as_data(mount: Mount, problems: Problems) -> Mount:
    """Return the mount as one of a squashfs file's content, if it is one."""
    if not mount_list.is_of_data(mount.source, mount.target) or os.path.isdir(mount.source):
        return mount
    if _is_squashfs(mount.source) is False:
        own_name = f"{mount.target.rstrip('/')}/{os.path.basename(mount.source)}"
        fix = (
            f"copy it again, or pack it again: kit images pack FOLDER; "
            f"to mount the file itself: {mount.source}:{own_name}"
        )
        problem = f"{mount.source} has the name of a squashfs file, and is none"
        problems.add(mount.where, problem, fix)
    return mount._replace(read_only=True, is_data=True)


def _is_squashfs(file: str) -> Optional[bool]:
    """Return whether the file begins as squashfs does; None if it cannot be read here."""
    try:
        return safe_read.start(file, len(_MAGIC)) == _MAGIC
    except OSError:
        return None


def _check_own(own: tuple[Mount, ...], problems: Problems, *, is_elsewhere: bool) -> None:
    for index, mount in enumerate(own):
        fix = expansion.fix(mount.source, "")
        is_missing = _is_gone(mount) or (fix != "" and not os.path.exists(mount.source))
        if is_missing and is_elsewhere and not fix:
            problem = f"not on this machine: {mount.source}, which the job mounts"
            problems.warn(mount.where, problem, "check the path on the nodes")
        elif is_missing and (why := _why_hidden(mount.source)):
            problem = f"cannot reach {mount.source}, which the job mounts: {why}"
            problems.add(mount.where, problem, f"see where that begins: namei -l {mount.source}")
        elif is_missing:
            keys = "{source: ..., target: ..., on_nodes: true}"
            fix = fix or f"check the path; if only the nodes have it, use {keys}"
            problems.add(mount.where, f"no such file or folder to mount: {mount.source}", fix)
        if any(other.target == mount.target for other in own[:index]):
            problems.add(mount.where, f"two mounts have the target {mount.target}", "keep one")


def refuse_gone(mounts: Iterable[Mount], run_dir: str) -> None:
    """Raise KitError for what a run mounts once more and this machine no longer has."""
    for mount in mounts:
        if mount.source != run_dir and _is_gone(mount):  # that folder is yet to be made
            raise KitError(f"{mount.source} is gone, which the run mounts", "put it back")


def _is_gone(mount: Mount) -> bool:
    """Return whether this machine should have what is mounted, and has not."""
    # A device of the nodes need not be on a login node.
    may_lack = mount.on_nodes or mount.source.startswith("/dev/")
    return not may_lack and not os.path.exists(mount.source)


def _why_hidden(path: str) -> str:
    """Return why a path that may be there is not seen, as in a closed folder; "" for no path."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return ""
    except OSError as error:
        return str(error.strerror)
    return ""


def check_expressible(mounts: list[Mount], runtime: Plugin, problems: Problems) -> None:
    """Refuse what the runtime cannot mount: paths with some characters, contents of files."""
    for mount in mounts:
        if mount.is_data and runtime.words(_FACT) != ["yes"]:
            able = [item for item in plugins.runtimes() if item.words(_FACT) == ["yes"]]
            others = " or ".join(f"`runtime: {item.name}`" for item in able)
            fix = f"use {others}; or unpack it: unsquashfs -d FOLDER {mount.source}"
            problem = f"{runtime.name} cannot mount the content of the squashfs file {mount.source}"
            problems.add(mount.where, problem, fix)
        for word in runtime.words("mounts-refuse"):
            for path in sorted({mount.source, mount.target}):
                if any(character in path for character in CHARACTERS[word]):
                    of_file = ".sqsh" in runtime.words("images")
                    fix = "rename it" + (", or use the apptainer runtime" if of_file else "")
                    problem = f"{runtime.name} cannot mount '{path}', which contains a {word}"
                    problems.add(mount.where, problem, fix)
