"""Write the #SBATCH lines of a job: what kit asks for, and the user's own options over it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Optional

from kit.base.errors import Problems, did_you_mean
from kit.config import sbatch_options, shell_words, values
from kit.config.job import Job
from kit.config.plugins import Plugin
from kit.config.profiles import Cluster
from kit.config.yaml_source import Located, is_option, is_typed
from kit.plan.bad_nodes import Bad
from kit.plan.plan import Header, Layout
from kit.plan.run_paths import RunPaths
from kit.slurm import gpu_request, sbatch_variables

Options = dict[str, Optional[str]]
Refusal = Optional[tuple[str, str]]  # the problem and its fix; None where there is no problem

CHECKPOINT_S = 120
REQUEUES = ("checkpoint", "requeue")  # the values of on_preempt with which a job is started again
_SIZE = re.compile(r"([0-9]+)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_READABLE_SIZE = re.compile("(?i)[0-9]+[KMGT]?B?|false|no|off")
_BINDS_TASKS = re.compile("(?:v(?:erbose)?,)?(?:single|per_task|map|mask)", re.IGNORECASE)
_WITHOUT_VALUE = (*sbatch_options.FLAGS, "kill-on-invalid-dep")


def header(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    launcher: Optional[Plugin],
    left_out: Sequence[Bad],
    problems: Problems,
) -> Header:
    """Return the options in the order in which they are written, without the nodes `left_out`."""
    given = _given(job, cluster)
    own = _checked(given, launcher, problems)
    _check_against_job(own, given, job, layout, problems)
    lines: dict[str, Optional[str]] = {
        "job-name": job.name,
        "nodes": str(layout.nodes + job.spares) if job.spares else str(job.nodes or 1),
        "ntasks-per-node": str(layout.tasks_per_node),
        "chdir": layout.run_dir,
        "output": str(RunPaths("").job("%j").batch_log),
        "open-mode": "append",  # a requeued job keeps its id
    }
    if job.time:
        lines["time"] = job.time
    # Where the user's own options ask for GPUs, `ranks.check` compares their number.
    if layout.gpus_per_node and not gpu_request.read(own):
        lines |= _gpu_line(cluster.gpu_directive, layout.gpus_per_node, own)
    # `exclusive` asks for all CPUs; `exclusive: user` keeps others away, and asks for no CPU.
    whole = "exclusive" in own and own["exclusive"] is None
    # Beside `tres-per-task=cpu:4` sbatch takes no --cpus-per-task.
    by_tres = re.search("(?:^|,)cpu[:=/]", own.get("tres-per-task") or "")
    if not whole and not by_tres and "cpus-per-task" not in own and "cpus-per-gpu" not in own:
        lines["cpus-per-task"] = str(layout.cpus_per_task)
    if job.on_preempt in REQUEUES:
        # To the batch script alone: a runtime or torchrun would die of it.
        lines |= {"requeue": None, "signal": f"B:USR1@{job.checkpoint_s or CHECKPOINT_S}"}
    elif "requeue" not in own:
        # A training run that starts again from the beginning unasked only costs hours.
        lines["no-requeue"] = None
    # A job on one node has no other that would see to its end.
    can_do_with_fewer = (job.spares and layout.nodes > 1) or layout.least
    if job.max_restarts and not job.elastic and can_do_with_fewer:
        lines["no-kill"] = None  # the job goes on without a node that is lost
    if left_out:
        names = [own.get("exclude"), *(bad.name for bad in left_out)]
        own["exclude"] = ",".join(filter(None, names))
    lines |= own
    if job.array or job.sweep:  # each task's log has Slurm's usual name for it
        lines |= {"array": layout.array or "", "output": str(RunPaths("").job("%A_%a").batch_log)}
    return tuple(lines.items())


def _given(job: Job, cluster: Cluster) -> dict[str, Located]:
    """Return the options of the profile and, over them, those of the job."""
    mine = dict(job.slurm)
    replaced = {"requeue", "no-requeue"} if job.on_preempt in REQUEUES else set()
    # What is typed replaces an alternative in the file, and the job's own that of the profile.
    for names in sbatch_variables.ALTERNATIVES:
        own = {name for name in names if name in mine and _flag(mine[name].value) is not False}
        typed = {name for name in own if is_typed(mine[name].where)}
        for name in own - (typed or own):
            del mine[name]
        replaced |= set(names) if own else set()
    of_site = {name: item for name, item in cluster.slurm.items() if name not in replaced}
    return {**of_site, **mine}


def _check_against_job(
    own: Options, given: dict[str, Located], job: Job, layout: Layout, problems: Problems
) -> None:
    """Refuse options that contradict the job's own keys, or hide GPUs from its tasks."""
    for name in {"signal", "no-requeue"} & own.keys():
        if job.on_preempt in REQUEUES:
            problem = f"'{name}' is set by `on_preempt: {job.on_preempt}`"
            problems.add(given[name].where, problem, "remove one of them")
    nodes, segment = layout.requested_nodes, gpu_request.number(own, "segment", 0)
    missing = -nodes % segment if nodes > segment > 0 else 0  # Slurm ignores a larger segment
    if job.spares and missing:
        problem = f"{nodes} nodes, spares included, are no multiple of `segment` ({segment})"
        other = "segment" if layout.nodes % segment else "spares"
        fix = f"write `spares: {job.spares + missing}`, or leave `{other}` out"
        problems.add(job.where("spares"), f"{problem}: Slurm starts no such job", fix)
    fix = "each rank takes the one of its local rank"
    asked = gpu_request.read({**own, "ntasks-per-node": str(layout.tasks_per_node)})
    per_task = [request.option for request in asked if request.option.endswith("-per-task")]
    for name in per_task if layout.tasks_per_node > 1 else ():
        effect = "each rank sees only one GPU, and NCCL cannot use NVLink between them"
        own_key = f"use the job's own key: `gpus_per_node`; {fix}"
        problems.add(given[name].where, f"with {name} {effect}", own_key)
    of_options = [request.of_node(layout.requested_nodes) for request in asked[:1]]
    count = max([layout.gpus_per_node, *of_options])
    bind = own.get("gpu-bind") or ""
    if count > 1 and _BINDS_TASKS.match(bind):
        problem = f"with gpu-bind {bind} each task sees only some GPUs of its node"
        problems.add(given["gpu-bind"].where, problem, f"leave it out: with `gpus_per_node` {fix}")


