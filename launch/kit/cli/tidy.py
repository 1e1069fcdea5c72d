"""Tidy: checkpoint, stop, cancel and nodes."""

import sys
from typing import Annotated, Optional

from kit.base.errors import KitError, UsageError, refuse_together
from kit.cli import completion, messages, tables
from kit.cli.app import TIDY, command
from kit.cli.options import Cluster, Json, OneRun, Task, argument, option
from kit.config import profiles
from kit.plan import bad_nodes
from kit.runs import asking, cancelling


@command(TIDY, "kit cancel 4711 4712", "kit cancel 4711 --task 3")
def cancel(
    run: Annotated[
        list[str],
        argument(
            "RUN...", "Job ids, run directories or names.", autocompletion=completion.active_runs
        ),
    ],
    task: Task = None,
) -> None:
    """Cancel runs, with all tasks of an array."""
    if task is not None and len(run) > 1:
        fix = f"name each task by its id: kit cancel {run[0]}_{task} {run[1]}_{task}"
        raise UsageError("--task is for one array", fix)
    code = 0
    for answer in cancelling.cancel_all(run, task):
        if isinstance(answer, KitError):
            print(answer, file=sys.stderr)
            code = max(code, answer.exit_code)
        else:
            messages.say(answer)
    if code:
        sys.exit(code)


@command(TIDY, "kit checkpoint 4711")
def checkpoint(run: OneRun, task: Task = None) -> None:
    """Make the ranks write a checkpoint, and continue from it in the same job.

    For jobs with `on_preempt: checkpoint`. With `share: group`, members of its group may, too.
    """
    messages.say(asking.ask(run, asking.CHECKPOINT, task))


@command(TIDY, "kit stop 4711")
def stop(run: OneRun, task: Task = None) -> None:
    """End the job with exit code 0 when its ranks have written a checkpoint.

    For jobs with `on_preempt`; with `requeue`, the job ends between two of its checkpoints.
    With `share: group`, members of its group may, too.
    """
    messages.say(asking.ask(run, asking.STOP, task))


@command(TIDY, "kit nodes", "kit nodes --forget node7")
def nodes(
    forget: Annotated[Optional[str], option("--forget", "NODE", "Use this node again.")] = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """List the bad nodes, which new jobs avoid."""
    refuse_together({"--forget": forget, "--json": as_json})
    file = bad_nodes.file(profiles.load_valid(cluster).name)
    if forget:
        if not bad_nodes.forget(file, forget):
            problem = f"{forget} is not on the list of bad nodes"
            raise UsageError(problem, "to see the list: kit nodes")
        messages.say(f"{forget} is used again")
        return
    found = bad_nodes.bad(file)
    if as_json:
        facts = [{"node": node.name, "why": node.why, "until_s": node.until_s} for node in found]
        print(messages.json_text(facts))
        return
    if not found:
        messages.say("kit knows no bad nodes")
        return
    rows = [(node.name, node.until, node.why) for node in found]
    tables.show([("NODE", "LEFT OUT UNTIL", "WHY"), *rows])
