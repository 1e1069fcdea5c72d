"""Each program of train/frameworks goes on where its checkpoint was: asked for one, and after SIGKILL in the middle of an epoch."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from samples import ROOT

FOLDER = ROOT / "train/frameworks"
FRAMEWORKS = sorted(path.parent.name for path in FOLDER.glob("*/job.yaml"))
LOADED = ["torch._dynamo", "accelerate", "lightning.pytorch", "transformers.trainer", "transformers.models.gpt2.modeling_gpt2"]
if os.environ.get("KIT_TEST_FRAMEWORKS") == "1":
    LOADED.append("deepspeed")
FILES = ("job.yaml", "requirements.txt", "train.py")
SAVE_EVERY = 21


class Run:
    """`kit run` of local nodes."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        self.said = folder / "said"
        command = [sys.executable, "-m", "kit", "run", *arguments]
        with self.said.open("w") as out:
            self.process = subprocess.Popen(command, cwd=folder, env=self.env, stdout=out, stderr=out)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def attempts(self) -> list[dict[int, float]]:
        """Of each attempt: the loss by its step."""
        logs = [*self.folder.glob("run/log/*/rank0.out"), *sorted(self.folder.glob("run/log/*/attempt*/rank0.out"))]
        found = (re.findall(r"^(?:\(RayTrainWorker .*?\) )?step (\d+)\S* +loss (\S+)$", path.read_text(), re.MULTILINE) for path in logs)
        return [{int(step): float(loss) for step, loss in lines} for lines in found] or [{}]

    def until(self, condition: Callable[[list[dict[int, float]]], bool]) -> None:
        end = time.monotonic() + 600
        while not condition(self.attempts()):
            assert self.process.poll() is None and time.monotonic() < end, self.said.read_text()
            time.sleep(0.1)

    def ask(self, command: str) -> None:
        """For a checkpoint, by kit checkpoint or kit stop."""
        subprocess.run([sys.executable, "-m", "kit", command, "run"], cwd=self.folder, env=self.env, check=True)

    def finish(self) -> str:
        """Wait for a good end, and return what kit said."""
        code = self.process.wait(600)
        said = self.said.read_text()
        assert code == 0, said
        return said

    def kill(self, rank: int) -> None:
        """Kill a rank; with Ray, which numbers its workers later, one of the second node."""
        is_ray = (self.folder / "run/ray.sh").exists()
        wanted = {"NODE_RANK=1" if is_ray else f"RANK={rank}", f"KIT_RUN_DIR={self.folder / 'run'}"}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words, environment = ((path / name).read_text(errors="replace").split("\0") for name in ("cmdline", "environ"))
            except OSError:
                continue
            if wanted <= set(environment) and words[0].rpartition("/")[2].startswith("ray::RayTrainWorker" if is_ray else "python"):
                return os.kill(int(path.name), signal.SIGKILL)
        raise AssertionError(f"no process of rank {rank}")


def continues(attempts: list[dict[int, float]]) -> None:
    """Each attempt begins behind a checkpoint of the one before, what is computed twice is the same twice, and the loss falls."""
    assert min(attempts[0]) == 1
    for before, after in itertools.pairwise(attempts):
        assert list(after) == list(range(min(after), max(after) + 1))
        assert min(before) < min(after) <= max(before) + 1
        again = set(before) & set(after)
        assert [after[step] for step in again] == pytest.approx([before[step] for step in again], rel=1e-4)
    everything = [loss for attempt in attempts for loss in attempt.values()]
    assert sum(everything[-10:]) < sum(everything[:10]) * 0.7


# What is not in the test extra.
HEAVY = pytest.mark.skipif(os.environ.get("KIT_TEST_FRAMEWORKS") != "1", reason="pip install deepspeed, before a release: KIT_TEST_FRAMEWORKS=1 does it")
# Nodes, ranks on each, and what happens. Importing a framework takes each rank 3 to 6 s of CPU at each start, and a start of Ray
# 30 s in all. Under torchrun, Accelerate is asked for all, and has two ranks: how those of each program stop and go on, forked ones show below.
CASES = [
    ("accelerate", "torchrun", 1, 2, ("asked", "killed")),
    pytest.param("deepspeed", "torchrun", 2, 2, ("asked", "killed"), marks=HEAVY),
    ("hf_trainer", "torchrun", 1, 1, ("killed",)),
    ("lightning", "torchrun", 1, 1, ("killed",)),
    ("lightning", "srun", 1, 1, ("asked",)),  # here it takes Slurm's signals for its own
    ("ray", "ray", 2, 1, ("killed", "stopped")),
]