def _gpu_line(directive: str, count: int, own: Options) -> Options:
    """Return the line that asks for GPUs; the user's other `gres` goes into it."""
    if directive == "gres":
        return {"gres": ",".join(filter(None, [f"gpu:{count}", own.pop("gres", None)]))}
    return {"gpus-per-node": str(count)} if directive == "gpus-per-node" else {}


def _checked(given: dict[str, Located], launcher: Optional[Plugin], problems: Problems) -> Options:
    """Return the options as sbatch takes them, without those that are refused."""
    own: Options = {}
    for name, item in given.items():
        value = item.value if isinstance(item.value, str) else None
        flag = _flag(value)
        refusal = (
            _refuse_owned(name, value, launcher)
            or _refuse_unknown(name)
            or _refuse_value(name, value, item.where)
        )
        if refusal:
            problems.add(item.where, *refusal)
        elif name == "kill-on-invalid-dep":
            own[name] = value  # the one option whose value is yes or no
        elif flag is not False:
            own[name] = None if flag else value
    for names in sbatch_variables.ALTERNATIVES:
        both = [name for name in names if name in own]
        if len(both) > 1:
            problem = f"'{both[1]}' contradicts '{both[0]}' ({given[both[0]].where})"
            problems.add(given[both[1]].where, problem, f"keep one of {', '.join(names)}")
    return own


def _flag(value: object) -> Optional[bool]:
    """Return whether a value switches its option on, as none does; None for any other value."""
    return True if value is None else values.FLAGS.get(str(value).lower())


