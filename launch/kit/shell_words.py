"""What only a shell understands, in values that no shell reads: it would reach the program as it stands, as a wrong argument."""

from __future__ import annotations

import os
import re

from kit.errors import Problems

NAME = "[A-Za-z_][A-Za-z0-9_]*"
SCRIPT = "put the lines into a script: `command: bash script.sh`"
_QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
_EXPANSION = re.compile(rf"\$(?:{NAME}|\{{{NAME}[^}}]*\}}|\([^)]*\)?)")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")
_OPERATOR = re.compile(r"&&|\|\||>>|[;|&<>`]")
_BUILTINS = set(". alias cd conda eval exec export for if local ml module set source spack trap ulimit umask unalias unset until while".split())
_TYPOGRAPHIC = re.compile("(?:[^=]*=)?[“”„‘«»]")
SHELLS = {"bash", "sh", "dash", "ksh", "zsh"}


def refuse_first(words: list[str], where: str, problems: Problems) -> None:
    """A variable or a builtin in front of a command is no program."""
    name, equals, _ = words[0].partition("=")
    if _TYPOGRAPHIC.match(words[0]):
        _refuse_typographic(words[0], where, problems)
    elif equals and re.fullmatch(NAME, name):
        problems.add(where, f"the command starts with the variable {name}", f"write it under `env: {{{name}: ...}}`")
    elif words[0] == "export" and len(words) > 1:
        name, _, value = words[1].partition("=")
        problems.add(where, "the command starts with export, which only a shell knows", f"write it under `env: {{{name}: {value or '...'}}}`")
    elif words[0] in _BUILTINS:
        problems.add(where, f"the command starts with {words[0]}, which only a shell knows", SCRIPT)


def refuse_unquoted(text: str, where: str, problems: Problems) -> None:
    """`text`: a command with its quotes. A shell would read what stands outside of them, and variables in double ones."""
    lines = [line for line in _QUOTED.sub(_read_by_shells, text).splitlines() if line.strip()]
    if len(lines) > 1:
        fix = f"keep one command, with \\ at the end of a line that goes on; or {SCRIPT}"
        problems.add(where, f"the command has {len(lines)} lines, but no shell reads them: all would be arguments of the first", fix)
    if comments := [match.group() for line in lines for match in _COMMENT.finditer(line)]:
        problems.add(where, f"the command has the comment '{comments[0]}', which would become arguments", "remove it; quote a word that begins with #")
    bare = " ".join(_COMMENT.sub("", line) for line in lines)
    if found := expansions(bare):
        problems.add(where, f"the command contains {found}, but no shell puts a value there", f"{_value_of(found)}; or {SCRIPT}")
    bare = _EXPANSION.sub("", bare)
    if operators := [f"'{word}'" for word in dict.fromkeys(_OPERATOR.findall(bare))]:
        problems.add(where, f"the command contains {' and '.join(operators)}, but no shell reads it", f"quote it in an argument; else {SCRIPT}")
    for word in bare.split():
        if _TYPOGRAPHIC.match(word):
            _refuse_typographic(word, where, problems)
        elif "*" in word:
            problems.add(where, f"no shell puts names of files in the place of '{word}'", f"quote it where the program does that; or {SCRIPT}")
        elif word.startswith("~/") or word == "~":
            problems.add(where, f"no shell reads '{word}' as the home folder", f"write it out: {os.path.expanduser(word)}")


def _refuse_typographic(word: str, where: str, problems: Problems) -> None:
    problems.add(where, f"'{word}' has a typographic quote, which quotes nothing", "type plain ones: \" or '")


def warn_of_literals(words: list[str], what: str, where: str, problems: Problems) -> None:
    """Words that stay as they are, and look as if somebody counted on a shell."""
    for word in words:
        if found := expansions(word):
            problems.warn(where, f"{what} gets {found} as it stands: no shell puts a value there", _value_of(found))
        elif word.startswith("~/"):
            problems.warn(where, f"{what} gets '{word}' as it stands: no shell reads it as the home folder", f"write it out: {os.path.expanduser(word)}")


def _read_by_shells(quoted: re.Match[str]) -> str:
    """What a shell would still read in a quoted part of a line: variables in double quotes."""
    text = quoted.group()
    return " ".join(_EXPANSION.findall(re.sub(r"\\.", "", text))) if text.startswith('"') else "''"


def expansions(text: str) -> str:
    """Return what a shell would put values for, as words for people; empty where there is none."""
    return " and ".join(f"'{found}'" for found in dict.fromkeys(_EXPANSION.findall(text)))


def _value_of(found: str) -> str:
    return "write the value" if "(" in found else "write the value, or let the program read it from its environment: os.environ"
