"""`kit checkpoint` and `kit stop`: the ranks save; then they go on, or the job ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit.runs import history, run_dir, sharing
from kit.runs.history import Run
from test_known_runs import until

import event_lines
from far_side import Slurm
from plans import plan_of

pytestmark = pytest.mark.slow

COUNTS = """\
trap 'asked=yes' USR1
asked='' step=0
[[ ! -e place ]] || read -r step <place
begun="${step}"
echo "begins at ${step}"
while
  step=$((step + 1)) # at least one, however soon it is asked
  sleep 0.1
  [[ -z "${asked}" ]]
do :; done
[[ "${RANK}" != 0 ]] || { echo "${step}" >place && echo "step ${step}" >"${KIT_PROGRESS}" && : >"saved.${begun}"; }
until [[ -e "saved.${begun}" ]]; do sleep 0.05; done
exit 75
"""


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_a_run_here_saves_and_goes_on_as_often_as_it_is_asked_and_then_stops_well(max_restarts: int, fake_slurm: Slurm, kit_here, tmp_path: Path) -> None:
    (tmp_path / "counts.sh").write_text(COUNTS)
    (tmp_path / "job.yaml").write_text(
        f"command: [bash, counts.sh]\nlauncher: srun\nprocesses_per_node: 2\non_preempt: checkpoint\nmax_restarts: {max_restarts}\n"
    )
    process = subprocess.Popen([sys.executable, "-m", "kit", "run", "job.yaml", "--output", "run"], stdout=subprocess.DEVNULL)

    def begun() -> list[list[int]]:
        log = tmp_path / "run/log"
        logs = [[*log.glob(f"*/rank{rank}.out"), *sorted(log.glob(f"*/attempt*/rank{rank}.out"))] for rank in (0, 1)]
        said = ["".join(path.read_text() for path in files) for files in logs]
        return [[int(step) for step in re.findall(r"^begins at (\d+)$", text, re.MULTILINE)] for text in said]

    def has_begun(times: int) -> None:
        until(lambda: [len(steps) for steps in begun()] == [times, times], 60)

    has_begun(1)
    for times in (2, 3):
        assert kit_here("checkpoint", "run").code == 0
        has_begun(times)
    assert kit_here("stop", "run").code == 0
    assert process.wait(60) == 0
    for steps in begun():
        assert len(steps) == 3 and 0 == steps[0] < steps[1] < steps[2]
    last = int((tmp_path / "place").read_text())
    assert last > begun()[0][2]
    assert re.search(rf" COMPLETED .* by kit stop, at step {last}$", kit_here("status", "run").out, re.MULTILINE), kit_here("status", "run").out


def submitted(folder: Path, fake: Slurm, state: str = "RUNNING", array: str = "", **values: object) -> Path:
    """A run that the fake Slurm has, of which nothing runs."""
    plan = plan_of(name="seven", run_dir=str(folder), workdir=str(folder.parent), command=("true",), **{"on_preempt": "checkpoint", **values})
    run = run_dir.write(plan)
    run_dir.update(run, {"job_id": "7"})
    history.add(Run("7", str(run), "seven", "1x1", array=array, created_s=os.stat(run).st_mtime))
    fake.job("7_2" if array else "7", state, folder=str(run))
    (run / "log" / ("7_2" if array else "7")).mkdir()
    return run


@pytest.mark.parametrize(("command", "on_preempt"), [("checkpoint", "checkpoint"), ("stop", "checkpoint"), ("stop", "requeue")])
def test_a_job_is_left_a_request_and_its_batch_script_alone_is_woken(command: str, on_preempt: str, fake_slurm: Slurm, kit_here, tmp_path: Path) -> None:
    run = submitted(tmp_path / "run", fake_slurm, on_preempt=on_preempt)
    done = kit_here(command, "7")
    assert (done.code, done.err) == (0, "") and done.out.startswith("kit: seven (7) was asked ")
    assert (run / "log/7/request").read_text() == f"{command}\n"
    assert fake_slurm.calls("scancel") == ["--batch --signal=URG 7"]


def test_a_task_of_an_array_is_asked_by_its_own_id(fake_slurm: Slurm, kit_here, tmp_path: Path) -> None:
    run = submitted(tmp_path / "run", fake_slurm, array="1-3")
    assert kit_here("stop", "7").err == "kit: seven (7) is an array\n  fix: name one of its tasks: --task 1\n"
    assert kit_here("stop", "7", "--task", "2").code == 0
    assert (run / "log/7_2/request").exists() and fake_slurm.calls("scancel") == ["--batch --signal=URG 7_2"]


@pytest.mark.parametrize(
    ("command", "more", "said"),
    [
        ("stop", {"on_preempt": "none"}, "cannot be asked for a checkpoint: its job has no `on_preempt`\n  fix: to end it without one: kit cancel 7"),
        (
            "checkpoint",
            {"on_preempt": "requeue"},
            "cannot be asked for a checkpoint: `on_preempt: requeue` says so\n  fix: let the program handle SIGUSR1: `on_preempt: checkpoint`",
        ),
        ("checkpoint", {"state": "PENDING"}, "is not running: PENDING (Slurm has not looked at it yet)\n  fix: where it is: kit status 7"),
        ("stop", {"state": "COMPLETED"}, "is not running: COMPLETED\n  fix: why it ended: kit why 7"),
    ],
)
def test_what_cannot_be_asked_is_refused_and_left_alone(command: str, more: dict[str, object], said: str, fake_slurm: Slurm, kit_here, tmp_path: Path) -> None:
    run = submitted(tmp_path / "run", fake_slurm, **more)
    done = kit_here(command, "7")
    assert (done.code, done.out, done.err) == (1, "", f"kit: seven (7) {said}\n")
    assert not (run / "log/7/request").exists() and fake_slurm.calls("scancel") == []


def test_a_job_that_has_no_logs_yet_is_asked_later(fake_slurm: Slurm, kit_here, tmp_path: Path) -> None:
    run = submitted(tmp_path / "run", fake_slurm)
    (run / "log/7").rmdir()
    assert kit_here("stop", "7").err == "kit: seven (7) has only just begun\n  fix: ask again in a moment; where it is: kit status 7\n"
    assert fake_slurm.calls("scancel") == []


@pytest.fixture
def of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """All runs are another user's, whom this machine does not know; tests/bash/test_group_runs.py has real users."""
    monkeypatch.setattr(sharing, "owner", lambda folder: 4242)
    monkeypatch.setattr(sharing, "is_own", lambda folder: False)


