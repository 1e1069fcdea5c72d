"""Expand the words of a script as bash would, as far as that is known before the job runs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Optional

from kit.base import bash_tree
from kit.base.bash_tree import Node
from kit.config.expansion import OF_SHELL
from kit.importing import slurm_numbers
from kit.importing.fields import Fields, compute
from kit.importing.holes import HOLE, Holes, Value

# A command whose output is a value; $(( )) is none.
COMPUTED = re.compile(r"[$<>]\((?!\()|`")
# What has another value each time, or on each node.
DIFFERS = re.compile(
    r"\b(date|hostname|mktemp|shuf|uuidgen|openssl)\b|RANDOM|EPOCH|SECONDS|HOSTNAME|BASHPID|\$\$"
    r"|SLURMD_NODENAME|/dev/u?random"
)
_PWD = re.compile(r"\$\( *pwd *\)|` *pwd *`")
_PARAMETER = re.compile(
    r"\$(\w+|[@*#?$!-])|\$\{(\w+|[@*#])(?:\[([@*]|\d+)\])?(?::?([-=])(?:.*))?\}", re.DOTALL
)

# Modules and environments add to these, so that a default for them is seldom taken.
PATH_LIKE = re.compile(r"((LD_)?LIBRARY_|PYTHON|C|MAN|PKG_CONFIG_)?PATH|LD_PRELOAD")


class Scope(Holes):
    """The variables of a script, up to the statement that is read now."""

    def __init__(
        self, known: Mapping[str, str], facts: dict[str, str], shell: Mapping[str, str]
    ) -> None:
        super().__init__()
        self.values: dict[str, Value] = dict(known)
        self.shell = shell  # the variables of the shell in which kit import runs
        self.facts = facts  # of the header: SLURM_NNODES and its kin
        self.of_script: dict[str, Value] = {}  # what the script gave variables that kit sets
        self.texts: dict[str, str] = {}  # of variables that are open for a part of their text alone
        self.exported: set[str] = set()  # those among them that its programs found
        self.node_arrays: set[str] = set()  # arrays whose first element is the first node
        self.reads: set[str] = set()  # variables whose values were asked for
        self.sweep: dict[str, list[str]] = {}  # the loops around a statement, and their values
        self.defaults: list[str] = []  # variables for which a ${NAME:-default} was taken

    def leave_open(self, name: str, *, quoted: bool = True, hint: Optional[str] = None) -> None:
        """Let a variable stand for itself: only the running job knows its value."""
        self.values[name] = self.hole(f"${{{name}}}", [name], quoted=quoted, hint=hint)

    def keep_own(self, name: str, value: Optional[Value], *, exported: bool) -> None:
        """Keep what the script gives a variable that kit sets, too."""
        if value is not None and not self.is_itself(name, value):
            self.of_script[name] = value
        if exported:
            self.exported.add(name)

    def change(self, name: str) -> None:
        """Leave those variables open in whose values the former value of this one is."""
        kept = self.texts.items()
        self.texts = {key: text for key, text in kept if name not in {key, *self.names(text)}}
        for other, value in self.values.items():
            if other.isidentifier() and other != name and name in self.names(value):
                self.leave_open(other)

    def fill(self, hint: str, text: str) -> None:
        """Put a text in place of the holes that have this hint, in all values."""

        def filled(value: str) -> str:
            return HOLE.sub(lambda hole: text if self.hinted(hole[0]) == hint else hole[0], value)

        for name, value in self.values.items():
            self.values[name] = filled(value) if isinstance(value, str) else [*map(filled, value)]

    @contextlib.contextmanager
    def lookahead(self) -> Iterator[None]:
        """Expand words of what is not read yet: `: ${NAME:=default}` sets nothing then."""
        before = dict(self.values), set(self.reads), list(self.defaults)
        yield
        self.values, self.reads, self.defaults = before

    @contextlib.contextmanager
    def called(self, words: list[str]) -> Iterator[None]:
        """Expand the words of a function that is called with others."""
        before = self.values
        given = {str(number): word for number, word in enumerate(words)}
        own: dict[str, Value] = {**given, "@": words[1:], "*": words[1:], "#": str(len(words) - 1)}
        self.values = {**before, **own}
        yield
        after = {key: value for key, value in self.values.items() if key not in own}
        self.values = {**after, **{key: before[key] for key in own if key in before}}

    def enter(self, folder: str) -> None:
        """Note that the script goes on in another folder: $PWD of before was the first one."""
        names = frozenset(["SLURM_SUBMIT_DIR"])
        for index, hole in enumerate(self.holes):
            if hole.names == {"PWD"} and hole.hint == ".":
                self.holes[index] = hole._replace(source="$SLURM_SUBMIT_DIR", names=names)
        self.facts["PWD"] = folder

    def swept(self, text: str) -> str:
        """Return a text with {NAME} for the variables of loops, if they are all that is open."""
        for hole in self.holes_of(text):
            name = (hole.hint or "").strip("{}")
            values = self.sweep.get(name, [])
            is_whole = hole.is_quoted or all(len(value.split()) == 1 for value in values)
            if not values or not is_whole or hole.source not in (f"${name}", f"${{{name}}}"):
                return text
        return self.hinted(text)

    def path(self, text: str) -> str:
        """Return a text for a key that names a path.

        kit itself knows some variables there; the values of others are those of this shell.
        """

        def fill(found: re.Match[str]) -> str:
            name = self.holes_of(found.group())[0].source.strip("${}")
            return f"${name}" if name in OF_SHELL else self.shell.get(name, found.group())

        return HOLE.sub(fill, self.hinted(text))

    def inner(self, text: str) -> str:
        """Return the text of `bash -c` with its expansions.

        The inner shell splits what they bring, unless quotes of its own are around it.
        """
        for node in bash_tree.descend(bash_tree.parse(text, "bash -c")):
            if node.get("Type") == "SglQuoted":
                quoted, again = bash_tree.text(node), "$'" if node.get("Dollar") else "'"
                parts = (
                    f'\'"{self.source(part)}"{again}' if HOLE.match(part) else part
                    for part in re.split(f"({HOLE.pattern})", quoted)
                )
                text = text.replace(quoted, "".join(parts))
        return self.source(text)

    def assign(self, node: Node) -> Value:
        """Return the value of an assignment, and keep it."""
        name = str(node["Name"]["Value"])
        was_read = name in self.reads
        value: Value = ""
        if "Array" in node:
            elements = (item["Value"] for item in node["Array"].get("Elems") or [])
            value = [field for word in elements for field in self.words(word)]
        elif node.get("Value"):
            value = self.text(node["Value"])
        if node.get("Append"):
            before = self.values.get(name, [] if isinstance(value, list) else "")
            if isinstance(before, list):
                value = [*before, *([value] if isinstance(value, str) else value)]
            else:
                value = before + value if isinstance(value, str) else [before, *value]
        self.values[name] = value
        if not was_read:  # its own value alone has read it
            self.reads.discard(name)
        return value

    def text(self, word: Node) -> str:
        """Return a word without splitting it, as in an assignment."""
        return " ".join(self._fields(word))

    def document(self, word: Node) -> str:
        """Return the text of a here-document."""
        return "".join(self._fields(word, quoted=True))

    def words(self, word: Node) -> list[str]:
        """Return the words that a word becomes."""
        return self._fields(word, splits=True)

    def settings(self, call: Node) -> list[str]:
        """Return the NAME=VALUE words that stand before a command."""
        return [
            f"{item['Name']['Value']}={self.text(item.get('Value') or {})}"
            for item in call.get("Assigns") or []
        ]

    def _fields(self, word: Node, *, splits: bool = False, quoted: bool = False) -> list[str]:
        fields = Fields(splits=splits)
        self._parts(word, fields, quoted)
        return fields.end()

    def _parts(self, word: Node, fields: Fields, quoted: bool) -> None:
        for index, part in enumerate(word.get("Parts") or []):
            kind = part["Type"]
            if kind == "Lit":
                self._literal(part.get("Value", ""), fields, quoted, is_first=index == 0)
            elif kind == "SglQuoted" and not (part.get("Dollar") and "\\" in part.get("Value", "")):
                fields.add(part.get("Value", ""))
            elif kind == "DblQuoted":
                fields.add("")
                self._parts(part, fields, quoted=True)
            elif kind == "ParamExp":
                self._parameter(part, fields, quoted)
            elif kind == "ArithmExp":
                fields.add(self._arithmetic(part))
            else:
                self._unknown(part, fields, quoted)

    def _unknown(self, part: Node, fields: Fields, quoted: bool) -> None:
        source, names = bash_tree.text(part), bash_tree.names_used(part)
        same = "PWD" if _PWD.fullmatch(source) else slurm_numbers.printed_by(source, self.facts)
        if same:
            fields.add(self.hole(f"${same}", [same], quoted=quoted, hint=self._hint(same)))
        else:
            fields.add(self.hole(source, names, quoted=quoted))

    def _literal(self, text: str, fields: Fields, quoted: bool, *, is_first: bool) -> None:
        if quoted:
            fields.add(re.sub(r'\\(?:([$`"\\])|\n)', lambda found: found[1] or "", text))
            return
        home = self.values.get("HOME")
        if is_first and isinstance(home, str) and re.match(r"~(/|\Z)", text):
            text = home + text[1:]
        is_pattern = re.search(r"(?<!\\)[*?]|(?<!\\)\{[^{}]*(,|\.\.)[^{}]*\}", text)
        if is_pattern and fields.splits:
            fields.add(self.hole(text, (), quoted=False))
            return
        fields.add(re.sub(r"\\(?:\n|(.))", lambda found: found[1] or "", text, flags=re.DOTALL))

    def _parameter(self, part: Node, fields: Fields, quoted: bool) -> None:
        source = bash_tree.text(part)
        found = _PARAMETER.fullmatch(source)
        name = (found[1] or found[2]) if found else ""
        value = self.values.get(name)
        if not found or (found[4] and value and self.may_be_empty("".join(value))):
            if found and found[4] == "=":
                self.values[name] = self.hole(source, bash_tree.names_used(part))
            self._unknown(part, fields, quoted)
            return
        self.reads.add(name)
        is_argument = "#" not in self.values and not name.isidentifier()  # of the batch script
        is_of_node = bool(PATH_LIKE.fullmatch(name))
        has_own = is_argument or is_of_node or name in self.facts
        if found[4] and not value and not has_own:
            self.defaults.append(name)
            value = self.text(part["Exp"]["Word"]) if part["Exp"].get("Word") else ""
            if found[4] == "=":
                self.values[name] = value
        items = value if isinstance(value, list) else [value or ""]
        if name in self.node_arrays and found[3] in (None, "0"):
            fields.add(self.hole("${MASTER_ADDR}", ["MASTER_ADDR"]))
        elif value is None or self.is_itself(name, value):
            fields.add(self.hole(source, [name], quoted=quoted, hint=self._hint(name)))
        elif quoted and "*" in (found[3], name):
            fields.add(self._again(" ".join(items), fields, quoted=True))
        elif found[3] in ("@", "*") or name in ("@", "*"):
            again = [each if quoted else self._again(each, fields) for each in items]
            fields.all(again, quoted)
        else:
            index = int(found[3]) if (found[3] or "").isdecimal() else 0
            text = items[index] if index < len(items) else ""
            if not quoted or isinstance(value, str):
                text = self._again(text, fields, quoted=quoted)
            fields.add(text) if quoted else fields.split(text)

    def _again(self, text: str, fields: Fields, *, quoted: bool = False) -> str:
        """Return the value of an expansion: bash splits what it brings, unless it is quoted."""

        def fill(found: re.Match[str]) -> str:
            (hole,) = self.holes_of(found.group())
            if hole.is_one or hole.source[:1] not in ("$", "`"):
                return found.group()
            return self.hole(hole.source, hole.names, quoted=quoted)

        return HOLE.sub(fill, text) if fields.splits else text

    def is_itself(self, name: str, value: Value) -> bool:
        """Return whether a variable stands for itself: an index or a default is for bash then."""
        hole = self.only_hole(value)
        return hole is not None and hole.source in (f"${name}", f"${{{name}}}")

    def _arithmetic(self, part: Node) -> str:
        """Return the number of $((...)), or a hole that hints at it."""
        source = bash_tree.text(part)
        names = bash_tree.names_used(part)
        text = re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda found: found[1] or found[2], source[3:-2])
        fields = {name: self._number(name) for name in names}
        if not any(HOLE.search(value) for value in fields.values()):
            number = compute(text, fields)
            if number is not None:
                return number
        hint = compute(text, {name: self.hinted(value) for name, value in fields.items()})
        return self.hole(source, names, hint=hint)

    def _hint(self, name: str) -> Optional[str]:
        value = self.values.get(name)
        holes = self.holes_of(value) if isinstance(value, str) else []
        return holes[0].hint if holes else self.facts.get(name)

    def _number(self, name: str) -> str:
        value = self.values.get(name)
        if isinstance(value, str):
            return value
        return self.hole(f"${name}", [name], hint=self.facts.get(name))
