"""The command `kit build`: finds out what is asked for, does nothing where that is there, else makes it whole."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, NoReturn, Optional

import kit
from kit import assets, images, tokens
from kit.build import bases, choose, freeze, metadata, pack, recipe, sif, store
from kit.build.engines import docker, tree
from kit.build.engines.docker import Docker
from kit.build.options import Options
from kit.build.sources import adopt, find
from kit.build.sources.source import Source
from kit.errors import UsageError
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
    options: Options = Options()
    locked: Optional[Path] = None  # a record; what differs from it is refused


def build(request: Request) -> None:
    if request.name and (recipe.tidy(request.name) != request.name or request.name.endswith(images.SUFFIXES)):
        raise UsageError(f"'{request.name}' is no name of an image", "take a-z, 0-9, dot, dash and underscore: --name my-model", where="--name")
    if request.to != "docker":
        pack.packer()
    if request.to == "sif":
        sif.check()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    _refuse_tokens(request.arguments)
    found = find.source(request.target) if request.target else None
    if found and request.options != Options():
        raise UsageError(f"{request.target} is an image already: nothing is built", "leave the options of the builder out", where="--secret, --target, ...")
    if request.locked and (found or request.to == "docker"):
        raise UsageError("only the file of a recipe can be compared with a record", "leave it out", where="--locked")
    if request.locked and request.update:
        raise UsageError("a record's bases are not asked for again", "leave one of the two out", where="--locked, --update")
    if found and request.to == "docker":
        raise UsageError(f"{request.target} is an image already", "leave out --to docker, or name a recipe", where="--to")
    if found:
        _convert(found, request)
    else:
        _build(request)


def _refuse_tokens(arguments: dict[str, str]) -> None:
    """An argument's value is in the image's history, for whoever gets the image."""
    for name, value in arguments.items():
        if kind := tokens.kind(value, name):
            fix = f"--secret id={name},env={name}, and in the recipe: RUN --mount=type=secret,id={name} {name}=$(cat /run/secrets/{name}) COMMAND"
            raise UsageError(f"the value of {name} looks like {kind}, and an image's history shows its arguments", fix, where="--build-arg")


def _end(number: int, frame: object) -> NoReturn:
    """A batch system's signal, or a closed terminal, ends a build as Ctrl-C does: with what it began removed."""
    raise SystemExit(128 + number)


