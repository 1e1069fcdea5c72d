"""Read a PYTHONPATH of folders of the project, which kit takes from the frozen copy of the code."""

from __future__ import annotations

from typing import Optional

from kit.importing.expansion import Scope
from kit.importing.holes import HOLE
from kit.importing.items import PREPARE
from kit.importing.placing import Placing
from kit.importing.starters import Starters

_NAME = "PYTHONPATH"


def read(launch: Starters, placing: Placing) -> None:
    """Put $PWD/src into the job's `env` as src; `export` in a script would name the live folder."""
    scope, draft = launch.scope, launch.draft
    items = [item for item in placing.items if item.inside.startswith(f"export {_NAME}=")]
    value = scope.values.get(_NAME)
    if not items or "workdir" in draft.keys or not isinstance(value, str):
        return
    own = HOLE.sub(
        lambda found: "" if _is_of_before(scope, found.group()) else found.group(), value
    )
    is_prepared = not draft.has_image and any(item.kind == PREPARE for item in placing.items)
    if not HOLE.search(own) or (own != value and is_prepared):  # modules add to it
        return
    folders = [_folder(scope, part) for part in own.split(":") if part]
    if all(folders):
        draft.env[_NAME] = ":".join(folder for folder in folders if folder)
        placing.items = [item for item in placing.items if item not in items]
        for item in items:
            draft.carried(item.span, f"env: {_NAME}")
            if own != value:
                draft.left_out(
                    item.span, f"${_NAME} of before: name in `env` what the job needs of it"
                )


def _is_of_before(scope: Scope, hole: str) -> bool:
    return scope.behind(hole)[0].names == {_NAME}


def _folder(scope: Scope, part: str) -> Optional[str]:
    """Return a folder as it is named in the one where the job starts; None for any other."""
    holes = scope.behind(part)
    if not holes:
        return part
    is_here = len(holes) == 1 and holes[0].hint == "." and part[1:2] in ("", "/")
    return (part[2:] or ".") if is_here and HOLE.match(part) else None
