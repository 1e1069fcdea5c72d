"""Build recipes with Docker or Podman, inspect their images, and stream an image's files."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Optional

from kit.base.errors import KitError
from kit.base.progress import Count
from kit.images import store, tarstream
from kit.images.engines import docker_errors
from kit.images.engines.build_steps import Steps, hidden
from kit.images.engines.engine import Engine
from kit.images.recipe import Recipe
from kit.images.sources.source import Source
from kit.images.tarstream import Entry
from kit.registry.oci import Config

# Docker's builder: "Step 2/4 : RUN ..."; Podman: "STEP 2/4: RUN ..."; BuildKit: "#7 [2/4] RUN ...".
STEP = re.compile(r"^(?:Step|STEP) (\d+/\d+) ?: (.*)|^#\d+ \[.*?(\d+/\d+)\] (.*)")
# ONBUILD, in the words of the classic builder and of BuildKit.
TRIGGER = re.compile(r"^# Executing [0-9]+ build trigger|\] ONBUILD (?:COPY|ADD) ")
LABEL, HOST = "kit.build", "kit.host"
BUILT = ".kit-image-id"  # in the folder that was given to the engine, after the build


@dataclass(frozen=True)
class Docker(Engine):
    name: str  # docker, or podman, which has the same commands

    recipe_files = ("Dockerfile",)

    def check(self) -> None:
        super().check()
        done = self._run("info")
        if done.returncode:
            raise KitError(
                f"{self.name} does not answer: {_last_line(done.stderr)}",
                f"start it, or join the group {self.name}; or choose another engine: --engine NAME",
            )

    def image(self, reference: str, name: str, origin: dict[str, Any]) -> Optional[Source]:
        """Return the engine's image of this name or id, or None if there is none."""
        done = self._run("image", "inspect", reference)
        if done.returncode:
            return None
        (found,) = json.loads(done.stdout)
        identity = found["Id"] if ":" in found["Id"] else f"sha256:{found['Id']}"
        config = Config.from_json({"config": found.get("Config")})
        size, files = int(found.get("Size") or 0), partial(self.files, identity)
        # zstd packs an image to a third or a half.
        is_for = found.get("Architecture") or ""
        return Source(name, identity, size, size // 2, config, origin, files, architecture=is_for)

    def identity(self, base: str) -> str:
        self.check()
        found = self.image(base, base, {})
        return found.identity if found else ""

    @contextmanager
    def build(self, file: Path, recipe: Recipe, steps: Steps) -> Iterator[Source]:
        # Without --force-rm, Docker's classic builder leaves the container of a failed step.
        # Without a name, the image stays for the next build until `docker image prune`, as its
        # steps do. If kit removed a name from it, the last step would go, too.
        built, last = steps.folder / BUILT, "its first step"
        command = [self.name, "build", "--force-rm", "--file", str(file), "--iidfile", str(built)]
        words, variables = hidden("--build-arg", recipe.arguments)

        def see(line: str) -> None:
            nonlocal last
            if found := STEP.match(line):
                last = f"step {found[1] or found[3]}: {found[2] or found[4]}"
                steps.note(last)

        command += [*words, *recipe.options.command(), str(steps.folder)]
        code, lines = steps.run(command, variables, see)
        if code:
            raise docker_errors.explain(self.name, lines, last, recipe, Path(steps.log.name))
        # kit knows an ONBUILD of the recipe's own stage, and gives it the whole folder.
        has_folder = any(source.value == "." for source in recipe.parts.sources)
        if not has_folder and any(TRIGGER.search(line) for line in lines):
            raise KitError(
                "the base image copies files by itself (ONBUILD), which kit has not given to it",
                "build it with the engine, and convert that: "
                f"{self.name} build --tag {recipe.name} . && kit build dockerd://{recipe.name}",
            )
        identity = built.read_text().strip()
        image = self.image(identity, recipe.name, {"engine": self.name})
        if image is None:
            raise KitError(
                f"{self.name} has built {identity}, and has no such image",
                "does a builder of its own keep it? Build without: unset BUILDX_BUILDER, "
                "and leave --builder out; or was it removed meanwhile? Build again",
            )
        yield image

    @contextmanager
    def files(self, identity: str, label: str, count: Count) -> Iterator[Iterator[Entry]]:
        """Yield the entries of an image's file system.

        label: FOLDER:STEM of the build. By it the next build finds a killed build's container.
        """
        self.forget(label)
        container, pipe = self._create(identity, label), subprocess.PIPE
        command = [self.name, "export", container]
        try:
            # In a pipe that nobody reads meanwhile, 64 KiB of errors would stop the engine.
            with (
                tempfile.TemporaryFile() as errors,
                subprocess.Popen(
                    command, stdout=pipe, stderr=errors, bufsize=tarstream.CHUNK
                ) as process,
            ):
                assert process.stdout
                tarstream.widen(process.stdout)
                try:
                    yield _counted(tarstream.entries(process.stdout), count)
                    process.wait()
                except tarstream.CutOff:
                    if process.wait() == 0:  # else the engine says why
                        raise
                finally:
                    process.kill()
                if process.returncode:
                    errors.seek(0)
                    raise self._failed("export", errors.read().decode(errors="replace"))
        finally:
            # An engine that ended fails here, too, and its export says why; the next build forgets.
            with suppress(KitError):
                self._output("rm", "--force", "--volumes", container)

    def _create(self, image: str, label: str) -> str:
        """Return the id of a new container of the image with this id."""
        labels = ["--label", f"{LABEL}={label}", "--label", f"{HOST}={socket.gethostname()}"]
        command = [self.name, "create", *labels, image, "/bin/true"]
        nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
        # In a session of its own: a signal to all of kit's processes would end the command before
        # it prints the id, and the engine would make the container all the same.
        process = subprocess.Popen(
            command, stdin=nothing, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        try:
            identity, errors = process.communicate()
        except BaseException:
            process.wait()
            self.forget(label)
            raise
        if process.returncode:
            raise self._failed("create", errors)
        return identity.strip()

    def forget(self, label: str) -> None:
        """Remove the containers that killed builds of this machine left, if the engine answers.

        Of the build with this label kit holds the lock; other builds are asked for theirs.
        """
        filters = ["--filter", f"label={LABEL}", "--filter", f"label={HOST}={socket.gethostname()}"]
        fields = f'{{{{.Id}}}} {{{{index .Config.Labels "{LABEL}"}}}}'
        with suppress(KitError):  # another build may remove the same container
            containers = self._output("ps", "--all", "--quiet", *filters).split()
            if not containers:
                return
            lines = self._output("inspect", "--format", fields, *containers).splitlines()
            builds = [line.split(" ", 1) for line in lines if " " in line]
            if left := [name for name, build in builds if build == label or _is_abandoned(build)]:
                self._output("rm", "--force", "--volumes", *left)

    def _output(self, *arguments: str) -> str:
        done = self._run(*arguments)
        if done.returncode:
            raise self._failed(arguments[0], done.stderr)
        return done.stdout

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command, nothing = [self.name, *arguments], subprocess.DEVNULL
        return subprocess.run(command, capture_output=True, text=True, stdin=nothing)

    def _failed(self, word: str, errors: str) -> KitError:
        problem = f"{self.name} {word} failed: {_last_line(errors)}"
        return KitError(problem, f"see: {self.name} info")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]


def forget_killed(label: str) -> None:
    """Remove the containers of killed builds from each engine. label: this build's."""
    for engine in (Docker("docker"), Docker("podman")):
        if shutil.which(engine.name):
            engine.forget(label)


def _is_abandoned(build: str) -> bool:
    folder, _, stem = build.rpartition(":")
    return store.is_abandoned(Path(folder), stem)


def _counted(entries: Iterator[Entry], count: Count) -> Iterator[Entry]:
    for entry in entries:
        yield entry
        count(entry.size)
