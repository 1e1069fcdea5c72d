"""Turn the #SBATCH lines of a script into keys of a job."""

from __future__ import annotations

import math
import re
import shlex

from kit.base.bash_tree import Span
from kit.config import sbatch_options
from kit.importing import containers, getopt
from kit.importing.draft import DECIDE, DIRECTIVE, Draft
from kit.importing.getopt import Option, Syntax
from kit.slurm import gpu_request, sbatch_variables
from kit.slurm.gpu_request import GpuRequest

GivenOptions = dict[str, tuple[str, Span]]  # {long name: its value, and its lines}

_FLAGS = sbatch_options.FLAGS | sbatch_options.OWNED_FLAGS
SYNTAX = Syntax(sbatch_options.LETTERS, _FLAGS, sbatch_options.every(), sbatch_options.ALIASES)
_LOGS = "kit keeps the logs itself: runs/NAME-TIME/log/"
_LEFT_OUT = {
    "output": _LOGS,
    "error": _LOGS,
    "open-mode": _LOGS,
    "export": "the ranks get what the job names: `env`, `inherit`",
    "export-file": "the ranks get what the job names: `env`, `inherit`",
    "no-requeue": "kit asks for that itself",
    "parsable": "`kit submit --parsable`",
    "wait": "`kit submit --follow` waits for the job",
    "ignore-pbs": "kit's script has no #PBS lines",
    "gpu-bind": "each rank sees all GPUs of its node, and takes the one of its local rank",
}
_OF_TASK = ("gpus-per-task", "tres-per-task")  # what each task has
_NUMBER = re.compile(r"(nodes|ntasks|cpus|gpus|mem|time)(-|\Z)|array\Z")
OWN_GPUS = "each rank saw GPUs of its own; now it sees all and takes its LOCAL_RANK's"
WITHOUT_HANDLER = (
    "a program that does not handle it needs `on_preempt: requeue` (docs/preemption.md)"
)
RESUBMITS = (
    "this starts a job again, or another one: `kit submit --after RUN` waits for a run, and"
    " `on_preempt: checkpoint` goes on by itself; it asks the ranks for a checkpoint by SIGUSR1; "
    f"{WITHOUT_HANDLER}"
)


def read(draft: Draft) -> GivenOptions:
    """Put the options of the #SBATCH lines into the draft, and return them."""
    given: GivenOptions = {}
    is_over = is_part = False
    for number, line in enumerate(draft.lines, 1):
        here = (number, number)
        if not line.lstrip().startswith("#"):
            is_over = is_over or bool(line.strip())
        elif line.startswith(("#PBS ", "#BSUB ")):
            draft.decide(here, "an option for another batch system: write it as one of Slurm's")
        elif not is_over and re.match("#(BB|DW)[ _]", line):
            way = "write these lines to a file, and name it: `slurm: {bbf: FILE}`"
            draft.decide(here, f"a burst buffer: {way}")
        elif not DIRECTIVE.match(line):
            continue
        elif is_over:
            draft.left_out(here, "sbatch reads no #SBATCH line after the first command")
        elif is_part or re.match(r"#SBATCH\s+(hetjob|packjob)\b", line):
            is_part = True
            draft.decide(here, "a job of several parts: kit submits one job for each")
        else:
            _read_line(line[len("#SBATCH") :], here, given, draft)
    _shape(given, draft)
    memory = [name for name in sbatch_variables.MEMORY if name in given]
    for name in memory[1:]:
        way = f"--{name} beside --{memory[0]}: sbatch takes one of them; keep the one that is meant"
        draft.decide(given[name][1], way)
    return given


def _read_line(line: str, here: Span, given: GivenOptions, draft: Draft) -> None:
    try:
        words = _split(line)
    except ValueError:
        draft.decide(here, "a quote begins here and does not end, or a backslash ends the line")
        return
    found, rest = getopt.read(words, SYNTAX)
    for option in found:
        if option.value or not _lacks_value(option, here, draft):
            before, _ = given.get(option.name, ("", here))
            given[option.name] = (getopt.value_after(before, option), here)
            _carry(option, here, draft)
    if rest:
        name = rest[0].partition("=")[0]  # what is behind it may be a secret
        problem = f"sbatch refuses this line, for '{name}' is not an option"
        draft.decide(here, problem)


