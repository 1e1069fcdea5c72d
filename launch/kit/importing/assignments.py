"""Read assignments: which variables kit sets itself, and which a job is to have."""

from __future__ import annotations

import re
from typing import Optional

from kit.base.bash_tree import Span
from kit.base.errors import Problems
from kit.config import variables
from kit.importing import hiding
from kit.importing.draft import Draft
from kit.importing.holes import HOLE, Value
from kit.importing.items import DEFINE, EXPORT, LIMIT, Item
from kit.importing.placing import Placing
from kit.importing.scope import COMPUTED, DIFFERS, PATH_LIKE, Scope

_PORT = re.compile(r"(?<![a-z])port(?![a-z])|master_?port", re.IGNORECASE)
_NODE_LIST = re.compile(r"scontrol\s+show\s+(-\S+\s+)?host|SLURM_(JOB_)?NODELIST")
_FIRST = re.compile(
    r"\[0\]|%%|\bhead\s+-(n\s*)?1\b|\bsed\s+(-n\s+)?[\"']?1[pq{]|NR\s*==\s*1|print\s*\$1\b|-f\s*1\b"
    r"|\b(hostname|getent|nslookup|dig|host)\b"
)
_MANY = re.compile(
    r"\b(paste|wc|tail|md5sum|curl|wget)\b|\.py\b|\bEND\b|\bNR\s*\}|hostname\s+-+[dy]|<<"
)
_DECLARES = re.compile(r"(export|declare|typeset|local|readonly)\b")
_HOST = re.compile(
    r"[$`]\(?\s*(/bin/)?hostname(\s+-+[sfiIa][\w-]*)*\s*([)`]|\|\s*(awk|cut|head)\b)"
    r"|SLURMD_NODENAME|HOSTNAME"
)


def _about_secret(name: str) -> str:
    way = f"export {name} in your shell, or `secrets: {{{name}: {{command: cat FILE}}}}`"
    return f"a job file must not contain a secret: {way}"


