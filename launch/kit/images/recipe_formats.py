"""Read a recipe's base images, files and arguments from its text.

Dockerfile          FROM, COPY, ADD, ARG: https://docs.docker.com/reference/dockerfile
image.def           From:, %files, %arguments:
                    https://apptainer.org/docs/user/main/definition_files.html
image.enroot.sh     a script that runs in its base, with comments at its head: base, files, argument
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Callable, NamedTuple, Optional

from kit.registry import oci

# ${A}, ${A:-b}, ${A:+b}, ${A-b}, ${A+b}, where b may have its own variable; $A; Apptainer's {{ A }}
VARIABLE = re.compile(
    r"\$\{(\w+)(?:(:?[-+])((?:[^{}]|\{[^{}]*\})*))?\}|\$(\w+)|\{\{\s*(\w+)\s*\}\}"
)
HEREDOC = re.compile(r"(?:^|\s)\d*<<(-?)[\"']?([A-Za-z_]\w*)[\"']?(?=\s|$)")
FLAG = re.compile(r"""--(?:"[^"]*"|'[^']*'|[^\s"'])*""")
QUOTED = re.compile(r"""(["']).*?\1""")
# Arguments that a recipe need not declare: of every RUN, and of BuildKit itself.
# https://docs.docker.com/build/building/variables/#pre-defined-build-arguments
PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
OF_BUILDKIT = ("BUILDKIT_", "SOURCE_DATE_EPOCH")
DIRECTIVE = re.compile(r"#\s*(\w+)\s*=\s*(\S+)")


class Heredoc(NamedTuple):
    """A text in a Dockerfile, between <<NAME and a line NAME."""

    name: str
    is_indented: bool  # <<-NAME: tabs at the beginning of its lines do not count
    text: str


class Instruction(NamedTuple):
    line: int
    word: str  # in capitals
    rest: str  # its lines in one
    heredocs: tuple[Heredoc, ...] = ()


@dataclass
class Parts:
    """The words of a recipe as they are written, with their line numbers."""

    bases: list[tuple[int, str]] = field(default_factory=list)
    # Files and patterns, relative to the recipe's folder.
    sources: list[tuple[int, str]] = field(default_factory=list)
    local: list[tuple[int, str]] = field(default_factory=list)  # bases that are files
    arguments: dict[str, str] = field(default_factory=dict)  # the arguments with a default
    declared: set[str] = field(default_factory=set)
    is_dockerfile: bool = False
    # The arguments that a base's name may have: in a Dockerfile, those before its first FROM.
    of_bases: dict[str, str] = field(default_factory=dict)
    # Variables that may have several values: by another ARG, or by ENV.
    unsure: set[str] = field(default_factory=set)
    last: Optional[tuple[int, str]] = None  # a definition's last base, if a registry has it
    stages: dict[str, int] = field(default_factory=dict)  # the lines of their FROM

    def declare(self, words: list[str]) -> None:
        """Add arguments, each NAME or NAME=DEFAULT."""
        for name, equals, value in (word.partition("=") for word in words):
            self.declared.add(name)
            if equals:
                if self.arguments.setdefault(name, value) != value:
                    self.unsure.add(name)
                self.arguments[name] = value

    def takes(self, name: str) -> bool:
        """Return whether a build may give an argument of this name."""
        is_buildkits = self.is_dockerfile and name.startswith(OF_BUILDKIT)
        return name in self.declared or name.lower() in PROXIES or is_buildkits

    def is_stage(self, name: str, line: int) -> bool:
        """Return whether a FROM in this line means an earlier stage. Case makes no difference."""
        stage = name.lower()
        return stage == "scratch" or name.isdecimal() or self.stages.get(stage, line) < line


def read(file_name: str, text: str) -> Parts:
    """Return the parts of a recipe, whose file name tells its format."""
    if file_name.endswith(".def"):
        return _definition(text)
    return _enroot(text) if file_name.endswith(".enroot.sh") else _dockerfile(text)


def _dockerfile(text: str) -> Parts:
    parts = Parts(is_dockerfile=True)
    for number, word, rest, _ in instructions(text):
        flags, words = flags_and_words(rest)
        if word == "ARG":
            parts.declare(words)
        elif word == "ENV" and words:
            variables = words if "=" in words[0] else words[:1]
            parts.unsure.update(item.partition("=")[0] for item in variables)
        elif word == "ONBUILD" and words and words[0].upper() in ("COPY", "ADD"):
            parts.sources.append((number, "."))  # a later stage may do it
        elif word == "FROM" and words:
            if not parts.bases:
                parts.of_bases = dict(parts.arguments)
            parts.bases.append((number, words[0]))
            parts.stages.update((name.lower(), number) for name in words[2:3])
        elif word in ("COPY", "ADD"):
            _add_copy(parts, number, flags, words[:-1])
        elif word == "RUN":
            _add_mounts(parts, number, flags)
    return parts


def _add_copy(parts: Parts, number: int, flags: list[str], sources: list[str]) -> None:
    stages = [flag.partition("=")[2] for flag in flags if flag.startswith("--from=")]
    if stages:
        parts.bases.append((number, stages[0]))
        return
    for item in sources:
        if "://" not in item and not item.startswith(("<<", "git@")):
            parts.sources.append((number, item))


