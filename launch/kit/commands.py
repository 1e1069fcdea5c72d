"""What each command does, and what it prints."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Optional

from kit.errors import KitError, UsageError
from kit.plan import Plan
from kit.render import render as render_plan

if TYPE_CHECKING:
    from kit.runs.history import Run


def render(plan: Plan) -> None:
    from kit import rundir

    say_runtime(plan)
    run = rundir.write(plan, render_plan(plan))
    how = f"to submit it: sbatch {_typed(run / 'run_script.sh')}"
    if plan.secrets:
        how = f"to submit it: kit rerun {_typed(run)} (sbatch alone would start it without its secrets)"
    if plan.remote:
        how = f"its paths are those of {plan.remote.ssh}; to submit it there: kit rerun {_typed(run)}"
    _say(f"wrote {_short(run)}{_of_code(plan)}\n  {how}")


def submit(plan: Plan, *, dry_run: bool, test_only: bool, follow: bool, after: list[str]) -> None:
    say_runtime(plan)
    options: list[str] = []
    if after:
        from kit import after as waiting

        options, said = waiting.resolve(after, plan, ask=not dry_run)
        for line in said:
            print(f"kit: {line}", file=sys.stderr, flush=True)
    if dry_run:
        _print_scripts(plan)
        if options:
            print(f"kit: to be submitted by: sbatch {' '.join(options)} run_script.sh", file=sys.stderr)
    elif test_only:
        _ask_slurm(plan, options)
    else:
        _submit(plan, follow, options)


def run(plan: Plan, task: Optional[int] = None) -> None:
    from kit import local, rundir

    check_task(plan, task)
    say_runtime(plan)
    start_here(plan, local.note(plan, rundir.write(plan, render_plan(plan)), task), task)


def start_here(plan: Plan, noted: Run, task: Optional[int]) -> None:
    """Runs a run directory on this machine, and ends with its exit code."""
    from kit import local, secret_values

    run = Path(noted.folder)
    try:
        place_secrets(plan, run, task)
        start = time.monotonic()
        code = local.run(plan, noted, task)
    finally:
        secret_values.forget(run)
    elapsed = f"{time.monotonic() - start:.1f} s"
    if code:
        what = "stopped" if code in (75, 129, 130, 143) else "failed"
        _say(f"{what} with exit code {code} after {elapsed}; why: kit why; scripts and logs: {_short(run)}")
        sys.exit(code)
    _say(f"done in {elapsed}; the scripts that ran, and their logs: {_short(run)}")


def place_secrets(plan: Plan, run: Path, task: Optional[int]) -> None:
    """For a run that starts now. Where one cannot be read, or a signal comes meanwhile, nothing of the run is kept."""
    from kit import rundir, secret_values

    try:
        secret_values.place(plan, run, None if task is None else [task])
    except BaseException:
        rundir.give_up(run)
        raise


def check_task(plan: Plan, task: Optional[int]) -> None:
    """A run on this machine is one task, of an array too."""
    if not plan.array:
        if task is not None:
            raise UsageError("--task is for a task of an array, and the job is none", "leave it out")
        return
    from kit import arrays

    numbers = arrays.numbers(plan.array)
    if task not in numbers:
        problem = f"the job is an array of {len(numbers)} tasks, of which kit run runs one" if task is None else f"the array {plan.array} has no task {task}"
        raise UsageError(problem, f"name it: kit run JOB --task {numbers[0]}; all of them on a cluster: kit submit JOB")


def _print_scripts(plan: Plan) -> None:
    for name, text in render_plan(plan).items():
        print(f"==> {_short(Path(plan.run_dir))}/{name} <==", flush=True)
        if sys.stdout.isatty():
            print(text)
        else:
            sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape") + b"\n")  # byte for byte


def _ask_slurm(plan: Plan, options: list[str]) -> None:
    import tempfile

    from kit import rundir, secret_values, slurm

    secret_values.hide_from_children(plan.secrets)
    with tempfile.TemporaryDirectory(prefix="kit-") as folder:
        # The header's own directory need not exist for an estimate, but the script must be somewhere.
        run = rundir.write(plan._replace(run_dir=f"{folder}/run", code=None, remote=None), render_plan(plan))
        with slurm.at(plan.remote.ssh if plan.remote else ""):
            _say(slurm.test_only(run / "run_script.sh", options))


def _submit(plan: Plan, follow: bool, options: list[str]) -> None:
    from kit import rundir

    for node in plan.left_out:
        until = time.strftime("%d %b %H:%M", time.localtime(node.until_s))
        _say(f"leaving out {node.name} until {until}, which {node.why}; if it is well again: kit nodes --forget {node.name}")
    if not is_submitted_already(plan, follow):
        hand_to_slurm(plan, rundir.write(plan, render_plan(plan)), follow, options)


def is_submitted_already(plan: Plan, follow: bool) -> bool:
    """Whether an earlier call of the very same command did submit its job, though its answer was lost. Raise Unsure where nobody can say yet."""
    from kit.runs import submit

    for run in submit.unfinished(plan):
        if earlier := _give_up_submission(run):
            said = f"the same command of {_age(earlier)} did submit job {earlier.id}, though its answer was lost: nothing is submitted now"
            if earlier.ssh:
                say_submitted(earlier, follow, "", said)
            else:
                _say_submitted_here(earlier, follow, said)
                _see_off(earlier, follow)
            return True
    return False


def _give_up_submission(run: Run) -> Optional[Run]:
    """The run where it was submitted; else it is removed, and never will be."""
    if run.ssh:
        from kit.remote import submission

        return submission.give_up(run)
    from kit.runs import submit

    return submit.give_up(run)


def _submit_there(plan: Plan, run: Path, follow: bool, options: list[str]) -> None:
    """To the cluster that the profile names by `ssh`."""
    from kit import rundir
    from kit.remote import submission

    assert plan.remote
    if options:
        rundir.save(run, {**rundir.load(run), "sbatch_options": options})
    noted = submission.begin(plan, run)
    try:
        noted = submission.submit(plan, noted, options)
    except UsageError:
        submission.forget(noted)  # a secret without a value
        raise
    say_submitted(noted, follow, _of_code(plan))


def say_submitted(run: Run, follow: bool, of_code: str, said: str = "") -> None:
    """Where a run of a cluster elsewhere is, and how to see it."""
    how = [] if run.array or follow else [f"  follow it:     kit logs -f {run.id}"]
    places = [f"  run directory: {run.ssh}:{run.there}", f"  its logs here: {_short(Path(run.folder))}{of_code}"]
    _print_if_possible([f"kit: {said or f'submitted job {run.id} on {run.ssh}'}", *places, *how])
    _see_off(run, follow)


def _print_if_possible(lines: list[str]) -> None:
    """Of a job that is submitted whether anybody can read it or not."""
    try:
        print("\n".join(lines), flush=True)
    except (OSError, ValueError):  # a full disk, a closed pipe
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _age(run: Run) -> str:
    from kit.runs import status

    return f"{status.duration(time.time() - run.created_s)} ago"


def hand_to_slurm(plan: Plan, run: Path, follow: bool, options: list[str]) -> None:
    """Submits a run directory; where Slurm refuses it, nothing of it is kept."""
    if plan.remote:
        _submit_there(plan, run, follow, options)
        return
    from kit import local_disk
    from kit.runs import submit

    if warning := local_disk.warning(run):
        print(warning, file=sys.stderr, flush=True)

    def say(noted: Run) -> None:
        _say_submitted_here(noted, follow, f"submitted job {noted.id}", _of_code(plan))

    _see_off(submit.submit(plan, run, options, say), follow)


def finish(plan: Plan, run: Run, follow: bool) -> None:
    """Submits a run directory of which nobody heard that Slurm has it, once that is known."""
    from kit import rundir, secret_values, slurm
    from kit.runs import submit

    run = submit.settle(run)
    if run.why:
        raise slurm.Unsure(f"whether Slurm has the job of {run.name} is not known yet", f"in a minute: kit status {run.name}")
    if run.id:
        _say_submitted_here(run, follow, f"{run.name} was submitted: job {run.id}")
        _see_off(run, follow)
        return
    secret_values.forget(Path(run.folder))
    hand_to_slurm(plan, Path(run.folder), follow, rundir.load(Path(run.folder)).get("sbatch_options", []))


def _say_submitted_here(run: Run, follow: bool, said: str, of_code: str = "") -> None:
    from kit.runs.follow import batch_log

    how = [] if run.array or follow else [f"  follow it:     tail -F {_typed(batch_log(Path(run.folder), run.id))}"]
    _print_if_possible([f"kit: {said}", f"  run directory: {_short(Path(run.folder))}{of_code}", *how])


def _see_off(run: Run, follow: bool) -> None:
    if run.array:
        _say_array(run, follow)
    elif follow:
        _follow(run)


def _say_array(run: Run, follow: bool) -> None:
    """Of all tasks, what can be said in lines: their logs would be mixed up."""
    from kit import arrays
    from kit.runs import tasks

    numbers = arrays.numbers(run.array)
    if not follow:
        print(f"  its {len(numbers)} tasks: kit status {run.id}; one's logs: kit logs {run.id} --task {numbers[0]}")
        return
    try:
        found = tasks.until_the_end(run)
    except KeyboardInterrupt:
        _say(f"job {run.id} goes on; to end it: kit cancel {run.id}")
        sys.exit(130)
    if found.state != "COMPLETED":
        raise KitError(f"{run} {found.state}: {found.detail}", f"which tasks, and why: kit status {run.id}")


def _follow(run: Run) -> None:
    """Shows the logs until the job ends, then exits with its code. Ctrl-C leaves the job alone."""
    from kit import slurm

    with slurm.at(run.ssh, run.asked_of):
        _follow_here(run)


def _follow_here(run: Run) -> None:
    from dataclasses import replace

    from kit import secret_values, slurm
    from kit.runs import follow, history

    watch = Watch(run.id, run.works_in)
    if run.ssh:
        from kit.remote.watch import RemoteWatch

        watch = RemoteWatch(run, run.id)
    job_id, folder = run.id, Path(run.folder)
    try:
        state = follow.until(follow.Tail(folder, job_id), watch.ended)
    except KeyboardInterrupt:
        _say(f"job {job_id} goes on; to end it: kit cancel {job_id}")
        sys.exit(130)
    if state.name == "COMPLETED":
        return
    following = history.last_job(run.folder, job_id)
    if following != job_id:
        _say(f"job {job_id} {state.name}; job {following} goes on for it")
        _follow_here(replace(run, id=following))
        return
    secret_values.forget(folder)  # its own script does that, unless its node is gone
    dead = slurm.down_nodes(state.nodes) if state.name == "NODE_FAIL" and state.nodes else []
    why = f"; dead: {', '.join(dead)}" if dead else ""
    raise _Failed(
        f"job {job_id} {state.name} with exit code {state.exit_code}{why}", f"see: kit why {job_id}; its logs: {_short(folder)}/log", state.exit_code or 1
    )


class Watch:
    """Asks Slurm for a job's state, prints each change, and never asks more often than every two seconds."""

    PATIENCE_S = 300.0  # controllers restart, and the job goes on meanwhile

    def __init__(self, job_id: str, is_its: Callable[[str], bool] = lambda folder: True) -> None:
        from kit.runs import follow

        self.job_id, self.is_its = job_id, is_its
        self.period_s = follow.period_s()
        self.next_s = 0.0
        self.answered_s = time.monotonic()
        self.shown = ""

    def ended(self) -> Optional[slurm.State]:  # type: ignore[name-defined]  # noqa: F821
        from kit import slurm

        if time.monotonic() < self.next_s:
            return None
        self.next_s = time.monotonic() + self.period_s
        try:
            state = slurm.state(self.job_id, self.is_its)
        except KitError as error:
            if error.exit_code != 1:
                raise  # a login node that does not answer is another matter
            if time.monotonic() - self.answered_s > self.PATIENCE_S:
                raise
            return None
        self.answered_s = time.monotonic()
        if state is None:
            raise KitError(f"Slurm has forgotten job {self.job_id}", f"its accounting may know: sacct -j {self.job_id}")
        if state.name != self.shown:
            self.shown = state.name
            reason = f" ({state.reason})" if state.name == "PENDING" and state.reason not in ("", "None") else ""
            _say(f"job {self.job_id} {state.name}{reason}")
        return None if state.active else state


