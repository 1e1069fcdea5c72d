"""Choose the command that starts the ranks, and have it read."""

from __future__ import annotations

import functools
import os
import re
from typing import Optional

from kit.base import bash_tree
from kit.base.bash_tree import Node
from kit.config import variables
from kit.importing import commands, inner_text, program_variables, slurm_numbers
from kit.importing.holes import HOLE, Hole
from kit.importing.items import ACTION, DEFINE, EXPORT, Candidate, Item, depends_on_folder
from kit.importing.launch import Launch
from kit.importing.reading import BACKGROUND, DONE, RETRIES
from kit.importing.statements import Reader

# A task's value of a list.
_OF_TASK = re.compile(r"\$\{(\w+)\[\s*\$?\{?SLURM_ARRAY_TASK_ID\}?\s*(-\s*1\s*)?\]\}")
# Variables whose values begin with an option.
_OF_OPTIONS = re.compile(r"(?<![\w-])(\w+)\+?=[\"'(]?\s*(?:#[^\n]*\n\s*)*-")
_ERREXIT = re.compile(r"(\bset|^#!.*sh) +(-\w+ +)*(-\w*e|-o +errexit)")
_WAIT = re.compile(r"\s*wait(?![\w.-])")
_GUESSED = "this is taken for the program, which starts the ranks: see whether another line does"


def finish(reader: Reader) -> None:
    """Choose the program, and place what depends on that choice."""
    _join_functions(reader)
    if not reader.candidates and reader.unknown:
        reader.candidates = [_likeliest(reader.unknown)]
        reader.placing.remove(reader.candidates[0].item.source)
        if reader.unknown[1:]:
            reader.draft.decide(reader.candidates[0].item.span, _GUESSED)
    if not reader.candidates:
        reader.draft.decide((1, 1), "no program was found: write `command: train.py`")
        reader.placing.place((), [], 0)
        return
    most = max(each.weight for each in reader.candidates)
    *others, chosen = [each for each in reader.candidates if each.weight == most]
    start = chosen.item
    reader.restore(chosen.state)
    if most == 1 and any(each.item[1:3] != start[1:3] for each in others):
        reader.draft.decide(start.span, _GUESSED)
    _advise_sweep(reader, [*reader.placing.items, start])
    _place_others(reader, chosen)
    launch = _launch(reader, start)
    for remark in _remarks(reader, chosen):
        launch.decide(remark)
    reader.scope.sweep = chosen.sweep
    facts = reader.scope.facts  # `bash -c` in a step has others
    launch.read(chosen.words)
    _sweep(reader, launch)
    program_variables.read_container_settings(launch, reader.placing)
    program_variables.read_python_path(launch, reader.placing)
    reader.placing.needed |= reader.scope.reads
    _drop_texts(reader, start)
    reader.placing.of_env = _of_env(reader)
    of_kit = variables.OWNED - launch.unset
    reader.placing.place(launch.names, launch.lines, start.position, of_kit)
    reader.draft.setup += launch.exports
    slurm_numbers.write(reader.draft, "host_setup", facts)
    slurm_numbers.write(reader.draft, "setup", facts, reader.scope.facts)
    slurm_numbers.write(reader.draft, "script", reader.scope.facts)
    reader.variables.drop_unread_secrets(start.source)
    _tell_of_failures(reader, start.position)


def _join_functions(reader: Reader) -> None:
    """Note which functions each function calls, including those that the script defines later."""
    of_script = reader.placing.functions
    for name, node in reader.functions.items():
        called = bash_tree.programs_inside(node) & of_script.keys()
        of_script[name] = of_script[name]._replace(uses=of_script[name].uses | called)


def _place_others(reader: Reader, chosen: Candidate) -> None:
    """Have the other programs run before the chosen one, or ask about them."""
    start = chosen.item
    for each in reader.candidates:
        is_alone = not (each.remarks or each.sweep)
        is_of_same = (each.item.span, each.item.position) == (start.span, start.position)
        if is_of_same:
            continue
        if DONE in each.remarks:
            reader.draft.decide(each.item.span, DONE)
        elif each.weight == 1 and each.item.position < start.position and is_alone:
            reader.placing.add(each.item)
        else:
            way = ": a job of its own, which `kit submit --after RUN` makes wait"
            if _ran_at_once(reader, *sorted((each, chosen), key=lambda one: one.item.position)):
                way = ", which ran at the same time: docs/launchers.md#several-programs-in-one-job"
            reader.draft.decide(each.item.span, f"another program than the job's{way}")


