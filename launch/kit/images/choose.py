"""Choose the recipe, and an installed engine that builds recipes of its kind."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple, Optional

from kit.base import assets
from kit.base.errors import KitError, UsageError, did_you_mean
from kit.config import plugins
from kit.images.engines.apptainer import Apptainer
from kit.images.engines.docker import Docker
from kit.images.engines.engine import Engine
from kit.images.engines.enroot import Enroot
from kit.images.recipe import tidy
from kit.plan import runtimes

# By name, the preferred ones first.
ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (Docker("docker"), Docker("podman"), Apptainer(), Enroot())
}
SECOND = "Containerfile"  # another name of a Dockerfile
FILES = tuple(dict.fromkeys(engine.recipe_files[0] for engine in ENGINES.values()))
USUAL = (SECOND, *FILES)  # the names that a recipe without one of its own has
# What a recipe's name has behind the image's: `image: my.def` in a job would mean that very file.
ENDING = re.compile(
    r"\.(dockerfile|containerfile|(image\.)?def|(image\.)?enroot\.sh)$", re.IGNORECASE
)


class Choice(NamedTuple):
    engine: Engine
    file: Path
    folder: Path  # the recipe's paths are relative to it
    name: str  # jobs call the image by it


def choose(target: Optional[str], wanted: Optional[str], device: str) -> Choice:
    """Return the recipe and its engine. Raise KitError or UsageError if there is none.

    target: a name in containers/, a file or a folder; None means the recipe of the current
    folder, or else kit's own. wanted: an engine's name.
    """
    if wanted and wanted not in ENGINES:
        fix = f"the engines are {', '.join(ENGINES)}"
        raise UsageError(f"there is no engine {wanted}", fix, where="--engine")
    names = [wanted] if wanted else list(filter(_is_installed, ENGINES))
    candidates = [ENGINES[name] for name in names]
    if not candidates:
        raise KitError(
            f"no engine is installed here: {', '.join(ENGINES)}",
            "install one; or take an image of a registry: kit build docker://NAME",
        )
    found = {kind: place for kind in FILES if (place := _find(target, kind))}
    # Each engine's own kind first: a Dockerfile is translated where there is nothing else.
    kinds = [(engine, engine.recipe_files[0]) for engine in candidates]
    kinds += [(engine, kind) for engine in candidates for kind in engine.recipe_files[1:]]
    for engine, kind in kinds:
        if kind in found:
            file, folder = found[kind]
            return Choice(engine, file, folder, _name(target, folder, device))
    usual = candidates[0].recipe_files[0]
    for kind, (file, _) in found.items():
        users = [name for name, engine in ENGINES.items() if engine.recipe_files[0] == kind]
        instead = ", ".join(item.name for item in candidates)
        raise KitError(
            f"{file} is for {' or '.join(users)}, not for {instead}",
            f"build with --engine {users[0]}, or write one: {usual}",
        )
    if target is not None:
        raise unknown(target, usual)
    folder = assets.folder("containers").parent
    own = _recipe_in(folder, usual)
    if not own:
        fix = f"write one, or name one: kit build PATH/{usual}"
        raise UsageError(f"there is no {usual} here", fix)
    # kit's own recipe may lie in a folder of any name.
    return Choice(candidates[0], own, folder, _image_name("kit", device))


def _is_installed(name: str) -> bool:
    """Return whether an engine is here, and no other one under its name."""
    found = next((item for item in plugins.runtimes(local=True) if item.tool == name), None)
    return runtimes.is_here(found) if found else bool(shutil.which(name))


def recipes(target: Optional[str], wanted: Optional[str]) -> list[tuple[Path, Path]]:
    """Return the recipes that `target` may mean, one of each kind, with their folders."""
    kinds = ENGINES[wanted].recipe_files if wanted in ENGINES else FILES
    return [found for kind in kinds if (found := _find(target, kind))]


def _find(target: Optional[str], usual: str) -> Optional[tuple[Path, Path]]:
    """Return a recipe of the kind `usual`, and the folder that its paths are relative to."""
    current = Path.cwd()
    if target is None:
        file = _recipe_in(current, usual)
        return (file, current) if file else None
    path = Path(target).absolute()
    if path.is_file():
        parent = path.parent.parent if path.parent.name == "containers" else path.parent
        return (path, parent) if _kind(path) == usual else None
    if file := _recipe_in(path, usual):
        return file, path
    if set(target) <= set("./"):
        return None  # a folder is no name of a recipe in another one
    project, own = current / "containers", assets.folder("containers")
    names = recipe_names(usual)
    for file, folder in (
        *((project / target / name, project / target) for name in names),
        *((project / f"{target}.{name}", current) for name in names),
        (own / target / usual, own / target),
    ):
        if file.is_file():
            return file, folder
    return None


def recipe_names(usual: str) -> tuple[str, ...]:
    """Return the names that a recipe of one kind may have, the usual one first."""
    return (usual, SECOND) if usual == "Dockerfile" else (usual,)


def _recipe_in(folder: Path, usual: str) -> Optional[Path]:
    files = (folder / place / name for place in (".", "containers") for name in recipe_names(usual))
    return next(filter(Path.is_file, files), None)


def _kind(file: Path) -> str:
    """Return the usual name of such a recipe: a Dockerfile, if its ending says nothing else."""
    if file.name.endswith(".enroot.sh"):
        return "image.enroot.sh"
    return "image.def" if file.name.endswith(".def") else "Dockerfile"


def _name(target: Optional[str], folder: Path, device: str) -> str:
    """Return NAME for containers/NAME, NAME.Dockerfile and a folder NAME."""
    last = os.path.basename(os.path.abspath(target)) if target else ""
    name = "" if last in USUAL else ENDING.sub("", last)
    return _image_name(name or folder.name, device)


def _image_name(name: str, device: str) -> str:
    return tidy(name) + ("-cpu" if device == "cpu" else "")


def unknown(target: str, usual: str) -> UsageError:
    """Return the error for a target that is neither a recipe nor an image."""
    if "://" in target:
        return UsageError(
            f"kit build does not know {target.partition('://')[0]}://",
            "it knows docker://, dockerd:// and podman://, and files",
        )
    searched = f"{target}/{usual}, containers/{target}/{usual} and containers/{target}.{usual}"
    if Path(target).is_absolute():
        searched = f"{target} and {target}/{usual}"
    elif set(target) <= set("./"):
        folder = target.rstrip("/")
        searched = f"{folder}/{usual} and {folder}/containers/{usual}"
    if set("/:") & set(target) and target[0] not in "./":
        searched += f"; for an image of a registry: docker://{target}"
    path = Path(target)
    beside = [kind for kind in FILES if (path.parent / kind).is_file()]
    fix = did_you_mean(path.name, beside, f"looked for {searched}", cutoff=0.75)
    return UsageError(f"there is no recipe {target}", fix)
