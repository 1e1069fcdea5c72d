"""Read the statements of a script in order: which of them a job needs, and where they go."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple, Optional

from kit import redact
from kit.config import variables
from kit.errors import KitError, Problems
from kit.importing import containers, shell
from kit.importing.draft import Draft
from kit.importing.expansion import HOLE, Scope, Value
from kit.importing.launch import ASSIGNMENT, MPI, NODE_STARTERS, PYTHONS, SHELLS, Launch, Tools
from kit.importing.shell import Node, Script, Span

PRINTING = set(
    """
    echo printf date hostname nvidia-smi rocm-smi env printenv pwd which type ls df free lscpu lspci
    ibstat ibv_devinfo uname whoami id cat head tail squeue sacct scontrol sinfo sstat nvcc top ps
    uptime du seff wait sleep exit true : hash tput figlet
    """.split()
)
SETTINGS = {"set", "shopt"}
PREPARING = set("source . conda mamba micromamba ulimit umask unset alias spack".split())
MODULES = {"module", "ml"}
ENDS = {"exit", "return", "true", "echo", "printf", ":"}
CHANGES = set("cp rsync tar unzip mkdir rm mv ln chmod touch wget curl git pip pip3 make".split())
_HEADS = re.compile(r"scontrol\s+show\s+-?\w*\s*host|hostname|SLURM_(JOB_)?NODELIST|SLURMD_NODENAME")
_DIFFERS = re.compile(r"\b(date|hostname|mktemp|shuf|uuidgen|openssl)\b|\$\{?RANDOM|/dev/u?random")
_COMPUTED = re.compile(r"[$<>]\((?!\()|`")
_PORT = re.compile(r"(?<![a-z])port(?![a-z])|masterport", re.IGNORECASE)
_ARGUMENT = re.compile(r"[0-9@*#]")
_FIRST = re.compile(r"\[0\]|\b(head|sed|awk|cut|hostname)\b|%%|SLURMD_NODENAME")
_NODES = "$(scontrol show hostnames $SLURM_JOB_NODELIST)"
_LOGS = "kit keeps the log of every rank: runs/NAME-TIME/log/"
_ACTIVATES = re.compile(r"activate\b|conda|mamba|spack|profile|bashrc|lmod|modules")


class Candidate(NamedTuple):
    """A command that may be the one that starts the ranks."""

    weight: int
    env: list[tuple[str, str]]
    words: list[str]
    span: Span
    remarks: tuple[str, ...]  # what is to be decided, if it is the one


class Action(NamedTuple):
    """A command that the first node did, once."""

    span: Span
    source: str
    names: set[str]
    program: str
    position: int  # how many candidates came before


class Reader:
    def __init__(self, draft: Draft, scope: Scope, tasks: Optional[int]) -> None:
        self.draft, self.scope, self.tasks = draft, scope, tasks
        self.candidates: list[Candidate] = []
        self.actions: list[Action] = []
        self.definitions: dict[str, list[tuple[Span, str, set[str]]]] = {}
        self.functions: dict[str, tuple[Span, Script, Node]] = {}
        self.plain: dict[str, list[Span]] = {}  # variables that are not exported, and their lines
        self.used: set[str] = set()  # of these
        self.written: dict[int, set[object]] = {}  # what each list of lines defines
        self.remarks: tuple[str, ...] = ()
        self.is_over = False
        self.inside: list[str] = []  # the functions that are read now
        self.of_host: list[tuple[Span, str]] = []  # of the setup, if there is an image

    def read(self, script: Script, statements: list[Node], within: Optional[Span] = None) -> None:
        """Read statements; `within` has the lines of a text in which they are, as of `bash -c`."""
        for node in statements:
            span = within or shell.span(node)
            if self.is_over:
                self.draft.left_out(span, "never reached: the script has ended before")
                continue
            self._statement(script, node, span)

    # ------------------------------------------------------------ one statement

    def _statement(self, script: Script, node: Node, span: Span) -> None:
        kind, command = shell.kind(node), node.get("Cmd") or {}
        if kind == "CallExpr" and not command.get("Args"):
            self._assign(script, node, command["Assigns"], span, exported=False)
        elif kind == "DeclClause":
            words = {shell.literal(item["Value"]) for item in command["Args"] if "Naked" in item}
            variant = command["Variant"]["Value"]
            exported = variant == "export" or "-x" in words
            self._assign(script, node, command["Args"], span, exported=exported)
        elif kind == "CallExpr":
            self._call(script, node, span)
        elif kind == "TimeClause" and command.get("Stmt"):
            self._statement(script, command["Stmt"], span)
        elif kind == "BinaryCmd":
            self._two(script, node, command, span)
        elif kind in ("Block", "Subshell") and self._launches(script, node):
            self.draft.carried(span, "command")
            self.read(script, command["Stmts"])
        elif kind == "FuncDecl":
            self.functions[command["Name"]["Value"]] = (span, script, node)
        elif kind == "ForClause" and self._launches(script, node):
            self._loop(script, command, span)
        else:
            self._compound(script, node, span)

    def _two(self, script: Script, node: Node, command: Node, span: Span) -> None:
        """Read A && B, A || B and A | B."""
        joined = script.operator(command)
        second = [shell.literal(call["Args"][0]) for call in shell.calls(command["Y"])]
        launches = self._launches(script, command["X"])
        if joined == "&&":
            self._statement(script, command["X"], span)
            self._statement(script, command["Y"], span)
        elif joined == "||" and set(second) <= ENDS and second:
            self._statement(script, command["X"], span)
            self.draft.left_out(span, "kit ends a job whose program fails, with its exit code")
        elif joined.startswith("|") and launches:
            self.remarks = (
                ()
                if set(second) <= {"tee", "cat", "ts"}
                else (f"the output went through {second[0] if second else 'a pipe'}: kit logs all",)
            )
            self._statement(script, command["X"], span)
            self.remarks = ()
            self.draft.left_out(span, _LOGS)
        else:
            self._compound(script, node, span)

    # ------------------------------------------------------------ variables

    def _assign(
        self, script: Script, node: Node, items: list[Node], span: Span, *, exported: bool
    ) -> None:
        for item in items:
            if "Naked" in item and not item.get("Name"):
                continue  # an option, or a word that holds names
            name = str(item["Name"]["Value"])
            if "Naked" in item or not (item.get("Value") or item.get("Array")):
                value = self.scope.values.get(name, "" if not exported else None)
                if not exported:
                    self.scope.values[name] = value or ""
            else:
                value = self.scope.assign(script, item)
            self._place(script, node, name, value, span, exported=exported)

    def _place(
        self,
        script: Script,
        node: Node,
        name: str,
        value: Optional[Value],
        span: Span,
        *,
        exported: bool,
    ) -> None:
        source = script.text(node)
        if name in variables.OWNED:
            hint = self.scope.hinted(value) if isinstance(value, str) else None
            known = None if hint is None or HOLE.search(hint) else hint
            self.scope.values[name] = self.scope.hole(f"${{{name}}}", [name], hint=known)
            self.draft.left_out(span, f"kit sets {name} in every rank")
        elif role := self._role(name, value, source):
            is_list = isinstance(value, list)
            hole = self.scope.hole(role, [] if role == _NODES else [role.strip("${}")])
            self.scope.values[name] = [hole] if is_list else hole
            self.draft.left_out(span, "kit finds the first node's address and a free port itself")
        elif exported and name.startswith(("SRUN_", "SBATCH_", "SALLOC_")):
            self.draft.left_out(span, "a setting of srun, which kit calls with options of its own")
        elif exported and self._is_secret(name, value):
            self._secret(name, value, span)
        elif value is None:  # export NAME, of the shell that submits
            self._inherit([name])
            self.draft.carried(span, "inherit")
        else:
            self._keep(script, node, name, value, span, exported=exported)

    def _keep(
        self, script: Script, node: Node, name: str, value: Value, span: Span, *, exported: bool
    ) -> None:
        text = "".join(value) if isinstance(value, list) else value
        is_opaque = any(_COMPUTED.search(hole.source) for hole in self.scope.behind(text))
        if is_opaque:
            self._define([name], span, script, node)
        if exported and isinstance(value, str) and self._is_settable(name):
            if HOLE.search(value) or name in self.draft.env:
                self._prepare(script, node, span)
            else:
                self.draft.env[name] = value
                self.draft.carried(span, f"env: {name}")
        elif exported:
            self._prepare(script, node, span)
        else:
            self.plain.setdefault(name, []).append(span)

    @staticmethod
    def _is_settable(name: str) -> bool:
        return variables.settable(name, "", Problems())

    def _define(self, names: Iterable[str], span: Span, script: Script, node: Node) -> None:
        """Keep a statement that gives variables values which only the job can know."""
        source, used = script.text(node), shell.names_used(node)
        for name in names:
            before = self.scope.values.get(name)
            known = self.definitions.setdefault(name, [])
            if isinstance(before, str) and not HOLE.search(before) and not known:
                known.append((span, f"{name}={self.scope.bash(before)}", set()))
            known.append((span, source, used - {name}))
            self.scope.values[name] = self.scope.hole(f"${{{name}}}", [name], quoted=False)
            self.plain.setdefault(name, []).append(span)

    def _role(self, name: str, value: Optional[Value], source: str) -> str:
        """Return kit's variable for one that a script computes to find the first node."""
        texts = value if isinstance(value, list) else [value or ""]
        holes = self.scope.behind(texts[0]) if len(texts) == 1 and len(texts[0]) == 1 else []
        if not holes:
            return ""
        of_kit = holes[0].source in ("${MASTER_ADDR}", "${MASTER_PORT}", _NODES)
        if _PORT.search(name) and (of_kit or "$(" in source or "`" in source):
            return "${MASTER_PORT}"
        if holes[0].source == _NODES or "scontrol" in source:
            return "${MASTER_ADDR}" if _FIRST.search(source.partition("=")[2]) else _NODES
        if of_kit:
            return holes[0].source
        found = _HEADS.search(holes[0].source)
        return "${MASTER_ADDR}" if found and _FIRST.search(holes[0].source) else ""

    def _is_secret(self, name: str, value: Optional[Value]) -> bool:
        text = value if isinstance(value, str) else ""
        is_harmless = re.fullmatch(r"[/.~].*|\d{0,6}|true|false|none|offline|online", text, re.I)
        return bool(redact.kind(text, name)) or (redact.is_secret(name) and not is_harmless)

    def _secret(self, name: str, value: Optional[Value], span: Span) -> None:
        """Name a secret: its value is never written into the job."""
        holes = self.scope.behind(value) if isinstance(value, str) else []
        sources = [hole.source for hole in holes]
        self.draft.secrets[name] = "env"
        self.scope.values[name] = self.scope.hole(f"${{{name}}}", [name])
        if found := re.fullmatch(r"\$\((?:cat |<)\s*([~\w./-]+)\)", "".join(sources)):
            self.draft.secrets[name] = {"file": found[1]}
            self.draft.carried(span, "secrets")
        elif value is None or sources in ([f"${name}"], [f"${{{name}}}"]):
            self.draft.carried(span, "secrets")
        else:
            way = f"export {name} in the shell, or `secrets: {{{name}: {{file: PATH}}}}`"
            self.draft.decide(span, f"a secret belongs into no job file: {way}")

    def _inherit(self, names: Iterable[str]) -> None:
        for name in names:
            if redact.is_secret(name):
                self.draft.secrets.setdefault(name, "env")
            elif name not in self.draft.inherit and self._is_settable(name):
                self.draft.inherit.append(name)

    # ------------------------------------------------------------ commands

    def _call(self, script: Script, node: Node, span: Span) -> None:
        command = node["Cmd"]
        words = [field for word in command["Args"] for field in self.scope.words(script, word)]
        if words[:1] == ["eval"] and len(words) == 2 and not self._is_hook(words[1]):
            self._evaluate(words[1], span)
            return
        if not words:
            self.draft.decide(span, "the command is empty, as far as kit import can see")
            return
        name = os.path.basename(words[0])
        if name in self.functions:
            self._call_function(words, span)
        elif document := self._document(script, node, words):
            self._candidate(3, [*words, "-c", document], span, script, node)
        elif weight := self._weight(words):
            self._candidate(weight, words, span, script, node)
        else:
            self._other(script, node, span, name, words)

    def _is_hook(self, text: str) -> bool:
        return any("(" in hole.source for hole in self.scope.behind(text))

    def _evaluate(self, text: str, span: Span) -> None:
        try:
            inner = shell.parse(text, "eval")
        except KitError:
            self.draft.decide(span, "kit import cannot read what eval is given")
            return
        self.read(inner, inner.statements, span)

    def _document(self, script: Script, node: Node, words: list[str]) -> str:
        """Return the here-document that is a shell's script."""
        found = [item for item in node.get("Redirs") or [] if item.get("Hdoc")]
        if not found or os.path.basename(words[-1]) not in SHELLS:
            return ""
        return self.scope.document(script, found[0]["Hdoc"])

    def _call_function(self, words: list[str], span: Span) -> None:
        name = words[0]
        where, script, function = self.functions[name]
        if name in self.inside or not self._launches(script, function):
            self._act(span, " ".join(map(self.scope.bash, words)), {name}, name)
            return
        self.draft.carried(where, "command")
        self.draft.carried(span, "command")
        self.inside.append(name)
        before = dict(self.scope.values)
        self.scope.values |= {str(number): word for number, word in enumerate(words)}
        self.scope.values |= {"@": words[1:], "*": words[1:], "#": str(len(words) - 1)}
        body = function["Cmd"]["Body"]
        self.read(script, (body.get("Cmd") or {}).get("Stmts") or [body])
        for argument in [*map(str, range(len(words))), "@", "*", "#"]:
            self.scope.values.pop(argument, None)
            if argument in before:
                self.scope.values[argument] = before[argument]
        self.inside.pop()

    def _candidate(
        self, weight: int, words: list[str], span: Span, script: Script, node: Node
    ) -> None:
        items = node["Cmd"].get("Assigns") or []
        env = [
            (str(item["Name"]["Value"]), self.scope.text(script, item["Value"]))
            for item in items
            if item.get("Value")
        ]
        remarks = self.remarks
        if node.get("Background"):
            remarks += ("it ran in the background: kit starts one program, and waits for it",)
        texts = [script.text(item) for item in node.get("Redirs") or [] if not item.get("Hdoc")]
        if any(re.match(r"[0-9]*<", text) for text in texts):
            remarks += ("it read its input from a file: kit gives a program none",)
        elif texts:
            self.draft.left_out(span, _LOGS)
        self.candidates.append(Candidate(weight, env, words, span, remarks))

    def _weight(self, words: list[str]) -> int:
        """Return how likely a command is the one that starts the ranks; 0 where it is not."""
        name, rest = os.path.basename(words[0]), words[1:]
        if name in ("exec", "nohup", "command", "env", "time") and rest:
            return self._weight(rest)
        if ASSIGNMENT.match(words[0]) and rest:
            return self._weight(rest)
        if name in ("srun", *MPI):
            program = [word for word in rest if not word.startswith("-")]
            helpers = PRINTING | CHANGES | {"kill", "pkill", "scancel", "true"}
            names = [os.path.basename(word) for word in program]
            is_helper = any(word in helpers for word in names[:4]) and not any(
                PYTHONS.match(word) or word in SHELLS or word == "torchrun" for word in names
            )
            return 0 if is_helper else 3
        if (name,) in NODE_STARTERS or (name, *rest[:1]) in NODE_STARTERS or name == "torchrun":
            return 3
        if PYTHONS.match(name):
            is_helper = not rest or rest[0] in ("-c", "-V", "--version", "-")
            is_tool = rest[:2] in (["-m", "pip"], ["-m", "venv"])
            return 0 if is_helper or is_tool else 3 if "torch.distributed" in " ".join(rest) else 1
        if name in containers.READERS:
            is_helper = rest[:1] and rest[0] in ("pull", "build", "import", "create", "load")
            return 0 if is_helper else 2
        is_file = "/" in words[0] or name.endswith((".sh", ".py"))
        if name in SHELLS:
            return 1 if rest else 0
        is_known = name in PRINTING | CHANGES | PREPARING | MODULES | SETTINGS
        return 1 if (is_file or name in ("julia", "Rscript", "horovodrun")) and not is_known else 0

    def _launches(self, script: Script, node: Node) -> bool:
        """Return whether a command that may start ranks is at or below a statement."""
        for call in shell.calls(node):
            words = [word for each in call["Args"] for word in self.scope.words(script, each)]
            if words and (self._weight(words) or words[0] in self.functions):
                function = self.functions.get(words[0])
                if not function or function[2] is node or self._launches(*function[1:]):
                    return True
        return False

    def _other(
        self, script: Script, node: Node, span: Span, name: str, words: list[str]
    ) -> None:
        """Place a command that starts no ranks."""
        writes = any(self._writes(script, item) for item in node.get("Redirs") or [])
        if name == "exit":
            self.is_over = not self.remarks
        if name in SETTINGS:
            self.draft.left_out(span, "kit's own scripts set the options of their shell")
        elif name == "scontrol" and "requeue" in words or name == "sbatch":
            way = "`on_preempt: checkpoint` goes on by itself; `kit submit --after RUN` follows"
            self.draft.decide(span, f"this starts a job again, or another one: {way}")
        elif name == "trap":
            way = "with `launcher: srun` the program gets signals; or `on_preempt: checkpoint`"
            self.draft.decide(span, f"the batch script is kit's, and has its own traps: {way}")
        elif name in PRINTING and not writes and not node.get("Background"):
            self.draft.left_out(span, "nothing of the job depends on it")
        elif name in ("python", "python3") and words[1:2] in (["-V"], ["--version"]):
            self.draft.left_out(span, "nothing of the job depends on it")
        elif name in MODULES:
            self._prepare(script, node, span)
        elif name in PREPARING or name == "eval":
            self._prepare(script, node, span)
        elif name == "cd":
            self._cd(words, span)
        elif node.get("Background"):
            self.draft.decide(span, "it ran beside the program, on the first node: kit has no such")
        else:
            self._act(span, script.text(node), shell.names_used(node), name)

    @staticmethod
    def _writes(script: Script, redirection: Node) -> bool:
        text = script.text(redirection)
        return bool(re.match(r"[0-9&]*>", text)) and not re.search(r"/dev/|>&\s*[0-9-]", text)

    def _prepare(self, script: Script, node: Node, span: Span) -> None:
        """Put a statement into the lines that prepare each task's environment."""
        names = shell.names_used(node)
        self.define(self.draft.setup, names - shell.names_set(node))
        source = script.text(node)
        if source not in self.draft.setup:
            self.draft.setup.append(source)
        self.draft.carried(span, "setup")
        if re.match(r"module\b|ml\b", source) or _ACTIVATES.search(source):
            self.of_host.append((span, source))
        self._remark(source, names, span)

    def _remark(self, source: str, names: set[str], span: Span) -> None:
        if _DIFFERS.search(source):
            self.draft.decide(span, "each task would get a value of its own: write the value")
        if any(_ARGUMENT.match(name) for name in names):
            way = "kit submit job.yaml -- ARGUMENTS adds some to the command"
            self.draft.decide(span, f"it reads the arguments of the batch script: {way}")

    def _cd(self, words: list[str], span: Span) -> None:
        target = self.scope.hinted(words[1]) if len(words) == 2 else "~"
        sources = "".join(hole.source for hole in self.scope.behind(target))
        if target == "." or re.search(r"dirname|BASH_SOURCE|SLURM_SUBMIT_DIR", sources):
            self.draft.left_out(span, "the job starts in the job file's folder")
        elif HOLE.search(target):
            self.draft.decide(span, "write the folder out: `workdir: DIR`")
        elif self.candidates:
            self.draft.decide(span, "the folder of a later program")
        else:
            before = str(self.draft.keys.get("workdir", ""))
            self.draft.keys["workdir"] = os.path.join(before, target)
            self.draft.carried(span, "workdir")

    def _act(self, span: Span, source: str, names: set[str], program: str) -> None:
        self.actions.append(Action(span, source, names, program, len(self.candidates)))

    # ------------------------------------------------------------ loops and conditions

    def _loop(self, script: Script, command: Node, span: Span) -> None:
        """Read a loop around the program as a sweep, where its values are known."""
        loop = command["Loop"]
        items = [
            field for word in loop.get("Items") or [] for field in self.scope.words(script, word)
        ]
        name = str((loop.get("Name") or {}).get("Value", ""))
        if name and items and not any(HOLE.search(item) for item in items):
            self.scope.values[name] = f"{{{name}}}"
            self.draft.keys["sweep"] = {name: items}
            way = "as a `sweep` each is a task of a job array, with nodes of its own"
            self.draft.decide(span, f"these ran one after another in one job: {way}")
        else:
            if name:
                self.scope.values[name] = self.scope.hole(f"${{{name}}}", [name])
            self.draft.decide(span, "a loop around the program: kit starts one, or a `sweep`")
        self.read(script, command["Do"])

    def _compound(self, script: Script, node: Node, span: Span) -> None:
        """Place a condition, a loop, or a list of commands."""
        source, names = script.text(node), shell.names_used(node)
        programs = {shell.literal(call["Args"][0]) for call in shell.calls(node)}
        assigned = shell.names_set(node)
        if self._launches(script, node):
            self.draft.decide(span, "the program is started under a condition: see which is meant")
            self._candidates_below(script, node, span)
            return
        exports = [
            item for item in shell.descend(node) if item.get("Type") == "DeclClause"
        ]
        tests = {"", "[", "test", "read", "mapfile", "readarray"}
        rest = programs - PRINTING - tests - PREPARING - MODULES - SETTINGS - {"eval"}
        if assigned:
            self._define(assigned - variables.OWNED, span, script, node)
        if rest or self._writes_below(script, node):
            self._act(span, source, names, min(rest, default=""))
        elif exports or programs & (PREPARING | MODULES | {"eval"}):
            self._prepare(script, node, span)
        elif not assigned:
            is_check = "exit" in programs
            self.draft.left_out(span, "a check" if is_check else "nothing of the job depends on it")
        if any(_ARGUMENT.match(name) for name in names):
            self._remark("", names, span)

    def _writes_below(self, script: Script, node: Node) -> bool:
        redirections = (
            item for part in shell.descend(node) for item in part.get("Redirs") or []
        )
        return any(self._writes(script, item) for item in redirections)

    def _candidates_below(self, script: Script, node: Node, span: Span) -> None:
        for call in shell.calls(node):
            words = [word for each in call["Args"] for word in self.scope.words(script, each)]
            if words and (weight := self._weight(words)):
                self.candidates.append(Candidate(weight, [], words, span, ()))

    # ------------------------------------------------------------ the end

    def define(self, lines: list[str], names: Iterable[str]) -> None:
        """Write the definitions of variables into a list of lines, with all that they need."""
        written = self.written.setdefault(id(lines), set())
        for name in sorted(names):
            self.used.add(name)
            if name in written or name in variables.OWNED or name in self.draft.env:
                continue
            written.add(name)
            if name in self.definitions:
                for span, source, needs in self.definitions[name]:
                    if source in written:
                        continue
                    written.add(source)
                    self.define(lines, needs)
                    lines.append(source)
                    self._remark(source, needs, span)
            elif name in self.functions:
                where, script, node = self.functions[name]
                lines.append(script.text(node))
                self.draft.carried(where, "script")
            elif name in self.plain:
                value = self.scope.values[name]
                words = value if isinstance(value, list) else [value]
                for word in words:
                    self.define(lines, {each for h in self.scope.behind(word) for each in h.names})
                text = " ".join(self.scope.bash(word) for word in words)
                lines.append(f"{name}=({text})" if isinstance(value, list) else f"{name}={text}")
            elif name not in self.scope.values and name.isidentifier():
                self._inherit_if_needed(name)

    def _inherit_if_needed(self, name: str) -> None:
        is_of_slurm = name.startswith(("SLURM", "KIT_", "CUDA", "CONDA", "LMOD", "EB"))
        is_there = name in variables.BASH or name in _ALWAYS_THERE
        if not (is_of_slurm or is_there or re.search(r"_(HOME|ROOT|DIR|PATH|PREFIX)\Z", name)):
            self._inherit([name])

    def finish(self) -> None:
        """Choose the program, and place what depends on that choice."""
        if self.candidates:
            most = max(each.weight for each in self.candidates)
            chosen = [each for each in self.candidates if each.weight == most][-1]
            for each in self.candidates:
                if each is not chosen:
                    way = "a job of its own, which `kit submit --after RUN` makes wait"
                    self.draft.decide(each.span, f"another program than the job's: {way}")
            self._launch(chosen)
            place = self.candidates.index(chosen)
        else:
            self.draft.decide((1, 1), "no program was found: write `command: train.py`")
            place = 0
        for action in self.actions:
            self._place_action(action, before=action.position <= place)
        if self.draft.has_image:
            self._move_to_host()
        self._close_variables()

    def _move_to_host(self) -> None:
        """Keep modules and environments of the host out of the container."""
        for span, source in self.of_host:
            if source in self.draft.setup:
                self.draft.setup.remove(source)
                self.draft.host_setup.append(source)
            self.draft.entries.remove(
                next(e for e in self.draft.entries if e[:3] == ("carried", *span))
            )
            self.draft.carried(span, "host_setup")

    def _launch(self, chosen: Candidate) -> None:
        tools = Tools(self.define, self._inner)
        launch = Launch(self.draft, self.scope, tools, self.tasks, chosen.span)
        for name, value in chosen.env:
            launch.set(name, value)
        for remark in chosen.remarks:
            launch.decide(remark)
        launch.read(chosen.words)

    def _inner(self, text: str, span: Span) -> Optional[list[str]]:
        """Read the text of `bash -c`: what prepares the program, and the program as its end."""
        try:
            script = shell.parse(text, "bash -c")
        except KitError:
            return None
        *first, last = script.statements or [{}]
        call = last.get("Cmd") or {}
        if shell.kind(last) == "BinaryCmd" and not first and script.operator(call) == "&&":
            return self._inner(
                "\n".join(script.text(call[side]) for side in ("X", "Y")), span
            )
        if shell.kind(last) != "CallExpr" or not call.get("Args"):
            return None
        is_simple = all(shell.kind(each) in ("CallExpr", "DeclClause") for each in first)
        if not is_simple or any(self._launches(script, each) for each in first):
            return None
        before = len(self.actions)
        self.read(script, first, span)
        for action in self.actions[before:]:
            self.define(self.draft.setup, action.names)
            self.draft.setup.append(action.source)
        del self.actions[before:]
        for item in call.get("Assigns") or []:
            self.draft.setup.append(f"export {script.text(item)}")
        return [word for each in call["Args"] for word in self.scope.words(script, each)]

    def _place_action(self, action: Action, *, before: bool) -> None:
        """Place what the first node did, once: on one node it is the same on every node."""
        span, source, names, program, _ = action
        is_alone = self.draft.nodes == 1 and before
        if not is_alone and not (program == "mkdir" and "-p" in source and before):
            way = (
                "`host_setup` does it on each node, which is right for a node's own disk"
                if before
                else "kit runs nothing behind the program: do it in the program, or in a job after it"
            )
            self.draft.decide(span, f"the first node did this once: {way}")
            return
        is_of_host = self.draft.has_image and not HOLE.search(source)
        is_one_task = self.draft.keys.get("launcher") in ("torchrun", "spawn")
        in_setup = not is_of_host and (is_one_task or program == "mkdir")
        lines = self.draft.setup if in_setup else self.draft.host_setup
        self.define(lines, names)
        lines.append(source)
        self.draft.carried(span, "setup" if in_setup else "host_setup")
        self._remark(source, names, span)

    def _close_variables(self) -> None:
        """Note what became of variables that are not exported."""
        for name, spans in self.plain.items():
            for span in spans:
                if name in self.used:
                    self.draft.carried(span, "the lines that use it")
                else:
                    self.draft.left_out(span, "its value stands where it was used, or is not used")
        for span, _, _ in self.functions.values():
            self.draft.left_out(span, "a function that nothing calls")


_ALWAYS_THERE = set(
    "HOME USER LOGNAME PATH LD_LIBRARY_PATH PYTHONPATH TMPDIR PWD SHELL HOSTNAME LANG TERM".split()
)