def _of_env(reader: Reader) -> set[str]:
    """Return the variables of `env` that lines of the host find there, with the script's value."""
    draft, values = reader.draft, reader.scope.values
    names = [name for item in reader.placing.items for name in item.sets]
    of_node = r"PATH|(LD_|PYTHON|BASH).*" + ("|HOME|TMPDIR" if draft.has_image else "")
    known = {name for name, text in draft.env.items() if values.get(name) == text}
    return {name for name in known if names.count(name) == 1 and not re.fullmatch(of_node, name)}


def _likeliest(unknown: list[Candidate]) -> Candidate:
    """Return the command that may be the program, where no name of one is known."""
    texts = (each for each in unknown if each.words[0] == "eval" or HOLE.match(each.words[0]))
    others = [each for each in unknown if commands.STARTER_WORDS & {*each.words}] or unknown
    return max(texts, key=lambda each: each.item.position, default=others[0])


def _ran_at_once(reader: Reader, first: Candidate, last: Candidate) -> bool:
    between = reader.draft.lines[first.item.span[1] : last.item.span[0] - 1]
    return BACKGROUND in first.remarks and not any(map(_WAIT.match, between))


def _launch(reader: Reader, start: Item) -> Launch:
    """Return what reads the program's command, with what it has to know of the lines before."""
    program = functools.partial(_inner, reader, start)
    inner = inner_text.TextReader(program, functools.partial(_define, reader, start))
    launch = Launch(reader.draft, reader.scope, inner, start.span)
    sources = "\n".join(item.source for item in reader.placing.items)
    launch.of_options.update(_OF_OPTIONS.findall(sources))
    files = re.findall(r">\s*[\"']?([\w./-]+)", sources)
    launch.written = {os.path.normpath(file) for file in files}
    for item in reader.placing.items:
        for name in item.sets:
            launch.set_by[name] = f"{launch.set_by.get(name, '')}{item.source}\n"
    return launch


def _remarks(reader: Reader, chosen: Candidate) -> list[str]:
    """Return what is to be decided; not that the script waits for its one program, as kit does."""
    behind = reader.draft.lines[chosen.item.span[1] :]
    is_waited_for = len(reader.candidates) == 1 and any(map(_WAIT.match, behind))
    return [each for each in chosen.remarks if each != BACKGROUND or not is_waited_for]


def _tell_of_failures(reader: Reader, position: int) -> None:
    """Say once that a line that fails ends the job: without `set -e` the script went on."""
    code = [line for line in reader.draft.lines if not line.startswith("#SBATCH")]
    lines = [
        item
        for item in reader.placing.items
        if item.kind == ACTION
        and not re.match(r"(export|unset)\b", item.source)
        and item.position <= position
        and "||" not in "".join(reader.draft.lines[item.span[0] - 1 : item.span[1]])
    ]
    if reader.draft.host_setup and lines and not any(map(_ERREXIT.search, code)):
        way = "`|| true` behind it keeps the job going, as the script went on"
        reader.draft.remark(lines[0].span, f"a line of `host_setup` that fails ends the job: {way}")


def _sweep(reader: Reader, launch: Launch) -> None:
    """Write the loops around the program as a sweep; lines of bash find its values in `env`."""
    draft, items = reader.draft, reader.placing.items
    lines = [item for item in items if launch.lines or item.kind != DEFINE]
    used = launch.names.union(*(item.uses for item in lines))
    draft.env.update({name: f"{{{name}}}" for name in reader.scope.sweep if name in used})
    words = " ".join([*draft.keys.get("command", []), *draft.env.values()])
    sweep = {name: values for name, values in reader.scope.sweep.items() if f"{{{name}}}" in words}
    if sweep:
        draft.keys["sweep"] = sweep
    elif reader.scope.sweep:
        draft.decide(launch.span, RETRIES)


