"""The command line: reads options, calls one function per command, prints what it did."""

# ruff: noqa: E402 - the first lines are about the imports
from __future__ import annotations

import gc

gc.disable()  # importing makes no garbage, but looking for it takes a tenth of the start-up time: bench/startup.py

import functools
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NoReturn, Optional, TypeVar

import kit
from kit import console, declared
from kit.declared import Command, Taken, argument, option
from kit.errors import KitError, Problem, Problems, UsageError, did_you_mean
from kit.given import Given

if TYPE_CHECKING:
    import typer

    from kit import job as jobs

COMMANDS: dict[str, Command] = {}

Function = TypeVar("Function", bound=Callable[..., None])


def _command(name: str = "", hidden: bool = False) -> Callable[[Function], Function]:
    """Registers a function as the command of its name."""

    def register(function: Function) -> Function:
        COMMANDS[name or function.__name__] = Command(function, hidden)
        return function

    return register


_JOB = Taken("target", "Optional[str]", argument(None, metavar="[JOB]", help="A job file (.yaml), or a program: train.py [job.yaml]", show_default=False))
_NO_JOB = Taken("target", "Optional[str]", argument(None, metavar="[JOB]", help="A job file (.yaml) of the same shape.", show_default=False))
_ARGS = Taken("arguments", "Optional[list[str]]", argument(None, metavar="[-- ARGS...]", help="Arguments for the program.", show_default=False))


class _TakesAJob:
    """A command with the arguments JOB and ARGS, and an option for every key of a job file; they are made when asked for.

    The command itself receives a function that makes its plan: `plan(output)`; `code` is what holds where the job does not say,
    `site` has the job held against what Slurm says of the cluster, `load` is what reads the job, `here`: it runs on this machine;
    `is_dry`: it is only shown; `travels` is the command that runs on the login node instead, where the job's cluster is elsewhere.
    """

    def __init__(self, command: Callable[..., None], target: Taken = _JOB) -> None:
        self._command, self._target = command, target
        self.__name__, self.__doc__ = command.__name__, command.__doc__

    @functools.cached_property
    def _own(self) -> list[Taken]:
        return [item for item in declared.taken(self._command) if item.name != "plan"]

    def taken(self) -> list[Taken]:
        shape = option(None, "-j", metavar="NxP", help="Nodes x processes per node: -j 2x8", show_default=False)
        arguments = [self._target] if self._target is _NO_JOB else [self._target, _ARGS]
        return [*arguments, Taken("shape", "Optional[str]", shape), *_key_options(), *self._own]

    def __call__(self, **values: Any) -> None:
        mine = {item.name: values.pop(item.name) for item in self._own}

        def plan(
            output: Optional[str],
            code: str = "snapshot",
            site: bool = False,
            load: Callable[..., jobs.Job] = _load,
            here: bool = False,
            travels: str = "",
            is_dry: bool = False,
        ) -> Any:
            return _plan(values, output, code, site, load, here, travels, is_dry)

        self._command(plan, **mine)


def _key_options() -> Iterator[Taken]:
    """Of all keys of a job file but the command."""
    from kit import job as jobs

    for key, facts in jobs.KEYS.items():
        if key == "command":
            continue
        kind = "Optional[bool]" if not facts.metavar else "Optional[list[str]]" if facts.many else "Optional[str]"
        again = " May be given again." if facts.many else ""
        names = jobs.option_name(key) if facts.metavar else f"{jobs.option_name(key)}/--no-{jobs.option_name(key)[2:]}"
        yield Taken(key, kind, option(None, names, help=f"{facts.meaning}.{again}", metavar=facts.metavar or None, show_default=False))


