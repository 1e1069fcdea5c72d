"""Sums of what runs, as kit wrote it: users may edit that, and programs write beside themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from kit.files import replace, safe_read
from kit.plan import run_paths


def write(run: Path, sums: Mapping[str, str]) -> None:
    """Write {file: its sum} as sha256sum checks it, without names that it would read otherwise."""
    lines = (f"{sums[name]}  {name}\n" for name in sums if name.splitlines() == [name])
    replace.text(run / run_paths.SUMS, "".join(lines))


def read(run: Path) -> dict[str, str]:
    """Return {file: its sum} as kit wrote it; nothing of a run that an older kit wrote."""
    lines = safe_read.source(run / run_paths.SUMS).splitlines()
    return {name: sha256 for sha256, _, name in (line.partition("  ") for line in lines)}


def find(run: Path, names: Iterable[str]) -> dict[str, str]:
    """Return {file: its sum} as it is now, without those that are gone."""
    found = {}
    for name in names:
        with suppress(OSError):
            found[name] = hashlib.sha256(safe_read.read(run / name)).hexdigest()
    return found


def changed(written: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the files that are not as they were written, or are gone."""
    return [name for name in written if found.get(name) != written[name]]