def _build(request: Request) -> None:
    engine, file, project, name = choose.choose(request.target, request.engine, request.device)
    if request.to == "docker" and not isinstance(engine, Docker):
        raise UsageError(f"{engine.name} makes no image for an engine", "build with docker or podman: --engine docker", where="--to")
    if request.options != Options() and not isinstance(engine, Docker):
        raise UsageError(
            f"{engine.name} knows no secrets, stages and platforms", "build with docker or podman: --engine docker", where="--secret, --target, ..."
        )
    folder = request.folder.absolute()
    request.options.command()  # before anything is done
    found = recipe.load(file, project, request.name or name, request.device, request.arguments, folder, request.options)
    if project == assets.folder("containers").parent and file.parent in (project, project / "containers") and Path.cwd() != project:
        found = replace(found, requirements=recipe.requirements(Path.cwd()))
    contents = found.contents()  # before a registry is asked: what is not there is said at once
    frozen = freeze.read(request.locked) if request.locked else None
    known = frozen.bases if frozen else images.record(folder / f"{found.name}.json").get("bases", {})
    own = {base: digest for base, digest in known.items() if str(digest).startswith(bases.LOCAL)}
    recorded = {base: digest for base, digest in known.items() if base not in own} if frozen else None
    pinned = bases.pin(found, own, engine.identity, update=request.update, recorded=recorded)
    if frozen:
        frozen.check_bases(pinned)
    place = store.Place(folder, found.name, found.digest(pinned, contents), _suffix(request))
    with _work(place, request, frozen) as log:
        if log is None:
            return
        engine.check()
        print(f"kit: building {found.name} from {found.file} with {engine.name}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix=f".{place.stem}.", suffix=store.PARTIAL, dir=place.folder) as context:
            exact = found.at(pinned)
            copy = exact.lay_out(Path(context))
            labels = _labels(found, place)
            tag = None
            if request.to == "docker":
                tag = f"kit/{place.name}:{place.digest[: store.DIGITS]}"
                words = tuple(word for name, value in labels.items() for word in ("--label", f"{name}={value}"))
                exact = replace(exact, options=exact.options._replace(words=(*exact.options.words, *words)))
            with engine.build(Path(context), copy, exact, tag, log) as source:
                bases.check(pinned, engine.identity)
                if request.to == "docker":
                    print(f"kit: {tag}")
                    return
                source = replace(source, config=source.config._replace(labels={**source.config.labels, **labels}))
                _write(place, source, {**source.origin, **_origin(found, pinned)}, log, frozen)


def _convert(source: Source, request: Request) -> None:
    """An image that is there already, without a recipe."""
    digest = hashlib.sha256(f"{source.identity} {pack.FORMAT}".encode()).hexdigest()
    place = store.Place(request.folder.absolute(), request.name or source.name, digest, _suffix(request))
    with _work(place, request) as log:
        if log is not None:
            _write(place, source, source.origin, log)


@contextmanager
def _work(place: store.Place, request: Request, frozen: Optional[freeze.Frozen] = None) -> Iterator[Optional[IO[bytes]]]:
    """The log of a build that nobody else does; None where there is nothing to do. Says how it went."""
    if _is_there(place, request, frozen):
        yield None
        return
    with store.locked(place, request.lock_timeout_s) as after_kill:
        if after_kill:
            docker.forget_killed(f"{place.folder}:{place.stem}")
            tree.sweep()
        if _is_there(place, request, frozen):
            yield None
            return
        start = time.monotonic()
        place.log.unlink(missing_ok=True)  # a colleague's could not be written to
        with place.log.open("wb") as log:
            yield log
        if request.to != "docker":
            store.make_current(place)
            print(f"kit: {place.file}: {size(place.file.stat().st_size)}, in {time.monotonic() - start:.0f} s")
            print(f"  in a job: `image: {place.name}`")


def _write(place: store.Place, source: Source, origin: dict[str, Any], log: IO[bytes], frozen: Optional[freeze.Frozen] = None) -> None:
    store.check_space(place.folder, source.needs, f"a file of {size(source.size)} of files")
    for name in metadata.lost(source.config):
        print(f"kit: the image's variable {name} will not hold under Enroot: its name, a line break or ${{...}} in it", file=sys.stderr)
    squashfs = place.unfinished.with_suffix(".squashfs" + store.PARTIAL)
    try:
        packed = _pack(place, source, log)
        if frozen:
            frozen.check_packages(packed.packages)
        if place.suffix == ".sif":
            place.unfinished.rename(squashfs)
            sif.wrap(squashfs, place.unfinished)
            squashfs.unlink()
        facts = {"name": place.name, "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "kit": kit.__version__, "architecture": platform.machine()}
        inside = {"env": list(source.config.env), "packages": dict(sorted(packed.packages.items()))}
        store.publish(place, {**facts, "image_id": source.identity, **origin, **inside})
    except BaseException:
        for left in (place.unfinished, squashfs, place.unfinished_record):
            left.unlink(missing_ok=True)
        raise


def _pack(place: store.Place, source: Source, log: IO[bytes]) -> pack.Packed:
    with Progress(f"packing {place.file.name}", source.size) as progress:
        if source.files is None:
            return adopt.write(source, place.unfinished, log, progress.add)
        with source.files(f"{place.folder}:{place.stem}", progress.add) as files:
            return pack.squash(files, source.config, place.unfinished, log)


def _origin(found: recipe.Recipe, pinned: dict[str, str]) -> dict[str, Any]:
    return {
        "recipe": str(found.file),
        "bases": pinned,
        "device": found.device,
        "arguments": _shown(found.arguments),
        **found.options.facts(),
        "git": _revision(found.folder),
    }


def _labels(found: recipe.Recipe, place: store.Place) -> dict[str, str]:
    """Which build it is, in place of the base's words; but the recipe's own hold."""
    known = {"revision": _revision(found.folder), "version": place.digest[: store.DIGITS]}
    labels = {f"org.opencontainers.image.{word}": value for word, value in known.items() if value}
    return {name: value for name, value in labels.items() if name not in found.text}


def _shown(arguments: dict[str, str]) -> dict[str, str]:
    """For the record, which others may read."""
    return {name: "(hidden)" if SECRET.search(name) else value for name, value in arguments.items()}


def _suffix(request: Request) -> str:
    return ".sif" if request.to == "sif" else ".sqsh"


def _is_there(place: store.Place, request: Request, frozen: Optional[freeze.Frozen]) -> bool:
    if request.to == "docker" or not store.is_built(place):
        return False
    if frozen:
        frozen.check_packages(images.record(place.record).get("packages", {}))
    store.make_current(place)
    images.note_use(place.file)
    print(f"kit: {place.file} is up to date")
    return True


def _revision(folder: Path) -> Optional[str]:
    if not shutil.which("git"):
        return None
    done = subprocess.run(
        ["git", "-C", str(folder), "-c", "core.fsmonitor=false", "describe", "--always", "--dirty", "--abbrev=40"], capture_output=True, text=True
    )
    return done.stdout.strip() or None
