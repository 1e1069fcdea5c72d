"""Run `kit build`: find the image or recipe, and make its file, unless that is up to date."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Callable, NamedTuple, Optional

import kit
from kit.base import assets, redact
from kit.base.errors import UsageError
from kit.base.formats import size
from kit.base.progress import Note, Progress, silent
from kit.config import image_files
from kit.files import safe_write
from kit.images import bases, choose, freeze, metadata, pack, packer, recipe, sif, store
from kit.images.build_request import BuildRequest
from kit.images.engines import docker, tree
from kit.images.engines.build_steps import Steps
from kit.images.engines.docker import Docker
from kit.images.engines.engine import Engine
from kit.images.sources import adopt, find
from kit.images.sources.source import Source
from kit.plan import git_facts
from kit.registry import oci


class Built(NamedTuple):
    """An image that is there now."""

    name: str  # by which a job, or the engine, knows it
    file: Optional[Path] = None  # None for an image that stays in its engine
    bytes: int = 0
    duration_s: Optional[float] = None  # None if it was up to date


def build(request: BuildRequest, note: Note = silent) -> Built:
    """Return the image, which is made unless it is up to date. Raise KitError if that fails."""
    name = request.name
    if name and (recipe.tidy(name) != name or name.endswith(image_files.SUFFIXES)):
        fix = "take a-z, 0-9, dot, dash and underscore: --name my-model"
        raise UsageError(f"'{name}' cannot be the name of an image", fix, where="--name")
    if request.to != "docker":
        packer.choose()
    if request.to == "sif":
        sif.check()
    _refuse_tokens(request)
    wanted = request.options.architecture()
    source = find.source(request.target, note, wanted=wanted) if request.target else None
    _refuse_conflicts(request, is_image=source is not None)
    if source is None:
        return _build(request, note)
    identity = hashlib.sha256(f"{source.identity} {pack.FORMAT}".encode()).hexdigest()
    making = Making(request, _place(request, source.name, identity), None, note)
    return making.run(lambda log: making.write(source, log))


def _place(request: BuildRequest, name: str, digest: str) -> store.Place:
    suffix = ".sif" if request.to == "sif" else ".sqsh"
    return store.Place(request.folder.absolute(), request.name or name, digest, suffix)


def _refuse_conflicts(request: BuildRequest, is_image: bool) -> None:
    """Raise UsageError for options that do not go together, or not with an existing image."""
    if is_image and (given := request.of_recipe()):
        problem = f"{request.target} is an image already: nothing is built"
        raise UsageError(problem, "leave the options of a build out", where=given)
    if request.locked and (is_image or request.to == "docker"):
        problem = "only the file of a recipe can be compared with a record"
        raise UsageError(problem, "leave it out", where="--locked")
    if request.locked and request.update:
        problem = "a record's bases are not asked for again"
        raise UsageError(problem, "leave one of the two out", where="--locked, --update")
    if is_image and request.to == "docker":
        problem = f"{request.target} is an image already"
        raise UsageError(problem, "leave out --to docker, or name a recipe", where="--to")


def _refuse_tokens(request: BuildRequest) -> None:
    """Raise UsageError for what looks like a token: an image's history shows its arguments."""
    for name, value in request.arguments.items():
        if kind := redact.kind(value, name):
            raise UsageError(
                f"the value of {name} looks like {kind}, "
                "and an image's history shows its arguments",
                f"--secret id={name},env={name}, and in the recipe: "
                f"RUN --mount=type=secret,id={name} {name}=$(cat /run/secrets/{name}) COMMAND",
                where="--build-arg",
            )
    for kind in filter(None, map(redact.kind, request.options.words)):
        raise UsageError(
            f"one of these words looks like {kind}, and an image's record shows them",
            "leave it out; what a step needs it gets with --secret id=NAME,env=NAME",
            where="--",
        )