@pytest.mark.parametrize(("framework", "launcher", "nodes", "ranks", "events"), CASES)
def test_a_program_goes_on_when_asked_for_a_checkpoint_and_when_a_rank_is_killed(
    framework: str, launcher: str, nodes: int, ranks: int, events: tuple[str, ...], tmp_path: Path
) -> None:
    for name in FILES:
        shutil.copy(FOLDER / framework / name, tmp_path)
    options = ["--runtime", "none", "--launcher", launcher, "--nodes", str(nodes), "--processes-per-node", str(ranks), "--output", "run"]
    options += ["--env", "OMP_NUM_THREADS=1"]  # torchrun gives a rank that is alone all cores, which threads that wait keep busy
    # Some 260 steps. They wait for who asks, and so that Ray, which counts a checkpoint as one up to two seconds after a worker
    # has reported it, has one of the last 42.
    pause = "0.1" if framework == "ray" else "0.05" if "asked" in events else "0.01"
    arguments = ["--epochs", "2" if nodes * ranks == 1 else "4", "--save-every", str(SAVE_EVERY), "--pause", pause]
    with Run(tmp_path, "job.yaml", *options, "--", *arguments) as run:
        for number, event in enumerate(events):
            run.until(lambda attempts, number=number: len(attempts) == number + 1 and len(attempts[number]) > 2 * SAVE_EVERY)
            if event == "killed":
                run.kill(rank=nodes * ranks - 1)
            else:
                run.ask("checkpoint" if event == "asked" else "stop")
        said = run.finish()
    attempts = run.attempts()
    assert len(attempts) == len(events) + ("stopped" not in events), said
    continues(attempts)
    most = SAVE_EVERY * (2 if framework == "ray" else 1)
    # Nothing is computed again after a request, and at most what was done since the last checkpoint after a kill.
    for event, (before, after) in zip(events, itertools.pairwise(attempts)):
        if event == "asked":
            assert min(after) == max(before) + 1
            assert re.search(r"all ranks have stopped for a checkpoint, progress: step \d+; all ranks start again$", said, re.MULTILINE), said
        else:
            assert (min(after) - 1) % SAVE_EVERY == 0 and len(set(before) & set(after)) <= most
            assert "starting all ranks again: restart 1 of 3" in said
    if "stopped" in events:
        assert f"all ranks have stopped for a checkpoint, progress: step {max(attempts[-1])}; the job ends, as was asked for" in said
    else:
        assert "all ranks ended well" in said


# Stands in for Ray with one worker: the result has the metrics of the newest checkpoint, of whichever start, as Ray 2.60 builds it.
RAY = """
import contextlib, json, pathlib, runpy, shutil, sys, types
newest = pathlib.Path("newest")
def report(metrics, checkpoint=None):
    if checkpoint:
        shutil.copytree(checkpoint, newest, dirs_exist_ok=True)
        (newest / "metrics").write_text(json.dumps(metrics))
class TorchTrainer:
    def __init__(self, train, train_loop_config, **_):
        self.fit_one = lambda: train(train_loop_config)
    def fit(self):
        self.fit_one()
        return types.SimpleNamespace(metrics=json.loads((newest / "metrics").read_text()) if newest.exists() else None)
ray, train, torch = (types.ModuleType(name) for name in ("ray", "ray.train", "ray.train.torch"))
for module in (ray, train, torch):
    sys.modules[module.__name__] = module
ray.train, train.torch, train.report = train, torch, report
train.CheckpointConfig = train.RunConfig = train.ScalingConfig = lambda **_: None
train.Checkpoint = types.SimpleNamespace(from_directory=lambda folder: folder)
train.get_checkpoint = lambda: types.SimpleNamespace(as_directory=lambda: contextlib.nullcontext(newest)) if newest.exists() else None
train.get_context = lambda: types.SimpleNamespace(get_world_rank=lambda: 0)
torch.TorchTrainer, torch.prepare_model, torch.prepare_data_loader = TorchTrainer, lambda model: model, lambda loader: loader
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("epochs", [2, 1])
def test_rays_training_that_was_asked_to_stop_is_finished_by_the_next_start(epochs: int, start_loaded, tmp_path: Path, monkeypatch) -> None:
    """It comes to no other checkpoint before its end; or was asked after its last step."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "with_ray.py").write_text(RAY)
    (tmp_path / "asked").touch()
    words = ["with_ray.py", FOLDER / "ray/train.py", "--batch-size", "4096", "--epochs", epochs, "--save-every", "50"]
    asked = start_loaded(*words, env={"KIT_CHECKPOINT_FILE": "asked"}).finish(timeout_s=300)
    assert (asked.codes, len(asked.lines("step "))) == ([75], 1), asked.stderr
    again = start_loaded(*words).finish(timeout_s=300)
    assert (again.codes, len(again.lines("step "))) == ([0], epochs - 1), again.stderr


