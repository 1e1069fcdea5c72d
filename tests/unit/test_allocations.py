"""kit shell, kit exec and kit images gc on nodes, with a fake Slurm; tests/cluster/test_shell.py has the real one."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from kit.api.job_request import JobRequest, Use
from kit.base.errors import KitError, UsageError
from kit.cli import entry, image_commands, messages
from kit.config import sbatch_options
from kit.config.notify import Notify
from kit.config.yaml_source import Located
from kit.images import gc as image_gc
from kit.images import inventory
from kit.plan.plan import Plan
from kit.runs import execute, history, lookup, shell, status
from kit.runs.history import Run

import event_lines
from far_side import Slurm
from plans import changed, noted_run

pytestmark = pytest.mark.tame


def plan_of(tmp_path: Path, **more: str) -> Plan:
    """Of a job that needs nothing."""
    from kit.base.errors import Problems
    from kit.config import job_file
    from kit.config.yaml_source import Located
    from kit.plan import resolve as plan

    problems = Problems()
    given = {name: Located(value, "test") for name, value in {"name": "x", "launcher": "srun", "runtime": "none", **more}.items()}
    return plan.resolve(job_file.load("true", given, [], problems), str(tmp_path / "run"), problems, "live")


@pytest.fixture
def allocated(tmp_path: Path, fake_slurm: Slurm) -> shell.Allocated:
    run = tmp_path / "run"
    (run / "log").mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"kit": "0.1.0", "plan": {}}))
    return shell.Allocated(plan_of(tmp_path), run, None, messages.note)


@pytest.fixture
def local(tmp_path: Path, fake_slurm: Slurm) -> shell.Local:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    return shell.Local(plan_of(tmp_path), run, None, messages.note)


# ---------------------------------------------------------------- a shell's end


@pytest.mark.parametrize(
    ("script", "code", "state"), [("exit 0", 0, "COMPLETED"), ("exit 7", 7, "FAILED"), ("kill -TERM $$", 143, "FAILED"), ("kill -9 $$", 137, "FAILED")]
)
def test_a_shell_here_ends_with_its_code_or_that_of_its_signal(script: str, code: int, state: str, local: shell.Local) -> None:
    assert local.until_the_end(["bash", "-c", script]) == code
    (run,) = history.runs()
    assert (run.state, run.why, run.local) == (state, f"exit code {code}" if code else "", True)
    assert json.loads((local.run / "run.json").read_text())["pid"] == os.getpid()


def test_a_closed_terminal_ends_the_shell_and_kits_own_signals_are_as_before(local: shell.Local) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)]
    assert local.until_the_end(["bash", "-c", 'trap "exit 3" HUP; kill -INT $PPID; kill -TERM $PPID; sleep 30 & wait']) == 129
    assert history.runs()[0].state == "CANCELLED"
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)] == before


@pytest.mark.parametrize(("script", "code", "state"), [("exit 0", 0, "COMPLETED"), ("exit 7", 7, "FAILED")])
def test_a_shell_on_nodes_gives_them_back_and_is_noted(script: str, code: int, state: str, allocated: shell.Allocated, fake_slurm: Slurm) -> None:
    assert allocated.until_the_end(["bash", "-c", script]) == code
    (run,) = history.runs()
    assert (run.id, run.state, run.local) == ("1001", state, False)
    assert fake_slurm.calls("salloc")[0].startswith("--quiet --job-name=x --")
    assert not [option for option in sbatch_options.OF_BATCH if f"--{option}" in fake_slurm.calls("salloc")[0]]


def test_a_shell_on_another_cluster_is_noted_with_it(allocated: shell.Allocated, fake_slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "gpu2")
    assert allocated.until_the_end(["sleep", "1"]) == 0
    assert [(run.id, run.asked_of) for run in history.runs()] == [("1001", "gpu2")]
    assert {line.split()[0] for line in fake_slurm.calls("squeue")} == {"--clusters=gpu2"}


def test_the_variables_by_which_sbatch_finds_a_jobs_place_hold_for_a_shell_too(tmp_path: Path, allocated: shell.Allocated, monkeypatch) -> None:
    """salloc reads others, which win where the user has them."""
    allocated.plan = plan_of(tmp_path, nodes="1", time="10")
    for name in ("SBATCH_ACCOUNT", "SBATCH_PARTITION", "SALLOC_PARTITION", "SBATCH_TIMELIMIT", "SBATCH_CLUSTERS", "SBATCH_DEBUG"):
        monkeypatch.setenv(name, name)
    assert allocated.until_the_end(["bash", "-c", f"compgen -v SALLOC_ | while read -r name; do echo $name=${{!name}}; done >{tmp_path}/told"]) == 0
    assert (tmp_path / "told").read_text().split() == ["SALLOC_ACCOUNT=SBATCH_ACCOUNT", "SALLOC_PARTITION=SALLOC_PARTITION"]


def test_a_shell_of_a_task_has_its_number(tmp_path: Path, allocated: shell.Allocated) -> None:
    allocated.task = 4
    assert allocated.until_the_end(["bash", "-c", f'echo "${{SLURM_ARRAY_TASK_ID}}" >{tmp_path}/told']) == 0
    assert (tmp_path / "told").read_text() == "4\n"


def test_what_salloc_refuses_leaves_nothing(allocated: shell.Allocated, fake_slurm: Slurm) -> None:
    fake_slurm.says("salloc", "salloc: error: invalid partition\n")
    (allocated.run / "shell.sh").touch()  # as each shell has it
    with pytest.raises(KitError, match="there is no allocation\n  fix: what salloc says is above"):
        allocated.until_the_end(["true"])
    assert not allocated.run.exists() and history.runs() == []


def test_a_shell_asks_for_nothing_that_only_sbatch_has_and_waits_for_nothing_that_is_not_typed(fake_slurm: Slurm, tmp_path: Path, kit_here) -> None:
    of_sbatch = "kill-on-invalid-dep: 'yes', batch: haswell, propagate: STACK, get-user-env: true"
    waits = "dependency: 'afterok:7', begin: 'now+1hour', hold: true"
    (tmp_path / "job.yaml").write_text(f"command: [bash, -c, 'true']\nslurm: {{account: me, {of_sbatch}, {waits}}}\n")
    for typed in ((), ("--slurm", "begin=now+5")):
        fake_slurm.says("salloc", "salloc: error: invalid partition\n")
        assert "there is no allocation" in kit_here("shell", "--runtime", "none", *typed).err
    asked = [re.sub("--(job-name|chdir)=.*? ", "", line.partition(" bash ")[0]) for line in fake_slurm.calls("salloc")]
    expected = "--quiet --nodes=1 --ntasks-per-node=1 --cpus-per-task=1 --account=me"
    assert asked == [expected, f"{expected} --begin=now+5"]


def test_a_job_that_slurm_ended_says_so_with_the_shells_code(allocated: shell.Allocated, fake_slurm: Slurm) -> None:
    jobs = fake_slurm.folder / "jobs"
    with pytest.raises(KitError, match="job 1001 was ended by Slurm: TIMEOUT\n  fix: ask for more time: --time") as error:
        allocated.until_the_end(["bash", "-c", f"printf '%s\\n' TIMEOUT None 0:0 node1 {allocated.run} >{jobs}/1001; chmod a-w {jobs}/1001; kill -9 $PPID"])
    assert error.value.exit_code == 137 and history.runs()[0].state == "TIMEOUT"


@pytest.mark.parametrize(
    ("state", "hung_up", "ends"),
    [("CANCELLED", False, "CANCELLED"), ("FAILED", False, "FAILED"), (None, False, "FAILED"), ("RUNNING", True, "CANCELLED")],
)
def test_slurms_word_for_the_end_is_noted(state: str | None, hung_up: bool, ends: str, allocated: shell.Allocated, fake_slurm: Slurm) -> None:
    allocated.note("5")
    allocated.hung_up = hung_up
    if state:
        fake_slurm.job("5", state, folder=str(allocated.run))
    assert allocated._state(1) == ends
    assert allocated._state(0) == ("CANCELLED" if hung_up else "COMPLETED")


def test_who_waits_is_told_why_once_and_that_the_job_goes_on_is_noted(allocated: shell.Allocated, fake_slurm: Slurm, monkeypatch, capfd) -> None:
    monkeypatch.setattr(shell, "PERIOD_S", 0.02)
    folder = str(allocated.run)
    fake_slurm.job("1", folder="/elsewhere")
    steps = [("PENDING", "Priority"), ("PENDING", "Priority"), ("RESV_DEL_HOLD", "ReservationDeleted"), ("PENDING", "Resources")]
    steps += [("CONFIGURING", "None"), ("RUNNING", "None")]
    seen = []
    original = allocated._job

    def next_step():
        if len(seen) == 1:
            fake_slurm.answers(False)
            assert original() == ("", None)
            fake_slurm.answers(True)
        state, reason = steps[min(len(seen), len(steps) - 1)]
        fake_slurm.job("7", state, reason, folder=folder)
        seen.append(state)
        return original()

    monkeypatch.setattr(allocated, "_job", next_step)
    process = subprocess.Popen(["sleep", "60"])
    try:
        allocated.watch(process)
    finally:
        process.kill()
        process.wait()
    assert [line.partition(": ")[2] for line in capfd.readouterr().err.splitlines()] == [
        "job 7 waits: Priority: jobs of higher priority are before it; Ctrl-C gives up",
        "job 7 waits: ReservationDeleted; Ctrl-C gives up",
        "job 7 waits: Resources: it is next, and waits for nodes to get free; Ctrl-C gives up",
        "job 7 waits: its nodes are being started; Ctrl-C gives up",
    ]
    assert seen == [state for state, _ in steps] and [(run.id, run.folder) for run in history.runs()] == [("7", folder)]


def test_the_job_of_an_earlier_shell_in_the_same_folder_which_is_over_is_not_its_own(allocated: shell.Allocated, fake_slurm: Slurm) -> None:
    fake_slurm.job("7", "CANCELLED", folder=str(allocated.run))
    assert allocated._job() == ("", None)
    fake_slurm.job("8", folder=str(allocated.run))
    assert allocated._job()[0] == "8"


def test_kit_shell_as_typed_writes_the_scripts_and_ends_with_the_shells_code(fake_slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    monkeypatch.setattr(shell.Allocated, "until_the_end", lambda self, words: done.append((self.run, words)) or 5)
    assert shell.shell(plan_of(tmp_path), "0", None, messages.note, here=False, jupyter=False) == 5
    assert done == [(tmp_path / "run", ["bash", "run_script.sh", "shell", "0"])] and (tmp_path / "run/shell.sh").is_file()
    monkeypatch.setattr(shell.Local, "until_the_end", lambda self, words: done.append((self.run, words)) or 6)
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    plan = changed(plan_of(tmp_path), run_dir=str(tmp_path / "second"))
    assert shell.shell(plan, "1", None, messages.note, here=True, jupyter=True) == 6
    assert done[1] == (tmp_path / "second", ["bash", "run_script.sh", "jupyter", "1"]) and (tmp_path / "second/jupyter.sh").is_file()
    third = changed(plan_of(tmp_path), run_dir=str(tmp_path / "third"))
    shell.shell(third, "0", None, messages.note, here=False, jupyter=True)
    assert done[2][1][:4] == ["bash", "run_script.sh", "jupyter", "0"] and "@" in done[2][1][4]
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.7 50122 10.0.0.1 22")
    fourth = changed(plan_of(tmp_path), run_dir=str(tmp_path / "fourth"))
    shell.shell(fourth, "0", None, messages.note, here=True, jupyter=True)
    assert done[3][1] == done[2][1]


def test_a_shell_for_an_array_is_one_for_a_task(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        shell.shell(plan_of(tmp_path, array="2-5"), "0", None, messages.note, here=True, jupyter=False)
    assert str(refused.value) == "kit: the job is an array of 4 tasks, of which kit shell takes one\n  fix: name it: kit shell JOB --task 2"


def test_who_has_no_name_reaches_jupyter_by_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    assert shell._login().startswith(f"{os.getuid()}@")


IDENTITY = "sha256:" + "5" * 64


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The image file `first`, 30 days old, on a machine with Docker alone, which has the image that the file was made of."""
    image = tmp_path / "images/first-0123456789abcdef.sqsh"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text(f'#!/bin/sh\n[ "$*" = "image inspect {IDENTITY}" ]\n')
    (tmp_path / "bin/docker").chmod(0o755)
    image.parent.mkdir()
    image.write_bytes(b"x")
    facts = {"name": "first", "file": image.name, "size": 1, "sha256": hashlib.sha256(b"x").hexdigest(), "kit": "0.1.0", "digest": "0123456789abcdef"}
    image.with_suffix(".json").write_text(json.dumps({**facts, "engine": "docker", "image_id": IDENTITY}))
    (image.parent / "first.json").symlink_to(f"{image.stem}.json")
    for path in (image, image.with_suffix(".json")):
        os.utime(path, (time.time() - 30 * 86400,) * 2)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(shell.Local, "until_the_end", lambda *_: 0)
    monkeypatch.chdir(tmp_path)
    return image


