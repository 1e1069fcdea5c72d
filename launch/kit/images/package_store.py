"""Bring a job's Python packages: resolved in the image, locked, packed once, and used again.

images/packages-DIGEST.tar.gz        the packages, named by the requirements and the image
images/packages-DIGEST.tar.gz.json   the record with the lock: it is written last
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tarfile
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import kit
from kit.base.errors import KitError
from kit.base.formats import first, number, size
from kit.base.progress import Note, silent
from kit.config import image_files
from kit.files import full_disk, safe_write
from kit.images import pip_settings, store
from kit.images.image_python import ImagePython
from kit.plan.packages import Packages
from kit.plan.plan import Plan
from kit.plan.program import named_python, python_path

NAME, SUFFIX = "packages", ".tar.gz"
FORMAT = 1  # of the file: another one makes all of them anew
TIMEOUT_S = 3600.0  # for another submission that makes the same
_LINES = 15  # shown of what pip says, without _NOISE
_NOISE = ("Looking in", "Requirement already satisfied")
_ADVICE = "To fix this you could try to:"  # what follows is for those who may change the image
_OF_IMAGE = "(constraint)"  # pip writes this beside a package of the image in a conflict


def bring(plan: Plan, note: Note = silent) -> Plan:
    """Return the plan with its packages' file and lock; made where they are not there yet.

    Raise KitError where the image's own packages do not allow the requirements.
    """
    if not plan.container.packages.requirements:
        return plan
    settings = pip_settings.variables(os.environ)
    image = ImagePython(plan, lambda text: pip_settings.hide(text, settings))
    build = _Build(plan, image, settings, note)
    packages = build.packages()
    return replace(plan, container=replace(plan.container, packages=packages))


@dataclass
class _Build:
    plan: Plan
    image: ImagePython
    settings: dict[str, str]
    note: Note

    @property
    def folder(self) -> Path:
        return Path(self.plan.program.workdir, image_files.FOLDER)

    def packages(self) -> Packages:
        place = store.Place(self.folder, NAME, self._digest(), SUFFIX)
        if not store.is_built(place, self.note):
            with store.locked(place, TIMEOUT_S, self.note):
                if not store.is_built(place):  # nobody made it while this one waited
                    self._make(place)
        image_files.note_use(place.file)
        return _recorded(place, self.plan.container.packages.requirements)

    def _digest(self) -> str:
        """Return the digest of what decides about the packages: requirements, image and Python."""
        container = self.plan.container
        requirements = container.packages.requirements
        parts = [FORMAT, requirements, container.fingerprint or self._identity()]
        # An image may have several Pythons, also in one folder.
        parts += filter(None, (named_python(self.plan), python_path(self.plan)))
        if wheels := _wheels(pip_settings.paths(self.settings, requirements)):
            parts.append(wheels)
        return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogateescape")).hexdigest()

    def _identity(self) -> list[Any]:
        """Return what the Python has, of an image that is no file, or of this machine."""
        container = self.plan.container
        with store.work(self.folder, f".{NAME}-{'0' * store.DIGITS}") as work:
            answer = self.image.run(work, self._request(()))
        self._check(answer)
        return [container.image, answer["python"], answer["executable"], answer["have"]]

    def _request(self, lines: tuple[str, ...]) -> dict[str, Any]:
        # Downloads hold headers, and those the passwords.
        keeps = not any("@" in value for value in self.settings.values())
        return {"requirements": lines, "variables": self.settings, "keeps_downloads": keeps}

    def _make(self, place: store.Place) -> None:
        lines = self.plan.container.packages.requirements
        wanted = number(len([line for line in lines if not line.startswith("-")]), "requirement")
        self.note(f"packages: resolving {wanted} in the image, by its pip")
        with store.work(self.folder, f".{place.stem}") as work:
            mounts = pip_settings.paths(self.settings, lines)
            answer = self.image.run(work, self._request(lines), mounts)
            self._check(answer)
            try:
                total = _pack(work / NAME, place.unfinished)
                lock = [str(line) for line in answer["lock"]]
                origin = {"name": NAME, "kit": kit.__version__, "requirements": lines}
                image = self.plan.container.image or answer["executable"]
                facts = {"image": image, "python": answer["python"], "bytes": total, "lock": lock}
                store.publish(place, {**origin, **facts})
            except OSError as error:
                place.unfinished.unlink(missing_ok=True)
                fix = full_disk.fix(error, "start from a folder that you can write to")
                raise KitError(f"cannot write {place.file}: {error.strerror}", fix) from None
        names = first([line.split(" ")[0] for line in lock], 10)
        self.note(
            f"packages: {names}, {size(place.file.stat().st_size)}"
            if lock
            else "packages: the image has all of them"
        )

    def _check(self, answer: dict[str, Any]) -> None:
        """Raise KitError for what pip could not do."""
        image = self.plan.container.image or "this machine's Python"
        problem, said = answer.get("problem"), self.image.hide(str(answer.get("said", "")))
        if not problem:
            return
        if problem not in ("resolve", "install"):
            fix = "take an image with pip 22.2 or later, or build one with the packages: kit build"
            if problem == "no pip":
                raise KitError(f"`packages` needs pip, and {image} has no pip", fix)
            raise KitError(f"`packages` needs the pip of {image}: {problem}", fix)
        said = re.sub(rf"\S+{re.escape(store.PARTIAL)}/", "", said.partition(_ADVICE)[0])
        lines = [line for line in said.splitlines() if line.strip() and not line.startswith(_NOISE)]
        shown = "\n".join(f"  {line}" for line in lines[-_LINES:])
        if _OF_IMAGE in said:
            fix = "ask for a release that goes with it, or build an image with another: kit build"
            problem = f"packages: they conflict with what {image} has, which stays\n{shown}"
            raise KitError(problem, fix)
        fix = (
            "see pip's lines above. kit installs only wheels. If a package has none for the image's"
            " Python, build it into an image: kit build. Without the internet: PIP_INDEX_URL or"
            " PIP_FIND_LINKS"
        )
        raise KitError(f"packages: pip cannot {problem} them for {image}\n{shown}", fix)


def _wheels(paths: list[str]) -> list[tuple[str, int, int]]:
    """Return the wheels in these folders: one that was built again is another package."""
    found = sorted(file for path in paths for file in Path(path).glob("*.whl") if file.is_file())
    facts = [(str(file), file.stat()) for file in found]
    return [(name, fact.st_size, fact.st_mtime_ns) for name, fact in facts]


def _pack(folder: Path, target: Path) -> int:
    """Write a folder to a compressed archive, in order and without owners; return its bytes.

    Every node has gzip and tar; the lowest level is three times as fast as the usual one.
    """
    if folder.is_symlink():  # the user's own files would be in the archive
        problem = "`packages`: the image has put a link in the place of the packages"
        raise KitError(problem, "take another image: this one reaches for files of yours")
    total = 0
    with (
        safe_write.anew(target) as out,
        tarfile.open(
            fileobj=out, mode="w:gz", compresslevel=1, format=tarfile.PAX_FORMAT
        ) as archive,
    ):
        for path in sorted(folder.rglob("*")):
            facts = path.lstat()
            if not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
                continue
            entry = archive.gettarinfo(path, str(path.relative_to(folder)))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mode = 0o755 if entry.isdir() or facts.st_mode & 0o100 else 0o644
            if entry.islnk():  # of two names of one file, each is a file
                entry.type, entry.size = tarfile.REGTYPE, facts.st_size
            with path.open("rb") if entry.isreg() else nullcontext() as file:
                archive.addfile(entry, file)
            total += entry.size
    return total


def _recorded(place: store.Place, requirements: tuple[str, ...]) -> Packages:
    """Return what the record says of the file, which has been checked."""
    found = image_files.record(place.record)
    lock, total = found.get("lock"), found.get("bytes")
    if not isinstance(lock, list) or not isinstance(total, int):
        with suppress(OSError):
            place.record.unlink()
        fix = "start again: kit makes the packages anew"
        raise KitError(f"{place.record} is not what kit wrote", fix)
    return Packages(requirements, tuple(map(str, lock)), str(place.file), found["sha256"], total)
