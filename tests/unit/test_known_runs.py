"""What Slurm has taken, kit knows: whatever sbatch answers, whatever ends kit, whatever becomes of the history. Slurm is scripted."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kit
import pytest
from kit import slurm
from kit.base.errors import KitError
from kit.cli import entry
from kit.plan import bad_nodes
from kit.runs import history, job_chain, local_processes, lookup, run_dir, secret_values, status, submit

import event_lines
import scripted_slurm
from plans import changed, noted_run, recorded
from scripted_slurm import ScriptedSlurm

CORPUS = Path(__file__).parents[1] / "corpus"

pytestmark = pytest.mark.tame


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedSlurm:
    return scripted_slurm.around(tmp_path, monkeypatch)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Calls `kit ARGS` in this process: (exit code, stdout, stderr)."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kit", *words])
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        capsys.readouterr()
        try:
            code = entry.call(list(words))
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except Exception as error:
            code = entry.report(error)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return (code, *capsys.readouterr())

    return run


def noted() -> dict[str, str]:
    """{name of the run directory: the job's id}"""
    return {os.path.basename(run.folder): run.id for run in history.runs()}


# ---------------------------------------------------------------- what sbatch answers


@pytest.mark.parametrize(
    "end",
    [
        "kill -9 $$",
        "echo 'sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received' >&2; exit 1",
        "echo 'sbatch: error: Batch job submission failed: Connection reset by peer' >&2; exit 1",
        "echo 'sbatch: error: Batch job submission failed: Message receive failure' >&2; exit 1",
        "echo 'sbatch: error: Batch job submission failed: Protocol authentication error' >&2; exit 1",
        "echo 'sbatch: error: Batch job submission failed: Resource temporarily unavailable' >&2; exit 1",
        "echo 'sbatch: error: no idea what went wrong' >&2; exit 1",
        'echo "${id}"; exit 1',
        'echo "Submitted batch job ${id}"; echo "sbatch: error: spank: epilog" >&2; exit 1',
        'echo "Submitted batch job ${id}"',
        'printf "Welcome\\n%s\\nthank you\\n" "${id}"',
        'printf "%s\\nno id: 7\\n7\\n" "${id}"',
        'printf "\\0\\377garbage\\n"',
        "true",
    ],
)
def test_a_job_that_slurm_took_is_submitted_whatever_sbatch_ended_with(end: str, fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    fake.script("sbatch", f"take; {end}")
    code, out, errors = call("submit", "train.py", "--output", "run")
    assert (code, out.splitlines()[0]) == (0, "kit: submitted job 1001"), errors
    assert noted() == {"run": "1001"} and run_dir.load(tmp_path / "run")["job_id"] == "1001"
    assert call("status", "run")[1].splitlines()[1].startswith("1001  train  PENDING")


@pytest.mark.parametrize(
    "reason",
    [
        "Batch job submission failed: Invalid account or account/partition combination specified",
        "Batch job submission failed: Time limit specification required, but not provided",
        "Batch job submission failed: Multiple partition job request not supported when a partition is set in the association",
        "Batch job submission failed: words of a later version",
        "Invalid --time specification",
    ],
)
def test_only_a_known_refusal_is_one_at_once(reason: str, fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    fake.script("sbatch", f"echo 'sbatch: error: {reason}' >&2; exit 1")
    code, _, errors = call("submit", "train.py", "--output", "run")
    assert code == 1 and errors.startswith("kit: sbatch refuses: ") and not (tmp_path / "run").exists()
    assert noted() == {} and fake.calls("squeue") == []


def test_words_that_are_none_of_slurms_are_a_refusal_where_slurm_has_no_such_job(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    fake.script("sbatch", "echo 'ask your project for hours' >&2; exit 1")
    code, _, errors = call("submit", "train.py", "--output", "run")
    assert (code, errors.splitlines()[0]) == (1, "kit: sbatch refuses: ask your project for hours") and not (tmp_path / "run").exists()


def test_an_unsure_submission_is_found_later_and_never_made_twice(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    fake.script("sbatch", "take; exit 1")
    for answer in ("exit 1", "kill -9 $$", "true", "echo Welcome", "list() { echo 'ARRAY_JOB_ID|SUBMIT_TIME|WORK_DIR'; echo 'cut off'; }; list"):
        fake.script("squeue", answer)
        code, _, errors = call("submit", "train.py", "--output", "run")
        assert code == 1 and "is not known yet" in errors, answer
        assert " SUBMITTING " in call("status", "run")[1]
    assert len(fake.calls("sbatch")) == 1 and noted() == {"run": ""}
    fake.script("squeue", "")
    code, out, _ = call("submit", "train.py", "--output", "run")
    assert code == 0 and "did submit job 1001, though its answer was lost: nothing is submitted now" in out
    assert len(fake.calls("sbatch")) == 1 and noted() == {"run": "1001"}


def test_a_submission_that_did_not_arrive_is_open_for_minutes_and_then_started_by_the_same_command(
    fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.script("sbatch", "kill -9 $$")
    assert call("submit", "train.py", "--output", "run")[0] == 1
    assert "SUBMITTING" in call("status", "run")[1]
    assert "whether Slurm has the job" in call("submit", "train.py", "--output", "run")[2]
    monkeypatch.setattr(submit, "SETTLE_S", 0)
    assert "UNSUBMITTED  1x1" in call("status", "run")[1]
    fake.script("sbatch", "")
    assert call("submit", "train.py", "--output", "run")[1].startswith("kit: submitted job 1001")
    assert len(fake.jobs()) == 1 and noted() == {"run": "1001"}


def slurms_calls(fake: ScriptedSlurm) -> int:
    return len(fake.calls("squeue")) + len(fake.calls("sacct"))


@pytest.mark.parametrize(
    ("again", "job"),
    [(("submit", "train.py", "--output", "run"), "1001"), (("rerun", "run"), "1001"), (("cancel", "run"), None)],
)
def test_a_submission_of_days_ago_that_did_not_arrive_is_not_asked_for_any_more_and_may_still_be_made(
    again: tuple[str, ...], job: str | None, fake: ScriptedSlurm, call, tmp_path: Path
) -> None:
    fake.script("sbatch", "kill -9 $$")
    call("submit", "train.py", "--output", "run")
    before(tmp_path, 2)
    explained = call("why", "run")
    assert "UNSUBMITTED  1x1" in call("status", "run")[1]
    asked, shown = slurms_calls(fake), call("runs")[1]
    assert "UNSUBMITTED  1x1" in shown and "to start it: kit rerun run" in shown
    assert "UNSUBMITTED" not in call("status")[1] and slurms_calls(fake) == asked
    assert call("why", "run") == explained
    fake.script("sbatch", "")
    assert call(*again)[0] == 0
    assert noted() == ({"run": job} if job else {}) and list(fake.jobs()) == ([job] if job else [])


def before(tmp_path: Path, days: float) -> None:
    """Date back what the history holds, and the runs' logs."""
    lines = [json.loads(line) for line in history_file(tmp_path).read_text().splitlines()]
    then_s = time.time() - days * 86400
    history_file(tmp_path).write_text("".join(json.dumps({**facts, "created_s": then_s}) + "\n" for facts in lines))
    for facts in lines:
        os.utime(Path(facts["folder"], "log"), (then_s, then_s))


def test_lost_runs_of_days_ago_are_not_among_those_of_the_last_day(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    for number, local in ((5, False), (6, True)):
        (tmp_path / f"run{number}/log").mkdir(parents=True)
        noted_run(tmp_path / f"run{number}", "x", 1, 1, str(number), local=local)
    assert call("status")[1].count(" LOST ") == 2
    before(tmp_path, 2)
    assert call("status")[1:] == ("kit: no run of this folder in the last day; see kit runs, or kit status --all\n", "")
    assert call("status", "--json")[1] == "[]\n" and call("runs")[1].count(" LOST ") == 2


def test_slurm_is_asked_for_a_run_that_was_lost_days_ago_only_where_it_is_named_or_begins_again(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    (tmp_path / "run/log").mkdir(parents=True)
    noted_run(tmp_path / "run", "x", 1, 1, "5", local=False)
    before(tmp_path, 2)
    call("status")
    asked = slurms_calls(fake)
    assert asked and call("status")[1].startswith("kit: no run of this folder") and slurms_calls(fake) == asked
    assert " LOST " in call("status", "run")[1] and slurms_calls(fake) > asked
    fake.put("5", "RUNNING", tmp_path / "run")
    assert " RUNNING " in call("status", "run")[1]
    (tmp_path / "run/log/slurm-5.out").touch()
    assert " RUNNING " in call("status")[1]
    before(tmp_path, 2)
    assert " RUNNING " in call("status")[1]


def test_the_unsure_submission_of_another_command_or_project_is_left_as_it_is(
    fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.script("sbatch", "kill -9 $$")
    assert call("submit", "train.py", "--output", "run")[0] == 1
    fake.script("sbatch", "")
    assert call("submit", "train.py", "--nodes", "2", "--output", "other")[1].startswith("kit: submitted job 1001")
    (tmp_path / "project").mkdir()
    (tmp_path / "project/train.py").write_text("pass\n")
    monkeypatch.chdir(tmp_path / "project")
    assert call("submit", "train.py", "--output", "run")[1].startswith("kit: submitted job 1002")
    assert {run.folder: run.id for run in history.runs()}[str(tmp_path / "run")] == ""


def test_the_unsure_submission_of_a_loop_over_a_variable_is_left_as_it_is(fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """for SEED in 1 2; do kit submit job.yaml; done, where `inherit` takes it: both commands have the same words."""
    (tmp_path / "job.yaml").write_text("command: train.py\ninherit: [SEED, PATH]\nenv: {LR: 1}\n")
    fake.script("sbatch", "take; exit 1")
    fake.script("squeue", "exit 1")
    monkeypatch.setenv("SEED", "1")
    assert call("submit", "job.yaml")[0] == 1
    fake.script("sbatch", "")
    fake.script("squeue", "")
    monkeypatch.setenv("SEED", "2")
    assert call("submit", "job.yaml")[1].startswith("kit: submitted job 1002")
    monkeypatch.setenv("SEED", "1")
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/of/another/shell")
    (tmp_path / "job.yaml").write_text("command: train.py\ninherit: [SEED, PATH]\nenv: {LR: 2}\n")
    assert "did submit job 1001" in call("submit", "job.yaml")[1]
    assert list(fake.jobs()) == ["1001", "1002"]


def test_a_measurement_whose_submission_was_unsure_is_shown_by_the_same_command(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    fake.script("sbatch", "take; exit 1")
    fake.script("squeue", "exit 1")
    assert call("bench", "-j", "2x1", "--runtime", "none")[0] == 1
    fake.script("sbatch", "")
    fake.script("squeue", "")
    (run,) = (tmp_path / "runs").glob("bench-*")
    event_lines.add(run / "log/1001", "batch", "ends", node="n1", code=0)
    (tmp_path / "slurm/jobs").write_text((tmp_path / "slurm/jobs").read_text().replace("PENDING", "COMPLETED"))
    code, said, errors = call("bench", "-j", "2x1", "--runtime", "none")
    assert "did submit job 1001" in said and code == 1 and errors.startswith("kit: bench (1001) has measured nothing\n"), (said, errors)


def test_a_submission_that_still_reads_its_secrets_is_left_alone_however_long_that_takes(
    fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of their commands may take two minutes, or wait for a person; another terminal looks meanwhile."""
    monkeypatch.setattr(submit, "SETTLE_S", 0)
    read, ended_s = secret_values.read, []

    def look_meanwhile(*given: Any) -> dict[str, bytes]:
        (run,) = history.runs()
        assert status.query([run])[0].state == "SUBMITTING"
        with pytest.raises(slurm.Unsure):
            submit.give_up(run)
        ended_s.append(time.time())
        return read(*given)

    monkeypatch.setattr(secret_values, "read", look_meanwhile)
    monkeypatch.setenv("A", "x")
    code, _, errors = call("submit", "train.py", "--output", "run", "--secret", "A")
    assert code == 0, errors
    assert noted() == {"run": "1001"} and (tmp_path / "run/.secrets/values").exists()
    assert history.runs()[0].created_s > ended_s[0]  # another login node, which does not see this kit, counts from here


def test_an_empty_word_names_no_run(fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `kit cancel "$JOB"` has it where the variable is not set: runs that were never submitted have no number either."""
    monkeypatch.setattr(submit, "SETTLE_S", 0)
    fake.script("sbatch", "kill -9 $$")
    call("submit", "train.py", "--output", "run")
    before(tmp_path, 2)
    assert "UNSUBMITTED" in call("status", "run")[1]
    (tmp_path / "other").mkdir()
    refused = "kit: the word for a run is empty\n  fix: if a variable gives it, look whether it is set; kit runs lists the runs\n"
    for folder in ("other", "run"):
        monkeypatch.chdir(tmp_path / folder)
        for command in ("status", "logs", "rerun", "cancel"):
            assert call(command, "") == (2, "", refused), (folder, command)
        assert call("cancel", " ")[::2] == (2, refused)
        assert call("cancel", ";a")[0] == 2
    assert noted() == {"run": ""}


def test_a_task_of_an_array_that_was_never_submitted_is_not_said_to_have_ended(
    fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.script("sbatch", "kill -9 $$")
    call("submit", "train.py", "--array", "0-2", "--output", "run")
    refused = "kit: train (not submitted) has no tasks yet: whether Slurm has its job is not known\n  fix: cancel all of it: kit cancel run\n"
    assert call("cancel", "run", "--task", "1") == (2, "", refused)
    monkeypatch.setattr(submit, "SETTLE_S", 0)
    refused = refused.replace("whether Slurm has its job is not known", "it was never submitted")
    assert call("cancel", "run", "--task", "1") == (2, "", refused) and fake.calls("scancel") == []
    assert call("cancel", "run")[1] == "kit: train was never submitted, and will not be\n"


def test_the_job_of_an_earlier_run_directory_of_that_name_is_not_taken_for_its_own(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--output", "run")
    subprocess.run(["mv", "run", "old"], check=True)
    fake.script("sbatch", "kill -9 $$")
    assert "is not known yet" in call("submit", "train.py", "--output", "run")[2]
    assert noted() == {"run": ""}


def test_cancelling_an_unsure_submission_ends_the_job_that_it_has_become(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    fake.script("sbatch", "take; exit 1")
    fake.script("squeue", "exit 1")
    call("submit", "train.py", "--output", "run")
    fake.script("squeue", "")
    assert call("cancel", "run")[1] == "kit: train (1001) is being cancelled\n"
    assert fake.jobs()["1001"][0] == "CANCELLED"


def test_rerunning_a_run_that_never_arrived_submits_it_as_it_is(fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.script("sbatch", "kill -9 $$")
    call("submit", "train.py", "--output", "run")
    fake.script("sbatch", "")
    for option in ("--image", "--output"):
        refused = f"kit: {option}: it is not known whether train was submitted; if it was not, kit submits it as it is\n  fix: leave it out\n"
        assert call("rerun", "run", option, "other")[::2] == (2, refused)
        assert call("rerun", "run", option, "other", "--dry-run")[::2] == (2, refused)
    assert "is not known yet" in call("rerun", "run")[2]
    monkeypatch.setattr(submit, "SETTLE_S", 0)
    assert call("rerun", "run")[1].startswith("kit: submitted job 1001")
    assert fake.jobs() == {"1001": ("PENDING", str(tmp_path / "run"))}


# ---------------------------------------------------------------- where nobody can be told


def real(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "kit", *words], text=True, errors="replace", timeout=120, **options)


def test_a_job_is_submitted_also_where_that_cannot_be_printed(fake: ScriptedSlurm, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        assert real("submit", "train.py", "--output", "full", stdout=full).returncode == 0
    closed = subprocess.run(["bash", "-c", f"{sys.executable} -m kit submit train.py --output closed >&- 2>errors"])
    assert closed.returncode == 0 and "Traceback" not in (tmp_path / "errors").read_text()
    latin = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "latin-1"}
    assert real("submit", "train.py", "--output", "€", env=latin, stdout=subprocess.DEVNULL).returncode == 0
    assert noted() == {"full": "1001", "closed": "1002", "€": "1003"}


def test_a_full_disk_after_sbatch_is_no_failure_of_the_submission(fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = run_dir.save

    def full(run: Path, content: dict[str, Any]) -> None:
        if content.get("job_id"):
            raise OSError(28, "No space left on device")
        save(run, content)

    monkeypatch.setattr(run_dir, "save", full)
    assert call("submit", "train.py", "--output", "run")[0] == 0
    assert noted() == {"run": "1001"}


def test_a_record_that_cannot_be_saved_leaves_no_temporary_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        run_dir.save(tmp_path, {"x": object()})
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- signals


def listen() -> None:
    """Tests that were started by nohup, or by a shell's &, would hand on that a signal is to be ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_while_sbatch_is_asked_is_acted_on_when_the_job_is_noted(number: int, code: int, fake: ScriptedSlurm, tmp_path: Path) -> None:
    fake.script("sbatch", "touch asked; for i in {1..1000}; do [[ ! -e go ]] || break; sleep 0.05; done; take; echo ${id}")
    process = subprocess.Popen(
        [sys.executable, "-m", "kit", "submit", "train.py", "--output", "run", "--secret", "A"],
        env={**os.environ, "A": "x"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listen,
    )
    until(lambda: (tmp_path / "slurm/asked").exists())
    process.send_signal(number)
    (tmp_path / "slurm/go").touch()
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out.splitlines()[0]) == (code, "kit: submitted job 1001"), errors
    assert noted() == {"run": "1001"} and (tmp_path / "run/.secrets/values").exists()


def test_a_job_whose_kit_was_killed_while_sbatch_was_asked_is_known_to_the_next_command(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    fake.script("sbatch", "touch asked; for i in {1..1000}; do [[ ! -e go ]] || break; sleep 0.05; done; take; echo ${id}")
    process = subprocess.Popen([sys.executable, "-m", "kit", "submit", "train.py", "--output", "run"])
    until(lambda: (tmp_path / "slurm/asked").exists())
    process.kill()
    process.wait()
    assert "SUBMITTING" in call("status", "run")[1]
    (tmp_path / "slurm/go").touch()
    until(lambda: fake.jobs())
    assert call("status", "run")[1].splitlines()[1].startswith("1001  train  PENDING")


def until(condition, patience_s: float = 60) -> None:
    end_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def begin_slowly(fake: ScriptedSlurm, tmp_path: Path) -> subprocess.Popen[str]:
    """A kit whose sbatch has taken the job, and does not answer before there is a file `go`."""
    fake.script("sbatch", "take; touch asked.${id}; for i in {1..1000}; do [[ ! -e go ]] || break; sleep 0.05; done; echo ${id}")
    words = [sys.executable, "-m", "kit", "submit", "train.py"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    until(lambda: (tmp_path / "slurm/asked.1001").exists())
    return process


def test_two_equal_submissions_at_one_moment_are_two_jobs(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    process = begin_slowly(fake, tmp_path)
    fake.script("sbatch", "")
    assert call("submit", "train.py")[1].startswith("kit: submitted job 1002")
    (tmp_path / "slurm/go").touch()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and out.startswith("kit: submitted job 1001")
    assert sorted(noted().values()) == ["1001", "1002"] and len(fake.calls("sbatch")) == 2


def test_an_equal_submission_whose_kit_was_killed_is_found(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    process = begin_slowly(fake, tmp_path)
    process.kill()
    process.wait()
    (tmp_path / "slurm/go").touch()
    _, out, errors = call("submit", "train.py", "--parsable")
    assert out == "1001\n" and "did submit job 1001, though its answer was lost" in errors
    assert list(noted().values()) == ["1001"] and len(fake.calls("sbatch")) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_sbatch_leaves_nothing(number: int, fake: ScriptedSlurm, tmp_path: Path) -> None:
    fake.script("scontrol", "touch asked; exec sleep 600")  # the run directory is there, and not yet submitted
    command = [sys.executable, "-m", "kit", "submit", "train.py", "--output", "run", "--secret", "A"]
    process = subprocess.Popen(command, env={**os.environ, "A": "x"}, preexec_fn=listen)
    until(lambda: (tmp_path / "slurm/asked").exists())
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert not (tmp_path / "run").exists() and noted() == {} and fake.calls("sbatch") == []


def test_unfinished_folders_of_a_kit_that_was_killed_are_swept_after_a_day_and_no_others(tmp_path: Path) -> None:
    old = time.time() - 2 * 86400
    names = (".kit-run.abcd1234", ".kit-empty.abcd1234", ".kit-new.abcd1234", ".kit-other.abcd1234", ".run.abcd1234", ".kit-notes")
    for name in names:
        (tmp_path / name).mkdir()
        if "other" in name:
            (tmp_path / name / "mine").touch()
        elif "empty" not in name:
            (tmp_path / name / ".made-by-kit").touch()
            os.utime(tmp_path / name / ".made-by-kit", (old, old))
        if "new" not in name:
            os.utime(tmp_path / name, (old, old))
    with run_dir.make(tmp_path / "mine"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[2:], "mine"]) and list((tmp_path / "mine").iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_an_unfinished_folder_of_another_user_stays(tmp_path: Path) -> None:
    theirs = tmp_path / ".kit-empty.abcd1234"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    os.utime(theirs, (0, 0))
    with run_dir.make(tmp_path / "mine"):
        pass
    assert theirs.is_dir()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can choose any group")
def test_a_run_in_the_place_of_an_empty_folder_is_of_its_group(tmp_path: Path) -> None:
    """With which `share: group` shares it."""
    place = tmp_path / "run"
    place.mkdir()
    os.chown(place, -1, 65534)
    with run_dir.make(place):
        pass
    assert (place.stat().st_gid, place.stat().st_mode & 0o777) == (65534, 0o700)


@pytest.mark.parametrize("refusal", ["echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1", ""])
def test_a_run_that_was_there_before_stays_as_it_was_noted_where_it_cannot_be_submitted(
    fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """With the copy of the code, and what the user has edited since. Slurm refuses it, or a secret is not there today."""
    monkeypatch.setenv("A", "x")
    fake.script("sbatch", "exit 137")
    assert call("submit", "train.py", "--output", "run", "--secret", "A")[0] == 1
    before(tmp_path, 2)
    with (tmp_path / "run/run_script.sh").open("a") as script:
        script.write("# mine\n")
    if not refusal:
        monkeypatch.delenv("A")
    fake.script("sbatch", refusal or "exit 1")
    code, _, errors = call("rerun", "run")
    assert code and ("QOSMaxSubmitJobPerUserLimit" in errors or "A is not set" in errors), errors
    assert (tmp_path / "run/run_script.sh").read_text().endswith("# mine\n") and not (tmp_path / "run/.secrets").exists()
    monkeypatch.setenv("A", "x")
    fake.script("sbatch", "")
    assert call("rerun", "run")[1].startswith("kit: submitted job 1001")


def test_a_run_that_was_never_submitted_stays_where_the_user_has_edited_it(fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(submit, "SETTLE_S", 0)
    fake.script("sbatch", "exit 137")
    assert call("submit", "train.py", "--output", "run")[0] == 1
    (tmp_path / "run/env.sh").write_text("# mine\n")
    assert call("cancel", "run")[2] == f"kit: {tmp_path}/run stays: you have edited env.sh\n"
    assert (tmp_path / "run/env.sh").read_text() == "# mine\n" and (tmp_path / "run/run_script.sh").exists()
    assert call("cancel", "run")[1] == "kit: train (not submitted) has ended: CANCELLED\n"


def test_what_the_user_put_into_a_run_that_was_never_submitted_stays_and_the_run_is_over(fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(submit, "SETTLE_S", 0)
    fake.script("sbatch", "exit 137")
    assert call("submit", "train.py", "--output", "run")[0] == 1
    for name in ("notes.sh", "log/notes.txt"):
        (tmp_path / "run" / name).write_text("mine")
    code, said, errors = call("cancel", "run")
    assert (code, said) == (0, "kit: train was never submitted, and will not be\n") and "stays: there are files in it that kit did not write" in errors
    assert sorted(str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*")) == ["log", "log/notes.txt", "notes.sh"]
    assert call("cancel", "run")[1] == "kit: train (not submitted) has ended: CANCELLED\n"
    fake.script("sbatch", "")
    assert call("submit", "train.py", "--output", "other")[0] == 0


# ---------------------------------------------------------------- which job is a run's


def test_a_job_of_another_cluster_is_asked_for_and_cancelled_there(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    fake.script("sbatch", 'take; echo "${id};gpu2"')
    call("submit", "train.py", "--output", "run")
    assert call("status", "run")[1].splitlines()[1].startswith("1001  train  PENDING")
    assert all(" --clusters=gpu2 " in line for line in fake.calls("squeue"))
    assert call("cancel", "1001")[1] == "kit: train (1001) is being cancelled\n"
    assert fake.calls("scancel") == ["scancel --clusters=gpu2 1001"]


def test_the_accounts_are_asked_from_the_submission_on_also_in_the_hour_that_comes_twice(fake: ScriptedSlurm, tmp_path: Path) -> None:
    """As sacct does, date takes 02:30 for the second one; squeue has forgotten the job, and kit would submit it once more."""
    submitted_s = 1792888200  # 02:30 in summer time, of 2026-10-25
    (tmp_path / "bin/sacct").write_text(
        f"""#!/bin/bash
words="$*"
begin="${{words##*--starttime=}}"
echo 'JobID|Submit|WorkDir'
(($(date -d "${{begin%% *}}" +%s) > {submitted_s})) || echo '1001|{submitted_s}|{tmp_path}/run'
"""
    )
    (tmp_path / "bin/sacct").chmod(0o755)
    with pytest.MonkeyPatch.context() as zone:
        zone.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        found = slurm.of_folder(f"{tmp_path}/run", submitted_s)
    time.tzset()
    assert found == [slurm.Job("1001")]


# A federation: the job has started on another cluster than that of its submission.
ELSEWHERE = """\
if [[ "${SQUEUE_SIBLING:-}" == 1 ]]; then list; else list | sed 's/|RUNNING|/|REVOKED|/'; fi
"""
NOT_HERE = """\
if [[ "${args}" == *"show job"* && "${SCONTROL_FEDERATION:-}" != 1 ]]; then
  echo 'slurm_load_jobs error: Invalid job id specified' >&2
  exit 1
fi
"""


def test_a_job_of_a_federation_is_found_where_it_has_started(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    fake.script("sbatch", "echo $((1 << 26)) >next; take; echo ${id}")
    assert call("submit", "train.py", "--output", "run")[0] == 0
    (tmp_path / "slurm/jobs").write_text((tmp_path / "slurm/jobs").read_text().replace("PENDING", "RUNNING"))
    fake.script("squeue", ELSEWHERE)
    scontrol = tmp_path / "bin/scontrol"
    scontrol.write_text(scontrol.read_text().replace("sourced scontrol\n", NOT_HERE))
    assert call("status", "run")[1].splitlines()[1].startswith("67108864  train  RUNNING")
    found = slurm.state("67108864")
    assert found and found.name == "RUNNING"
    (tmp_path / "bin/sacct").write_text('#!/bin/bash\n[[ "${SACCT_FEDERATION:-}" != 1 ]] || echo "67108864|FAILED|/x"\n')
    (tmp_path / "bin/sacct").chmod(0o755)
    assert slurm.accounted(["67108864"]) == {"67108864": {"/x": "FAILED"}}
    assert call("cancel", "run") == (0, "kit: train (67108864) is being cancelled\n", "")


def test_a_task_that_slurm_has_forgotten_before_its_array_is_forgotten(fake: ScriptedSlurm) -> None:
    for stream in ("", " >&2"):  # of Slurm until 26.05, and since then
        fake.script("scontrol", f"echo 'Job 5_1 not found'{stream}; exit 1")
        assert slurm.state("5_1") is None
    fake.script("scontrol", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(KitError, match="Slurm does not answer"):
        slurm.state("5_1")


# The cluster gpu2 was removed, or is in maintenance.
NO_GPU2 = """\
if [[ "${args}" == *--clusters=gpu2* ]]; then
  echo "squeue: error: 'gpu2' can't be reached now, or it is an invalid entry for --cluster" >&2
  exit 1
fi
list
"""


def test_a_cluster_that_does_not_answer_hides_no_run_of_another(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    fake.script("sbatch", 'take; [[ "${args}" != *far* ]] && echo "${id}" || echo "${id};gpu2"')
    for name in ("far", "own"):
        call("submit", "train.py", "--name", name, "--output", name)
    fake.script("squeue", NO_GPU2)
    for command in ("status", "runs"):
        code, out, _ = call(command)
        far, own = out.splitlines()[1:]
        assert code == 0 and own.startswith("1002  own   PENDING ") and far.startswith("1001  far   UNKNOWN ")
        assert "squeue refuses: squeue: error: 'gpu2' can't be reached now" in far
    code, out, errors = call("cancel", "own", "far")
    assert (code, out) == (1, "kit: own (1002) is being cancelled\n") and "far (1001) is not cancelled: squeue refuses: " in errors
    assert fake.calls("scancel") == ["scancel 1002"]
    assert " CANCELLED " in call("status")[1] and [run.state for run in history.runs()] == ["", "CANCELLED"]
    code, _, errors = call("status", "far")
    assert code == 1 and errors.startswith("kit: squeue refuses: ")


def test_where_no_cluster_answers_that_is_an_error(fake: ScriptedSlurm, call) -> None:
    fake.script("sbatch", 'take; [[ "${args}" != *far* ]] && echo "${id}" || echo "${id};gpu2"')
    for name in ("far", "own"):
        call("submit", "train.py", "--name", name, "--output", name)
    fake.script("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    code, out, errors = call("status")
    assert (code, out) == (1, "") and "Unable to contact slurm controller" in errors


@pytest.mark.parametrize("words", [("exec", "1001", "--", "hostname"), ("hang", "1001")])
def test_no_step_is_started_in_the_job_of_that_number_of_slurms_own_cluster(words: tuple[str, ...], fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    fake.script("sbatch", 'take; echo "${id};gpu2"')
    call("submit", "train.py", "--output", "run")
    (tmp_path / "slurm/jobs").write_text((tmp_path / "slurm/jobs").read_text().replace("PENDING", "RUNNING"))
    code, out, err = call(*words)
    said = "kit: train (1001) runs on the cluster gpu2, and srun reaches only its own\n  fix: call kit on a login node of gpu2\n"
    assert (code, out, err) == (1, "", said) and not fake.calls("srun")


def test_a_step_is_started_in_a_job_of_slurms_own_cluster_that_was_chosen_by_name(
    fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.script("sbatch", 'take; echo "${id};a"')
    monkeypatch.setenv("SLURM_CLUSTERS", "gpu2,a")
    call("submit", "train.py", "--output", "run")
    (tmp_path / "slurm/jobs").write_text((tmp_path / "slurm/jobs").read_text().replace("PENDING", "RUNNING"))
    event_lines.add(tmp_path / "run/log/1001", "batch", "start", job="1001", nodes="n1")
    (tmp_path / "bin/srun").write_text(f"#!/bin/bash\necho ${{SLURM_CLUSTERS:-own}} >'{tmp_path}/asked'\n")
    (tmp_path / "bin/srun").chmod(0o755)
    call("hang", "1001")
    assert (tmp_path / "asked").read_text() == "own\n"


# Slurm's own cluster has no job, and another one has all of them.
OF_GPU2 = """\
if [[ "${args}" == *--clusters=gpu2* ]]; then
  echo 'CLUSTER: gpu2'
  list
elif [[ "${args}" == *%V* ]]; then
  echo 'ARRAY_JOB_ID|SUBMIT_TIME|WORK_DIR'
fi
"""


@pytest.mark.parametrize("is_in_shell", [True, False])
@pytest.mark.parametrize("are_accounts", [True, False])
def test_a_lost_answer_of_a_chosen_cluster_is_looked_for_there(
    is_in_shell: bool, are_accounts: bool, fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A", "x")
    if is_in_shell:
        monkeypatch.setenv("SLURM_CLUSTERS", "gpu2")
    fake.script("sbatch", "take; exit 1")
    fake.script("squeue", "exit 1")
    assert call("submit", "train.py", "--output", "run", "--secret", "A", *([] if is_in_shell else ["--slurm", "clusters=gpu2"]))[0] == 1
    monkeypatch.delenv("SLURM_CLUSTERS", raising=False)
    fake.script("squeue", OF_GPU2)
    if are_accounts:
        (tmp_path / "bin/sacct").write_text(f"#!/bin/bash\necho 'JobID|Submit|Cluster|WorkDir'; echo '1001|9999999999|gpu2|{tmp_path}/run'\n")
        (tmp_path / "bin/sacct").chmod(0o755)
    assert call("status")[1].splitlines()[1].startswith("1001  train  PENDING")
    assert (tmp_path / "run/.secrets/values").exists() and [run.asked_of for run in history.runs()] == ["gpu2"]


def test_a_job_that_a_chosen_cluster_has_forgotten_is_still_known_as_its(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    fake.script("sbatch", "take; exit 1")
    fake.script("squeue", "exit 1")
    call("submit", "train.py", "--output", "run", "--slurm", "clusters=gpu2")
    (tmp_path / "run/log/slurm-1001.out").touch()
    (tmp_path / "slurm/jobs").write_text("")
    fake.script("squeue", OF_GPU2)
    assert " LOST " in call("status")[1]
    assert [(run.id, run.asked_of) for run in history.runs()] == [("1001", "gpu2")]


def test_a_job_is_cancelled_on_its_own_cluster_whatever_the_shell_has_chosen(
    fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("submit", "train.py", "--output", "run")
    for name in ("squeue", "scancel"):
        fake.script(name, f'echo "{name} ${{SLURM_CLUSTERS-none}}" >>chosen; [[ "${{name}}" != squeue ]] || list')
    monkeypatch.setenv("SLURM_CLUSTERS", "a,gpu2")
    assert call("cancel", "run")[1] == "kit: train (1001) is being cancelled\n"
    assert (tmp_path / "slurm/chosen").read_text() == "squeue none\nscancel none\n"


@pytest.mark.parametrize(("options", "task"), [((), ()), (("--array", "0-2"), ()), (("--array", "0-2"), ("--task", "1"))])
def test_a_job_that_was_cancelled_before_it_started_is_never_called_lost(
    options: tuple[str, ...], task: tuple[str, ...], fake: ScriptedSlurm, call, tmp_path: Path
) -> None:
    call("submit", "train.py", "--output", "run", *options)
    if options:
        (tmp_path / "slurm/jobs").write_text("".join((tmp_path / "slurm/jobs").read_text().replace("1001", f"1001_{number}") for number in range(3)))
    assert call("cancel", "run", *task)[0] == 0
    (tmp_path / "slurm/jobs").write_text("")  # minutes later
    assert (" LOST " in call("status", "run")[1]) == bool(task)  # of the tasks that nobody cancelled
    if not task:
        assert " CANCELLED " in call("status", "run")[1] and "has ended: CANCELLED" in call("cancel", "run")[1]


def test_a_run_of_a_cluster_without_a_name_is_not_judged_on_another_machine(fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "SETTLE_S", 0)
    fake.script("scontrol", "exit 1")
    for name, end in (("known", "take; echo ${id}"), ("unsure", "kill -9 $$")):
        monkeypatch.setenv("A", "x")
        fake.script("sbatch", end)
        call("submit", "train.py", "--output", name, "--secret", "A")
    (tmp_path / "slurm/jobs").write_text("")
    for name in ("known", "unsure"):
        record = run_dir.load(tmp_path / name)
        assert record["host"] == os.uname().nodename
        run_dir.save(tmp_path / name, {**record, "host": "login7"})
    assert "it was submitted on login7, where Slurm did not name its cluster: ask there" in call("status", "known")[1]
    assert "is not cancelled: it was submitted on login7" in call("cancel", "known")[2]
    assert " SUBMITTING " in call("status", "unsure")[1]
    assert all((tmp_path / name / ".secrets/values").exists() for name in ("known", "unsure"))


def test_a_run_without_a_job_is_not_followed(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    fake.script("sbatch", "kill -9 $$")
    call("submit", "train.py", "--output", "run")
    code, _, errors = call("logs", "run", "-f")
    assert (code, errors.splitlines()[0]) == (2, "kit: train (not submitted) has no job yet")


def test_a_run_of_a_cluster_that_shares_the_home_is_shown_as_such_and_not_cancelled_by_its_number(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--output", "run")
    (tmp_path / "slurm/cluster").write_text("b\n")
    (tmp_path / "slurm/jobs").write_text("")
    fake.put("1001", "RUNNING", "/home/ada/other")
    assert "UNKNOWN  1x1    0s ago     -     a job of the cluster a, and this is b: ask there" in call("status", "run")[1].replace("1s ago", "0s ago")
    code, _, errors = call("cancel", "1001")
    assert code == 1 and "is not cancelled: a job of the cluster a" in errors and fake.calls("scancel") == []


def test_a_run_of_which_nobody_can_tell_may_still_do_something(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    """A program that waits for its end, or starts again what is not active, goes by that."""
    call("submit", "train.py", "--sweep", "lr=1,2", "--output", "run", "--", "{lr}")
    (tmp_path / "slurm/cluster").write_text("b\n")
    (tmp_path / "slurm/jobs").write_text("")
    whole = json.loads(call("status", "run", "--json")[1])
    assert [(each["state"], each["active"]) for each in (whole, *whole["tasks"])] == [("UNKNOWN", True)] * 3
    with pytest.raises(KitError, match="goes on after 0 s"):  # and so it does not end as LOST
        kit.find("1001_0").wait(timeout_s=0)
    assert call("status", "run", "--watch")[0] == 0  # which is not for ever
    fake.script("sbatch", "kill -9 $$")
    call("submit", "train.py", "--output", "other")
    unsure = json.loads(call("status", "other", "--json")[1])
    assert (unsure["state"], unsure["active"], unsure["nodes"]) == ("SUBMITTING", True, "")
    assert call("stop", "other")[2].endswith("fix: where it is: kit status train\n")


def test_a_task_is_not_lost_while_the_accounts_cannot_be_read_though_another_one_runs(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--sweep", "lr=1,2", "--output", "run", "--", "{lr}")
    (tmp_path / "slurm/jobs").write_text("")
    fake.put("1001_0", "RUNNING", tmp_path / "run")
    sacct = tmp_path / "bin/sacct"
    sacct.write_text("#!/bin/bash\nexit 1\n")
    sacct.chmod(0o755)
    whole = json.loads(call("status", "run", "--json")[1])
    assert (whole["state"], whole["detail"]) == ("RUNNING", "array of 2: 1 running, 1 unknown")
    unread = "Slurm's accounts cannot be read now"
    assert [(each["state"], each["active"], each["detail"]) for each in whole["tasks"]] == [("RUNNING", True, "n1"), ("UNKNOWN", True, unread)]
    with pytest.raises(KitError, match="goes on after 0 s"):  # and so it does not end as LOST
        kit.find("1001_1").wait(timeout_s=0)
    assert f"is not cancelled: {unread}\n" in call("cancel", "1001_1")[2]


def after(call, word: str, *options: str) -> tuple[int, str]:
    """What a submission that waits for this run says: the first line."""
    code, out, errors = call("submit", "train.py", "--name", "next", "--output", "next", "--after", word, *options)
    return code, (errors or out).splitlines()[0]


@pytest.mark.parametrize("kind", ["", "any:", "notok:"])
def test_no_job_waits_for_a_run_whose_job_or_whose_state_is_not_known(kind: str, fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch) -> None:
    fake.script("sbatch", "exit 1")
    fake.script("squeue", "exit 1")
    call("submit", "train.py", "--name", "prep", "--output", "prep")
    fake.script("squeue", "")
    fake.script("sbatch", "")
    busy = "kit: --after: whether Slurm has the job of prep (not submitted) is not known yet"
    assert after(call, f"{kind}prep") == (2, busy) and after(call, f"{kind}prep", "--dry-run") == (2, busy)
    monkeypatch.setattr(submit, "SETTLE_S", 0)
    no_job = "kit: --after: Slurm has no job of prep (not submitted)"
    assert after(call, f"{kind}prep") == (2, no_job) and after(call, f"{kind}prep", "--dry-run") == (2, no_job)
    call("submit", "train.py", "--output", "run")
    (tmp_path / "slurm/cluster").write_text("b\n")
    (tmp_path / "slurm/jobs").write_text("")
    not_here = "kit: --after: the state of train (1001) is not known here: a job of the cluster a, and this is b: ask there"
    assert after(call, f"{kind}run") == (2, not_here)
    assert len(fake.calls("sbatch")) == 2 and not (tmp_path / "next").exists()


def test_a_dependency_on_a_job_of_another_cluster_goes_to_that_cluster_alone(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    fake.script("sbatch", 'take; [[ "${args}" != *second* ]] && echo "${id}" || echo "${id};gpu2"')
    call("submit", "train.py", "--output", "first")
    call("submit", "train.py", "--output", "second")
    other = "kit: --after: train (1002) is a job of the cluster gpu2, and this one goes to the cluster a"
    assert after(call, "any:1002") == (2, other)
    asked = len(fake.calls("scontrol"))
    assert after(call, "any:1002", "--dry-run")[0] == 0 and len(fake.calls("scontrol")) == asked  # it asks nobody
    own = "kit: --after: train (1001) is a job of the cluster a, and this one goes to the cluster gpu2"
    assert after(call, "1001", "--slurm", "clusters=gpu2") == (2, own)
    assert after(call, "1002", "--slurm", "clusters=gpu2") == (0, "kit: waits for train (1002) to end well")
    assert " --dependency=afterok:1002 " in fake.calls("sbatch")[-1]


def test_the_id_that_parsable_prints_of_another_cluster_names_its_run(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    fake.script("sbatch", 'take; echo "${id};gpu2"')
    assert call("submit", "train.py", "--output", "run", "--parsable")[1] == "1001;gpu2\n"
    assert call("status", "1001;gpu2")[1].splitlines()[1].startswith("1001  train  PENDING")
    assert call("status", "1001;gpu3")[2].startswith("kit: there is no run 1001;gpu3\n")


def test_a_job_of_that_number_in_another_folder_is_another_one(fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "x")
    call("submit", "train.py", "--output", "run", "--secret", "A")
    mine = (tmp_path / "slurm/jobs").read_text()
    for state in ("COMPLETED", "RUNNING"):
        (tmp_path / "slurm/jobs").write_text(mine.replace("PENDING", state).replace(str(tmp_path / "run"), "/home/ada/other"))
        fake.script("squeue", 'list() { awk -F\'|\' -v OFS=\'|\' \'{print $1, $2, "N/A", "0:00", "1:00", "n1", "None", $4}\' jobs; }; list')
        assert " LOST " in call("status", "run")[1]
        assert (tmp_path / "run/.secrets/values").exists()
        code, said, errors = call("cancel", "run")
        assert (code, said) == (1, "") and "kit: train (1001) is not cancelled: it is not in Slurm's queue, and neither" in errors
        assert fake.calls("scancel") == []
        assert slurm.state("1001", lookup.find("run").works_in) is None
    (tmp_path / "slurm/jobs").write_text(mine)
    fake.script("squeue", "")
    assert " PENDING " in call("status", "run")[1]
    assert call("cancel", "run")[1] == "kit: train (1001) is being cancelled\n"


def put_again(fake: ScriptedSlurm, call, tmp_path: Path, end: str = "COMPLETED") -> None:
    """The run directory of a job whose end is noted is submitted again by hand, and that job runs."""
    call("submit", "train.py", "--output", "run")
    begun(tmp_path / "run/log", "1001")
    (tmp_path / "slurm/jobs").write_text((tmp_path / "slurm/jobs").read_text().replace("PENDING", end))
    assert f" {end} " in call("status")[1]
    fake.put("1009", "RUNNING", tmp_path / "run")
    begun(tmp_path / "run/log", "1009")


def begun(log: Path, job_id: str) -> None:
    (log / job_id).mkdir()
    (log / f"slurm-{job_id}.out").write_text(f"said by {job_id}\n")


@pytest.mark.parametrize(("is_submitted", "afterwards"), [(True, ""), (False, "RUNNING"), (False, "COMPLETED")])  # the allocation
def test_a_run_that_is_started_by_hand_under_salloc_is_known_and_its_allocation_is_left_alone(
    is_submitted: bool, afterwards: str, fake: ScriptedSlurm, call, tmp_path: Path
) -> None:
    if is_submitted:
        call("submit", "train.py", "--output", "run")
        (tmp_path / "slurm/jobs").write_text((tmp_path / "slurm/jobs").read_text().replace("PENDING", "COMPLETED"))
        assert " COMPLETED " in call("status", "run")[1]
    else:
        call("render", "train.py", "--output", "run")
    logs = tmp_path / "run/log/1009"
    fake.put("1009", "RUNNING", tmp_path)  # where salloc was called
    event_lines.add(logs, "batch", "start", node="n1", job="1009", nodes="n1", log=0, allocation=str(tmp_path))
    (logs / "n1.out").write_text("said by hand\n")
    assert call("status", "run")[1].splitlines()[1].startswith("1009  train  RUNNING")
    assert call("logs", "run")[1] == "said by hand\n" == call("logs", "1009")[1]
    code, _, errors = call("cancel", "run")
    assert (code, fake.calls("scancel")) == (1, []) and "fix: end it in its terminal: Ctrl-C; to end the whole allocation: scancel 1009" in errors
    code, _, errors = call("stop", "run")
    assert (code, fake.calls("scancel"), (logs / "request").exists()) == (1, [], False) and "Slurm cannot signal its script" in errors
    event_lines.add(logs, "batch", "node_refused", node="n1", cause="mount-missing", problem="no /data", fix="mount it")
    event_lines.add(logs, "batch", "ends", node="n1", code=1)
    assert "no /data" in call("why", "run")[1]
    (tmp_path / "slurm/jobs").write_text("")
    if afterwards:
        fake.put("1009", afterwards, tmp_path)
    assert " FAILED " in call("status", "1009")[1]
    assert "has ended: FAILED" in "".join(call("cancel", "run")[1:])
    if afterwards == "RUNNING":
        event_lines.add(logs, "batch", "start", attempt=2, node="n1", job="1009", nodes="n1", log=0, allocation=str(tmp_path))
        assert call("status", "run")[1].splitlines()[1].startswith("1009  train  RUNNING")


@pytest.mark.parametrize("end", ["COMPLETED", "FAILED"])
@pytest.mark.parametrize("word", ["1009", "run", "train"])
def test_a_job_that_a_user_submitted_in_a_run_directory_whose_end_is_noted_is_the_runs(word: str, end: str, fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    put_again(fake, call, tmp_path, end)
    assert call("logs", word)[1] == "said by 1009\n"
    assert after(call, word) == (0, "kit: waits for train (1009) to end well")
    assert call("status", word)[1].splitlines()[1].startswith("1009  train  RUNNING")
    assert call("cancel", word)[1] == "kit: train (1009) is being cancelled\n"
    assert fake.calls("scancel") == ["scancel 1009"]


@pytest.mark.parametrize("its_state", ["PENDING", "RUNNING"])
@pytest.mark.parametrize("task", ["", "_1"])
def test_the_id_of_a_job_that_is_over_never_means_one_that_a_user_submitted_after_it(
    task: str, its_state: str, fake: ScriptedSlurm, call, tmp_path: Path
) -> None:
    """No command has noted the end yet, and the later job does not go on for the first one."""
    call("submit", "train.py", "--output", "run", *(["--array", "1,3"] if task else []))
    for each in ("_1", "_3") if task else ("",):
        event_lines.add(tmp_path / f"run/log/1001{each}", "batch", "node_refused", node="n1", cause="mount-missing", problem="no /data", fix="mount it")
        event_lines.add(tmp_path / f"run/log/1001{each}", "batch", "ends", node="n1", code=1)
    (tmp_path / "slurm/jobs").write_text("")
    fake.put(f"1009{task}", its_state, tmp_path / "run")
    for word in dict.fromkeys(["1001", f"1001{task}"]):
        assert call("cancel", word)[1] == f"kit: train ({word}) has ended: FAILED\n"
        assert call("stop", word)[0] and not list((tmp_path / "run/log").rglob("request"))
    assert fake.calls("scancel") == []
    assert call("status", "1001")[1].splitlines()[1].startswith("1001  train  FAILED")
    assert [(run.id, run.state) for run in history.runs()] == [("1001", "FAILED")]
    if its_state == "RUNNING":
        begun(tmp_path / "run/log", f"1009{task}")
        assert call("cancel", "train")[1] == "kit: train (1009) is being cancelled\n"


def test_a_job_that_a_user_submitted_again_is_shown_to_its_end_where_no_run_is_named(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    put_again(fake, call, tmp_path)
    history.add(replace(history.runs()[0], created_s=time.time() - 10 * 86400))
    for command in ("status", "runs"):
        assert call(command)[1].splitlines()[1].startswith("1009  train  RUNNING")
    (tmp_path / "slurm/jobs").write_text((tmp_path / "slurm/jobs").read_text().replace("RUNNING", "FAILED"))
    assert call("status")[1].splitlines()[1].startswith("1009  train  FAILED")
    assert [(run.id, run.state) for run in history.runs()] == [("1009", "FAILED")]
    asked = len(fake.calls("squeue"))
    assert " FAILED " in call("status")[1] and len(fake.calls("squeue")) == asked


def test_of_two_jobs_in_one_run_directory_the_one_whose_number_is_given_is_cancelled(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    put_again(fake, call, tmp_path)
    fake.put("1005", "RUNNING", tmp_path / "run")
    begun(tmp_path / "run/log", "1005")
    assert call("status", "run")[1].splitlines()[1].startswith("1009  train  RUNNING")
    assert call("logs", "1005")[1] == "said by 1005\n" and call("logs", "1001")[1] == "said by 1001\n"
    assert call("cancel", "1005")[1] == "kit: train (1005) is being cancelled\n"
    assert fake.calls("scancel") == ["scancel 1005"]
    assert call("status", "run")[1].splitlines()[1].startswith("1009  train  RUNNING")


@pytest.mark.parametrize("is_noted", [False, True])
def test_the_number_of_a_job_that_has_ended_means_no_later_one_of_its_folder(is_noted: bool, fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    put_again(fake, call, tmp_path)
    if is_noted:
        call("status", "run")
    assert call("cancel", "1001")[1] == "kit: train (1001) has ended: COMPLETED\n" and fake.calls("scancel") == []
    assert call("status", "1001")[1].splitlines()[1].startswith("1001  train  COMPLETED")
    assert call("status", "run")[1].splitlines()[1].startswith("1009  train  RUNNING")
    (tmp_path / "slurm/jobs").write_text((tmp_path / "slurm/jobs").read_text().replace("RUNNING", "FAILED"))
    assert call("status", "run")[1].splitlines()[1].startswith("1009  train  FAILED")
    call("status", "1001")
    assert [(run.id, run.state) for run in history.runs()] == [("1009", "FAILED")]


def put_again_array(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    """As `put_again`, of an array: its tasks 1 and 3 were submitted again, and 3 still waits."""
    call("submit", "train.py", "--array", "0-3", "--output", "run")
    (tmp_path / "slurm/jobs").write_text("")
    for task in range(4):
        begun(tmp_path / "run/log", f"1001_{task}")
        fake.put(f"1001_{task}", "FAILED" if task % 2 else "COMPLETED", tmp_path / "run")
    assert call("status")[1].splitlines()[1].startswith("1001  train  FAILED")
    fake.put("1009_1", "RUNNING", tmp_path / "run")
    fake.put("1009_[3]", "PENDING", tmp_path / "run")
    begun(tmp_path / "run/log", "1009_1")


@pytest.mark.parametrize("word", ["1009", "run", "train"])
def test_an_array_that_a_user_submitted_again_is_the_runs(word: str, fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    put_again_array(fake, call, tmp_path)
    first, *rows = call("status", word)[1].splitlines()[1:]
    assert first.startswith("1009  train  RUNNING") and "array of 2: 1 running, 1 pending" in first
    assert [row.split()[:2] for row in rows if re.match(r"\d+ +[A-Z]", row)] == [["1", "RUNNING"], ["3", "PENDING"]]
    assert call("logs", word)[1].splitlines()[-1] == "said by 1009_1"
    assert call("cancel", word)[1] == "kit: train (1009) is being cancelled\n"
    assert fake.calls("scancel") == ["scancel 1009"]


def test_the_task_of_an_array_that_a_user_submitted_again_is_no_task_of_the_first_one(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    put_again_array(fake, call, tmp_path)
    for _ in range(2):  # also where the later job is noted
        assert call("logs", "1009_1")[1] == "said by 1009_1\n" and call("logs", "1001_1")[1] == "said by 1001_1\n"
        assert "1009_1" in call("why", "1009_1")[1] and "1001_1" in call("why", "1001_1")[1]
        assert call("status", "1001")[1].splitlines()[1].startswith("1001  train  FAILED")
        assert call("cancel", "1001_1")[1] == "kit: train (1001_1) has ended: FAILED\n" and fake.calls("scancel") == []
        assert call("status", "run")[1].splitlines()[1].startswith("1009  train  RUNNING")
    assert call("cancel", "1009_1")[1] == "kit: train (1009_1) is being cancelled\n"
    assert fake.calls("scancel") == ["scancel 1009_1"]


def test_a_task_that_the_later_array_does_not_have_is_still_the_first_ones(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    put_again_array(fake, call, tmp_path)
    assert call("status", "run")[1].splitlines()[1].startswith("1009  train  RUNNING")  # noted from here on
    shutil.rmtree(tmp_path / "run/log/1001_2")  # as of one that was cancelled before it began
    (tmp_path / "run/log/slurm-1001_2.out").unlink()
    for word in (["1001_2"], ["1001", "--task", "2"]):
        assert "1001_2" in call("status", *word)[1] and "COMPLETED" in call("status", *word)[1]
    for word in (["1001_2"], ["train", "--task", "2"], ["1009", "--task", "2"]):
        code, said, problem = call("rerun", *word)
        assert code == 0, said + problem


def test_a_task_that_goes_on_for_another_is_no_submission_of_its_own(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    put_again_array(fake, call, tmp_path)
    (tmp_path / "run/log/1001_1/continued-by").write_text("1009_1\n")
    assert call("status", "run")[1].splitlines()[1].startswith("1001  train  FAILED")
    assert call("logs", "1009_1")[1] == "said by 1009_1\n"


def test_the_accounts_are_believed_of_the_runs_own_folder_alone(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--output", "run")
    (tmp_path / "slurm/jobs").write_text("")
    (tmp_path / "bin/sacct").write_text(f"#!/bin/bash\ncat {tmp_path}/accounts\n")
    (tmp_path / "bin/sacct").chmod(0o755)
    (tmp_path / "accounts").write_text(f"site's banner\n1001| \n1001|FAILED\n1001|FAILED|/home/ada/other\n1001| |{tmp_path}/run\n")
    assert " LOST " in call("status", "run")[1]
    (tmp_path / "accounts").write_text(f"1001|FAILED|/home/ada/other\n1001|CANCELLED by 7|{tmp_path}/run\n")
    assert " CANCELLED " in call("status", "run")[1]


def test_accounts_that_have_missed_the_end_of_a_job_do_not_say_that_it_runs(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--output", "run")
    (tmp_path / "slurm/jobs").write_text("")
    (tmp_path / "bin/sacct").write_text(f"#!/bin/bash\necho '1001|RUNNING|{tmp_path}/run'\n")
    (tmp_path / "bin/sacct").chmod(0o755)
    assert " LOST " in call("status", "run")[1]
    fake.script("squeue", "echo")  # a site's own, which knows the jobs of a minute ago
    fake.put("1001", "RUNNING", f"{tmp_path}/run")
    assert " RUNNING " in call("status", "run")[1]


def test_of_two_jobs_with_one_number_the_runs_own_is_believed(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--output", "run")
    fake.put("1001", "COMPLETED", "/home/ada/other")
    assert " PENDING " in call("status", "run")[1]


def test_secrets_of_a_job_that_slurm_has_surely_forgotten_are_removed(fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "x")
    call("submit", "train.py", "--output", "run", "--secret", "A")
    (tmp_path / "slurm/jobs").write_text("")
    fake.script("squeue", "true")
    assert " LOST " in call("status", "run")[1] and (tmp_path / "run/.secrets").exists()  # an answer without its header tells nothing
    fake.script("squeue", "")
    assert " LOST " in call("status", "run")[1] and not (tmp_path / "run/.secrets").exists()


# ---------------------------------------------------------------- what Slurm says


@pytest.mark.parametrize("state", ["EXPEDITING", "RUNNING", "COMPLETING", "SOMETHING_NEW"])
def test_a_state_that_is_not_known_to_be_an_end_is_none(state: str, fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--output", "run")
    (tmp_path / "slurm/jobs").write_text((tmp_path / "slurm/jobs").read_text().replace("PENDING", state))
    assert f" {state} " in call("status", "run")[1]
    found = slurm.state("1001")
    assert found and found.active and [run.state for run in history.runs()] == [""]
    assert call("cancel", "run")[1] == "kit: train (1001) is being cancelled\n"


@pytest.mark.parametrize("answer", ["true", "echo garbage", "echo 'JobId=5 JobState= Reason=x'", "echo slurm_load_jobs error >&2; exit 1"])
def test_an_answer_without_a_state_is_none(answer: str, fake: ScriptedSlurm) -> None:
    fake.script("scontrol", answer)
    with pytest.raises(KitError, match="Slurm does not answer"):
        slurm.state("5")


def test_an_exit_code_that_is_none_is_passed_over(fake: ScriptedSlurm) -> None:
    fake.script("scontrol", "echo 'JobId=5 JobState=FAILED Reason=None ExitCode=x:y NodeList=n1'")
    assert slurm.state("5") == slurm.State("FAILED", "None", 0, "n1")


def test_lines_that_are_none_of_squeues_are_passed_over(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--output", "run")
    fake.script(
        "squeue",
        "echo 'Welcome to the site'; echo 'a|b|c'; printf '\\0\\n'; echo '|||||||'; echo 'x|RUNNING|||||| /'; list() { echo; }; "
        f"echo '1001|RUNNING|N/A|0:00|1:00|n1|None|{tmp_path}/run'; echo 'CLUSTER: gpu2'",
    )
    code, out, _ = call("status")
    assert code == 0 and out.splitlines()[1].startswith("1001  train  RUNNING")


# ---------------------------------------------------------------- what the history survives


def history_file(tmp_path: Path) -> Path:
    return tmp_path / "state/kit/runs.jsonl"


@pytest.mark.parametrize(
    "damage",
    [b'{"id": "3", "fold', b"\0" * 200, b"\xff\xfe\n", b'{"id": "1", "folder": ["x"]}\n', b'{"created_s": NaN}\n', b"[" * 100_000 + b"\n", b"null\n7\n"],
)
def test_damage_in_the_history_hides_no_other_run(damage: bytes, fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--output", "first")
    with history_file(tmp_path).open("ab") as file:
        file.write(damage)
    call("submit", "train.py", "--output", "second")
    assert noted() == {"first": "1001", "second": "1002"}
    code, out, errors = call("status")
    assert (code, len(out.splitlines()), errors) == (0, 3, "")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("id", 7),
        ("id", "--me"),
        ("id", "../../etc"),
        ("id", "7\n"),
        ("folder", ["x"]),
        ("folder", "relative"),
        ("folder", "/x\0y"),
        ("created_s", "yesterday"),
        ("created_s", True),
        ("created_s", 1e999),
        ("name", None),
        ("ends", {"X": 7}),
        ("ends", {"X": "0-99999999999"}),
        ("array", "x"),
        ("local", "no"),
        ("state", {}),
    ],
)
def test_a_line_of_another_kind_than_kit_writes_is_passed_over(key: str, value: object, fake: ScriptedSlurm, tmp_path: Path) -> None:
    run = noted_run(tmp_path, "x", 1, 1, "5", local=False)
    text = history_file(tmp_path).read_text()
    assert history.runs() == [run]
    history_file(tmp_path).write_text(json.dumps({**json.loads(text), key: value}) + "\n")
    assert history.runs() == []


@pytest.mark.parametrize("place", ["folder", "fifo"])
def test_a_history_that_cannot_be_written_is_said_and_the_run_found_by_its_folder(place: str, fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    file = history_file(tmp_path)
    file.parent.mkdir(parents=True)
    file.mkdir() if place == "folder" else os.mkfifo(file)
    code, out, errors = call("submit", "train.py", "--output", "run")
    assert code == 0 and "submitted job 1001" in out
    assert f"kit: the run could not be noted in {file}" in errors and f"to find it again: kit status {tmp_path}/run\n" in errors
    assert call("status", "run")[1].splitlines()[1].startswith("1001  train  PENDING")
    file.rmdir() if place == "folder" else file.unlink()
    call("status", "run")
    assert noted() == {"run": "1001"}


def test_a_run_directory_is_known_where_it_was_moved_and_by_a_link_to_it(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--output", "run")
    os.symlink("run", "link")
    (tmp_path / "run/log/slurm-1001.out").write_text("said\n")
    for word in ("link", str(tmp_path / "link")):
        assert call("status", word)[1].splitlines()[1].startswith("1001  train  PENDING")
    (tmp_path / "run").rename(tmp_path / "moved")
    assert call("logs", "moved")[1] == "said\n"
    assert call("status", "moved")[1].splitlines()[1].startswith("1001  train  PENDING")
    assert call("cancel", "moved")[1] == "kit: train (1001) is being cancelled\n"


def test_a_copy_of_a_run_directory_is_not_the_jobs(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--output", "run")
    subprocess.run(["cp", "-r", "run", "copy"], check=True)
    assert " LOST " in call("status", "copy")[1] and "(1001) is not cancelled: it is not in Slurm's queue" in call("cancel", "copy")[2]
    assert fake.calls("scancel") == [] and noted() == {"run": "1001"}


def without_slurm(tmp_path: Path) -> None:
    """A laptop: its only commands are those that a run on this machine needs."""
    for name in ("squeue", "sbatch", "scancel", "scontrol"):
        (tmp_path / "bin" / name).unlink()
    assert not shutil.which("squeue"), "these tests need a machine without Slurm"


def test_a_copied_run_of_a_cluster_is_no_run_of_this_laptop(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    without_slurm(tmp_path)
    assert call("run", "train.py", "--output", "mine")[0] == 0
    shutil.copytree(CORPUS / "time-limit", "from-cluster")
    for word in ("why", "logs"):
        assert call(word, "from-cluster")[0] == 0
    assert noted().keys() == {"mine"} and lookup.find(None).folder == str(tmp_path / "mine")
    for words in (("status",), ("runs",), ("runs", "--all", "--json")):
        code, out, errors = call(*words)
        assert (code, errors) == (0, "") and "COMPLETED" in out
    code, out, errors = call("status", "from-cluster")  # its log tells
    assert (code, errors) == (0, "") and re.search(r"^\d+ +\S+ +TIMEOUT ", out, re.MULTILINE)
    shutil.rmtree("from-cluster/log")
    assert call("status", "from-cluster")[2].startswith("kit: squeue is not installed here\n")


def test_in_the_folder_of_a_colleagues_run_that_run_is_meant(fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch) -> None:
    shutil.copytree(CORPUS / "time-limit", "theirs")
    said = call("why", "theirs")[1]
    monkeypatch.chdir("theirs")
    assert call("why")[1] == said.replace("theirs/", "") != "" and noted() == {}
    (tmp_path / "run.json").write_text('{"of": "another program"}')
    monkeypatch.chdir(tmp_path)
    assert call("why")[2] == "kit: there is no run yet\n  fix: start one: kit submit job.yaml\n"


def test_without_slurm_the_state_of_its_runs_alone_is_unknown(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--output", "far")
    without_slurm(tmp_path)
    assert call("status")[2].startswith("kit: squeue is not installed here\n")
    assert call("run", "train.py", "--output", "mine")[0] == 0
    code, out, errors = call("status")
    far, mine = out.splitlines()[1:]
    assert (code, errors) == (0, "") and " UNKNOWN " in far and " COMPLETED " in mine
    assert far.endswith("squeue is not installed here: ask on a login node of its cluster")
    assert call("status", "far")[2].startswith("kit: squeue is not installed here\n")


@pytest.mark.parametrize(
    ("facts", "is_noted"),
    [
        ({"host": "login7", "cluster": "a"}, True),
        ({"host": "login7", "cluster": "b"}, False),
        ({"host": "login7", "cluster": ""}, False),
        ({"host": os.uname().nodename, "cluster": ""}, True),
        ({"host": os.uname().nodename, "cluster": "b"}, False),  # many sites have a login1
        ({"host": "login7", "cluster": "b", "is_member": True}, True),  # submitted from here
    ],
)
def test_a_run_directory_is_noted_if_it_is_of_this_cluster(facts: dict[str, Any], is_noted: bool, fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--output", "run")
    run_dir.save(tmp_path / "run", {**run_dir.load(tmp_path / "run"), **facts})
    (tmp_path / "state/kit/runs.jsonl").unlink()
    (tmp_path / "run/log/slurm-1001.out").write_text("said\n")
    assert call("logs", "run")[1] == "said\n"
    assert noted() == ({"run": "1001"} if is_noted else {})


# ---------------------------------------------------------------- ids out of files


@pytest.mark.parametrize("text", ["--me", "../../../../../../etc", "100x", "7;8", "", "٣"])
def test_a_note_that_is_no_id_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "log/1002").mkdir(parents=True)
    (tmp_path / "log/1002/continued-by").write_text(text)
    run = history.Run("1002", str(tmp_path), "x", "1x1", 0.0)
    assert job_chain.last_job(run.paths, run.id) == run.id


def test_a_note_whose_digits_were_cut_off_ends_no_other_job(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--output", "run")
    (tmp_path / "run/log/1001").mkdir()
    (tmp_path / "run/log/1001/continued-by").write_text("100")
    fake.put("100", "RUNNING", "/home/ada/other")
    (tmp_path / "slurm/jobs").write_text((tmp_path / "slurm/jobs").read_text().replace("1001|PENDING", "1001|PREEMPTED"))
    fake.put("1009", "RUNNING", tmp_path / "run")
    assert call("status", "run")[1].splitlines()[1].startswith("1009  train  RUNNING")
    assert call("cancel", "run")[1] == "kit: train (1009) is being cancelled\n"
    assert fake.calls("scancel") == ["scancel 1009"]


@pytest.mark.parametrize("key", ["launcher", "runtime", "stage"])
def test_a_record_names_no_plug_in_by_a_path(key: str, fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--output", "deep/er/run")
    record = run_dir.load(tmp_path / "deep/er/run")
    run_dir.save(tmp_path / "deep/er/run", {**record, "plan": changed(record["plan"], **{key: "../../x"})})
    code, _, errors = call("rerun", "deep/er/run", "--output", "deep/er/again")
    assert code == 2 and f"unknown {key} '../../x'" in errors and not (tmp_path / "deep/er/again").exists()


# ---------------------------------------------------------------- runs on this machine


def time_is_up_with(file: Path) -> list[str]:
    """A kit for whose runs an hour more has passed once a file is there."""
    clock = f"types.SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + 3600 * os.path.exists({str(file)!r}))"
    return ["-c", f"import os, time, types; from kit.cli import main; from kit.runs import local; local.time = {clock}; main()"]


def begin_here(
    tmp_path: Path, program: str = "trap '' TERM; echo up; sleep 60", more: str = "", kit: Sequence[str] = ("-m", "kit")
) -> tuple[subprocess.Popen[bytes], str]:
    (tmp_path / "job.yaml").write_text(f'command: [bash, -c, "{program}"]\nlauncher: srun\nnodes: 1\nprocesses_per_node: 2\n{more}')
    process = subprocess.Popen(
        [sys.executable, *kit, "run", "job.yaml", "--output", "run", "--secret", "A"], env={**os.environ, "A": "x"}, stdout=subprocess.DEVNULL
    )
    until(lambda: ["up" in file.read_text() for file in (tmp_path / "run/log").glob("*/rank[01].out")] == [True, True])
    return process, history.runs()[-1].id


def test_a_run_whose_kit_was_killed_is_still_running_and_is_ended_by_cancel(fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, job_id = begin_here(tmp_path, "echo up; sleep 60")
    process.kill()
    process.wait()
    shown = call("status", "run")[1].splitlines()[1]
    assert " RUNNING  1x2 " in shown and shown.endswith(f"without kit, which was killed; to end it: kit cancel {job_id}")
    assert call("cancel", "run")[1].endswith("was ended\n")
    assert local_processes.find(job_id) == [] and [run.state for run in history.runs()] == ["CANCELLED"]
    assert not (tmp_path / "run/.secrets").exists()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_run_here_is_cancelled_from_another_terminal_and_its_kit_notes_the_end(is_stopped: bool, fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    process, job_id = begin_here(tmp_path, "echo up; sleep 60")
    if is_stopped:
        process.send_signal(signal.SIGSTOP)  # Ctrl-Z
    assert call("cancel", "run")[1].endswith("was ended\n")
    assert process.wait(60) == 143 and local_processes.find(job_id) == []
    assert [(run.state, run.why) for run in history.runs()] == [("CANCELLED", "by kit cancel")]
    said = call("why", "run")[1]
    assert "cause: it was cancelled by kit cancel (cancelled)" in said and "something outside" not in said and "who may cancel" not in said


@pytest.mark.parametrize("chosen", ["2,3", None])
def test_a_command_beside_a_run_here_sees_its_gpus_and_ends_with_its_pipe(
    chosen: str | None, fake: ScriptedSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    process, _ = begin_here(tmp_path, "echo up; sleep 60")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # in another terminal
    words = ["exec", "run", "--", "bash", "-c", "echo ${CUDA_VISIBLE_DEVICES-all}; { yes; echo $? >&2; } | head -n 1"]
    shown = subprocess.run([sys.executable, "-m", "kit", *words], capture_output=True, text=True)
    process.terminate()
    assert (shown.stdout, shown.stderr, process.wait(60)) == (f"{chosen or 'all'}\ny\n", "141\n", 143)


@pytest.mark.parametrize(("number", "end"), [(signal.SIGTERM, ("CANCELLED", "by SIGTERM")), (None, ("TIMEOUT", "exit code 143"))])
def test_a_program_that_waits_for_a_run_here_leaves_what_its_kit_noted_of_the_end(
    number: int | None, end: tuple[str, str], fake: ScriptedSlurm, call, tmp_path: Path
) -> None:
    process, _ = begin_here(tmp_path, "echo up; sleep 60", "" if number else "time: '10:00'\n", time_is_up_with(tmp_path / "over"))
    (run,) = history.runs()
    (shown,) = json.loads(call("status", "--json")[1])
    assert 0 <= shown["elapsed_s"] < 300 and shown["limit_s"] == (None if number else 600)
    if number:
        process.send_signal(number)
    else:
        (tmp_path / "over").touch()
    assert process.wait(60) == 143
    noted_end = history.runs()[0]
    found = status.query([run])[0]  # of the run as it was before its end
    assert ((found.state, found.detail), found.run) == (end, noted_end) and history.runs() == [noted_end]


@pytest.mark.parametrize(("code", "end"), [(0, ("COMPLETED", "")), (3, ("FAILED", "local0: rank 0 (local rank 0) exited with code 3"))])
def test_a_signal_to_kit_does_not_change_how_a_run_has_ended(code: int, end: tuple[str, str], fake: ScriptedSlurm, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f'command: [bash, -c, "seq 40000; exit {code}"]\nlauncher: srun\nprocesses_per_node: 1\n')
    words = [sys.executable, "-m", "kit", "run", "job.yaml", "--output", "run"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:  # which nobody reads
        until(lambda: any('"event": "ends"' in file.read_text() for file in (tmp_path / "run/log").glob("*/events/batch.jsonl")))
        until(lambda: not local_processes.find(history.runs()[0].id))
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == code
    assert [(run.state, run.why) for run in history.runs()] == [end]


def test_the_time_of_a_run_here_is_over_though_nobody_reads_what_it_says(fake: ScriptedSlurm, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text('command: [bash, -c, "seq 40000; sleep 60"]\nlauncher: srun\nprocesses_per_node: 1\ntime: "10:00"\n')
    words = [sys.executable, *time_is_up_with(tmp_path / "over"), "run", "job.yaml", "--output", "run"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:  # a pager waits for its user
        until(lambda: any(file.read_text().endswith("40000\n") for file in (tmp_path / "run/log").glob("*/rank0.out")))
        (tmp_path / "over").touch()
        until(lambda: any('"event": "ends"' in file.read_text() for file in (tmp_path / "run/log").glob("*/events/batch.jsonl")))
        assert process.poll() is None
        process.communicate(timeout=60)
    assert (process.returncode, history.runs()[0].state) == (143, "TIMEOUT")


def test_following_a_run_here_reads_the_history_once(fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, _ = begin_here(tmp_path, "echo up; sleep 5")
    reads, read = [], history.json_lines.read
    monkeypatch.setattr("kit.files.json_lines.read", lambda *rest, **options: (reads.append(1), read(*rest, **options))[1])
    assert call("logs", "run", "-f")[0] == 0 and process.wait(60) == 0
    assert len(reads) < 6


def test_ranks_that_go_on_after_they_were_asked_for_a_checkpoint_are_ended_with_their_run(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    process, job_id = begin_here(tmp_path, "trap '' USR1; echo up; sleep 60", "on_preempt: checkpoint\ncheckpoint_s: 2\n")
    (script,) = [number for number in local_processes.find(job_id) if local_processes._leads(number)]
    os.kill(script, signal.SIGUSR1)
    assert process.wait(60) == 75 and local_processes.find(job_id) == []
    assert " FAILED " in call("status", "run")[1] and "has ended: FAILED" in call("cancel", "run")[1]


def test_values_of_a_run_that_was_killed_with_its_kit_are_removed_when_that_is_seen(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    process, job_id = begin_here(tmp_path)
    process.kill()
    process.wait()
    for number in local_processes.find(job_id):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    until(lambda: not local_processes.find(job_id))
    assert (tmp_path / "run/.secrets/values").exists()
    assert " LOST " in call("status", "run")[1] and not (tmp_path / "run/.secrets").exists()


def test_a_process_that_has_kits_number_later_is_not_kit() -> None:
    own = local_processes.identity()
    assert local_processes.has_kit(own) and local_processes.has_kit({**own, "host": "renamed"})
    others = [{"began": own["began"] - 1}, *({"pid": number} for number in (None, "x", [7], 0, 2**30))]
    assert not any(local_processes.has_kit(record) for record in ({}, {"pid": os.getpid()}, *({**own, **facts} for facts in others)))


def test_a_run_whose_clock_is_set_while_it_runs_keeps_its_kit(fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by NTP, or when a suspended machine wakes up."""
    process, _ = begin_here(tmp_path, "echo up; sleep 60")
    now = time.time
    for step_s in (3600, -3600):
        monkeypatch.setattr(time, "time", lambda step_s=step_s: now() + step_s)
        assert call("status", "run")[1].splitlines()[1].endswith("on this machine")
    process.terminate()
    assert process.wait(60) == 143


def test_kit_believes_its_own_record_on_a_machine_that_has_been_up_for_years(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_processes, "_began", lambda process: 2 * 10**10)  # in ticks since the boot: 6 years
    run_dir.save(tmp_path, {"kit": "1"})
    run_dir.update(tmp_path, local_processes.identity())
    assert local_processes.has_kit(run_dir.load(tmp_path))


def test_a_kit_that_has_ended_and_was_not_waited_for_is_gone() -> None:
    with subprocess.Popen("cat", stdin=subprocess.PIPE) as process:
        record = {**local_processes.identity(), "pid": process.pid, "began": local_processes._began(process.pid)}
        assert local_processes.has_kit(record)
        process.kill()
        until(lambda: not local_processes.has_kit(record))


def test_cancelling_signals_no_process_but_the_runs_own_kit(fake: ScriptedSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number is that of a process which has nothing to do with the run, but is as old as it."""
    signalled: list[tuple[int, int]] = []
    for name, stand_in in (("GRACE_S", 0.2), ("find", lambda job_id: [os.getpid()]), ("end", lambda job_id: None)):
        monkeypatch.setattr(local_processes, name, stand_in)
    monkeypatch.setattr(os, "kill", lambda *given: signalled.append(given))
    (tmp_path / "run.json").write_text(json.dumps(local_processes.identity()))
    local_processes.cancel(noted_run(tmp_path, "x", 1, 1, "7", local=True))
    assert signalled == []


HERE = os.uname().nodename


@pytest.mark.parametrize(
    ("facts", "place"),
    [
        ({"host": "elsewhere", "machine": "7c1e pid:[4026531836]"}, "elsewhere"),
        ({"host": "elsewhere", "machine": ""}, "elsewhere"),  # where /proc does not tell
        (
            {"host": HERE, "machine": "7c1e pid:[4026531836]"},
            f"{HERE} before its last boot, or on another machine or container of that name",
        ),  # cloned VMs, laptops called localhost
    ],
)
def test_a_run_of_another_machine_is_not_judged_by_the_processes_of_this_one(
    facts: dict[str, str], place: str, fake: ScriptedSlurm, call, tmp_path: Path
) -> None:
    (tmp_path / "run.json").write_text(json.dumps({**local_processes.identity(), **facts}))
    run = noted_run(tmp_path, "x", 1, 1, "7", local=True)
    run.paths.secrets.mkdir()
    (run.paths.secrets / "values").write_text("A=x")
    detail = f"it was started on {place}: ask there"
    assert status.query([run])[0][1:3] == ("UNKNOWN", detail)
    unknown = f"kit: whether x (7) goes on is not known here: {detail}\n  fix: to see its logs again: kit logs 7\n"
    assert call("logs", "7", "-f")[::2] == (1, unknown)
    assert "kit was killed" not in call("why", "7")[1]
    assert (run.paths.secrets / "values").exists()  # its ranks may start again
    event_lines.of_batch(tmp_path / "log/7", "kit: all ranks ended well\n")
    assert status.query([run])[0].state == "COMPLETED" and not lookup.find(str(tmp_path)).state


def test_a_run_of_a_machine_that_is_gone_is_lost_in_the_end(fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.json").write_text(json.dumps({**local_processes.identity(), "host": "gone", "machine": "gone"}))
    run = noted_run(tmp_path, "x", 1, 1, "7", local=True)
    run.paths.secrets.mkdir()
    run.paths.log.mkdir()
    now = time.time
    for later_s, silence in ((1200, "20 min"), (90000, "1 day 1 h")):
        monkeypatch.setattr(time, "time", lambda later_s=later_s: now() + later_s)
        assert status.query([run])[0][1:3] == ("LOST", f"it was started on gone: no sign of life for {silence}")
        assert run.paths.secrets.exists() == (later_s < 86400)  # the machine may be suspended, and its ranks start again
    os.utime(run.paths.log, (time.time(), time.time()))  # as its kit does once a minute
    assert status.query([run])[0].state == "UNKNOWN"
    os.utime(run.paths.log, (now(), now()))
    (tmp_path / "run.json").write_text('{"host": "gone"}')  # of an older kit, which gave no signs
    assert status.query([run])[0].state == "UNKNOWN"


# ---------------------------------------------------------------- reruns


@pytest.mark.parametrize("code", ["live", "snapshot"])
def test_a_rerun_names_nothing_of_the_run_that_it_repeats_and_says_so(code: str, fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    run = tmp_path / "r1"
    words = [f"{run}/x", str(run), f"--out={run}/y", f"a:{run}/z,{run}", f"/mnt{run}/y", f"{run}-2/y", f"file://{run}/u", f'{{"dir": "{run}/q"}}']
    call("submit", "train.py", "--code", code, "--output", "r1", "--env", f"OUT={run}/out", "--env", f"ELSEWHERE=/mnt{run}/out", "--", *words)
    call("rerun", "r1", "--output", "r2")
    said = 'cd r2; KIT_RUN_DIR=$PWD; source ./env.sh; printf "%s\\n" "${KIT_COMMAND[@]}" "${KIT_ENV[@]}"'
    now = subprocess.run(["bash", "-c", said], capture_output=True, text=True, check=True).stdout
    new = tmp_path / "r2"
    expected = [f"{new}/x", str(new), f"--out={new}/y", f"a:{new}/z,{new}", f"/mnt{run}/y", f"{run}-2/y", f"file://{new}/u", f'{{"dir": "{new}/q"}}']
    assert now.splitlines()[-10:] == [*expected, f"OUT={new}/out", f"ELSEWHERE=/mnt{run}/out"]
    program = recorded(new).program
    assert list(program.command[-8:]) == expected and program.env == (("OUT", f"{new}/out"), ("ELSEWHERE", f"/mnt{run}/out"))
    assert "edited" not in run_dir.load(new)


def test_runs_of_several_states_are_listed_as_squeue_takes_them(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    for state in ("FAILED", "COMPLETED", "TIMEOUT"):
        (tmp_path / state).mkdir()
        history.ended(noted_run(tmp_path / state, state, 1, 1, "", local=True), state)
    found = json.loads(call("runs", "--all", "--json", "--state", "failed,TIMEOUT")[1])
    assert [run["state"] for run in found] == ["FAILED", "TIMEOUT"]


def test_a_script_learns_the_id_of_what_it_starts_again(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--output", "r1")
    assert call("rerun", "r1", "--output", "r2", "--parsable")[:2] == (0, "1002\n")
    code, said, _ = call("rerun", "r1", "--output", "r3", "--json")
    assert (code, json.loads(said)["id"], json.loads(said)["folder"]) == (0, "1003", str(tmp_path / "r3"))


def test_a_run_here_that_starts_again_is_no_job_whose_id_a_script_waits_for(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: 'true'\nlauncher: srun\nruntime: none\n")
    call("run", "job.yaml", "--output", "r1")
    code, said, problem = call("rerun", "r1", "--output", "r2", "--json")
    assert (code, said, problem.splitlines()[1]) == (2, "", "  fix: leave --json out") and not (tmp_path / "r2").exists()


@pytest.mark.parametrize("typed", [["1001_2"], ["r1", "--task", "2"]])
def test_one_task_of_an_array_starts_again_alone_and_keeps_its_number(typed: list[str], fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--sweep", "lr=1,2,3,4", "--array", "%2", "--output", "r1", "--", "--lr", "{lr}")
    assert call("rerun", *typed, "--output", "r2")[0] == 0
    script = (tmp_path / "r2/run_script.sh").read_text()
    assert "#SBATCH --array=2\n" in script and script.count("--array=") == 1
    assert (history.runs()[-1].id, history.runs()[-1].array) == ("1002", "2")
    assert [task["values"] for task in json.loads(call("status", "r2", "--json")[1])["tasks"]] == [{"lr": "3"}]
    assert call("rerun", "1002_2", "--output", "r3")[0] == 0
    assert call("rerun", "r1", "--task", "4")[2] == "kit: train (1001) has no task 4\n  fix: its tasks are 0-3%2\n"
    call("submit", "train.py", "--output", "r4")
    assert call("rerun", "r4", "--task", "0")[2] == "kit: train (1004) is not an array\n  fix: leave --task out\n"


def put_tasks(fake: ScriptedSlurm, job_id: str, folder: Path, *states: str) -> None:
    """Let squeue tell of the tasks of an array, from task 0 on."""
    rows = (f"{job_id}_{number}|{state}|N/A|0:12|1:00|node1|None|{folder}" for number, state in enumerate(states) if state)
    fake.script("squeue", "cat <<'END'\n" + "\n".join(rows) + "\nEND")


def test_the_tasks_that_failed_start_again_as_one_array_of_their_numbers(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--sweep", "lr=1,2,3,4,5,6", "--array", "%2", "--output", "r1", "--", "--lr", "{lr}")
    put_tasks(fake, "1001", tmp_path / "r1", "COMPLETED", "FAILED", "CANCELLED", "RUNNING", "TIMEOUT", "PENDING")
    counts = "kit: to start again: 3 of the 6 tasks of train (1001): 1 cancelled, 1 failed, 1 timeout; left alone: 1 running, 1 pending\n"
    code, shown, said = call("rerun", "1001", "--failed", "--output", "r2", "--dry-run")
    assert code == 0 and said.startswith(counts) and not (tmp_path / "r2").exists() and len(fake.calls("sbatch")) == 1
    code, told, said = call("rerun", "1001", "--failed", "--output", "r2")
    assert code == 0 and said.startswith(counts) and "its 3 tasks: kit status 1002; " in told
    script = (tmp_path / "r2/run_script.sh").read_text()
    assert "#SBATCH --array=1-2,4%2\n" in script and script.count("--array=") == 1
    assert shown.startswith("kit: 1 node x 1 rank, no GPUs, 3 tasks\n==> r2/env.sh <==\n") and f"==> r2/run_script.sh <==\n{script}\n==> " in shown
    assert f"==> r2/env.sh <==\n{(tmp_path / 'r2/env.sh').read_text()}\n==> " in shown and "py-spy" not in shown
    assert recorded(tmp_path / "r2").layout.array == "1-2,4%2" and run_dir.load(tmp_path / "r2")["rerun_of"] == str(tmp_path / "r1")
    put_tasks(fake, "1002", tmp_path / "r2", "", "COMPLETED", "RUNNING", "", "FAILED")
    tasks = json.loads(call("status", "r2", "--json")[1])["tasks"]
    assert [(task["task"], task["values"]["lr"], task["state"]) for task in tasks] == [(1, "2", "COMPLETED"), (2, "3", "RUNNING"), (4, "5", "FAILED")]
    assert call("rerun", "--failed", "--output", "r3", "--parsable")[:2] == (0, "1003\n")  # the last run of the folder
    assert "#SBATCH --array=4\n" in (tmp_path / "r3/run_script.sh").read_text()


def test_where_no_task_failed_nothing_starts_and_a_script_learns_so(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--array", "0-2", "--output", "r1")
    put_tasks(fake, "1001", tmp_path / "r1", "COMPLETED", "RUNNING", "PENDING")
    said = "kit: no task of train (1001) has failed: array of 3: 1 running, 1 pending, 1 completed\n"
    assert call("rerun", "r1", "--failed") == call("rerun", "r1", "--failed", "--dry-run") == (0, said, "")
    assert call("rerun", "r1", "--failed", "--json") == (0, "null\n", said)
    assert call("rerun", "r1", "--failed", "--parsable") == (0, "", said)
    assert len(fake.calls("sbatch")) == 1


def test_tasks_of_which_nobody_knows_whether_they_failed_do_not_start_again(fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call("submit", "train.py", "--array", "0-1", "--output", "r1")
    (tmp_path / "bin/sacct").write_text("#!/bin/sh\necho 'sacct: error: slurm_persist_conn_open' >&2\nexit 1\n")
    (tmp_path / "bin/sacct").chmod(0o755)
    put_tasks(fake, "1001", tmp_path / "r1", "COMPLETED")
    unknown = "kit: whether a task of train has failed is not known: Slurm's accounts cannot be read now\n"
    assert call("rerun", "r1", "--failed") == (1, "", f"{unknown}  fix: ask again later: kit status 1001\n")
    put_tasks(fake, "1001", tmp_path / "r1", "RUNNING")
    unknown = "kit: whether a task of train has failed is not known: array of 2: 1 running, 1 unknown\n"
    assert call("rerun", "r1", "--failed") == (1, "", f"{unknown}  fix: ask again later: kit status 1001\n")
    call("submit", "train.py", "--array", "0-1", "--output", "r2")
    put_tasks(fake, "1002", tmp_path / "r2", "FAILED")
    assert "1 of the 2 tasks of train (1002): 1 failed; left alone: 1 unknown\n" in call("rerun", "r2", "--failed", "--output", "r3")[2]
    assert recorded(tmp_path / "r3").layout.array == "0"
    fake.script("squeue", "exit 1")
    assert call("rerun", "r3", "--failed", "--output", "r4")[0] == 1 and not (tmp_path / "r4").exists()
    fake.script("squeue", "")
    fake.script("sbatch", "kill -9 $$")
    call("submit", "train.py", "--array", "0-1", "--name", "other", "--output", "r4")
    assert "of other has failed is not known: Slurm has not said yet whether it has the job; " in call("rerun", "r4", "--failed")[2]
    monkeypatch.setattr(submit, "SETTLE_S", 0)
    unsubmitted = "kit: no task of other has begun: it was never submitted\n  fix: start all: kit rerun r4\n"
    assert call("rerun", "r4", "--failed") == (1, "", unsubmitted) and len(fake.calls("sbatch")) == 4
    assert [task["state"] for task in json.loads(call("status", "r4", "--json")[1])["tasks"]] == ["UNSUBMITTED"] * 2
    shown = call("rerun", "r4", "--dry-run")[1]  # it would be submitted as it is
    assert f"==> r4/run_script.sh <==\n{(tmp_path / 'r4/run_script.sh').read_text()}\n==> " in shown


def test_a_dry_rerun_names_the_variables_that_sbatch_reads_but_none_for_a_run_on_this_machine(
    fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_QOS", "high")
    call("submit", "train.py", "--output", "r1")
    note = "kit: sbatch also reads SBATCH_QOS=high of this shell\n"
    assert call("rerun", "r1", "--dry-run")[2].endswith(note)
    call("run", "train.py", "--runtime", "none", "--output", "r2")
    code, shown, said = call("rerun", "r2", "--dry-run")
    assert code == 0 and "run_script.sh <==\n" in shown and note not in said


def test_only_the_tasks_of_a_whole_array_can_have_failed(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--array", "0-2", "--output", "r1")
    call("submit", "train.py", "--output", "r2")
    fix = "\n  fix: leave --failed out\n"
    assert call("rerun", "r2", "--failed") == (2, "", f"kit: train (1002) is not an array{fix}")
    assert call("rerun", "1001_2", "--failed") == (2, "", f"kit: 1001_2 is one task{fix}")
    assert call("rerun", "r1", "--failed", "--task", "0")[2].startswith("kit: --task and --failed contradict each other\n")
    for option in ("--follow", "--json", "--parsable"):
        assert call("rerun", "r1", "--dry-run", option)[2].startswith(f"kit: --dry-run and {option} contradict each other\n")


@pytest.mark.parametrize(("dependency", "kept"), [("afterok:4711", []), ("singleton", ["#SBATCH --dependency=singleton"])])
def test_a_rerun_waits_for_no_job_that_the_run_waited_for(dependency: str, kept: list[str], fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--output", "r1", "--slurm", f"dependency={dependency}", "--slurm", "comment=a")
    assert call("rerun", "r1", "--output", "r2")[0] == 0
    first, second = ((tmp_path / name / "run_script.sh").read_text() for name in ("r1", "r2"))
    assert f"#SBATCH --dependency={dependency}\n" in first
    assert re.findall("^#SBATCH --dependency.*", second, re.MULTILINE) == kept and "#SBATCH --comment=a\n" in second
    assert [value for name, value in recorded(tmp_path / "r2").header if name == "dependency"] == [dependency] * len(kept)
    (tmp_path / "r1/run_script.sh").write_text(first.replace(f"#SBATCH --dependency={dependency}\n", ""))  # as a user may who no longer waits
    assert call("rerun", "r1", "--output", "r3")[0] == 0 and "--dependency" not in (tmp_path / "r3/run_script.sh").read_text()


def test_the_files_of_a_rerun_are_new_so_that_a_site_that_removes_old_files_leaves_them(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--code", "snapshot", "--output", "r1")
    old_s = time.time() - 40 * 86400
    for path in (path for path in (tmp_path / "r1").rglob("*") if path.is_file()):
        os.utime(path, (old_s, old_s))
    (tmp_path / "r1/code/train.py").chmod(0o750)
    assert call("rerun", "r1", "--output", "r2")[0] == 0
    assert [path for path in (tmp_path / "r2").rglob("*") if path.is_file() and path.stat().st_mtime < old_s + 1] == []
    assert (tmp_path / "r2/code/train.py").stat().st_mode & 0o777 == 0o750


EDITS = {
    "run_script.sh": ("#SBATCH --nodes=1", "#SBATCH --nodes=2"),
    "env.sh": ("NPROC_PER_NODE=1", "NPROC_PER_NODE=2"),
    "setup.sh": ("echo 1", "echo 2"),
    "script.sh": ("echo ü", "echo 2"),
    "lib/rank.sh": ("\n", "\n# mine\n"),
}


@pytest.mark.parametrize("edited", [*EDITS, "setup.sh is gone"])
def test_whatever_is_edited_in_a_run_directory_is_told_once(edited: str, fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    """By kit diff also of the rerun, and of that one's rerun: what run.json says is not what runs there, either."""
    (tmp_path / "job.yaml").write_text("name: x\nruntime: none\nsetup: echo 1\nscript: |\n  echo ü\n  python train.py\n")
    call("submit", "job.yaml", "--output", "r1", "--slurm", "dependency=afterok:1")
    assert "changed" not in call("rerun", "r1", "--output", "r2")[2] and "edited" not in run_dir.load(tmp_path / "r2")
    for run in ("r1", "r2"):
        subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "run.sha256"], cwd=run, check=True)
    name, file = edited.split()[0], tmp_path / "r2" / edited.split()[0]
    text = file.read_text()
    file.write_text(text.replace(*EDITS[name], 1))
    assert file.read_text() != text
    if edited != name:
        file.unlink()
    assert f"kit: changed since the submission: {name}; " in call("rerun", "r2", "--output", "r3")[2]
    assert "changed" not in call("rerun", "r3", "--output", "r4")[2]
    line = f"{name} was edited or removed; kit compared run.json, which was not"
    for run in ("r2", "r3", "r4"):
        assert call("diff", "r1", run)[1].partition("\nedited by hand:\n")[2] == f"  {run}: {line}\n"
    assert [call("diff", "r2", "r3")[0], call("diff", "r3", "r4")[0]] == [0, 0]
    assert [run_dir.load(tmp_path / run).get("edited", ()) for run in ("r2", "r3", "r4")] == [(), (name,), (name,)]


@pytest.mark.parametrize("typed", [["--sweep", "lr=1,2", "--", "--lr", "{lr}"], ["--array", "0-3"], ["--slurm", "dependency=afterok:1"]])
def test_what_kit_edits_itself_is_not_called_edited(typed: list[str], fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--output", "r1", *typed)
    for before, after, more in (("r1", "r2", []), ("r2", "r3", ["--task", "1"] if "--slurm" not in typed else []), ("r3", "r4", [])):
        code, _, errors = call("rerun", before, *more, "--output", after)
        assert code == 0 and "changed" not in errors
        assert "edited by hand" not in call("diff", before, after)[1]


def test_of_a_run_of_an_older_kit_nobody_knows_what_was_edited(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("submit", "train.py", "--output", "r1")
    (tmp_path / "r1/run.sha256").unlink()
    for before, after in (("r1", "r2"), ("r2", "r3")):
        with (tmp_path / before / "env.sh").open("a") as file:
            file.write("# mine\n")
        code, _, errors = call("rerun", before, "--output", after)
        assert code == 0 and "changed" not in errors and not (tmp_path / after / "run.sha256").exists()


def test_what_was_edited_by_hand_ran_elsewhere_or_is_gone_is_not_called_the_same(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    """By run.json, and by a folder that an archive has lost, the runs are equal."""
    (tmp_path / "project").mkdir()
    shutil.copy("train.py", "project")
    for run in ("r1", "r2"):
        call("submit", "train.py", "--workdir", "project", "--output", run, "--env", "LR=1")
    assert call("diff", "r1", "r2")[:2] == (0, "kit: r1 and r2 do not differ\n")
    env = (tmp_path / "r2/env.sh").read_text()
    (tmp_path / "r2/env.sh").write_text(env.replace("LR=1", "LR=5"))
    code, out, _ = call("diff", "r1", "r2")
    assert code == 1 and out.endswith("\nedited by hand:\n  r2: env.sh was edited or removed; kit compared run.json, which was not\n")
    (tmp_path / "r2/env.sh").write_text(env)
    for run, driver in (("r1", "550.90.07"), ("r2", "570.86.15")):
        event_lines.add(tmp_path / run / "log/1", "ready", "node_ready", node="n1", machine=f"Linux 5.14, NVIDIA {driver}")
        assert ("NVIDIA 550.90.07 -> Linux 5.14, NVIDIA 570.86.15" in call("diff", "r1", "r2")[1]) == (run == "r2")
    shutil.rmtree(tmp_path / "r1/log/1")
    for side, which in (("r1", "r1"), ("r2", "r1 and r2")):
        shutil.rmtree(tmp_path / side / "code")
        code, out, _ = call("diff", "r1", "r2")
        assert (code, out) == (0, f"kit: r1 and r2 do not differ, as far as is known\n  code: the copy of {which} is gone, or you cannot read it\n")


def test_a_rerun_says_which_of_its_code_is_not_as_it_was_copied(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    (tmp_path / "project/sub ü").mkdir(parents=True)
    for name in ("train.py", "sub ü/lib.py", "a\nb.py", "Icon\r", "c\u2028d.py", "\\.py"):
        (tmp_path / "project" / name).write_text(f"# {name!r}\n")
    (tmp_path / "project/link.py").symlink_to("train.py")
    (tmp_path / "project/__init__.py").touch()
    call("submit", "train.py", "--workdir", "project", "--output", "r1")
    assert subprocess.run(["sha256sum", "--check", "run.sha256"], cwd="r1").returncode == 0 and (tmp_path / "r1/run.sha256").read_text().count("  code/") == 4
    (tmp_path / "r1/code/results.txt").write_text("1\n")  # beside the program, by its __file__
    assert "changed" not in call("rerun", "r1", "--output", "r2")[2]
    (tmp_path / "r1/code/train.py").write_text("# train.py!\n")
    for name in ("sub ü/lib.py", "__init__.py"):
        (tmp_path / "r1/code" / name).unlink()
    assert "kit: changed since the submission: code/__init__.py, code/train.py, code/sub ü/lib.py; " in call("rerun", "r1", "--output", "r3")[2]
    assert run_dir.load(tmp_path / "r3")["edited"] == ("code/__init__.py", "code/train.py", "code/sub ü/lib.py")
    assert "changed" not in call("rerun", "r3", "--output", "r4")[2]
    for run in ("r1", "r3"):
        out = call("diff", "r2", run)[1]
        assert "train.py" in out and "edited by hand" not in out  # what kit compares itself


def test_a_rerun_does_not_wait_for_nodes_where_what_it_mounts_is_gone(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    on_nodes = "{source: /nvme, target: /nvme, on_nodes: true}"
    (tmp_path / "job.yaml").write_text(f"command: train.py\nruntime: none\nmounts: ['{data}:{data}', {on_nodes}]\n")
    assert call("submit", "job.yaml", "--output", "r1")[0] == call("rerun", "r1", "--output", "r2")[0] == 0
    data.rmdir()
    code, _, errors = call("rerun", "r1", "--output", "r3")
    assert code == 1 and f"kit: {data} is gone, which the run mounts\n  fix: put it back\n" in errors
    assert not (tmp_path / "r3").exists()


def test_a_rerun_leaves_out_no_node_that_was_bad_on_the_day_of_the_run(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    """sbatch refuses a job that leaves out a node which is gone."""
    noted = tmp_path / "state/kit/bad-nodes/generic"
    noted.parent.mkdir(parents=True, exist_ok=True)
    begun_s = int(time.time()) - bad_nodes.REMEMBERED_S
    noted.write_text(f"{begun_s + 3600} node3 x\n{begun_s + 7200} node5 x\n")

    def excluded(run: str) -> list[str]:
        return re.findall("^#SBATCH --exclude=(.*)$", (tmp_path / run / "run_script.sh").read_text(), re.MULTILINE)

    call("submit", "train.py", "--output", "r1")
    call("submit", "train.py", "--output", "own", "--slurm", "exclude=node[7-9]")
    assert (excluded("r1"), excluded("own")) == (["node3,node5"], ['"node[7-9],node3,node5"'])
    for hours, first, second in ((0.5, ["node3,node5"], ['"node[7-9],node3,node5"']), (1.5, ["node5"], ['"node[7-9],node5"']), (3, [], ['"node[7-9]"'])):
        with pytest.MonkeyPatch.context() as later:
            later.setattr(bad_nodes, "time", SimpleNamespace(time=lambda: time.time() + hours * 3600))
            for run, left_out in (("r1", first), ("own", second)):
                again = f"{run}-{hours}"
                assert call("rerun", run, "--output", again)[0] == 0
                assert (excluded(again), dict(recorded(tmp_path / again).header).get("exclude", "")) == (left_out, "".join(left_out).strip('"'))
    assert call("nodes", "--forget", "node3")[0] == call("rerun", "own", "--output", "used again")[0] == 0
    assert excluded("used again") == ['"node[7-9],node5"']


def test_the_status_is_shown_again_and_again_until_nothing_goes_on(fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call("submit", "train.py", "--output", "run")
    job_id = noted()["run"]
    states = ["RUNNING", "RUNNING", "COMPLETED"]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        (fake.place / "jobs").write_text(f"{job_id}|{states.pop(0)}|{int(time.time())}|{tmp_path}/run\n")

    monkeypatch.setattr("kit.cli.watch.time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    monkeypatch.delenv("KIT_FOLLOW_PERIOD_S", raising=False)
    code, out, errors = call("status", "--watch")
    assert (code, slept) == (0, [10.0] * 3), errors
    assert re.findall(rf"^{job_id}  train  (\w+)", out, re.MULTILINE) == ["PENDING", "RUNNING", "RUNNING", "COMPLETED"]


def test_a_controller_that_is_away_for_a_moment_does_not_end_the_watch(fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call("submit", "train.py", "--output", "run")
    job_id = noted()["run"]
    clock = SimpleNamespace(now_s=0.0)

    def sleep(seconds: float) -> None:
        clock.now_s += seconds
        fake.script("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1" if clock.now_s < 35 else "list")
        if clock.now_s > 45:
            (fake.place / "jobs").write_text(f"{job_id}|COMPLETED|{int(time.time())}|{tmp_path}/run\n")

    monkeypatch.setattr("kit.cli.watch.time", SimpleNamespace(sleep=sleep, monotonic=lambda: clock.now_s))
    monkeypatch.delenv("KIT_FOLLOW_PERIOD_S", raising=False)
    code, out, errors = call("status", "--watch")
    assert (code, clock.now_s) == (0, 50.0), errors
    assert errors.count("Unable to contact slurm controller") == 3
    assert re.findall(rf"^{job_id}  train  (\w+)", out, re.MULTILINE) == ["PENDING", "PENDING", "COMPLETED"]


@pytest.mark.parametrize(
    ("end_s", "silent_s", "code", "shown"),
    [
        (50, 35, 0, ["RUNNING", "UNKNOWN", "UNKNOWN", "UNKNOWN", "COMPLETED", "COMPLETED"]),
        (10, 35, 0, ["RUNNING", "UNKNOWN", "COMPLETED"]),  # then no other one is asked, and kit shows the error alone
        (10, 9999, 1, ["RUNNING", "UNKNOWN"]),
    ],
)
def test_a_cluster_that_is_silent_while_another_answers_does_not_end_the_watch(
    end_s: int, silent_s: int, code: int, shown: list[str], fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    noted_run(here, "x", 1, 1, "7", local=False)
    history.add(replace(noted_run(there, "y", 1, 1, "8", local=False), cluster="gpu2", is_member=True))
    clock = SimpleNamespace(now_s=0.0)

    def sleep(seconds: float) -> None:
        clock.now_s += seconds
        (fake.place / "jobs").write_text("")
        fake.put("7", "COMPLETED" if clock.now_s >= end_s else "RUNNING", here)
        fake.put("8", "COMPLETED", there)
        fake.script("squeue", f'[[ "${{args}}" != *gpu2* || {clock.now_s:.0f} -ge {silent_s} ]] || exit 1; list')

    fake.put("7", "RUNNING", here)
    fake.put("8", "RUNNING", there)
    monkeypatch.setattr("kit.cli.watch.time", SimpleNamespace(sleep=sleep, monotonic=lambda: clock.now_s))
    monkeypatch.delenv("KIT_FOLLOW_PERIOD_S", raising=False)
    done, out, errors = call("status", "--watch")
    assert (done, re.findall(r"^8 +y +(\w+)", out, re.MULTILINE)) == (code, shown), errors


def test_a_watch_of_a_run_of_which_nobody_here_can_know_ends(fake: ScriptedSlurm, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    history.add(replace(noted_run(tmp_path / "run", "x", 1, 1, "7", local=False), cluster="b"))
    fake.put("7", "RUNNING", tmp_path / "run")
    clock = SimpleNamespace(now_s=0.0)

    def sleep(seconds: float) -> None:
        clock.now_s += seconds
        (fake.place / "jobs").write_text("")

    monkeypatch.setattr("kit.cli.watch.time", SimpleNamespace(sleep=sleep, monotonic=lambda: clock.now_s))
    monkeypatch.delenv("KIT_FOLLOW_PERIOD_S", raising=False)
    code, out, errors = call("status", "--watch")
    assert (code, clock.now_s) == (0, 310.0) and "a job of the cluster b, and this is a: ask there" in out, errors


def test_on_a_terminal_the_screen_is_cleared_before_each_new_status(fake: ScriptedSlurm, tmp_path: Path) -> None:
    fake.put("1001", "RUNNING", tmp_path / "run")
    environment = {**os.environ, "KIT_FOLLOW_PERIOD_S": "0.1", "TERM": "xterm"}
    subprocess.run([sys.executable, "-m", "kit", "submit", "train.py", "--output", "run"], check=True, env=environment, capture_output=True)
    main, side = os.openpty()
    process = subprocess.Popen([sys.executable, "-m", "kit", "status", "--watch"], stdout=side, stderr=side, env=environment)
    os.close(side)
    seen = b""
    while seen.count(b"\x1b[H\x1b[2J") < 2:
        seen += os.read(main, 4096)
    process.kill()
    process.wait()
    os.close(main)
    assert b"?[H" not in seen


def test_a_command_that_needs_a_run_names_the_running_ones_of_this_folder(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    process, job_id = begin_here(tmp_path, "echo up; sleep 60")
    assert call("cancel") == (2, "", f"kit: no run is named\n  fix: name one: kit cancel {job_id} ({tmp_path.name})\n")
    deadline = time.monotonic() + 60
    while "its ranks have printed nothing for" not in (said := call("why")[1]) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert re.search(r"^  its ranks have printed nothing for \d+ s; where they are, if it runs: kit hang$", said, re.MULTILINE), said
    call("cancel", job_id)
    process.wait(60)
    assert call("cancel")[2] == "kit: no run is named\n  fix: no run of this folder is running; kit runs lists all\n"
    assert call("cancel", "runn")[2] == "kit: there is no run runn\n  fix: did you mean 'run'?\n"


def test_the_rank_that_is_blamed_for_a_hang_is_among_those_that_failed(call, fake: ScriptedSlurm, tmp_path: Path) -> None:
    logs = tmp_path / "runs/train/log/7"
    event_lines.add(logs, "batch", "blamed", rank=1, how="missing", problem="rank 1 was not where the others waited for it")
    event_lines.add(logs, "n1", "rank_ended", node="n1", rank=0, code=1, stopped=False)
    (logs / "rank0.out").write_text("gone\n")
    (logs / "rank1.out").write_text("step 3\n")
    noted_run(tmp_path / "runs/train", "train", 1, 2, "7", local=True)
    assert call("logs", "7", "--errors")[1] == "==> rank1.out <==\nstep 3\n==> rank0.out <==\ngone\n"
    (logs / "rank0.out").write_text("")
    said = call("logs", "7", "--errors")
    assert said == (0, "==> rank1.out <==\nstep 3\n==> rank0.out <==\n", "kit: rank 0 printed nothing\n")
    assert call("logs", "7", "--rank", "2") == (2, "", "kit: train (7) has no rank 2\n  fix: they are 0 to 1\n")
    assert call("logs", "7", "--node", "n9")[2].startswith("kit: train (7) has no log of a node n9\n")
    assert call("logs", "7", "-f")[2] == "kit: train (7) has ended: FAILED\n  fix: see: kit why 7\n"


def test_git_does_not_see_the_runs_that_have_no_place_of_their_own(fake: ScriptedSlurm, call, tmp_path: Path) -> None:
    call("render", "train.py")
    assert (tmp_path / "runs/.gitignore").read_text() == "*\n"
    (tmp_path / "mine/runs").mkdir(parents=True)
    call("render", "train.py", "--output", "mine/runs/first")
    assert not (tmp_path / "mine/runs/.gitignore").exists(), "the folder is the user's"
    assert (tmp_path / "mine/runs/first/.gitignore").read_text() == "*\n"  # TensorBoard may have made runs/ before
