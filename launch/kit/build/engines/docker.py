"""Docker and Podman: build a recipe, say what an image is, stream its files."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Optional

from kit.build import store, tarstream
from kit.build.engines import step
from kit.build.recipe import Recipe
from kit.build.sources import registry
from kit.build.sources.oci import Config
from kit.build.sources.source import Count, Source
from kit.build.tarstream import Entry
from kit.errors import KitError

# "Step 2/4 : RUN ...", "STEP 2/4: RUN ...", "#7 [2/4] RUN ...": Docker's builder, Podman's, BuildKit's.
STEP = re.compile(r"^(?:Step|STEP) (\d+/\d+) ?: (.*)|^#\d+ \[.*?(\d+/\d+)\] (.*)")
TRIGGER = re.compile(r"^# Executing [0-9]+ build trigger|\] ONBUILD (?:COPY|ADD) ")
SOURCE = re.compile(r"load metadata for|resolve source metadata")  # BuildKit, of a base that it cannot have
NEEDS_BUILDKIT = re.compile(r"requires BuildKit|BuildKit is enabled but the buildx component is missing|unknown flag: --(secret|ssh)", re.IGNORECASE)
# What Docker's classic builder, and early ones of BuildKit, take for something else.
NEWER = re.compile(r"<<-?[\"']?[A-Za-z_]|\b(?:BUILD|TARGET)(?:PLATFORM|OS|ARCH|VARIANT)\b|--(?:link|parents|exclude|checksum|keep-git-dir)\b")
LABEL, HOST = "kit.build", "kit.host"
BUILT = ".kit-image-id"  # in the folder that the engine was given, after it was
REASONS = (
    (r"no space left on device", "the engine's disk is full", "free some: {engine} system df, {engine} system prune"),
    (r"unauthorized|authentication required|denied|forbidden", "the registry refuses the base image {base}", "log in: {engine} login {registry}"),
    (r"manifest.*unknown|not found: manifest|does not exist|name unknown|manifest for .* not found", "there is no base image {base}", "check its name and tag"),
    (
        r"dial tcp|no such host|i/o timeout|connection refused|TLS handshake|server misbehaving",
        "the registry of {base} cannot be reached",
        "check network and proxy; or load the image first: {engine} load",
    ),
)


@dataclass(frozen=True)
class Image:
    """An image as its engine has it."""

    identity: str  # sha256:...
    size: int  # bytes of its files
    config: Config


@dataclass(frozen=True)
class Docker:
    name: str  # docker or podman, which takes the same commands

    recipe_file = "Dockerfile"

    def check(self) -> None:
        """Raises KitError where it is not installed or does not answer."""
        if not shutil.which(self.name):
            raise KitError(f"{self.name} is not installed here", "install it, or choose another engine: kit build --engine NAME")
        done = subprocess.run([self.name, "info"], capture_output=True, text=True)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise KitError(f"{self.name} does not answer: {said}", f"start it, or join the group {self.name}; or choose another engine: --engine NAME")

    def image(self, reference: str) -> Optional[Image]:
        """None where the engine has no such image."""
        done = subprocess.run([self.name, "image", "inspect", reference], capture_output=True, text=True)
        if done.returncode:
            return None
        (found,) = json.loads(done.stdout)
        identity = found["Id"] if ":" in found["Id"] else f"sha256:{found['Id']}"
        return Image(identity, int(found.get("Size") or 0), Config.from_json({"config": found.get("Config")}))

    def identity(self, base: str) -> str:
        self.check()
        found = self.image(base)
        return found.identity if found else ""

    @contextmanager
    def build(self, folder: Path, file: Path, recipe: Recipe, tag: Optional[str], log: IO[bytes]) -> Iterator[Source]:
        yield self._built(folder, file, recipe, tag, log)

    def _built(self, folder: Path, file: Path, recipe: Recipe, tag: Optional[str], log: IO[bytes]) -> Source:
        # Without --force-rm, Docker's classic builder leaves the container of a step that fails. Without a name the image stays as its steps do,
        # for the next build, until `docker image prune`; to remove a name that it had would remove the last step with it.
        built = folder / BUILT
        command = [self.name, "build", "--force-rm", "--file", str(file), "--iidfile", str(built), *(["--tag", tag] if tag else [])]
        words, variables = step.hidden("--build-arg", recipe.arguments)
        words += recipe.options.command()
        steps = ["its first step"]

        def see(line: str) -> None:
            if found := STEP.match(line):
                steps.append(f"step {found[1] or found[3]}: {found[2] or found[4]}")
                print(f"kit: {steps[-1]}", file=sys.stderr, flush=True)

        code, said = step.run([*command, *words, str(folder)], log, folder, variables, see)
        if code:
            raise self._failure(said, steps[-1], recipe, Path(log.name))
        # Of a stage, kit knows it, and has given the whole folder.
        if any(TRIGGER.search(line) for line in said) and all(word != "." for _, word in recipe.parts.sources):
            fix = f"build it with the engine, and convert that: {self.name} build --tag {recipe.name} . && kit build dockerd://{recipe.name}"
            raise KitError("the base image copies files by itself (ONBUILD), which kit has not given to it", fix)
        identity = built.read_text().strip()
        image = self.image(identity)
        if image is None:
            raise KitError(f"{self.name} has built {identity}, and has no such image", "was it removed meanwhile? Build again")
        return self.source(image, recipe.name, {"engine": self.name})

    def source(self, image: Image, name: str, origin: dict[str, Any]) -> Source:
        # zstd makes of an image a third to a half.
        return Source(name, image.identity, image.size, image.size // 2, image.config, origin, partial(self.files, image))

    def _failure(self, said: list[str], last: str, recipe: Recipe, log: Path) -> KitError:
        text, bases = "\n".join(said), recipe.bases
        step = last.partition(": ")[2]
        if NEEDS_BUILDKIT.search(text) or (NEWER.search(step or recipe.text) and not any(line.startswith("#") for line in said)):
            fix = (
                "install Docker's own builder: apt-get install docker-buildx (docker-buildx-plugin in Docker's packages), or build with podman: --engine podman"
            )
            return KitError("the recipe needs BuildKit, which is not here", f"{fix}; the log: {log}")
        if step.upper().startswith("FROM") or any(SOURCE.search(line) for line in said[-5:]):
            for pattern, problem, fix in REASONS[1:]:
                if re.search(pattern, text, re.IGNORECASE):
                    base = next((item for item in bases if item.split("@")[0] in text), bases[0] if bases else "")
                    facts = {"engine": self.name, "base": base, "registry": registry.parse(base).host if base else ""}
                    return KitError(problem.format(**facts), f"{fix.format(**facts)}; the log: {log}")
        if re.search(REASONS[0][0], text):
            return KitError(REASONS[0][1], f"{REASONS[0][2].format(engine=self.name)}; the log: {log}")
        return KitError(f"{self.name} build failed in {last[:200]}", f"correct that step; the log: {log}")

    @contextmanager
    def files(self, image: Image, label: str, count: Count) -> Iterator[Iterator[Entry]]:
        """The entries of the image's file system. label: FOLDER:STEM of the build, by which the next finds what a killed one left."""
        self.forget(label)
        container = self._output("create", "--label", f"{LABEL}={label}", "--label", f"{HOST}={socket.gethostname()}", image.identity, "/bin/true").strip()
        process = subprocess.Popen([self.name, "export", container], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=tarstream.CHUNK)
        assert process.stdout and process.stderr
        tarstream.widen(process.stdout)
        try:
            yield _counted(tarstream.entries(process.stdout), count)
            if process.wait():
                raise KitError(f"{self.name} export failed: {process.stderr.read().decode(errors='replace').strip()}", "build again")
        finally:
            process.kill()
            process.stdout.close()
            process.stderr.close()
            process.wait()
            self._output("rm", "--force", "--volumes", container)

    def forget(self, label: str) -> None:
        """Removes the containers that killed builds of this machine left: of this one, whose lock we have, and of others."""
        found = self._output("ps", "--all", "--quiet", "--filter", f"label={LABEL}", "--filter", f"label={HOST}={socket.gethostname()}").split()
        listed = self._output("inspect", "--format", f'{{{{.Id}}}} {{{{index .Config.Labels "{LABEL}"}}}}', *found) if found else ""
        builds = dict(line.split(" ", 1) for line in listed.splitlines() if " " in line)
        if left := [container for container, build in builds.items() if build == label or _is_abandoned(build)]:
            self._output("rm", "--force", "--volumes", *left)

    def _output(self, *arguments: str) -> str:
        done = subprocess.run([self.name, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            said: Any = done.stderr.strip().splitlines() or ["no reason given"]
            raise KitError(f"{self.name} {arguments[0]} failed: {said[-1]}", f"see: {self.name} info")
        return done.stdout


def forget_killed(label: str) -> None:
    """Removes what killed builds of this machine left in the engines that are here. label: of this build, as for `files`."""
    for engine in (Docker("docker"), Docker("podman")):
        if shutil.which(engine.name):
            with suppress(KitError):
                engine.forget(label)


def _is_abandoned(build: str) -> bool:
    folder, _, stem = build.rpartition(":")
    return store.is_abandoned(Path(folder), stem)


def _counted(entries: Iterator[Entry], count: Count) -> Iterator[Entry]:
    for entry in entries:
        yield entry
        count(entry.size)
