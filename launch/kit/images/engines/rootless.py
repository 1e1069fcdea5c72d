"""Build with engines that have no root: recipes of their own kind, and Dockerfiles.

A Dockerfile's stages are folders. kit copies files into them; the engine runs commands in them.
"""

from __future__ import annotations

import os
import shlex
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Union

from kit.base.errors import KitError
from kit.images import dockerfile, metadata, pack, packer
from kit.images.dockerfile_parts import SCRATCH
from kit.images.dockerfile_stage import CopyStep, RunStep, Stage
from kit.images.engines import copying, tree
from kit.images.engines.build_steps import Steps
from kit.images.engines.engine import Engine
from kit.images.recipe import Recipe
from kit.images.recipe_parts import PROXIES
from kit.images.sources import find
from kit.images.sources.source import Source
from kit.registry import client, oci
from kit.registry.oci import Config

# In a root folder, during a command.
SCRIPT, APT_CONFIG = ".kit-build-step", ".kit-build-apt"
# apt gives up being root to download, and there is no other user to become.
APT = 'APT::Sandbox::User "root";\n'


class Rootless(Engine):
    """An engine that runs commands in a folder, as the folder's root."""

    left: tuple[str, ...] = ()  # what the tool leaves in a root folder
    afterwards = ""  # what a shell does there after each command

    def adapted(self, recipe: Recipe) -> Recipe:
        if not recipe.parts.is_dockerfile:
            return recipe
        dockerfile.translate(recipe, self.name, {})  # raises for what it cannot build
        return replace(recipe, translator=self.name)

    @abstractmethod
    def start(self, root: Path) -> tuple[list[str], dict[str, str]]:
        """Return the words that start a command in a root folder, and the tool's variables."""

    @abstractmethod
    def build_own(self, file: Path, recipe: Recipe, steps: Steps) -> AbstractContextManager[Source]:
        """Yield the image of a recipe of the engine's own kind."""

    @contextmanager
    def build(self, file: Path, recipe: Recipe, steps: Steps) -> Iterator[Source]:
        if not recipe.parts.is_dockerfile:
            with self.build_own(file, recipe, steps) as source:
                yield source
            return
        name = os.path.relpath(file, steps.folder)
        if name not in recipe.files():
            file.unlink()  # no COPY takes it
        with tree.workplace() as temporary:
            folder = Path(temporary, "roots")
            folder.mkdir()
            yield _Building(self, recipe, steps, folder).source()


@dataclass
class _Building:
    """Builds the stages of a Dockerfile, each in a folder of its own."""

    engine: Rootless
    recipe: Recipe
    steps: Steps
    folder: Path
    images: dict[str, oci.Image] = field(default_factory=dict)
    roots: dict[Union[int, str], Path] = field(default_factory=dict)

    def source(self) -> Source:
        """Return the image of the last stage."""
        fix = "install squashfs-tools; without root: conda install squashfs-tools"
        packer.require("unsquashfs", "unpacks the bases", fix)
        stages = dockerfile.translate(self.recipe, self.engine.name, {})
        origins = {origin for stage in stages.values() for origin in stage.origins}
        names = {origin for origin in origins if isinstance(origin, str)} - {SCRATCH}
        self.images = {name: client.open_image(name, self.steps.note) for name in sorted(names)}
        self.images[SCRATCH] = oci.Image(SCRATCH, "", Config(), ())
        configs = {name: image.config for name, image in self.images.items()}
        stages = dockerfile.translate(self.recipe, self.engine.name, configs)
        done, total = 0, sum(len(stage.steps) for stage in stages.values())
        for number, stage in stages.items():
            root = self.roots[number] = self._begin(stage)
            for step in stage.steps:
                done += 1
                said = f"step {done}/{total}: {step.instruction.word} {step.instruction.rest}"
                packer.note(said, self.steps.log)
                self.steps.note(said[:200])
                self._do(step, root)
        last = max(stages)
        config = stages[last].config
        return tree.source(self.roots[last], self.recipe.name, config, self.engine.name)

    def _begin(self, stage: Stage) -> Path:
        """Return a new root folder with the files of the stage's base."""
        if isinstance(stage.base, str):
            return self._unpack(stage.base)
        base, root = self.roots[stage.base], self._new()
        tree.make_readable(base)
        self.steps.must_run(["cp", "-a", "--reflink=auto", str(base), str(root)], {})
        return root

    def _new(self) -> Path:
        return self.folder / str(len(os.listdir(self.folder)))

    def _unpack(self, name: str) -> Path:
        """Return a new folder with the files of an image, and with the places for mounts."""
        squashfs, root = self.folder.parent / "base.sqsh", self._new()
        self.steps.note(f"unpacking {name}")
        with find.merged(self.images[name]) as files:
            pack.squash(files, Config(), squashfs, self.steps.log)
        # Not as root, unsquashfs takes the umask's bits from the files' modes.
        command = ["sh", "-c", 'umask 0 && exec "$@"', "sh", "unsquashfs", "-no-progress"]
        command += ["-user-xattrs", "-dest", str(root), str(squashfs)]
        self.steps.must_run(command, {}, "unsquashfs", unpacks=True)
        squashfs.unlink()
        return root

    def _do(self, step: Union[RunStep, CopyStep], root: Path) -> None:
        where = f"{self.recipe.file}:{step.instruction.line}"
        if isinstance(step, RunStep):
            return self._run(step, root, where)
        origin = self.steps.folder
        if step.origin is not None:
            if step.origin not in self.roots:
                self.roots[step.origin] = self._unpack(str(step.origin))
            origin = self.roots[step.origin]
        try:
            copying.copy(step, origin, root)
        except (OSError, ValueError) as error:
            fix = f"correct that line; the log: {self.steps.log.name}"
            raise KitError(f"{step.instruction.word}: {error}", fix, where=where) from None

    def _run(self, step: RunStep, root: Path, where: str) -> None:
        hosts = {name: value for name, value in os.environ.items() if name.lower() in PROXIES}
        env = {**hosts, "APT_CONFIG": f"/{APT_CONFIG}", **step.env}
        pairs = ((name, value) for name, value in env.items() if metadata.NAME.fullmatch(name))
        script = [
            *(f"export {name}={shlex.quote(value)}" for name, value in pairs),
            f"cd {shlex.quote(step.workdir)} || exit 1",
            f"{shlex.join(step.command)}\ncode=$?",
            self.engine.afterwards,
            'exit "$code"\n',
        ]
        lent = [name for name in self.engine.left if not os.path.lexists(root / name)]
        for name, text in ((SCRIPT, "\n".join(script)), (APT_CONFIG, APT)):
            (root / name).unlink(missing_ok=True)  # a link would lead out of the folder
            (root / name).touch(0o600)
            (root / name).write_text(text, encoding="utf-8", errors="surrogateescape")
        command, variables = self.engine.start(root)
        # bash, as /bin/sh, exports these only if it is started with them.
        given = [f"{name}={env[name]}" for name in ("UID", "EUID") if name in env]
        try:
            self.steps.must_run(
                [*command, "env", "-i", *given, "/bin/sh", f"/{SCRIPT}"], variables, "RUN", where
            )
        finally:
            for name in (SCRIPT, APT_CONFIG, *lent):
                (root / name).unlink(missing_ok=True)