def _plan(values: dict[str, Any], output: Optional[str], code: str, site: bool, load: Callable[..., jobs.Job], here: bool, travels: str, is_dry: bool) -> Any:
    from kit import job as jobs
    from kit import plan, rundir

    problems = Problems()
    overrides = _overrides(values, problems)
    job = load(values["target"], overrides, values.get("arguments") or [], problems)
    if travels:
        from kit.remote import errand

        errand.go_with(job, travels, values["target"], output, problems)
    elif here:
        from kit import this_machine

        job = this_machine.fit(job, problems)
    run_dir = jobs.absolute(output, Path.cwd()) if output else str(rundir.choose(job.name or "job"))

    def judge(header: Any, *facts: Any) -> Any:
        from kit import choice
        from kit import site as its

        if not its.has_slurm():
            choice.check_submittable(job, facts[1], problems)
            return header
        from kit.site.check import Check

        return Check(job, problems)(header, *facts)

    made = plan.resolve(job, run_dir, problems, code, judge if site else None, here=here, is_dry=is_dry)
    for warning in problems.warnings:
        print(warning, file=sys.stderr, flush=True)
    return made


def _load(target: Optional[str], overrides: dict[str, Given], arguments: list[str], problems: Problems) -> jobs.Job:
    """The named job, or the one that is here; `kit submit -- --lr 1` names none."""
    from kit import job as jobs

    if target is not None and not target.startswith("-"):
        return jobs.load(target, overrides, arguments, problems)
    if not os.path.isfile("job.yaml"):
        raise UsageError("no job is named, and there is no job.yaml here", "name one: kit submit JOB; kit init writes a first one")
    return jobs.load("job.yaml", overrides, [target, *arguments] if target else arguments, problems)


def _load_or_none(target: Optional[str], overrides: dict[str, Given], arguments: list[str], problems: Problems) -> jobs.Job:
    """For a shell, which can do without a job."""
    from kit import job as jobs

    if target is None and not os.path.isfile("job.yaml"):
        return jobs.load("true", {"name": Given("shell", ""), **overrides}, arguments, problems)
    return _load(target, overrides, arguments, problems)


def _overrides(values: dict[str, Any], problems: Problems) -> dict[str, Given]:
    """The options given on the command line, as a job file would have them."""
    from kit import job as jobs

    found = {}
    for key in jobs.KEYS:
        value, option = values.get(key), jobs.option_name(key)
        if value in (None, []):
            continue
        if key in ("env", "slurm"):
            found[key] = jobs.pairs(option, value, problems)
        elif key == "secrets":
            from kit import secret_values

            found[key] = secret_values.given_as_words(option, value, problems)
        elif key == "sweep":
            from kit import sweeps

            if words := sweeps.given_as_words(option, value, problems):
                found[key] = words
        elif isinstance(value, list):
            found[key] = Given([Given(item, option) for item in value], option)
        else:
            found[key] = Given(str(value), option)
    if values["shape"] is not None:
        nodes, times, processes = values["shape"].partition("x")
        if not (times and re.fullmatch(r"[0-9]+(-[0-9]+)?", nodes) and re.fullmatch("[0-9]+", processes)):
            problems.add("-j", f"'{values['shape']}' is not NODESxPROCESSES", "write -j 2x8 for 2 nodes of 8 processes, -j 2-4x8 for 2 to 4")
            nodes = processes = "1"
        for key, value in (("nodes", nodes), ("processes_per_node", processes)):
            if key in found:
                problems.add("-j", f"-j and {jobs.option_name(key)} say the same thing", "give one of them")
            found[key] = Given(value, "-j")
    return found


_OUTPUT = option(None, "--output", metavar="DIR", help="The run directory [./runs/NAME-TIME].", show_default=False)

_AFTER = option(
    None, "--after", metavar="RUN", help="Start when that run has ended well; any:RUN when it has ended, notok:RUN when it failed. May be given again."
)


