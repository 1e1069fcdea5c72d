"""Load a recipe with its arguments, digest its inputs, and lay them out for an engine."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable, Optional

from kit.base.errors import UsageError
from kit.base.progress import Note, silent
from kit.config import paths
from kit.files import dockerignore, safe_read, safe_write
from kit.files.digests import Digests
from kit.images import pack, recipe_files, recipe_formats
from kit.images.build_request import BuilderOptions, BuildRequest
from kit.plan import git_files, key_files

LOCK = "image.lock"  # the bases' digests: bases.py
# No recipe takes these in, nor images/: kit writes to them, and every build would be another one.
LEFT_OUT = (".git", "runs", LOCK)
JUDGED = "KIT_KEYS_ARE_TRACKED"  # set on a login node: git was asked before the files went there
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
    parts: recipe_formats.Parts
    arguments: dict[str, str]  # from the command line, and the one that the device sets
    device: str
    left_out: tuple[str, ...]  # names in the folder
    options: BuilderOptions = BuilderOptions()
    requirements: Optional[Path] = None  # of the project, which the kit's own recipe installs
    translator: str = ""  # the engine that a Dockerfile was translated for

    @property
    def bases(self) -> list[str]:
        """The base images, without the recipe's own stages."""
        words = [(self.expand(word, line), line) for line, word in self.parts.bases]
        bases = [base for base, line in words if not self.parts.is_stage(base, line)]
        return list(dict.fromkeys(bases))

    def expand(self, word: str, line: int) -> str:
        """Return the word with its variables' values. Raise UsageError if one has none."""

        def unknown(name: str) -> str:
            raise UsageError(
                f"{name} has no value",
                f"give it one: kit build --build-arg {name}=VALUE",
                where=f"{self.file}:{line}",
            )

        return recipe_formats.expand(word, self._known(self.parts.of_bases), unknown)

    @property
    def arguments_of_from(self) -> dict[str, str]:
        """The arguments that a stage of a Dockerfile may take over by their names alone."""
        known = self._known(self.parts.of_bases)
        return {name: recipe_formats.expand(value, known) for name, value in known.items()}

    def _known(self, defaults: dict[str, str]) -> dict[str, str]:
        return {**recipe_formats.of_platform(self.options.platform), **defaults, **self.arguments}

    def _pattern(self, word: str, line: int) -> str:
        """Return the pattern of files that a word means, or "." if only the engine can know it."""
        if not self.parts.is_dockerfile:
            return self.expand(word, line).lstrip("/")
        known, unsure = self._known(self.parts.arguments), self.parts.unsure
        sure = {name: value for name, value in known.items() if name not in unsure}
        if not recipe_formats.names(word) <= sure.keys():
            return "."
        found = recipe_formats.expand(word, sure, lambda name: f"${name}")
        return "." if "$" in found else found.lstrip("/")

    def files(self) -> list[str]:
        """Return what the recipe copies, relative to its folder; folders end with a /.

        Without what .dockerignore names, and without keys.
        """
        return self._sort_files()[0]

    def _sort_files(self) -> tuple[list[str], list[str], list[str]]:
        """Return the files to copy, keys that are left out, and keys among them that git tracks."""
        found = self._copied()
        is_judged = os.environ.get(JUDGED)
        alike = [] if is_judged else key_files.among(str(self.folder), sorted(found))
        tracked = git_files.tracked(str(self.folder), alike)
        kept = [name for name in alike if name not in tracked]
        for line, word in self.parts.sources:
            if (name := os.path.normpath(self._pattern(word, line))) in kept:
                raise UsageError(
                    f"{name} looks like a key, and an image takes none in",
                    "name it under `secrets:` in the job, or mount it there; "
                    f"if it is not a key: git add {name}",
                    where=f"{self.file}:{line}",
                )
        return sorted(found.difference(kept)), kept, sorted(tracked)

    def _copied(self) -> set[str]:
        """Return what the recipe's words mean. Raise UsageError if one means nothing."""
        patterns = dockerignore.file(self.folder, self.file)
        ignores = dockerignore.read(patterns, str(patterns))
        found: set[str] = set()
        for line, word in self.parts.sources:
            pattern = self._pattern(word, line)
            matches = recipe_files.matching(self.folder, pattern)
            matches += [target for match in matches if (target := self._link_target(match))]
            files = [name for match in matches for name in self._walk(match, *ignores)]
            if not files and not glob.has_magic(pattern):
                problem = f"{pattern} is not in {self.folder}"
                if matches:
                    reason = ".dockerignore, or what kit writes itself"
                    problem = f"nothing of {pattern} is left: {reason}"
                fix = "correct the path, which starts at the recipe's folder"
                if not matches and recipe_files.matching(here := Path.cwd(), pattern):
                    fix += f"; it is in {here}: move the recipe there, or to containers/ there"
                raise UsageError(problem, fix, where=f"{self.file}:{line}")
            found.update(files)
        return found

    def _link_target(self, path: Path) -> Optional[Path]:
        """Return the target of a link if it is in the folder: COPY follows a link that it names."""
        target = os.path.relpath(os.path.realpath(path), os.path.realpath(self.folder))
        if path.is_symlink() and path.exists() and not paths.leads_out(target):
            return self.folder / target
        return None

    def _walk(self, path: Path, is_ignored: Callable[[str], bool], is_all: bool) -> Iterator[str]:
        name = os.path.relpath(path, self.folder)
        if paths.leads_out(name):
            fix = "an engine sees only that folder: copy it there, or mount it in the job"
            raise UsageError(f"{path} is outside {self.folder}", fix)
        is_out = name != "." and is_ignored(name)  # as for Docker, which `.*` does not empty
        if name in self.left_out or (is_out and is_all):
            return
        if path.is_dir() and not path.is_symlink():
            below = safe_read.names(path) if is_out else os.listdir(path)
            inside = [
                item for each in below for item in self._walk(path / each, is_ignored, is_all)
            ]
            yield from inside
            if name != "." and (inside or not is_out):
                yield f"{name}/"
        elif not is_out and (path.is_symlink() or not path.is_socket()):
            yield name

    def contents(self, note: Note = silent) -> dict[str, str]:
        """Return {file or folder: its digest}. Note first if there is much to read."""
        names, read_before = self.files(), Digests("files", most=20_000)
        ignore_file = dockerignore.file(self.folder, self.file)
        recipe_files.name_large(self.folder, names, ignore_file, note)
        found = {name: recipe_files.digest(self.folder / name, read_before) for name in names}
        for line, word in self.parts.local:
            name = self.expand(word, line)
            found[name] = recipe_files.digest_tree((self.folder / name).resolve(), read_before)
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
        """Return the recipe with its bases by digest, in its text and in its arguments."""
        text, known = self.text, {**self.parts.of_bases, **self.arguments}
        for line, word in self.parts.bases:
            base = self.expand(word, line)
            if self.parts.is_stage(base, line):  # which may have the name of its own base
                continue
            is_argument = word != base and base in known.values()
            if pinned.get(base, "").startswith("sha256:") and not is_argument:
                exact_base = at_digest(base, pinned[base])
                replaced = recipe_formats.replace_base(text, line, word, exact_base)
                if replaced is None:
                    fix = "write it without a break, and with no quotes inside"
                    problem = f"{word} is not in one piece"
                    raise UsageError(problem, fix, where=f"{self.file}:{line}")
                text = replaced
        found = {name: pinned[value] for name, value in known.items() if pinned.get(value)}
        exact = {name: at_digest(known[name], digest) for name, digest in found.items()}
        parts = recipe_formats.read(self.file.name, text)
        return replace(self, text=text, parts=parts, arguments={**self.arguments, **exact})

    def lay_out(self, target: Path, note: Note = silent) -> Path:
        """Copy or link the recipe and its files to a folder. Return the recipe's place there."""
        files, kept, tracked = self._sort_files()
        if kept:
            note(f"keys are not in the image: {key_files.shown(kept)}")
        if tracked:
            note(key_files.COPIED.format(key_files.shown(tracked)))
        recipe_files.name_windows_scripts(self.folder, files, note)
        words = [word for _, word in self.parts.sources]
        recipe_files.name_missed(self.folder, words, self.left_out[-1], note)
        name = os.path.relpath(self.file, self.folder)
        is_inside = not paths.leads_out(name) and not safe_write.is_behind_link(self.folder, name)
        recipe = target / (name if is_inside else self.file.name)
        recipe_files.copy(self.folder, files, target, besides=recipe)
        text = self.text
        for line, word in self.parts.local:
            path = os.path.join(self.folder, self.expand(word, line))  # the engine is elsewhere
            text = recipe_formats.replace_base(text, line, word, path) or text
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
    if parts.is_dockerfile and not parts.bases:
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
