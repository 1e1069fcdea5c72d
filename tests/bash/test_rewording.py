"""No program reads what kit prints: with every sentence of the scripts replaced, a run has the same end, and the same is told of it."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import NamedTuple, Optional

import pytest
from kit.diagnose.why import report
from kit.runs import events, history, job_status
from running import SCRIPTS, TAG, stub, until
from test_endings import READY, WAIT, begin, job
from test_run_script import JOB_ID, NOWHERE, run_dir

GIBBERISH = """
kit::say() { printf 'qx %d\\n' "$#" >&2; }
kit::error() { printf 'qx!\\nqx\\n' >&2; }
"""


class Told(NamedTuple):
    code: int
    state: tuple[str, bool]  # whether there is a reason, too
    first: Optional[int]
    cause: str
    failed: list[int]


def reword(run: Path) -> None:
    """Replaces every sentence that the scripts print."""
    for path in [run / "run_script.sh", run / "srun.sh", *(run / "lib").rglob("*.sh")]:
        text = path.read_text()
        path.write_text(re.sub(r"(printf (?:-v \S+ )?')kit: [^']*'", r"\1qx %s %s %s %s\\n'", text))
    with (run / "lib/messages.sh").open("a") as file:
        file.write(GIBBERISH)
    assert "kit: " not in re.sub(r"(?m)^\s*#.*", "", "".join(path.read_text() for path in (run / "lib").rglob("*.sh"))).replace(
        "'kit: error: %s: %s", ""
    ).replace("'kit: %s: %s", ""), "a sentence was left"


def told(run: Path, code: int) -> Told:
    """What kit says of a run that has ended with this code."""
    state, why = job_status.by_log(history.Run(str(JOB_ID), str(run), "x", "2x1", time.time()))
    found = report.why(str(run))
    failed = [each.rank for each in events.failed_ranks(events.read(run / f"log/{JOB_ID}"))]
    return Told(code, (state or found.state, bool(why)), found.first.rank if found.first else None, found.cause, failed)


def succeed(folder: Path, tag: str, reworded: bool) -> Told:
    return end(run_dir(folder, "true", nodes=2), reworded)


def fail(folder: Path, tag: str, reworded: bool) -> Told:
    return end(run_dir(folder, "((RANK == 0)) || exit 7; trap 'exit 5' TERM; sleep 60 & wait", nodes=2), reworded)


def refuse(folder: Path, tag: str, reworded: bool) -> Told:
    return end(run_dir(folder, "true", nodes=2, mounts=(NOWHERE,)), reworded)


def stop(folder: Path, tag: str, reworded: bool) -> Told:
    run = job(folder, f"{READY}trap 'exit 143' TERM\ntouch up\n{WAIT}")
    if reworded:
        reword(run)
    process = begin(run, **{TAG: tag})
    until((run / "up").exists, 60)
    os.killpg(process.pid, signal.SIGTERM)
    return told(run, process.wait(120))


def requeue(folder: Path, tag: str, reworded: bool) -> Told:
    """The first attempt wants to go on; in the second one a rank fails."""
    program = "((SLURM_RESTART_COUNT)) && echo again && exit 9; echo 'Traceback (most recent call last):'; echo 'MemoryError'; exit 75"
    run = run_dir(folder, program, nodes=1, on_preempt="checkpoint")
    real = SCRIPTS / "local/scontrol"
    stub(folder / "bin", "scontrol", f'[[ "$1" == requeue ]] || exec {real} "$@"\n')
    if reworded:
        reword(run)
    assert begin(run, 1, KIT_LOOPBACK="", SLURM_RESTART_COUNT="0").wait(120) == 75
    between = told(run, 75)
    assert between.state == ("", False) and between.cause == ""
    return told(run, begin(run, 1, KIT_LOOPBACK="", SLURM_RESTART_COUNT="1").wait(120))


def end(run: Path, reworded: bool) -> Told:
    (run.parent / "bin").mkdir(exist_ok=True)
    if reworded:
        reword(run)
    return told(run, begin(run).wait(120))


STORIES = {
    succeed: Told(0, ("COMPLETED", False), None, "", []),
    fail: Told(7, ("FAILED", True), 1, "exit-code", [1]),
    refuse: Told(1, ("FAILED", True), None, "mount-missing", []),
    stop: Told(143, ("CANCELLED", False), None, "cancelled", []),
    requeue: Told(9, ("FAILED", True), 0, "exit-code", [0]),
}


@pytest.mark.parametrize("reworded", [False, True], ids=["as it is", "reworded"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_rewording_every_message_changes_nothing_that_kit_knows(story, reworded: bool, tmp_path: Path, tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert story(tmp_path / "x", tag, reworded) == STORIES[story]