@_command()
def init(
    target: str = argument(".", metavar="[FOLDER|PROGRAM]", help="Your program, or its folder, where job.yaml is to be [here].", show_default=False),
    image: Optional[str] = option(None, "--image", metavar="FILE", help="The job's image [the last one of kit build here].", show_default=False),
    partition: Optional[str] = option(None, "--partition", metavar="NAME", help="Slurm's partition [one with GPUs, or the default].", show_default=False),
    look: bool = option(True, "--look/--no-look", help="--no-look: without asking an idle node, by a job of seconds, what it has."),
    local: bool = option(False, "--local", help="Write a job for kit run on this machine, whether there is a Slurm or not."),
    force: bool = option(False, "--force", help="Replace files that are there already."),
) -> None:
    """Look at this cluster, and write its profile and a first job, job.yaml."""
    from kit.site import init as its

    its.init(Path(target), image, partition, local=local, ask_node=look, force=force)


@_command()
@_TakesAJob
def submit(
    plan: Callable[..., Any],
    output: Optional[str] = _OUTPUT,
    dry_run: bool = option(False, "--dry-run", help="Print the three scripts and submit nothing."),
    test_only: bool = option(False, "--test-only", help="Ask Slurm when the job would start; submit nothing."),
    follow: bool = option(False, "--follow", help="Show the logs until the job ends, and end with its exit code."),
    after: Optional[list[str]] = _AFTER,
) -> None:
    """Write the scripts and submit them to Slurm."""
    from kit import commands

    commands.submit(plan(output, site=True, is_dry=dry_run), dry_run=dry_run, test_only=test_only, follow=follow, after=after or [])


@_command()
@_TakesAJob
def when(
    plan: Callable[..., Any],
    partition: Optional[str] = option(None, "--partition", metavar="A,B", help="In these alone [all].", show_default=False),
    shapes: bool = option(True, "--shapes/--no-shapes", help="The same ranks on other numbers of nodes, too."),
) -> None:
    """Ask Slurm where and in which shape the job would start first; submit nothing."""
    from kit import slurm
    from kit.site import when as its

    made = plan(None, code="live")
    with slurm.at(made.remote.ssh if made.remote else ""):
        its.show(made, sys.argv[2:], partition, other_shapes=shapes)


@_command()
@_TakesAJob
def run(
    plan: Callable[..., Any],
    output: Optional[str] = _OUTPUT,
    task: Optional[int] = option(None, "--task", metavar="N", help="This task of an array or a sweep.", show_default=False),
) -> None:
    """Write the same scripts and run them on this machine, without Slurm."""
    from kit import commands

    commands.run(plan(output, code="live", here=True), task)  # it starts at once


@_command()
@_TakesAJob
def shell(
    plan: Callable[..., Any],
    output: Optional[str] = _OUTPUT,
    node: str = option("0", "--node", metavar="N", help="The node of the shell: its number, or its name."),
    jupyter: bool = option(False, "--jupyter", help="Start Jupyter there, and say how to reach it."),
    local: bool = option(False, "--local", help="On this machine, without Slurm."),
    task: Optional[int] = option(None, "--task", metavar="N", help="This task of an array or a sweep.", show_default=False),
) -> None:
    """Wait for nodes, and open a shell in the job's container on the first of them. They are given back when it ends."""
    from kit import shell as its

    sys.exit(its.shell(plan(output, code="live", load=_load_or_none, here=True, travels="" if local else "shell"), node, task, here=local, jupyter=jupyter))


@_command()
@_TakesAJob
def render(
    plan: Callable[[Optional[str]], Any],
    output: Optional[str] = _OUTPUT,
) -> None:
    """Write the run directory and start nothing."""
    from kit import commands

    commands.render(plan(output))


_RUN = argument(None, metavar="[RUN]", help="A job id, a run directory or a name [the last run of this folder].", show_default=False)


_TASK = option(None, "--task", metavar="N", help="Of one task of an array.", show_default=False)


