"""Explain errors of YAML in plain words."""

from __future__ import annotations

import re

import yaml


def explain(error: yaml.MarkedYAMLError, lines: list[str]) -> tuple[str, str]:
    """Return what is wrong, and the fix."""
    problem, context, mark = error.problem or "", error.context or "", error.problem_mark
    begins = f"line {error.context_mark.line + 1}" if error.context_mark else "a line above"
    line = lines[mark.line] if mark and mark.line < len(lines) else ""
    if "\t" in line[: _indent(line)]:
        return "a line begins with a tab", "indent with spaces"
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
    if "cannot start any token" in problem and mark and mark.column < len(line):
        rest = line[mark.column :].strip()
        return f"a value cannot begin with {rest[0]} as it stands", f'quote it: "{rest}"'
    if "mapping values" in problem:
        above = [text for text in lines[: mark.line if mark else 0] if text.strip()]
        return _explain_colon(line, above[-1] if above else "")
    return problem, "check indentation, colons and quotes around that line"


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
