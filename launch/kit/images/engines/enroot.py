"""Build images with Enroot: run a script in a container of the base, without root or Docker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Optional

from kit.images import pack
from kit.images.engines import tree
from kit.images.engines.build_steps import Steps, hidden
from kit.images.engines.engine import Engine
from kit.images.recipe import Recipe
from kit.images.sources import find
from kit.images.sources.source import Source
from kit.registry import client

CONTAINER = "image"


class Enroot(Engine):
    """Builds in a container of the base, without root."""

    name, recipe_file = "enroot", "image.enroot.sh"

    @contextmanager
    def build(
        self, file: Path, recipe: Recipe, tag: Optional[str], steps: Steps
    ) -> Iterator[Source]:
        (base,) = recipe.bases
        with tree.workplace() as temporary:
            words = ("DATA", "RUNTIME", "CACHE", "TEMP", "CONFIG")
            env = {f"ENROOT_{word}_PATH": _make_folder(temporary, word) for word in words}
            squashfs = Path(temporary, "base.sqsh")
            image = find.of_layers(client.open_image(base, steps.note), base, base)
            assert image.files
            with image.files("", lambda count: None) as files:
                pack.squash(files, image.config._replace(entrypoint=()), squashfs, steps.log)
            steps.must_run(["enroot", "create", "--name", CONTAINER, str(squashfs)], env)
            squashfs.unlink()
            # Read-only: the files in the folder may be links to the user's own.
            mount = f"{steps.folder}:/context:none:x-create=dir,bind,ro"
            arguments, variables = hidden("--env", recipe.arguments)
            start = ["enroot", "start", "--root", "--rw", "--mount", mount, *arguments, CONTAINER]
            script = f"cd /context && exec sh {file.relative_to(steps.folder)}"
            steps.must_run([*start, "sh", "-c", script], {**env, **variables})
            place = Path(env["ENROOT_DATA_PATH"], CONTAINER)
            yield tree.source(place, recipe.name, image.config, self.name)


def _make_folder(temporary: str, word: str) -> str:
    path = os.path.join(temporary, word.lower())
    os.mkdir(path, 0o700)
    return path