@_command()
def status(
    run: Optional[str] = argument(
        None, metavar="[RUN]", help="A job id, a run directory or a name [all that are active or of the last day].", show_default=False
    ),
    task: Optional[int] = _TASK,
) -> None:
    """Show where runs are, why they wait, and how they ended."""
    from kit.runs import history
    from kit.runs import status as shown

    if run is not None or task is not None:
        from kit.runs import tasks

        found_run, number = tasks.find(run, task)
        shown.show_one(shown.of([found_run])[0] if number is None else tasks.one(found_run, number))
        return
    found = shown.recent(history.runs())
    if found:
        shown.show(shown.of(found))
    else:
        print("kit: no run of the last day; kit runs shows the others")


@_command()
def runs(
    name: Optional[str] = option(None, "--name", metavar="TEXT", help="Those whose names contain this.", show_default=False),
    state: Optional[str] = option(None, "--state", metavar="STATE", help="Those in this state: FAILED, COMPLETED ...", show_default=False),
    last: int = option(50, "--last", metavar="N", help="The last N of them."),
) -> None:
    """List the runs that were ever submitted from here, the newest last."""
    from kit.runs import history
    from kit.runs import status as shown

    found = [run for run in history.runs() if not name or name in run.name]
    matching = [item for item in shown.of(found) if not state or item.state == state.upper()]
    if matching:
        shown.show(matching[-last:])
    else:
        print("kit: no such run")


@_command()
def logs(
    run: Optional[str] = _RUN,
    follow: bool = option(False, "-f", "--follow", help="Go on until the run ends."),
    node: Optional[str] = option(None, "--node", metavar="NAME", help="Of one node.", show_default=False),
    rank: Optional[int] = option(None, "--rank", metavar="N", help="Of one rank.", show_default=False),
    errors: bool = option(False, "--errors", help="Of those ranks alone that failed."),
    task: Optional[int] = _TASK,
) -> None:
    """Show what a run said."""
    from kit import commands

    commands.logs(run, follow=follow, node=node, rank=rank, errors=errors, task=task)


@_command()
def hang(
    run: Optional[str] = _RUN,
    full: bool = option(False, "--full", help="Whole stacks, of all threads and children."),
    pause: bool = option(True, "--pause/--no-pause", help="--no-pause: without stacks, for which py-spy pauses each process for some milliseconds."),
    as_json: bool = option(False, "--json", help="For other programs."),
) -> None:
    """Show where the ranks of a run are at this moment: those at the same place together, the odd ones out first."""
    from kit.runs import hang as its

    its.show(run, full=full, pause=pause, as_json=as_json)


@_command()
def timeline(
    run: Optional[str] = _RUN,
    attempt: Optional[int] = option(None, "--attempt", metavar="N", help="Of a job that Slurm requeued [the last].", show_default=False),
    svg: Optional[str] = option(None, "--svg", metavar="FILE", help="Draw it, too.", show_default=False),
) -> None:
    """Show where the time of a run's start went, on every node."""
    from kit.runs import bars
    from kit.runs import timeline as times

    bars.show(found := times.of(run, attempt))
    if svg:
        from kit.runs import drawing

        Path(svg).write_text(drawing.draw(found), encoding="utf-8")
        print(f"kit: wrote {svg}")


@_command()
def why(run: Optional[str] = _RUN) -> None:
    """Say why a run died: the rank that failed first, the likeliest cause, and its fix."""
    from kit.why import report

    report.why(run)


@_command()
def cancel(run: str = argument(..., metavar="RUN", help="A job id, a run directory or a name.", show_default=False), task: Optional[int] = _TASK) -> None:
    """End a run, with all tasks of an array."""
    from kit import commands

    commands.cancel(run, task)


@_command()
def nodes(
    forget: Optional[str] = option(None, "--forget", metavar="NODE", help="Use this one again.", show_default=False),
    cluster: Optional[str] = option(None, "--cluster", metavar="NAME", help="The cluster's profile [generic].", show_default=False),
) -> None:
    """List the nodes that are left out of new jobs, since they could not work."""
    from kit import commands

    commands.nodes(cluster, forget)


_COMMAND = argument(None, metavar="-- CMD...", help="The command, with its arguments.", show_default=False)


