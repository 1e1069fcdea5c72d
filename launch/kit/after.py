"""--after RUN: what a submission waits for, as sbatch's --dependency."""

from __future__ import annotations

from typing import NamedTuple, Optional

from kit.errors import UsageError
from kit.plan import Plan
from kit.runs import history, status
from kit.runs.history import Run

KINDS = {"ok": "afterok", "any": "afterany", "notok": "afternotok"}
WORDS = {"ok": "to end well", "any": "to end", "notok": "to fail"}


class Wait(NamedTuple):
    kind: str  # of KINDS
    run: Run


def resolve(words: list[str], plan: Plan, *, ask: bool) -> tuple[list[str], list[str]]:
    """sbatch's options, and lines for the user. With `ask` unset nothing but the history of this user's runs is read.

    A dependency belongs to a submission, so it is none of the #SBATCH lines: Slurm refuses a script that names a job
    which it has forgotten, and a run directory is to be submitted by hand at any time.
    """
    if not words:
        return [], []
    own = dict(plan.header)
    if "dependency" in own:
        raise UsageError(f"--after {words[0]} and the job's own `slurm: {{dependency: {own['dependency']}}}` both say what to wait for", "keep one of them")
    given = [_wait(word) for word in words]
    for wait in given:
        if wait.run.ssh != (plan.remote.ssh if plan.remote else ""):
            raise UsageError(f"--after: {wait.run} is a run of another cluster, whose Slurm knows nothing of this one", "wait for runs of the same cluster")
    states = {item.run.folder: item for item in status.of([wait.run for wait in given])} if ask else {}
    waits, said = [], []
    for wait in given:
        found = states.get(wait.run.folder)
        state = (found.state if not found.active else "") if found else wait.run.state
        if state and _is_over(wait, state):
            said.append(f"{wait.run} has ended already ({state}): nothing to wait for")
        elif wait not in waits:
            waits.append(wait)
            said.append(f"waits for {wait.run} {WORDS[wait.kind]}")
    return _options(waits, own), said


def _wait(word: str) -> Wait:
    kind, colon, name = word.partition(":")
    if colon and kind in KINDS.values():
        short = next(key for key, value in KINDS.items() if value == kind)
        raise UsageError(f"--after does not know '{kind}'", f"write --after {name if short == 'ok' else f'{short}:{name}'}")
    if not colon or kind not in KINDS:
        kind, name = "ok", word
    try:
        run = history.find(name)
    except UsageError:
        fix = f"give a job id, a run directory or a name of kit runs; a job that kit did not submit: --slurm dependency={KINDS[kind]}:JOBID"
        raise UsageError(f"--after: there is no run {name}", fix) from None
    if run.local:
        raise UsageError(f"--after: {run} ran on this machine, and Slurm knows nothing of it", "name a run of kit submit: kit runs")
    return Wait(kind, run)


def _is_over(wait: Wait, state: str) -> bool:
    """Whether nothing is left to wait for. Raises UsageError where the job could never start."""
    if wait.kind == "any" or (wait.kind == "ok" and state == "COMPLETED") or (wait.kind == "notok" and state not in ("COMPLETED", "LOST")):
        return True
    if state == "LOST":
        raise UsageError(
            f"--after: nobody knows how {wait.run} ended", f"see its logs: kit logs {wait.run.id}; then leave --after out, or write any:{wait.run.id}"
        )
    if wait.kind == "notok":
        raise UsageError(f"--after: {wait.run} has ended well, so a job that waits for its failure would never start", "leave --after out, or submit nothing")
    raise UsageError(
        f"--after: {wait.run} has ended: {state}; a job that waits for its success would never start",
        f"leave --after out, or write --after any:{wait.run.id}, or notok:{wait.run.id}",
    )


def _options(waits: list[Wait], own: dict[str, Optional[str]]) -> list[str]:
    if not waits:
        return []
    kinds = [(kind, [wait.run.id for wait in waits if wait.kind == kind]) for kind in KINDS]
    options = [f"--dependency={','.join(':'.join([KINDS[kind], *ids]) for kind, ids in kinds if ids)}"]
    # Otherwise a job that can never start stays in the queue until somebody notices.
    if "kill-on-invalid-dep" not in own and any(wait.kind != "any" for wait in waits):
        options.append("--kill-on-invalid-dep=yes")
    return options
