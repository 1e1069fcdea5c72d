"""Load a recipe with its arguments, digest its inputs, and lay them out for an engine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from kit.base.errors import UsageError
from kit.base.progress import Note, silent
from kit.config import paths
from kit.files import dockerignore, safe_read, safe_write
from kit.files.digests import Digests
from kit.images import pack, recipe_files, recipe_formats, recipe_parts
from kit.images.build_request import BuilderOptions, BuildRequest
from kit.images.recipe_intake import Intake
from kit.images.recipe_parts import Mention, Parts
from kit.plan import key_files

LOCK = "image.lock"  # the bases' digests: bases.py
# No recipe takes these in, nor images/: kit and git write to them, and every build would be
# another one. The address of a remote in .git may also hold a token.
LEFT_OUT = (".git", "runs", LOCK)
REQUIREMENTS = "containers/install/project.txt"  # install.sh looks there for the project's own
KINDS = (
    "a recipe is UTF-8 text (a Dockerfile has a FROM); images are FILE.tar, not compressed "
    "(gunzip, zstd -d), and FILE.sqsh; a job runs a FILE.sif as it is: `image: FILE.sif`"
)


@dataclass(frozen=True)
class Recipe:
    name: str
    file: Path
    folder: Path  # holds the files that the recipe takes in
    text: str
    parts: Parts
    arguments: dict[str, str]  # from the command line, and the one that the device sets
    device: str
    left_out: tuple[str, ...]  # names in the folder
    options: BuilderOptions = BuilderOptions()
    requirements: Optional[Path] = None  # of the project, which the kit's own recipe installs
    translator: str = ""  # the engine that a Dockerfile was translated for

    @property
    def bases(self) -> list[str]:
        """The base images, without the recipe's own stages."""
        return list(dict.fromkeys(map(self.value, self.parts.bases)))

    def value(self, mention: Mention) -> str:
        """Return what a word means. Raise UsageError if one of its variables has no value."""
        return recipe_parts.value(mention, self.file)

    @property
    def intake(self) -> Intake:
        return Intake(self.file, self.folder, self.left_out)

    def files(self) -> list[str]:
        """Return what the recipe copies, relative to its folder; folders end with a /.

        Without what .dockerignore names, and without keys.
        """
        return self.intake.find(self.parts.sources).files

    def contents(self, note: Note = silent) -> dict[str, str]:
        """Return {file or folder: its digest}. Note first if there is much to read."""
        names, read_before = self.files(), Digests("files", most=20_000)
        ignore_file = dockerignore.file(self.folder, self.file)
        recipe_files.name_large(self.folder, names, ignore_file, note)
        found = {name: recipe_files.digest(self.folder / name, read_before) for name in names}
        for base in self.parts.local:
            name = self.value(base)
            file = self.folder / recipe_files.archive(self.folder, name)
            found[name] = recipe_files.digest_tree(file.resolve(), read_before)
        if self.requirements:
            found[REQUIREMENTS] = recipe_files.digest(self.requirements.resolve(), read_before)
        read_before.save()
        return found

    def digest(self, pinned: dict[str, str], contents: dict[str, str]) -> str:
        """Return a digest of all inputs: equal digests mean equal images.

        pinned: the digests of the bases. contents: those of the files.
        """
        facts = {
            "recipe": self.text,
            "files": contents,
            "bases": pinned,
            "arguments": self.arguments,
            "device": self.device,
            "of": self.file.name,
            "format": pack.FORMAT,
            **self.options.facts(),
            # Docker would keep the owners of files: its image is another one.
            **({"translated for": self.translator} if self.translator else {}),
        }
        text = json.dumps(facts, sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()

    def at(self, pinned: dict[str, str]) -> Recipe:
        """Return the recipe with its bases by digest, in its text.

        Its arguments stay as they are: a step may read one that names a base.
        """
        text = self.text
        for base in self.parts.bases:
            name = self.value(base)
            if pinned.get(name, "").startswith("sha256:"):
                text = self._with_base(text, base, at_digest(name, pinned[name]))
        parts = recipe_formats.read(self.file.name, text, self.arguments, self.options)
        return replace(self, text=text, parts=parts)

    def _with_base(self, text: str, base: Mention, exact: str) -> str:
        """Return the text with another base in place of this one."""
        is_dockerfile = self.parts.is_dockerfile
        found = recipe_formats.replace_base(text, base, exact, is_dockerfile=is_dockerfile)
        if found is None:
            problem = f"{base.word} is not in one piece"
            fix = "write it without a break, and with no quotes inside"
            raise UsageError(problem, fix, where=f"{self.file}:{base.line}")
        return found

    def lay_out(self, target: Path, note: Note = silent) -> Path:
        """Copy or link the recipe and its files to a folder. Return the recipe's place there."""
        files, kept, tracked = self.intake.find(self.parts.sources, self.parts.spare)
        if kept:
            note(f"keys are not in the image: {key_files.shown(kept)}")
        if tracked:
            note(key_files.COPIED.format(key_files.shown(tracked)))
        recipe_files.name_windows_scripts(self.folder, files, note)
        words = [source.word for source in self.parts.sources]
        recipe_files.name_missed(self.folder, words, self.left_out[-1], note)
        name = os.path.relpath(self.file, self.folder)
        is_inside = not paths.leads_out(name) and not safe_write.is_behind_link(self.folder, name)
        recipe = target / (name if is_inside else self.file.name)
        recipe_files.copy(self.folder, files, target, besides=recipe)
        text = self.text
        for base in self.parts.local:  # the engine starts in another folder
            text = self._with_base(text, base, os.path.join(self.folder, self.value(base)))
        recipe.parent.mkdir(parents=True, exist_ok=True)
        recipe.write_text(text, encoding="utf-8")
        if self.requirements:
            note(f"{self.requirements} is installed, too")
            shutil.copyfile(self.requirements, target / REQUIREMENTS)
        for name in reversed(files):  # the deepest first, since some become read-only
            if name.endswith("/"):
                shutil.copymode(self.folder / name, target / name)
        return recipe


def load(file: Path, folder: Path, name: str, request: BuildRequest) -> Recipe:
    """Return a recipe. Raise UsageError if it cannot be read, or lacks an argument."""
    try:
        text = safe_read.read(file).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        problem = f"{file} is neither a recipe nor an image that kit knows"
        raise UsageError(problem, KINDS) from None
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error}", "check its rights") from None
    parts = recipe_formats.read(file.name, text)
    if parts.is_dockerfile and not parts.needed:
        raise UsageError(f"{file} is no recipe: it has no FROM", KINDS)
    arguments = dict(request.arguments)
    if request.device == "cpu":
        if "CPU_BASE_IMAGE" not in parts.arguments:
            raise UsageError(
                "it names no base for CPUs",
                "add beside its other arguments: CPU_BASE_IMAGE=python:3.11-slim",
                where=str(file),
            )
        base = arguments.get("CPU_BASE_IMAGE", parts.arguments["CPU_BASE_IMAGE"])
        arguments.setdefault("BASE_IMAGE", base)
    for word in arguments:
        if not parts.takes(word):
            fix = f"it has: {', '.join(sorted(parts.declared)) or 'none'}"
            if parts.is_dockerfile:
                fix += f"; if its base takes this one, add a line: ARG {word}"
            raise UsageError(f"{file} has no argument {word}", fix, where="--build-arg")
    left_out = (*LEFT_OUT, os.path.relpath(request.folder.absolute(), folder))
    device, options = request.device, request.options
    parts = recipe_formats.read(file.name, text, arguments, options)
    return Recipe(name, file, folder, text, parts, arguments, device, left_out, options)


def requirements(project: Path) -> Optional[Path]:
    """Return the project's requirements.txt, if any. Raise UsageError if it holds a token."""
    file = project / "requirements.txt"
    if not file.is_file():
        return None
    if key_files.among(str(project), [file.name]):
        raise UsageError(
            f"{file} holds what looks like a token",
            "leave it out; pip takes such an index from a build secret: a Dockerfile of your own",
        )
    return file


def tidy(name: str) -> str:
    """Return the name with the characters alone that files, images and containers may have."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._") or "image"


def at_digest(image: str, digest: str) -> str:
    """Return IMAGE@DIGEST, but the image itself for an engine's own id, which no registry knows."""
    return (
        f"{image}@{digest}" if digest.startswith("sha256:") and "@sha256:" not in image else image
    )
