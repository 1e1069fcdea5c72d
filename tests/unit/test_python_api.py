"""`import kit`: what docs/python.md says, with a Slurm that is a fake."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Callable

import kit
import pytest
from kit.cli import run_views
from kit.files import json_lines, safe_read
from kit.plan import program
from kit.remote import records
from kit.runs import history, run_dir
from kit.slurm import Unsure

import event_lines
import scripted_slurm
from far_side import Far, Slurm
from samples import ROOT, copy_of_kit

PAGE = (ROOT / "docs/python.md").read_text()


pytestmark = pytest.mark.tame


@pytest.fixture
def job(tmp_path: Path, fake_slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KIT_FOLLOW_PERIOD_S", "0.1")
    (tmp_path / "train.py").write_text("pass\n")
    (tmp_path / "job.yaml").write_text("command: train.py\nnodes: 1\nenv: {A: file, B: file}\n")
    return tmp_path / "job.yaml"


@pytest.fixture
def silent(capfd: pytest.CaptureFixture[str]) -> Callable[[], bool]:
    """Whether nothing was printed."""
    return lambda: capfd.readouterr() == ("", "")


def ends(slurm: Slurm, run: kit.RunHandle, state: str, rank0: str = "") -> None:
    """What Slurm and the batch script of a job would write at its end."""
    slurm.job(run.id, state, folder=str(run.folder))
    logs = run.folder / "log" / run.id
    logs.mkdir(parents=True)
    (logs / "rank0.out").write_text(rank0)
    (logs / "node1.out").write_text(rank0)
    said = "all ranks ended well" if state == "COMPLETED" else "error: node1: rank 0 (local rank 0) exited with code 1; the end of log/rank0.out:"
    (run.folder / f"log/slurm-{run.id}.out").write_text(f"kit: {said}\n")
    if state != "COMPLETED":
        event_lines.add(logs, "node1", "rank_ended", node="node1", rank=0, local_rank=0, code=1, stopped=False)
        event_lines.add(logs, "batch", "ends", node="node1", code=1)


@pytest.mark.filterwarnings("ignore:.*is not checked against the cluster")
def test_a_program_keeps_its_secrets_for_the_next_submission_and_sbatch_has_none(job: Path, monkeypatch: pytest.MonkeyPatch, silent) -> None:
    slurm = scripted_slurm.ScriptedSlurm(job.parent / "scripted", job.parent / "of_script")
    slurm.script("sbatch", f"env >>{job.parent}/environment; echo 77")
    monkeypatch.setenv("PATH", slurm.path)
    monkeypatch.setenv("MINE", "my-own-value")
    for number in (1, 2):
        run = kit.submit("job.yaml", secrets=["MINE"], output=job.parent / f"run{number}")
        assert (run.folder / ".secrets/values").read_bytes() == b"MINE=my-own-value\0"
    assert os.environ["MINE"] == "my-own-value"
    said = (job.parent / "environment").read_text()
    assert said.count("PATH=") >= 2 and "my-own-value" not in said
    assert silent()


def test_a_job_is_submitted_followed_and_explained(job: Path, fake_slurm: Slurm, silent) -> None:
    run = kit.submit("job.yaml", ["--lr", "1"], nodes=4, env={"A": "call"}, output=job.parent / "run")
    assert (run.id, run.name, run.folder) == ("1001", job.parent.name, job.parent / "run")
    plan = run_dir.load(run.folder)["plan"]
    assert plan.layout.nodes == 4 and {("A", "call"), ("B", "file")} <= set(plan.program.env)
    assert plan.program.command[-2:] == ("--lr", "1")
    assert run.status.state == "PENDING" and run.status.active
    with pytest.raises(kit.TimedOut, match=r"\(1001\) goes on after 0.01 s"):
        run.wait(timeout_s=0.01)
    ends(fake_slurm, run, "FAILED", 'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\nValueError: no\n')
    assert run.wait().state == "FAILED"
    why = run.why()
    assert (why.rank, why.node, why.cause) == (0, "node1", "exception") and "ValueError: no" in str(why)
    assert run.logs(rank=0).endswith("ValueError: no\n") and run.logs(node="node1") == run.logs(errors=True)
    assert run.logs(rank=0, tail=1) == "ValueError: no\n" and run.logs(rank=0, tail=0) == ""
    with pytest.raises(kit.UsageError, match=r"tail: expected a number of lines, not -1\n  fix: leave it out for all of them"):
        run.logs(rank=0, tail=-1)
    assert kit.find().id == kit.find("1001").id == kit.find(1001).id == kit.find(run.folder).id == "1001"
    assert silent()


def test_a_status_has_all_that_its_json_has(job: Path, fake_slurm: Slurm) -> None:
    run = kit.submit("job.yaml", gpus_per_node=2)
    event_lines.add(run.folder / "log" / run.id, "batch", "start", nodes="node[1-2]")
    event_lines.add(run.folder / "log" / run.id, "batch", "ends", 1_700_003_600.0, code=3)
    fake_slurm.job(run.id, "FAILED", folder=str(run.folder))
    status = run.wait()
    assert (status.nodes, status.exit_code, status.gpu_hours) == ("node[1-2]", 3, 4.0)
    facts = {name: value for name, value in run_views.status_json(status).items() if name not in run_views.run_json(status.run)}
    assert {name: getattr(status, name) for name in facts} == facts
    (line,) = (line for line in PAGE.splitlines() if line.startswith("| `run.status` |"))
    assert {*facts, "tasks"} == set(re.findall(r"`(\w+)`", line))


def test_a_long_log_is_read_whole_and_one_that_cannot_be_read_is_named(job: Path, fake_slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    run = kit.submit("job.yaml")
    ends(fake_slurm, run, "COMPLETED")
    log = run.folder / f"log/{run.id}/rank0.out"
    os.truncate(log, 65 << 20)
    assert len(run.logs(rank=0)) == 65 << 20

    opened = safe_read.opened

    def refuse(path: str | Path) -> IO[bytes]:  # what the log's mode does to all but root
        if Path(path) == log:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path)

    monkeypatch.setattr(safe_read, "opened", refuse)
    with pytest.raises(kit.KitError, match=f"the log {log} cannot be read: Permission denied\n  fix: look at it: ls -l {log}"):
        run.logs(rank=0)


def test_a_run_is_cancelled_and_only_that_one(job: Path, fake_slurm: Slurm, silent) -> None:
    first, second = kit.submit(job, name="a"), kit.submit(job, name="b")
    first.cancel()
    assert fake_slurm.states() == {first.id: "CANCELLED", second.id: "PENDING"}
    assert first.wait().state == "CANCELLED" and silent()


def test_jobs_wait_for_others_and_tasks_of_an_array_are_found(job: Path, fake_slurm: Slurm) -> None:
    first = kit.submit(job)
    kit.submit(job, after=[f"any:{first.id}"], name="b")
    assert f"--dependency=afterany:{first.id}" in fake_slurm.calls("sbatch")[-1]
    array = kit.submit("train.py", ["{lr}"], sweep={"lr": [0.1, 0.2]})
    for number, state in enumerate(("COMPLETED", "FAILED")):
        fake_slurm.job(f"{array.id}_{number}", state, folder=str(array.folder))
    assert [kit.find(array.id, task=number).wait().state for number in (0, 1)] == ["COMPLETED", "FAILED"]
    assert kit.find(f"{array.id}_1").task == 1
    assert {run.id for run in history.runs()} >= {array.id} and f"{array.id}_1" not in {run.id for run in history.runs()}
    assert [task.state for task in array.wait().tasks] == ["COMPLETED", "FAILED"]


def test_all_methods_mean_the_same_job_of_an_array_that_a_user_submitted_again(job: Path, fake_slurm: Slurm) -> None:
    array = kit.submit("train.py", ["{lr}"], sweep={"lr": [0.1, 0.2]}, on_preempt="checkpoint")
    first, second = (kit.find(array.id, task=number) for number in (0, 1))
    log = array.folder / "log"
    for number in (0, 1):
        (log / f"{array.id}_{number}").mkdir()
        (log / f"slurm-{array.id}_{number}.out").write_text("said before\n")
        fake_slurm.job(f"{array.id}_{number}", "FAILED", folder=str(array.folder))
    assert array.wait().state == "FAILED"
    later = f"{int(array.id) + 8}_1"  # sbatch --array=1 run_script.sh
    (log / later).mkdir()
    (log / f"slurm-{later}.out").write_text("said by the later job\n")
    fake_slurm.job(later, "RUNNING", folder=str(array.folder))
    newer = kit.find(array.name, task=1)
    for task, state, said, job_id in ((second, "FAILED", "said before\n", f"{array.id}_1"), (newer, "RUNNING", "said by the later job\n", later)):
        assert (task.status.state, task.logs(), task.why().run.id) == (state, said, job_id)
    for ask, request in ((newer.checkpoint, "checkpoint\n"), (newer.stop, "stop\n")):
        ask()
        assert (log / later / "request").read_text() == request
    with pytest.raises(kit.KitError, match="is not running"):
        second.stop()
    second.cancel()
    assert fake_slurm.states()[later] == "RUNNING"
    newer.cancel()
    assert fake_slurm.states()[later] == "CANCELLED"
    assert first.status.state == "FAILED"
    with pytest.raises(kit.KitError, match="has no task 0\n  fix: its tasks are 1"):
        kit.find(array.name, task=0)


def ended(fake: scripted_slurm.ScriptedSlurm, folder: Path, state: str) -> kit.RunHandle:
    """A run that has ended, and whose job Slurm has forgotten since."""
    run = kit.submit("train.py", output=folder)
    jobs = folder.parent / "slurm/jobs"
    jobs.write_text("")
    fake.put(run.id, state, run.folder)
    assert run.wait().state == state
    jobs.write_text("")
    return run


def test_a_number_that_another_run_has_too_harms_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another cluster has the same numbers, and where slurmctld has lost its state they begin again."""
    fake = scripted_slurm.around(tmp_path, monkeypatch)
    first = ended(fake, tmp_path / "first", "FAILED")
    (tmp_path / "slurm/next").write_text(f"{first.id}\n")
    second = kit.submit("train.py", output=tmp_path / "second")
    assert second.id == first.id and first.why().run.folder == str(first.folder)
    first.cancel()
    assert second.status.state == "PENDING" and not fake.calls("scancel")


