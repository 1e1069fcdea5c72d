"""Read the variables of the script that are keys of a job: what containers have, and PYTHONPATH."""

from __future__ import annotations

from typing import Optional

from kit.base.bash_tree import Span
from kit.config import variables
from kit.importing import containers
from kit.importing.draft import Draft
from kit.importing.holes import HOLE
from kit.importing.items import PREPARE, Item
from kit.importing.placing import Placing
from kit.importing.scope import Scope
from kit.importing.starters import Starters


def read_container_settings(launch: Starters, placing: Placing) -> None:
    """Give their values to the job's own keys. Without a container they stay what they are."""
    draft = launch.draft
    if not draft.has_image:
        return
    computed = {name: item for item in placing.items for name in item.sets if _sets(item, name)}
    for name in [*draft.env, *draft.secrets, *computed]:
        item = computed.get(name)
        span = item.span if item else _span(draft, name) or launch.span
        if containers.BINDS.fullmatch(name):
            value = draft.env.pop(name, None) or launch.scope.values.get(name, "")
            draft.rename(f"env: {name}", "mounts")
            draft.carried(span, "mounts")
            launch.mount(value.split(",") if isinstance(value, str) else value, span)
            _replace(placing, item, None)
        elif found := containers.OF_PROGRAM.fullmatch(name):
            _rename(name, found[1], span, draft)
            is_kept = found[1] not in variables.OWNED
            inside = f"export {found[1]}{item.inside[len(f'export {name}') :]}" if item else ""
            _replace(placing, item, item._replace(inside=inside) if item and is_kept else None)


def _sets(item: Item, name: str) -> bool:
    return item.inside.startswith(f"export {name}=")


def _span(draft: Draft, name: str) -> Optional[Span]:
    """Return the lines in which a variable with a known value got it."""
    spans = [entry[1:3] for entry in draft.entries if entry.reason == f"env: {name}"]
    return spans[-1] if spans else None


def _replace(placing: Placing, old: Optional[Item], new: Optional[Item]) -> None:
    placing.items = [
        new if each is old and new else each for each in placing.items if each is not old or new
    ]


def _rename(name: str, inner: str, span: Span, draft: Draft) -> None:
    """Give a variable the name that it has in the container."""
    draft.rename(name, inner)
    if inner in variables.OWNED:
        draft.left_to_kit(span, inner)
    if inner in ("PREPEND_PATH", "APPEND_PATH"):
        draft.decide(span, f"write what {name} does as `export PATH=...` in `setup`")
    for given in (draft.env, draft.secrets):
        if name in given:
            value = given.pop(name)
            if inner not in (*variables.OWNED, "PREPEND_PATH", "APPEND_PATH"):
                given[inner] = value


_NAME = "PYTHONPATH"


def read_python_path(launch: Starters, placing: Placing) -> None:
    """Put $PWD/src into the job's `env` as src; `export` in a script would name the live folder."""
    scope, draft = launch.scope, launch.draft
    items = [item for item in placing.items if _sets(item, _NAME)]
    value = scope.values.get(_NAME)
    if not items or "workdir" in draft.keys or not isinstance(value, str):
        return
    before = {hole for hole in HOLE.findall(value) if scope.holes_of(hole)[0].names == {_NAME}}
    own = "".join(each for each in value if each not in before)
    is_prepared = not draft.has_image and any(item.kind == PREPARE for item in placing.items)
    if not HOLE.search(own) or (own != value and is_prepared):  # modules add to it
        return
    folders = [_project_folder(scope, part) for part in own.split(":") if part]
    if all(folders):
        draft.env[_NAME] = ":".join(folder for folder in folders if folder)
        placing.items = [item for item in placing.items if item not in items]
        for item in items:
            draft.carried(item.span, f"env: {_NAME}")
            if own != value:
                draft.left_out(
                    item.span, f"${_NAME} of before: name in `env` what the job needs of it"
                )


def _project_folder(scope: Scope, part: str) -> Optional[str]:
    """Return a folder as it is named in the one where the job starts; None for any other."""
    holes = scope.holes_of(part)
    if not holes:
        return part
    is_here = len(holes) == 1 and holes[0].hint == "." and part[1:2] in ("", "/")
    return (part[2:] or ".") if is_here and HOLE.match(part) else None
