"""The digests of base images, read from their registries and kept in a file beside the recipe.

image.lock is for version control: whoever builds later, or elsewhere, gets the same base. `kit build --update` reads
the registries again.
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Callable, Optional

from kit import assets, regular
from kit.build.recipe import Recipe
from kit.errors import KitError, UsageError

LOCK = "image.lock"
LOCAL = "local:"  # before the id of an image that only this machine's engine has
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def pin(recipe: Recipe, own: dict[str, str], identity: Callable[[str], str], *, update: bool, recorded: Optional[dict[str, str]] = None) -> dict[str, str]:
    """{base: its digest}; LOCAL and an id for one that no registry has but the engine of this machine; LOCAL alone for one that kit cannot name.

    own: those that were such at the last build. identity: the id that the engine has, or "". recorded: digests that hold over
    image.lock's. KitError where nobody knows a base.
    """
    path = _path(recipe)
    written = _read(path)
    locked = {**written, **(recorded or {})}
    found = {}
    for base in recipe.bases:
        if "@sha256:" in base:
            found[base] = base.partition("@")[2]
        elif base in locked and not update:
            found[base] = locked[base]
        elif "$" in base:  # which only the engine can read
            found[base] = LOCAL
        elif base in own and not update:
            found[base] = _here(base, identity) or own[base]  # an image may outlive its base
        else:
            found[base] = _resolve(base, identity)
    new = {base: digest for base, digest in found.items() if not digest.startswith(LOCAL) and "@" not in base}
    if new.items() - locked.items():
        _write(path, {**written, **new})
    return found


def check(pinned: dict[str, str], identity: Callable[[str], str]) -> None:
    """Raises KitError where an engine's own base was replaced since it was pinned: the image is then none of its name."""
    for base, digest in pinned.items():
        if digest.startswith(LOCAL) and digest != LOCAL + identity(base):
            raise KitError(f"{base} was replaced while the image was built", "build again")


def _here(base: str, identity: Callable[[str], str]) -> str:
    """LOCAL and the engine's id of a base; empty where it has none, or does not answer."""
    with suppress(KitError):
        if here := identity(base):
            return LOCAL + here
    return ""


def _resolve(base: str, identity: Callable[[str], str]) -> str:
    from kit.build.sources import registry

    try:
        return registry.resolve(base)
    except KitError:
        here = identity(base)
        if not here:
            raise
    print(f"kit: no registry has {base}: this machine's own is taken", file=sys.stderr)
    return LOCAL + here


def _path(recipe: Recipe) -> Path:
    """Beside the recipe; but the kit's own, once installed, has no place for it."""
    installed = recipe.folder == assets.folder("containers").parent and not os.access(recipe.folder, os.W_OK)
    return (Path.cwd() if installed else recipe.folder) / LOCK


def _read(path: Path) -> dict[str, str]:
    try:
        found = regular.mapping(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "restore it, or remove it: it is made anew") from None
    if not all(isinstance(digest, str) and DIGEST.fullmatch(digest) for digest in found.values()):
        raise UsageError(f"{path} does not say BASE: sha256:... alone", "restore it, or remove it: it is made anew")
    return found


def _write(path: Path, locked: dict[str, str]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(locked, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        print(f"kit: {path} cannot be written ({error.strerror}): the next build asks the registry again", file=sys.stderr)
