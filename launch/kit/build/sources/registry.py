"""Images in a registry: NAME[:TAG][@DIGEST], named as Docker does."""

from __future__ import annotations

import io
import json
import re
import time
from contextlib import suppress
from typing import Any, NamedTuple, Optional

from kit.build.sources import oci
from kit.build.sources.layer_cache import LayerCache, Writer
from kit.build.sources.transport import BACK_OFF_S, BROKEN, Registry
from kit.errors import KitError

INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
ACCEPT = ", ".join((*INDEXES, *MANIFESTS))
HOST = re.compile(r"(?:[a-zA-Z0-9][\w.-]*|\[[0-9a-fA-F:]+\])(?::\d+)?", re.ASCII)
NAME = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*")
TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
RIGHT = "write [REGISTRY/]NAME[:TAG] or NAME@sha256:DIGEST, such as nvcr.io/nvidia/pytorch:25.09-py3"
AGAIN = "try again; where that does not help, have the image pushed again"


class Reference(NamedTuple):
    registry: str
    repository: str
    version: str  # a digest or a tag

    @property
    def host(self) -> str:
        return "registry-1.docker.io" if self.registry == "docker.io" else self.registry

    def open(self) -> Registry:
        return Registry(self.registry, self.host, self.repository)


def parse(reference: str) -> Reference:
    """The reference with what Docker fills in: docker.io, library/, :latest."""
    name, _, digest = reference.partition("@")
    registry, slash, rest = name.partition("/")
    if not slash or not (re.search(r"[.:A-Z]", registry) or registry == "localhost"):
        registry, rest = "docker.io", name
    repository, _, tag = rest.partition(":")
    registry = "docker.io" if registry == "index.docker.io" else registry
    if registry == "docker.io" and "/" not in repository:
        repository = f"library/{repository}"
    right = NAME.fullmatch(repository) and (DIGEST.fullmatch(digest) or "@" not in reference) and (TAG.fullmatch(tag) or ":" not in rest)
    if not right or not HOST.fullmatch(registry):
        raise KitError(f"'{reference}' is no name of an image in a registry", RIGHT)
    return Reference(registry, repository, digest or tag or "latest")


def resolve(reference: str) -> str:
    """The digest that the reference has now: of the index, where there is one for several architectures."""
    image = parse(reference)
    if DIGEST.fullmatch(image.version):
        return image.version
    registry = image.open()
    with registry.ask(f"manifests/{image.version}", "HEAD", Accept=ACCEPT) as answer:
        digest = answer.headers.get("Docker-Content-Digest", "")
    return digest if DIGEST.fullmatch(digest) else _manifest(registry, image.version)[0]


def open_image(reference: str) -> oci.Image:
    """The image for this machine; its layers are read from the registry as they are opened."""
    image = parse(reference)
    registry = image.open()
    digest, manifest = _manifest(registry, image.version)
    try:
        while "manifests" in manifest:
            digest, manifest = _manifest(registry, _digest(oci.chosen(manifest, reference)))
        oci.check_types(manifest, reference)
        config, parts = _digest(manifest["config"]), [(_digest(layer), _size(layer)) for layer in manifest["layers"]]
        document = oci.checked(_parsed(registry, registry.read(f"blobs/{config}"), config), reference)
        started = oci.Config.from_json(document)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise KitError(f"{reference} is no image, or in Docker's format from before 2016", "push it again with today's docker push") from None
    cache = LayerCache(spare=sum(size for _, size in parts))
    return oci.Image(reference, digest, started, tuple(_layer(registry, cache, *part) for part in parts))


def _digest(entry: dict[str, Any]) -> str:
    """Return what a part of an image is named by. Raise ValueError where that is no sha256."""
    digest: str = entry["digest"]
    if not DIGEST.fullmatch(digest):
        raise ValueError(f"{digest} is no digest")
    return digest


def _size(entry: dict[str, Any]) -> int:
    size: int = entry["size"]
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"{size} is no size")
    return size


def _manifest(registry: Registry, version: str) -> tuple[str, dict[str, Any]]:
    content = registry.read(f"manifests/{version}", Accept=ACCEPT)
    return oci.sha256(content), _parsed(registry, content, version)


def _parsed(registry: Registry, content: bytes, version: str) -> dict[str, Any]:
    """The JSON document; `version` is its digest, or a tag, which says nothing about its content."""
    if not DIGEST.fullmatch(version) or oci.sha256(content) == version:
        with suppress(ValueError, RecursionError):
            document = json.loads(content)
            if isinstance(document, dict):
                return document
    raise KitError(f"registry {registry.name} gives something else for {registry.repository}, {version}", AGAIN)


def _layer(registry: Registry, cache: LayerCache, digest: str, size: int) -> oci.Layer:
    return oci.Layer(digest, size, lambda: io.BufferedReader(Download(registry, cache, digest, size), 1 << 18))


class Download(io.RawIOBase):
    """A blob as the cache has it, or as it arrives; where its file or the connection breaks, a new connection goes on from there."""

    def __init__(self, registry: Registry, cache: LayerCache, digest: str, size: int) -> None:
        self.registry, self.cache, self.digest, self.size = registry, cache, digest, size
        self.offset = 0
        self.failures = 0  # since the last byte
        self.answer: Any = None  # an HTTPResponse, or the cache's file
        self.copy: Optional[Writer] = None  # for the cache

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        wanted = memoryview(buffer)[: self.size - self.offset]
        while wanted:
            count = 0
            with suppress(*BROKEN):
                self.answer = self.answer or self.opened()
                count = self.answer.readinto(wanted)
            if count:
                self.offset += count
                self.keep(wanted[:count])
                self.failures = 0
                return count
            self.broken()
        return 0

    def keep(self, chunk: memoryview) -> None:
        if self.copy:
            self.copy.write(chunk)
            if self.offset == self.size:
                self.copy.publish()

    def opened(self) -> Any:
        if not self.offset and not self.failures:
            if kept := self.cache.open(self.digest):
                return kept
            self.copy = self.cache.writer(self.digest, self.size)
        headers = {"Range": f"bytes={self.offset}-"} if self.offset else {}
        answer = self.registry.ask(f"blobs/{self.digest}", **headers)
        if self.offset and answer.status != 206:  # a registry that knows no ranges starts over
            left = self.offset
            while left and (chunk := answer.read(min(left, 1 << 18))):
                left -= len(chunk)
        return answer

    def broken(self) -> None:
        if self.answer:
            self.answer.close()
            self.answer = None
        if self.failures == len(BACK_OFF_S):
            raise KitError(
                f"registry {self.registry.name} stopped in the middle of {self.digest}, after {self.offset} of {self.size} bytes",
                "check this machine's network, and try again",
            )
        time.sleep(BACK_OFF_S[self.failures])
        self.failures += 1

    def close(self) -> None:
        if self.answer:
            self.answer.close()
        if self.copy:
            self.copy.discard()
        super().close()
