"""Follow one stage of a Dockerfile, instruction by instruction, to the steps that build it.

https://docs.docker.com/reference/dockerfile
"""

from __future__ import annotations

import posixpath
import re
import tarfile
from collections.abc import Mapping
from typing import Callable, NamedTuple, Optional, Union

from kit.base.errors import Problems
from kit.images import dockerfile_text, dockerfile_variables, recipe_files
from kit.images.dockerfile_text import Instruction
from kit.images.dockerfile_variables import BuildVariables
from kit.images.recipe import Recipe
from kit.images.recipe_parts import PROXIES
from kit.registry.oci import Config

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHELL = ("/bin/sh", "-c")
ROOT = re.compile(r"(?:(?:root|0)(?::(?:root|0))?)?")


class RunStep(NamedTuple):
    """A step that runs a command in the stage's root."""

    instruction: Instruction
    command: tuple[str, ...]
    env: dict[str, str]
    workdir: str


class CopyStep(NamedTuple):
    """A step that copies files, or without sources makes a folder."""

    instruction: Instruction
    sources: tuple[str, ...]
    origin: Union[int, str, None]  # a stage's number or an image's name; None: the recipe's folder
    target: str  # absolute; it ends with a / if it must be a folder
    mode: Optional[int] = None


class Stage:
    """A stage of a Dockerfile, instruction by instruction."""

    def __init__(
        self, recipe: Recipe, start: Instruction, above: list[Stage], bases: dict[str, Config]
    ) -> None:
        self.recipe, self.above = recipe, list(above)
        self.problems, self.steps = Problems(), list[Union[RunStep, CopyStep]]()
        self.line, self.user_line, self.has_cmd = start.line, start.line, False
        outer, escape = recipe.parts.outer, dockerfile_text.escape(recipe.text)
        self.heading = BuildVariables(recipe.arguments, escape, arguments=outer, is_strict=True)
        flags, words = dockerfile_text.flags_and_words(start.rest)
        name = self._outer([*words, ""][0])
        self.name = words[2].lower() if len(words) > 2 else ""
        self.base = self._named(name)
        self.config: Config = bases.get(name, Config())
        self.scope = BuildVariables(recipe.arguments, escape, outer, is_strict=True)
        if isinstance(self.base, int):
            self.config = above[self.base].config
            self.scope.arguments = dict(above[self.base].scope.arguments)
        self.scope.env = dict(item.partition("=")[::2] for item in self.config.env)
        self._set({} if "PATH" in self.scope.env else {"PATH": PATH})
        if self.config.triggers:
            fix = "write them into this recipe, on the base's own base"
            self.refuse("the base has steps of its own (ONBUILD)", fix)
        platform = dockerfile_variables.of_platform()["BUILDPLATFORM"]
        for flag in flags:
            wanted = self._outer(flag.partition("=")[2])
            if not f"{wanted}/".startswith(f"{platform}/"):
                self.refuse(f"{flag} is not this machine's platform", "leave it out")

    @property
    def origins(self) -> set[Union[int, str]]:
        """The stages and images that it is made of."""
        copied = {step.origin for step in self.steps if isinstance(step, CopyStep)}
        return {self.base, *(origin for origin in copied if origin is not None)}

    def add(self, instruction: Instruction) -> None:
        """Take an instruction in, or note what is wrong with it."""
        self.line = instruction.line
        handle = HANDLERS.get(instruction.word)
        if not handle:
            return self.refuse(f"{instruction.word} is not known", "correct the instruction")
        try:
            handle(self, instruction)
        except ValueError as error:
            self.refuse(f"{instruction.word}: {error}", "correct that line")

    def refuse(self, problem: str, fix: str, line: Optional[int] = None) -> None:
        self.problems.add(f"{self.recipe.file}:{line or self.line}", problem, fix)

    def nothing(self, instruction: Instruction) -> None:
        """Leave out what says how to run a container: a job of Slurm's runs as its user."""

    def arg(self, instruction: Instruction) -> None:
        self.scope.set_arguments(instruction.rest)

    def set_env(self, instruction: Instruction) -> None:
        self._set(self.scope.pairs(instruction.rest))

    def _set(self, variables: Mapping[str, Optional[str]]) -> None:
        self.scope.env.update(variables)
        env = tuple(f"{name}={value}" for name, value in self.scope.env.items())
        self.config = self.config._replace(env=env)

    def label(self, instruction: Instruction) -> None:
        pairs = self.scope.pairs(instruction.rest).items()
        labels = {**self.config.labels, **{name: value or "" for name, value in pairs}}
        self.config = self.config._replace(labels=labels)

    def shell(self, instruction: Instruction) -> None:
        words = dockerfile_text.json_words(instruction.rest)
        if not words:
            raise ValueError('it wants a list: SHELL ["/bin/bash", "-c"]')
        self.config = self.config._replace(shell=words)

    def user(self, instruction: Instruction) -> None:
        self.config = self.config._replace(user=self._expand(instruction.rest))
        self.user_line = self.line

    def workdir(self, instruction: Instruction) -> None:
        path = posixpath.join(self.config.workdir or "/", self._expand(instruction.rest))
        path = "/" + posixpath.normpath(path).lstrip("/")
        self.config = self.config._replace(workdir=path)
        self.steps.append(CopyStep(instruction, (), None, path.rstrip("/") + "/"))

    def entrypoint(self, instruction: Instruction) -> None:
        cmd = self.config.cmd if self.has_cmd else ()  # the base's is for the base's entrypoint
        words = self._words(instruction.rest)
        self.config = self.config._replace(entrypoint=words, cmd=cmd)

    def cmd(self, instruction: Instruction) -> None:
        self.config, self.has_cmd = self.config._replace(cmd=self._words(instruction.rest)), True

    def onbuild(self, instruction: Instruction) -> None:
        self.refuse("ONBUILD is for images that other images are built on", "leave it out")

    def run(self, instruction: Instruction) -> None:
        flags, rest = dockerfile_text.flags_and_rest(instruction.rest)
        for flag in flags:
            if flag.startswith("--mount="):
                fix = (
                    "COPY the files; leave a cache out; give a secret to the job, not to the image"
                )
                self.refuse(f"RUN {flag} needs Docker's builder", fix)
            elif flag != "--network=default":
                self.refuse(f"RUN {flag} needs Docker's builder", "leave it out")
        if not ROOT.fullmatch(self.config.user):
            problem = f"the steps of USER {self.config.user} would be root's, as are all files"
            fix = "write USER root before them: a job runs as whoever submits it, under any USER"
            self.refuse(problem, fix, self.user_line)
        if instruction.heredocs:
            command = (*(self.config.shell or SHELL), self._heredocs(rest, instruction))
        else:
            command = self._words(rest)
        given = self.recipe.arguments.items()
        proxies = {name: value for name, value in given if name.lower() in PROXIES}
        env = {"HOME": "/root", **proxies, **self.scope.values()}
        self.steps.append(RunStep(instruction, command, env, self.config.workdir or "/"))

    def _heredocs(self, rest: str, instruction: Instruction) -> str:
        """Return what the shell gets: the line with its texts, or a text that is alone in it."""
        first = instruction.heredocs[0]
        if not dockerfile_text.heredoc(rest):
            return rest + "".join(f"\n{item.text}{item.name}" for item in instruction.heredocs)
        if first.text.startswith("#!"):
            fix = f"name the program before it: RUN PROGRAM <<{first.name}"
            self.refuse("a script with #! needs Docker's builder", fix)
        return re.sub(r"(?m)^\t+", "", first.text) if first.is_indented else first.text

    def copy(self, instruction: Instruction) -> None:
        flags, rest = dockerfile_text.flags_and_rest(instruction.rest)
        origin, mode = self._flags(instruction.word, flags)
        if instruction.heredocs:
            fix = "COPY a file of the project; or RUN cat >FILE <<EOF"
            return self.refuse("a file in the recipe needs Docker's builder", fix)
        words = dockerfile_text.json_words(rest)
        *sources, target = [self._expand(word) for word in words or rest.split()] or [""]
        if not sources:
            raise ValueError("it wants at least one file, and a target")
        if instruction.word == "ADD":
            self._refuse_archives(sources)
        path = posixpath.normpath(posixpath.join("/", self.config.workdir, target))
        is_folder = target.endswith("/") or posixpath.basename(target) in (".", "..")
        path = "/" + path.strip("/") + ("/" if is_folder and path.strip("/") else "")
        inside = tuple(posixpath.normpath(f"/{source}").lstrip("/") for source in sources)
        self.steps.append(CopyStep(instruction, inside, origin, path, mode))

    def _flags(self, word: str, flags: list[str]) -> tuple[Union[int, str, None], Optional[int]]:
        origin, mode = None, None
        for flag in flags:
            name, _, value = flag.partition("=")
            if name == "--from" and word == "COPY":
                origin = self._origin(value)
            elif name == "--chmod" and re.fullmatch("[0-7]{3,4}", value):
                mode = int(value, 8)
            elif name == "--chown" and not ROOT.fullmatch(value):
                fix = "leave it out: a job's user can read the files, whoever they belong to"
                self.refuse(f"{flag} cannot be held: all files are root's", fix)
            elif name not in ("--chown", "--link"):
                self.refuse(f"{word} {flag} needs Docker's builder", "leave it out")
        return origin, mode

    def _refuse_archives(self, sources: list[str]) -> None:
        for source in sources:
            places = recipe_files.matching(self.recipe.folder, source.lstrip("/"))
            if "://" in source or source.startswith("git@"):
                fix = "RUN curl or git; or download it to the project, and COPY it"
                self.refuse(f"ADD {source} is a download", fix)
            elif any(place.is_file() and tarfile.is_tarfile(place) for place in places):
                self.refuse(f"ADD would unpack {source}", "COPY it, and RUN tar -xf")

    def _origin(self, word: str) -> Union[int, str]:
        """Return the number of the stage that --from means, or the name of an image."""
        name = self._outer(word)
        if not name.isdecimal():
            return self._named(name)
        if int(name) >= len(self.above):
            raise ValueError(f"there is no stage {name} above it")
        return int(name)

    def _named(self, name: str) -> Union[int, str]:
        number = dockerfile_text.last_named((stage.name for stage in self.above), name)
        return name if number is None else number

    def _outer(self, word: str) -> str:
        """Return what a word of FROM or --from means; refuse it if kit cannot read it."""
        try:
            return self.heading.expand(word)
        except ValueError as error:
            self.refuse(f"{word}: {error}", "name the image itself")
            return word

    def _expand(self, word: str) -> str:
        return self.scope.expand(word)

    def _words(self, rest: str) -> tuple[str, ...]:
        """Return the words of a list, or those that give a line to the shell."""
        words = dockerfile_text.json_words(rest)
        return (*(self.config.shell or SHELL), rest) if words is None else words


HANDLERS: dict[str, Callable[[Stage, Instruction], None]] = {
    "ADD": Stage.copy,
    "ARG": Stage.arg,
    "CMD": Stage.cmd,
    "COPY": Stage.copy,
    "ENTRYPOINT": Stage.entrypoint,
    "ENV": Stage.set_env,
    "LABEL": Stage.label,
    "ONBUILD": Stage.onbuild,
    "RUN": Stage.run,
    "SHELL": Stage.shell,
    "USER": Stage.user,
    "WORKDIR": Stage.workdir,
    **dict.fromkeys(("EXPOSE", "HEALTHCHECK", "MAINTAINER", "STOPSIGNAL", "VOLUME"), Stage.nothing),
}