def test_a_job_that_was_cancelled_before_it_began_is_not_the_one_that_a_user_submitted_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = scripted_slurm.around(tmp_path, monkeypatch)
    run = ended(fake, tmp_path / "run", "CANCELLED")
    fake.put("1002", "RUNNING", run.folder)  # sbatch run_script.sh
    (run.folder / "log/1002").mkdir()
    (run.folder / "log/slurm-1002.out").touch()
    assert (kit.find("run").id, kit.find(run.id).status.state, run.status.state) == ("1002", "CANCELLED", "CANCELLED")
    run.cancel()
    assert fake.jobs()["1002"][0] == "RUNNING"


def test_a_lost_answer_is_not_a_second_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = scripted_slurm.around(tmp_path, monkeypatch)
    fake.script("sbatch", "take; exit 1")
    fake.script("squeue", "exit 1")
    with pytest.raises(Unsure):
        kit.submit("train.py", nodes=2)
    fake.script("sbatch", "")
    fake.script("squeue", "")
    assert kit.submit("train.py", nodes=3).id == "1002"  # another call
    with pytest.warns(kit.KitWarning, match="did submit job 1001, .* what you have changed since is not in it"):
        assert kit.submit("train.py", nodes=2).id == "1001"
    assert list(fake.jobs()) == ["1001", "1002"]


