"""The key `unpack`: whether a node unpacks the image before it starts it, or mounts it."""

from __future__ import annotations

from typing import Optional

from kit.config import values
from kit.config.yaml_source import Located
from kit.errors import Problems

WORDS = ("auto", "yes", "no")


def parse(given: Located, problems: Problems) -> Optional[str]:
    if given.value == "auto":
        return "auto"
    judged = Problems()
    is_yes = values.flag(given, judged)
    if not judged.found:
        return "yes" if is_yes else "no"
    fix = "no: each node mounts the image; yes: it unpacks it first; auto: kit chooses"
    problem = f"expected auto, yes or no, not {values.kind(given)}"
    problems.add(given.where, problem, fix)
    return None
