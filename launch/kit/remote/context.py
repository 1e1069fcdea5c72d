"""On the laptop: collects what `kit build` reads here, and sends it to the login node."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from kit.base import assets, redact
from kit.base.errors import UsageError
from kit.base.formats import size
from kit.config import command_line, image_files
from kit.images import build_request, choose, recipe, recipe_intake
from kit.images.build_request import BuildRequest
from kit.images.sources.find import ARCHIVES
from kit.registry import oci
from kit.remote import rsync
from kit.remote.install import Copy
from kit.remote.where import Typed

# Files and agents that stay on this machine, and their options.
_STAYING = {"secrets": "--secret", "ssh": "--ssh", "locked": "--locked"}
FLAGS = ("--no-cache", "--update")  # the options of a build that have no value


@dataclass(frozen=True)
class Context:
    """What a build reads of this machine."""

    word: Optional[str]  # the target, in the folder there
    folder: str  # its name, which may become the name of the image
    source: Optional[Path] = None  # an image, or the recipe's own files
    is_recipe: bool = False

    def name(self) -> str:
        """Return a name for the folder there: the same for the same files."""
        digest = hashlib.sha256(f"{self.word}\0{self.folder}".encode("utf-8", "surrogateescape"))
        for path in sorted([self.source, *self.source.rglob("*")]) if self.source else []:
            found = path.lstat()
            inside = os.path.relpath(path, self.source)
            facts: list[Any] = [inside, found.st_mode, 0 if path.is_dir() else found.st_size]
            if not self.is_recipe:
                facts += [path.name, found.st_mtime_ns]
            elif path.is_file():
                facts += [hashlib.sha256(path.read_bytes()).hexdigest()]
            digest.update(repr(facts).encode())
        return f"{recipe.tidy(self.folder)}-{digest.hexdigest()[:16]}"


def check(typed: Typed) -> None:
    """Raise UsageError for options that name what only this machine has."""
    for name, option in _STAYING.items():
        if typed.value(name):
            fix = "build here, or on the login node: ssh there"
            raise UsageError("it names what stays on this machine", fix, where=option)
    if typed.value("folder") not in (None, image_files.FOLDER):
        fix = "leave it out: they are in images/ of kit's folder there"
        raise UsageError("images have one folder on the login node", fix, where="--images")


def words(typed: Typed, context: Context, folder: str) -> tuple[list[str], dict[str, str]]:
    """Return the words of a build for the login node, and its variables.

    What sounds like a secret becomes a variable, so that no list of processes shows it.
    """
    own, arguments = command_line.split(typed.words)
    own = command_line.without(own, ["--cluster", "", "--images", "", "--build-arg", ""])
    has_value = [word.startswith("--") and "=" not in word and word not in FLAGS for word in own]
    target = typed.value("target")  # the command or an option's value may be the same word
    own = [word for is_value, word in zip([True, *has_value], own) if is_value or word != target]
    variables = {recipe_intake.JUDGED: "1"} if context.is_recipe else {}
    for item in typed.value("arguments") or []:
        name, equals, _ = item.partition("=")
        if not equals or redact.is_secret(name):
            variables |= build_request.arguments([item])
            item = name
        own += ["--build-arg", item]
    own += ["--images", f"{folder}/{image_files.FOLDER}"]
    return [*own, *([context.word] if context.word else []), *arguments], variables


def send(copy: Copy, context: Context) -> str:
    """Return the folder on the login node that the build starts in, with what it reads."""
    source = context.source
    # An image that is a folder has one of its own in it.
    inside = source.name if source and source.is_dir() and not context.is_recipe else ""
    made = f"{context.folder}/{inside}"
    copy.host.progress = "nothing is built yet, and the copied files stay there"
    given = copy.ask("given folder", folder=copy.folder, name=context.name(), inside=made)
    place = f"{given['place']}/{context.folder}"
    if not source:
        return place
    options = ["--delete"]  # the modes of a recipe's files are the image's own
    if not context.is_recipe:
        options = [rsync.PRIVATE, "--partial", *(["--delete"] if inside else [])]
        files = [path for path in [source, *source.rglob("*")] if path.is_file()]
        count = sum(path.stat().st_size for path in files)
        copy.host.say(f"copying {source.name} to {copy.host.name}, {size(count)}")
    # Not with the file's name as the place: some versions of rsync have a shell there read that.
    rsync.send(copy.host, source, f"{place}/{inside}", options)
    return place


@contextmanager
def read(typed: Typed) -> Iterator[Context]:
    """Yield what a build reads. Raises UsageError where there is no such recipe or image."""
    target = typed.value("target")
    if found := _image(target) if target else None:
        yield found
        return
    with tempfile.TemporaryDirectory(prefix="kit-") as place:
        yield _recipe(typed, target, Path(place))


def _image(target: str) -> Optional[Context]:
    """Return what a build reads of an image; None where the target is no image."""
    scheme, mark, rest = target.partition(":")
    if rest.startswith("//"):
        return Context(target, "image")
    is_archive = bool(mark) and scheme in ARCHIVES  # a recipe may be called oci
    name, colon, reference = rest.partition(":") if is_archive else (target, "", "")
    path = Path(name).absolute()
    if path.name == os.pardir:
        path = path.resolve()  # its name is that of the copy, too
    is_file = path.suffix in (".tar", ".sqsh", ".squashfs") or oci.is_layout(path)
    if not (is_archive or is_file):
        return None
    if not path.exists():
        raise UsageError(f"there is no file {name}", "check the path")
    word = f"{scheme}:{path.name}{colon}{reference}" if is_archive else path.name
    return Context(word, "image", path)


def _recipe(typed: Typed, target: Optional[str], place: Path) -> Context:
    """Put what the recipe copies, and nothing else, into `place`."""
    kinds = choose.recipes(target, typed.value("engine"))
    if not kinds and target is None:
        return Context(None, "kit")  # kit's own, which is there with it
    if not kinds:
        raise choose.unknown(str(target), choose.FILES[0])
    file, folder = kinds[0]
    if folder.is_relative_to(assets.folder("containers")) and not folder.is_relative_to(Path.cwd()):
        return Context(target, "kit")
    arguments = build_request.arguments(typed.value("arguments") or [])
    options = build_request.BuilderOptions(
        stage=typed.value("stage"),
        platform=typed.value("platform"),
        words=tuple(typed.value("words") or ()),
    )
    device = typed.value("device") or "gpu"
    for number, (path, base) in enumerate(kinds):
        # One of another kind may not have the same arguments.
        with suppress(*([UsageError] if number else [])):
            request = BuildRequest(device=device, arguments=arguments, options=options)
            recipe.load(path, base, "image", request).lay_out(place, typed.say)
    if (folder / recipe.LOCK).is_file():
        shutil.copyfile(folder / recipe.LOCK, place / recipe.LOCK)
    word = None if file.name in choose.USUAL else target
    if target is not None and Path(target).is_file():
        word = os.path.relpath(file, folder)
    # Its copy is called so on the login node, where `..` would be the folder of all contexts.
    name = os.path.basename(os.path.abspath(folder)) or "root"
    return Context(word, name, place, is_recipe=True)
