"""Only cli/ and base/console.py print: what is below them returns values or calls back, and so is the Python API."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from samples import ROOT

PACKAGE = ROOT / "launch/kit"
FREE = ("cli/", "base/console.py")
# They answer on the login node, by lines on their standard output.
STILL = frozenset(["remote/landing.py", "remote/service.py"])


def prints(tree: ast.AST) -> list[int]:
    """Return the lines that print, or write to the process's own streams, or end it."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (node.value.id, node.attr) == ("sys", "exit"):
            found.append(node.lineno)
        if isinstance(node, ast.Call):
            function = node.func
            is_print = isinstance(function, ast.Name) and function.id == "print"
            text = ast.unparse(function)
            is_write = text.startswith(("sys.stdout.", "sys.stderr.")) and text.endswith((".write", ".writelines"))
            if is_print or is_write:
                found.append(node.lineno)
    return found


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if not str(path.relative_to(PACKAGE)).startswith(FREE)]


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(PACKAGE)) for path in FILES])
def test_only_the_command_line_prints(path: Path) -> None:
    name = str(path.relative_to(PACKAGE))
    found = prints(ast.parse(path.read_text()))
    if name in STILL:
        assert found, f"{name} no longer prints: take it from the list"
    else:
        assert not found, f"launch/kit/{name}:{found[0]} prints: return a value, or take a callback"


def test_the_list_names_files_that_exist() -> None:
    assert {str(path.relative_to(PACKAGE)) for path in FILES} >= STILL


@pytest.mark.parametrize("line", ["print(1)", "import sys\nsys.stderr.write('x')", "import sys\nsys.stdout.buffer.write(b'x')", "import sys\nsys.exit(1)"])
def test_the_rule_notices(line: str) -> None:
    assert prints(ast.parse(line))
