"""Read what a build of a Dockerfile takes in: the bases, files and arguments of its stages."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Callable, Optional

from kit.images import dockerfile_text, dockerfile_variables
from kit.images.build_request import BuilderOptions
from kit.images.dockerfile_text import Instruction
from kit.images.dockerfile_variables import BuildVariables
from kit.images.recipe_parts import Mention, Parts

SCRATCH = "scratch"  # the base of a stage that begins without a file
FOLDER = "."  # as a source: the whole folder of the recipe


@dataclass
class _StageParts:
    name: str  # in small letters
    scope: BuildVariables
    origins: set[int] = field(default_factory=set)  # the stages that it is made of
    bases: list[Mention] = field(default_factory=list)
    sources: list[Mention] = field(default_factory=list)


def read(text: str, given: Mapping[str, str], options: BuilderOptions) -> Parts:
    """Return the parts of a Dockerfile, with those arguments from the command line."""
    reader = _LineReader(given, dockerfile_text.escape(text), options.platform)
    for instruction in dockerfile_text.instructions(text):
        reader.add(instruction)
    return reader.parts(options.target())


class _LineReader:
    """Reads a Dockerfile line by line. What kit cannot read is left to the engine to judge."""

    def __init__(self, given: Mapping[str, str], escape: str, platform: Optional[str]) -> None:
        self.given, self.escape = given, escape
        self.heading = BuildVariables(given, escape)
        for name, value in dockerfile_variables.of_platform(platform).items():
            self.heading.declare(name, None)
            self.heading.arguments.setdefault(name, value)
        self.stages: list[_StageParts] = []
        self.declared: set[str] = set()
        self.arguments: dict[str, str] = {}

    def parts(self, target: Optional[str]) -> Parts:
        needed, found = self._needed(target), Parts(is_dockerfile=True)
        found.needed, found.outer = needed, self.heading.arguments
        found.declared, found.arguments = self.declared, self.arguments
        for number, stage in enumerate(self.stages):
            if number in needed:
                found.bases += stage.bases
                found.sources += stage.sources
            else:
                found.spare += stage.sources
                found.spare_bases += stage.bases
        return found

    def _needed(self, target: Optional[str]) -> set[int]:
        """Return the numbers of the stage that is wanted, and of those that it is made of."""
        last, found = len(self.stages) - 1, set[int]()
        number = self._number(target) if target else None
        wanted = [last if number is None else number] if self.stages else []
        while wanted:
            number = wanted.pop()
            if number not in found:
                found.add(number)
                wanted += self.stages[number].origins
        return found

    def _number(self, name: str) -> Optional[int]:
        """Return the number of a stage that has been read, by its name or number."""
        if name.isdecimal():
            found = [number for number in range(len(self.stages)) if name == str(number)]
            return next(iter(found), None)
        return self._named(name)

    def _named(self, name: str) -> Optional[int]:
        return dockerfile_text.last_named((stage.name for stage in self.stages), name)

    def add(self, instruction: Instruction) -> None:
        handle = HANDLERS.get(instruction.word)
        if handle and (self.stages or instruction.word in ("ARG", "FROM")):
            with suppress(ValueError):
                handle(self, instruction)

    def arg(self, instruction: Instruction) -> None:
        scope = self.stages[-1].scope if self.stages else self.heading
        for name, default in dockerfile_variables.arguments(instruction.rest, self.escape):
            self.declared.add(name)
            scope.declare(name, default)
            if default is not None:
                self.arguments.setdefault(name, scope.arguments[name] or default)

    def env(self, instruction: Instruction) -> None:
        scope = self.stages[-1].scope
        scope.env.update(scope.pairs(instruction.rest))

    def begin_stage(self, instruction: Instruction) -> None:
        _, words = dockerfile_text.flags_and_words(instruction.rest)
        base = self.heading.mention(instruction.line, [*words, ""][0])
        name = words[2].lower() if len(words) > 2 else ""
        number = self._named(base.value or "")
        if number is not None:
            self.stages.append(_StageParts(name, self.stages[number].scope.fork(), {number}))
            return
        is_empty = base.value == SCRATCH
        scope = BuildVariables(
            self.given, self.escape, self.heading.arguments, is_open=not is_empty
        )
        self.stages.append(_StageParts(name, scope, bases=[] if is_empty else [base]))

    def _add_origin(self, line: int, word: str) -> None:
        """Take in what --from or from= names: a stage, or an image."""
        base, stage = self.heading.mention(line, word), self.stages[-1]
        number = self._number(base.value or "")
        if number is not None:
            stage.origins.add(number)
        elif base.value != SCRATCH and not (base.value or "").isdecimal():
            stage.bases.append(base)

    def _add_source(self, line: int, word: str) -> None:
        value = self.stages[-1].scope.find(word)
        if value is None:
            self.stages[-1].sources.append(Mention(line, word, FOLDER))
        elif "://" not in value and not value.startswith("git@"):
            # No source lies above the folder: /, ./ and ../ mean the folder itself.
            inside = posixpath.normpath(f"/{value}").lstrip("/") or FOLDER
            self.stages[-1].sources.append(Mention(line, word, inside))

    def copy(self, instruction: Instruction) -> None:
        flags, words = dockerfile_text.flags_and_words(instruction.rest)
        origins = [flag.partition("=")[2] for flag in flags if flag.startswith("--from=")]
        if origins:
            return self._add_origin(instruction.line, origins[0])
        for word in words[:-1]:
            if not (instruction.heredocs and dockerfile_text.heredoc(word)):
                self._add_source(instruction.line, word)

    def run(self, instruction: Instruction) -> None:
        flags, _ = dockerfile_text.flags_and_rest(instruction.rest)
        for flag in flags:
            if not flag.startswith("--mount="):
                continue
            mount = dict(item.partition("=")[::2] for item in flag.partition("=")[2].split(","))
            if "from" in mount:
                self._add_origin(instruction.line, mount["from"])
            elif mount.get("type", "bind") == "bind":
                source = mount.get("source", mount.get("src", FOLDER))
                self._add_source(instruction.line, source)

    def onbuild(self, instruction: Instruction) -> None:
        word = [*instruction.rest.split(None, 1), ""][0]
        if word.upper() in ("COPY", "ADD"):
            # A later stage may do it.
            self.stages[-1].sources.append(Mention(instruction.line, FOLDER, FOLDER))


HANDLERS: dict[str, Callable[[_LineReader, Instruction], None]] = {
    "ADD": _LineReader.copy,
    "ARG": _LineReader.arg,
    "COPY": _LineReader.copy,
    "ENV": _LineReader.env,
    "FROM": _LineReader.begin_stage,
    "ONBUILD": _LineReader.onbuild,
    "RUN": _LineReader.run,
}
