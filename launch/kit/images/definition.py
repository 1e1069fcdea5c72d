"""Read what a build of an Apptainer definition takes in.

https://apptainer.org/docs/user/main/definition_files.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kit.images.recipe_parts import Mention, Parts, numbered

VARIABLE = re.compile(r"\{\{\s*(\w+)\s*\}\}")
NEW_STAGE = re.compile(r"bootstrap:", re.IGNORECASE)  # at the beginning of a line, in any section
WORD = re.compile(r'(?:[^\s"]|"[^"]*")+')
HEADER, OTHER = "", "of another kind"  # sections
FILES = ("files", "appfiles")
ON_DISK = ("localimage", "docker-archive", "oci-archive", "oci")  # bases in files and folders


class _Line(NamedTuple):
    number: int
    stage: int
    section: str
    text: str


def read(text: str, given: Mapping[str, str]) -> Parts:
    """Return the parts of a definition, with those arguments from the command line."""
    lines, parts = list(_lines(text)), Parts()
    parts.declared = {name for line in lines for name in VARIABLE.findall(line.text)}
    stages: dict[int, dict[str, str]] = {}
    for line in lines:
        name, equals, default = line.text.partition("=")
        if line.section == "arguments" and equals:
            stages.setdefault(line.stage, {})[name.strip()] = default.strip()
            parts.arguments.setdefault(name.strip(), default.strip())
        elif line.section == "arguments":
            parts.declared.update(line.text.split())
    parts.declared |= parts.arguments.keys()
    headers: dict[int, list[_Line]] = {}
    for line in lines:
        known = {**parts.arguments, **stages.get(line.stage, {}), **given}
        if line.section in FILES:
            filled = _fill(line.text, known)
            word = [*WORD.findall(filled.word), filled.word][0].strip('"')
            parts.sources.append(
                filled._replace(line=line.number, word=word, value=word.lstrip("/"))
            )
        elif line.section == HEADER:
            headers.setdefault(line.stage, []).append(line)
    for stage, header in headers.items():
        _add_base(parts, header, {**parts.arguments, **stages.get(stage, {}), **given})
    return parts


def _lines(text: str) -> Iterator[_Line]:
    """Yield the lines that are neither empty nor comments, each with its stage and section."""
    stage, section = 0, HEADER
    for number, line in numbered(text):
        words = line.lower().split()
        if NEW_STAGE.match(line):
            stage, section = stage + 1, HEADER
        if not words or words[0].startswith("#"):
            continue
        if words[0].startswith("%"):
            # "%files from STAGE" copies between stages
            is_between = words[0] == "%files" and words[1:2] == ["from"]
            section = OTHER if is_between else words[0][1:]
            continue
        yield _Line(number, stage, section, line.strip())


def _fill(text: str, known: Mapping[str, str]) -> Mention:
    """Return the text with the values of its variables as the word of a mention."""
    lacking = [name for name in VARIABLE.findall(text) if name not in known]

    def value(found: re.Match[str]) -> str:
        # An argument's value may name others, which are not expanded again.
        return VARIABLE.sub(lambda inner: known.get(inner[1], inner[0]), known[found[1]])

    filled = text if lacking else VARIABLE.sub(value, text)
    return Mention(0, filled, None if lacking else filled, next(iter(lacking), ""))


def _add_base(parts: Parts, header: list[_Line], known: Mapping[str, str]) -> None:
    """Add the base that the lines of one header name."""
    found: dict[str, Mention] = {"bootstrap": Mention(0, "docker", "docker")}
    for line in header:
        key, _, word = line.text.split("#")[0].partition(":")
        filled = _fill(line.text, known)
        value = (filled.value or "").split("#")[0].partition(":")[2].strip()
        own = filled._replace(line=line.number, word=word.strip())
        found[key.strip().lower()] = own._replace(value=None if own.lacks else value)
    base, bootstrap = found.get("from"), found["bootstrap"].value
    parts.last = None
    if base and bootstrap in ON_DISK:
        parts.local.append(base)
    elif base and bootstrap == "docker":  # others are in no registry
        above = [found[key] for key in ("registry", "namespace") if key in found]
        prefix = "".join(f"{item.value}/" for item in above if item.value)
        lacks = next((item.lacks for item in (*above, base) if item.lacks), "")
        name = None if lacks else f"{prefix}{base.value}"
        parts.last = base._replace(value=name, lacks=lacks, prefix=prefix)
        parts.bases.append(parts.last)
