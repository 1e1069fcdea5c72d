"""Images that are there already: in a registry, in an archive, in an engine of this machine.

How they are named:
    docker://NAME                                             of a registry, read without an engine
    dockerd://NAME, podman://NAME                             of this machine's engine
    FILE.tar, docker-archive:FILE[:NAME], oci:FOLDER[:NAME]   what docker save or skopeo copy wrote
    FILE.sqsh                                                 what enroot import wrote
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Optional

from kit.build import tarstream
from kit.build.engines.docker import Docker
from kit.build.recipe import tidy
from kit.build.sources import adopt, layers, oci, registry
from kit.build.sources.source import Count, Source
from kit.build.tarstream import Entry
from kit.errors import KitError

ENGINES = {"dockerd": "docker", "podman": "podman"}  # Enroot's names for them
ARCHIVES = ("docker-archive", "oci", "oci-archive")  # Apptainer's and skopeo's


def source(target: str) -> Optional[Source]:
    """None where the target names a recipe. KitError where it names an image that cannot be had."""
    scheme, _, rest = target.partition(":")
    if scheme in ENGINES and rest.startswith("//"):
        return _of_engine(ENGINES[scheme], rest[2:], target)
    if scheme == "docker" and rest.startswith("//"):
        return of_layers(registry.open_image(rest[2:]), rest[2:], target)
    if scheme in ARCHIVES:
        name, _, reference = rest.partition(":")
        return of_layers(oci.open_archive(Path(name), reference), reference or Path(name).stem, target)
    path = Path(target)
    if (path.is_file() and path.suffix == ".tar") or (path / "index.json").is_file():
        return of_layers(oci.open_archive(path), path.stem, target)
    return adopt.find(path.absolute()) if path.suffix in (".sqsh", ".squashfs") else None


def _of_engine(name: str, reference: str, target: str) -> Source:
    engine = Docker(name)
    engine.check()
    image = engine.image(reference)
    if image is None:
        raise KitError(f"{name} has no image {reference}", f"see: {name} images; of a registry: kit build docker://{reference}")
    return engine.source(image, _short(reference), {"source": target, "engine": name})


def of_layers(image: oci.Image, reference: str, target: str) -> Source:
    size = sum(layer.size for layer in image.layers)
    # Layers are packed already; a docker archive's are not.
    return Source(_short(reference), image.digest, size, size, image.config, {"source": target, "engine": None}, partial(_merged, image))


@contextmanager
def _merged(image: oci.Image, label: str, count: Count) -> Iterator[Iterator[Entry]]:
    with closing(layers.merge(image, count)) as merged:
        yield (_entry(info, content) for info, content in merged)


def _entry(info: tarfile.TarInfo, content: Any) -> Entry:
    header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return Entry(tarstream.clean(info.name), info.type, info.size if content else 0, header, content or io.BytesIO())


def _short(reference: str) -> str:
    """nvcr.io/nvidia/pytorch:25.09-py3 is pytorch-25.09-py3."""
    last = reference.partition("@")[0].rpartition("/")[2]
    return tidy(re.sub(r":latest$", "", last).replace(":", "-"))