def test_a_lost_answer_is_not_that_of_the_same_job_in_another_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop submits one job for each of its folders, and goes on to the next one after an error."""
    fake = scripted_slurm.around(tmp_path, monkeypatch)
    fake.script("sbatch", "take; exit 1")
    fake.script("squeue", "exit 1")
    with pytest.raises(Unsure):
        kit.submit("train.py", output="first")
    fake.script("sbatch", "")
    fake.script("squeue", "")
    second = kit.submit("train.py", output="second")
    assert (second.id, second.folder) == ("1002", tmp_path / "second")
    with pytest.warns(kit.KitWarning, match="did submit job 1001"):
        assert kit.submit("train.py", output="first").folder == tmp_path / "first"


def test_a_lost_answer_is_told_by_the_values_and_not_by_how_python_prints_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator is printed with its address, and a large array of NumPy without its middle."""
    fake = scripted_slurm.around(tmp_path, monkeypatch)

    class Shortened(list):  # type: ignore[type-arg]
        def __repr__(self) -> str:
            return "[0, ...]"

    fake.script("sbatch", "take; exit 1")
    fake.script("squeue", "exit 1")
    for sweep in ({"lr": (each / 10 for each in range(3))}, {"seed": Shortened([0, 1])}):
        with pytest.raises(Unsure):
            kit.submit("train.py", ["{" + next(iter(sweep)) + "}"], sweep=sweep, name="a")
    fake.script("sbatch", "")
    fake.script("squeue", "")
    assert kit.submit("train.py", ["{seed}"], sweep={"seed": Shortened([0, 2])}, name="a").id == "1003"
    with pytest.warns(kit.KitWarning, match="did submit job 1001"):
        assert kit.submit("train.py", ["{lr}"], sweep={"lr": (each / 10 for each in range(3))}, name="a").id == "1001"