def _advise_sweep(reader: Reader, lines: list[Item]) -> None:
    """Name the sweep that does what an array with a list of values in bash does."""
    tasks = re.fullmatch(r"(\d+)-(\d+)(%\d+)?", str(reader.draft.keys.get("array", "")))
    first, last = (int(tasks[1]), int(tasks[2])) if tasks else (0, 0)
    for line in lines if tasks else ():
        for name, minus in _OF_TASK.findall(line.source):
            values = reader.scope.values.get(name)
            begin, end = first - bool(minus), last + 1 - bool(minus)
            if not isinstance(values, list) or begin < 0 or end > len(values):
                continue
            swept = values[begin:end]
            is_shown = all(re.fullmatch(r"[\w.+/-]{1,20}", each) for each in swept)
            shown = ", ".join(swept) if is_shown and len(swept) < 13 else "..."
            key = next(iter(line.sets), name).lower()
            way = f"`sweep: {{{key}: [{shown}]}}`, and `{{{key}}}` in the command"
            reader.draft.remark(line.span, f"kit makes an array of values itself: {way}")


def _drop_texts(reader: Reader, start: Item) -> None:
    """Have no line export the computed texts of several words that are parts of the command."""
    items, before = reader.placing.items, set[str]()
    names = {*start.uses, *re.findall(r"\$\{?(\w+)", start.source)}
    while names != before:
        before = {*names}
        names.update(*(item.uses for item in items if item.sets & names))
    values = reader.scope.values
    texts = {name for name in names if re.search(r"\w\s", "".join(values.get(name, "")))}
    reader.placing.items = [
        item._replace(kind=DEFINE)
        if item.kind == EXPORT and item.sets and item.sets <= texts
        else item
        for item in items
    ]


def _define(reader: Reader, start: Item, name: str, value: Hole) -> None:
    """Have a variable computed before the program, as the batch shell did for its command."""
    source, sets = f"{name}={value.source}", frozenset([name])
    item = Item(DEFINE, start.span, source, value.names, sets, position=start.position)
    reader.placing.add(item)


def _inner(reader: Reader, start: Item, text: str) -> Optional[list[str]]:
    """Read the text of `bash -c`: what prepares the program, and the program as its end."""
    *first, last = _flat(bash_tree.parse(text, "bash -c", start.span)) or [{}]
    call = last.get("Cmd") or {}
    is_simple = all(bash_tree.kind(each) in ("CallExpr", "DeclClause") for each in first)
    if bash_tree.kind(last) != "CallExpr" or not call.get("Args") or not is_simple:
        return None
    if any(reader.launches(each) for each in first) or _leaves_folder(first):
        return None
    before = len(reader.placing.items)
    reader.is_in_task, reader.is_over = True, False
    reader.variables.is_in_task = True
    reader.read(first)
    added = [
        item._replace(position=start.position, is_of_task=True)
        for item in reader.placing.items[before:]
    ]
    reader.placing.items[before:] = added
    return [*reader.scope.settings(call), *reader.words(call)]


def _leaves_folder(statements: list[Node]) -> bool:
    """Return whether lines enter a folder behind one that may depend on the folder of before.

    `setup` runs in one folder, where the program starts.
    """
    places = [place for place, node in enumerate(statements) if commands.changes_folder(node)]
    before = statements[: max(places, default=0)]
    calls = [node for node in before if bash_tree.kind(node) == "CallExpr"]
    harmless = commands.PRINTING | commands.SETTINGS | {"cd", "pushd"}
    others = [
        node for node in calls if bash_tree.programs(node) - harmless or bash_tree.writes(node)
    ]
    return any(depends_on_folder(bash_tree.text(node)) for node in others)


def _flat(statements: list[Node]) -> list[Node]:
    """Return statements with those that && joins as statements of their own."""
    found = []
    for node in statements:
        command = node.get("Cmd") or {}
        is_list = bash_tree.kind(node) == "BinaryCmd" and bash_tree.operator(command) == "&&"
        if is_list and not commands.asks(command["X"]):
            found += _flat([command["X"], command["Y"]])
        else:
            found.append(node)
    return found
