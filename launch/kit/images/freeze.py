"""Read the bases and packages of an earlier build's record; `kit build --locked` refuses others."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from kit.base.errors import KitError, UsageError
from kit.base.formats import first
from kit.config import image_files

SHOWN = 8  # differences


class Frozen(NamedTuple):
    file: Path
    bases: dict[str, str]
    packages: dict[str, str]  # name: version

    def check_bases(self, pinned: dict[str, str]) -> None:
        """Raise KitError if the bases are others."""
        fix = "take the recorded base back into the recipe, or leave --locked out"
        self._compare("base image", self.bases, pinned, fix)

    def check_packages(self, found: dict[str, str]) -> None:
        """Raise KitError if the packages are others."""
        fix = (
            "pin them in requirements.txt; or, where the new ones are meant, "
            "leave --locked out and keep the new record"
        )
        self._compare("package", self.packages, found, fix)

    def _compare(
        self, what: str, expected: dict[str, str], found: dict[str, str], fix: str
    ) -> None:
        """Raise KitError if the two differ, with the names and both values."""
        differ = [
            f"{name} {found.get(name) or 'missing'} (was {expected.get(name) or 'missing'})"
            for name in sorted({name for name, _ in expected.items() ^ found.items()})
        ]
        if not differ:
            return
        subject = f"1 {what} differs" if len(differ) == 1 else f"{len(differ)} {what}s differ"
        raise KitError(f"{subject} from {self.file}: {first(differ, SHOWN)}", fix)


def read(file: Path) -> Frozen:
    """Return what an image's record says. Raise UsageError if the file is no such record."""
    record = image_files.record(file)
    bases, packages = record.get("bases", {}), record.get("packages")
    if not isinstance(packages, dict):
        fix = "name the record of an earlier build, or a copy of it: images/NAME.json"
        problem = f"{file} is not there, or says no packages of an image"
        raise UsageError(problem, fix, where="--locked")
    return Frozen(file, _texts(bases), _texts(packages))


def _texts(values: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}
