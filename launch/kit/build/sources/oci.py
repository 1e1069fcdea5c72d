"""What a container image is, and images in files: `docker save` archives and OCI layouts."""

from __future__ import annotations

import hashlib
import io
import json
import math
import platform
import posixpath
import re
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, Callable, NamedTuple

from kit.build.sources.bounded_tar import Archive
from kit.errors import KitError

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # what others call themselves is what Go calls them
LEAST = {"amd64": 1, "arm64": 8}  # the variant that is meant where none is said, which every CPU of the architecture has
# Media types that old tools gave to the parts of images: https://github.com/distribution/distribution/issues/1621
UNSAID = ("", "application/octet-stream", "application/json", "text/html")
NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")  # annotations, the more precise first
NOT_AN_ARCHIVE = "give what `docker save` or `skopeo copy docker://NAME oci:FOLDER` wrote, not compressed"
AGAIN = "save the image again, and compare the file's size with the original's"


class Config(NamedTuple):
    """How an image wants to be started."""

    env: tuple[str, ...] = ()  # NAME=VALUE
    workdir: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    labels: dict[str, str] = {}  # noqa: RUF012 - never changed

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Config:
        """Reads the "config" part of an image's configuration; what is missing or null is empty. TypeErrors and the like where it is of another form."""
        given = document.get("config") or {}
        lists = [tuple(given.get(key) or ()) for key in ("Env", "Entrypoint", "Cmd")]
        workdir, labels = given.get("WorkingDir") or "", dict(given.get("Labels") or {})
        if not all(isinstance(text, str) for text in (*lists[0], *lists[1], *lists[2], *labels, *labels.values())):
            raise TypeError("what should be text is none")
        # As for Docker: from the root, which .. does not leave.
        return cls(lists[0], posixpath.normpath(posixpath.join("/", workdir)) if workdir else "", lists[1], lists[2], labels)


class Layer(NamedTuple):
    digest: str  # "sha256:..." of the bytes that open() gives, "" where nobody says
    size: int  # bytes that open() gives
    open: Callable[[], BinaryIO]  # a tar, maybe compressed with gzip or zstd


class Image(NamedTuple):
    name: str
    digest: str  # of the manifest for this machine; in a docker archive, of the configuration
    config: Config
    layers: tuple[Layer, ...]  # lowest first


def open_archive(path: Path, reference: str = "") -> Image:
    """The image in a docker archive or an OCI layout, its layers unread; `reference` names one of several."""
    blobs = Blobs(path)
    try:
        if "manifest.json" in blobs:
            return _docker_archive(blobs, reference)
        if "index.json" in blobs:
            return _oci_layout(blobs, reference)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise KitError(f"{path} is damaged: its manifest is not of the form that images have ({error!r})", AGAIN) from None
    raise KitError(f"{path} is no image archive: it has neither manifest.json nor index.json", NOT_AN_ARCHIVE)


def architecture() -> str:
    """This machine's, as images name it: amd64, arm64."""
    machine = platform.machine().lower()
    return ARCHITECTURES.get(machine, machine)