@_command("exec")
def exec_(
    run: str = argument(..., metavar="RUN", help="A job id, a run directory or a name.", show_default=False),
    command: Optional[list[str]] = _COMMAND,
    node: Optional[str] = option(None, "--node", metavar="N", help="On this node, by its name or number, or on all [the first].", show_default=False),
    task: Optional[int] = _TASK,
) -> None:
    """Run a command in a running job's container, with the variables of its ranks."""
    from kit.runs import enter

    enter.enter(run, node, command or [], task)


@_command()
def doctor(
    job: Optional[str] = argument(None, metavar="[JOB]", help="What this job needs: a job file (.yaml), or a program.", show_default=False),
    count: Optional[int] = option(None, "--nodes", metavar="N", help="N of the nodes [all that are free].", show_default=False, min=1),
    nodelist: Optional[str] = option(None, "--nodelist", metavar="LIST", help="These nodes, such as node[1-4].", show_default=False),
    partition: Optional[str] = option(None, "--partition", metavar="NAME", help="Those of a partition [the default one].", show_default=False),
    account: Optional[str] = option(None, "--account", metavar="NAME", help="Whom Slurm charges for the short job.", show_default=False),
    cluster: Optional[str] = option(None, "--cluster", metavar="NAME", help="The cluster's profile [generic].", show_default=False),
    runtime: Optional[str] = option(None, "--runtime", metavar="NAME", help="What runs the containers.", show_default=False),
    image: Optional[str] = option(None, "--image", metavar="FILE", help="The job's image.", show_default=False),
    wait: int = option(60, "--wait", metavar="SECONDS", help="How long the short job may wait for its nodes.", min=1),
    as_json: bool = option(False, "--json", help="For other programs."),
) -> None:
    """Find what would keep a job from starting: on this machine and on every node. Ends with 1 where something would."""
    from kit.doctor import visit

    if image and not job:
        raise UsageError("an image is a job's", "name the job, too: kit doctor JOB --image FILE", where="--image")
    if not job:
        _go_where_it_is(cluster or "generic", ["doctor", *sys.argv[2:]])
    options = {"cluster": cluster, "runtime": runtime, "image": image}
    wanted = visit.Wanted(job, count, nodelist, wait, as_json, options, {"partition": partition, "account": account})
    sys.exit(visit.visit(wanted))


@_command()
def rerun(
    run: Optional[str] = _RUN,
    output: Optional[str] = _OUTPUT,
    image: Optional[str] = option(None, "--image", metavar="FILE", help="Another image than the run had.", show_default=False),
    follow: bool = option(False, "--follow", help="Show the logs until the job ends, and end with its exit code."),
) -> None:
    """Start a run once more, with the code and the scripts that it had."""
    from kit.runs import rerun as its

    its.rerun(run, output, image, follow=follow)


@_command()
def diff(
    first: str = argument(..., metavar="RUN", help="A job id, a run directory or a name.", show_default=False),
    second: str = argument(..., metavar="RUN", help="The one to compare it with.", show_default=False),
) -> None:
    """Show what differs between two runs: settings, variables, image, code. Ends with 1 where something does."""
    from kit.runs import difference

    sys.exit(difference.show(first, second))


