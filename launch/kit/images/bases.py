"""Pin base images: ask the registries for their digests, and keep those in image.lock.

The file lies beside the recipe, for version control: whoever builds later, or elsewhere, gets the
same base. `kit build --update` asks the registries again.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Callable

from kit.base import assets
from kit.base.errors import KitError, UsageError
from kit.base.progress import Note, silent
from kit.files import replace, safe_read
from kit.images.recipe import LOCK, Recipe
from kit.registry import client
from kit.registry.blobs import DIGEST
from kit.registry.transport import Unavailable

LOCAL = "local:"  # before the id of an image of this machine's engine


def pin(
    recipe: Recipe,
    record: dict[str, str],
    identity: Callable[[str], str],
    *,
    update: bool,
    is_locked: bool = False,
    note: Note = silent,
) -> dict[str, str]:
    """Return {base: its digest}. Raise KitError if nobody knows a base.

    A base that no registry gives, but this machine's engine, gets LOCAL and the engine's id; a base
    that kit cannot name gets LOCAL alone. record: the bases of an earlier build; with is_locked
    they replace those of image.lock. identity: a function that returns the engine's id of a base,
    or "".
    """
    path = _path(recipe)
    written = _read(path)
    own = {base: digest for base, digest in record.items() if str(digest).startswith(LOCAL)}
    locked = {**own, **written, **(record if is_locked else {})}
    found = {}
    for base in recipe.bases:
        digest = "" if update else locked.get(base, "")
        if "@sha256:" in base:
            found[base] = base.rpartition("@")[2]
        elif digest.startswith("sha256:"):
            found[base] = digest
        elif "$" in base:  # only the engine can read the name
            found[base] = LOCAL
        elif digest:
            found[base] = _local(base, identity) or digest  # an image may outlive its base
        else:
            found[base] = _resolve(base, identity, note)
    pairs = found.items()
    new = {base: at for base, at in pairs if not at.startswith(LOCAL) and "@sha256:" not in base}
    if new.items() - locked.items():
        _write(path, {**written, **new}, note)
    return found


def check(pinned: dict[str, str], identity: Callable[[str], str]) -> None:
    """Raise KitError if an engine's own base was replaced: the image is named for the other."""
    for base, digest in pinned.items():
        if digest.startswith(LOCAL) and digest != LOCAL + identity(base):
            raise KitError(f"{base} was replaced while the image was built", "build again")


def _local(base: str, identity: Callable[[str], str]) -> str:
    """Return LOCAL and the engine's id of a base, or "" if the engine has none or fails."""
    with suppress(KitError):
        if image_id := identity(base):
            return LOCAL + image_id
    return ""


def _resolve(base: str, identity: Callable[[str], str], note: Note) -> str:
    try:
        return client.resolve(base, note)
    except Unavailable as error:
        image_id = identity(base)
        if not image_id:
            raise
        note(f"{error.problem}: this machine's own {base} is taken, until kit build --update")
    return LOCAL + image_id


def _path(recipe: Recipe) -> Path:
    """Return image.lock's path: beside the recipe, but here for the recipes of an installed kit.

    The next upgrade would remove it there, and all projects would share it.
    """
    own = assets.folder("containers")
    is_own = recipe.folder == own.parent or recipe.folder.is_relative_to(own)
    is_fixed = own.parent.name == assets.INSTALLED or not os.access(recipe.folder, os.W_OK)
    return (Path.cwd() if is_own and is_fixed else recipe.folder) / LOCK


def _read(path: Path) -> dict[str, str]:
    fix = "restore it, or remove it: it is made again"
    try:
        found = safe_read.mapping(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}", fix) from None
    if not all(isinstance(digest, str) and DIGEST.fullmatch(digest) for digest in found.values()):
        raise UsageError(f"{path} does not say BASE: sha256:... alone", fix)
    return found


def _write(path: Path, locked: dict[str, str], note: Note) -> None:
    try:
        replace.text(path, json.dumps(locked, indent=2, sort_keys=True) + "\n", 0o644)
    except OSError as error:
        problem = f"{path} cannot be written ({error.strerror})"
        note(f"{problem}: the next build asks the registry again")
