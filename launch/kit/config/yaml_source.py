"""Read YAML into texts with their lines, so that every later error can name its place.

YAML's own typing is ignored on purpose: under YAML 1.1 `10:30:00` is the number 37800 and `no` is
False. Each key of a job parses the text as it was written.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, Union

import yaml

from kit.base.errors import Problems, UsageError, did_you_mean
from kit.config import yaml_errors
from kit.files import safe_read


class Joined(NamedTuple):
    """Two neighbouring lines of a file that YAML has joined."""

    number: int  # of the upper one
    upper: str
    lower: str


class Located(NamedTuple):
    """A value as the user gave it, and its place: a line of a file, or the name of an option."""

    value: Union[str, list[Located], dict[str, Located], None]
    where: str
    joined: tuple[Joined, ...] = ()  # where the value is a text that has several lines in the file

    def items(self) -> list[Located]:
        """Return the items of a list; any other value is the only item."""
        return self.value if isinstance(self.value, list) else [self]

    def with_texts(self, change: Callable[[str, str], str]) -> Located:
        """Return it with what `change` makes of each of its texts, and the text's place."""
        value = self.value
        if isinstance(value, list):
            return self._replace(value=[each.with_texts(change) for each in value])
        if isinstance(value, dict):
            changed = {name: each.with_texts(change) for name, each in value.items()}
            return self._replace(value=changed)
        return self if value is None else self._replace(value=change(value, self.where))


def is_option(where: str) -> bool:
    """Return whether a place is an option of the command line, and no line of a file."""
    return where.startswith("--")


def is_typed(where: str) -> bool:
    """Return whether a value was given over those of a file: by an option, or by a call's key."""
    return is_option(where) or where.endswith("()")


def refuse_unknown(
    given: dict[str, Located], known: Collection[str], what: str, problems: Problems
) -> None:
    """Note a problem for each key that `what` does not have."""
    for key in [key for key in given if key not in known]:
        fix = did_you_mean(key, known, the_keys(known))
        problems.add(given[key].where, f"unknown key '{key}' in {what}", fix)


def the_keys(known: Collection[str]) -> str:
    """Return the fix for a key that is like none of these: the file may be for a newer kit."""
    return f"the keys are {', '.join(known)}; a newer kit may have more"


def inline(value: Any) -> str:
    """Return a value as YAML has it on one line."""
    text = yaml.safe_dump(
        value, default_flow_style=True, width=1 << 20, allow_unicode=True, sort_keys=False
    )
    return str(text).removesuffix("\n").removesuffix("\n...")


ENDINGS = (".yaml", ".yml")  # the first counts where a folder has both of a name
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is ten times as fast
MOST_BYTES = 1_000_000
MOST_NODES = 100_000  # after aliases, each of which stands for a copy
DEEPEST = 100
WIDTH = 80  # of the lines that a library for YAML writes, unless it is told otherwise
_TOO_MUCH = "put data into a file of the program's own"


def read(path: Path, problems: Problems, example: str = "command: train.py") -> dict[str, Located]:
    """Return the top-level mapping of a YAML file; duplicate keys are problems.

    `example` is a first line for a file that has no such mapping.
    Raises UsageError if there is no such mapping to read.
    """
    text = _text(path)
    try:
        root = compose(text, str(path))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        problem, fix = yaml_errors.explain(error, text, LOADER)
        raise UsageError(f"not valid YAML: {problem}", fix, where=f"{path}{line}") from None
    except yaml.YAMLError as error:
        fix = "remove the character named above"
        raise UsageError(f"not valid YAML: {error}", fix, where=str(path)) from None
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        place = f"{path}:{root.start_mark.line + 1}"
        fix = f"start with `{example}`"
        raise UsageError("expected `key: value` lines", fix, where=place)
    return mapping(root, str(path), problems, text.splitlines())


def _text(path: Path) -> str:
    """Return the text of a regular file of at most MOST_BYTES, or raise UsageError."""
    try:
        content = safe_read.start(path, MOST_BYTES + 1)
    except FileNotFoundError:
        names = [name for name in safe_read.names(path.parent) if name.endswith(ENDINGS)]
        fix = did_you_mean(path.name, names, f"looked for {path.absolute()}", cutoff=0.7)
        raise UsageError(f"no such file: {path}", fix) from None
    except OSError as error:
        fix = "check that it is a file, its rights, and that it is UTF-8 text"
        raise UsageError(f"cannot be read: {error.strerror}", fix, where=str(path)) from None
    if len(content) > MOST_BYTES:
        raise UsageError(f"is longer than {MOST_BYTES // 10**6} MB", _TOO_MUCH, where=str(path))
    try:
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        fix = "check the file's rights and that it is UTF-8 text"
        raise UsageError(f"cannot be read: {error}", fix, where=str(path)) from None


