"""Define container images, and open them from `docker save` archives and OCI layouts."""

from __future__ import annotations

import math
import platform
import posixpath
import re
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, Callable, NamedTuple

from kit.base.errors import KitError
from kit.base.progress import Note, silent
from kit.registry.blobs import AGAIN, NOT_AN_ARCHIVE, Blobs, Extent, sha256

# Linux's names that differ from Go's, which images use.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# The variant that every CPU of the architecture has; images without a variant mean it.
LEAST = {"amd64": 1, "arm64": 8}
# Media types that old tools gave to the parts of images: https://github.com/distribution/distribution/issues/1621
UNSAID = ("", "application/octet-stream", "application/json", "text/html")
GZIP = b"\x1f\x8b"  # how such a layer begins
TOOLS = {b"\x28\xb5\x2f\xfd": "zstd --long=31", b"\xfd7zXZ\0": "xz"}  # what decompresses others
# Annotations, the more precise first.
NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


class Config(NamedTuple):
    """How an image wants to be started."""

    env: tuple[str, ...] = ()  # NAME=VALUE
    workdir: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    labels: dict[str, str] = {}  # noqa: RUF012 - never changed
    # What only a build on top of the image reads.
    user: str = ""
    shell: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()  # ONBUILD

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Config:
        """Return the "config" part of an image's configuration; missing and null values are empty.

        Raise TypeError, ValueError or AttributeError if it has another form.
        """
        config = document.get("config") or {}
        keys = ("Env", "Entrypoint", "Cmd", "Shell", "OnBuild")
        env, entrypoint, cmd, shell, triggers = (tuple(config.get(key) or ()) for key in keys)
        workdir, labels = config.get("WorkingDir") or "", dict(config.get("Labels") or {})
        user = config.get("User") or ""
        texts = (*env, *entrypoint, *cmd, *labels, *labels.values(), user, *shell, *triggers)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("what should be text is none")
        # As for Docker, the path begins at the root, and .. does not leave it.
        workdir = posixpath.normpath(posixpath.join("/", workdir)) if workdir else ""
        return cls(env, workdir, entrypoint, cmd, labels, user, shell, triggers)


class Layer(NamedTuple):
    digest: str  # "sha256:..." of the chunks, "" if it is not known
    size: int  # bytes of all chunks
    chunks: Callable[[], Generator[bytes, None, None]]  # of a tar, maybe packed

    def is_compressed(self) -> bool:
        return next(self.chunks(), b"").startswith((GZIP, *TOOLS))


class Image(NamedTuple):
    """An image for one kind of machine."""

    name: str
    digest: str  # of the manifest for that machine; in a docker archive, of the configuration
    config: Config
    layers: tuple[Layer, ...]  # lowest first
    architecture: str = ""  # empty for this machine's


def open_archive(
    path: Path, reference: str = "", note: Note = silent, *, wanted: str = ""
) -> Image:
    """Return the image in a docker archive or an OCI layout, without reading its layers.

    `reference` names one of several images, `wanted` another architecture than this machine's.
    """
    blobs = Blobs(path)
    try:
        if "manifest.json" in blobs:
            return _docker_archive(blobs, reference, wanted)
        if "index.json" in blobs:
            return _oci_layout(blobs, reference, note, wanted)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise KitError(
            f"{path} is damaged: its manifest is not of the form that images have ({error!r})",
            AGAIN,
        ) from None
    raise KitError(
        f"{path} is not an image archive: it has neither manifest.json nor index.json",
        NOT_AN_ARCHIVE,
    )


def architecture() -> str:
    """Return this machine's architecture by the name that images use: amd64, arm64."""
    machine = platform.machine().lower()
    return ARCHITECTURES.get(machine, machine)


def machine(wanted: str) -> str:
    """Return an architecture by the name that `uname -m` has for it; for "", this machine's."""
    names = {value: key for key, value in ARCHITECTURES.items()}
    return names.get(wanted, wanted) or platform.machine()


def fitting(index: dict[str, Any], where: str, wanted: str) -> list[dict[str, Any]]:
    """Return the index's entries for an architecture, then those that name no platform.

    Raise KitError if there are none. `wanted`: "" is this machine's.
    """
    entries = index.get("manifests") or []
    fits = ("", f"linux/{wanted or architecture()}")
    found = [entry for entry in entries if _platform(entry) in fits]
    if not found:
        platforms = {_platform(entry) for entry in entries} - {"unknown/unknown"}
        raise _wrong_architecture(where, platforms, wanted)
    return sorted(found, key=lambda entry: (not _platform(entry), _level(entry, wanted)))


def chosen(index: dict[str, Any], where: str, note: Note, wanted: str) -> dict[str, Any]:
    """Return the index's entry that asks least of the CPU. Note if not every CPU can run it."""
    entry = fitting(index, where, wanted)[0]
    if _level(entry, wanted) > LEAST.get(wanted or architecture(), math.inf):
        level = f"{_platform(entry)}/{entry['platform']['variant']}"
        note(
            f"{where} is for {level} alone: on a CPU without that, "
            "its programs end with 'Illegal instruction'"
        )
    return entry


def check_types(manifest: dict[str, Any], where: str) -> None:
    """Raise KitError if the manifest is of something else than an image: a chart, a model."""
    fix = (
        "get it with the tool that it was made for, such as helm, oras or apptainer; "
        "kit build takes images of containers"
    )
    config = _media_type(manifest["config"])
    if config not in UNSAID and not re.search(r"\bimage\b", config):
        raise KitError(
            f"{where} is not a container image: its configuration is of the type {config}", fix
        )
    for layer in map(_media_type, manifest["layers"]):
        if layer.endswith("+encrypted"):
            raise KitError(
                f"{where} is encrypted: a layer is of the type {layer}",
                "have it pushed without encryption",
            )
        if layer not in UNSAID and not re.search(
            r"\bimage\b.*tar|/(?:x-)?(?:tar|gzip|zstd)", layer
        ):
            raise KitError(f"{where} is not a container image: a layer is of the type {layer}", fix)


