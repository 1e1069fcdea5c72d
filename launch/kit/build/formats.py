"""Reads from a recipe's text what it takes in: base images, files, and its arguments' defaults.

Dockerfile          FROM, COPY, ADD, ARG: https://docs.docker.com/reference/dockerfile
image.def           From:, %files, %arguments: https://apptainer.org/docs/user/main/definition_files.html
image.enroot.sh     a script for a container of its base, with comments at its head: base, files, argument
"""

from __future__ import annotations

import json
import platform
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Callable, Optional

# ${A}, ${A:-b}, ${A:+b}, ${A-b}, ${A+b}, where b may have a variable of its own; $A; and Apptainer's {{ A }}
VARIABLE = re.compile(r"\$\{(\w+)(?:(:?[-+])((?:[^{}]|\{[^{}]*\})*))?\}|\$(\w+)|\{\{\s*(\w+)\s*\}\}")
HEREDOC = re.compile(r"(?:^|\s)\d*<<(-?)[\"']?([A-Za-z_]\w*)[\"']?(?=\s|$)")
DIRECTIVE = re.compile(r"#\s*(\w+)\s*=\s*(\S+)")


@dataclass
class Parts:
    """Words as they are written, each with its line."""

    bases: list[tuple[int, str]] = field(default_factory=list)
    sources: list[tuple[int, str]] = field(default_factory=list)  # of files, relative to the recipe's folder
    arguments: dict[str, str] = field(default_factory=dict)  # those with a default
    declared: set[str] = field(default_factory=set)
    is_dockerfile: bool = False
    of_from: dict[str, str] = field(default_factory=dict)  # of a Dockerfile: those before its first FROM, which are all that FROM knows
    unsure: set[str] = field(default_factory=set)  # variables with more than one value: by another ARG, or by ENV
    stages: dict[str, int] = field(default_factory=dict)  # the lines of their FROM

    def declare(self, words: list[str]) -> None:
        for name, equals, value in (word.partition("=") for word in words):
            self.declared.add(name)
            if equals:
                if self.arguments.setdefault(name, value) != value:
                    self.unsure.add(name)
                self.arguments[name] = value

    def is_stage(self, name: str, line: int) -> bool:
        """Whether a FROM there means an earlier stage, whose names are not case-sensitive."""
        return name.lower() == "scratch" or name.isdecimal() or self.stages.get(name.lower(), line) < line


def read(file_name: str, text: str) -> Parts:
    if file_name.endswith(".def"):
        return _definition(text)
    return _enroot(text) if file_name.endswith(".enroot.sh") else _dockerfile(text)


def _dockerfile(text: str) -> Parts:
    parts = Parts(is_dockerfile=True)
    for number, word, rest in _instructions(text):
        flags, words = _flags_and_words(rest)
        if word == "ARG":
            parts.declare(words)
        elif word == "ENV" and words:
            parts.unsure.update(item.partition("=")[0] for item in (words if "=" in words[0] else words[:1]))
        elif word == "ONBUILD" and words and words[0].upper() in ("COPY", "ADD"):
            parts.sources.append((number, "."))  # a later stage may do it
        elif word == "FROM" and words:
            if not parts.bases:
                parts.of_from = dict(parts.arguments)
            parts.bases.append((number, words[0]))
            parts.stages.update((name.lower(), number) for name in words[2:3])
        elif word in ("COPY", "ADD"):
            source = next((flag.partition("=")[2] for flag in flags if flag.startswith("--from=")), None)
            if source is not None:
                parts.bases.append((number, source))
            else:
                parts.sources += [(number, item) for item in words[:-1] if "://" not in item and not item.startswith(("<<", "git@"))]
        elif word == "RUN":
            for mount in (_mount(flag) for flag in flags if flag.startswith("--mount=")):
                if "from" in mount:
                    parts.bases.append((number, mount["from"]))
                elif mount.get("type", "bind") == "bind":
                    parts.sources.append((number, mount.get("source", mount.get("src", "."))))
    return parts