@_command()
@functools.partial(_TakesAJob, target=_NO_JOB)
def bench(
    plan: Callable[..., Any],
    output: Optional[str] = _OUTPUT,
    sizes: Optional[str] = option(None, "--sizes", metavar="LIST", help="1K-256M, or 1M,8M,64M [1K to 64M; on GPUs to 1G].", show_default=False),
    repeats: Optional[int] = option(None, "--repeats", metavar="N", help="Of each size [for a second].", show_default=False),
    pairs: bool = option(False, "--pairs", help="Then every two nodes alone: names the slow node or link."),
    local: bool = option(False, "--local", help="On this machine, without Slurm."),
    expect: Optional[str] = option(None, "--expect", metavar="GBPS", help="The bus bandwidth to reach [the profile's].", show_default=False),
    share: Optional[str] = option(None, "--share", metavar="PART", help="End with 1 below this share of it [0.8].", show_default=False),
    show: Optional[str] = option(None, "--show", metavar="RUN", help="What a run measured before.", show_default=False),
    svg: Optional[str] = option(None, "--svg", metavar="FILE", help="Draw it, too.", show_default=False),
    as_json: bool = option(False, "--json", help="For other programs."),
    dry_run: bool = option(False, "--dry-run", help="Print the three scripts and submit nothing."),
) -> None:
    """Measure all-reduce over sizes in the job's image and shape, and find the slow node or link: docs/bench.md."""
    from kit import bench as its
    from kit.runs import bandwidth

    shown = its.Shown(svg, as_json)
    if show is not None:
        sys.exit(its.show(bandwidth.of(show), shown))
    request = its.Request(sizes, repeats, pairs, local, expect, share, dry_run)
    sys.exit(its.run(plan(output, code="live", load=its.load, here=True, travels="" if local else "bench", is_dry=dry_run), request, shown))


_ARGUMENTS = option(
    None, "--build-arg", metavar="NAME[=VALUE]", help="For the recipe; NAME alone takes the environment's value. May be given again.", show_default=False
)

_ENGINE_OPTIONS = argument(None, metavar="[-- OPTIONS]", help="For docker or podman build, as they are.", show_default=False)
_SECRETS = option(None, "--secret", metavar="id=ID,src=FILE|env=NAME", help="For RUN --mount=type=secret; in no layer. May be given again.", show_default=False)
_SSH = option(None, "--ssh", metavar="ID[=SOCKET]", help="For RUN --mount=type=ssh. May be given again.", show_default=False)


@_command()
def build(
    target: Optional[str] = argument(
        None,
        metavar="[RECIPE|IMAGE]",
        help="A name in containers/, a Dockerfile, or an image: docker://NAME, dockerd://NAME, FILE.tar, FILE.sqsh.",
        show_default=False,
    ),
    name: Optional[str] = option(None, "--name", metavar="NAME", help="What jobs call it [the recipe's folder].", show_default=False),
    device: str = option("gpu", "--device", metavar="gpu|cpu", help="Build on the recipe's base for GPUs or for CPUs."),
    engine: Optional[str] = option(None, "--engine", metavar="NAME", help="docker, podman, apptainer, enroot [the first one here].", show_default=False),
    words: Optional[list[str]] = _ENGINE_OPTIONS,
    arguments: Optional[list[str]] = _ARGUMENTS,
    secrets: Optional[list[str]] = _SECRETS,
    ssh: Optional[list[str]] = _SSH,
    stage: Optional[str] = option(None, "--target", metavar="STAGE", help="Of a Dockerfile with several, the one to stop at.", show_default=False),
    platform: Optional[str] = option(None, "--platform", metavar="OS/ARCH", help="Of another machine than this one.", show_default=False),
    no_cache: bool = option(False, "--no-cache", help="Run every step again."),
    to: str = option("sqsh", "--to", metavar="sqsh|sif|docker", help="sqsh runs everywhere; docker stops at the engine's image."),
    folder: str = option("images", "--images", metavar="DIR", help="Where the file goes."),
    update: bool = option(False, "--update", help="Ask the registry for the base's digest again."),
    locked: Optional[str] = option(
        None, "--locked", metavar="FILE", help="Refuse bases and packages that differ from this record of a build: images/NAME.json.", show_default=False
    ),
    wait: int = option(3600, "--wait", metavar="SECONDS", help="How long to wait for another build of the same image."),
    cluster: Optional[str] = option(None, "--cluster", metavar="NAME", help="On the login node of a cluster elsewhere, and for it.", show_default=False),
) -> None:
    """Make one image file for Enroot, Pyxis and Apptainer."""
    from kit.build import make
    from kit.build.options import Options

    problems = Problems()
    values = _build_arguments(arguments or [], problems)
    words = words or []
    if target and target.startswith("-"):  # kit build -- --network host
        words, target = [target, *words], None
    if words and not words[0].startswith("-"):
        problems.add(
            "", f"kit build takes one recipe or image, and not also {words[0]}", "leave it out; options of the engine follow --, and begin with a dash"
        )
    for flag, value, known in (("--device", device, ("gpu", "cpu")), ("--to", to, ("sqsh", "sif", "docker"))):
        if value not in known:
            problems.add(flag, f"'{value}' is not one of {', '.join(known)}", f"write {flag} {known[0]}")
    problems.raise_if_any()
    options = Options(tuple(secrets or ()), tuple(ssh or ()), stage, platform, no_cache, tuple(words))
    request = make.Request(target, engine, device, name, to, Path(folder), values, update, wait, options, Path(locked) if locked else None)
    if cluster:
        from kit.remote import build as over_there

        sys.exit(over_there.build(request, over_there.site_of(cluster)))
    make.build(request)


