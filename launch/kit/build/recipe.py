"""A recipe with its arguments: finds it, names it by all that goes into it, and lays that out for an engine."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable, Optional

from kit import keys, regular, sources
from kit.build import formats, ignore, pack
from kit.build.options import Options
from kit.digests import Digests
from kit.errors import KitError, UsageError
from kit.progress import size

LEFT_OUT = (".git", "runs")  # and the images: what kit itself writes would make every build another one
JUDGED = "KIT_KEYS_ARE_TRACKED"  # set on a login node: what lies there was laid out here, where git was asked
REQUIREMENTS = "containers/install/project.txt"  # where install.sh looks for the project's own
LARGE = 500 * 10**6  # bytes: with more, what a recipe takes in is worth a word
WORTH_NOTING = 64 << 10  # bytes: a smaller file is read about as fast as its digest is found
PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")  # every Dockerfile has these


@dataclass(frozen=True)
class Recipe:
    name: str
    file: Path
    folder: Path  # where the files that it takes in are
    text: str
    parts: formats.Parts
    arguments: dict[str, str]  # of the command line; the one that the device sets, too
    device: str
    left_out: tuple[str, ...]  # of the folder
    options: Options = Options()
    requirements: Optional[Path] = None  # of the project, which the kit's own recipe installs

    @property
    def bases(self) -> list[str]:
        found = [(self.expand(word, line), line) for line, word in self.parts.bases]
        return list(dict.fromkeys(base for base, line in found if not self.parts.is_stage(base, line)))

    def expand(self, word: str, line: int) -> str:
        def unknown(name: str) -> str:
            raise UsageError(f"{name} has no value", f"give it one: kit build --build-arg {name}=VALUE", where=f"{self.file}:{line}")

        return formats.expand(word, self._known(self._of_bases()), unknown)

    def _of_bases(self) -> dict[str, str]:
        return self.parts.of_from if self.parts.is_dockerfile else self.parts.arguments

    def _known(self, defaults: dict[str, str]) -> dict[str, str]:
        return {**formats.of_platform(self.options.platform), **defaults, **self.arguments}

    def _pattern(self, word: str, line: int) -> str:
        """The files that a word means; the whole folder where only the engine knows it: by an ENV, or by a variable of its own."""
        if not self.parts.is_dockerfile:
            return self.expand(word, line).lstrip("/")
        known = {name: value for name, value in self._known(self.parts.arguments).items() if name not in self.parts.unsure}
        found = formats.expand(word, known, lambda name: f"${name}") if formats.names(word) <= known.keys() else "$"
        return "." if "$" in found else found.lstrip("/")

    def files(self) -> list[str]:
        """All that the recipe copies, relative to its folder, with a / behind folders; .dockerignore heeded, keys left where they are."""
        return self._sorted_out()[0]

    def _sorted_out(self) -> tuple[list[str], list[str], list[str]]:
        """(files and folders, keys that are none of them, keys that are since git tracks them)"""
        is_ignored = ignore.read(self.folder, self.file)
        found: set[str] = set()
        for line, word in self.parts.sources:
            pattern = self._pattern(word, line)
            matches = _matching(self.folder, pattern)
            matches += [target for match in matches if (target := self._followed(match))]
            files = [name for match in matches for name in self._opened(match, is_ignored)]
            if not files and not glob.has_magic(pattern):
                why = f"{pattern} is not in {self.folder}" if not matches else f"nothing of {pattern} is left: .dockerignore, or what kit writes itself"
                raise UsageError(why, "correct the path, which starts at the recipe's folder", where=f"{self.file}:{line}")
            found.update(files)
        alike = keys.among(str(self.folder), sorted(name for name in found if not name.endswith("/"))) if not os.environ.get(JUDGED) else []
        tracked = sources.tracked(str(self.folder), alike)
        kept = [name for name in alike if name not in tracked]
        for line, word in self.parts.sources:
            if (name := os.path.normpath(self._pattern(word, line))) in kept:
                fix = f"name it under `secrets:` in the job, or mount it there; if it is no key: git add {name}"
                raise UsageError(f"{name} looks like a key, and an image takes none in", fix, where=f"{self.file}:{line}")
        return sorted(found.difference(kept)), kept, sorted(tracked)

    def _followed(self, path: Path) -> Optional[Path]:
        """What a link means, in the folder: COPY follows one that it names."""
        target = os.path.relpath(os.path.realpath(path), os.path.realpath(self.folder))
        return self.folder / target if path.is_symlink() and path.exists() and not target.startswith("..") else None

    def _opened(self, path: Path, is_ignored: Callable[[str], bool]) -> Iterator[str]:
        name = os.path.relpath(path, self.folder)
        if name.startswith(".."):
            raise UsageError(f"{path} is outside {self.folder}", "an engine sees that folder alone: copy it there, or mount it in the job")
        if name in self.left_out:
            return
        if path.is_dir() and not path.is_symlink():
            inside = [item for child in path.iterdir() for item in self._opened(child, is_ignored)]
            yield from inside
            if name != "." and (inside or not is_ignored(name)):
                yield f"{name}/"
        elif not is_ignored(name):
            yield name

    def contents(self) -> dict[str, str]:
        """{file or folder: its digest}; says first where that is much to read."""
        names, read_before = self.files(), Digests("files", most=20_000)
        self._name_large(names)
        found = {name: _file_digest(self.folder / name, read_before) for name in names}
        if self.requirements:
            found[REQUIREMENTS] = _file_digest(self.requirements.resolve(), read_before)
        read_before.save()
        return found

    def _name_large(self, names: list[str]) -> None:
        sizes: Counter[str] = Counter()
        for name in names:
            with suppress(OSError):  # which is said when it is read
                sizes[name] = 0 if name.endswith("/") else os.lstat(self.folder / name).st_size
        total = sum(sizes.values())
        if total <= LARGE:
            return
        for name, count in list(sizes.items()):
            for folder in Path(name).parents:
                sizes[str(folder)] += count
        del sizes["."]
        # Of a folder and the one in it that has nearly all of it, the one in it.
        nearly = 0.9 * max(sizes.values())
        largest = max((name for name, count in sizes.items() if count >= nearly), key=lambda name: (name.count("/"), sizes[name]))
        print(
            f"kit: the recipe takes in {size(total)} of {self.folder}, {size(sizes[largest])} of it in {largest}: "
            f"where no step needs that, write {largest} in {ignore.file(self.folder, self.file)}",
            file=sys.stderr,
            flush=True,
        )

    def digest(self, pinned: dict[str, str], contents: Optional[dict[str, str]] = None) -> str:
        """Of everything that goes in, `pinned` being the digests of the bases: equal digests mean equal images."""
        facts = {
            "recipe": self.text,
            "files": contents or self.contents(),
            "bases": pinned,
            "arguments": self.arguments,
            "device": self.device,
            "of": self.file.name,
            "format": pack.FORMAT,
            **self.options.facts(),
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode("utf-8", "surrogateescape")).hexdigest()

    def at(self, pinned: dict[str, str]) -> Recipe:
        """The same recipe with its bases by digest, in its text and in its arguments."""
        lines, known = self.text.splitlines(keepends=True), {**self._of_bases(), **self.arguments}
        for line, word in self.parts.bases:
            base = self.expand(word, line)
            if pinned.get(base, "").startswith("sha256:") and base not in known.values():
                lines[line - 1] = lines[line - 1].replace(word, at_digest(base, pinned[base]), 1)
        values = {name: at_digest(value, pinned[value]) for name, value in known.items() if pinned.get(value)}
        text = "".join(lines)
        return replace(self, text=text, parts=formats.read(self.file.name, text), arguments={**self.arguments, **values})

    def lay_out(self, target: Path) -> Path:
        """Copies, or links, what goes in to a folder, and nothing else; the recipe, too."""
        files, kept, tracked = self._sorted_out()
        if kept:
            print(f"kit: keys are not in the image: {keys.shown(kept)}", file=sys.stderr, flush=True)
        if tracked:
            print(f"kit: {keys.COPIED.format(keys.shown(tracked))}", file=sys.stderr, flush=True)
        inside = self.file.is_relative_to(self.folder)
        recipe = target / (self.file.relative_to(self.folder) if inside else self.file.name)
        for name in files:
            place = target / name
            if place == recipe:
                continue  # a link to it would be written through
            if name.endswith("/"):
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(self.folder / name, place, follow_symlinks=False)
            except OSError:  # another file system, or one without links
                shutil.copy2(self.folder / name, place, follow_symlinks=False)
        recipe.parent.mkdir(parents=True, exist_ok=True)
        recipe.write_text(self.text, encoding="utf-8")
        if self.requirements:
            print(f"kit: {self.requirements} is installed, too", file=sys.stderr, flush=True)
            shutil.copyfile(self.requirements, target / REQUIREMENTS)
        for name in reversed(files):  # last, and the deepest first: some may not be written to
            if name.endswith("/"):
                (target / name).chmod(stat.S_IMODE((self.folder / name).stat().st_mode))
        return recipe


def load(file: Path, folder: Path, name: str, device: str, arguments: dict[str, str], images: Path, options: Options = Options()) -> Recipe:  # noqa: B008
    """images: a folder that is not part of it, wherever it lies."""
    try:
        text = regular.read(file).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}", "check its rights, and that it is UTF-8 text") from None
    parts = formats.read(file.name, text)
    arguments = dict(arguments)
    if device == "cpu":
        if "CPU_BASE_IMAGE" not in parts.arguments:
            raise UsageError("it names no base for CPUs", "add beside its other arguments: CPU_BASE_IMAGE=python:3.11-slim", where=str(file))
        arguments.setdefault("BASE_IMAGE", arguments.get("CPU_BASE_IMAGE", parts.arguments["CPU_BASE_IMAGE"]))
    for word in arguments:
        if word not in parts.declared and word.lower() not in PROXIES:
            raise UsageError(f"{file} has no argument {word}", f"it has: {', '.join(sorted(parts.declared)) or 'none'}", where="--build-arg")
    return Recipe(name, file, folder, text, parts, arguments, device, (*LEFT_OUT, os.path.relpath(images, folder)), options)


def requirements(project: Path) -> Optional[Path]:
    """The project's requirements.txt. Raises UsageError where it holds a token, which whoever gets the image could read."""
    file = project / "requirements.txt"
    if not file.is_file():
        return None
    if keys.among(str(project), [file.name]):
        raise UsageError(f"{file} holds what looks like a token", "leave it out; pip takes such an index from a build secret: a Dockerfile of your own")
    return file


