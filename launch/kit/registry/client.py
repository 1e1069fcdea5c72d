"""Open images in a registry by the names that Docker uses: [REGISTRY/]NAME[:TAG][@DIGEST]."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from contextlib import suppress
from functools import partial
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit

from kit.base.errors import KitError
from kit.base.progress import Note, silent
from kit.registry import oci
from kit.registry.blobs import CHUNK, DIGEST, sha256
from kit.registry.layer_cache import LayerCache
from kit.registry.transport import BLOBS, BROKEN, Registry

INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
ACCEPT = ", ".join((*INDEXES, *MANIFESTS))
HOST = re.compile(r"(?:[a-zA-Z0-9][\w.-]*|\[[0-9a-fA-F:]+\])(?::\d+)?", re.ASCII)
_WORD = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
NAME = re.compile(rf"{_WORD}(?:/{_WORD})*")
ENROOTS_USER = re.compile(r"[^@#/]+@(?=[^@#]+#)")  # USER@REGISTRY#NAME
TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
RIGHT = (
    "write [REGISTRY/]NAME[:TAG] or NAME@sha256:DIGEST, such as nvcr.io/nvidia/pytorch:25.09-py3"
)
AGAIN = "try again; where that does not help, have the image pushed again"


class Reference(NamedTuple):
    registry: str
    repository: str
    version: str  # a digest or a tag

    def open(self, note: Note = silent) -> Registry:
        return Registry(self.registry, self.repository, note)


def parse(reference: str) -> Reference:
    """Return the reference, completed as Docker does: docker.io, library/, :latest."""
    given = ENROOTS_USER.sub("", reference, count=1)  # the registry tells which login it is
    name, at, digest = given.partition("@")
    is_enroots = "#" in name  # REGISTRY#NAME
    registry, slash, rest = name.partition("#" if is_enroots else "/")
    is_registry = slash and (re.search(r"[.:A-Z]", registry) or registry == "localhost")
    if not (is_registry or is_enroots):
        registry, rest = "docker.io", name
    repository, _, tag = rest.partition(":")
    registry = "docker.io" if registry == "index.docker.io" else registry
    if registry == "docker.io" and "/" not in repository:
        repository = f"library/{repository}"
    is_valid = (
        _is_host(registry)
        and NAME.fullmatch(repository)
        and (DIGEST.fullmatch(digest) or not at)
        and (TAG.fullmatch(tag) or ":" not in rest)
    )
    if not is_valid:
        raise KitError(f"'{reference}' is not the name of an image in a registry", RIGHT)
    return Reference(registry, repository, digest or tag or "latest")


def _is_host(name: str) -> bool:
    with suppress(ValueError):  # brackets around what is no address, a port above 65535
        return bool(HOST.fullmatch(name) and urlsplit(f"//{name}").port != 0)
    return False


def resolve(reference: str, note: Note = silent) -> str:
    """Return the digest that a reference has now: the index's, if it has several architectures."""
    image = parse(reference)
    if DIGEST.fullmatch(image.version):
        return image.version
    registry = image.open(note)
    with registry.head(f"manifests/{image.version}", Accept=ACCEPT) as answer:
        digest = answer.headers.get("Docker-Content-Digest", "")
    return digest if DIGEST.fullmatch(digest) else _manifest(registry, image.version)[0]


def open_image(reference: str, note: Note = silent, *, wanted: str = "") -> oci.Image:
    """Return the image for an architecture ("": this machine's). Reading a layer downloads it."""
    image = parse(reference)
    registry = image.open(note)
    digest, manifest = _manifest(registry, image.version)
    try:
        while "manifests" in manifest:
            entry = oci.chosen(manifest, reference, note, wanted)
            digest, manifest = _manifest(registry, _digest(entry))
        oci.check_types(manifest, reference)
        name = _digest(manifest["config"])
        parts = [(_digest(layer), _size(layer)) for layer in manifest["layers"]]
        document = _parsed(registry, registry.read(f"{BLOBS}{name}"), name)
        oci.check_machine(document, reference, wanted)
        config = oci.Config.from_json(document)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise KitError(
            f"{reference} is not an image, or is in Docker's format from before 2016",
            "push it again with today's docker push",
        ) from None
    cache = LayerCache(sum(size for _, size in parts), note)
    layers = tuple(
        oci.Layer(digest, size, partial(_download, registry, cache, digest, size))
        for digest, size in parts
    )
    return oci.Image(reference, digest, config, layers, wanted)


def _digest(entry: dict[str, Any]) -> str:
    """Return the digest of a part of an image. Raise ValueError if it is no sha256."""
    digest: str = entry["digest"]
    if not DIGEST.fullmatch(digest):
        raise ValueError(f"{digest} is not a digest")
    return digest


def _size(entry: dict[str, Any]) -> int:
    size: int = entry["size"]
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"{size} is no size")
    return size


def _manifest(registry: Registry, version: str) -> tuple[str, dict[str, Any]]:
    content = registry.read(f"manifests/{version}", Accept=ACCEPT)
    return sha256(content), _parsed(registry, content, version)


def _parsed(registry: Registry, content: bytes, version: str) -> dict[str, Any]:
    """Return the JSON document. Raise KitError if it is none, or if `version` is another digest."""
    if not DIGEST.fullmatch(version) or sha256(content) == version:
        with suppress(ValueError, RecursionError):
            document = json.loads(content)
            if isinstance(document, dict):
                return document
    raise registry.error(f"gives something else for {registry.repository}, {version}", AGAIN)


def _download(
    registry: Registry, cache: LayerCache, digest: str, size: int
) -> Generator[bytes, None, None]:
    """Yield a blob from the cache, or from the registry.

    If the cached file or the connection breaks, a new connection continues at the same place.
    """
    offset, source = 0, cache.open(digest)
    copy = None if source else cache.writer(digest, size)

    def read() -> bytes:
        nonlocal source
        try:
            source = source or _request(registry, digest, offset)
            if chunk := source.read(min(size - offset, CHUNK)):
                return chunk
            raise ConnectionError(f"the connection ended after {offset} of {size} bytes")
        except BROKEN:
            if source:
                source.close()
            source = None
            raise

    try:
        while offset < size:
            chunk = registry.retried(f"{BLOBS}{digest}", read)
            offset += len(chunk)
            if copy:
                copy.write(chunk)
            if copy and offset == size:
                copy.publish()
            yield chunk
    finally:
        if source:
            source.close()
        if copy:
            copy.discard()


def _request(registry: Registry, digest: str, offset: int) -> IO[bytes]:
    """Return the registry's answer with the blob from `offset` on."""
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    answer = registry.logged_in(f"{BLOBS}{digest}", "GET", headers)
    if answer.status != 206:  # without ranges a registry starts over: skip what was read before
        while offset and (chunk := answer.read(min(offset, CHUNK))):
            offset -= len(chunk)
    return answer