def _lacks_value(option: Option, here: Span, draft: Draft) -> bool:
    """Note an option whose value is missing, or empty: sbatch takes some for the default."""
    name, value = option
    is_missing = value is None and name in SYNTAX.known and name not in _FLAGS
    if is_missing or (value == "" and _NUMBER.match(name)):
        way = "write one, or take the option out"
        draft.decide(here, f"sbatch refuses --{name} without a value: {way}")
    elif value == "":
        draft.left_out(here, f"--{name} has no value")
    return is_missing or value == ""


def _carry(option: Option, here: Span, draft: Draft) -> None:
    name, value = option
    if re.match(r"(gres|gpus|gpus-per-(node|task)|ntasks(-per-(node|gpu))?)\Z", name):
        return  # `_shape` reads these together
    if containers.is_option(name):
        draft.container_lines.append(here)  # importer.py reads these together
    elif name == "export" and set((value or "").split(",")) - {"ALL", "NONE", "NIL"}:
        _export(value or "", here, draft)
    elif name in _LEFT_OUT:
        draft.left_out(here, _LEFT_OUT[name])
    elif name == "chdir" and value == ".":
        draft.left_out(here, "the job starts in the job file's folder")
    elif key := sbatch_options.KEYS.get(name) or {"chdir": "workdir"}.get(name):
        draft.keys[key] = value or ""
        draft.carried(here, key)
    elif name in sbatch_options.OWNED:
        draft.left_out(here, "kit's scripts set this themselves")
    elif name == "signal" and str(value).upper().startswith("B:"):
        way = checkpoint_advice(str(value))
        draft.decide(here, f"a signal for the batch script, which is kit's now: {way}")
    else:
        draft.slurm[name] = getopt.value_after(draft.slurm.get(name, ""), option, "true")
        draft.carried(here, f"slurm: {name}")


def checkpoint_advice(signal: str) -> str:
    """Return what does in kit what a signal before the time limit is for."""
    found = re.search(r"@(\d+)", signal)
    seconds = f" with `checkpoint_s: {found[1]}`" if found else ""
    way = "asks the ranks for a checkpoint in time, by SIGUSR1"
    return f"`on_preempt: checkpoint`{seconds} {way}; {WITHOUT_HANDLER}"


def leave_requeue(draft: Draft) -> None:
    """Leave `requeue` out where `on_preempt: checkpoint`, which sets it, is advised."""
    is_advised = any("on_preempt" in entry.reason for entry in draft.entries)
    if not is_advised or not draft.slurm.pop("requeue", ""):
        return
    way = "without that write `slurm: {requeue: true}`"
    reason = f"`on_preempt: checkpoint` has Slurm start the job again itself; {way}"
    draft.entries = [
        each._replace(kind=DECIDE, reason=reason) if each.reason == "slurm: requeue" else each
        for each in draft.entries
    ]


def _export(value: str, here: Span, draft: Draft) -> None:
    """Give the job the variables that --export names, or sets by NAME=VALUE."""
    for word in value.split(","):
        name, equals, text = word.partition("=")
        if word not in ("", "ALL", "NONE", "NIL", "HOME", "PATH", "USER"):
            draft.export(here, name, text if equals else None)


