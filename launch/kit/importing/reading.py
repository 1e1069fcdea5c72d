"""What has been read of a script so far, and what every part of the reading asks of it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

from kit.base import bash_tree
from kit.base.bash_tree import Node, Span
from kit.importing import commands, header
from kit.importing.assignments import Assignments
from kit.importing.draft import AtLines, Draft
from kit.importing.holes import HOLE
from kit.importing.items import ACTION, DEFINE, EXPORT, PREPARE, Candidate, Item, State
from kit.importing.placing import Placing
from kit.importing.scope import COMPUTED, Scope

LOGGING = {"tee", "cat", "ts"}
LOGS = "kit keeps the log of every rank: runs/NAME-TIME/log/"
BACKGROUND = "it ran in the background: kit starts one program, and waits for it"
RETRIES = "a loop that starts the same program again: `max_restarts` does so where it has failed"

_OUTSIDE = re.compile(r"-z\s*\W*SLURM_JOB_?ID\b")
LEAVING = {"exit", "return"}
_LOOPS = ("WhileClause", "ForClause")
DONE = (
    "the job may end well here, without the program: begin a `script` with these lines, before it"
)
WAITS = (
    "it waits for what ran in the background: start that, and wait, in a `script`: "
    "docs/launchers.md#a-server-of-a-model"
)


class Reading(AtLines):
    def __init__(self, draft: Draft, scope: Scope) -> None:
        self.draft, self.scope = draft, scope
        self.placing = Placing(draft, scope.shell)
        self.variables = Assignments(draft, scope, self.placing)
        self.candidates: list[Candidate] = []
        self.unknown: list[Candidate] = []  # commands of names that say nothing
        self.functions: dict[str, Node] = {}
        self.inside: list[str] = []  # the functions that are read now
        self.given: set[str] = set()  # variables in the words of their calls
        self.remarks: tuple[str, ...] = ()
        self.is_in_task = False
        self.is_over = False
        self.has_background = False
        self.span: Span = (1, 1)  # of the statement that is read now
        self.behind: list[tuple[list[Node], int]] = []  # lists, and where in them it goes on

    def item(self, kind: str, node: Node) -> Item:
        uses, sets = frozenset(bash_tree.names_used(node)), bash_tree.names_set(node)
        self.placing.set_by = {**dict.fromkeys(sets, self.span), **self.placing.set_by}
        uses |= bash_tree.programs_inside(node) & self.functions.keys()
        source = bash_tree.text(node).rstrip("; ")
        defaulted = bash_tree.names_defaulted(node)
        self.placing.with_default.update(dict.fromkeys(defaulted, self.span))
        self.placing.without_default |= uses - defaulted
        return Item(kind, self.span, source, uses, sets, "", self._position())

    def _position(self) -> int:
        return len(self.candidates) + len(self.unknown)

    def words(self, call: Node) -> list[str]:
        return [field for word in call["Args"] for field in self.scope.words(word)]

    def leaves_open(self, node: Node, words: list[str]) -> bool:
        """Return whether the job gives variables of the script their defaults: ${NAME:=default}."""
        names = bash_tree.names_set(node) & self.scope.values.keys()
        return bool(names & self.scope.names(words))

    def weight_around(self, words: list[str]) -> int:
        """Return how likely a function of the script starts ranks by a command that it is given."""
        function, given = self.functions[words[0]], words[1:]
        if "eval" in bash_tree.programs(function):
            given = " ".join(given).split()
        elif not re.search(r"\$\{?[@*]", bash_tree.text(function)):
            return 0
        return commands.weight(given) if given else 0

    def candidate(self, weight: int, words: list[str], node: Node) -> None:
        if ("ray", "start") in zip(words, words[1:]):
            self.decide("`launcher: ray` starts Ray itself, on every node")
            return
        remarks = self.remarks
        if node.get("Background"):
            remarks += (BACKGROUND,)
        if any(item.get("Hdoc") for item in node.get("Redirs") or []) and words[-2:-1] != ["-c"]:
            remarks += (
                "it read lines of the script: write them into a file, and have it read that",
            )
        texts = [bash_tree.text(item) for item in node.get("Redirs") or [] if not item.get("Hdoc")]
        if any(re.match(r"[0-9]*<(?!\s*/dev/null)", text) for text in texts):
            remarks += ("it read its input from a file: kit gives a program none",)
        elif texts and weight:
            self.left_out(LOGS)
        uses, source = frozenset(bash_tree.names_used(node) | self.given), bash_tree.text(node)
        item = Item(ACTION, self.span, source, uses, frozenset(), position=self._position())
        found = Candidate(weight, words, item, remarks, self.scope.sweep, self.state())
        (self.candidates if weight else self.unknown).append(found)

    def candidates_in(
        self, node: Node, item: Item, reason: str, around: Sequence[str] = ()
    ) -> None:
        """Note the commands of a statement that is kept whole, or, for a reason, not carried.

        This includes the commands of the functions that it calls. `around` has the NAME=VALUE words
        in front of those calls.
        """
        remarks = (reason,) if reason else ()
        for call in bash_tree.calls(node):
            own, words = [*around, *self.scope.settings(call)], self.words(call)
            words = " ".join(words[1:]).split() if words[:1] == ["eval"] else words
            name = words[0] if words else ""
            if name in self.functions and name not in self.inside:
                with self.calling(words):
                    self.candidates_in(self.functions[name], item, reason, own)
            elif words and (weight := commands.weight(words)):
                words, sweep, state = [*own, *words], self.scope.sweep, self.state()
                self.candidates.append(Candidate(weight, words, item, remarks, sweep, state))

    @contextlib.contextmanager
    def calling(self, words: list[str]) -> Iterator[None]:
        """Read the function that these words call: it finds its arguments in $1, $@ and so on."""
        self.inside.append(words[0])
        with self.scope.called(words):
            yield
        self.inside.pop()

    def state(self) -> State:
        """Return what a command finds here, but for the arguments of a function."""
        draft, scope = self.draft, self.scope
        values = {name: value for name, value in scope.values.items() if name.isidentifier()}
        folders = (draft.keys.get("workdir"), scope.facts["PWD"], draft.is_folder_known)
        return State(dict(draft.env), values, dict(scope.of_script), folders)

    def restore(self, state: State) -> None:
        """Go on with what a command of before found."""
        draft, scope = self.draft, self.scope
        arguments = {name: text for name, text in scope.values.items() if not name.isidentifier()}
        draft.env, scope.values = dict(state.env), {**arguments, **state.values}
        scope.of_script = dict(state.of_script)
        workdir, scope.facts["PWD"], draft.is_folder_known = state.folders
        draft.keys.pop("workdir", None)
        if workdir is not None:
            draft.keys["workdir"] = workdir

    def launches(self, node: Node) -> bool:
        """Return whether a command that may start ranks is at or below a statement."""
        return self.weight(node, set()) > 0

    def prepares(self, node: Node) -> bool:
        """Return whether a statement may start ranks, but one behind it does, too: the program."""
        return self.weight(node, set()) == 1 and any(map(self.launches, self._rest()))

    def goes_on(self) -> bool:
        """Return whether a statement behind does more than print, or end the script."""
        return any(bash_tree.programs(each) - commands.PRINTING for each in self._rest())

    def _rest(self) -> Iterator[Node]:
        """Yield the statements behind the one that is read now, and behind those around it."""
        yield from (each for statements, number in self.behind for each in statements[number:])

    def weight(self, node: Node, seen: set[str]) -> int:
        """Return how likely one of the commands of a statement is the one that starts the ranks.

        `seen` has the functions that were looked into: they may call each other.
        """
        found = 0
        with self.scope.lookahead():
            for words in filter(None, map(self.words, bash_tree.calls(node))):
                found = max(found, commands.weight(words))
                if called := self.functions.get(words[0]):
                    found = max(found, self.weight_around(words))
                    if words[0] not in seen:
                        seen.add(words[0])
                        found = max(found, self.weight(called, seen))
        return found

    def word_of_export(self, word: Node, node: Node, *, exported: bool) -> None:
        """Read a word of export that shfmt takes for no assignment; options of declare are others.

        `export 'A=b'` sets A, and `export $(cat .env)` what only the job knows.
        """
        if COMPUTED.search(bash_tree.text(word)):
            self.placing.add(self.item(PREPARE, node))
        elif found := commands.ASSIGNMENT.match(self.scope.text(word.get("Value") or {})):
            name, value = found[1], found[2]
            made = self.item(EXPORT if exported else DEFINE, node)
            self.scope.values[name] = value
            made = made._replace(sets=made.sets | {name})
            self.variables.keep(made, name, value, exported=exported)

    def may_launch(self, node: Node, readers: set[str]) -> bool:
        """Return whether a command may start ranks whose output others read; $LAUNCH | tee log."""
        call = node["Cmd"] if bash_tree.kind(node) == "CallExpr" else {}
        with self.scope.lookahead():
            words = self.words(call) if call.get("Args") and readers <= LOGGING else []
        return self.launches(node) or bool(words and HOLE.fullmatch(words[0]))

    def of_script(self, node: Node, item: Item) -> str:
        """Return why only a `script` can do what lines do, "" where others can, too."""
        calls = list(map(bash_tree.literals, bash_tree.calls(node)))
        ends_well = ["exit", "0"] in calls or ["exit"] in calls
        is_help = "getopts" in bash_tree.programs(node)
        if ends_well and not (is_help or self.candidates) and "$?" not in item.source:
            return DONE
        return WAITS if self.waits_for_other(node) else ""

    def waits_for_other(self, node: Node) -> bool:
        """Return whether a loop waits where something runs beside the script."""
        loops = [each for each in bash_tree.descend(node) if each.get("Type") in _LOOPS]
        return self.has_background and any("sleep" in bash_tree.programs(each) for each in loops)

    def composes(self, words: list[str]) -> bool:
        """Return whether a text of which only the job knows all is a command that starts ranks."""
        hole = self.scope.only_hole("".join(words[1:]))
        makers = [item for item in self.placing.items if hole and item.sets & hole.names]
        texts = [re.split(r"=[\"']?", item.source, maxsplit=1)[-1] for item in makers]
        return any(commands.weight(text.split() or [""]) for text in texts)

    def may_end(self, command: Node) -> bool:
        """Return whether the job ends, as the script did, where the left side of || fails."""
        ends = bash_tree.programs(command["Y"]) & LEAVING
        is_folder = bash_tree.programs(command["X"]) == {"cd"}
        return bool(ends or is_folder or self.launches(command["X"]))

    def ask_folder(self, node: Node) -> None:
        """Ask about lines that may leave the script in another folder."""
        if commands.changes_folder(node):
            way = "see in which folder the program starts: `workdir: DIR`"
            self.decide(f"this may change the folder: {way}")
            self.draft.is_folder_known = False

    def submits(self, node: Node, item: Item) -> bool:
        """Note a condition under which a job is submitted; return whether it is one."""
        is_found = "sbatch" in bash_tree.programs_inside(node)
        if is_found and _OUTSIDE.search(item.source):
            self.left_out("it submits this script, where no job runs it")
        elif is_found or re.search(r"\bscontrol\s+requeue\b", item.source):
            self.decide(header.RESUBMITS)
        else:
            return False
        return True


def as_if(command: Node) -> str:
    """Return A && B as a condition: A && B itself has failed where A is false."""
    left, right = (bash_tree.text(command[side]) for side in "XY")
    return f"if {left}; then {right}\nfi" if "\n" in right else f"if {left}; then {right}; fi"
