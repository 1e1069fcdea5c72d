"""Find an existing image by its name.

docker://NAME                                             in a registry, read without an engine
dockerd://NAME, podman://NAME                             in this machine's engine
FILE.tar, docker-archive:FILE[:NAME], oci:FOLDER[:NAME]   written by docker save or skopeo copy
FILE.sqsh                                                 written by enroot import
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Optional

from kit.base.errors import KitError, UsageError
from kit.base.progress import Count, Note
from kit.images import tarstream
from kit.images.engines.docker import Docker
from kit.images.recipe import tidy
from kit.images.sources import adopt
from kit.images.sources.source import Source
from kit.images.tarstream import Entry
from kit.registry import client, layers, oci

ENGINES = {"dockerd": "docker", "podman": "podman"}  # Enroot's names for them
ARCHIVES = ("docker-archive", "oci", "oci-archive")  # Apptainer's and skopeo's


def source(target: str, note: Note, *, wanted: str) -> Optional[Source]:
    """Return the image, or None if the target names a recipe. Raise KitError if it is not found.

    `wanted` is the architecture to choose, "" for this machine's. Raise UsageError where there is
    nothing to choose.
    """
    scheme, mark, rest = target.partition(":")
    if scheme == "docker" and rest.startswith("//"):
        return _of_layers(client.open_image(rest[2:], note, wanted=wanted), rest[2:], target)
    is_named = bool(mark) and scheme in ARCHIVES  # a recipe may be called oci
    name, _, reference = rest.partition(":") if is_named else (target, "", "")
    path = Path(name)
    is_archive = (path.is_file() and path.suffix == ".tar") or oci.is_layout(path)
    if is_archive or is_named:
        image = oci.open_archive(path, reference, note, wanted=wanted)
        found = _of_layers(image, reference or path.stem, target)
        # docker save does not compress layers; zstd packs them to a third or a half.
        needs = sum(layer.size // (1 if layer.is_compressed() else 2) for layer in image.layers)
        return replace(found, needs=needs)
    is_of_engine = scheme in ENGINES and rest.startswith("//")
    if not is_of_engine and path.suffix not in (".sqsh", ".squashfs"):
        return None
    if wanted:
        problem = f"{target} is for one kind of machine already"
        raise UsageError(problem, "leave it out", where="--platform")
    if is_of_engine:
        return _of_engine(ENGINES[scheme], rest[2:], target)
    return adopt.find(path.absolute())


def _of_engine(name: str, reference: str, target: str) -> Source:
    engine = Docker(name)
    engine.check()
    image = engine.image(reference, _short(reference), {"source": target, "engine": name})
    if image is None:
        fix = f"see: {name} images; of a registry: kit build docker://{reference}"
        raise KitError(f"{name} has no image {reference}", fix)
    return image


def _of_layers(image: oci.Image, reference: str, target: str) -> Source:
    size = sum(layer.size for layer in image.layers)
    return Source(
        _short(reference),
        image.digest,
        size,
        needs=size,  # a registry's layers are compressed already
        config=image.config,
        origin={"source": target, "engine": None},
        files=lambda _label, count: merged(image, count),
        architecture=image.architecture,
    )


@contextmanager
def merged(image: oci.Image, count: Count = lambda bytes_: None) -> Iterator[Iterator[Entry]]:
    """Yield the entries of an image's file system."""
    with closing(layers.merge(image, count)) as members:
        yield (tarstream.of_info(info, content) for info, content in members)


def _short(reference: str) -> str:
    """Return pytorch-25.09-py3 for nvcr.io/nvidia/pytorch:25.09-py3."""
    last = re.split("[/#]", reference)[-1].partition("@")[0]
    return tidy(re.sub(r":latest$", "", last).replace(":", "-"))