def tidy(name: str) -> str:
    """As a file, an image and a container may be called."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._") or "image"


def at_digest(image: str, digest: str) -> str:
    """An engine's own image has no digest by which it could be had."""
    return f"{image}@{digest}" if digest.startswith("sha256:") and "@" not in image else image


def _file_digest(path: Path, read_before: Digests) -> str:
    """Of content and mode, which the image keeps; the time is left out, so that a fresh clone is the same."""
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
        with regular.opened(path) as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise KitError(f"{path} cannot be read: {error.strerror}", "check its rights") from None
    # A file that has just been changed may be again, in the same tick of the file system's clock.
    if facts.st_size >= WORTH_NOTING and facts.st_ctime_ns < begun_ns - 2 * 10**9:
        read_before.note(path, facts, digest.hexdigest())
    return digest.hexdigest()


def _matching(folder: Path, pattern: str) -> list[Path]:
    """The files and folders that a word of COPY means: hidden names, too, and ** for folders at any depth."""
    found = [folder]
    for part in pattern.split("/"):
        if part == "**":
            found = [path for start in found for path in (start, *start.rglob("*")) if path.is_dir()]
        elif glob.has_magic(part):
            is_meant = re.compile(fnmatch.translate(part.replace("[^", "[!"))).match
            found = [path for start in found if start.is_dir() for path in start.iterdir() if is_meant(path.name)]
        elif part not in ("", "."):
            found = [start / part for start in found if os.path.lexists(start / part)]
    return found
