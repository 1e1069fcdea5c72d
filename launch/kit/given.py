"""Reads YAML into text with its line, so that every later error can name its place.

YAML's own typing is left aside on purpose: under YAML 1.1 `10:30:00` is the number 37800 and `no` is
False. Each key of a job parses the text as it was written.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional, Union

from kit import regular
from kit.errors import Problems, UsageError

if TYPE_CHECKING:
    import yaml


class Given(NamedTuple):
    """A value as the user gave it, and where: a file's line or an option's name."""

    value: Union[str, list[Given], dict[str, Given], None]
    where: str


MOST_BYTES = 1_000_000
MOST_NODES = 100_000  # after aliases, each of which stands for a copy
DEEPEST = 100


def read(path: Path, problems: Problems) -> dict[str, Given]:
    """The top-level mapping of a YAML file; duplicate keys are problems.

    Raises UsageError where there is no such mapping to read.
    """
    import yaml  # imported late: a program as the target needs none of it

    text = _text(path)
    try:
        root = compose(text, str(path))
    except yaml.MarkedYAMLError as error:
        from kit import mistakes

        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        problem, fix = mistakes.yaml(error, text.splitlines())
        raise UsageError(f"not valid YAML: {problem}", fix, where=f"{path}{line}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"not valid YAML: {error}", "remove the character named above", where=str(path)) from None
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise UsageError("expected `key: value` lines", "start with `command: train.py`", where=f"{path}:{root.start_mark.line + 1}")
    return mapping(root, str(path), problems)


def _text(path: Path) -> str:
    """Return the text of a regular file of at most MOST_BYTES. Raises UsageError for anything else."""
    try:
        content = regular.start(path, MOST_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}", "check the path") from None
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", "check that it is a file, its rights, and that it is UTF-8 text", where=str(path)) from None
    if len(content) > MOST_BYTES:
        raise UsageError(f"is longer than {MOST_BYTES // 10**6} MB", "put data into a file of the program's own", where=str(path))
    try:
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot be read: {error}", "check the file's rights and that it is UTF-8 text", where=str(path)) from None


def compose(text: str, path: str) -> Optional[yaml.Node]:
    """Return what YAML makes of a text. Raises UsageError where it is nested too deep, which would overflow the stack, and yaml.YAMLError."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                where = f"{path}:{event.start_mark.line + 1}" if event.start_mark else path
                raise UsageError(f"is nested more than {DEEPEST} deep", "a job needs three levels: is a bracket not closed?", where=where)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    root: Optional[yaml.Node] = yaml.compose(text, Loader=loader)
    return root


def mapping(root: yaml.Node, file: str, problems: Problems) -> dict[str, Given]:
    """The top-level mapping of what a file holds; empty where that is something else. Raises UsageError where it is too much."""
    converted = _convert(root, file, problems, (), itertools.count(1)).value
    return converted if isinstance(converted, dict) else {}


def _convert(node: yaml.Node, file: str, problems: Problems, parents: tuple[yaml.Node, ...], counted: Iterator[int]) -> Given:
    import yaml

    where = f"{file}:{node.start_mark.line + 1}"
    if next(counted) > MOST_NODES:
        raise UsageError(f"has more than {MOST_NODES} values", "put data into a file of the program's own", where=where)
    if any(node is parent for parent in parents):
        problems.add(where, "an alias refers to what contains it", "write the value out")
        return Given("", where)
    parents = (*parents, node)
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Given] = {}
        for key, child in node.value:
            key_where = f"{file}:{key.start_mark.line + 1}"
            if key.tag == "tag:yaml.org,2002:merge":
                problems.add(key_where, "merging with << is not supported", "write the keys out")
            elif not isinstance(key, yaml.ScalarNode):
                problems.add(key_where, "a key must be plain text", "write `key: value`")
            elif key.value in mapping:
                problems.add(key_where, f"'{key.value}' is given twice", f"keep one; the first is at {mapping[key.value].where}")
            else:
                # A block value starts on the line below its key; the key's line is the one to show.
                mapping[key.value] = _convert(child, file, problems, parents, counted)._replace(where=key_where)
        return Given(mapping, where)
    if isinstance(node, yaml.SequenceNode):
        return Given([_convert(child, file, problems, parents, counted) for child in node.value], where)
    return Given(None if node.tag == "tag:yaml.org,2002:null" else node.value, where)