def _build(request: BuildRequest, note: Note) -> Built:
    engine, file, project, name = choose.choose(request.target, request.engine, request.device)
    if not isinstance(engine, Docker):
        fix = "build with docker or podman: --engine docker"
        if request.to == "docker":
            raise UsageError(f"{engine.name} makes no image for an engine", fix, where="--to")
        if given := request.options.given():
            problem = f"{engine.name} builds here, and only docker and podman can do this"
            raise UsageError(problem, f"leave it out, or {fix}", where=given)
    request.options.command()  # refuses wrong options before anything is done
    found = engine.adapted(_load(request, file, project, request.name or name))
    contents = found.contents(note)  # refuses missing files before a registry is asked
    frozen = freeze.read(request.locked) if request.locked else None
    last = request.folder.absolute() / f"{found.name}.json"
    known = frozen.bases if frozen else image_files.record(last).get("bases", {})
    is_locked, update = frozen is not None, request.update
    pinned = bases.pin(found, known, engine.identity, update=update, is_locked=is_locked, note=note)
    if frozen:
        # Records of earlier versions of kit have the bases of all stages.
        spare = {base.value for base in found.parts.spare_bases}
        unneeded = {base: digest for base, digest in frozen.bases.items() if base in spare}
        frozen.check_bases({**unneeded, **pinned})
    place = _place(request, found.name, found.digest(pinned, contents))
    making = Making(request, place, frozen, note)
    return making.run(lambda log: making.build(engine, found, pinned, log))


def _load(request: BuildRequest, file: Path, project: Path, name: str) -> recipe.Recipe:
    """Return the recipe. kit's own also installs the requirements of the current folder."""
    found = recipe.load(file, project, name, request)
    is_own = project == assets.folder("containers").parent
    is_own = is_own and file.parent in (project, project / "containers")
    if is_own and Path.cwd() != project:
        found = replace(found, requirements=recipe.requirements(Path.cwd()))
    return found


