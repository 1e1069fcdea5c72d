"""Split words into fields, quote their parts, and compute $((...)), as bash has it."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Optional


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.Mod: lambda a, b: a - b * _quotient(a, b),
}


class Fields:
    """The words that one word of a script becomes."""

    def __init__(self, *, splits: bool) -> None:
        self.splits = splits
        self.done: list[str] = []
        self.current: Optional[str] = None

    def add(self, text: str) -> None:
        self.current = (self.current or "") + text

    def split(self, text: str) -> None:
        """Add the value of an expansion without quotes, which becomes several words."""
        if not self.splits:
            self.add(text)
            return
        for piece in re.findall(r"\s+|\S+", text):
            if not piece.isspace():
                self.add(piece)
            elif self.current is not None:
                self.done.append(self.current)
                self.current = None

    def all(self, values: list[str], quoted: bool) -> None:
        """Add the elements of an array."""
        for index, value in enumerate(values):
            if index:
                self.split(" ")
            self.add(value) if quoted else self.split(value)

    def end(self) -> list[str]:
        return [*self.done, *([] if self.current is None else [self.current])]


def compute(text: str, values: Mapping[str, str]) -> Optional[str]:
    """Return the value of an arithmetic expression; None where it is more than a few numbers."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            if not re.fullmatch(r"-?(0|[1-9][0-9]*)", values[node.id]):
                raise ValueError  # 010 is octal
            return int(values[node.id])
        raise ValueError

    if re.search(r"#|\d_", text):  # 16#ff has a base, and a comment is Python's
        return None
    try:
        return str(value(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError):
        return None


def escaped(text: str) -> str:
    return re.sub(r'(["\\$`])', r"\\\1", text)


def bare(text: str) -> str:
    """Return a part of a word, without quotes where it needs none."""
    return text if re.fullmatch(r"[\w@%+=:,./-]*", text, re.ASCII) else f'"{escaped(text)}"'


def braced(source: str, behind: str) -> str:
    """Return $NAME as ${NAME} where the text behind it would change its name."""
    is_open = re.fullmatch(r"\$\w+", source) and re.match(r"[\w[]", behind)
    return f"${{{source[1:]}}}" if is_open else source
