"""Define an engine: a tool that builds an image from a recipe."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path

from kit.base.errors import KitError
from kit.images.engines.build_steps import Steps
from kit.images.recipe import Recipe
from kit.images.sources.source import Source


class Engine(ABC):
    """An engine, by its command's name."""

    name: str
    recipe_files: tuple[str, ...]  # the usual names of the recipes that it builds, its own first

    def check(self) -> None:
        """Raise KitError if it is not installed or does not answer."""
        if not shutil.which(self.name):
            fix = f"module load {self.name}, or choose another engine: kit build --engine NAME"
            raise KitError(f"{self.name} is not installed here", fix)

    def identity(self, base: str) -> str:
        """Return the id of an image that the engine itself has, or "" if it has none."""
        return ""

    def adapted(self, recipe: Recipe) -> Recipe:
        """Return a recipe as this engine builds it. Raise UsageError if it cannot."""
        return recipe

    @abstractmethod
    def build(self, file: Path, recipe: Recipe, steps: Steps) -> AbstractContextManager[Source]:
        """Yield the image of a recipe that is laid out for its steps. Raise KitError on failure.

        The image's files exist until the context ends. file: the recipe there.
        """
