"""What builds an image of a recipe: one class for each tool, found by its name."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Optional, Protocol

from kit.build.engines.apptainer import Apptainer
from kit.build.engines.docker import Docker
from kit.build.engines.enroot import Enroot
from kit.build.recipe import Recipe
from kit.build.sources.source import Source


class Engine(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def recipe_file(self) -> str:
        """What its recipes are called."""

    def check(self) -> None:
        """Raises KitError where it is not installed or does not answer."""

    def identity(self, base: str) -> str:
        """The id of an image that no registry need have; "" where it has none of that name."""

    def build(self, folder: Path, file: Path, recipe: Recipe, tag: Optional[str], log: IO[bytes]) -> AbstractContextManager[Source]:
        """The image of a recipe that is laid out in `folder`; its files are there until the end. KitError where it fails.

        tag: its name in the engine, where it stays there.
        """


def engines() -> dict[str, Engine]:
    """By name, the ones to prefer first."""
    found: list[Engine] = [Docker("docker"), Docker("podman"), Apptainer(), Enroot()]
    return {engine.name: engine for engine in found}
