"""Read the variables by which a script tells a container runtime what its containers have."""

from __future__ import annotations

from typing import Optional

from kit.config import variables
from kit.importing import containers
from kit.importing.draft import Draft
from kit.importing.items import Item
from kit.importing.placing import Placing
from kit.importing.shell import Span
from kit.importing.starters import Starters


def read(launch: Starters, placing: Placing) -> None:
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