def _add_mounts(parts: Parts, number: int, flags: list[str]) -> None:
    for flag in flags:
        if not flag.startswith("--mount="):
            continue
        mount = dict(item.partition("=")[::2] for item in flag.partition("=")[2].split(","))
        if "from" in mount:
            parts.bases.append((number, mount["from"]))
        elif mount.get("type", "bind") == "bind":
            parts.sources.append((number, mount.get("source", mount.get("src", "."))))


def of_platform(named: Optional[str] = None) -> dict[str, str]:
    """Return the arguments that BuildKit gives to every Dockerfile.

    https://docs.docker.com/reference/dockerfile#automatic-platform-args-in-the-global-scope
    """
    own = f"linux/{oci.architecture()}"
    found: dict[str, str] = {}
    for side, value in (("BUILD", own), ("TARGET", named or own)):
        keys = (f"{side}{word}" for word in ("PLATFORM", "OS", "ARCH", "VARIANT"))
        found.update(zip(keys, [value, *value.split("/"), "", ""]))
    return found


def expand(
    word: str, known: dict[str, str], unknown: Callable[[str], str] = lambda name: ""
) -> str:
    """Return the word with the values of its variables, and of the variables in those."""
    for _ in range(8):  # deeper than anybody nests variables, and A=$A must end
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
    return {found[1] or found[4] or found[5] for found in VARIABLE.finditer(word)}


def instructions(text: str) -> Iterator[Instruction]:
    lines, escape = enumerate(text.splitlines(), 1), directives(text).get("escape", "\\")
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        while line.rstrip().endswith(escape):
            line = line.rstrip()[:-1] + next(
                (more for _, more in lines if more.strip() and not more.lstrip().startswith("#")),
                "",
            )
        word, rest = [*line.strip().split(None, 1), ""][:2]
        found = HEREDOC.findall(rest) if word.upper() in ("RUN", "COPY", "ADD") else []
        heredocs = tuple(_heredoc(bool(dash), name, lines) for dash, name in found)
        yield Instruction(number, word.upper(), rest.strip(), heredocs)


def _heredoc(is_indented: bool, name: str, lines: Iterator[tuple[int, str]]) -> Heredoc:
    inside = []
    for _, line in lines:
        if line == name or (is_indented and line.lstrip("\t") == name):
            break
        inside.append(f"{line}\n")
    return Heredoc(name, is_indented, "".join(inside))


def replace_base(text: str, number: int, word: str, exact: str) -> Optional[str]:
    """Return the text with another base in the instruction that begins in this line.

    None if no line of it has the word in one piece.
    """
    lines, escape = text.splitlines(keepends=True), directives(text).get("escape", "\\")
    # A target, or the command, may look like the base.
    base = re.compile(rf"(?:(?<=from=)|(?<![^\s\"'])){re.escape(word)}(?![\w.:/@-])")
    for place in range(number - 1, len(lines)):
        line = lines[place].strip()
        if place >= number and (not line or line.startswith("#")):
            continue
        lines[place], found = base.subn(lambda _: exact, lines[place], count=1)
        if found:
            return "".join(lines)
        if not line.endswith(escape):
            break
    return None


def directives(text: str) -> dict[str, str]:
    """Return the directives at the head of a Dockerfile: escape=`, the end of a line; syntax=..."""
    pairs = {}
    for line in text.splitlines():
        found = DIRECTIVE.fullmatch(line.strip())
        if not found:
            break
        pairs[found[1].lower()] = found[2]
    return pairs


def flags_and_rest(rest: str) -> tuple[list[str], str]:
    """Return the words with -- at the beginning, without quotes, and what follows them."""
    flags = []
    while found := FLAG.match(rest):
        flags.append(QUOTED.sub(lambda quoted: quoted[0][1:-1], found[0]))
        rest = rest[found.end() :].lstrip()
    return flags, rest


def json_words(rest: str) -> Optional[tuple[str, ...]]:
    """Return the words of a JSON list of texts; None for all else, which Docker takes as text."""
    try:
        words = json.loads(rest)
    except ValueError:
        return None
    is_list = isinstance(words, list) and all(isinstance(word, str) for word in words)
    return tuple(words) if is_list else None


def flags_and_words(rest: str) -> tuple[list[str], list[str]]:
    """Return the words with -- at the beginning, and those that follow; both without quotes."""
    flags, rest = flags_and_rest(rest)
    if words := json_words(rest):
        return flags, list(words)
    try:
        return flags, shlex.split(rest)
    except ValueError:  # kit does not need this instruction, and its engine will judge it
        return flags, rest.split()


def _definition(text: str) -> Parts:
    parts, section, bootstrap = Parts(), "", "docker"
    parts.of_bases = parts.arguments
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if words[0].startswith("%"):
            # "%files from STAGE" copies between stages
            section = words[0] if words[1:2] != ["from"] else ""
        elif words[0].lower() == "bootstrap:":
            bootstrap, parts.last = words[1] if words[1:] else "", None
        elif words[0].lower() == "from:" and bootstrap == "docker":  # others are in no registry
            parts.last = (number, " ".join(words[1:]))
            parts.bases.append(parts.last)
        elif words[0].lower() == "from:" and bootstrap == "localimage":
            parts.local.append((number, " ".join(words[1:])))
        elif section == "%files":
            parts.sources.append((number, words[0]))
        elif section == "%arguments":
            parts.declare(words)
    return parts


def _enroot(text: str) -> Parts:
    parts = Parts()
    parts.of_bases = parts.arguments
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
