"""Whether a printed JSON document is what docs/json.md says."""

from __future__ import annotations

import json
import re
from typing import Any

from samples import ROOT

PAGE = (ROOT / "docs/json.md").read_text()
MERGED = {"A run with its status": "A run", "A whole run": "A run with its status", "Why a run failed": "A run"}


def documented() -> dict[str, dict[str, str]]:
    """{heading: {field: its type}}"""
    found: dict[str, dict[str, str]] = {}
    for part in PAGE.split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        of_page = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", body, re.MULTILINE))
        found[title] = {**found.get(MERGED.get(title, ""), {}), **of_page}
    return found


SHAPES = documented()


def check(value: Any, kind: str, where: str = "") -> None:
    """Fail where a value is not of the documented type."""
    if kind.endswith(" or null"):
        kind = kind[: -len(" or null")] if value is not None else "null"
    if kind.startswith("array of "):
        assert isinstance(value, list), where
        for item in value:
            check(item, kind[len("array of ") :], f"{where}[]")
        return
    plain = {"string": str, "number": (int, float), "boolean": bool, "object": dict, "null": type(None)}
    if kind in plain:
        assert isinstance(value, plain[kind]) and (kind != "number" or not isinstance(value, bool)), (where, value, kind)
        return
    fields = SHAPES.get(kind) or SHAPES[kind.capitalize()]
    assert list(value) == list(fields), where
    for name, of_field in fields.items():
        check(value[name], of_field, f"{where}.{name}")


def printed(text: str) -> Any:
    assert text.isascii() and text.endswith("\n") and not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
    return json.loads(text)
