"""The command `kit build`: finds out what is asked for, does nothing where that is there, else makes it whole."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Optional

import kit
from kit import images
from kit.build import adopt, bases, engines, metadata, pack, recipe, sif, sources, store
from kit.build.source import Source
from kit.errors import KitError, UsageError
from kit.progress import Progress, size

SECRET = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL", re.IGNORECASE)


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
    found = sources.find(request.target) if request.target else None
    if found:
        _convert(found, request)
    else:
        _build(request)


def _build(request: Request) -> None:
    engine = _engine(request.engine)
    found = recipe.find(request.target, engine.recipe_file, request.device, request.arguments, request.name)
    folder = request.folder.absolute()
    own = {base for base, digest in images.record(folder / f"{found.name}.json").get("bases", {}).items() if digest is None}
    pinned = bases.pin(found, own, engine.has, update=request.update)
    place = store.Place(folder, found.name, found.digest(pinned), _suffix(request))
    with _work(place, request) as log:
        if log is None:
            return
        engine.check()
        print(f"kit: building {found.name} from {found.file} with {engine.name}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix=f".{place.stem}.", suffix=store.PARTIAL, dir=place.folder) as context:
            exact = found.at(pinned)
            file = exact.lay_out(Path(context))
            tag = f"kit/{place.name}:{place.digest[: store.DIGITS]}"
            with engine.build(Path(context), file, exact, tag, log) as source:
                if request.to == "docker":
                    print(f"kit: {tag}")
                    return
                _write(place, source, {**source.origin, **_origin(found, pinned)}, log)


def _convert(source: Source, request: Request) -> None:
    """An image that is there already, without a recipe."""
    digest = hashlib.sha256(f"{source.identity} {pack.FORMAT}".encode()).hexdigest()
    place = store.Place(request.folder.absolute(), request.name or source.name, digest, _suffix(request))
    with _work(place, request) as log:
        if log is not None:
            _write(place, source, source.origin, log)


@contextmanager
def _work(place: store.Place, request: Request) -> Iterator[Optional[IO[bytes]]]:
    """The log of a build that nobody else does; None where there is nothing to do. Says how it went."""
    if _is_there(place, request):
        yield None
        return
    with store.locked(place, request.lock_timeout_s):
        if _is_there(place, request):
            yield None
            return
        start = time.monotonic()
        with place.log.open("wb") as log:
            yield log
        if request.to != "docker":
            store.make_current(place)
            print(f"kit: {place.file}: {size(place.file.stat().st_size)}, in {time.monotonic() - start:.0f} s")
            print(f"  in a job: `image: {place.name}`")


def _write(place: store.Place, source: Source, origin: dict[str, Any], log: IO[bytes]) -> None:
    store.check_space(place.folder, source.needs, f"a file of {size(source.size)} of files")
    for name in metadata.lost(source.config):
        print(f"kit: the image's variable {name} will not hold under Enroot: its name, a line break or ${{...}} in it", file=sys.stderr)
    try:
        packed = _pack(place, source, log)
        if place.suffix == ".sif":
            squashfs = place.unfinished.rename(place.unfinished.with_suffix(".squashfs" + store.PARTIAL))
            sif.wrap(squashfs, place.unfinished)
            squashfs.unlink()
    except BaseException:
        place.unfinished.unlink(missing_ok=True)
        raise
    facts = {"name": place.name, "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "kit": kit.__version__, "architecture": platform.machine()}
    inside = {"env": list(source.config.env), "packages": dict(sorted(packed.packages.items()))}
    store.publish(place, {**facts, "image_id": source.identity, **origin, **inside})


def _pack(place: store.Place, source: Source, log: IO[bytes]) -> pack.Packed:
    with Progress(f"packing {place.file.name}", source.size) as progress:
        if source.files is None:
            return adopt.write(source, place.unfinished, log, progress.add)
        with source.files(f"{place.folder}:{place.stem}", progress.add) as files:
            return pack.squash(files, source.config, place.unfinished, log)


def _origin(found: recipe.Recipe, pinned: dict[str, str]) -> dict[str, Any]:
    pins = {base: digest or None for base, digest in pinned.items()}
    return {"recipe": str(found.file), "bases": pins, "device": found.device, "arguments": _shown(found.arguments), "git": _revision(found.folder)}


def _shown(arguments: dict[str, str]) -> dict[str, str]:
    """For the record, which others may read."""
    return {name: "(hidden)" if SECRET.search(name) else value for name, value in arguments.items()}


def _suffix(request: Request) -> str:
    return ".sif" if request.to == "sif" else ".sqsh"


def _is_there(place: store.Place, request: Request) -> bool:
    if request.update or request.to == "docker" or not store.is_built(place):
        return False
    store.make_current(place)
    images.note_use(place.file)
    print(f"kit: {place.file} is up to date")
    return True


def _engine(name: Optional[str]) -> engines.Engine:
    """The one asked for, or the first that is installed; whether it answers is seen when it is needed."""
    known = engines.known()
    if name and name not in known:
        raise UsageError(f"there is no engine {name}", f"the engines are {', '.join(known)}", where="--engine")
    for engine in [known[name]] if name else known.values():
        if name or shutil.which(engine.name):
            return engine
    raise KitError(f"no engine is installed here: {', '.join(known)}", "install one; or take an image of a registry: kit build docker://NAME")


def _revision(folder: Path) -> Optional[str]:
    if not shutil.which("git"):
        return None
    done = subprocess.run(["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40"], capture_output=True, text=True)
    return done.stdout.strip() or None