@dataclass(frozen=True)
class Making:
    """Makes one file of images/, or one image of an engine, while no other build makes the same."""

    request: BuildRequest
    place: store.Place
    frozen: Optional[freeze.Frozen]  # the record of --locked
    note: Note

    def run(self, make: Callable[[IO[bytes]], object]) -> Built:
        """Return the image. Call `make` with the build's log, unless the image is up to date."""
        place = self.place
        if found := self.existing():
            return found
        with store.locked(place, self.request.lock_timeout_s, self.note) as after_kill:
            if after_kill:
                docker.forget_killed(f"{place.folder}:{place.stem}")
            tree.sweep()
            if found := self.existing():
                return found
            start = time.monotonic()
            with safe_write.anew(place.log) as log:  # kit could not write to a colleague's
                make(log)
            if self.request.to == "docker":
                return Built(_tag(place))
            store.make_current(place)
            bytes_, duration_s = place.file.stat().st_size, time.monotonic() - start
            return Built(place.name, place.file, bytes_, duration_s)

    def existing(self) -> Optional[Built]:
        """Return the image if it is up to date. Raise KitError if it differs from the record."""
        place = self.place
        if self.request.to == "docker" or not store.is_built(place, self.note):
            return None
        if self.frozen:
            self.frozen.check_packages(image_files.record(place.record).get("packages", {}))
        store.make_current(place)
        image_files.note_use(place.file)
        return Built(place.name, place.file, place.file.stat().st_size)

    def build(
        self, engine: Engine, found: recipe.Recipe, pinned: dict[str, str], log: IO[bytes]
    ) -> None:
        """Build a recipe with its engine, and write the file unless the engine keeps the image."""
        engine.check()
        self.note(f"building {found.name} from {found.file} with {engine.name}")
        place, labels = self.place, _labels(found, self.place)
        stays_in_engine = self.request.to == "docker"
        with store.work(place.folder, f".{place.stem}") as context:
            exact = found.at(pinned)
            file = exact.lay_out(context, self.note)
            if isinstance(engine, Docker):  # which keeps the image: it is found by its labels
                pairs = [("--label", f"{name}={value}") for name, value in labels.items()]
                pairs += [("--tag", _tag(place))] if stays_in_engine else []
                words = (*exact.options.words, *itertools.chain.from_iterable(pairs))
                exact = replace(exact, options=exact.options._replace(words=words))
            with engine.build(file, exact, Steps(context, log, self.note)) as source:
                bases.check(pinned, engine.identity)
                if not stays_in_engine:
                    config = source.config._replace(labels={**source.config.labels, **labels})
                    origin = {**source.origin, **_origin(found, pinned)}
                    self.write(replace(source, config=config, origin=origin), log)

    def write(self, source: Source, log: IO[bytes]) -> None:
        """Write the file of an image, with its record."""
        place = self.place
        store.check_space(place.folder, source.needs, f"a file of {size(source.size)} of files")
        for name in metadata.lost(source.config):
            self.note(
                f"the image's variable {name} will not hold under Enroot: "
                "its name, a line break or ${...} in it"
            )
        machine = oci.machine(source.architecture)
        squashfs = place.unfinished.with_suffix(".squashfs" + store.PARTIAL)
        try:
            safe_write.anew(place.unfinished).close()  # the packers replace the content of a file
            packages = dict(sorted(self.pack(source, log).items()))
            if self.frozen:
                self.frozen.check_packages(packages)
            if place.suffix == ".sif":
                place.unfinished.rename(squashfs)
                sif.wrap(squashfs, place.unfinished, machine)
                squashfs.unlink()
            facts = {"name": place.name, "created": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
            facts |= {"kit": kit.__version__, "architecture": machine}
            inside = {"env": list(source.config.env), "packages": packages}
            store.publish(place, {**facts, "image_id": source.identity, **source.origin, **inside})
        except BaseException:
            for left in (place.unfinished, squashfs, place.unfinished_record):
                left.unlink(missing_ok=True)
            raise

    def pack(self, source: Source, log: IO[bytes]) -> dict[str, str]:
        """Write the image's files to the unfinished file. Return their packages, if known."""
        target = self.place.unfinished
        if source.files and (tool := packer.choose()).unpacks:
            self.note(
                f"{tool.version} reads no tar stream: the image's files are unpacked in "
                f"{target.parent} and packed after that"
            )
        with Progress(f"packing {self.place.file.name}", source.size) as progress:
            if source.files is None:
                adopt.write(source, target, log, progress.add)
                return {}
            label = f"{self.place.folder}:{self.place.stem}"
            with source.files(label, progress.add) as files:
                return pack.squash(files, source.config, target, log)


def _tag(place: store.Place) -> str:
    """Return the name that an image keeps in its engine."""
    return f"kit/{place.name}:{place.digest[: store.DIGITS]}"


def _origin(found: recipe.Recipe, pinned: dict[str, str]) -> dict[str, Any]:
    """Return where an image comes from. Others may read it, so it has no values of secrets."""
    arguments = {
        name: "(hidden)" if redact.is_secret(name) else value
        for name, value in found.arguments.items()
    }
    return {
        "recipe": str(found.file),
        "bases": pinned,
        "device": found.device,
        "arguments": arguments,
        **found.options.shown().facts(),
        "git": _revision(found.folder),
    }


def _labels(found: recipe.Recipe, place: store.Place) -> dict[str, str]:
    """Return labels that name this build, but for those that the recipe sets itself."""
    known = {"revision": _revision(found.folder), "version": place.digest[: store.DIGITS]}
    labels = {f"org.opencontainers.image.{word}": value for word, value in known.items() if value}
    return {name: value for name, value in labels.items() if name not in found.text}


def _revision(folder: Path) -> Optional[str]:
    said = git_facts.output(str(folder), "describe", "--always", "--dirty", "--abbrev=40")
    return os.fsdecode(said or b"").strip() or None