def test_without_salloc_a_shell_is_what_local_makes_it(laptop: Path, kit_here) -> None:
    said = "kit: there is no Slurm here (salloc): the shell is on this machine, as with --local\n"
    why = f"kit: runtime docker: nothing else here runs {laptop.name}, so it runs the image that the file is made of\n"
    for words, expected in [([], said + why), (["--local"], why)]:
        done = kit_here("shell", "--image", "first", "--output", "run", *words)
        assert (done.code, done.err) == (0, expected)
        settings = Path("run/env.sh").read_text().splitlines()
        assert "KIT_RUNTIME=docker" in settings and f"KIT_IMAGE=docker://{IDENTITY}" in settings
        shutil.rmtree("run")


@pytest.mark.parametrize("stage", ["local", "sbcast", "auto"])
def test_keys_that_an_engine_does_not_have_are_dropped_where_kit_chose_it(stage: str, laptop: Path, kit_here) -> None:
    words = ["--unpack", "yes", "--cache", "keep", "--stage", stage]
    done = kit_here("shell", "--local", "--image", "first", *words, "--output", "run")
    assert done.code == 0, done.err
    settings = Path("run/env.sh").read_text().splitlines()
    assert "KIT_RUNTIME=docker" in settings and "KIT_STAGE=none" in settings
    assert any(line.startswith("KIT_CACHE=node ") for line in settings)