def _build_arguments(items: list[str], problems: Problems) -> dict[str, str]:
    """NAME=VALUE, or NAME alone for the environment's value, as Docker has it."""
    found = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals and name not in os.environ:
            problems.add("--build-arg", f"{name} has no value, here or in the environment", f"write --build-arg {name}=VALUE")
        found[name] = value if equals else os.environ.get(name, "")
    return found


def _go_where_it_is(cluster: Optional[str], words: list[str]) -> None:
    """Where the cluster is elsewhere, its login node does the command, in kit's folder there, and that is all."""
    if cluster:
        from kit.remote import errand

        if site := errand.elsewhere(cluster):
            sys.exit(errand.run(site, words))


def images_list(
    context: typer.Context,
    folder: str = option("images", "--images", metavar="DIR", help="Where the files are."),
    cluster: Optional[str] = option(None, "--cluster", metavar="NAME", help="Those of a cluster elsewhere.", show_default=False),
) -> None:
    if context.invoked_subcommand is None:
        _go_where_it_is(cluster, ["images", "--images", "images"])
        from kit import shelf

        shelf.show(Path(folder).absolute())


def images_gc(
    context: typer.Context,
    folder: Optional[str] = option(None, "--images", metavar="DIR", help="Where the files are [images].", show_default=False),
    nodes: Optional[str] = option(None, "--nodes", metavar="LIST", help="Slurm's nodes, such as node[1-4] [this machine].", show_default=False),
    days: int = option(7, "--days", metavar="N", help="Keep what was used in the last N days."),
    cluster: Optional[str] = option(None, "--cluster", metavar="NAME", help="The cluster's profile, for its scratch folder.", show_default=False),
    yes: bool = option(False, "--yes", help="Remove without asking."),
) -> None:
    """Remove image files, containers and copies of images that no job of yours has used for some days."""
    site_name = cluster or (context.parent.params["cluster"] if context.parent else None)
    chosen = [*(["--nodes", nodes] if nodes else []), *(["--yes"] if yes else [])]
    _go_where_it_is(site_name, ["images", "--images", "images", "gc", "--days", str(days), *chosen])
    from kit import collect

    before = context.parent.params["folder"] if context.parent else "images"  # kit images --images DIR gc
    collect.collect(Path(folder or before).absolute(), nodes, cluster, days, yes=yes)


COMMANDS["images"] = Command(images_list, help="List what kit build made, or remove what nobody uses.", commands={"gc": Command(images_gc)})


@_command()
def schema(cluster: bool = option(False, "--cluster", help="Of a cluster profile instead.")) -> None:
    """Print the JSON schema of a job file, by which an editor checks and completes one."""
    from kit import schema as its

    print(its.text(of_cluster=cluster))


@_command()
def completion(shell: str = argument(..., metavar="bash|zsh|fish", help="The shell.", show_default=False)) -> None:
    """Print what a shell needs to complete commands, options, runs and files. For bash: source <(kit completion bash)."""
    from kit import completion as its

    print(its.script(shell), end="")