# Stands for a checkpoint's folder on another file system than TMPDIR: whoever copies the third file there is killed half way.
KILLED = """
import os, runpy, shutil, signal, sys
copy, copied = shutil.copyfile, []
def copy_half(source, target, **more):
    copied.append(target)
    if len(copied) == 3:
        content = open(source, "rb").read()
        with open(target, "wb") as file:
            file.write(content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    return copy(source, target, **more)
shutil.copyfile = copy_half
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_kill_in_the_midst_of_a_checkpoint_leaves_lightning_the_one_before(start_loaded, tmp_path: Path) -> None:
    """Lightning moves it from TMPDIR, which is a copy where the folder is on another file system."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        if os.stat(folder).st_dev == os.stat(tmp_path).st_dev:
            pytest.skip("/dev/shm is on the disk")
        (tmp_path / "killed.py").write_text(KILLED)
        program = FOLDER / "lightning/train.py"
        words = ["--batch-size", "512", "--epochs", "2", "--save-every", "3", "--checkpoints", folder]
        env = {"TMPDIR": str(tmp_path)}
        killed = start_loaded(tmp_path / "killed.py", program, *words, env=env).finish(timeout_s=300)
        assert killed.codes == [-signal.SIGKILL] and killed.lines("step ")[-1].startswith("step 9 "), killed.stderr
        again = start_loaded(program, *words, env=env).finish(timeout_s=300)
        assert again.codes == [0] and again.lines("step ")[0].startswith("step 7 "), again.stderr


# Stands in for DeepSpeed where a checkpoint is saved: what the program then removes.
DEEPSPEED = """
import pathlib, runpy, sys, types
sys.modules["deepspeed"] = types.ModuleType("deepspeed")
import torch.distributed
torch.distributed.get_rank = lambda: 0
folder = pathlib.Path("checkpoints")
engine = types.SimpleNamespace(save_checkpoint=lambda folder, tag, **_: (folder / tag).mkdir(parents=True))
runpy.run_path(sys.argv[1])["save"](engine, folder, int(sys.argv[2]))
"""


def test_what_kills_left_of_later_checkpoints_displaces_no_whole_one_of_deepspeed(start_loaded, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "save.py").write_text(DEEPSPEED)
    for half in ("step-00000060", "step-00000080"):
        (tmp_path / "checkpoints" / half).mkdir(parents=True)
    for step in (50, 52):
        saved = start_loaded("save.py", FOLDER / "deepspeed/train.py", step).finish(timeout_s=300)
        assert saved.codes == [0], saved.stderr
        assert (tmp_path / "checkpoints/latest").read_text() == f"step-000000{step}"
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["latest", "step-00000050", "step-00000052"]


# Runs a program as it is, but for a signal to its first rank when that has said that it has done this step. And when the program looks
# for a checkpoint, only its first rank finds one: a network file system may show a new file late to some.
ASKED = """
import builtins, os, pathlib, runpy, signal, sys
step, sys.argv = sys.argv[1], sys.argv[2:]
if os.environ.get("RANK", "0") != "0":
    def found_late(otherwise, look):
        return lambda *given, **more: otherwise if sys._getframe(1).f_globals["__name__"] == "__main__" else look(*given, **more)
    pathlib.Path.exists, pathlib.Path.glob = found_late(False, pathlib.Path.exists), found_late((), pathlib.Path.glob)
tell = print
def tell_and_ask(*words, **more):
    tell(*words, **more)
    if words[0].split()[:2] == ["step", step]:
        os.kill(os.getpid(), signal.SIGUSR1)
builtins.print = tell_and_ask
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    tell(f"ended with {end.code}\\n", end="", flush=True)
    raise
"""