def fitting(index: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The index's entries that this machine may run: first those for it, then those that do not say for what."""
    entries = index.get("manifests") or []
    found = [entry for entry in entries if _platform(entry) in ("", f"linux/{architecture()}")]
    if not found:
        raise _wrong_architecture(where, {_platform(entry) for entry in entries} - {"unknown/unknown"})
    return sorted(found, key=lambda entry: (not _platform(entry), _level(entry)))


def chosen(index: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the index's entry for any CPU of this architecture; where there is none, the one that asks least of it, and say so."""
    entry = fitting(index, where)[0]
    if _level(entry) > LEAST.get(architecture(), math.inf):
        level = f"{_platform(entry)}/{entry['platform']['variant']}"
        print(f"kit: {where} is for {level} alone: on a CPU without that, its programs end with 'Illegal instruction'", file=sys.stderr)
    return entry


def check_types(manifest: dict[str, Any], where: str) -> None:
    """Raise KitError where the manifest is of something else than an image: a chart, a model, a signature."""
    fix = "get it with the tool that it was made for, such as helm, oras or apptainer; kit build takes images of containers"
    config = _media_type(manifest["config"])
    if config not in UNSAID and not re.search(r"\bimage\b", config):
        raise KitError(f"{where} is no container image: its configuration is of the type {config}", fix)
    for layer in map(_media_type, manifest["layers"]):
        if layer.endswith("+encrypted"):
            raise KitError(f"{where} is encrypted: a layer is of the type {layer}", "have it pushed without encryption")
        if layer not in UNSAID and not re.search(r"\bimage\b.*tar|/(?:x-)?(?:tar|gzip|zstd)", layer):
            raise KitError(f"{where} is no container image: a layer is of the type {layer}", fix)


def _media_type(entry: dict[str, Any]) -> str:
    """Without parameters, such as a charset."""
    return str(entry.get("mediaType") or "").partition(";")[0].strip().lower()


def checked(document: dict[str, Any], where: str) -> dict[str, Any]:
    """The configuration itself where it is for this machine. A KitError where not."""
    if document.get("architecture", architecture()) != architecture() or document.get("os", "linux") != "linux":
        raise _wrong_architecture(where, {f"{document.get('os', 'linux')}/{document.get('architecture')}"})
    return document


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Place(NamedTuple):
    """Where bytes lie: a part of a file."""

    path: Path
    offset: int
    size: int

    def open(self) -> BinaryIO:
        return io.BufferedReader(Window(self))


class Window(io.RawIOBase):
    """A part of a file, read from its start."""

    def __init__(self, place: Place) -> None:
        self.file = place.path.open("rb", buffering=0)
        self.file.seek(place.offset)
        self.left = place.size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self.file.readinto(memoryview(buffer)[: self.left]) or 0
        self.left -= count
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


class Blobs:
    """The files of an archive or folder by name, without unpacking."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.members: dict[str, tarfile.TarInfo] = {}
        if path.is_dir():
            return
        try:
            with Archive.open(path, "r:", errors="surrogateescape") as archive:
                self.members = {posixpath.normpath(member.name): member for member in archive}
        except (tarfile.TarError, OSError) as error:
            raise KitError(f"{path} is no image archive: {error}", NOT_AN_ARCHIVE) from None

    def __contains__(self, name: str) -> bool:
        return name in self.members if self.members else (self.path / name).is_file()

    def find(self, name: str) -> Place:
        """Follows links, too: Docker before 25 saved equal layers once and linked the others."""
        missing = KitError(f"{self.path} lacks {name}, which its manifest names: it was cut short, or saved in part", AGAIN)
        seen: set[str] = set()
        while name in self.members and (self.members[name].issym() or self.members[name].islnk()):
            if name in seen:
                raise missing
            seen.add(name)
            member = self.members[name]
            name = posixpath.normpath(posixpath.join(posixpath.dirname(name) if member.issym() else "", member.linkname))
        if name not in self or name.startswith("/") or ".." in name.split("/"):
            raise missing
        if not self.members:
            return Place(self.path / name, 0, (self.path / name).stat().st_size)
        member = self.members[name]
        return Place(self.path, member.offset_data, member.size)

    def json(self, name: str, digest: str = "") -> Any:
        with self.find(name).open() as file:
            content = file.read()
        if digest and sha256(content) != digest:
            raise KitError(f"{self.path}: {name} is damaged: its sha256 is not {digest}", AGAIN)
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise KitError(f"{self.path}: {name} is damaged: it is no JSON", AGAIN) from None


def _docker_archive(blobs: Blobs, reference: str) -> Image:
    named = [(tuple(entry.get("RepoTags") or ()), entry) for entry in blobs.json("manifest.json")]
    tags, entry = _only(named, reference, blobs.path)
    with blobs.find(entry["Config"]).open() as file:
        digest = sha256(file.read())
    document = checked(blobs.json(entry["Config"]), str(blobs.path))
    diff_ids = (document.get("rootfs") or {}).get("diff_ids") or []
    padded = diff_ids + [""] * (len(entry["Layers"]) - len(diff_ids))
    layers = tuple(_saved_layer(blobs.find(name), name, diff_id) for name, diff_id in zip(entry["Layers"], padded))
    return Image(reference or (tags[0] if tags else blobs.path.name), digest, Config.from_json(document), layers)


def _saved_layer(place: Place, name: str, diff_id: str) -> Layer:
    """A layer.tar has no digest of its own; where it is not compressed, it is what the image's diff_id is of."""
    with place.open() as file:
        plain = not file.read(4).startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd"))
    named = f"sha256:{posixpath.basename(name)}" if name.startswith("blobs/sha256/") else ""
    return Layer(named or (diff_id if plain else ""), place.size, place.open)


def _oci_layout(blobs: Blobs, reference: str) -> Image:
    where = str(blobs.path)
    entries = fitting(blobs.json("index.json"), where)
    names, entry = _only([(_names(entry), entry) for entry in entries], reference, blobs.path)
    manifest = _read(blobs, entry)
    while "layers" not in manifest:
        entry = chosen(manifest, where)
        manifest = _read(blobs, entry)
    check_types(manifest, where)
    config = Config.from_json(checked(_read(blobs, manifest["config"]), where))
    layers = tuple(Layer(layer["digest"], place.size, place.open) for layer in manifest["layers"] for place in [blobs.find(_blob(layer))])
    return Image(reference or (names[0] if names[0] != entry["digest"] else blobs.path.name), entry["digest"], config, layers)


def _read(blobs: Blobs, entry: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = blobs.json(_blob(entry), entry["digest"])
    return document


def _blob(entry: dict[str, Any]) -> str:
    return f"blobs/{entry['digest'].replace(':', '/')}"


def _names(entry: dict[str, Any]) -> tuple[str, ...]:
    annotations = entry.get("annotations") or {}
    return (*(annotations[key] for key in NAMES if annotations.get(key)), entry["digest"])


def _only(named: list[tuple[tuple[str, ...], dict[str, Any]]], reference: str, path: Path) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The one image that is named, or the only one."""
    found = [(names, entry) for names, entry in named if not reference or reference in names]
    if len(found) == 1:
        return found[0]
    known = ", ".join(sorted(names[0] if names else "one without a name" for names, _ in named))
    if reference:
        raise KitError(f"{path} has no image '{reference}'", f"name one of these: {known}" if known else AGAIN)
    raise KitError(f"{path} holds {len(named)} images", f"say which one: {known}" if known else AGAIN)


def _platform(entry: dict[str, Any]) -> str:
    given = entry.get("platform") or {}
    return f"{given.get('os', 'linux')}/{given.get('architecture')}" if given.get("architecture") else ""


def _level(entry: dict[str, Any]) -> float:
    """The generation of CPUs that an entry is for, such as 3 of amd64/v3."""
    variant = str((entry.get("platform") or {}).get("variant") or "")
    found = re.fullmatch(r"v?([0-9]{1,3}(?:\.[0-9]{1,3})?)", variant)
    if found:
        return float(found[1])
    return math.inf if variant else LEAST.get(architecture(), 0)


def _wrong_architecture(where: str, found: Iterable[str]) -> KitError:
    there = ", ".join(sorted(filter(None, found))) or "nothing"
    return KitError(f"{where} is for {there}, this machine is linux/{architecture()}", f"build or save it for this machine: --platform linux/{architecture()}")