def test_a_call_that_the_programs_own_time_limit_cuts_off_is_not_a_second_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Airflow and pytest-timeout limit a task: by a signal whose handler raises. The program lives on, and tries once more."""
    fake = scripted_slurm.around(tmp_path, monkeypatch)

    def give_up(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    try:
        fake.script("sbatch", 'take; kill -ALRM "${PPID}"; exec sleep 60')
        with pytest.raises(TimeoutError):
            kit.submit("train.py", nodes=2)
    finally:
        signal.signal(signal.SIGALRM, before)
    fake.script("sbatch", "")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning in the place of the answer, and the next call would submit it again
        assert kit.submit("train.py", nodes=2).id == "1001"
    assert list(fake.jobs()) == ["1001"]


def test_a_full_disk_after_sbatch_is_no_error_either_where_warnings_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_slurm.around(tmp_path, monkeypatch)
    append = json_lines.append

    def append_none_with_a_job(file: Path, facts: dict[str, object]) -> None:
        if facts.get("id"):
            raise OSError(28, "No space left on device")
        append(file, facts)

    monkeypatch.setattr(json_lines, "append", append_none_with_a_job)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*is not checked against the cluster")
        assert kit.submit("train.py", nodes=2).id == "1001"


def test_a_program_that_a_signal_ended_finds_its_job_when_it_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As timeout and a service's manager end it. It had no time to say which job there is."""
    fake = scripted_slurm.around(tmp_path, monkeypatch)
    program = [sys.executable, "-W", "ignore", "-c", "import kit; print(kit.submit('train.py', nodes=2).id)"]
    fake.script("sbatch", 'take; kill -TERM "${PPID}"; sleep 1; echo "${id}"')
    assert subprocess.run(program).returncode == -signal.SIGTERM
    fake.script("sbatch", "")
    assert subprocess.run(program, capture_output=True, text=True).stdout == "1001\n"
    assert list(fake.jobs()) == ["1001"]


@pytest.mark.filterwarnings("ignore:.*sbatch has been asked")
def test_a_job_is_named_whose_submission_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by the button of a notebook, whose user knows of no job then."""
    fake = scripted_slurm.around(tmp_path, monkeypatch)
    fake.script("sbatch", 'take; kill -INT "${PPID}"; echo "${id}"')
    with pytest.warns(kit.KitWarning, match="submitted job 1001 before that; to end it: kit cancel 1001"), pytest.raises(KeyboardInterrupt):
        kit.submit("train.py")
    assert kit.find().id == "1001"


def test_a_handler_that_was_not_installed_from_python_is_left_alone(job: Path, fake_slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of R, which calls Python: Python cannot name it, nor put it back."""
    calls: list[int] = []

    def install(number: int, handler: object) -> object:
        calls.append(number)
        return None if number == signal.SIGINT else print

    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGINT else print)
    monkeypatch.setattr(signal, "signal", install)
    assert kit.submit(job).id == "1001"
    assert set(calls) == {signal.SIGTERM, signal.SIGHUP}


def test_a_job_is_loaded_and_rendered_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    loaded = kit.load("train.py", nodes="2-4", mounts=["/data:/d:ro"], remap_root=True, image=None)
    assert (str(loaded.nodes), loaded.mounts[0].target, loaded.remap_root, loaded.image) == ("2-4", "/d", True, None)
    folder = kit.render("train.py", output="made", processes_per_node=2)
    assert folder == tmp_path / "made" and (folder / "run_script.sh").is_file()
    assert not history.runs() or folder.name not in {run.name for run in history.runs()}
    assert silent()


