"""What a reader has to take in at once: a module, a function. tests/unit/test_render.py looks at the scripts of a job."""

from __future__ import annotations

import ast

from samples import ROOT


def test_a_module_has_at_most_300_lines_and_a_function_50() -> None:
    long = []
    for path in sorted((ROOT / "launch/kit").rglob("*.py")):
        tree = ast.parse(path.read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        lengths = {f"{path}:{node.lineno}": (node.end_lineno or 0) - node.lineno + 1 for node in functions}
        long += [(where, length) for where, length in lengths.items() if length > 50]
        long += [(path, lines) for lines in [len(path.read_text().splitlines())] if lines > 300]
    assert not long
