"""Read a recipe's base images, files and arguments from its text, by its format.

Dockerfile          dockerfile_parts.py
image.def           definition.py
image.enroot.sh     a script that runs in its base, with comments at its head: base, files, argument
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Optional

from kit.images import (
    build_request,
    definition,
    dockerfile_parts,
    dockerfile_text,
    dockerfile_variables,
    dockerfile_words,
    recipe_parts,
)
from kit.images.dockerfile_variables import BuildVariables
from kit.images.recipe_parts import Mention, Parts

NOTHING: Mapping[str, str] = MappingProxyType({})
ANY = build_request.BuilderOptions()


def read(
    file_name: str,
    text: str,
    given: Mapping[str, str] = NOTHING,
    options: build_request.BuilderOptions = ANY,
) -> Parts:
    """Return the parts of a recipe, whose file name tells its format.

    given: the arguments from the command line.
    """
    if file_name.endswith(".def"):
        return definition.read(text, given)
    if file_name.endswith(".enroot.sh"):
        return _enroot(text, given)
    return dockerfile_parts.read(text, given, options)


def replace_base(text: str, base: Mention, exact: str, *, is_dockerfile: bool) -> Optional[str]:
    """Return the text with another base in place of this one; None if that cannot be done."""
    if is_dockerfile:
        return dockerfile_text.replace_base(text, base, exact)
    return recipe_parts.replace_value(text, base.line, exact.removeprefix(base.prefix))


def _enroot(text: str, given: Mapping[str, str]) -> Parts:
    parts, scope = (
        Parts(),
        BuildVariables(given, "\\", arguments={**dockerfile_variables.of_platform()}),
    )
    words: list[tuple[str, int, str]] = []
    for number, line in recipe_parts.numbered(text):
        if number > 1 and not line.startswith("#"):
            break
        key, _, value = line.lstrip("# ").partition(": ")
        if key == "argument":
            name, equals, default = value.strip().partition("=")
            parts.declared.add(name)
            scope.declare(name, default if equals else None)
            if equals:
                parts.arguments[name] = scope.arguments[name] or default
        elif key in ("base", "files"):
            words += [(key, number, word) for word in _words(value, key == "files")]
    for key, number, word in words:  # an argument may stand below
        mention = scope.mention(number, word)
        if key == "base":
            parts.bases.append(mention)
        else:
            inside = word if mention.value is None else mention.value
            parts.sources.append(mention._replace(value=inside.lstrip("/")))
    return parts


def _words(value: str, are_several: bool) -> list[str]:
    try:
        return dockerfile_words.split(value, "\\") if are_several else [value.strip()]
    except ValueError:  # a quote is not closed: a part of a name
        return value.split()