def of_platform(named: Optional[str] = None) -> dict[str, str]:
    """What BuildKit gives to every Dockerfile: https://docs.docker.com/reference/dockerfile#automatic-platform-args-in-the-global-scope"""
    machine = platform.machine()
    own = "linux/" + {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    found = {}
    for side, value in (("BUILD", own), ("TARGET", named or own)):
        system, arch, variant = [*value.split("/"), "", ""][:3]
        found.update({f"{side}PLATFORM": value, f"{side}OS": system, f"{side}ARCH": arch, f"{side}VARIANT": variant})
    return found


def _mount(flag: str) -> dict[str, str]:
    return dict(item.partition("=")[::2] for item in flag.partition("=")[2].split(","))


def expand(word: str, known: dict[str, str], unknown: Callable[[str], str] = lambda name: "") -> str:
    """The word with its variables' values, and with what those refer to."""
    for _ in range(8):  # deeper than anybody nests them; but A=$A must end
        before = word
        word = VARIABLE.sub(lambda found: _value(found, known, unknown), word)
        if word == before:
            break
    return word


def _value(found: re.Match[str], known: dict[str, str], unknown: Callable[[str], str]) -> str:
    name, how = found[1] or found[4] or found[5], found[2] or ""
    is_set = bool(known.get(name)) if how.startswith(":") else name in known
    if how.endswith("+"):
        return found[3] if is_set else ""
    return known[name] if is_set else found[3] if how else unknown(name)


def names(word: str) -> set[str]:
    """The variables in a word."""
    return {found[1] or found[4] or found[5] for found in VARIABLE.finditer(word)}


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, instruction, the rest of it, over as many lines as it takes)."""
    lines, escape = enumerate(text.splitlines(), 1), _escape(text)
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        while line.rstrip().endswith(escape):
            line = line.rstrip()[:-1] + next((more for _, more in lines if more.strip() and not more.lstrip().startswith("#")), "")
        word, rest = [*line.strip().split(None, 1), ""][:2]
        if word.upper() in ("RUN", "COPY", "ADD"):
            for dash, end in HEREDOC.findall(rest):
                while (more := next((more for _, more in lines), end)) != end and not (dash and more.lstrip("\t") == end):
                    pass
        yield number, word.upper(), rest.strip()


def _escape(text: str) -> str:
    """What ends a line that goes on in the next: said by a directive, before anything else."""
    for line in text.splitlines():
        found = DIRECTIVE.fullmatch(line.strip())
        if not found:
            break
        if found[1].lower() == "escape":
            return found[2]
    return "\\"


def _flags_and_words(rest: str) -> tuple[list[str], list[str]]:
    flags = []
    while rest.startswith("--"):
        flag, rest = [*rest.split(None, 1), ""][:2]
        flags.append(flag)
    if rest.startswith("["):
        try:
            return flags, [str(item) for item in json.loads(rest)]
        except ValueError:
            pass
    try:
        return flags, shlex.split(rest)
    except ValueError:  # an instruction that we do not need; its engine will judge it
        return flags, rest.split()


def _definition(text: str) -> Parts:
    parts, section, bootstrap = Parts(), "", "docker"
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if words[0].startswith("%"):
            # "%files from STAGE" copies between stages
            section = words[0] if words[1:2] != ["from"] else ""
        elif words[0].lower() == "bootstrap:":
            bootstrap = words[1] if words[1:] else ""
        elif words[0].lower() == "from:" and bootstrap == "docker":  # others have no digest in a registry
            parts.bases.append((number, " ".join(words[1:])))
        elif section == "%files":
            parts.sources.append((number, words[0]))
        elif section == "%arguments":
            parts.declare(words)
    return parts


def _enroot(text: str) -> Parts:
    parts = Parts()
    for number, line in enumerate(text.splitlines(), 1):
        if number > 1 and not line.startswith("#"):
            break
        key, _, value = line.lstrip("# ").partition(": ")
        if key == "base":
            parts.bases.append((number, value.strip()))
        elif key == "files":
            parts.sources += [(number, word) for word in value.split()]
        elif key == "argument":
            parts.declare([value.strip()])
    return parts
