"""Find the words of a job that name files, and which of these files its lines of bash write."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, Optional

from kit.base import assets
from kit.base.errors import KitError
from kit.config import shell_words
from kit.config.job import Job
from kit.importing import shell
from kit.importing.shell import Node, Script
from kit.plan import run_paths
from kit.plan.mounting import FileView

CONFIGURATIONS = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
# How the options are called whose files the program writes, and those whose files it surely reads.
_WRITTEN = re.compile(
    "(?i)(.*[-_.])?(o$|out|save|log|result|metric|dump|export|write|report|checkpoint|ckpt|dest"
    "|history|summar|prediction)(?!.*(conf|cfg))"
)
_SETTINGS = re.compile("(?i)(c|ds)$|.*(args$|conf|cfg|param|setting|recipe|deepspeed|fsdp)")
# Commands that write all files that they name, those of which -i asks for it, and the last one.
_WRITERS = {"mv", "rm", "tee", "touch", "truncate"}
_EDITORS = {"perl", "sed", "yq"}
_COPIERS = {"cp", "install", "ln", "rsync"}
# A word with nothing that bash would read in another way.
_PLAIN = re.compile(r"[\w./+=:@%-]+")
_VARIABLE = re.compile(r"\"?\$\{?(\w+)\}?\"?")


class Word(NamedTuple):
    """A plain word of a script."""

    line: int
    start: int  # in the text's bytes; behind `--option=`
    path: str
    before: str  # `--option`, `name=`, or the word before it
    is_placed: bool  # not relative in a script with a `cd`: kit does not know which file it means


def is_written(before: str) -> bool:
    """Return whether the word before a file, `--option` or `name=`, says that it is written."""
    return _is_option(before) and _WRITTEN.match(before.strip("-=")) is not None


def is_surely_read(before: str, path: str) -> bool:
    """Return False for what an option's name leaves open: its .json may be results as well."""
    is_open = path.endswith(".json") and _is_option(before)
    return not is_open or _SETTINGS.match(before.strip("-=")) is not None


def _is_option(before: str) -> bool:
    return before.startswith("-") or before.endswith("=")


def words(lines: str) -> Iterator[Word]:
    """Yield the plain words of commands, and those that variables are set to.

    What is in quotes, a comment or a here-document is none, nor is what a redirection names.
    """
    script, stays = _read(lines)[0], not shell_words.changes_folder(lines)
    if not script:
        return
    for before, node in _words(script, without=("DblQuoted",)):
        text = script.text(node) if shell.literal(node) else ""
        if _PLAIN.fullmatch(text):
            before, path = _split(before, text)
            start = node["Pos"]["Offset"] + len(text[: len(text) - len(path)].encode())
            is_placed = stays or os.path.isabs(path)
            yield Word(node["Pos"]["Line"], start, path, before, is_placed)


def with_frozen(lines: str, frozen: Mapping[Word, str]) -> str:
    """Return the script in which these words name files of the code's copy."""
    data = lines.encode()
    for word in sorted(frozen, key=lambda word: word.start, reverse=True):
        place = f'"${{KIT_CODE}}"/{frozen[word]}'.encode()
        data = data[: word.start] + place + data[word.start + len(word.path.encode()) :]
    return data.decode()


def writer(job: Job, path: str, view: FileView) -> str:
    """Return the key of the job's lines that write a file, as far as they say so; else ""."""
    for key in run_paths.LINES:
        lines = getattr(job, key) or ""
        # Behind a `cd`, only the file's own name is known.
        same = os.path.basename if shell_words.changes_folder(lines) else view.full
        if same(path) in map(same, written(lines)):
            return key
    return ""


def unread(lines: str) -> str:
    """Return why kit finds no files in these lines; "" where it can read them."""
    return _read(lines)[1]


@lru_cache(maxsize=8)
def written(lines: str) -> frozenset[str]:
    """Return the files that lines of bash write, where their words say so.

    Those are what output goes to, what a command such as cp or tee writes, and the files of options
    and variables whose names tell it; for `$NAME`, it is what the variable is set to.
    """
    script = _read(lines)[0]
    if not script:
        return frozenset()
    named = [_split(before, script.text(node)) for before, node in _words(script)]
    found = [path for before, path in named if is_written(before)]
    for node in shell.descend(script.statements):
        found += [script.text(each["Word"]) for each in script.redirects_into_files(node)]
        if node.get("Type") == "CallExpr" and node.get("Args"):
            found += _written_by(*(script.text(word).strip("\"'") for word in node["Args"]))
    variables = map(_VARIABLE.fullmatch, found)
    through = {f"{variable[1]}=" for variable in variables if variable}
    found += [path for before, path in named if before in through]
    return frozenset(path.strip("\"'") for path in found)


def _written_by(command: str, *operands: str) -> Iterable[str]:
    """Return what a command writes that is known for it."""
    is_editing = any(word.startswith(("-i", "--in-place")) for word in operands)
    found = operands if command in _WRITERS or (command in _EDITORS and is_editing) else ()
    if operands and command in (*_COPIERS, "mv"):
        *sources, last = operands  # which may be a folder
        found += (last, *(os.path.join(last, os.path.basename(each)) for each in sources))
    return found


@lru_cache(maxsize=8)
def _read(lines: str) -> tuple[Optional[Script], str]:
    """Return what shfmt reads, or why it cannot."""
    if not lines:
        return None, ""
    try:
        return shell.parse(lines, ""), ""
    except (KitError, OSError, UnicodeError, subprocess.SubprocessError):
        has_tool = assets.program("shfmt")
    return None, "shfmt cannot read it" if has_tool else "that needs shfmt: pip install shfmt-py"


def _words(script: Script, without: tuple[str, ...] = ()) -> Iterator[tuple[str, Node]]:
    """Yield the words of commands, and the values of variables, with what is before each."""

    def listed(before: str, nodes: list[Node]) -> Iterator[tuple[str, Node]]:
        return zip([before, *map(script.text, nodes)], nodes)

    for node in shell.descend(script.statements, without):
        if node.get("Type") == "CallExpr":
            yield from listed("", node.get("Args") or [])
        elif node.get("Type") == "WordIter":  # of `for name in ...`
            yield from ((f"{node['Name']['Value']}=", item) for item in node.get("Items") or [])
        for each in shell.assignments(node):
            name = f"{each['Name']['Value']}=" if each.get("Name") else ""
            items = (each.get("Array") or {}).get("Elems") or [each]
            yield from listed(name, [item["Value"] for item in items if item.get("Value")])


def _split(before: str, text: str) -> tuple[str, str]:
    """Return what is before a path, and the path: both may be in one word."""
    option, equals, path = text.partition("=")
    return (option + equals, path) if equals else (before, text)
