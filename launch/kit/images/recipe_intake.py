"""Find the files that a recipe takes in: not what .dockerignore names, kit's own files, or keys."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from kit.base.errors import UsageError
from kit.config import paths
from kit.files import dockerignore, safe_read
from kit.images import recipe_files, recipe_parts
from kit.images.recipe_parts import Mention
from kit.plan import git_files, key_files

JUDGED = "KIT_KEYS_ARE_TRACKED"  # set on a login node: git was asked before the files went there
GIT = ".git"


class Taken(NamedTuple):
    """What a recipe takes in, relative to its folder; folders end with a /."""

    files: list[str]
    keys: list[str]  # which are left out
    tracked: list[str]  # what looks like a key among the files, and git tracks


@dataclass(frozen=True)
class Intake:
    """Finds the files of one recipe."""

    recipe: Path
    folder: Path
    left_out: tuple[str, ...]  # names in the folder that no recipe takes in

    def find(self, sources: Sequence[Mention], spare: Sequence[Mention] = ()) -> Taken:
        """Return what the sources mean. Raise UsageError if one of them means nothing, or a key.

        spare: sources of stages that the image does not need, where anything may be missing.
        """
        patterns = dockerignore.file(self.folder, self.recipe)
        is_ignored, is_all = dockerignore.read(patterns, str(patterns))
        found: set[str] = set()
        for source in (*sources, *spare):
            pattern = recipe_parts.value(source, self.recipe)
            matches = recipe_files.matching(self.folder, pattern)
            matches += [target for match in matches if (target := self._link_target(match))]
            files = [name for match in matches for name in self._walk(match, is_ignored, is_all)]
            if not files and not glob.has_magic(pattern) and source in sources:
                where = f"{self.recipe}:{source.line}"
                raise self._missing(pattern, where, patterns if matches else None)
            found.update(files)
        return self._without_keys(found, sources)

    def _missing(self, pattern: str, where: str, patterns: Optional[Path]) -> UsageError:
        """Return the error for a source that means nothing.

        patterns: the file of patterns, if the source is there and left out.
        """
        fix = "correct the path, which starts at the recipe's folder"
        own = os.path.normpath(pattern)
        if patterns and own == GIT:
            problem = f"{GIT} is in no image that kit builds: every git command would change it"
            fix = (
                'tell the step what it reads there: kit build --build-arg VERSION="$(git describe '
                '--always)", and ARG VERSION in the recipe; or name one file: .git/HEAD'
            )
        elif patterns and own in self.left_out:
            problem = f"{own} is in no image that kit builds: kit writes to it"
            fix = "take the files from another folder; kit's own images: --images DIR"
        elif patterns:
            problem = f"nothing of {pattern} is left: {patterns.name} excludes it"
            fix = f"correct the path, or {patterns}"
        else:
            problem = f"{pattern} is not in {self.folder}"
            if recipe_files.matching(here := Path.cwd(), pattern):
                fix += f"; it is in {here}: move the recipe there, or to containers/ there"
        return UsageError(problem, fix, where=where)

    def _without_keys(self, found: set[str], sources: Sequence[Mention]) -> Taken:
        is_judged = os.environ.get(JUDGED)
        alike = [] if is_judged else key_files.among(str(self.folder), sorted(found))
        tracked = git_files.tracked(str(self.folder), alike)
        keys = [name for name in alike if name not in tracked]
        for source in sources:
            if (name := os.path.normpath(source.value or "")) in keys:
                raise UsageError(
                    f"{name} looks like a key, and an image takes none in",
                    "name it under `secrets:` in the job, or mount it there; "
                    f"if it is not a key: git add {name}",
                    where=f"{self.recipe}:{source.line}",
                )
        return Taken(sorted(found.difference(keys)), keys, sorted(tracked))

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