@_command(hidden=True)
def complete(
    shell: str = argument(..., help="The shell."),
    piece: str = argument(..., help="What the shell would replace."),
    line: str = argument(..., help="The command line up to the cursor."),
) -> None:
    """Say what may stand at the end of a command line: for the scripts of kit completion."""
    from kit import completion as its
    from kit import explained

    for found in its.answer(shell, piece, line, explained.everything()):
        print(found)


def top(version: bool = option(False, "--version", help="Print kit's version.")) -> None:
    """What kit does without a command."""
    from kit import overview

    print(f"kit {kit.__version__}" if version else overview.text(COMMANDS))


def main() -> NoReturn:
    """Runs a command. Whatever goes wrong ends in two lines and an exit code, not in a traceback."""
    gc.set_threshold(50_000)  # what a command still imports makes no garbage, either
    gc.enable()
    _open_streams()
    try:
        code = _run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        code = 141
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
    except Exception as error:
        code = _report(error)
    _leave(code)


def _open_streams() -> None:
    """Closed ones lead nowhere: no file of a run is opened in their place. What is printed does not act on the terminal."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r"))  # noqa: SIM115
        elif number:
            setattr(sys, name, console.guarded(getattr(sys, name)))


def _run(words: list[str]) -> int:
    """Calls a command, or has Typer explain what is to be explained; returns the exit code."""
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if words in ([], ["-h"], ["--help"], ["--version"]):
        top(version=words == ["--version"])
        return 0
    from kit import signals

    signals.end_cleanly()
    command = COMMANDS.get(words[0])
    values = declared.values(command.function, words[1:]) if command and not command.commands else None
    if command and values is not None:
        command.function(**values)
        return 0
    from kit import explained

    return explained.app(words[0] if command else None)(words, standalone_mode=False) or 0


def _leave(code: int) -> NoReturn:
    """Ends the process at once: taking down a hundred modules one by one costs as much as loading kit's."""
    remote = sys.modules.get("kit.remote.host")  # where a login node did not answer, what was shown is what was known before
    code = code or (remote.UNREACHABLE if remote and remote.missed else 0)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError) as error:  # a closed pipe, or a full disk
        code = code or (141 if isinstance(error, BrokenPipeError) else 1)
    os._exit(code)


def _report(error: Exception) -> int:
    """Prints what went wrong, and returns the exit code."""
    if isinstance(error, KitError):
        print(error, file=sys.stderr)
        return error.exit_code
    if hasattr(error, "format_message"):  # Typer's own errors, such as an unknown option
        command = getattr(getattr(error, "ctx", None), "command_path", "kit")
        print(_misspelt(error, f"see: {command} --help") or Problem("", error.format_message(), f"see: {command} --help"), file=sys.stderr)
        return UsageError.exit_code
    if os.environ.get("KIT_TRACEBACK"):
        raise error
    if isinstance(error, OSError):
        file = f"{error.filename}: " if error.filename else ""
        print(Problem("", f"{file}{error.strerror}", "check that path, its rights, and free space"), file=sys.stderr)
    else:
        print(Problem("", f"internal error: {error!r}", "please report it, with what KIT_TRACEBACK=1 in the environment adds"), file=sys.stderr)
    return 1


def _misspelt(error: Any, otherwise: str) -> Optional[Problem]:
    """Of an option that does not exist, the one that was meant."""
    name, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if not name or not context or not hasattr(error, "possibilities"):
        return None
    known = ["--help", *(spelling for item in context.command.params for spelling in [*item.opts, *item.secondary_opts] if spelling.startswith("-"))]
    if not {"shape", "arguments"} <= {item.name for item in context.command.params}:
        return Problem("", f"No such option: {name}", did_you_mean(name, known, otherwise))
    from kit import mistakes

    return Problem("", f"No such option: {name}", mistakes.option(name, known, sys.argv[1:]))
