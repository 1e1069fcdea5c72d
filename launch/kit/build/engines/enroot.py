"""Enroot as an engine: runs a script in a container of the base, without root and without Docker."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Optional

from kit.build import pack
from kit.build.engines import step, tree
from kit.build.recipe import Recipe
from kit.build.sources import find, registry
from kit.build.sources.source import Source
from kit.errors import KitError

CONTAINER = "image"


class Enroot:
    name, recipe_file = "enroot", "image.enroot.sh"

    def check(self) -> None:
        if not shutil.which("enroot"):
            raise KitError("enroot is not installed here", "choose another engine: kit build --engine NAME")

    def identity(self, base: str) -> str:
        return ""

    @contextmanager
    def build(self, folder: Path, file: Path, recipe: Recipe, tag: Optional[str], log: IO[bytes]) -> Iterator[Source]:
        (base,) = recipe.bases
        with tree.workplace() as temporary:
            env = {f"ENROOT_{word}_PATH": _made(temporary, word) for word in ("DATA", "RUNTIME", "CACHE", "TEMP", "CONFIG")}
            squashfs = Path(temporary, "base.sqsh")
            image = find.of_layers(registry.open_image(base), base, base)
            assert image.files
            with image.files("", lambda count: None) as files:
                pack.squash(files, image.config._replace(entrypoint=()), squashfs, log)
            step.must_run(["enroot", "create", "--name", CONTAINER, str(squashfs)], log, folder, env)
            squashfs.unlink()
            # The files there may be the user's own, linked.
            command = ["enroot", "start", "--root", "--rw", "--mount", f"{folder}:/context:none:x-create=dir,bind,ro"]
            words, variables = step.hidden("--env", recipe.arguments)
            script = f"cd /context && exec sh {file.relative_to(folder)}"
            step.must_run([*command, *words, CONTAINER, "sh", "-c", script], log, folder, {**env, **variables})
            yield tree.source(Path(env["ENROOT_DATA_PATH"], CONTAINER), recipe.name, image.config, self.name)


def _made(temporary: str, word: str) -> str:
    path = os.path.join(temporary, word.lower())
    os.mkdir(path, 0o700)
    return path
