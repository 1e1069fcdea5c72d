"""`kit build` on the login node of a cluster elsewhere: what it reads travels, and the build goes on whatever becomes of the connection."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Optional

from kit import assets, images
from kit.build import choose, recipe
from kit.build.make import SECRET, Request
from kit.build.options import Options
from kit.build.sources.find import ARCHIVES
from kit.cluster import Cluster
from kit.errors import KitError, UsageError
from kit.progress import size
from kit.remote import errand, whole
from kit.remote.host import Unreachable, missed
from kit.remote.watch import PATIENCE_S
from kit.remote.whole import Copy

AGAIN_S = 2.0  # until the next try of a connection
BEFORE = "nothing is built yet, and what was copied stays there"


class Reads(NamedTuple):
    """What a build reads of this machine, and how it is called over there."""

    word: Optional[str]  # the target, in the folder over there
    folder: str  # its name, after which an image may be called
    source: Optional[Path] = None  # an image, or the recipe's own files
    is_recipe: bool = False


def site_of(name: str) -> Cluster:
    """Raises UsageError where the cluster is not elsewhere."""
    site = errand.elsewhere(name)
    if not site:
        raise UsageError(f"the profile {name} names no login node by `ssh`", "leave it out: what is built here is for the nodes here", where="--cluster")
    return site


def build(request: Request, site: Cluster) -> int:
    """Copies, starts or finds the build, and shows its output until it ends; its exit code. Ctrl-C ends it over there."""
    if request.folder != Path(images.FOLDER):
        raise UsageError(f"over there images are in {site.ssh_dir}/{images.FOLDER}", "leave it out", where="--images")
    if request.options != Options() or request.locked:
        raise UsageError("these stay on the machine that builds", "build here, or on the login node: ssh there", where="--secret, --target, --locked, ...")
    with _reads(request) as reads:
        copy = whole.put(site, "nothing is built yet")
        words = _words(request, reads, copy)
        place = f"{copy.folder}/build/{recipe.tidy(reads.folder)}-{_key(words, reads)}"
        try:
            _start(copy, place, words, reads, request)
            return _follow(copy, place)
        except KeyboardInterrupt:
            return _stop(copy, place)


def _start(copy: Copy, place: str, words: list[str], reads: Reads, request: Request) -> None:
    """Unless it runs, or its end has not been told."""
    state = copy.host.call("whole::state", place, doing="nothing is built yet").stdout.split()
    if state and state[0] in ("running", "ended"):
        said = f"{copy.host.name} builds it already" if state[0] == "running" else f"{copy.host.name} has built it meanwhile"
        print(f"kit: {said}; what it said:", file=sys.stderr, flush=True)
        return
    folder = f"{place}/{reads.folder}"
    _made(copy, copy.host.call("login::make_marked", place, folder, doing="nothing is built yet"), place)
    if reads.source:
        _send(copy, reads, reads.source, folder)
    variables = {name: value for name, value in request.arguments.items() if SECRET.search(name)} | ({recipe.JUDGED: "1"} if reads.is_recipe else {})
    script = errand.call_script("whole::build", place, copy, folder, words, variables)
    copy.host.call("whole::write", f"{place}/call.sh", text=script, doing=BEFORE)
    copy.host.call("whole::begin", place, doing="it may have begun: the same command again shows it")


def _made(copy: Copy, done: subprocess.CompletedProcess[str], place: str) -> None:
    if done.returncode:
        raise KitError(f"cannot make {place} on {copy.host.name}: {' '.join(done.stderr.split())}", "is it there, and not kit's? then remove it")


def _send(copy: Copy, reads: Reads, source: Path, folder: str) -> None:
    doing = BEFORE
    if reads.is_recipe:
        copy.host.send(source, folder, "--delete", doing=doing, modes="")
        return
    count = source.stat().st_size if source.is_file() else sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    print(f"kit: copying {source.name} to {copy.host.name}, {size(count)}", file=sys.stderr, flush=True)
    if source.is_dir():
        folder = f"{folder}/{source.name}"
        copy.host.call("login::make", folder, doing=doing)
    copy.host.send(source, folder, "--partial", *(["--delete"] if source.is_dir() else []), doing=doing, to="" if source.is_dir() else source.name)


def _follow(copy: Copy, place: str) -> int:
    seen, lost_s = 0, None
    while True:
        try:
            answer = copy.host.call("whole::follow", place, str(seen), doing="the build goes on there; the same command again shows it").stdout
        except Unreachable as error:
            missed.pop(copy.host.name, None)
            if lost_s is None:
                lost_s = time.monotonic()
                said = f"connection to {copy.host.name} lost ({error.why}); trying again; the build goes on meanwhile"
                print(f"kit: {said}", file=sys.stderr, flush=True)
            if time.monotonic() - lost_s > PATIENCE_S:
                raise
            time.sleep(AGAIN_S)
            continue
        if lost_s is not None:
            lost_s = None
            print(f"kit: {copy.host.name} answers again", file=sys.stderr, flush=True)
        line, _, text = answer.partition("\n")
        new = text.encode("utf-8", "surrogateescape")
        seen += len(new)
        sys.stdout.buffer.write(new)
        sys.stdout.buffer.flush()
        if new:
            continue
        state, _, code = line.partition(" ")
        if state == "ended":
            copy.host.call("whole::finish", place, code, doing="the build has ended")
            return int(code)
        if state == "nothing":
            raise KitError("another kit of yours has been told how the build ended", "the same command again: where the image is there, it does nothing")
        if state != "running":
            fix = "some sites end what their users leave behind, and some have a limit for login nodes: see the site's rules; then the same command again"
            raise KitError(f"the build on {copy.host.name} was killed there", fix)


def _stop(copy: Copy, place: str) -> int:
    print(f"kit: ending the build on {copy.host.name}", file=sys.stderr, flush=True)
    done = copy.host.call("whole::stop", place, doing=f"the build may go on there: {place}")
    if done.returncode:
        raise KitError(f"the build on {copy.host.name} does not end", f"see there: {place}")
    return 130


# ---------------------------------------------------------------- what it reads


def _words(request: Request, reads: Reads, copy: Copy) -> list[str]:
    words = ["build", "--images", f"{copy.folder}/{images.FOLDER}", "--device", request.device, "--to", request.to]
    words += ["--wait", str(int(request.lock_timeout_s))]
    for option, value in (("--name", request.name), ("--engine", request.engine)):
        words += [option, value] if value else []
    for name, value in request.arguments.items():
        words += ["--build-arg", name if SECRET.search(name) else f"{name}={value}"]
    return [*words, *(["--update"] if request.update else []), *(["--", reads.word] if reads.word else [])]


def _key(words: list[str], reads: Reads) -> str:
    """Of the same command for the same files: whoever types it again finds the build."""
    digest = hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape"))
    for path in sorted([reads.source, *reads.source.rglob("*")]) if reads.source else []:
        found = path.lstat()
        facts = [os.path.relpath(path, reads.source), found.st_mode, 0 if path.is_dir() else found.st_size]
        if not reads.is_recipe:
            facts += [path.name, found.st_mtime_ns]
        elif path.is_file():
            facts += [hashlib.sha256(path.read_bytes()).hexdigest()]
        digest.update(repr(facts).encode())
    return digest.hexdigest()[:16]


@contextmanager
def _reads(request: Request) -> Iterator[Reads]:
    """Raises UsageError where there is no such recipe or image."""
    found = _image(request.target) if request.target else None
    if found:
        yield found
        return
    with tempfile.TemporaryDirectory(prefix="kit-") as place:
        yield _recipe(request, Path(place))


def _image(target: str) -> Optional[Reads]:
    """None where the target is no image."""
    scheme, _, rest = target.partition(":")
    if rest.startswith("//"):
        return Reads(target, "image")
    name, colon, reference = rest.partition(":") if scheme in ARCHIVES else (target, "", "")
    path = Path(name).absolute()
    if not (scheme in ARCHIVES or path.suffix in (".tar", ".sqsh", ".squashfs") or (path / "index.json").is_file()):
        return None
    if not path.exists():
        raise UsageError(f"there is no file {name}", "check the path")
    word = f"{scheme}:{path.name}{colon}{reference}" if scheme in ARCHIVES else path.name
    return Reads(word, "image", path)


def _recipe(request: Request, place: Path) -> Reads:
    """Puts what the recipe copies, and nothing else, into this folder here."""
    target, kinds = request.target, choose.recipes(request.target, request.engine)
    if not kinds and target is None:
        return Reads(None, "kit")  # the kit's own, which is over there with it
    if not kinds:
        raise choose.unknown(str(target), choose.FILES[0])
    file, folder = kinds[0]
    if folder.is_relative_to(assets.folder("containers")) and not folder.is_relative_to(Path.cwd()):
        return Reads(target, "kit")
    for number, (path, base) in enumerate(kinds):
        with suppress(*([UsageError] if number else [])):  # one of another kind may not have the same arguments
            if base == folder:
                recipe.load(path, base, "image", request.device, request.arguments, request.folder.absolute()).lay_out(place)
    is_file = target is not None and Path(target).is_file()
    word = os.path.relpath(file, folder) if is_file else None if file.name in choose.FILES else target
    return Reads(word, folder.name or "root", place, is_recipe=True)
