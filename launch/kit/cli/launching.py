"""Starting a run, on Slurm or on this machine: what the user is told of it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional, TextIO

from kit import slurm
from kit.base import formats, signals
from kit.cli import following, messages, run_views
from kit.images import package_store
from kit.plan.plan import Plan
from kit.runs import local, run_dir, secret_file, sharing
from kit.runs import submit as submitting
from kit.runs.history import Run
from kit.slurm import task_numbers

STOPPED = (75, 129, signals.CTRL_C, 143)  # exit codes of what a user or a time limit ended


@dataclass(frozen=True)
class Answer:
    """How a command tells which job it has submitted."""

    follow_it: bool = False
    as_json: bool = False
    parsable: bool = False  # as sbatch does: the job's id alone
    out: TextIO = field(default_factory=lambda: sys.stdout)

    def give(self, run: Run, said: str, code: str = "") -> None:
        """Print about a job that is submitted whether anybody can read it or not."""
        if self.as_json:
            text = messages.json_text(run_views.run_json(run))
        elif self.parsable:
            text = f"{run.id};{run.cluster}" if run.is_member else run.id
        else:
            is_followed = run.array or self.follow_it
            how = "" if is_followed else f"\n  follow it:     kit logs -f {run.id}"
            text = f"kit: {said}\n  run directory: {messages.short(Path(run.folder))}{code}{how}"
        try:
            print(text, file=self.out, flush=True)
        except (OSError, ValueError):  # a full disk, a closed pipe
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115

    def give_none(self, said: str) -> None:
        """Say why no job is submitted."""
        messages.say(said)
        if self.as_json:
            print(messages.json_text(None), file=self.out)


def say_reasons(plan: Plan) -> None:
    """Say what kit has chosen, and why; on stderr, for a dry run's output is the scripts."""
    reasons, code = plan.reasons, plan.program.code
    if plan.container.image and reasons.why_runtime:
        messages.note(f"runtime {plan.container.runtime}: {reasons.why_runtime}")
    if reasons.why_stage:
        messages.note(f"stage {plan.container.stage}: {reasons.why_stage}")
    if reasons.why_unpack:
        messages.note(f"unpack {plan.container.unpack}: {reasons.why_unpack}")
    for text in code.notes if code else ():
        messages.note(text)


def say_live(plan: Plan) -> None:
    """Say why there is no copy of the code where the job asks for one.

    For commands that make none unasked; the others say it of their run.
    """
    if plan.reasons.why_live:
        messages.note(f"the code is live: {plan.reasons.why_live}")


def _shape(plan: Plan) -> str:
    """Return how much a job asks for: 4 nodes x 8 ranks, 8 GPUs on each node."""
    layout = plan.layout
    nodes = formats.number(layout.nodes, "node")
    asked = dict(plan.header).get("nodes") or ""
    if "-" in asked:  # any number between
        nodes = f"{asked} nodes"
    ranks = formats.number(layout.processes_per_node, "rank")
    if plan.program.launcher == "spawn":
        ranks = f"1 program for {ranks}"
    if plan.program.launcher == "ray":
        ranks = ranks.replace("rank", "worker") + " of Ray"
    gpus = formats.number(layout.gpus_per_node, "GPU")
    more = [f"{gpus} on each node"] if layout.gpus_per_node else []
    if not more and not any(name.startswith(("gpu", "gres", "tres")) for name, _ in plan.header):
        more = ["no GPUs"]
    more += [formats.number(layout.spares, "spare node")] if layout.spares else []
    if layout.array:
        more.append(formats.number(len(task_numbers.numbers(layout.array)), "task"))
    return ", ".join([f"{nodes} x {ranks}", *more])


def print_scripts(plan: Plan, scripts: Mapping[str, str]) -> None:
    messages.say(_shape(plan))
    for name, text in scripts.items():
        if "/" in name:  # lib/ is the same for every job
            continue
        print(f"==> {messages.short(Path(plan.layout.run_dir))}/{name} <==", flush=True)
        if sys.stdout.isatty():
            print(text)
        else:  # byte for byte
            sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape") + b"\n")