class Assignments:
    def __init__(self, draft: Draft, scope: Scope, placing: Placing) -> None:
        self.draft, self.scope, self.placing = draft, scope, placing
        self.exported = set("PATH LD_LIBRARY_PATH PYTHONPATH LD_PRELOAD TMPDIR LANG".split())
        self.node_lists: set[str] = set()  # variables with the names of nodes
        self.addresses: set[str] = set()  # variables with the first node's
        self.is_in_task = False  # in a text that each task runs: a host is that of the task
        self.port = ""  # the variable with the port at which the ranks meet
        self.bare_secrets: dict[str, Span] = {}  # not exported

    def keep(self, item: Item, name: str, value: Optional[Value], *, exported: bool) -> None:
        """Note a variable, and where its value is to come from."""
        span = item.span
        # `export NAME` alone; `local` is for functions
        is_named = bool(_DECLARES.match(item.source)) and f"{name}=" not in item.source
        item = item._replace(source=re.sub(r"\Alocal\b", "declare", item.source))
        is_of_script = any(name in each.sets for each in self.placing.items)
        is_open = bool(HOLE.search("".join(value or ""))) and not PATH_LIKE.fullmatch(name)
        if is_named:
            item = item._replace(uses=item.uses | {name})
        if exported or name in self.exported:
            exported = True
            self.exported.add(name)
            item = item._replace(kind=EXPORT)
        if name in variables.OWNED:
            hint = self.scope.hinted(value) if isinstance(value, str) else ""
            known = hint if hint and not HOLE.search(hint) else None
            self.scope.keep_own(name, value, exported=exported)
            self.scope.leave_open(name, hint=known)
            self.placing.add(item._replace(kind=DEFINE))
            self.draft.left_to_kit(span, name)
        elif role := self._role(name, value, item):
            self.scope.values[name] = self.scope.hole(f"${{{role}}}", [role])
            start = "export " if exported else ""
            self.placing.add(item._replace(inside=f'{start}{name}="${{{role}}}"'))
            if not exported:  # and found by no program
                way = "kit finds the first node's address and a free port itself"
                self.draft.left_out(span, way)
        elif exported and re.match("SRUN_|SBATCH_|SALLOC_|SLURM_", name):
            self.draft.left_out(span, "a setting of srun, which kit calls with options of its own")
        elif self._is_secret(name, value, exported):
            self._secret(name, value, span)
            self.bare_secrets.pop(name, None)
            if not exported:
                self.bare_secrets[name] = span
        elif is_named and (not exported or (is_of_script and is_open)):
            self.placing.add(item)
        elif value is None or (self.scope.is_itself(name, value) and not is_of_script):
            # of the shell that submits
            self.placing.inherit(name)
            self.draft.carried(span, "inherit")
        else:
            self._keep_own(item, name, value, exported=exported)

    def _is_secret(self, name: str, value: Optional[Value], exported: bool) -> bool:
        text = value if isinstance(value, str) else ""
        return hiding.is_secret(name, text) if exported else hiding.is_sure(name, text)

    def keep_defaults(self, item: Item) -> None:
        """Note the variables that `: ${NAME:=default}` sets."""
        for name in re.findall(r"\$\{(\w+):?=", item.source):
            value = self.scope.values.get(name)
            self.keep(item._replace(sets=frozenset([name])), name, value, exported=False)

    def _keep_own(self, item: Item, name: str, value: Value, *, exported: bool) -> None:
        text = "".join(value)
        if not PATH_LIKE.fullmatch(name):  # which modules change, too
            self.scope.change(name)
        if name in self.scope.names(value) and not PATH_LIKE.fullmatch(name):
            self.scope.leave_open(name)
        elif self._is_computed(text):
            self._leave_open(name, value)
            self.scope.texts[name] = text
        is_one = isinstance(value, str) or len(value) == 1
        is_alone = is_one and len(self.scope.holes_of(text)) == 1 and not re.search(r"\s", text)
        if self._lists_nodes(item) and is_alone:
            self.node_lists.add(name)
            if isinstance(value, list):
                self.scope.node_arrays.add(name)
            self.draft.left_out(item.span, "kit finds the nodes of the job itself")
        if re.search(rf"(\b{name}=|: )\"?\$\{{{name}:?[-=]", item.source):
            # The node may have a value of its own, which would not be the one of the command.
            start = "export " if re.match(r"(export|declare)\b", item.source) else ""
            uses = frozenset(self.scope.names(text))
            item = item._replace(source=f"{start}{name}={self.scope.bash(text)}", uses=uses)
        is_settable = variables.settable(name, "", Problems())
        text = self.scope.swept(text)
        if not exported:
            self.placing.add(item)
        elif is_settable and not HOLE.search(text):
            self.draft.env[name] = text
            self.draft.carried(item.span, f"env: {name}")
            self.placing.add(item._replace(kind=DEFINE, sets=item.sets | {name}))
        else:
            self.draft.env.pop(name, None)
            inside = f"export {name}={self.scope.bash(text)}" if is_settable else ""
            self.placing.add(item._replace(inside=inside))

    def keep_set(self, item: Item) -> None:
        """Note a command that sets variables: the value of each is its own name."""
        self.leave_open(item)
        self.placing.add(item)

    def unset(self, item: Item, names: frozenset[str]) -> None:
        for name in names - variables.OWNED:
            self.scope.change(name)
            self.scope.values[name] = ""
        self.take_away(item, names)

    def take_away(self, item: Item, names: frozenset[str]) -> None:
        """Place lines that take variables from the programs behind them."""
        own = {name for each in self.placing.items for name in each.sets}
        taken = names & own & self.exported
        self.exported -= names
        for name in taken:
            self.draft.env.pop(name, None)
        self.placing.add(item._replace(kind=LIMIT, sets=taken))

    def kind_of(self, item: Item) -> str:
        return EXPORT if item.sets & self.exported else DEFINE

    def leave_open(self, item: Item) -> None:
        """Leave the variables open that other lines than an assignment set."""
        for name in item.sets - variables.OWNED:
            self._leave_name_open(item, name)

    def _leave_name_open(self, item: Item, name: str) -> None:
        self.scope.change(name)
        self.scope.leave_open(name, quoted=False)
        if self.draft.env.pop(name, None) is not None:  # there it would win over these lines
            self.placing.export(name)
            self.draft.take_back(f"env: {name}")
        test = re.search(rf"-[nz]\s+\"?\$\{{?{name}\b", item.source)
        own = rf"\b{name}\+?=|\b(for|select)\s+{name}\b|\bread\b.*\b{name}\b"
        if test and not re.search(own, item.source[: test.start()]):
            self.placing.note_default(name, item.span)

    def _is_computed(self, text: str) -> bool:
        sources = [hole.source for hole in self.scope.holes_of(text)]
        return any(COMPUTED.search(source) or DIFFERS.search(source) for source in sources)

    def _leave_open(self, name: str, value: Value) -> None:
        """Let a variable stand for itself; of a list, only the elements that are computed."""
        if isinstance(value, str) or any(map(self._may_split, ["", *value], value)):
            self.scope.leave_open(name)
            return
        elements = []
        for index, text in enumerate(value):
            option, equals, _ = text.partition("=")
            is_option = equals and option.startswith("-") and not HOLE.search(option)
            source = f"${{{name}[{index}]{'#*=' if is_option else ''}}}"
            own = f"{option}=" if is_option else ""
            is_open = self._is_computed(text)
            elements.append(own + self.scope.hole(source, [name]) if is_open else text)
        self.scope.values[name] = elements

    def _may_split(self, before: str, text: str) -> bool:
        """Return whether an element may become several, or none; not so the value of an option."""
        hole = self.scope.only_hole(text)
        is_value = before.startswith("-") and "=" not in before
        return hole is not None and not (hole.is_quoted or hole.hint or is_value)

    def _lists_nodes(self, item: Item) -> bool:
        return bool(_NODE_LIST.search(item.source) or item.uses & self.node_lists)

    def _role(self, name: str, value: Optional[Value], item: Item) -> str:
        """Return kit's variable for one that a script computes to find the first node."""
        behind = item.source.partition("=")[2]
        text = value[0] if isinstance(value, list) and len(value) == 1 else value
        hole = self.scope.only_hole(text)
        whole = hole.source if hole and not _MANY.search(behind) else ""
        computes = bool(COMPUTED.search(behind) or re.search(r"\$\(\(.*RANDOM", behind))
        if _PORT.search(name) and whole == "${MASTER_PORT}":
            return "MASTER_PORT"
        if _PORT.search(name) and computes and self._is_of_ranks(name):
            self.port = name
            return "MASTER_PORT"
        is_first = _FIRST.search(behind) and self._lists_nodes(item)
        is_host = _HOST.search(behind) and not (self._is_of_path(name) or self.is_in_task)
        if whole and (is_first or item.uses & self.addresses or is_host):
            self.addresses.add(name)
            return "MASTER_ADDR"
        return ""

    def _is_of_ranks(self, name: str) -> bool:
        """Return whether this variable's port is the ranks' own: a script may compute others."""
        own = [line for line in self.draft.lines if re.search(r"\bMASTER_PORT=", line)]
        is_own = all(re.search(rf"\b{name}\b", line) for line in own)
        return is_own and self.port in ("", name)

    def _is_of_path(self, name: str) -> bool:
        """Return whether the script writes a variable into paths or other names."""
        use = rf"\$\{{?{name}\b"
        return bool(re.search(rf"(?<!/)[/._-]{use}|{use}\}}?[/_-]", "\n".join(self.draft.lines)))

    def drop_unread_secrets(self, command: str) -> None:
        """Take secrets out that the program cannot read, and no line of the job names."""
        draft = self.draft
        read = "\n".join(
            [command, *draft.setup, *draft.host_setup, *draft.script, *draft.env.values()]
        )
        for name, span in self.bare_secrets.items():
            # A variable of a container is by now among the secrets by the name that it has there.
            if name in draft.secrets and not re.search(rf"\b{name}\b", read):
                del draft.secrets[name]
                draft.take_back(_about_secret(name))
                draft.left_out(span, "nothing of the job uses it")

    def _drop_definitions(self, name: str) -> None:
        """Have no line of the job hold the value of what turns out to be a secret."""
        own = [
            item
            for item in self.placing.items
            if item.sets == {name}
            and re.match(rf"((declare|typeset|readonly)\s+)?{name}=", item.source)
        ]
        for item in own:
            self.draft.carried(item.span, "secrets")
        self.placing.items = [item for item in self.placing.items if item not in own]

    def _secret(self, name: str, value: Optional[Value], span: Span) -> None:
        """Name a secret: its value is never written into the job."""
        holes = self.scope.holes_of(value) if isinstance(value, str) else []
        sources = "".join(hole.source for hole in holes)
        makers = [each.source for each in self.placing.items if name in each.sets]
        if makers and value is not None and self.scope.is_itself(name, value):
            sources = makers[-1].partition("=")[2].strip("\"'")
        self.draft.secrets[name] = "env"
        self.scope.leave_open(name)
        self._drop_definitions(name)
        if found := re.fullmatch(r"\$\((?:cat |<)\s*([~\w./-]+)\)", sources):
            self.draft.secrets[name] = {"command": f"cat {found[1]}"}
            self.draft.carried(span, "secrets")
        elif value is None or self.scope.is_itself(name, value):
            self.draft.carried(span, "secrets")
        else:
            self.draft.decide(span, _about_secret(name))