def _media_type(entry: dict[str, Any]) -> str:
    """Return the media type without parameters, such as a charset."""
    return str(entry.get("mediaType") or "").partition(";")[0].strip().lower()


def is_layout(folder: Path) -> bool:
    """Return whether a folder is an image; an index.json alone may be a web page's."""
    return (folder / "oci-layout").is_file()


def check_machine(document: dict[str, Any], where: str, wanted: str) -> None:
    """Raise KitError if the configuration is of an image for another kind of machine."""
    expected = wanted or architecture()  # a tool that makes images of nothing leaves both empty
    system, found = document.get("os") or "linux", document.get("architecture") or expected
    if found != expected or system != "linux":
        raise _wrong_architecture(where, {f"{system}/{found}"}, wanted)


def _docker_archive(blobs: Blobs, reference: str, wanted: str) -> Image:
    named = [(tuple(entry.get("RepoTags") or ()), entry) for entry in blobs.json("manifest.json")]
    tags, entry = _only(named, reference, blobs.path)
    digest = sha256(blobs.read(entry["Config"]))
    document = blobs.json(entry["Config"])
    check_machine(document, str(blobs.path), wanted)
    diff_ids = (document.get("rootfs") or {}).get("diff_ids") or []
    padded = diff_ids + [""] * (len(entry["Layers"]) - len(diff_ids))
    layers = tuple(
        _saved_layer(blobs.find(name), name, diff_id)
        for name, diff_id in zip(entry["Layers"], padded)
    )
    name = reference or (tags[0] if tags else blobs.path.name)
    return Image(name, digest, Config.from_json(document), layers, wanted)


def _saved_layer(place: Extent, name: str, diff_id: str) -> Layer:
    """Return a layer with the digest in its name, or, if it is not compressed, with its diff_id.

    A diff_id is the digest of the uncompressed layer.
    """
    if name.startswith("blobs/sha256/"):
        return Layer(f"sha256:{posixpath.basename(name)}", place.size, place.chunks)
    layer = Layer("", place.size, place.chunks)
    return layer if layer.is_compressed() else layer._replace(digest=diff_id)


def _oci_layout(blobs: Blobs, reference: str, note: Note, wanted: str) -> Image:
    where = str(blobs.path)
    entries = fitting(blobs.json("index.json"), where, wanted)
    names, entry = _only([(_names(entry), entry) for entry in entries], reference, blobs.path)
    manifest = _read(blobs, entry)
    while "layers" not in manifest:
        entry = chosen(manifest, where, note, wanted)
        manifest = _read(blobs, entry)
    check_types(manifest, where)
    document = _read(blobs, manifest["config"])
    check_machine(document, where, wanted)
    layers = tuple(
        Layer(layer["digest"], place.size, place.chunks)
        for layer in manifest["layers"]
        for place in [blobs.find(_blob(layer))]
    )
    name = reference or (names[0] if names[0] != entry["digest"] else blobs.path.name)
    return Image(name, entry["digest"], Config.from_json(document), layers, wanted)


def _read(blobs: Blobs, entry: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = blobs.json(_blob(entry), entry["digest"])
    return document


def _blob(entry: dict[str, Any]) -> str:
    return f"blobs/{entry['digest'].replace(':', '/')}"


def _names(entry: dict[str, Any]) -> tuple[str, ...]:
    annotations = entry.get("annotations") or {}
    return (*(annotations[key] for key in NAMES if annotations.get(key)), entry["digest"])


def _only(
    named: list[tuple[tuple[str, ...], dict[str, Any]]], reference: str, path: Path
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the image that `reference` names, or the only one. Raise KitError if it is unclear."""
    found = [(names, entry) for names, entry in named if not reference or reference in names]
    if len(found) == 1:
        return found[0]
    known = ", ".join(sorted(names[0] if names else "one without a name" for names, _ in named))
    if reference:
        problem, advice = f"{path} has no image '{reference}'", "name one of these"
    else:
        problem, advice = f"{path} holds {len(named)} images", "say which one"
    raise KitError(problem, f"{advice}: {known}" if known else AGAIN)


def _platform(entry: dict[str, Any]) -> str:
    platform_ = entry.get("platform") or {}
    if not platform_.get("architecture"):
        return ""
    return f"{platform_.get('os', 'linux')}/{platform_['architecture']}"


def _level(entry: dict[str, Any], wanted: str) -> float:
    """Return the generation of CPUs that an entry is for: 3 for amd64/v3."""
    variant = str((entry.get("platform") or {}).get("variant") or "")
    found = re.fullmatch(r"v?([0-9]{1,3}(?:\.[0-9]{1,3})?)", variant)
    if found:
        return float(found[1])
    return math.inf if variant else LEAST.get(wanted or architecture(), 0)


def _wrong_architecture(where: str, found: Iterable[str], wanted: str) -> KitError:
    platforms = sorted(filter(None, found))
    problem = f"{where} is for {', '.join(platforms) or 'nothing'}, "
    if wanted:
        return KitError(f"{problem}not for linux/{wanted}", "take one of these: --platform OS/ARCH")
    fix = "build or save it for this machine"
    if other := next((name for name in platforms if name.startswith("linux/")), ""):
        fix += f"; if the nodes are so: --platform {other}"
    return KitError(f"{problem}this machine is linux/{architecture()}", fix)
