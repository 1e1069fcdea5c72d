"""The functions of `import kit`. None of them prints; each raises KitError with a fix."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

from kit.api.handle import RunHandle
from kit.api.job_request import JobRequest, Use
from kit.base.errors import KitError, UsageError, tell, warn
from kit.config import profiles
from kit.config.job import Job
from kit.config.yaml_source import Located
from kit.images import package_store
from kit.plan.plan import Plan
from kit.remote import records
from kit.runs import array_status, dependencies, run_dir
from kit.runs import submit as submitting
from kit.runs.history import Run

Target = Union[str, "os.PathLike[str]", None]


def load(target: Target = None, arguments: Sequence[str] = (), **keys: Any) -> Job:
    """Return the job of a file or of a program, `./job.yaml` by default, with these keys over it.

    A key is a key of job files, with a value as YAML would have it: nodes=4, env={"A": "1"}.
    """
    request = _request("load", target, arguments, keys)
    job = request.load()
    request.problems.raise_if_any()
    return job


def render(
    target: Target = None,
    arguments: Sequence[str] = (),
    *,
    output: Target = None,
    **keys: Any,
) -> Path:
    """Write the run directory, start nothing, and return its path."""
    plan = _plan(_request("render", target, arguments, keys), output, Use())
    plan = package_store.bring(plan)
    return run_dir.write(plan)


def submit(
    target: Target = None,
    arguments: Sequence[str] = (),
    *,
    output: Target = None,
    after: Sequence[str] = (),
    **keys: Any,
) -> RunHandle:
    """Submit a job to Slurm, and return its run.

    `after` names runs to wait for, as the option of `kit submit`. Where the answer to an earlier
    call with the same values was lost, return the run of that call. Raise slurm.Unsure where
    nobody can say yet whether Slurm has the job: the same call again does not submit it twice.
    """
    request = _request("submit", target, arguments, keys)
    plan = _plan(request, output, Use(asks_site=True))
    waits = _words("submit", "after", after)
    options, _ = dependencies.resolve(waits, plan, ask=True)
    # Of the values as they were taken: Python prints a generator by its address, and a large array
    # of NumPy without its middle.
    asked = repr(sorted(request.overrides.items()))
    words = ["kit.submit", str(target), *request.arguments, *waits, str(output), asked]
    run = submitting.earlier(plan, words)
    if run:
        tell(f"kit: {submitting.not_again(run)}")
    else:
        plan = package_store.bring(plan)
        folder = run_dir.write(plan)
        run_dir.update(folder, {"invocation": tuple(words)})
        run = _submitted(plan, folder, options)
    return RunHandle(run.id, run.name, Path(run.folder))


def _submitted(plan: Plan, folder: Path, options: list[str]) -> Run:
    """Submit a run directory. Where a signal ends the call then, say which job there is."""
    noted: list[Run] = []
    try:
        return submitting.submit(plan, folder, options, noted.append)
    except BaseException:
        for run in noted:
            tell(f"kit: submitted job {run.id} before that; to end it: kit cancel {run.id}")
        raise


def find(run: Union[Target, int] = None, *, task: Optional[int] = None) -> RunHandle:
    """Return a run by its job id, directory or name; without one, the last run of this folder."""
    run = str(run) if isinstance(run, int) else run
    word = None if run is None else os.fspath(run)
    record = records.find(word, os.getcwd())
    try:
        found, number = array_status.find(word, task)
    except UsageError:
        if record:
            raise _elsewhere(record.cluster) from None
        raise
    if record and word is None and record.created_s > found.created_s:
        raise _elsewhere(record.cluster)
    return RunHandle(found.id, found.name, Path(found.folder), number)


def _request(
    function: str, target: Target, arguments: Sequence[str], keys: dict[str, Any]
) -> JobRequest:
    where = f"kit.{function}()"
    overrides = {key: _located(value, where) for key, value in keys.items() if value is not None}
    words = _words(function, "arguments", arguments)
    return JobRequest(None if target is None else os.fspath(target), words, overrides)


def _words(function: str, name: str, given: Sequence[str]) -> list[str]:
    """Return the words of a list. Raise UsageError for one text: its letters would be the words."""
    if isinstance(given, (str, bytes)):
        problem = f"{name}: expected a list, not {given!r}"
        raise UsageError(problem, f"write {name}={given.split()!r}", where=f"kit.{function}()")
    return [_text(word) for word in given]


def _located(value: Any, where: str) -> Located:
    """Return a value of Python's as a job file would have it."""
    if isinstance(value, Mapping):
        return Located({_text(key): _located(item, where) for key, item in value.items()}, where)
    if isinstance(value, Iterable) and getattr(value, "shape", None) == ():
        value = value.item()  # type: ignore[attr-defined]  # of a tensor, which has no items
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=str)  # its own order is another one in each process
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray)):
        return Located([_located(item, where) for item in value], where)
    return Located(None if value is None else _text(value), where)


def _text(value: Any) -> str:
    """Return a value as text; of bytes, such as a program's output, what they say."""
    is_bytes = isinstance(value, (bytes, bytearray))
    return os.fsdecode(bytes(value)) if is_bytes else str(value)


def _plan(request: JobRequest, output: Target, use: Use) -> Plan:
    job = request.load()
    if profiles.load_valid(job.cluster, elsewhere=True).ssh:
        raise _elsewhere(str(job.cluster))
    plan = request.plan(job, None if output is None else os.fspath(output), use)
    code, why_live = plan.program.code, plan.reasons.why_live
    notes = list(code.notes) if code else []
    if why_live:
        notes.append(f"the code is live: {why_live}")
    for note in notes:
        warn(f"kit: {note}")
    return plan


def _elsewhere(cluster: str) -> KitError:
    """Return the error for a cluster elsewhere, whose commands return nothing to Python."""
    fix = "start your program on its login node; or call the command: kit submit --json"
    return KitError(f"{cluster} is a cluster elsewhere, which Python's kit cannot ask", fix)