def say_packages(plan: Plan) -> None:
    """Say what a submission does about the packages that the job wants beside its image."""
    if plan.container.packages.requirements:
        image = plan.container.image or "this machine's Python"
        messages.note(f"packages: a submission resolves them against {image}, once")


def submit(plan: Plan, options: list[str], answer: Answer) -> None:
    for node in plan.reasons.left_out:
        messages.say(
            f"avoiding {node.name} until {node.until}: it {node.why};"
            f" to use it again: kit nodes --forget {node.name}"
        )
    if not is_submitted_already(plan, answer):
        plan = package_store.bring(plan, messages.note)
        hand_to_slurm(plan, run_dir.write(plan), options, answer)


def is_submitted_already(plan: Plan, answer: Answer) -> bool:
    """Return True if an earlier call of the same command has submitted the job.

    Its answer was lost. Raise Unsure where nobody can say yet.
    """
    earlier = submitting.earlier(plan, sys.argv)
    if earlier:
        said = submitting.not_again(earlier)
        if answer.as_json or answer.parsable:
            messages.note(said)
        answer.give(earlier, said)
        following.see_off(earlier, follow_it=answer.follow_it)
    return earlier is not None


def say_sharing(plan: Plan, run: Path) -> None:
    """Say whom the job lets read its run, and stop it."""
    if plan.policy.share:
        can = "" if plan.policy.on_preempt == "none" else ", and have it save and stop"
        messages.note(f"the group {sharing.group(run)} may read its logs and run.json{can}")


def hand_to_slurm(
    plan: Plan, run: Path, options: list[str], answer: Answer, before: Optional[Run] = None
) -> None:
    """Submit a run directory; where Slurm refuses it, one that was not noted before is removed."""
    say_sharing(plan, run)

    def say(noted: Run) -> None:
        answer.give(noted, f"submitted job {noted.id}", of_code(plan))

    submitted = submitting.submit(plan, run, options, say, before)
    following.see_off(submitted, follow_it=answer.follow_it)


def finish(plan: Plan, run: Run, answer: Answer) -> None:
    """Submit a run directory of which nobody heard that Slurm has it, once that is known."""
    run = submitting.settle(run)
    if run.why:
        raise slurm.Unsure(
            f"whether Slurm has the job of {run.name} is not known yet",
            f"ask in a minute: kit status {run.name}",
        )
    if run.id:
        answer.give(run, f"{run.name} was submitted: job {run.id}")
        following.see_off(run, follow_it=answer.follow_it)
        return
    folder = Path(run.folder)
    secret_file.forget(folder)
    options = list(run_dir.load(folder).get("sbatch_options", ()))
    hand_to_slurm(plan, folder, options, answer, before=run)


def run_here(plan: Plan, task: Optional[int] = None) -> None:
    local.check_task(plan, task)
    say_reasons(plan)
    say_live(plan)
    plan = package_store.bring(plan, messages.note)
    start_here(plan, local.note(plan, run_dir.write(plan), task))


def start_here(plan: Plan, noted: Run) -> None:
    """Run a run directory, and end with its exit code."""
    folder = Path(noted.folder)
    say_sharing(plan, folder)
    try:
        local.place_secrets(plan, folder, noted.task)
        start_s = time.monotonic()
        code = local.run(plan, noted, messages.show_log)
    finally:
        secret_file.forget(folder)
    elapsed = f"{time.monotonic() - start_s:.1f} s"
    place = messages.short(folder)
    if code:
        what = f"{'stopped' if code in STOPPED else 'failed'} with exit code {code}"
        if code == signals.CTRL_C:
            what = "stopped by Ctrl-C"
        messages.say(f"{what} after {elapsed}; why: kit why; scripts and logs: {place}")
        if code not in STOPPED:
            following.say_cause(noted.id)
        sys.exit(code)
    messages.say(f"done in {elapsed}; the scripts that ran, and their logs: {place}")


def of_code(plan: Plan) -> str:
    """Return a line about the code that was copied, or why it was not."""
    code, why_live = plan.program.code, plan.reasons.why_live
    if not code:
        return f"\n  code:          live: {why_live}" if why_live else ""
    count = formats.number(len(code.sources.names), "file")
    return f"\n  code:          {count}, {formats.size(code.sources.bytes)}, as now"
