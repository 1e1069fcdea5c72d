"""--after RUN: what a submission waits for, as sbatch's --dependency."""

from __future__ import annotations

import os
from typing import NamedTuple, Optional

from kit import slurm
from kit.base.errors import UsageError
from kit.base.formats import first
from kit.plan.file_words import CONFIGURATIONS
from kit.plan.plan import Plan
from kit.runs import lookup, status, submit
from kit.runs.history import Run
from kit.runs.job_status import OWN, Status

KINDS = {"ok": "afterok", "any": "afterany", "notok": "afternotok"}
WORDS = {"ok": "to end well", "any": "to end", "notok": "to fail"}


class Wait(NamedTuple):
    kind: str  # of KINDS
    run: Run


def resolve(words: list[str], plan: Plan, *, ask: bool) -> tuple[list[str], list[str]]:
    """Return sbatch's options, and lines for the user. Without `ask`, read only the history.

    A dependency belongs to a submission, and so not to the #SBATCH lines: Slurm refuses a script
    that names a job which it has forgotten, and users may submit a run directory at any time.
    """
    if not words:
        return [], []
    own = dict(plan.header)
    if "dependency" in own:
        job_key = f"`slurm: {{dependency: {own['dependency']}}}`"
        problem = f"--after {words[0]} and the job's own {job_key} both say what to wait for"
        raise UsageError(problem, "keep one of them")
    given = [_wait(word) for word in words]
    runs = [wait.run for wait in given]
    answers = status.query(runs) if ask else [Status(run, run.state) for run in runs]
    waits, said, here = [], [], os.path.realpath(os.curdir)
    for wait, found in zip(given, answers):
        wait = wait._replace(run=found.run)
        state = found.state if found.state in OWN or not found.active else ""
        _refuse_unknown(wait.run, state, found.detail)
        named = (
            str(wait.run) if lookup.is_of(here, wait.run) else f"{wait.run} of {wait.run.folder}"
        )
        if state and _is_over(wait, state):
            said.append(f"{named} has ended already ({state}): nothing to wait for")
        elif wait not in waits:
            if ask:
                _refuse_other_cluster(wait, plan)
            waits.append(wait)
            said.append(f"waits for {named} {WORDS[wait.kind]}")
    if waits and (names := _frozen_settings(plan)):
        way = "to read what that run leaves: `code: live`, or name them in .kitignore"
        said.append(f"reads {first(names, 3)} as of now; {way}")
    return _options(waits, own), said


def _frozen_settings(plan: Plan) -> list[str]:
    """Return the frozen files that a run before this one may write: no code, and unknown to git."""
    code = plan.program.code
    names = code.used if code else ()
    tracked = code.sources.tracked if code else ()
    return [name for name in names if name.endswith(CONFIGURATIONS) and name not in tracked]


def _wait(word: str) -> Wait:
    kind, colon, name = word.partition(":")
    if colon and kind in KINDS.values():
        short = next(key for key, value in KINDS.items() if value == kind)
        raise UsageError(
            f"--after does not know '{kind}'",
            f"write --after {name if short == 'ok' else f'{short}:{name}'}",
        )
    if not colon or kind not in KINDS:
        kind, name = "ok", word
    try:
        run = lookup.find(name)
    except UsageError:
        foreign = f"a job that kit did not submit: --slurm dependency={KINDS[kind]}:JOBID"
        fix = f"give a job id, a run directory or a name of kit runs; {foreign}"
        raise UsageError(f"--after: there is no run {name}", fix) from None
    if run.local:
        raise UsageError(
            f"--after: {run} ran on this machine, and Slurm knows nothing of it",
            "name a run of kit submit: kit runs",
        )
    return Wait(kind, run)


def _refuse_unknown(run: Run, state: str, detail: str) -> None:
    """Raise UsageError for a run without a job, and for one whose state nobody can tell here."""
    if state == "SUBMITTING" or (run.why and not run.id and not state):
        problem = f"whether Slurm has the job of {run} is not known yet"
        raise UsageError(f"--after: {problem}", "ask again in a minute: kit status")
    if state == "UNSUBMITTED" or not (run.id or state):
        fix = f"submit it first: kit rerun {os.path.basename(run.folder)}"
        raise UsageError(f"--after: Slurm has no job of {run}", fix)
    if state == "UNKNOWN":
        fix = "submit where its state is known, or leave --after out"
        raise UsageError(f"--after: the state of {run} is not known here: {detail}", fix)


def _refuse_other_cluster(wait: Wait, plan: Plan) -> None:
    """Raise UsageError for a run of another cluster, which has other jobs of the same numbers."""
    run, chosen = wait.run, submit.chosen_clusters(plan)
    if not (chosen or run.is_member):
        return
    with slurm.at(""):
        own = "" if chosen and run.cluster else slurm.cluster_name()
    its, goes_to = run.cluster or own, chosen or own
    if its and its == goes_to:
        return
    problem = f"{run} is a job of {_named(its)}, and this one goes to {_named(goes_to)}"
    way = f"--slurm clusters={its or 'NAME'}"
    if found := next((name for name in submit.CLUSTERS if os.environ.get(name)), ""):
        way = f"export {found}={its or 'NAME'}"
    raise UsageError(f"--after: {problem}", f"send both to one: {way}; or leave --after out")


def _named(cluster: str) -> str:
    if "," in cluster:
        return f"any of the clusters {cluster}"
    return f"the cluster {cluster}" if cluster else "a cluster that Slurm does not name"


def _is_over(wait: Wait, state: str) -> bool:
    """Return whether the wait is over. Raise UsageError if the job could never start."""
    if (
        wait.kind == "any"
        or (wait.kind == "ok" and state == "COMPLETED")
        or (wait.kind == "notok" and state not in ("COMPLETED", "LOST"))
    ):
        return True
    name = wait.run.id or wait.run.folder  # what was given up has no job
    if state == "LOST":
        choices = f"leave --after out, or write any:{name}"
        fix = f"see its logs: kit logs {name}; then {choices}"
        raise UsageError(f"--after: nobody knows how {wait.run} ended", fix)
    if wait.kind == "notok":
        problem = "has ended well, so a job that waits for its failure would never start"
        raise UsageError(f"--after: {wait.run} {problem}", "leave --after out, or submit nothing")
    problem = f"has ended: {state}; a job that waits for its success would never start"
    fix = f"leave --after out, or write --after any:{name}, or notok:{name}"
    raise UsageError(f"--after: {wait.run} {problem}", fix)


def _options(waits: list[Wait], own: dict[str, Optional[str]]) -> list[str]:
    if not waits:
        return []
    kinds = [(kind, [wait.run.id for wait in waits if wait.kind == kind]) for kind in KINDS]
    named = (":".join([KINDS[kind], *ids]) for kind, ids in kinds if ids)
    options = [f"--dependency={','.join(named)}"]
    # Otherwise a job that can never start stays in the queue until somebody notices.
    if "kill-on-invalid-dep" not in own and any(wait.kind != "any" for wait in waits):
        options.append("--kill-on-invalid-dep=yes")
    return options
