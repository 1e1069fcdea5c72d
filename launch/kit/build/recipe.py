"""A recipe with its arguments: finds it, names it by all that goes into it, and lays that out for an engine."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from kit import assets
from kit.build import formats, pack
from kit.errors import KitError, UsageError

FILES = ("Dockerfile", "image.def", "image.enroot.sh")
NEVER = (".git", "runs", "images", "__pycache__")  # what kit itself writes would make every build another one
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

    @property
    def bases(self) -> list[str]:
        return list(dict.fromkeys(self.expand(word, line) for line, word in self.parts.bases))

    def expand(self, word: str, line: int) -> str:
        known = {**self.parts.arguments, **self.arguments}

        def value(found: re.Match[str]) -> str:
            name = found[1] or found[3] or found[4]
            if name not in known and found[2] is None:
                raise UsageError(f"{name} has no value", f"give it one: kit build --build-arg {name}=VALUE", where=f"{self.file}:{line}")
            return known.get(name, found[2] or "")

        return formats.VARIABLE.sub(value, word)

    def files(self) -> list[str]:
        """All that the recipe copies, relative to its folder; folders opened, .dockerignore heeded."""
        ignored = _ignored(self.folder)
        found: set[str] = set()
        for line, word in self.parts.sources:
            pattern = self.expand(word, line).lstrip("/")
            matches = glob.glob(os.path.join(glob.escape(str(self.folder)), pattern))
            if not matches and not glob.has_magic(pattern):
                raise UsageError(f"{pattern} is not in {self.folder}", "correct the path, which starts there", where=f"{self.file}:{line}")
            for match in matches:
                found.update(_opened(Path(match), self.folder, ignored))
        return sorted(found)

    def digest(self, pinned: dict[str, str]) -> str:
        """Of everything that goes in, `pinned` being the digests of the bases: equal digests mean equal images."""
        files = {name: _file_digest(self.folder / name) for name in self.files()}
        facts = {
            "recipe": self.text,
            "files": files,
            "bases": pinned,
            "arguments": self.arguments,
            "device": self.device,
            "of": self.file.name,
            "format": pack.FORMAT,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode("utf-8", "surrogateescape")).hexdigest()

    def at(self, pinned: dict[str, str]) -> Recipe:
        """The same recipe with its bases by digest, in its text and in its arguments."""
        lines, known = self.text.splitlines(keepends=True), {**self.parts.arguments, **self.arguments}
        for line, word in self.parts.bases:
            base = self.expand(word, line)
            if base not in known.values():
                lines[line - 1] = lines[line - 1].replace(word, at_digest(base, pinned.get(base, "")), 1)
        values = {name: at_digest(value, pinned[value]) for name, value in known.items() if pinned.get(value)}
        text = "".join(lines)
        return replace(self, text=text, parts=formats.read(self.file.name, text), arguments={**self.arguments, **values})

    def lay_out(self, target: Path) -> Path:
        """Copies, or links, what goes in to a folder, and nothing else; the recipe, too."""
        for name in self.files():
            place = target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(self.folder / name, place, follow_symlinks=False)
            except OSError:  # another file system, or one without links
                shutil.copy2(self.folder / name, place, follow_symlinks=False)
        (target / self.file.name).write_text(self.text, encoding="utf-8")
        return target / self.file.name


def find(target: Optional[str], usual: str, device: str, arguments: dict[str, str], name: Optional[str]) -> Recipe:
    """The recipe of a name in containers/, of a file or a folder; else ./Dockerfile, else the kit's own."""
    file, folder = _place(target, usual)
    try:
        text = file.read_text(encoding="utf-8")
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
    return Recipe(name or _name(target, folder, device), file, folder, text, parts, arguments, device)


def _place(target: Optional[str], usual: str) -> tuple[Path, Path]:
    """(the recipe's file, the folder that its paths start from)."""
    here = Path.cwd()
    if target is None:
        for folder in (here, assets.folder("containers").parent):
            for file in (folder / usual, folder / "containers" / usual):
                if file.is_file():
                    return file, folder
        raise UsageError(f"there is no {usual} here", f"write one, or name one: kit build PATH/{usual}")
    path = Path(target).absolute()
    if path.is_file():
        return path, path.parent
    for file, folder in (
        (path / usual, path),
        (here / "containers" / target / usual, here / "containers" / target),
        (here / "containers" / f"{target}.{usual}", here),
    ):
        if file.is_file():
            return file, folder
    if "://" in target:
        raise UsageError(f"kit build does not know {target.partition('://')[0]}://", "it knows docker://, dockerd:// and podman://, and files")
    of_a_registry = f"; for an image of a registry: docker://{target}" if set("/:") & set(target) and target[0] not in "./" else ""
    raise UsageError(f"there is no recipe {target}", f"looked for {target}/{usual}, containers/{target}/{usual} and containers/{target}.{usual}{of_a_registry}")


def _name(target: Optional[str], folder: Path, device: str) -> str:
    if folder == assets.folder("containers").parent:
        return "kit" + ("-cpu" if device == "cpu" else "")  # our own, which may lie in a folder of any name
    own = Path(target).absolute().name.rpartition(".Dockerfile")[0] or Path(target).absolute().name if target else ""
    stem = folder.name if own in ("", *FILES) else own
    return tidy(stem) + ("-cpu" if device == "cpu" else "")


def tidy(name: str) -> str:
    """As a file, an image and a container may be called."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._") or "image"


def at_digest(image: str, digest: str) -> str:
    return f"{image}@{digest}" if digest and "@" not in image else image


def _ignored(folder: Path) -> list[str]:
    """The patterns of .dockerignore; what it takes back with ! stays in, which costs time and nothing else."""
    try:
        lines = (folder / ".dockerignore").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [line.strip().strip("/") for line in lines if line.strip() and line[0] not in "#!"]


def _opened(path: Path, folder: Path, ignored: list[str]) -> list[str]:
    name = os.path.relpath(path, folder)
    if name.startswith(".."):
        raise UsageError(f"{path} is outside {folder}", "an engine sees that folder alone: copy it there, or mount it in the job")
    if any(part in NEVER for part in Path(name).parts) or any(fnmatch.fnmatch(name, pattern.replace("**/", "*")) for pattern in ignored):
        return []
    if path.is_dir() and not path.is_symlink():
        return [item for child in path.iterdir() for item in _opened(child, folder, ignored)]
    return [name]


def _file_digest(path: Path) -> str:
    """Of content and mode, which the image keeps; the time is left out, so that a fresh clone is the same."""
    digest = hashlib.sha256()
    try:
        if path.is_symlink():
            return f"link to {os.readlink(path)}"
        digest.update(f"{path.stat().st_mode & 0o111}\n".encode())
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise KitError(f"{path} cannot be read: {error.strerror}", "check its rights") from None
    return digest.hexdigest()