@pytest.mark.usefixtures("of_another")
def test_another_users_run_is_left_a_file_and_no_signal(fake_slurm: Slurm, kit_here, tmp_path: Path) -> None:
    run = submitted(tmp_path / "run", fake_slurm, share="group")
    assert kit_here("stop", str(run)).err == "kit: seven (7) has only just begun\n  fix: ask again in a moment; where it is: kit status 7\n"
    (run / "log/7/requests").mkdir()
    done = kit_here("stop", str(run))
    assert (done.code, done.err) == (0, "") and done.out.startswith("kit: seven (7) was asked ")
    (left,) = (run / "log/7/requests").iterdir()
    assert left.name.startswith("stop.") and left.stat().st_size == 0
    assert fake_slurm.calls("scancel") == [] and fake_slurm.calls("squeue")[-1].startswith(f"--all --user={os.geteuid()},4242 ")


@pytest.mark.usefixtures("of_another")
def test_another_users_run_is_not_asked_unless_it_is_shared(fake_slurm: Slurm, kit_here, tmp_path: Path) -> None:
    run = submitted(tmp_path / "run", fake_slurm)
    assert kit_here("stop", str(run)).err == "kit: seven (7) is 4242's, and its job does not say `share: group`\n  fix: ask 4242\n"
    assert sorted(path.name for path in (run / "log/7").iterdir()) == []


@pytest.mark.usefixtures("of_another")
def test_where_a_site_hides_other_users_jobs_the_runs_own_events_tell_whether_it_runs(fake_slurm: Slurm, kit_here, tmp_path: Path) -> None:
    run = submitted(tmp_path / "run", fake_slurm, share="group")
    (tmp_path / "slurm/jobs/7").unlink()
    (run / "log/7/requests").mkdir()
    hidden = "Slurm does not show you this job of 4242's"
    assert re.search(rf" UNKNOWN .* {hidden}$", kit_here("status", str(run)).out, re.MULTILINE)
    assert kit_here("stop", str(run)).err == f"kit: seven (7) is not running: UNKNOWN ({hidden})\n  fix: where it is: kit status 7\n"
    event_lines.add(run / "log/7", "batch", "ranks_started")
    assert re.search(rf" RUNNING .* by its log; {hidden}$", kit_here("status", str(run)).out, re.MULTILINE)
    assert kit_here("stop", str(run)).code == 0
    event_lines.add(run / "log/7", "batch", "ends", code=0, outcome="COMPLETED")
    assert re.search(" COMPLETED ", kit_here("status", str(run)).out)