def steps(start_loaded, framework: str, folder: Path, asked_at: int = 0, ranks: int = 1, save_every: int = 8) -> list[str]:
    """What a run of two epochs says of its steps, up to that at which it is asked."""
    (folder / "asked.py").write_text(ASKED)
    words = ["--batch-size", "512", "--epochs", "2", "--save-every", save_every, "--checkpoints", folder / "checkpoints"]
    # DeepSpeed's program wants to be told even that it is alone.
    told = {"ranks": ranks} if ranks > 1 or framework == "deepspeed" else {}
    done = start_loaded(folder / "asked.py", asked_at, FOLDER / framework / "train.py", *words, **told).finish(timeout_s=300)
    assert done.lines("ended with") == [f"ended with {75 if asked_at else 0}"] * ranks, done.stdout + done.stderr
    return done.lines("step ")


# Ray's workers are other processes than the one that is asked.
ASKABLE = [pytest.param(name, marks=[HEAVY] if name == "deepspeed" else []) for name in FRAMEWORKS if name != "ray"]
IN_FOLDERS = [case for case in ASKABLE if case.values[0] != "lightning"]  # a checkpoint of it is one file


@pytest.mark.parametrize("framework", ASKABLE)
def test_a_program_goes_on_from_the_end_of_an_epoch_too(framework: str, start_loaded, tmp_path: Path, tmp_path_factory) -> None:
    whole = steps(start_loaded, framework, tmp_path_factory.mktemp("undisturbed"))
    end = len(whole) // 2  # of the first of two epochs
    assert [step for asked_at in (end, end + 2, 0) for step in steps(start_loaded, framework, tmp_path, asked_at)] == whole


@pytest.mark.parametrize("framework", IN_FOLDERS)
def test_a_copy_of_a_checkpoint_that_somebody_keeps_beside_it_stays_and_counts_for_nothing(framework: str, start_loaded, tmp_path: Path) -> None:
    before = steps(start_loaded, framework, tmp_path, asked_at=2)
    (checkpoint,) = (path for path in (tmp_path / "checkpoints").iterdir() if path.name != "latest")
    kept = checkpoint.with_name(f"{checkpoint.name}-best")
    shutil.copytree(checkpoint, kept)
    after = steps(start_loaded, framework, tmp_path)
    assert int(after[0].split()[1]) == int(before[-1].split()[1]) + 1
    assert kept.exists()


@pytest.mark.parametrize("framework", ASKABLE)
def test_the_last_steps_of_a_training_are_in_its_checkpoint(framework: str, start_loaded, tmp_path: Path) -> None:
    """Who copies the program wants the model that it has trained; and a start after that has nothing to do."""
    assert len(steps(start_loaded, framework, tmp_path, save_every=10)) % 10
    assert steps(start_loaded, framework, tmp_path, save_every=10) == []


@pytest.mark.parametrize("framework", ASKABLE)
def test_all_ranks_stop_when_one_is_asked_and_go_on_as_if_none_had_where_one_finds_the_checkpoint(
    framework: str, start_loaded, tmp_path: Path, tmp_path_factory
) -> None:
    whole = steps(start_loaded, framework, tmp_path_factory.mktemp("undisturbed"), ranks=2)
    assert framework != "accelerate" or len(whole) == 2 * 4096 / 512 / 2  # each rank has half of the batches: none trains alone
    stopped = steps(start_loaded, framework, tmp_path, asked_at=2, ranks=2)
    assert len(stopped) < len(whole) and stopped + steps(start_loaded, framework, tmp_path, ranks=2) == whole


def test_every_program_is_tested_a_folder_to_copy_and_on_the_page() -> None:
    assert {getattr(case, "values", case)[0] for case in CASES} == set(FRAMEWORKS)
    page = (ROOT / "docs/frameworks.md").read_text()
    for framework in FRAMEWORKS:
        assert {path.name for path in (FOLDER / framework).iterdir() if path.is_file()} == set(FILES)
        assert f"(../train/frameworks/{framework}/train.py)" in page
    assert {path.name for path in FOLDER.iterdir()} == set(FRAMEWORKS)
