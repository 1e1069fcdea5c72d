"""What an earlier build had in its image: bases and packages, of its record. `kit build --locked` refuses another."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kit import images
from kit.errors import KitError, UsageError

SHOWN = 8  # differences


class Frozen(NamedTuple):
    file: Path
    bases: dict[str, str]
    packages: dict[str, str]  # name: version

    def check_bases(self, pinned: dict[str, str]) -> None:
        self._compare("base image", self.bases, pinned, "take the recorded base back into the recipe, or leave --locked out")

    def check_packages(self, found: dict[str, str]) -> None:
        fix = "pin them in requirements.txt; or, where the new ones are meant, leave --locked out and keep the new record"
        self._compare("package", self.packages, found, fix)

    def _compare(self, what: str, expected: dict[str, str], found: dict[str, str], fix: str) -> None:
        """Raise KitError with the names and both values of what differs."""
        differ = [name for name in sorted(expected.keys() | found.keys()) if expected.get(name) != found.get(name)]
        if differ:
            shown = [f"{name} {found.get(name) or 'missing'} (was {expected.get(name) or 'missing'})" for name in differ[:SHOWN]]
            more = f", and {len(differ) - SHOWN} more" if len(differ) > SHOWN else ""
            raise KitError(f"{len(differ)} {what}{'s' * (len(differ) > 1)} differ{'s' * (len(differ) == 1)} from {self.file}: {', '.join(shown)}{more}", fix)


def read(file: Path) -> Frozen:
    """Raise UsageError where it is no record of an image."""
    record = images.record(file)
    bases, packages = record.get("bases", {}), record.get("packages")
    if not isinstance(packages, dict):
        fix = "name the record of an earlier build, or a copy of it: images/NAME.json"
        raise UsageError(f"{file} is not there, or says no packages of an image", fix, where="--locked")
    return Frozen(file, {name: str(digest) for name, digest in bases.items()}, {name: str(version) for name, version in packages.items()})
