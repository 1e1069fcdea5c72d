"""Which recipe is meant, and which engine builds it: one whose kind of recipe is there, and which is installed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple, Optional

from kit import assets
from kit.build.engines.known import Engine, engines
from kit.build.recipe import tidy
from kit.errors import KitError, UsageError

FILES = tuple(dict.fromkeys(engine.recipe_file for engine in engines().values()))


class Choice(NamedTuple):
    engine: Engine
    file: Path
    folder: Path  # its paths start there
    name: str  # what jobs call the image


def choose(target: Optional[str], wanted: Optional[str], device: str) -> Choice:
    """wanted: an engine's name; target: a name in containers/, a file or a folder; None for the recipe that is here, else the kit's own."""
    known = engines()
    if wanted and wanted not in known:
        raise UsageError(f"there is no engine {wanted}", f"the engines are {', '.join(known)}", where="--engine")
    candidates = [known[wanted]] if wanted else [engine for engine in known.values() if shutil.which(engine.name)]
    if not candidates:
        raise KitError(f"no engine is installed here: {', '.join(known)}", "install one; or take an image of a registry: kit build docker://NAME")
    for engine in candidates:
        if found := _find(target, engine.recipe_file):
            return Choice(engine, *found, _name(target, found[1], device))
    for engine in known.values():
        if found := _find(target, engine.recipe_file):
            users = [item.name for item in known.values() if item.recipe_file == engine.recipe_file]
            instead = ", ".join(item.name for item in candidates)
            raise KitError(
                f"{found[0]} is for {' or '.join(users)}, not for {instead}", f"build with --engine {users[0]}, or write a {candidates[0].recipe_file}"
            )
    if target is not None:
        raise unknown(target, candidates[0].recipe_file)
    folder = assets.folder("containers").parent
    file = _in(folder, candidates[0].recipe_file)
    if not file:
        raise UsageError(f"there is no {candidates[0].recipe_file} here", f"write one, or name one: kit build PATH/{candidates[0].recipe_file}")
    return Choice(candidates[0], file, folder, _for("kit", device))  # our own, which may lie in a folder of any name


def recipes(target: Optional[str], wanted: Optional[str]) -> list[tuple[Path, Path]]:
    """All that may be meant, one of each kind: (its file, the folder that its paths start from)."""
    kinds = [engines()[wanted].recipe_file] if wanted in engines() else FILES
    return [found for kind in kinds if (found := _find(target, kind))]


def _find(target: Optional[str], usual: str) -> Optional[tuple[Path, Path]]:
    """(the recipe's file, the folder that its paths start from)."""
    here = Path.cwd()
    if target is None:
        file = _in(here, usual)
        return (file, here) if file else None
    path = Path(target).absolute()
    if path.is_file():
        return (path, path.parent.parent if path.parent.name == "containers" else path.parent) if _kind(path) == usual else None
    if file := _in(path, usual):
        return file, path
    own = assets.folder("containers") / target  # one of the kit's further ones
    for file, folder in (
        (here / "containers" / target / usual, here / "containers" / target),
        (here / "containers" / f"{target}.{usual}", here),
        (own / usual, own),
    ):
        if file.is_file():
            return file, folder
    return None


def _in(folder: Path, usual: str) -> Optional[Path]:
    return next((file for file in (folder / usual, folder / "containers" / usual) if file.is_file()), None)


def _kind(file: Path) -> str:
    """What a recipe of its kind is usually called; anything that is not Apptainer's or Enroot's is a Dockerfile."""
    return "image.enroot.sh" if file.name.endswith(".enroot.sh") else "image.def" if file.name.endswith(".def") else "Dockerfile"


def _name(target: Optional[str], folder: Path, device: str) -> str:
    """containers/NAME, NAME.Dockerfile and a folder NAME are called NAME."""
    last = Path(target).absolute().name if target else ""
    for usual in FILES:
        last = last[: -len(f".{usual}")] if last.endswith(f".{usual}") else last
    return _for(folder.name if last in ("", *FILES) else last, device)


def _for(name: str, device: str) -> str:
    return tidy(name) + ("-cpu" if device == "cpu" else "")


def unknown(target: str, usual: str) -> UsageError:
    if "://" in target:
        return UsageError(f"kit build does not know {target.partition('://')[0]}://", "it knows docker://, dockerd:// and podman://, and files")
    of_a_registry = f"; for an image of a registry: docker://{target}" if set("/:") & set(target) and target[0] not in "./" else ""
    return UsageError(
        f"there is no recipe {target}", f"looked for {target}/{usual}, containers/{target}/{usual} and containers/{target}.{usual}{of_a_registry}"
    )
