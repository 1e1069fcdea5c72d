"""Apptainer as an engine: builds a definition into a folder, without root and without Docker."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Optional

from kit.build.engines import step, tree
from kit.build.recipe import Recipe
from kit.build.sources import registry
from kit.build.sources.oci import Config
from kit.build.sources.source import Source
from kit.errors import KitError

# What Apptainer sets itself, or takes from the host.
NOT_THE_IMAGES = ("APPTAINER_", "SINGULARITY_", "PWD=", "OLDPWD=", "SHLVL=", "HOME=", "USER=", "PS1=", "PROMPT_COMMAND=", "TERM=", "_=")


class Apptainer:
    name, recipe_file = "apptainer", "image.def"

    def check(self) -> None:
        if not shutil.which("apptainer"):
            raise KitError("apptainer is not installed here", "module load apptainer, or choose another engine: kit build --engine NAME")

    def identity(self, base: str) -> str:
        return ""

    @contextmanager
    def build(self, folder: Path, file: Path, recipe: Recipe, tag: Optional[str], log: IO[bytes]) -> Iterator[Source]:
        # Asked first, so that a registry that does not answer costs no build. A local base starts in / with what it is given.
        base = registry.open_image(recipe.bases[-1]).config if recipe.bases else Config()
        with tree.workplace() as temporary:
            place = Path(temporary, "tree")
            values = Path(temporary, "arguments")  # not on the command line, which process lists show
            values.write_text("".join(f"{name}={value}\n" for name, value in recipe.arguments.items()))
            command = ["apptainer", "build", "--fix-perms", "--sandbox", "--build-arg-file", str(values)]
            step.must_run([*command, str(place), file.name if file.parent == folder else str(file)], log, folder, {"APPTAINER_TMPDIR": temporary})
            config = base._replace(env=_environment(place, base.env, recipe.text))
            yield tree.source(place, recipe.name, config, self.name)


def _environment(place: Path, base: tuple[str, ...], definition: str) -> tuple[str, ...]:
    """The variables of the image, %environment included, as a program in it would see them.

    But those of the base as the registry has them, where the definition leaves them alone: Apptainer adds backslashes
    to quotes in them.
    """
    command = ["apptainer", "--silent", "exec", "--cleanenv", "--no-home", "--no-mount", "cwd", str(place), "env", "-0"]
    said = subprocess.run(command, capture_output=True, cwd="/", text=True, errors="surrogateescape", stdin=subprocess.DEVNULL)
    if said.returncode:
        raise KitError(f"the image does not start: {said.stderr.strip()}", "it needs a shell and env")
    found = [item.replace(":/.singularity.d/libs", "") for item in said.stdout.split("\0") if item and not item.startswith(NOT_THE_IMAGES)]
    own = {item.partition("=")[0]: item for item in base if not re.search(rf"\b{re.escape(item.partition('=')[0])}=", definition)}
    found = [item for item in found if item != "LANG=C" or "LANG" in own]  # --cleanenv sets it before the image can
    return tuple(own.get(item.partition("=")[0], item) for item in found if item != "LD_LIBRARY_PATH=/.singularity.d/libs")
