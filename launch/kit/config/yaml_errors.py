"""Explain an error of the YAML parser in the words of somebody who writes a job file."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import yaml

from kit.base import redact

_FLOW = (yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken)
_END_OF_FLOW = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken)


def explain(error: yaml.MarkedYAMLError, text: str, loader: Any) -> tuple[str, str]:
    """Return what is wrong with a text that `loader` cannot read, and the fix."""
    lines = text.splitlines()
    problem, context, mark = error.problem or "", error.context or "", error.problem_mark
    begins = f"line {error.context_mark.line + 1}" if error.context_mark else "a line above"
    line = lines[mark.line] if mark and mark.line < len(lines) else ""
    if "\t" in line[: _indent(line)]:
        return "a line begins with a tab", "indent with spaces"
    if "quoted scalar" in context and re.search("escape|hexa?decimal", problem):
        return _explain_backslash(mark, error.context_mark, lines)
    if "quoted scalar" in context:
        return (
            f"the quote that begins in {begins} is never closed",
            "close it; a quote inside quotes is written twice, or in quotes of the other kind",
        )
    if "flow" in context:
        bracket = "[" if "sequence" in context else "{"
        return (
            f"the {bracket} in {begins} is never closed, or a comma is missing in it",
            f"close it with {']' if bracket == '[' else '}'}, on the same line",
        )
    if "another document" in problem:
        return "a second document begins here", "keep one job, or one profile, in each file"
    is_alias = "undefined alias" in problem or re.search("scanning an (alias|anchor)", context)
    if is_alias or "cannot start any token" in problem:
        begin = (is_alias and error.context_mark) or mark
        value = _value_at(begin, lines, loader)
        if value:
            return (
                f"a value cannot begin with {value[0]} as it stands",
                f"quote it: {_quote(value)}",
            )
    if "mapping values" in problem:
        above = [text for text in lines[: mark.line if mark else 0] if text.strip()]
        return _explain_colon(line, above[-1] if above else "")
    return problem, "check indentation, colons and quotes around that line"


def _explain_backslash(mark: Any, begin: Any, lines: list[str]) -> tuple[str, str]:
    """Return what is wrong with a backslash in double quotes, and the value in single ones.

    `mark` is the place of the error, and `begin` that of the opening quote.
    """
    before = lines[mark.line][: mark.column + 1]  # one parser is at the backslash, others behind it
    word = lines[mark.line][before.rfind("\\") :][:2]
    line = lines[begin.line]
    found = re.compile(r'"((?:\\.|[^"\\])*)"').match(line, begin.column)
    fix = "write the value in single quotes, in which a backslash is like any other character"
    if found and redact.hide_value(line) == line:
        plain = re.sub(r'\\([\\"])', r"\1", found[1])
        fix += f": {_single(plain)}"
    return f"YAML cannot read {word} in double quotes, where a backslash begins an escape", fix


def _is_in_brackets(text: str, loader: Any) -> bool:
    """Return whether the end of a text is inside of [] or {}."""
    depth = 0
    with contextlib.suppress(yaml.YAMLError):
        for token in yaml.scan(text, Loader=loader):
            depth += isinstance(token, _FLOW)
            depth -= isinstance(token, _END_OF_FLOW)
    return depth > 0


def _value_at(mark: Any, lines: list[str], loader: Any) -> str:
    """Return the value that begins at a place, without its comment and the brackets around it.

    Return "" where none begins there.
    """
    if not mark or mark.line >= len(lines):
        return ""
    line = lines[mark.line]
    before = "\n".join([*lines[: mark.line], line[: mark.column]])
    is_in_brackets = _is_in_brackets(before, loader)
    rest = re.split(r"\s#|:(?=\s|$)", line[mark.column :])[0]
    depth = 0
    for index, character in enumerate(rest if is_in_brackets else ""):
        if depth == 0 and character in ",]}":
            rest = rest[:index]
            break
        depth += character in "[{"
        depth -= character in "]}"
    return "" if rest[:1].isspace() else rest.strip()


def _quote(value: str) -> str:
    return _single(value) if '"' in value or "\\" in value else f'"{value}"'


def _single(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _explain_colon(line: str, above: str) -> tuple[str, str]:
    """Return what is wrong with a line that has a colon too many, and the fix."""
    if re.match(r"\s*[\w-]+:\S", above):
        fix = f"write `{above.strip().replace(':', ': ', 1)}`"
        return "the line above has no blank after its colon", fix
    if above and _indent(line) > _indent(above):
        return (
            "the line is indented deeper than the one above, which has a value already",
            "indent both alike, or leave the value above out",
        )
    return 'a value contains ": ", a colon and a space', "quote the whole value"


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
