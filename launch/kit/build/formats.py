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

VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}|\$(\w+)|\{\{\s*(\w+)\s*\}\}")
HEREDOC = re.compile(r"(?:^|\s)\d*<<-?[\"']?([A-Za-z_]\w*)[\"']?(?=\s|$)")


@dataclass
class Parts:
    """Words as they are written, each with its line."""

    bases: list[tuple[int, str]] = field(default_factory=list)
    sources: list[tuple[int, str]] = field(default_factory=list)  # of files, relative to the recipe's folder
    arguments: dict[str, str] = field(default_factory=dict)  # those with a default
    declared: set[str] = field(default_factory=set)
    is_dockerfile: bool = False

    def declare(self, words: list[str]) -> None:
        for name, equals, value in (word.partition("=") for word in words):
            self.declared.add(name)
            if equals:
                self.arguments[name] = value


def read(file_name: str, text: str) -> Parts:
    if file_name.endswith(".def"):
        return _definition(text)
    return _enroot(text) if file_name.endswith(".enroot.sh") else _dockerfile(text)


def _dockerfile(text: str) -> Parts:
    parts, stages = Parts(is_dockerfile=True), {"scratch"}

    def base(number: int, word: str) -> None:
        # A stage may be named through an argument; its name is not case-sensitive.
        if expand(word, parts.arguments).lower() not in stages and not word.isdecimal():
            parts.bases.append((number, word))

    for number, word, rest in _instructions(text):
        flags, words = _flags_and_words(rest)
        if word == "ARG":
            parts.declare(words)
        elif word == "FROM" and words:
            base(number, words[0])
            stages.update(name.lower() for name in words[2:3])
        elif word in ("COPY", "ADD"):
            source = next((flag.partition("=")[2] for flag in flags if flag.startswith("--from=")), None)
            if source is not None:
                base(number, source)
            else:
                parts.sources += [(number, item) for item in words[:-1] if "://" not in item and not item.startswith(("<<", "git@"))]
        elif word == "RUN":
            for mount in (_mount(flag) for flag in flags if flag.startswith("--mount=")):
                if "from" in mount:
                    base(number, mount["from"])
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
    name = found[1] or found[3] or found[4]
    return known[name] if name in known else found[2] if found[2] is not None else unknown(name)


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, instruction, the rest of it, over as many lines as it takes)."""
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        while line.rstrip().endswith("\\"):
            following = next((more for _, more in lines if not more.lstrip().startswith("#")), "")
            line = line.rstrip()[:-1] + " " + following
        word, rest = [*line.strip().split(None, 1), ""][:2]
        if word.upper() in ("RUN", "COPY", "ADD"):
            for end in HEREDOC.findall(rest):
                while next((more for _, more in lines), end).strip() != end:
                    pass
        yield number, word.upper(), rest.strip()


def _flags_and_words(rest: str) -> tuple[list[str], list[str]]:
    flags = []
    while rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        flags.append(flag)
        rest = rest.lstrip()
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
