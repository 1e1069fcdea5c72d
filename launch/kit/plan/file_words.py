"""Find the words of a job that name files, and which of these files its lines of bash write."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from kit.base import assets, bash_tree
from kit.base.bash_tree import Node
from kit.base.errors import KitError
from kit.config import shell_words
from kit.config.job import Job
from kit.plan import run_paths
from kit.plan.mounting import FileView

CONFIGURATIONS = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
PROGRAMS = (".py", ".sh", ".bash")
ENDINGS = (*PROGRAMS, *CONFIGURATIONS)  # of code and settings
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
# What has the words behind it start in another folder, in lines that a shell reads from a text.
_MOVES = re.compile(r"(?<![\w./=:$@%+-])(cd|pushd|popd)(?![\w./=:@%+-])|--chdir\b|\benv -C\b")
_MOVERS = {"cd", "pushd", "popd"}
# Into the code's copy, in which relative names mean what kit puts in their place.
_INTO_COPY = re.compile(r"\"?\$(KIT_CODE|\{KIT_CODE(:-\.?)?\})\"?")
# Where only such commands run, as in `$(cd .. && pwd)` and `(cd build && make)`, a `cd` moves no
# program of the user's, nor its arguments.
_SUBSHELLS = ("Subshell", "CmdSubst", "ProcSubst")
_HARMLESS = _MOVERS | set(
    """
    [ : basename cat cmake dirname echo exit git ls make mkdir ninja printf pwd readlink realpath rm
    tar test true unzip
    """.split()
)
_EVERYWHERE = range(sys.maxsize)
_VARIABLE = re.compile(r"\"?\$\{?(\w+)\}?\"?")


class Word(NamedTuple):
    """A plain word of a script."""

    line: int
    start: int  # in the text's bytes; behind `--option=`
    path: str
    before: str  # `--option`, `name=`, or the word before it
    is_placed: bool  # not relative behind a `cd`: kit does not know which file it means

    @property
    def is_surely_read(self) -> bool:
        return is_surely_read(self.before, self.path)


def is_written(before: str) -> bool:
    """Return whether the word before a file, `--option` or `name=`, says that it is written."""
    return _is_option(before) and _WRITTEN.match(before.strip("-=")) is not None


def is_of_run(word: Word) -> bool:
    """Return whether a word names code or settings that the run reads."""
    return word.path.endswith(ENDINGS) and not is_written(word.before)


def is_surely_read(before: str, path: str) -> bool:
    """Return False for what an option's name leaves open: its .json may be results as well."""
    is_open = path.endswith(".json") and _is_option(before)
    return not is_open or _SETTINGS.match(before.strip("-=")) is not None


def _is_option(before: str) -> bool:
    return before.startswith("-") or before.endswith("=")


@lru_cache(maxsize=8)
def words(lines: str) -> tuple[Word, ...]:
    """Return the plain words of commands, and those that variables are set to.

    What is in quotes, a comment or a here-document is none, nor is what a redirection names.
    """
    script, moved = _read(lines)[0], _moved(lines)
    if not script:
        return ()
    found = []
    for before, node in _words(script, without=("DblQuoted",)):
        text = bash_tree.text(node) if bash_tree.literal(node) else ""
        if _PLAIN.fullmatch(text):
            before, path = _split(before, text)
            start = node["Pos"]["Offset"] + len(text[: len(text) - len(path)].encode())
            is_placed = os.path.isabs(path) or not any(start in place for place in moved)
            found.append(Word(node["Pos"]["Line"], start, path, before, is_placed))
    return tuple(found)


def with_frozen(lines: str, frozen: Mapping[Word, str]) -> str:
    """Return the script in which these words name files of the code's copy."""
    if not frozen:
        return lines  # which may be no UTF-8
    data = lines.encode()
    for word in sorted(frozen, key=lambda word: word.start, reverse=True):
        place = f'"${{KIT_CODE}}"/{frozen[word]}'.encode()
        data = data[: word.start] + place + data[word.start + len(word.path.encode()) :]
    return data.decode()


def writer(job: Job, path: str, view: FileView) -> str:
    """Return the key of the job's lines that write a file, as far as they say so; else ""."""
    name = os.path.basename(path)
    for key in run_paths.LINES:
        lines = getattr(job, key)
        # Behind a `cd`, only the file's own name is known.
        same = os.path.basename if changes_folder(lines) else view.full
        alike = (each for each in written(lines) if os.path.basename(each) == name)
        if same(path) in map(same, alike):
            return key
    return ""


def changes_folder(lines: str) -> bool:
    """Return whether relative names in bash may begin elsewhere than at the working directory."""
    return _EVERYWHERE in _moved(lines)


def names_copy(lines: str) -> bool:
    """Return whether lines of bash name the code's copy themselves."""
    return re.search(r"\$\{?KIT_CODE\b", lines) is not None


@lru_cache(maxsize=8)
def _moved(lines: str) -> tuple[range, ...]:
    """Return the bytes of bash at which names may do so: all, or those of harmless subshells."""
    script, is_mentioned = _read(lines)[0], _mentions_move(lines)
    if not script:
        return (_EVERYWHERE,) if is_mentioned else ()
    nodes = [*bash_tree.descend(script)]
    moves = [node["Pos"]["Offset"] for node in nodes if _is_move(node, is_mentioned)]
    subshells = [
        range(node["Pos"]["Offset"], node["End"]["Offset"])
        for node in nodes
        if node.get("Type") in _SUBSHELLS and bash_tree.programs_inside(node) <= _HARMLESS
    ]
    if not all(any(at in place for place in subshells) for at in moves):
        return (_EVERYWHERE,)
    return tuple(place for place in subshells if any(at in place for at in moves))


def _is_move(node: Node, is_mentioned: bool) -> bool:
    """Return whether a command goes to another folder, or a text for a shell may do so.

    is_mentioned: whether the script has words for that anywhere.
    """
    if node.get("Hdoc"):
        return _mentions_move(bash_tree.text(node["Hdoc"]))
    words = [bash_tree.text(word) for word in node.get("Args") or [] if word.get("Parts")]
    while words[1:] and words[0] in ("builtin", "command"):
        del words[0]
    if node.get("Type") != "CallExpr" or not words:
        return False
    name = words[0].strip("\\\"'")
    if name in _MOVERS:
        return not (words[1:] and _INTO_COPY.fullmatch(words[-1]))
    is_shell = False
    for before, word in zip(words, words[1:]):
        if word.startswith("--chdir") or (before, word) == ("env", "-C"):
            return True
        is_shell = is_shell or os.path.basename(before) in shell_words.SHELLS
        is_text = name == "eval" or (is_shell and re.fullmatch(r"-\w*c", before))
        # Of a text with variables, kit does not know all.
        if is_text and (is_mentioned if "$" in word else _mentions_move(word)):
            return True
    return False


def _mentions_move(text: str) -> bool:
    return _MOVES.search(re.sub(r"(?m)(?<!\S)#.*", "", text)) is not None


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
    named = [_split(before, bash_tree.text(node)) for before, node in _words(script)]
    found = [path for before, path in named if is_written(before)]
    for node in bash_tree.descend(script):
        found += [bash_tree.text(each["Word"]) for each in bash_tree.redirects_into_files(node)]
        if node.get("Type") == "CallExpr" and node.get("Args"):
            found += _written_by(*(bash_tree.text(word).strip("\"'") for word in node["Args"]))
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
def _read(lines: str) -> tuple[list[Node], str]:
    """Return what shfmt reads, or why it cannot."""
    if not lines:
        return [], ""
    try:
        return bash_tree.parse(lines, ""), ""
    except (KitError, OSError, ValueError, RecursionError, subprocess.SubprocessError):
        has_tool = assets.program("shfmt")
    lacks = "that needs shfmt on PATH (pip install shfmt-py)"
    return [], "shfmt cannot read it" if has_tool else lacks


def _words(script: list[Node], without: tuple[str, ...] = ()) -> Iterator[tuple[str, Node]]:
    """Yield the words of commands, and the values of variables, with what is before each."""

    def listed(before: str, nodes: list[Node]) -> Iterator[tuple[str, Node]]:
        return zip([before, *map(bash_tree.text, nodes)], nodes)

    for node in bash_tree.descend(script, without):
        if node.get("Type") == "CallExpr":
            yield from listed("", node.get("Args") or [])
        elif node.get("Type") == "WordIter":  # of `for name in ...`
            yield from ((f"{node['Name']['Value']}=", item) for item in node.get("Items") or [])
        for each in bash_tree.assignments(node):
            name = f"{each['Name']['Value']}=" if each.get("Name") else ""
            items = (each.get("Array") or {}).get("Elems") or [each]
            yield from listed(name, [item["Value"] for item in items if item.get("Value")])


def _split(before: str, text: str) -> tuple[str, str]:
    """Return what is before a path, and the path: both may be in one word.

    The = of `runs/lr=0.1/train.py` belongs to the path.
    """
    option, equals, path = text.partition("=")
    is_path = "/" in option and not option.startswith("-")
    return (option + equals, path) if equals and not is_path else (before, text)
