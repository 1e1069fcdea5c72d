"""Find what only a shell understands in values that no shell reads, and that reach the program."""

from __future__ import annotations

import os
import re

from kit.base.errors import Problems

NAME = "[A-Za-z_][A-Za-z0-9_]*"
SCRIPT = "write lines of bash, under `script: |` instead of `command`"
SETUP = "write what comes before the program under `setup: |`, modules under `host_setup: |`"
_QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
_EXPANSION = re.compile(rf"\$(?:{NAME}|\{{{NAME}[^}}]*\}}|\([^)]*\)?)")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")
_OPERATOR = re.compile(r"&&|\|\||>>|[;|&<>`]")
_BUILTINS = set(
    ". alias cd conda eval exec export for if local ml module set source spack trap ulimit umask "
    "unalias unset until while".split()
)
_TYPOGRAPHIC = re.compile("(?:[^=]*=)?[“”„‘«»]")
SHELLS = {"bash", "sh", "dash", "ksh", "zsh"}


def refuse_first(words: list[str], where: str, problems: Problems) -> None:
    """Note a problem if a command begins with a variable or a builtin of the shell."""
    name, equals, _ = words[0].partition("=")
    if _TYPOGRAPHIC.match(words[0]):
        _refuse_typographic(words[0], where, problems)
    elif equals and re.fullmatch(NAME, name):
        problem = f"the command starts with the variable {name}"
        problems.add(where, problem, f"write it under `env: {{{name}: ...}}`")
    elif words[0] == "export" and len(words) > 1:
        name, _, value = words[1].partition("=")
        problem = "the command starts with export, which only a shell knows"
        problems.add(where, problem, f"write it under `env: {{{name}: {value or '...'}}}`")
    elif words[0] in _BUILTINS and words[:2] != ["conda", "run"]:
        problems.add(where, f"the command starts with {words[0]}, which only a shell knows", SETUP)


def refuse_unquoted(text: str, where: str, problems: Problems, instead: str = SCRIPT) -> None:
    """Note problems in a command with its quotes: a shell would read what is outside of them.

    In double quotes it would also expand variables. instead: what has lines of bash.
    """
    lines = [line for line in _QUOTED.sub(_keep_expansions, text).splitlines() if line.strip()]
    if len(lines) > 1:
        problem = (
            f"the command has {len(lines)} lines, but no shell reads them: "
            "all would be arguments of the first"
        )
        fix = f"keep one command, with \\ at the end of a line that goes on; or {instead}"
        problems.add(where, problem, fix)
    if comments := [match.group() for line in lines for match in _COMMENT.finditer(line)]:
        problem = f"the command has the comment '{comments[0]}', which would become arguments"
        problems.add(where, problem, "remove it; quote a word that begins with #")
    bare = " ".join(_COMMENT.sub("", line) for line in lines)
    if found := expansions(bare):
        problem = f"the command contains {found}, but no shell puts a value there"
        problems.add(where, problem, f"{_instead_of(found)}; or {instead}")
    bare = _EXPANSION.sub("", bare)
    if operators := [f"'{word}'" for word in dict.fromkeys(_OPERATOR.findall(bare))]:
        problem = f"the command contains {' and '.join(operators)}, but no shell reads it"
        problems.add(where, problem, f"quote it in an argument; else {instead}")
    for word in bare.split():
        if _TYPOGRAPHIC.match(word):
            _refuse_typographic(word, where, problems)
        elif "*" in word:
            problem = f"no shell expands '{word}'"
            problems.add(where, problem, f"quote it where the program does that; or {instead}")
        elif word.startswith("~/") or word == "~":
            fix = f"write it out: {os.path.expanduser(word)}"
            problems.add(where, f"no shell reads '{word}' as the home folder", fix)


def _refuse_typographic(word: str, where: str, problems: Problems) -> None:
    problem = f"'{word}' has a typographic quote, which quotes nothing"
    problems.add(where, problem, "type plain ones: \" or '")


def warn_of_literals(words: list[str], what: str, where: str, problems: Problems) -> None:
    """Warn of words that look as if a shell should expand them, but stay as they are."""
    for word in words:
        if found := expansions(word):
            problem = f"{what} gets {found} as it stands: no shell puts a value there"
            problems.warn(where, problem, f"{_instead_of(found)}; or {SCRIPT}")
        elif word.startswith("~/"):
            problem = f"{what} gets '{word}' as it stands: no shell reads it as the home folder"
            problems.warn(where, problem, f"write it out: {os.path.expanduser(word)}")


def _keep_expansions(quoted: re.Match[str]) -> str:
    """Return what a shell still expands in a quoted part of a line: variables in double quotes."""
    text = quoted.group()
    return " ".join(_EXPANSION.findall(re.sub(r"\\.", "", text))) if text.startswith('"') else "''"


def expansions(text: str) -> str:
    """Return what a shell would replace by values, in words for people; "" if there is nothing."""
    return " and ".join(f"'{found}'" for found in dict.fromkeys(_EXPANSION.findall(text)))


def _instead_of(found: str) -> str:
    if "(" in found:
        return "write the value"
    return "write the value, or let the program read it from its environment: os.environ"
