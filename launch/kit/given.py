"""Reads YAML into text with its line, so that every later error can name its place.

YAML's own typing is left aside on purpose: under YAML 1.1 `10:30:00` is the number 37800 and `no` is
False. Each key of a job parses the text as it was written.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Union

from kit.errors import Problems, UsageError

if TYPE_CHECKING:
    import yaml


class Given(NamedTuple):
    """A value as the user gave it, and where: a file's line or an option's name."""

    value: Union[str, list[Given], dict[str, Given], None]
    where: str


def read(path: Path, problems: Problems) -> dict[str, Given]:
    """The top-level mapping of a YAML file; duplicate keys are problems.

    Raises UsageError where there is no such mapping to read.
    """
    import yaml  # imported late: a program as the target needs none of it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=loader)
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}", "check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read: {error}", "check the file's rights and that it is UTF-8 text", where=str(path)) from None
    except yaml.MarkedYAMLError as error:
        from kit import mistakes

        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        problem, fix = mistakes.yaml(error, path.read_text(encoding="utf-8").splitlines())
        raise UsageError(f"not valid YAML: {problem}", fix, where=f"{path}{line}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"not valid YAML: {error}", "remove the character named above", where=str(path)) from None
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise UsageError("expected `key: value` lines", "start with `command: train.py`", where=f"{path}:{root.start_mark.line + 1}")
    return mapping(root, str(path), problems)


def mapping(root: yaml.Node, file: str, problems: Problems) -> dict[str, Given]:
    """The top-level mapping of what a file holds; empty where that is something else."""
    converted = _convert(root, file, problems, ()).value
    return converted if isinstance(converted, dict) else {}


def _convert(node: yaml.Node, file: str, problems: Problems, parents: tuple[yaml.Node, ...]) -> Given:
    import yaml

    where = f"{file}:{node.start_mark.line + 1}"
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
                mapping[key.value] = _convert(child, file, problems, parents)._replace(where=key_where)
        return Given(mapping, where)
    if isinstance(node, yaml.SequenceNode):
        return Given([_convert(child, file, problems, parents) for child in node.value], where)
    return Given(None if node.tag == "tag:yaml.org,2002:null" else node.value, where)