class _Failed(KitError):
    def __init__(self, problem: str, fix: str, exit_code: int) -> None:
        super().__init__(problem, fix)
        self.exit_code = exit_code


def say_runtime(plan: Plan) -> None:
    # On stderr: a dry run's stdout is the scripts.
    if plan.image and plan.why_runtime:
        print(f"kit: runtime {plan.runtime}: {plan.why_runtime}", file=sys.stderr, flush=True)
    if plan.why_stage:
        print(f"kit: stage {plan.stage}: {plan.why_stage}", file=sys.stderr, flush=True)
    for note in plan.code.notes if plan.code else ():
        print(f"kit: {note}", file=sys.stderr, flush=True)


def _of_code(plan: Plan) -> str:
    """A line about what was frozen, or why nothing was."""
    if not plan.code:
        return f"\n  code:          live: {plan.why_live}" if plan.why_live else ""
    from kit.progress import size

    count = len(plan.code.sources.names)
    return f"\n  code:          {count} file{'s' if count != 1 else ''}, {size(plan.code.sources.bytes)}, as now"


def _say(text: str) -> None:
    print(f"kit: {text}", flush=True)


def _typed(path: Path) -> str:
    import shlex

    return shlex.quote(_short(path))


def _short(path: Path) -> str:
    """A path as the user would type it from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def logs(word: Optional[str], *, follow: bool, node: Optional[str], rank: Optional[int], errors: bool, task: Optional[int] = None) -> None:
    """The whole logs, or those of a node, of a rank, of the ranks that failed; of an array, those of all tasks or of one."""
    import shutil

    from kit import regular
    from kit.runs import follow as its
    from kit.runs import tasks

    run, number = tasks.find(word, task)
    runs = [item for item in tasks.all_of(run) if number is None or tasks.number(item) == number]
    if follow:
        if len(runs) > 1:
            raise UsageError(f"{run} is an array of {len(runs)} tasks", f"follow one: kit logs {run.id} -f --task {tasks.number(runs[0])}")
        _follow_again(runs[0])
        return
    there = [path for item in runs for path in _logs(item, node, rank, errors) if path.is_file()]
    if not there:
        folder = its.folder(Path(run.folder), runs[0].id) if len(runs) == 1 else Path(run.folder, "log")
        fix = f"what there is: ls {_typed(folder)}"
        raise KitError(f"{runs[0] if number is not None else run} has no {'failed rank' if errors else 'such log yet'}", fix)
    for path in there:
        if len(there) > 1:
            print(f"==> {path.relative_to(Path(run.folder, 'log')) if run.array else path.name} <==")
        sys.stdout.flush()
        with regular.opened(path) as file:
            shutil.copyfileobj(file, sys.stdout.buffer)  # as it is: the program may draw on its user's terminal
    sys.stdout.flush()


def _logs(run: Run, node: Optional[str], rank: Optional[int], errors: bool) -> list[Path]:
    from kit.runs import follow as its

    folder = its.folder(Path(run.folder), run.id)
    if errors:
        return [path.with_suffix(".out") for path in sorted(folder.glob("rank*.failed"), key=lambda path: path.lstat().st_mtime)]
    if rank is not None:
        return [folder / f"rank{rank}.out"]
    if node is not None:
        return [folder / f"{node}.out"]
    return its.files(Path(run.folder), run.id)


def _follow_again(run: Run) -> None:
    if not run.id:
        raise UsageError(f"{run} has no job yet", f"where it is: kit status {run.name}")
    if run.local or run.state:
        raise UsageError(f"{run} {'runs in its own terminal' if run.local else 'has ended'}", f"its logs: kit logs {run.id}")
    _follow(run)


def cancel(word: str, task: Optional[int] = None) -> None:
    from kit import secret_values, slurm
    from kit.runs import history, status, tasks

    whole, number = tasks.find(word, task)
    found = status.of([whole])[0] if number is None else tasks.one(whole, number)
    run = found.run
    if not run.id and not run.state:
        _give_up(run)
        return
    if found.state == "UNKNOWN" and not run.ssh:
        raise KitError(f"{run} is not cancelled: {found.detail}", "a number alone may be that of another job")
    if found.state == "LOST" and not run.local:
        raise KitError(f"{run} is not cancelled: it is not in Slurm's queue, and {found.detail}", f"look for it: squeue --me, sacct -j {run.id}")
    if not found.active and found.state != "UNKNOWN":
        _say(f"{run} has ended: {found.state}")
        return
    if run.local:
        _end_here(run)
        return
    with slurm.at(run.ssh, run.asked_of):
        if found.state == "UNKNOWN" and not status.are_queued(tasks.all_of(run)):  # its login node did not answer just now
            raise KitError(f"{run} is not in the queue of {run.ssh}", f"how it ended: kit status {run.id}")
        # Of an array, tasks that others go on for have another array's id.
        job_ids = {item.run.id.rpartition("_")[0] for item in found.tasks if item.active} or {run.id}
        for job_id in job_ids:
            slurm.cancel(job_id)
        history.note_cancelled(run, job_ids)
    if run.ssh:
        from kit.remote import submission

        submission.forget_secrets(run, number)
    secret_values.forget(Path(run.folder), number)  # a job that waits would not do that itself
    _say(f"{run} is being cancelled")


def _end_here(run: Run) -> None:
    """Of a run on this machine. Its kit notes the end, unless that was killed."""
    from kit import local
    from kit.runs import history

    if not local.cancel(run):
        raise KitError(f"{run} does not end: its kit is still there", "end it in its terminal: Ctrl-C")
    if left := local.processes(run.id):
        raise KitError(f"{run} does not end: processes of it are left", f"see: ps {' '.join(map(str, left))}")
    if not history.find(run.folder).state:
        history.ended(run, "CANCELLED")
    _say(f"{run} was ended")


def _give_up(run: Run) -> None:
    """Of a run whose submission was cut off."""
    from kit import secret_values, slurm
    from kit.runs import history

    arrived = _give_up_submission(run)
    if not arrived:
        _say(f"{run.name} was never submitted, and will not be")
        return
    with slurm.at(arrived.ssh, arrived.asked_of):
        slurm.cancel(arrived.id)
    history.note_cancelled(arrived, [arrived.id])
    if not arrived.ssh:
        secret_values.forget(Path(arrived.folder))
    _say(f"{arrived} is being cancelled")


def nodes(cluster: Optional[str], forget: Optional[str]) -> None:
    """Lists the nodes that are left out of new jobs, or takes one of them back."""
    from kit import cluster as clusters
    from kit import nodes as noted
    from kit.errors import Problems

    problems = Problems()
    site = clusters.load(cluster, "--cluster", problems)
    problems.raise_if_any()
    if site.ssh:
        from kit.remote import nodes as there

        with there.file(site) as file:
            _nodes(file, forget)
    else:
        _nodes(noted.file(site.name), forget)


def _nodes(file: str, forget: Optional[str]) -> None:
    from kit import nodes as noted
    from kit import table

    if forget:
        if not noted.forget(file, forget):
            raise UsageError(f"{forget} is not left out", "kit nodes lists those that are")
        _say(f"{forget} is used again")
        return
    bad = noted.bad(file)
    if not bad:
        _say("no node is left out")
        return
    rows = [(node.name, time.strftime("%d %b %H:%M", time.localtime(node.until_s)), node.why) for node in bad]
    table.show([("NODE", "LEFT OUT UNTIL", "WHY"), *rows])
