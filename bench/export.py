#!/usr/bin/env python3
"""What `kit build` takes beside the least that making the same file could take.

    make cluster && python bench/export.py [--rounds N] [--check]

An image that Docker has: `docker export` alone, with nobody who reads it but /dev/null; the same
into mksquashfs as kit calls it; and kit, whose file has in it how a job starts it, and beside it a
record with its sha256 and all its packages. Each side makes its container and removes it.

A recipe of which Docker has done every step: `docker buildx build --output type=tar`, which makes
no container and no image, to /dev/null and into mksquashfs; and kit. Left out where the client has
no buildx. It is why kit takes `docker export`: with Docker 26.1.5 and buildx 0.13.1, n=6 in turns,
at a load of 18 to 36 on 2 cores, an image of 281 MB took the median of 2.5 times as long (2.0-3.6)
as `docker export`, and 3.0 times (1.6-4.5) into mksquashfs; an image of 1.7 GB 4.1 and 5.0 times,
n=2. And the tar has no variables and no entrypoint, nor has buildx's --metadata-file. `podman build
--output type=tar` of 5.4 leaves an image without a name each time.

CPU is that of the commands, without Docker's daemon. KIT_BENCH_IMAGE names another image than
kit-test/train.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import measure
from measure import KIT, ROOT, CannotMeasure, Comparison, Goal

IMAGE = os.environ.get("KIT_BENCH_IMAGE", "kit-test/train:latest")
EXPORT, BUILDX = "docker export", "docker buildx build --output type=tar"
SQUASH = (
    "mksquashfs - FILE -tar -noappend -no-progress -quiet -comp zstd -Xcompression-level 1"
    " -no-duplicates"
)
SQUASH += " -root-mode 0755 -root-uid 0 -root-gid 0 -mkfs-time 0 -noI"
AT_MOST = 1.10  # of the same files into mksquashfs
EXPORTED = (
    f'id="$(docker create {IMAGE} /bin/true)"; trap \'docker rm --force "$id" >&2\' EXIT; docker'
    ' export "$id"'
)
BUILT = f"{BUILDX},dest=- --quiet ."


class Took(NamedTuple):
    seconds: float
    cpu: float


def took(folder: Path, command: list[str]) -> Took:
    """Of one command in a folder that is empty before but for a recipe. Its files are removed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = measure.seconds(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "launch"), "DOCKER_BUILDKIT": "1"},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["rm", "-rf", "images", "FILE"], cwd=folder, check=True)
    return Took(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def compared(
    folder: Path, rounds: int, way: str, stream: str, what: str, target: list[str]
) -> Iterator[Comparison]:
    """way: what the stream is called; target: what kit is to build."""
    shell = ["bash", "-euo", "pipefail", "-c"]
    commands = {
        KIT: [sys.executable, "-m", "kit", "build", *target],
        way: [*shell, f"{{ {stream}; }} >/dev/null"],
        f"{way} into mksquashfs": [*shell, f"{{ {stream}; }} | {SQUASH}"],
    }
    found = measure.take_turns(
        {side: partial(took, folder, command) for side, command in commands.items()}, rounds
    )
    for name, unit, values in (
        (
            f"make one file of {what}",
            "s",
            {side: [one.seconds for one in ones] for side, ones in found.items()},
        ),
        (
            f"CPU of one file of {what}",
            "core-s",
            {side: [one.cpu for one in ones] for side, ones in found.items()},
        ),
    ):
        goals = [Goal(f"{way} into mksquashfs", AT_MOST)] if unit == "s" else []
        yield Comparison(
            name,
            "from the start of the command to its end; the file is not there before.",
            values,
            unit=unit,
            goals=goals,
        )


def run(rounds: int) -> Iterator[Comparison]:
    if subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True).returncode:
        raise CannotMeasure(f"Docker has no image {IMAGE}: make cluster")
    with tempfile.TemporaryDirectory(prefix="kit-bench.", dir=Path.home()) as name:
        folder = Path(name)
        yield from compared(
            folder, rounds, EXPORT, EXPORTED, "an image of the engine", [f"dockerd://{IMAGE}"]
        )
        if subprocess.run(["docker", "buildx", "version"], capture_output=True).returncode == 0:
            (folder / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo done >/done\n")
            yield from compared(folder, rounds, BUILDX, BUILT, "a recipe", ["--name", "bench"])


def versions() -> dict[str, str]:
    tools = {
        "Docker": ["docker", "version", "--format", "{{.Server.Version}}"],
        "squashfs-tools": ["mksquashfs", "-version"],
    }
    said = {
        name: subprocess.run(command, capture_output=True, text=True).stdout
        for name, command in tools.items()
    }
    first = {
        name: next((word for word in text.split() if word[:1].isdigit()), "?")
        for name, text in said.items()
    }
    return {**first, "load of the last 15 minutes": f"{os.getloadavg()[2]:.1f}"}


if __name__ == "__main__":
    measure.main(run, rounds=5, versions=versions)
