"""Run: submit, run, rerun, render, shell and exec."""

import functools
import sys
from typing import Annotated, Optional

from kit.api.job_request import JobRequest, Use
from kit.base import quote
from kit.base.errors import UsageError, refuse_together
from kit.cli import completion, launching, messages, options
from kit.cli.app import RUN, command
from kit.cli.job_options import takes_job
from kit.images import package_store
from kit.plan import render as rendering
from kit.plan.plan import Plan
from kit.plan.run_paths import RunPaths
from kit.runs import array_status, dependencies, execute, run_dir, run_record
from kit.runs import local as local_runs
from kit.runs import rerun as reruns
from kit.runs import shell as shells
from kit.runs import submit as submitting
from kit.slurm import sbatch_variables

LIVE = Use(code="live", runs_here=True, is_local=True)  # it starts at once

After = Annotated[
    Optional[list[str]],
    options.option(
        "--after",
        "RUN",
        "Start after this run has succeeded; any:RUN: after it has ended; notok:RUN: after it"
        " has failed. May be given again.",
        autocompletion=completion.runs_to_wait_for,
    ),
]
Parsable = Annotated[bool, options.flag("--parsable", "Print only the job's id, as sbatch does.")]
TestOnly = Annotated[
    bool, options.flag("--test-only", "Print Slurm's estimate of the start time; submit nothing.")
]


@command(
    RUN,
    "kit submit job.yaml",
    "kit submit train.py -j 2x8 --image first --time 1:00:00 -- --lr 0.1",
    "kit submit job.yaml --dry-run",
    "kit submit job.yaml --after 4711 -p gpu",
)
@takes_job
def submit(
    job: JobRequest,
    output: options.Output = None,
    dry_run: options.DryRun = False,
    test_only: TestOnly = False,
    follow: options.Follow = False,
    after: After = None,
    as_json: options.Json = False,
    parsable: Parsable = False,
) -> None:
    """Write the scripts and submit them to Slurm."""
    shown = {"--dry-run": dry_run, "--test-only": test_only}  # without a job, and as text
    for others in ({"--follow": follow}, {"--json": as_json, "--parsable": parsable}):
        refuse_together({**shown, **others})
    plan = job.plan(job.load(), output, Use(asks_site=True, is_dry=dry_run))
    launching.say_reasons(plan)
    waits, said = dependencies.resolve(after or [], plan, ask=not dry_run)
    for line in said:
        messages.note(line)
    if dry_run:
        launching.print_scripts(plan, rendering.render(plan))
        launching.say_packages(plan)
        _say_sbatch_variables(plan)
        if waits:
            messages.note(f"to be submitted by: sbatch {' '.join(waits)} run_script.sh")
    elif test_only:
        messages.say(submitting.estimate(plan, waits))
    else:
        answer = launching.Answer(follow, as_json, parsable)
        with messages.quiet(as_json or parsable):
            launching.submit(plan, waits, answer)


def _say_sbatch_variables(plan: Plan) -> None:
    for name, value in sbatch_variables.also_read(dict(plan.header)).items():
        messages.note(f"sbatch also reads {name}={quote.bash(value)} of this shell")


@command(RUN, "kit run train.py -j 2x2", "kit run job.yaml --task 3")
@functools.partial(takes_job, for_slurm=False)
def run(job: JobRequest, output: options.Output = None, task: options.OneTask = None) -> None:
    """Write the same scripts, and run them on this machine without Slurm."""
    launching.run_here(job.plan(job.load(), output, LIVE), task)


@command(RUN, "kit rerun", "kit rerun 4711_3", "kit rerun 4711 --failed", "kit rerun --image first")
def rerun(
    run: options.LastRun = None,
    task: options.Task = None,
    failed: Annotated[
        bool, options.flag("--failed", "Of an array, only the tasks that did not end well.")
    ] = False,
    output: options.Output = None,
    image: Annotated[Optional[str], options.image("Use this image instead of the run's.")] = None,
    dry_run: options.DryRun = False,
    follow: options.Follow = False,
    as_json: options.Json = False,
    parsable: Parsable = False,
) -> None:
    """Start a run again: its scripts, with its copy of the code.

    Without a copy, as after `kit run`, it uses today's code.
    """
    refuse_together({"--task": task is not None, "--failed": failed})
    is_for_programs = {"--json": as_json, "--parsable": parsable}
    for others in ({"--follow": follow}, is_for_programs):
        refuse_together({"--dry-run": dry_run, **others})
    answer = launching.Answer(follow, as_json, parsable)
    with messages.quiet(as_json or parsable):
        again = _failed_tasks(run, answer) if failed else reruns.find(run, task)
        if not again:
            return
        if again.run.local and (as_json or parsable):
            option = next(name for name, is_given in is_for_programs.items() if is_given)
            where = f"{again.run} runs on this machine"
            problem = f"{where}, and {option} prints the job that is submitted"
            raise UsageError(problem, f"leave {option} out")
        _start_again(again, output, image, answer, dry_run=dry_run)


