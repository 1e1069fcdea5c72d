"""Read what && and || join, pipes, and loops around the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit.importing import commands, shell
from kit.importing.holes import HOLE
from kit.importing.shell import Node, Span

if TYPE_CHECKING:
    from kit.importing.statements import Reader

LOGS = "kit keeps the log of every rank: runs/NAME-TIME/log/"

AGAIN = "a loop that starts the same program again: `max_restarts` does so where it has failed"


def two(reader: Reader, node: Node, span: Span) -> None:
    """Read A && B, A || B and A | B."""
    command = node["Cmd"]
    sign, second = shell.operator(command), shell.programs(command["Y"])
    if sign == "&&" and not commands.asks(command["X"]):
        reader.statement(command["X"], span)
        reader.statement(command["Y"], span)
    elif sign == "||" and second <= commands.ENDS and _is_login(command["X"]):
        reader.statement(command["X"], span)
    elif sign == "||" and second and second <= commands.ENDS and _may_end(reader, command):
        reader.statement(command["X"], span)
        reader.draft.left_out(span, "kit ends a job whose program fails, with its exit code")
    elif sign in ("|", "|&") and reader.launches(command["X"]):
        if not second <= {"tee", "cat", "ts"}:
            reader.remarks = ("its output went through another program: kit logs all of it",)
        reader.statement(command["X"], span)
        reader.remarks = ()
        reader.draft.left_out(span, LOGS)
    else:
        reader.compound(node, span)


def _may_end(reader: Reader, command: Node) -> bool:
    """Return whether the job ends, as the script did, where the left side of || fails."""
    ends = shell.programs(command["Y"]) & {"exit", "return"}
    is_folder = shell.programs(command["X"]) == {"cd"}
    return bool(ends or is_folder or reader.launches(command["X"]))


def _is_login(statement: Node) -> bool:
    call = statement.get("Cmd") or {}
    return bool(call.get("Args") and commands.login(shell.literals(call)))


def as_if(command: Node) -> str:
    """Return A && B as a condition: A && B itself has failed where A is false."""
    left, right = (shell.text(command[side]) for side in "XY")
    return f"if {left}; then {right}\nfi" if "\n" in right else f"if {left}; then {right}; fi"


def loop(reader: Reader, command: Node, span: Span) -> None:
    """Read a loop around the program as a sweep, where its values are known."""
    around = command["Loop"]
    words = around.get("Items") or []
    items = [field for word in words for field in reader.scope.words(word)]
    name = str((around.get("Name") or {}).get("Value", ""))
    before = reader.scope.sweep
    if "break" in shell.programs(command["Do"]):
        reader.draft.decide(span, AGAIN)
    elif name and items and not any(HOLE.search(item) for item in items):
        reader.scope.sweep = {**before, name: items}
        reader.scope.leave_open(name, hint=f"{{{name}}}")
        way = "as a `sweep` each is a task of a job array, with nodes of its own"
        reader.draft.decide(span, f"these ran one after another, or side by side: {way}")
    else:
        reader.draft.decide(span, "kit does not run loops: write their values as a `sweep`")
        reader.placing.set_by[name] = span
    reader.read(command["Do"])
    reader.scope.sweep = before