def test_a_file_whose_image_an_engine_runs_is_in_use_by_that_run_and_after_it(laptop: Path, kit_here) -> None:
    assert [item.file for item in inventory.unused(laptop.parent, 7)] == [laptop]
    assert kit_here("shell", "--local", "--image", "first", "--output", "runs/one").code == 0
    (item,) = inventory.kept(laptop.parent)
    assert item.runs == (str(Path("runs/one").absolute()),)
    assert inventory.unused(laptop.parent, 7) == []
    shutil.rmtree("runs/one")
    assert inventory.unused(laptop.parent, 7) == []


def test_a_file_that_an_engine_cannot_run_is_answered_with_the_name_of_its_image(laptop: Path, kit_here) -> None:
    done = kit_here("shell", "--local", "--image", "first", "--runtime", "docker")
    assert (done.code, done.err) == (
        2,
        f"kit: --image: docker cannot run '{laptop}'\n  fix: name the image that the file was made of: docker://{IDENTITY}\n",
    )


def test_a_shell_is_the_last_run_only_where_no_program_ran(local: shell.Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert local.until_the_end(["bash", "-c", "exit 1"]) == 1
    assert lookup.find(None).folder == str(local.run)
    (tmp_path / "program").mkdir()
    noted_run(tmp_path / "program", "program", 1, 1, "7", local=True)
    local.run = local.run.rename(tmp_path / "third")
    (local.run / "run.json").write_text("{}")
    assert local.until_the_end(["bash", "-c", "exit 1"]) == 1
    assert [Path(run.folder).name for run in history.runs()][-1] == "third"
    assert lookup.find(None).name == "program" == lookup.last_here().name


# ---------------------------------------------------------------- kit exec

ATTACH = """\
# says what it was started with
case "$1" in
  attach) printf '%s\\n' "$@" "id=${SLURM_JOB_ID}" "task=${SLURM_ARRAY_TASK_ID:-}" "array=${SLURM_ARRAY_JOB_ID:-}" "${PWD}"; exit 4 ;;
esac
"""


@pytest.fixture
def running(fake_slurm: Slurm, tmp_path: Path) -> Run:
    folder = tmp_path / "runs/x"
    folder.mkdir(parents=True)
    (folder / "run_script.sh").write_text(ATTACH)
    event_lines.add(folder / "log/7", "batch", "told", facts="KIT_HOSTS=old\nKIT_RENDEZVOUS_ID=6.0\n")
    event_lines.add(folder / "log/7", "batch", "told", attempt=10, facts="KIT_HOSTS=node[1-2]\nKIT_RENDEZVOUS_ID=7.10\nKIT_X=a=b c\n")
    fake_slurm.job("7", nodes="node[1-2]", folder=str(folder))
    (tmp_path / "bin/srun").symlink_to("/bin/true")
    return noted_run(folder, "x", 2, 1, "7", local=False)


def test_a_command_gets_the_nodes_and_the_facts_of_the_last_attempt(running: Run, kit) -> None:
    done = kit("exec", "x", "--node", "node2", "--", "echo", "a b", check=False, XDG_STATE_HOME=os.environ["XDG_STATE_HOME"])
    assert (done.returncode, done.stderr) == (4, "")
    facts = ["KIT_HOSTS=node1,node2", "KIT_RENDEZVOUS_ID=7.10", "KIT_X=a=b c"]
    assert done.stdout.splitlines() == ["attach", "node2", *facts, "--", "echo", "a b", "id=7", "task=", "array=", running.folder]


def test_nodes_are_named_by_name_or_number(running: Run) -> None:
    hosts = ["node1", "node2"]
    assert [execute._hosts(running, hosts, name) for name in (None, "0", "1", "node2", "all")] == [["node1"], ["node1"], ["node2"], ["node2"], hosts]
    with pytest.raises(UsageError, match=r"--node: x \(7\) has no node 2\n  fix: name one of: node1, node2; or its number, from 0; or all"):
        execute._hosts(running, hosts, "2")


def test_a_task_of_an_array_is_entered_by_its_own_job(running: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "of another")
    environment = execute._environment(replace(running, id="12_3"), "15", ["node1"])
    assert {name: environment[name] for name in environment if name.startswith("SLURM_")} == {
        "SLURM_ARRAY_JOB_ID": "12",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_JOB_ID": "15",
    }


def test_what_cannot_be_entered_is_said_with_a_way(running: Run, fake_slurm: Slurm, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no command is given\n  fix: write it after --: kit exec x -- nvidia-smi"):
        execute.enter("x", None, [], None)
    (tmp_path / "bin/srun").unlink()
    if not shutil.which("srun"):
        with pytest.raises(KitError, match="srun is not installed here"):
            execute.enter("x", None, ["true"], None)
    Path(running.folder, "log/7/events/batch.jsonl").unlink()
    with pytest.raises(KitError, match="has not started its ranks yet: its nodes make their containers ready\n  fix: what they do: kit logs 7"):
        execute._facts(running)
    fake_slurm.job("7", "PENDING", "Priority", folder=running.folder)
    with pytest.raises(
        KitError, match=r"x \(7\) is not running: PENDING \(Priority: jobs of higher priority are before it\)\n  fix: where it is: kit status 7"
    ):
        status.running("x", None)
    noted_run(Path(running.folder), "y", 1, 1, "9", local=False, array="2-4")
    with pytest.raises(UsageError, match=r"y \(9\) is an array\n  fix: name one of its tasks: --task 2"):
        status.running("y", None)


# ---------------------------------------------------------------- kit images gc


@pytest.fixture
def unused(tmp_path: Path, fake_slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of an image in the site's scratch, and an image file, both 30 days old."""
    (tmp_path / "site.yaml").write_text(f"scratch: {tmp_path}/scratch\nslurm: {{partition: mine, constraint: x}}\n")
    copy = tmp_path / f"scratch/kit-{os.getuid()}/images/0123456789abcdef.sqsh"
    image = tmp_path / "images/mine-0123456789abcdef.sqsh"
    for path in (copy, image):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * 3000)
    image.with_suffix(".json").write_text(
        json.dumps({"name": "mine", "file": image.name, "size": 3000, "sha256": "0", "kit": "0.1.0", "digest": "0123456789abcdef"})
    )
    old = time.time() - 30 * 86400 - 60
    for path in (copy, image, image.with_suffix(".json")):
        os.utime(path, (old, old))
    monkeypatch.delenv("ENROOT_DATA_PATH", raising=False)
    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    return copy


def gc(tmp_path: Path, **more: object) -> None:
    image_commands.collect(tmp_path / "images", None, str(tmp_path / "site.yaml"), int(more.get("days", 7)), yes=bool(more.get("yes")))  # type: ignore[call-overload]


def test_what_nobody_uses_is_listed_and_goes_only_when_told(unused: Path, tmp_path: Path, capfd) -> None:
    gc(tmp_path)
    shown = capfd.readouterr().out.splitlines()
    assert [line.split() for line in shown[:2]] == [
        ["2", "KiB", "30", "days", str(tmp_path / "images/mine-0123456789abcdef.sqsh")],
        ["node7", "4", "KiB", "30", "days", str(unused)],
    ]
    assert shown[2:] == ["kit: 2 unused, 6 KiB", "kit: nothing is removed without --yes"]
    assert unused.exists()
    gc(tmp_path, yes=True)
    assert capfd.readouterr().out.splitlines()[-1] == "kit: done"
    assert not unused.exists() and os.listdir(tmp_path / "images") == []
    gc(tmp_path)
    assert capfd.readouterr().out == "kit: nothing of yours that has not been used for 7 days\n"


def test_layers_that_no_build_has_used_go_too(unused: Path, tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    layers = tmp_path / "cache/kit/layers"
    layers.mkdir(parents=True)
    old, used, begun, mine = (layers / name for name in ("0" * 64, "1" * 64, f".{'2' * 64}.x_9.partial", "notes.txt"))
    for path in (old, used, begun, mine):
        path.write_bytes(b"x" * 2048)
        os.utime(path, (1, 1) if path in (old, mine) else None)
    gc(tmp_path)
    shown = capfd.readouterr().out
    assert [path for path in (old, used, begun, mine) if f"  {path}\n" in shown] == [old, begun]
    gc(tmp_path, yes=True)
    assert sorted(os.listdir(layers)) == sorted([used.name, mine.name])


def test_an_image_that_a_job_took_while_gc_asked_stays(unused: Path, tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    image = tmp_path / "images/mine-0123456789abcdef.sqsh"
    monkeypatch.setattr(image_commands, "_agreed", lambda: os.utime(image) or True)
    gc(tmp_path)
    assert f"kit: {image} stays: it is in use again\n" in capfd.readouterr().out
    assert image.exists() and not unused.exists()


def test_an_image_that_another_gc_has_removed_is_not_said_to_be_in_use(unused: Path, tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_commands, "_agreed", lambda: gc(tmp_path, yes=True) is None)
    gc(tmp_path)
    shown = capfd.readouterr().out
    assert "stays" not in shown and shown.count("kit: done") == 2


@pytest.mark.parametrize(("typed", "agreed"), [("y\n", True), ("YES\n", True), ("\n", False), ("n\n", False), ("", False)])
def test_on_a_terminal_it_asks(typed: str, agreed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return typed

    monkeypatch.setattr(sys, "stdin", Terminal())
    assert image_commands._agreed() is agreed


def test_on_nodes_it_runs_as_a_job_of_the_clusters_partition_and_leaves_files_here_alone(unused: Path, tmp_path: Path, monkeypatch, capfd) -> None:
    calls = []

    def on_nodes(nodes: str, command: list[str], options: dict[str, str], within_s: float) -> str:
        assert within_s > 660  # a minute until it starts, and the job's limit
        calls.append((nodes, command[4:], options))
        return "Welcome to node2\nnode2\t2097152\t9\t/local/a b\nnode1\t5\t8\t/local/c\n\tof a site's TaskProlog\n"

    monkeypatch.setattr(image_gc.slurm, "on_nodes", on_nodes)
    for name, value in {"SBATCH_ACCOUNT": "proj", "SBATCH_PARTITION": "not the profile's"}.items():
        monkeypatch.setenv(name, value)
    options = {"partition": "mine", "account": "proj"}
    image_commands.collect(tmp_path / "images", "node[1-2]", str(tmp_path / "site.yaml"), 7, yes=True)
    scratch = f"{tmp_path}/scratch"
    assert calls == [
        ("node[1-2]", ["list", "7", scratch], options),
        ("node[1-2]", ["remove", "7", scratch, "node2:/local/a b", "node1:/local/c"], options),
    ]
    assert capfd.readouterr().out == ("  node1      5 KiB    8 days  /local/c\n  node2    2.0 GiB    9 days  /local/a b\nkit: 2 unused, 2.0 GiB\nkit: done\n")
    assert (tmp_path / "images/mine-0123456789abcdef.sqsh").exists()


SRUN_WITH_A_FILTER = """\
#!/bin/bash
echo >>calls
for wanted in WANTED; do
  [[ " $* " == *" ${wanted} "* ]] && continue
  printf 'srun: error: %s\\n' "this site wants ${wanted}" 'Unable to allocate resources: Unspecified error' >&2
  exit 1
done
printf 'node1\\t5\\t8\\t/local/c\\n'
"""


@pytest.mark.parametrize(
    ("gres", "wanted", "tries"),
    [
        ("", "--partition=mine", 1),
        ("", "--clusters=b --wckey=w --partition=mine", 1),
        ("", "--constraint=x", 2),
        ("Gres=gpu:a100:8(S:0-1) ", "--gres=gpu:a100:1 --constraint=x", 2),
        ("Gres=gpu:a100:8(S:0-1) ", "--qos=other", 0),
    ],
)
def test_nodes_that_a_site_gives_to_some_jobs_alone_are_cleaned_too(
    gres: str, wanted: str, tries: int, tmp_path: Path, unused: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = f"NodeName=node1 State=IDLE {gres}Partitions=mine"
    for name, script in {
        "srun": SRUN_WITH_A_FILTER.replace("WANTED", wanted),
        "scontrol": f"#!/bin/bash\n[[ $* == *hostnames* ]] && echo node1 || echo '{node}'\n",
    }.items():
        (tmp_path / "bin" / name).unlink(missing_ok=True)  # a link to the fake
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    for name, value in {"CLUSTERS": "b", "WCKEY": "w"}.items():
        monkeypatch.setenv(f"SBATCH_{name}", value)
    if tries:
        assert [item.path for item in image_gc.find(tmp_path / "images", "node1", str(tmp_path / "site.yaml"), 7).all] == ["/local/c"]
        assert len((tmp_path / "calls").read_text().splitlines()) == tries
    else:
        with pytest.raises(KitError, match="srun on node1: srun: error: Unable to allocate resources: Unspecified error"):
            image_gc.find(tmp_path / "images", "node1", str(tmp_path / "site.yaml"), 7)


def test_of_a_removal_that_takes_long_it_is_said_that_it_may_go_on(tmp_path: Path, unused: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = tmp_path / "bin/srun"
    stub.write_text("#!/bin/sh\nexec sleep 60\n")
    stub.chmod(0o755)
    monkeypatch.setattr(image_gc, "PATIENCE_S", 0.1)
    with pytest.raises(KitError) as raised:
        image_commands.collect(tmp_path / "images", "node[1-2]", str(tmp_path / "site.yaml"), 7, yes=True)
    assert raised.value.problem == "not all of node[1-2] answered within 0 s"
    assert raised.value.fix == "their job may still be running: squeue --me; when it has ended, try again"


def test_too_few_days_are_refused_with_the_way_to_remove_one_image_by_hand(laptop: Path, kit_here) -> None:
    with pytest.raises(UsageError) as error:
        gc(Path.cwd(), days=0)
    way = f"rm {laptop.parent}/NAME-DIGEST.*"
    assert "--days: 0 is too few" in str(error.value) and str(error.value).endswith(way)
    for path in laptop.parent.glob(f"{laptop.stem}.*"):
        path.unlink()
    assert kit_here("images").out == f"kit: no images of kit build in {laptop.parent}\n"
    done = kit_here("shell", "--image", "first")
    assert done.code == 2 and "kit: --image: there is no image first: " in done.err


# ---------------------------------------------------------------- the command line's last resort


def test_an_internal_error_is_two_lines_and_with_a_variable_its_traceback(monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    monkeypatch.delenv("KIT_TRACEBACK", raising=False)
    assert entry.report(ZeroDivisionError("x")) == 1
    assert capfd.readouterr().err == (
        "kit: internal error: ZeroDivisionError('x')\n  fix: please report it, with what KIT_TRACEBACK=1 in the environment adds\n"
    )
    assert entry.report(BlockingIOError(11, "Resource temporarily unavailable")) == 1  # no process more may start
    assert "  fix: check this machine: free -h, ulimit -u, ulimit -n, and the disks" in capfd.readouterr().err
    assert entry.report(FileNotFoundError(2, "No such file", "/x")) == 1 and "kit: /x: No such file\n" in capfd.readouterr().err
    monkeypatch.setenv("KIT_TRACEBACK", "1")
    error = ZeroDivisionError("x")
    with pytest.raises(ZeroDivisionError) as raised:
        entry.report(error)
    assert raised.value is error
    assert entry.report(KitError("mine", "f")) == 1 and "kit: mine\n" in capfd.readouterr().err  # which is no internal one


def test_images_without_a_word_are_listed_and_gc_lists_nothing_else(unused: Path, tmp_path: Path, kit_here) -> None:
    done = kit_here("images")
    assert done.code == 0 and done.out.splitlines()[0].split() == ["NAME", "SIZE", "BUILT", "RUNS", "LAST", "RUN", "FILE"]
    assert "  30d 0h ago  " in done.out.splitlines()[1]
    done = kit_here("images", "gc", "--cluster", str(tmp_path / "site.yaml"))
    assert "NAME" not in done.out and done.out.splitlines()[-2:] == ["kit: 2 unused, 6 KiB", "kit: nothing is removed without --yes"]


def policy_of_shell(request: JobRequest) -> tuple[str, Notify]:
    policy = request.plan(request.load_or_none(), None, Use(code="live")).policy
    return policy.on_preempt, policy.notify


def test_a_shell_of_a_job_with_checkpoints_may_be_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks it for one, and it sends no messages."""
    monkeypatch.chdir(tmp_path)
    job = {"launcher": "srun", "runtime": "none", "on_preempt": "checkpoint"}
    without = JobRequest(None, [], {key: Located(value, "test") for key, value in job.items()})
    assert policy_of_shell(without) == ("none", Notify())
    (tmp_path / "job.yaml").write_text(
        'command: [bash, -c, "true"]\non_preempt: checkpoint\ncheckpoint_s: 600\nmax_requeues: 3\nresubmit: true\n'
        "notify: {command: [mail]}\ntime: 00:10:00\nruntime: none\n"
    )
    request = JobRequest(None, [], {})
    assert policy_of_shell(request) == ("none", Notify())
    with pytest.raises(UsageError, match="leaves nothing before `checkpoint_s`"):
        request.plan(request.load(), None, Use(code="live"))