def _failed_tasks(word: Optional[str], answer: launching.Answer) -> Optional[reruns.EarlierRun]:
    """Return the failed tasks of an array as a run to start, and say how many; None without any."""
    found, again = reruns.find_failed(word)
    if not again:
        answer.give_none(f"no task of {found.run} has failed: {found.detail}")
        return None
    tasks, failed = array_status.tasks(found), array_status.failed(found)
    active = [each for each in tasks if each.active]
    left = f"; left alone: {array_status.count_states(active)}" if active else ""
    counts = f"{array_status.count_states(failed)}{left}"
    messages.note(
        f"to start again: {len(failed)} of the {len(tasks)} tasks of {found.run}: {counts}"
    )
    return again


def _start_again(
    again: reruns.EarlierRun,
    output: Optional[str],
    image: Optional[str],
    answer: launching.Answer,
    *,
    dry_run: bool,
) -> None:
    noted = None if again.tasks else reruns.unsubmitted(again.run)
    given = {"--output": output, "--image": image}
    for where in (name for name, value in given.items() if noted and value):
        unknown = f"it is not known whether {again.run.name} was submitted"
        problem = f"{unknown}; if it was not, kit submits it as it is"
        raise UsageError(problem, "leave it out", where=where)
    if noted and not dry_run:
        launching.finish(again.plan, noted, answer)
        return
    if not (dry_run or again.run.local) and launching.is_submitted_already(again.plan, answer):
        return
    plan = again.plan if noted else reruns.prepare(again, output, image)
    _say_what_runs(again, plan, image)
    if dry_run:
        launching.print_scripts(plan, reruns.scripts(again, plan))
        if not again.run.local:
            _say_sbatch_variables(plan)
        return
    folder = reruns.write(again, plan)
    if again.run.local:
        launching.start_here(plan, local_runs.note(plan, folder, again.run.task))
    else:  # what it waited for then, by --after or a `dependency`, has ended
        launching.hand_to_slurm(plan, folder, [], answer)


def _say_what_runs(again: reruns.EarlierRun, plan: Plan, image: Optional[str]) -> None:
    """Say whose code and scripts these are, and what nobody can vouch for."""
    name = again.run.paths.folder.name
    said = f"the code and the scripts are those of {name}"
    if again.is_live:
        said = f"{name} had live code: this run uses {plan.program.workdir} as it is today"
    messages.note(said)
    then, container = again.record.get("shell"), again.plan.container
    if then and (names := run_record.changed_in_shell(then)):
        messages.note(
            "without a container this shell decides which programs and libraries are found,"
            f" and it differs from that of {name} in {', '.join(names)}"
        )
    if not image and container.is_known_by_name:
        messages.note(f"which image {name} had is known by its name alone: {container.image}")


@command(RUN, "kit render job.yaml --output first", "sbatch first/run_script.sh")
@takes_job
def render(job: JobRequest, output: options.Output = None) -> None:
    """Write the run directory without starting the job.

    Where the job asks for `packages`, kit resolves them in the image first, as a submission does.
    """
    plan = job.plan(job.load(), output, Use(is_dry=True))
    launching.say_reasons(plan)
    plan = package_store.bring(plan, messages.note)
    folder = run_dir.write(plan)
    typed = messages.typed(folder)
    how = f"to submit it: sbatch {messages.typed(RunPaths(folder).script)}"
    if plan.program.secrets:
        how = f"to submit it: kit rerun {typed} (sbatch alone would start it without its secrets)"
    messages.say(f"wrote {messages.short(folder)}{launching.of_code(plan)}\n  {how}")


@command(RUN, "kit shell job.yaml", "kit shell --nodes 2 --time 1:00:00 --jupyter")
@takes_job
def shell(
    job: JobRequest,
    output: options.Output = None,
    node: Annotated[str, options.option("--node", "N", "Node, by its number or its name.")] = "0",
    jupyter: Annotated[
        bool, options.flag("--jupyter", "Start Jupyter on the node, and print how to reach it.")
    ] = False,
    local: options.Local = False,
    task: options.OneTask = None,
) -> None:
    """Wait for nodes, and open a shell in the job's container on one of them.

    The nodes are given back when the shell ends.
    """
    here = local or not shells.has_slurm(messages.note)
    use = Use(code="live", runs_here=here, is_local=local)
    plan = job.plan(job.load_or_none(), output, use)
    launching.say_reasons(plan)
    launching.say_live(plan)
    plan = package_store.bring(plan, messages.note)
    code = shells.shell(plan, node, task, messages.note, here=here, jupyter=jupyter)
    sys.exit(code)


@command(RUN, "kit exec 4711 -- nvidia-smi", "kit exec 4711 --node all -- df -h /tmp", name="exec")
def exec_(
    run: options.OneRun,
    command: Annotated[
        Optional[list[str]], options.argument("-- CMD...", "The command, with its arguments.")
    ] = None,
    node: Annotated[
        Optional[str],
        options.option("--node", "N", "Node, by its name or number, or 'all'.", "the first"),
    ] = None,
    task: options.Task = None,
) -> None:
    """Run a command beside the ranks of a running job, in its container."""
    execute.enter(run, node, command or [], task)
