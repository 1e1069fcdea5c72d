"""The command `kit build`: finds out what is asked for, does nothing where that is there, else makes it whole."""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import kit
from kit import images
from kit.build import bases, pack, recipe, sif, store
from kit.build.engines import Engine, Image
from kit.errors import KitError, UsageError
from kit.progress import Progress, size

OCI_ENGINES = ("docker", "podman")
LOCAL = {"dockerd://": "docker", "podman://": "podman"}  # an image that an engine here has; Enroot's names for it


@dataclass(frozen=True)
class Request:
    target: Optional[str] = None
    engine: Optional[str] = None
    device: str = "gpu"
    name: Optional[str] = None
    to: str = "sqsh"
    folder: Path = Path(images.FOLDER)
    arguments: dict[str, str] = field(default_factory=dict)
    update: bool = False
    lock_timeout_s: float = 3600


def build(request: Request) -> None:
    if request.to != "docker":
        pack.check()
    if request.to == "sif":
        sif.check()
    if request.target and (request.target.startswith(tuple(LOCAL)) or "://" in request.target):
        _convert(request)
    else:
        _build(request)


def _build(request: Request) -> None:
    engine = _engine(request.engine)
    found = recipe.find(request.target, engine.name, request.device, request.arguments, request.name)
    folder = request.folder.absolute()
    own = {base for base, digest in images.record(folder / f"{found.name}.json").get("bases", {}).items() if digest is None}
    pinned = bases.pin(found, own, lambda base: _has(engine, base), update=request.update)
    place = store.Place(folder, found.name, found.digest(pinned), _suffix(request))
    if _is_there(place, request):
        return
    with store.locked(place, request.lock_timeout_s):
        if _is_there(place, request):
            return
        engine.check()
        start = time.monotonic()
        with place.log.open("wb") as log:
            image = _image(engine, found, pinned, place, log)
            if request.to == "docker":
                print(f"kit: {_tag(place)}")
                return
            origin = {
                "recipe": str(found.file),
                "bases": {base: digest or None for base, digest in pinned.items()},
                "device": found.device,
                "arguments": found.arguments,
                "engine": engine.name,
                "git": _revision(found.folder),
            }
            _write(place, engine, image, origin, log)
        _report(place, time.monotonic() - start)


def _image(engine: Engine, found: recipe.Recipe, pinned: dict[str, str], place: store.Place, log: Any) -> Image:
    print(f"kit: building {found.name} from {found.file} with {engine.name}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix=f".{place.stem}.", suffix=store.PARTIAL, dir=place.folder) as context:
        file = found.lay_out(Path(context), pinned)
        arguments = {**found.arguments, **_pinned_arguments(found, pinned)}
        return engine.build(Path(context), file, arguments, _tag(place), found.bases, log)


def _pinned_arguments(found: recipe.Recipe, pinned: dict[str, str]) -> dict[str, str]:
    """The recipe's text names its bases by digest already; an argument that is a base says the same."""
    known = {**found.parts.arguments, **found.arguments}
    return {name: recipe.at_digest(value, pinned[value]) for name, value in known.items() if value in pinned and name in found.arguments}


def _convert(request: Request) -> None:
    """An image that is there already, without a recipe."""
    assert request.target
    scheme, _, reference = request.target.partition("://")
    name = LOCAL.get(f"{scheme}://")
    if name is None:
        raise UsageError(f"kit build does not know {scheme}://", f"it knows: {', '.join(LOCAL)}")
    engine = Engine(name)
    engine.check()
    image = engine.image(reference)
    if image is None:
        raise KitError(f"{name} has no image {reference}", f"see: {name} images")
    place = store.Place(
        request.folder.absolute(),
        request.name or recipe.tidy(reference.split("/")[-1].split(":")[0]),
        hashlib.sha256(f"{image.identity} {pack.FORMAT}".encode()).hexdigest(),
        _suffix(request),
    )
    if _is_there(place, request):
        return
    with store.locked(place, request.lock_timeout_s):
        if _is_there(place, request):
            return
        start = time.monotonic()
        with place.log.open("wb") as log:
            _write(place, engine, image, {"source": request.target, "engine": name}, log)
        _report(place, time.monotonic() - start)


def _write(place: store.Place, engine: Engine, image: Image, origin: dict[str, Any], log: Any) -> None:
    # zstd makes of an image a third to a half.
    store.check_space(place.folder, image.size // 2, f"a file of {size(image.size)} of files")
    label = f"{place.folder}:{place.stem}"
    try:
        with engine.files(image, label) as files, Progress(f"packing {place.file.name}", image.size) as progress:
            packed = pack.squash(files, image.config, place.unfinished, log, progress.at)
        if place.suffix == ".sif":
            squashfs = place.unfinished.rename(place.unfinished.with_suffix(".squashfs" + store.PARTIAL))
            sif.wrap(squashfs, place.unfinished)
            squashfs.unlink()
    except BaseException:
        place.unfinished.unlink(missing_ok=True)
        raise
    store.publish(
        place,
        {
            "name": place.name,
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "kit": kit.__version__,
            "architecture": platform.machine(),
            "image_id": image.identity,
            **origin,
            "env": list(image.config.env),
            "packages": dict(sorted(packed.packages.items())),
        },
    )


def _suffix(request: Request) -> str:
    return ".sif" if request.to == "sif" else ".sqsh"


def _is_there(place: store.Place, request: Request) -> bool:
    if request.update or request.to == "docker" or not store.is_built(place):
        return False
    store.make_current(place)
    print(f"kit: {place.file} is up to date")
    return True


def _report(place: store.Place, seconds: float) -> None:
    store.make_current(place)
    print(f"kit: {place.file}: {size(place.file.stat().st_size)}, in {seconds:.0f} s")
    print(f"  in a job: `image: {place.name}`")


def _engine(name: Optional[str]) -> Engine:
    """The one asked for, or the first that is installed; whether it answers is seen when it is needed."""
    if name:
        if name not in recipe.FILE_OF:
            raise UsageError(f"there is no engine {name}", f"the engines are {', '.join(recipe.FILE_OF)}", where="--engine")
        return Engine(name)
    for engine in OCI_ENGINES:
        if shutil.which(engine):
            return Engine(engine)
    raise KitError("no engine is installed here: docker, podman, apptainer or enroot", "install one; or take an image of a registry: kit build docker://NAME")


def _has(engine: Engine, base: str) -> bool:
    engine.check()
    return engine.image(base) is not None


def _tag(place: store.Place) -> str:
    return f"kit/{place.name}:{place.digest[: store.DIGITS]}"


def _revision(folder: Path) -> Optional[str]:
    if not shutil.which("git"):
        return None
    done = subprocess.run(["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40"], capture_output=True, text=True)
    return done.stdout.strip() or None
