"""Explain why `docker build` or `podman build` failed, by the lines that it printed."""

from __future__ import annotations

import re
from pathlib import Path

from kit.base.errors import KitError
from kit.files import full_disk
from kit.images.recipe import Recipe
from kit.registry import client

# BuildKit's words when it cannot get a base.
SOURCE = re.compile(r"load metadata for|resolve source metadata")
NEEDS_BUILDKIT = re.compile(
    r"requires BuildKit|BuildKit is enabled but the buildx component is missing"
    r"|unknown flag: --(secret|ssh)",
    re.IGNORECASE,
)
# Syntax that Docker's classic builder, and early ones of BuildKit, take for something else.
NEWER = re.compile(
    r"<<-?[\"']?[A-Za-z_]|\b(?:BUILD|TARGET)(?:PLATFORM|OS|ARCH|VARIANT)\b"
    r"|--(?:link|parents|exclude|checksum|keep-git-dir)\b"
)
# Podman's words, and those of Docker without root. Without a range of ids for the user both work
# until an image has a file of another user than root.
NO_IDS = re.compile(r"insufficient UIDs or GIDs|number of subordinate IDs")
# A failed FROM: (pattern, problem, fix). A full disk may also end any other step.
REASONS = (
    (
        r"unauthorized|authentication required|denied|forbidden",
        "the registry refuses the base image {base}",
        "log in: {engine} login {registry}",
    ),
    (
        r"manifest.*unknown|not found: manifest|does not exist|name unknown"
        r"|manifest for .* not found",
        "there is no base image {base}",
        "check its name and tag",
    ),
    (
        r"dial tcp|no such host|i/o timeout|connection refused|TLS handshake|server misbehaving",
        "the registry of {base} cannot be reached",
        "check network and proxy; or load the image first: {engine} load",
    ),
)


def explain(engine: str, lines: list[str], last: str, recipe: Recipe, log: Path) -> KitError:
    """Return the error to show. last: the step that failed, such as "step 2/4: RUN make"."""
    text, step = "\n".join(lines), last.partition(": ")[2]
    problem, fix = f"{engine} build failed in {last[:200]}", "correct that step"
    is_classic = engine == "docker" and not any(line.startswith("#") for line in lines)
    if NO_IDS.search(text):
        problem = f"{engine} cannot give the image's files their owners: you have too few ids here"
        fix = (
            "build with another engine: --engine apptainer, or --engine enroot; "
            "or have a range of ids given to you: /etc/subuid, /etc/subgid"
        )
        return KitError(problem, f"{fix}; the log: {log}")
    if NEEDS_BUILDKIT.search(text) or (is_classic and NEWER.search(step or recipe.text)):
        problem = "the recipe needs BuildKit, which is not here"
        fix = (
            "install Docker's own builder: apt-get install docker-buildx "
            "(docker-buildx-plugin in Docker's packages), or build with podman: --engine podman"
        )
        return KitError(problem, f"{fix}; the log: {log}")
    if full_disk.is_told_in(text):
        problem = "the engine's disk, or your quota there, is full"
        fix = f"free some: {engine} system df, {engine} system prune; {full_disk.LOOK}"
    if step.upper().startswith("FROM") or any(SOURCE.search(line) for line in lines[-5:]):
        for pattern, base_problem, base_fix in REASONS:
            if re.search(pattern, text, re.IGNORECASE):
                facts = {"engine": engine, **_base(text, recipe.bases)}
                problem, fix = base_problem.format(**facts), base_fix.format(**facts)
                break
    return KitError(problem, f"{fix}; the log: {log}")


def _base(text: str, bases: list[str]) -> dict[str, str]:
    """Return the base that the text names, or else the first one, with its registry."""
    base = next((item for item in bases if item.split("@")[0] in text), [*bases, ""][0])
    return {"base": base, "registry": client.parse(base).registry if base else ""}
