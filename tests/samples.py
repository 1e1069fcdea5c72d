"""Names that break careless scripts, and the place of the checkout."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent
HOSTILE_NAME = "a b'c\"d$(touch X)`touch Y`,;&|<>*?[!]{}~#%éß☃"


def unmeasured() -> dict[str, str]:
    """The environment for a program whose modules are counted: coverage, under `make coverage`, would load its own into it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS_")}


def copy_of_kit(place: Path) -> Path:
    """A copy of kit's Python that a test may change, with kit's scripts: a folder for PYTHONPATH."""
    shutil.copytree(ROOT / "launch/kit", place / "launch/kit", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "launch/scripts").symlink_to(ROOT / "launch/scripts")
    return place / "launch"


def stub(folder: Path, name: str, script: str) -> None:
    """Writes a program that stands in for `name`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).unlink(missing_ok=True)  # it may be a link to the real one
    (folder / name).write_text(f"#!/usr/bin/env bash\n# a stub of {name}, for a test\n{script}\n")
    (folder / name).chmod(0o755)


def everything(terminal: int) -> bytes:
    """What was written to a terminal that nobody has open any more; it is read in pieces."""
    pieces = []
    with suppress(OSError):  # EIO: there is no more
        while piece := os.read(terminal, 100_000):
            pieces.append(piece)
    os.close(terminal)
    return b"".join(pieces)


def tar(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def docker_archive(path: Path, architecture: str = "", layer: bytes = b"") -> Path:
    """An image, as docker save writes one, of a layer or of an empty file; for this machine, if no other is named."""
    architecture = architecture or {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, "amd64")
    files = {
        "layer.tar": layer or tar({"bin": b""}),
        "config.json": json.dumps({"architecture": architecture, "config": {}}).encode(),
        "manifest.json": json.dumps([{"Config": "config.json", "Layers": ["layer.tar"], "RepoTags": ["mine:1"]}]).encode(),
    }
    path.write_bytes(tar(files))
    return path
