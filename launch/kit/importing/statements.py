"""Read the statements of a script in order: which of them a job needs, and for what."""

from __future__ import annotations

import os

from kit.base import bash_tree
from kit.base.bash_tree import Node
from kit.base.errors import KitError
from kit.importing import commands, header, other_commands
from kit.importing.holes import HOLE
from kit.importing.items import ACTION, DEFINE, EXPORT, PREPARE
from kit.importing.other_commands import NOT_NEEDED
from kit.importing.reading import BACKGROUND, LEAVING, LOGGING, LOGS, RETRIES, WAITS, Reading, as_if
from kit.importing.scope import COMPUTED


class Reader(Reading):
    def read(self, statements: list[Node]) -> None:
        around = self.span
        for number, node in enumerate(statements, 1):
            self.span = bash_tree.span(node)
            self.behind.append((statements, number))
            if self.is_over:
                self.left_out("never reached: the script has ended before")
            else:
                self.statement(node)
            self.has_background |= bool(node.get("Background"))
            for name in self.scope.defaults:
                self.draft.from_outside(self.span, name)
            self.scope.defaults.clear()
            self.behind.pop()
        self.span = around

    def statement(self, node: Node) -> None:
        kind, command = bash_tree.kind(node), node.get("Cmd") or {}
        if kind == "CallExpr" and not command.get("Args"):
            self._assign(node, exported=False)
        elif kind == "DeclClause":
            self._declare(node)
        elif kind == "CallExpr":
            self._call(node)
        elif kind == "TimeClause" and command.get("Stmt"):
            self.statement(command["Stmt"])
        elif kind == "BinaryCmd":
            self._two(node)
        elif kind == "Block" and self.launches(node):
            self.carried("command")
            self.read(command["Stmts"])
        elif kind == "Subshell" and self.launches(node):
            self._subshell(node)
        elif kind == "FuncDecl":
            name = str(command["Name"]["Value"])
            self.functions[name] = node
            item = self.item(DEFINE, node)
            item = item._replace(uses=item.uses - item.sets, sets=frozenset([name]))
            self.placing.functions[name] = item
        elif kind == "ForClause" and self.launches(node):
            self._loop(command)
        else:
            self.compound(node)

    # ------------------------------------------------------------ variables

    def _declare(self, node: Node) -> None:
        """Read export, declare and the like."""
        words = bash_tree.assignments(node["Cmd"])
        options = {bash_tree.literal(item.get("Value") or {}) for item in words}
        exported = node["Cmd"]["Variant"]["Value"] == "export" or "-x" in options
        if "-p" in options and not bash_tree.writes(node):
            self.left_out(NOT_NEEDED)
        elif options & {"-f", "-p"}:
            item = self.item(ACTION if "-p" in options else PREPARE, node)
            self.placing.add(item._replace(uses=item.sets, sets=frozenset()))
        elif "+x" in options or (exported and "-n" in options):
            item = self.item(ACTION, node)
            self.variables.take_away(item, item.sets)
        else:
            self._assign(node, exported=exported)

    def _assign(self, node: Node, *, exported: bool) -> None:
        if "sbatch" in bash_tree.programs_inside(node):
            self.decide(header.RESUBMITS)
        for item in bash_tree.assignments(node["Cmd"]):
            if not item.get("Name"):
                self.word_of_export(item, node, exported=exported)
                continue
            name = str(item["Name"]["Value"])
            if bash_tree.has_index(item):
                self.variables.keep_set(self.item(DEFINE, node))
                continue
            has_value = bool(item.get("Value") or item.get("Array"))
            if not has_value and not item.get("Naked"):
                self.scope.values[name] = ""
            value = self.scope.assign(item) if has_value else self.scope.values.get(name)
            made = self.item(EXPORT if exported else DEFINE, node)
            self.variables.keep(made, name, value, exported=exported)

    # ------------------------------------------------------------ commands

    def _call(self, node: Node) -> None:
        """Read a command; its own variables stand in front of each program that it may start."""
        own, found = self.scope.settings(node["Cmd"]), (self.candidates, self.unknown)
        known = [len(each) for each in found]
        self._words(node)
        for each, start in zip(found, known) if own else ():
            each[start:] = [one._replace(words=[*own, *one.words]) for one in each[start:]]

    def _words(self, node: Node) -> None:
        words = self.words(node["Cmd"])
        name = os.path.basename(words[0]) if words else ""
        documents = [item["Hdoc"] for item in node.get("Redirs") or [] if item.get("Hdoc")]
        document = self.scope.document(documents[0]) if documents else None
        if not words:
            self.decide("the command is empty, as far as kit import can see")
        elif name == "read" and document is not None and words[-1].isidentifier():
            self.scope.values[words[-1]] = document
            self.carried("its value stands where it is used")
        elif name == "eval" and not any(
            COMPUTED.search(hole.source) or HOLE.match(words[1])
            for hole in self.scope.holes_of(" ".join(words))
        ):
            self._evaluate(" ".join(words[1:]))
        elif name in commands.SETTERS and bash_tree.names_set(node):
            self.variables.keep_set(self.item(DEFINE, node))
        elif name == "eval" and self.composes(words):
            self.candidate(2, words, node)
        elif name == "eval" and self.scope.only_hole("".join(words[1:])):
            other_commands.read(self, node, words)
            self.candidate(0, words, node)
        elif name == ":" and (self.scope.defaults or self.leaves_open(node, words)):
            self.variables.keep_defaults(self.item(DEFINE, node))
        elif words[0] in self.functions:
            self._call_function(node, words)
        elif document is not None and os.path.basename(words[-1]) in commands.BASH_AND_SH:
            words = [*words, "-c", document]
            if commands.weight(words):
                self.candidate(3, words, node)
            else:
                other_commands.read(self, node, words)
        elif weight := commands.weight(words):
            self.candidate(weight, words, node)
        else:
            other_commands.read(self, node, words)

    def _evaluate(self, text: str) -> None:
        try:
            inner = bash_tree.parse(self.scope.inner(text), "eval", self.span)
        except KitError:
            self.decide("kit import cannot read what eval is given")
            return
        self.carried("command")
        self.read(inner)

    def _call_function(self, node: Node, words: list[str]) -> None:
        name = words[0]
        function = self.functions[name]
        if name in self.inside or not (self.weight_around(words) or self.launches(function)):
            item = self.item(ACTION, node)
            item = item._replace(uses=item.uses | {name}, sets=bash_tree.names_set(function))
            if bash_tree.programs(function) <= commands.PRINTING and not item.sets:
                self.left_out(NOT_NEEDED)
            elif not node.get("Background") and self.waits_for_other(function):
                self.decide(WAITS)
            else:
                self.ask_folder(function)
                self.variables.keep_set(item)
            return
        self.draft.carried(self.placing.functions[name].span, "command")
        self.carried("command")
        given, self.given = self.given, self.given | bash_tree.names_used(node)
        body = function["Cmd"]["Body"]
        with self.calling(words):
            self.read((body.get("Cmd") or {}).get("Stmts") or [body])
        self.given = given

    # ------------------------------------------------------------ lists, loops and conditions

    def _subshell(self, node: Node) -> None:
        """Read ( ... ): what follows finds the folder and the variables of before."""
        if self.prepares(node):
            reason = BACKGROUND if node.get("Background") else ""
            self.candidates_in(node, self.item(ACTION, node), reason)
            return
        before, is_over = self.state(), self.is_over
        self.carried("command")
        self.read(node["Cmd"]["Stmts"])
        self.restore(before)
        self.is_over = is_over

    def _two(self, node: Node) -> None:
        """Read A && B, A || B and A | B."""
        command = node["Cmd"]
        sign, second = bash_tree.operator(command), bash_tree.programs(command["Y"])
        if sign == "&&" and not commands.asks(command["X"]):
            self._and(node)
        elif sign == "||" and second <= commands.ENDS and commands.is_login(command["X"]):
            self.statement(command["X"])
        elif sign == "||" and second and second <= commands.ENDS and self.may_end(command):
            self.statement(command["X"])
            self.left_out("kit ends a job whose program fails, with its exit code")
        elif sign in ("|", "|&") and self.may_launch(command["X"], second):
            if not second <= LOGGING:
                self.remarks = ("its output went through another program: kit logs all of it",)
            self.statement(command["X"])
            self.remarks = ()
            self.left_out(LOGS)
        else:
            self.compound(node)

    def _and(self, node: Node) -> None:
        """Read A && B, where A is no test."""
        command = node["Cmd"]
        second = bash_tree.programs(command["Y"])
        may_end = bool(second & LEAVING)
        if may_end and self.prepares(command["X"]):  # a check
            item = self.item(ACTION, node)._replace(source=as_if(command))
            self.candidates_in(node, item, self.of_script(node, item))
        elif may_end and self.goes_on() and not self.launches(command["X"]):
            self.compound(node)
        else:
            self.behind.append(([command["Y"]], 0))
            self.statement(command["X"])
            self.behind.pop()
            if may_end and second <= LEAVING:
                self.left_out(NOT_NEEDED)
            else:
                self.statement(command["Y"])

    def _loop(self, command: Node) -> None:
        """Read a loop around the program as a sweep, where its values are known."""
        around = command["Loop"]
        words = around.get("Items") or []
        items = [field for word in words for field in self.scope.words(word)]
        name = str((around.get("Name") or {}).get("Value", ""))
        before, env = self.scope.sweep, dict(self.draft.env)
        if "break" in bash_tree.programs(command["Do"]):
            self.decide(RETRIES)
        elif name and items and not any(HOLE.search(item) for item in items):
            self.scope.sweep = {**before, name: items}
            self.scope.leave_open(name, hint=f"{{{name}}}")
            way = "as a `sweep` each is a task of a job array, with nodes of its own"
            self.decide(f"these ran one after another, or side by side: {way}")
        else:
            self.decide("kit does not run loops: write their values as a `sweep`")
            self.placing.set_by[name] = self.span
        self.read(command["Do"])
        if self.scope.sweep is not before:  # what follows finds the last value
            self.scope.fill(f"{{{name}}}", items[-1])
            for key, text in self.draft.env.items() - env.items():
                self.draft.env[key] = text.replace(f"{{{name}}}", items[-1])
        self.scope.sweep = before

    def compound(self, node: Node) -> None:
        """Place a condition, a loop, or a list of commands."""
        item = self.item(ACTION, node)
        item = item._replace(sets=item.sets | (bash_tree.names_unset(node) & self.draft.env.keys()))
        if bash_tree.kind(node) == "BinaryCmd" and bash_tree.operator(node["Cmd"]) == "&&":
            # As the last line of `host_setup`, a test that is false would end the job.
            item = item._replace(source=as_if(node["Cmd"]))
        programs = {commands.program(bash_tree.literals(call)) for call in bash_tree.calls(node)}
        if self.launches(node):
            reason = self.of_script(node, item) if self.prepares(node) else ""
            self.decide(reason or "the program is started under a condition: see which is meant")
            self.variables.leave_open(item)
            self.candidates_in(node, item, reason)
            return
        self.variables.leave_open(item)
        prepares = programs & commands.PREPARING or "DeclClause" in {
            part.get("Type") for part in bash_tree.descend(node)
        }
        self.ask_folder(node)
        harmless = commands.PRINTING | commands.TESTS | commands.PREPARING | commands.SETTINGS
        if self.submits(node, item):
            return
        if programs & {"ssh", "pdsh", "trap"} or node.get("Background"):
            self.decide("kit starts the program on every node itself, and once")
        elif reason := self.of_script(node, item):
            self.decide(reason)
        elif programs - harmless or bash_tree.writes(node):
            self.placing.add(item)
        elif prepares:
            self.placing.add(item._replace(kind=PREPARE))
        elif item.sets:
            self.placing.add(item._replace(kind=self.variables.kind_of(item)))
        else:
            self.left_out("a check" if "exit" in programs else NOT_NEEDED)
