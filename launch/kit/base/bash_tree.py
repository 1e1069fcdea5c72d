"""Read bash into a syntax tree, by shfmt: https://github.com/mvdan/sh."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Optional

from kit.base import assets
from kit.base.errors import KitError, UsageError

Node = dict[str, Any]  # of the JSON that `shfmt --to-json` writes, and its script as "Source"
Span = tuple[int, int]  # the first and the last line

_WHERE = re.compile(r"(?m)^(?:.*?:)?(\d+):\d+: (.*)$")
_ARITHMETIC = ("ArithmExp", "ArithmCmd", "LetClause", "CStyleLoop")
_CHANGED = re.compile(  # in arithmetic: shfmt names its operators differently in each version
    r"([A-Za-z_]\w*)\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)
_VALUE = re.compile(r"\$\w+|\$\{\w+(:?[-=?].*)?\}", re.DOTALL)  # the variable's own, if it has one
_TO_FILL = re.compile(r"<[A-Za-z][\w -]*>")  # of a template
_NO_NODES = ("Pos", "End", "Comments", "Source", "Lines")  # facts of a node; all else is below it
# A redirection into a file, not into a device or another stream.
_WRITES = re.compile(r"[0-9&]*>(?!.*/dev/)(?!&\s*[0-9-])")
# Behind its last backslash, the line goes on for shfmt.
_COMMENT = re.compile(r"(?m)(^|\s)#.*\\$")


def parse(text: str, where: str, within: Optional[Span] = None) -> list[Node]:
    """Return the statements of a script, or of a text within some of its lines, as of `bash -c`.

    Raise UsageError where it is no bash.
    """
    tool = assets.program("shfmt")
    if not tool:
        fix = "install it beside kit: pip install shfmt-py"
        raise KitError("kit import reads scripts by shfmt, which is not installed here", fix)
    command = [tool, "-ln", "bash", "--to-json"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=60)
    if done.returncode and (separated := _with_commands_apart(text)) != text:
        again = subprocess.run(command, input=separated.encode(), capture_output=True, timeout=60)
        text, done = (text, done) if again.returncode else (separated, again)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace")
        found = _WHERE.search(said)
        if not found:
            problem = f"shfmt cannot read it: {said.strip()[:200]}"
            raise KitError(problem, "kit import needs shfmt 3.6 or newer", where=where)
        place = f"{where}:{found[1]}"
        if subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True).returncode:
            to_fill = _TO_FILL.search(text.split("\n")[int(found[1]) - 1])
            fix = "correct it: bash -n shows what bash itself says of it"
            fix = f"write a value in place of {to_fill.group()}" if to_fill else fix
            raise UsageError(f"is not valid bash: {found[2]}", fix, where=place)
        fix = "write it in another way: `( (A) || B )` with a blank, `'[0]*3'` in quotes"
        problem = f"shfmt, by which kit import reads bash, cannot read this line: {found[2]}"
        raise UsageError(problem, fix, where=place)
    source = {"Source": text.encode(), **({"Lines": within} if within else {})}
    file = json.loads(
        done.stdout, object_hook=lambda node: node | source if "Pos" in node else node
    )
    return file.get("Stmts") or []


def _with_commands_apart(text: str) -> str:
    """Return a text with a blank behind the $( of each `$(((A)) && B)`, which shfmt cannot read.

    It begins like the arithmetic of $((...)), which ends with )), and is a command to bash.
    """
    found = text
    for begin in reversed([match.start() for match in re.finditer(r"\$\(\(", text)]):
        depth, end = 1, begin + len("$((")
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        if not depth and text[end : end + 1] != ")":
            found = f"{found[: begin + len('$(')]} {found[begin + len('$(') :]}"
    return found


def text(node: Node) -> str:
    """Return the source of a node, with the here-documents that begin in it.

    shfmt counts a backslash that ends the line behind `$NAME` among the name's characters.
    """
    found = _between(node, node["Pos"]["Offset"], _end(node, "Offset"))
    return re.sub(r"(\\\n)+\Z", "", found)


def operator(node: Node) -> str:
    """Return the operator between two commands, by the source: shfmt has renamed operators."""
    found = re.search(
        r"&&|\|\||\|&?", _between(node, _end(node["X"], "Offset"), node["Y"]["Pos"]["Offset"])
    )
    return found.group() if found else ""


def _between(node: Node, begin: int, end: int) -> str:
    return str(node["Source"][begin:end].decode("utf-8", "replace"))


def writes(node: Node) -> bool:
    """Return whether a statement writes into a file."""
    return any(map(redirects_into_files, descend(node)))


def redirects_into_files(node: Node) -> list[Node]:
    """Return the redirections of a statement itself that write into files."""
    return [item for item in node.get("Redirs") or [] if _WRITES.match(text(item))]


def descend(node: Any, without: Collection[str] = ()) -> Iterator[Node]:
    """Yield a node and all below it. A node of a type in `without` is left out with those below."""
    waiting = [node]  # not by recursion: a chain of hundreds of commands is as deep
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += reversed(item)
        elif isinstance(item, dict) and item.get("Type") not in without:
            yield item
            below = [each for name, each in item.items() if name not in _NO_NODES]
            waiting += reversed(below)


def span(node: Node) -> Span:
    return node.get("Lines") or (node["Pos"]["Line"], _end(node, "Line"))


def _end(node: Node, what: str) -> int:
    """Return where a node ends; a here-document ends behind its statement."""
    return max(int(item["End"][what]) for item in descend(node) if "End" in item)


def kind(statement: Node) -> str:
    """Return shfmt's name for a kind of command; "" for a redirection alone."""
    return str((statement.get("Cmd") or {}).get("Type", ""))