def _shape(given: GivenOptions, draft: Draft) -> None:
    """Put the nodes, their GPUs and their tasks into the draft."""
    tasks = _number(given, "ntasks-per-node")
    _nodes(given, tasks, draft)
    nodes = draft.nodes
    _gpus(given, tasks or 1, draft)
    if of_gpu := _number(given, "ntasks-per-gpu"):
        tasks = of_gpu * int(draft.keys.get("gpus_per_node", "1"))
        draft.carried(given["ntasks-per-gpu"][1], "processes_per_node")
    if "ntasks-per-node" in given:
        draft.carried(given["ntasks-per-node"][1], "processes_per_node")
    if (total := _number(given, "ntasks")) and not tasks:
        here = given["ntasks"][1]
        if "nodes" not in given and total > 1:
            draft.keys["nodes"] = "1"
            draft.decide(here, f"Slurm chose the nodes for {total} tasks: write how many `nodes`")
        if total % nodes:
            draft.decide(here, f"{total} tasks are not the same number on each of {nodes} nodes")
        else:
            tasks = total // nodes
            draft.carried(here, "processes_per_node")
    elif "ntasks" in given:
        draft.carried(given["ntasks"][1], "processes_per_node")
    if not given.keys().isdisjoint(_OF_TASK) and "ntasks-per-node" not in given:
        _gpus(given, tasks or 1, draft)
    draft.tasks = draft.cpu_tasks = tasks or 1


def _nodes(given: GivenOptions, tasks: int, draft: Draft) -> None:
    """Take as many nodes as Slurm does for a number of tasks, where no line counts the nodes."""
    total = _number(given, "ntasks")
    if "nodes" in given or not tasks or total <= tasks:
        return
    here = given["ntasks"][1]
    draft.keys["nodes"] = str(math.ceil(total / tasks))
    draft.carried(here, "nodes")
    if total % tasks:
        draft.decide(here, f"{total} tasks are not the same number on each node")


def _gpus(given: GivenOptions, tasks: int, draft: Draft) -> None:
    for name in ("gres", "gpus", "gpus-per-node", *_OF_TASK):
        if name not in given:
            continue
        value, here = given[name]
        others = no_gpus(name, value)
        if others:
            draft.slurm["gres"] = ",".join(others)
            draft.carried(here, "slurm: gres")
        for asked in gpu_request.read({name: value, "ntasks-per-node": str(tasks)}):
            if not ask_for_gpus(asked, draft):
                draft.decide(here, "write the GPUs of one node: `gpus_per_node`")
                continue
            draft.carried(here, "gpus_per_node")
            if name == "tres-per-task":
                _take_gpus_out(value, draft)
            if name in _OF_TASK and tasks > 1:
                draft.decide(here, OWN_GPUS)


def _take_gpus_out(value: str, draft: Draft) -> None:
    """Leave of --tres-per-task what `gpus_per_node` does not say."""
    others = [part for part in value.split(",") if not gpu_request.read({"tres-per-task": part})]
    draft.slurm.pop("tres-per-task", None)
    if others:
        draft.slurm["tres-per-task"] = ",".join(others)


def no_gpus(name: str, value: str) -> list[str]:
    """Return what an option asks for beside GPUs: nvme:1."""
    return [part for part in value.split(",") if name == "gres" and not gpu_request.of_gres(part)]


def ask_for_gpus(asked: GpuRequest, draft: Draft) -> bool:
    """Put GPUs into the draft, unless they are of several types, or not as many on each node."""
    if len(asked.gpus) > 1 or (asked.of_all_nodes and asked.total % draft.nodes):
        return False
    (kind,), count = asked.gpus, asked.of_node(draft.nodes)
    draft.keys["gpus_per_node"] = str(count)
    if kind:
        others = filter(None, no_gpus("gres", draft.slurm.get("gres", "")))
        draft.slurm["gres"] = ",".join([f"gpu:{kind}:{count}", *others])
    return True


def _number(given: GivenOptions, name: str) -> int:
    """Return the number of an option; 0 where it has none."""
    value = given[name][0] if name in given else ""
    return int(value) if value.isdecimal() else 0


def _split(line: str) -> list[str]:
    """Return the words of an #SBATCH line as sbatch splits it: an unquoted # ends it anywhere.

    Raise ValueError if it ends within quotes, or with a backslash.
    """
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.escapedquotes = True, "\"'"
    return list(lexer)