def compose(text: str, path: str) -> Optional[yaml.Node]:
    """Return the root node of a YAML text.

    Raises yaml.YAMLError, and UsageError if it is nested so deep that it would overflow the stack.
    """
    depth = 0
    try:
        for event in yaml.parse(text, Loader=LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise _too_deep(path, event.start_mark)
    except yaml.MarkedYAMLError as error:
        if "maximum nesting depth" in (error.problem or ""):  # libyaml's own limit, since 0.2.6
            raise _too_deep(path, error.problem_mark) from None
        raise
    root: Optional[yaml.Node] = yaml.compose(text, Loader=LOADER)
    return root


def _too_deep(path: str, mark: Any) -> UsageError:
    where = f"{path}:{mark.line + 1}" if mark else path
    fix = "a job needs three levels: is a bracket not closed?"
    return UsageError(f"is nested more than {DEEPEST} deep", fix, where=where)


def mapping(
    root: yaml.Node, file: str, problems: Problems, lines: Sequence[str] = ()
) -> dict[str, Located]:
    """Return the top-level mapping of a file, or {}. Raises UsageError for too many values.

    `lines` are those of the file; without them, `joined` stays empty.
    """
    value = _Converter(file, problems, lines).convert(root, ()).value
    return value if isinstance(value, dict) else {}


class _Converter:
    """Converts the nodes of one file, and counts them."""

    def __init__(self, file: str, problems: Problems, lines: Sequence[str]) -> None:
        self.file, self.problems, self.lines, self.nodes = file, problems, lines, 0

    def convert(self, node: yaml.Node, parents: tuple[yaml.Node, ...]) -> Located:
        where = self._place(node)
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise UsageError(f"has more than {MOST_NODES} values", _TOO_MUCH, where=where)
        if len(parents) > DEEPEST:  # by aliases: `compose` has counted the brackets of the text
            raise _too_deep(self.file, node.start_mark)
        if any(node is parent for parent in parents):
            self.problems.add(where, "an alias refers to what contains it", "write the value out")
            return Located("", where)
        if isinstance(node, yaml.MappingNode):
            return Located(self._mapping(node, (*parents, node)), where)
        if isinstance(node, yaml.SequenceNode):
            return Located([self.convert(child, (*parents, node)) for child in node.value], where)
        value = None if node.tag == "tag:yaml.org,2002:null" else node.value
        return Located(value, where, _joined(node, self.lines))

    def _mapping(
        self, node: yaml.MappingNode, parents: tuple[yaml.Node, ...]
    ) -> dict[str, Located]:
        found: dict[str, Located] = {}
        for key, child in node.value:
            place, add = self._place(key), self.problems.add
            if key.tag == "tag:yaml.org,2002:merge":
                add(place, "merging with << is not supported", "write the keys out")
            elif not isinstance(key, yaml.ScalarNode):
                add(place, "a key must be plain text", "write `key: value`")
            elif key.value in found:
                fix = f"keep one; the first is at {found[key.value].where}"
                add(place, f"'{key.value}' is given twice", fix)
            else:
                # A block value starts on the line below its key, and the key's line is shown.
                found[key.value] = self.convert(child, parents)._replace(where=place)
        return found

    def _place(self, node: yaml.Node) -> str:
        return f"{self.file}:{node.start_mark.line + 1}"


def _joined(node: Any, lines: Sequence[str]) -> tuple[Joined, ...]:
    """Return the neighbouring lines of a text that YAML joins: none of a block behind |."""
    start, end = node.start_mark, node.end_mark
    if node.style == "|" or start.line == end.line or not lines:
        return ()
    if node.style == ">":
        rows = [*lines[start.line + 1 : end.line + 1]]
        depth = next((_indent(row) for row in rows if row.strip()), 0)
        # A line that is indented deeper stays one of its own, and with the next key the text ends.
        rows = [row if _indent(row) == depth else "" for row in rows]
    else:
        quote = int(node.style in ("'", '"'))
        rows = [*lines[start.line : end.line + 1]]
        rows[-1] = rows[-1][: end.column - quote]
        rows[0] = rows[0][start.column + quote :]
    first = start.line + 1 + (node.style == ">")
    pairs = zip(itertools.count(first), map(str.strip, rows), map(str.strip, rows[1:]))
    found = [Joined(*pair) for pair in pairs if pair[1] and pair[2]]
    if node.style == ">":
        return tuple(found)
    if node.style == '"':  # in which a backslash at the end of a line says that it goes on
        found = [each for each in found if not each.upper.endswith("\\")]
    return tuple(each for each in found if not _is_wrapped(lines[each.number - 1], each.lower))


def _is_wrapped(upper: str, lower: str) -> bool:
    """Return whether a program that writes YAML ends a line here, since the next word has no room.

    It does so only in text without > or |.
    """
    return len(upper) + 1 + len(lower.split()[0]) > WIDTH


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