def calls(node: Any, without: Collection[str] = ("CmdSubst", "ProcSubst")) -> list[Node]:
    """Return the simple commands at and below a node, but for those inside $(...)."""
    found = descend(node, without)
    return [item for item in found if item.get("Type") == "CallExpr" and item.get("Args")]


def programs(node: Any) -> set[str]:
    """Return the first words of `calls(node)`; "" for one with quotes or expansions."""
    return {literal(call["Args"][0]) for call in calls(node)}


def programs_inside(node: Any) -> set[str]:
    """Return the first words of all commands, including those inside $(...)."""
    return {literal(call["Args"][0]) for call in calls(node, without=())}


def names_used(node: Any) -> set[str]:
    """Return the variables that a node reads."""
    found = set()
    for item in descend(node):
        if item.get("Type") == "ParamExp" and item.get("Param"):
            found.add(str(item["Param"]["Value"]))
            found |= set(filter(str.isidentifier, [literal(item.get("Index") or {})]))
        elif item.get("Type") in _ARITHMETIC or _compares_numbers(item):
            words = (part.get("Value", "") for part in descend(item) if part.get("Type") == "Lit")
            found |= set(filter(str.isidentifier, words))
    return found | {"@" for call in calls(node) if literals(call)[0] == "getopts"}


def with_values(source: str, values: Mapping[str, str]) -> tuple[str, set[str]]:
    """Return lines with these values for their variables, and the variables that have got one."""
    places: dict[tuple[int, int], str] = {}
    for item in descend(parse(source, "")):
        if item.get("Type") == "ParamExp" and _VALUE.fullmatch(text(item)):
            begin = int(item["Pos"]["Offset"])
            places[begin, begin + len(text(item).encode())] = str(item["Param"]["Value"])
        elif item.get("Type") in _ARITHMETIC or _compares_numbers(item):
            for part in descend(item, without=("ParamExp",)):
                if part.get("Type") == "Lit":
                    places[part["Pos"]["Offset"], part["End"]["Offset"]] = part["Value"]
    text_of, found, used, done = source.encode(), b"", set(), 0
    for (begin, end), name in sorted(places.items()):
        if name in values and begin >= done:  # and not within the default of another one
            found += text_of[done:begin] + values[name].encode()
            done = end
            used.add(name)
    return (found + text_of[done:]).decode("utf-8", "replace"), used


def _compares_numbers(node: Node) -> bool:
    """Return whether a node is a [[ ]] in which names may be variables: [[ A -gt 2 ]]."""
    is_test = node.get("Type") == "TestClause"
    return is_test and bool(re.search(r"\s-(eq|ne|[lg][te]|v)\s", text(node)))


def names_defaulted(node: Node) -> set[str]:
    """Return the variables that a node reads by ${NAME:-default} alone."""
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for item in descend(node):
        if item.get("Type") == "ParamExp" and item.get("Param"):
            has_default = bool(re.match(r"\$\{\w+:?[-=]", text(item)))
            found[has_default].add(str(item["Param"]["Value"]))
    return found[True] - found[False]


def names_set(node: Any) -> frozenset[str]:
    """Return the variables that a node assigns to."""
    commands = (item for item in descend(node) if not (item.get("Assigns") and item.get("Args")))
    assigned = (each for item in commands for each in assignments(item))
    found = {str(each["Name"]["Value"]) for each in assigned if each.get("Name")}
    for item in descend(node):
        if item.get("Type") in _ARITHMETIC:
            found.update(name for pair in _CHANGED.findall(text(item)) for name in pair)
        elif item.get("Type") == "ParamExp":
            found.update(re.findall(r"\A\$\{(\w+):?=", text(item)))
    loops = (item["Loop"] for item in descend(node) if item.get("Type") == "ForClause")
    found |= {str(loop["Name"]["Value"]) for loop in loops if loop.get("Name")}
    for call in calls(node):
        words = literals(call)
        if words[0] in ("read", "mapfile", "readarray", "getopts"):
            found |= set(filter(str.isidentifier, words[1:]))
        elif words[:2] == ["printf", "-v"]:
            found |= set(words[2:3])
    return frozenset(found - {""})


def names_unset(node: Any) -> set[str]:
    """Return the variables that a node takes away."""
    words = [literals(call) for call in calls(node)]
    return {name for each in words if each[0] == "unset" for name in each[1:]}


def assignments(command: Node) -> list[Node]:
    """Return the assignments of a command, and what export and declare name."""
    declared = command.get("Args") or [] if command.get("Type") == "DeclClause" else []
    return [*(command.get("Assigns") or []), *declared]


def has_index(assignment: Node) -> bool:
    """Return whether an assignment names elements of an array: A[1]=x, A=([1]=x)."""
    elements = (assignment.get("Array") or {}).get("Elems") or []
    return any(each.get("Index") for each in (assignment, *elements))


def comment_inside(command: Node) -> int:
    """Return the line of the comment at which bash ends a command and shfmt does not, or 0."""
    words = [*(command.get("Assigns") or []), *(command.get("Args") or [])]
    for left, right in zip(words, words[1:]):
        between = _between(command, _end(left, "Offset"), right["Pos"]["Offset"])
        if found := _COMMENT.search(between):
            return _end(left, "Line") + between.count("\n", 0, found.end())
    return 0


def literal(word: Node) -> str:
    """Return a word without quotes and expansions; "" for any other."""
    parts = word.get("Parts") or []
    is_plain = len(parts) == 1 and parts[0].get("Type") == "Lit"
    return str(parts[0]["Value"]) if is_plain else ""


def literals(call: Node) -> list[str]:
    """Return the words of a simple command, as `literal` does."""
    return [literal(word) for word in call["Args"]]