def test_threads_that_call_at_one_moment_get_a_folder_each(job: Path, monkeypatch: pytest.MonkeyPatch, silent) -> None:
    """As ThreadPoolExecutor.map in a notebook: all have chosen a folder before the first of them is there."""
    all_have_chosen, write = threading.Barrier(3, timeout=60), run_dir.write

    def write_together(plan: object) -> Path:
        all_have_chosen.wait()
        return write(plan)

    monkeypatch.setattr(run_dir, "write", write_together)
    with ThreadPoolExecutor(3) as pool:
        folders = list(pool.map(lambda nodes: kit.render("job.yaml", name="lr", nodes=nodes), (1, 2, 3)))
        assert [run_dir.load(folder)["plan"].layout.nodes for folder in folders] == [1, 2, 3]
        of_one_folder = [pool.submit(kit.render, "job.yaml", output="one") for _ in range(3)]
    problems = [str(error) for call in of_one_folder if (error := call.exception())]
    assert problems == [f"kit: {job.parent}/one already exists\n  fix: name another folder, or remove it"] * 2
    assert silent()


def test_threads_that_check_programs_leave_the_callers_filter_of_warnings(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python keeps one filter for all threads: who left last would put back the one that ignores all."""
    first_is_in, second_is_in, first_has_ended = threading.Event(), threading.Event(), threading.Event()

    def compile_slowly(_source: bytes, path: str, *_words: object, **_options: object) -> None:
        mine, other = (first_is_in, second_is_in) if path.endswith("first.py") else (second_is_in, first_has_ended)
        mine.set()
        other.wait(2)
        warnings.warn("invalid escape sequence", SyntaxWarning, stacklevel=1)

    monkeypatch.setattr(program, "compile", compile_slowly, raising=False)
    (job.parent / "first.py").touch()
    with warnings.catch_warnings(), ThreadPoolExecutor(2) as pool:
        warnings.simplefilter("error")
        before = list(warnings.filters)
        first = pool.submit(kit.render, "job.yaml", output="one", command="first.py")
        assert first_is_in.wait(60)
        second = pool.submit(kit.render, "job.yaml", output="two")
        first.result()
        first_has_ended.set()
        second.result()
        assert warnings.filters == before


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"nodse": 2}, "kit: kit.load(): unknown key 'nodse'\n  fix: did you mean 'nodes'?"),
        ({"nodes": "many"}, "kit: kit.load(): nodes: expected a whole number of at least 1, not 'many'\n  fix: write a plain number"),
        ({"env": 3}, "kit: kit.load(): "),
    ],
)
def test_wrong_values_are_refused_with_a_fix(keys: dict[str, object], message: str, job: Path, silent) -> None:
    with pytest.raises(kit.UsageError) as caught:
        kit.load("job.yaml", **keys)
    assert str(caught.value).startswith(message)
    with pytest.raises(kit.KitError):
        kit.submit("job.yaml", **keys)
    assert silent()


def test_a_key_of_a_call_wins_over_an_alternative_in_the_file(job: Path) -> None:
    """As an option does: sbatch takes one of --mem and --mem-per-cpu."""
    job.write_text("command: train.py\nslurm: {mem-per-cpu: 4G}\n")
    script = (kit.render(job, slurm={"mem": "10G"}) / "run_script.sh").read_text()
    assert "#SBATCH --mem=10G\n" in script and "--mem-per-cpu" not in script


def test_an_image_of_a_call_is_judged_as_that_of_an_option(job: Path, silent) -> None:
    with pytest.raises(kit.KitError, match=r"'pytorch:2.1' looks like an image of a registry, and a job runs files\n.*--name pytorch"):
        kit.render(job, image="pytorch:2.1")
    job.write_text("command: train.py\nimage: a.sif\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kit.render(job, runtime="none")  # a rehearsal
    assert silent()


def test_a_list_may_be_anything_that_python_goes_through() -> None:
    """As numpy.logspace, whose text as a single value would have been a task of its own."""
    same = ({"seed": range(3), "lr": {0.1: "", 0.2: ""}.keys()}, {"seed": [0, 1, 2], "lr": [0.1, 0.2]})
    found, listed = (kit.load("train.py", ["{seed}", "{lr}"], sweep=sweep).sweep for sweep in same)
    assert found == listed


def test_a_set_has_the_same_order_in_each_process() -> None:
    """Or task 3 of a sweep is another one after a restart of the program, and the same call seems to be another."""
    names = [f"run{number}" for number in range(20)]
    for given in (set(names), frozenset(names)):
        found = kit.load("train.py", ["{name}"], sweep={"name": given}).sweep
        assert found == kit.load("train.py", ["{name}"], sweep={"name": sorted(names)}).sweep


def test_a_tensor_is_the_list_of_its_numbers() -> None:
    """As torch.arange(2), whose items are tensors that have none, and whose text is tensor(0)."""

    class Scalar:
        shape = ()

        def __iter__(self) -> object:
            raise TypeError("iteration over a 0-d tensor")

        def item(self) -> int:
            return 2

    found, listed = (kit.load("train.py", ["{seed}"], sweep={"seed": [each]}, nodes=each) for each in (Scalar(), 2))
    assert (found.sweep, found.nodes) == (listed.sweep, listed.nodes)


def test_the_bytes_of_a_program_are_its_text() -> None:
    """As of subprocess.check_output, which would have been the text b'3f2a' for the ranks."""
    job = kit.load("train.py", [b"--rev", bytearray(b"3f2a")], env={b"REV": b"3f2a \xff"}, name=b"first")
    assert (job.command, dict(job.env), job.name) == (("train.py", "--rev", "3f2a"), {"REV": os.fsdecode(b"3f2a \xff")}, "first")
    with pytest.raises(kit.UsageError, match="arguments: expected a list, not b'--lr 1'"):
        kit.load("train.py", b"--lr 1")  # its items are numbers


def test_an_error_comes_out_of_a_pool_of_processes(job: Path, fake_slurm: Slurm) -> None:
    """Its parent makes it anew, and would wait for ever, or lose all other answers, where that fails."""
    array = kit.submit("train.py", ["{lr}"], sweep={"lr": [0.1, 0.2]})
    with pytest.raises(kit.KitError) as caught:
        array.why()
    assert str(caught.value).startswith(f"kit: train ({array.id}) is an array\n  fix: name one of its tasks")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.exit_code) == (str(caught.value), 2)


def test_the_words_of_a_list_may_be_numbers_and_one_text_is_no_list(job: Path, fake_slurm: Slurm) -> None:
    """Python would take the text for the list of its letters, and each would be an argument of the program."""
    assert kit.load("train.py", ["--lr", 0.1]).command == ("train.py", "--lr", "0.1")
    with pytest.raises(kit.UsageError) as caught:
        kit.load("train.py", "--lr 0.1")
    assert str(caught.value) == "kit: kit.load(): arguments: expected a list, not '--lr 0.1'\n  fix: write arguments=['--lr', '0.1']"
    first = kit.submit(job)
    with pytest.raises(kit.UsageError, match=f"after: expected a list, not '{first.id}'"):
        kit.submit(job, after=first.id)
    assert len(fake_slurm.calls("sbatch")) == 1


def test_what_a_user_should_know_is_a_warning_of_pythons(job: Path, silent) -> None:
    with pytest.warns(kit.KitWarning, match="processes_per_node"):
        kit.render(job, processes_per_node=4, gpus_per_node=2, output="x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kit.render(job, output="y")
    assert silent()


def test_code_that_is_live_is_named_as_by_the_command(job: Path, silent) -> None:
    (job.parent / "run.sh").write_text("python train.py\n")
    with pytest.warns(kit.KitWarning, match="^kit: run.sh is a snapshot, but the train.py that it names is live: "):
        kit.render(job, command=["bash", "run.sh"])
    with pytest.warns(kit.KitWarning, match="^kit: the code is live: the command names no file of the working directory$"):
        kit.render(job, command="hostname")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kit.render(job, command="hostname", code="live")
    assert silent()


@pytest.mark.parametrize("stderr", [None, SimpleNamespace(write=len, flush=bool)], ids=["closed", "a logger"])
def test_a_program_may_have_no_stderr_or_put_a_logger_in_its_place(stderr: object, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = job.with_name("image.sif")
    image.write_bytes(b"an image")
    sha256 = "0f2a3ae33b6f98ffc3de5e2f1a2b5cf0a4b5ae8d7a2c7e5d1a0f3cbd4e5f6a7b"
    image.with_suffix(".json").write_text(json.dumps({"file": "image.sif", "sha256": sha256, "size": 8}))
    monkeypatch.setattr(sys, "stderr", stderr)
    with pytest.raises(kit.KitError, match="is not the file that was built"):  # it was read for that
        kit.render(job, image=str(image), runtime="apptainer")


def test_a_cluster_elsewhere_is_refused(far: Far, silent) -> None:
    Path("train.py").touch()
    with pytest.raises(kit.KitError, match="far is a cluster elsewhere"):
        kit.submit("train.py", cluster="far")
    assert not Path("runs").exists() and silent()
    records.add(records.Record("far", os.getcwd(), "/far/x", "77", "x"))
    for word in ("77", None):
        with pytest.raises(kit.KitError, match="far is a cluster elsewhere"):
            kit.find(word)


def test_a_run_of_kit_run_is_found_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('loss', 0.5)\nraise SystemExit(3)\n")
    done = subprocess.run([sys.executable, "-m", "kit", "run", "train.py", "--launcher", "srun"], capture_output=True)
    assert done.returncode == 3
    run = kit.find()
    assert run.wait().state == "FAILED" and "loss 0.5" in run.logs(rank=0)
    assert run.why().outcome == "exit code 3"


def test_importing_kit_loads_next_to_nothing_and_names_what_it_has() -> None:
    program = "import sys; before = set(sys.modules); import kit; print(sorted(set(sys.modules) - before)); print(kit.__all__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded, names = done.stdout.splitlines()
    assert re.findall(r"\bkit\b[\w.]*", loaded) == ["kit"] and "typing" not in loaded
    for name in ("submit", "find", "load", "render", "KitError", "KitWarning", "TimedOut"):
        assert f"'{name}'" in names and re.search(rf"\bkit\.{name}\b", PAGE), name
    with pytest.raises(AttributeError):
        kit.nothing


def test_the_types_are_those_of_the_functions() -> None:
    stub = (ROOT / "launch/kit/__init__.pyi").read_text()
    assert set(re.findall(r" as (\w+)$", stub, re.MULTILINE)) == set(kit.__all__)
    assert (ROOT / "launch/kit/py.typed").exists()


def test_the_documented_notebook_runs(job: Path, fake_slurm: Slurm, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    wait = kit.RunHandle.wait

    def wait_for_an_end(run: kit.RunHandle, timeout_s: float | None = None) -> object:
        lr = float(run.name[3:]) if run.name.startswith("lr-") else 1.0
        ends(fake_slurm, run, "COMPLETED", f"step 9\nloss {lr / 2}\n")
        return wait(run, timeout_s)

    monkeypatch.setattr(kit.RunHandle, "wait", wait_for_an_end)
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 2
    for text in examples:
        exec(text, {"__name__": "notebook"})
    said = capfd.readouterr().out
    assert said.startswith("1001 PENDING\n") and re.search(r"^the best of 3: 0.1, \S+/runs/lr-0.1-", said, re.MULTILINE)
    assert json.loads((job.parent / "runs").joinpath(sorted(os.listdir("runs"))[-1], "run.json").read_text())["invocation"][0] == "kit.submit"


def test_a_program_that_has_loaded_kit_before_an_upgrade_is_told_to_start_again(tmp_path: Path) -> None:
    """Its Python is the old one, and the scripts on the disk are new."""
    launch = copy_of_kit(tmp_path)
    (tmp_path / "train.py").touch()
    file = launch / "kit/base/assets.py"
    program = f"""
import kit, pathlib, shutil
kit.render("train.py", runtime="none")
file = pathlib.Path({str(file)!r})
content = file.read_text()
shutil.copy2(file, file.with_name("copy"))
file.with_name("copy").replace(file)  # its inode alone is another one, as now and then on FUSE
kit.render("train.py", runtime="none")
file.unlink()
file.write_text(content)
try:
    kit.render("train.py", runtime="none")
except kit.KitError as error:
    print(error.problem)
"""
    env = {**os.environ, "PYTHONPATH": str(launch), "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("kit was upgraded after this program had loaded it"), done.stderr