def _refuse_owned(name: str, value: Optional[str], launcher: Optional[Plugin]) -> Refusal:
    """Return why an option is not the user's to set."""
    if key := sbatch_options.KEYS.get(name):
        fix = f"use the job's own key: `{key}`"
        if name.startswith("ntasks"):  # a batch script has 1 there, for torchrun itself
            fix = "remove it; ranks on each node: `gpus_per_node`, or `processes_per_node`"
        return f"'{name}' does not belong under slurm", fix
    if name == "signal" and not (launcher and launcher.words("signals")):
        fix = "with `launcher: srun` the program has every signal"
        fix = f"for a checkpoint in time: `on_preempt: checkpoint`; {fix}"
        return "'signal' would end the job: torchrun dies of it", fix
    if name == "signal" and str(value).upper().startswith("B:"):
        problem = "with B: the signal goes to the batch script, and would end it"
        return problem, "leave B: out: then it reaches the program"
    if name in sbatch_options.OWNED:
        fix = "remove it"
        if name in ("output", "error"):
            fix = "remove it: the logs are in the run directory, and kit logs shows them"
        if name == "cpu-bind":
            fix = "remove it; to bind ranks by hand: docs/affinity.md"
        return f"'{name}' is set by the generated scripts", fix
    if name in sbatch_options.CONTAINERS or re.match("container-(?!id$)", name):
        place = "in the container, where there is no Slurm"
        fix = "remove it; the job has keys of its own, such as `image` and `mounts`"
        if key := sbatch_options.CONTAINERS.get(name):
            fix = f"use the job's own key: `{key}`"
        return f"'{name}' would start the batch script itself {place}", fix
    return None


def _refuse_unknown(name: str) -> Refusal:
    """Return why a name is not an option of sbatch, as far as kit can tell."""
    hint = "did you mean 'nodelist'?" if name == "node" else ""
    if not hint and name not in sbatch_options.KNOWN:
        hint = did_you_mean(name, sbatch_options.KNOWN, "", cutoff=0.8)
    if hint:
        return f"unknown sbatch option '{name}'", hint
    if len(name) < 2 or not all(letter.isalnum() or letter == "-" for letter in name):
        if long := sbatch_options.SHORT.get(name.lstrip("-")):
            return f"'{name}' is the short name of '{long}'", f"use the long one: `{long}`"
        fix = "use the long name without dashes: `partition`"
        return f"'{name}' cannot be an sbatch option", fix
    return None


def _refuse_value(name: str, value: Optional[str], where: str) -> Refusal:
    """Return why sbatch could not read a value."""
    flag = _flag(value)
    if flag and name in sbatch_options.KNOWN and name not in _WITHOUT_VALUE:
        is_bare = value is None or (value, where) == ("true", "--slurm")
        said = "no value" if is_bare else f"'{value}', which stands for none"
        return f"'{name}' has {said}", f"write one: {_as_typed(name, '...', where)}"
    if value is None:
        return None
    if name == "no-requeue" and flag is False:
        problem = f"'no-requeue' is '{value}', but a job is requeued only if it asks for that"
        return problem, "write `requeue: true` beside the other options of sbatch, or leave it out"
    if not value.strip():
        fix = f"write one: {_as_typed(name, '...', where)}; or remove the option"
        return f"the value of '{name}' is empty", fix
    if values.CONTROL.search(value):
        problem = f"the value of '{name}' contains a control character"
        return problem, "Slurm reads it from one line of text: remove it"
    if name != "comment" and (found := shell_words.expansions(value)):  # it is a text for people
        problem = f"the value of '{name}' contains {found}, but no shell reads #SBATCH lines"
        typed = _as_typed(name, f'"{value}"', "--slurm")
        return problem, f"write the value; on the command line your shell puts it in: {typed}"
    is_number = flag is False or re.fullmatch("[0-9]{1,9}", value)
    if name in sbatch_options.NUMBERS and not is_number:
        fix = f"write a plain number: {_as_typed(name, '8', where)}"
        if where == f"--{name}":  # its letter may be one of the program's own, such as -c
            fix += f"; an argument of the program comes last, after --: train.py -- {value}"
        return f"'{name}' is '{value}', which is not a number", fix
    if name in (*sbatch_variables.MEMORY, "tmp") and not _READABLE_SIZE.fullmatch(value):
        size = _SIZE.fullmatch(value.strip())
        fix = f"write a whole number followed by K, M, G or T: `{name}: 64G`"
        if size:
            fix = f"write `{name}: {size[1]}{size[2].upper()}`"
        return f"'{name}' is '{value}', which is not a size that sbatch reads", fix
    if name == "exclude" and "/" in value:  # sbatch reads a file, and takes no nodes beside it
        problem = "'exclude' names a file, to which kit cannot add the nodes that it leaves out"
        return problem, f"write its nodes: {_as_typed(name, 'node[7-9]', where)}"
    return None


def _as_typed(name: str, value: str, where: str) -> str:
    """Return an option with a value as it is written in that place."""
    if where == "--slurm":
        return f"--slurm {name}={value}"
    return f"{where} {value}" if is_option(where) else f"`{name}: {value}`"
