import hashlib
import json
import re
import socket
import sys
import tarfile
from pathlib import Path

import pytest
import torch
from signalled import in_step

SCRIPT = Path(__file__).parents[2] / "train" / "cifar10.py"
sys.path.insert(0, str(SCRIPT.parent))

import cifar10_data  # noqa: E402 - it is no package

EPOCHS = 3
# A thin net and a fifth of the images: about a second per epoch on two cores. 120 divides among 1, 2, 3 ranks.
SMALL = ("--width", 4, "--epochs", EPOCHS, "--batch-size", 120, "--limit-steps", 8, "--lr", 0.1)
EPOCH_LINE = re.compile(r"epoch (\d)/3  loss (\d+\.\d+)  train acc (0\.\d+)  test acc (0\.\d+)  images/s \d+\.\d")

# Runs a program as it is, but for a loss that raises in rank 1: the second node's only rank.
BREAK_RANK_1 = """
import os, runpy, sys
import torch.nn.functional as F
if os.environ["RANK"] == "1":
    def cross_entropy(*args, **kwargs):
        raise RuntimeError("rank 1 is broken")
    F.cross_entropy = cross_entropy
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# Compiles for nothing but the net's graph, which is then run as it is: the losses have to stay what they were.
COMPILE_WITHOUT_A_COMPILER = """
import os, runpy, sys
import torch
import torch._dynamo.utils
compile = torch.compile
torch.compile = lambda model, **options: compile(model, backend="eager", **options)
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    counters = torch._dynamo.utils.counters
    # In one piece: unbuffered, print writes word by word, and the ranks' lines mix.
    print(f"graphs {counters['stats']['unique_graphs']} breaks {sum(counters['graph_break'].values())}\\n", end="", flush=True)
"""


def epochs(result):
    """Returns {epoch: (loss, train accuracy, test accuracy)} as printed: all that must not depend on speed."""
    found = [EPOCH_LINE.fullmatch(line) for line in result.lines("epoch ")]
    return {int(match[1]): match.groups()[1:] for match in found}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tmp_path_factory.mktemp("undisturbed") / "cifar10.pt"


@pytest.fixture(scope="module")
def undisturbed(start, cifar_folder, checkpoint):
    args = ("--data", cifar_folder, "--checkpoint", checkpoint, "--resume", "--log-every", 1)
    return start(SCRIPT, *SMALL, *args, ranks=2).finish(timeout_s=200).check()


def test_the_loss_falls_from_epoch_to_epoch(undisturbed):
    losses = [float(loss) for loss, _, _ in epochs(undisturbed).values()]
    assert len(losses) == EPOCHS
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.1


def test_resume_without_a_checkpoint_starts_from_scratch_and_says_so(undisturbed, checkpoint):
    assert undisturbed.lines("no checkpoint") == [f"no checkpoint at {checkpoint}: starting from scratch"]
    assert list(epochs(undisturbed)) == [1, 2, 3]


def test_a_run_that_was_stopped_twice_has_the_losses_of_an_undisturbed_one_step_by_step(start, cifar_folder, undisturbed, checkpoint, tmp_path):
    args = (*SMALL, "--data", cifar_folder, "--checkpoint", tmp_path / "stopped.pt", "--resume", "--log-every", 1)
    steps = []
    for text in ("step 2 ", "step 12 "):
        stopped = start(SCRIPT, *args, ranks=2, env={"KIT_PROGRESS": str(tmp_path / "progress")})
        stopped.wait_for(text, timeout_s=200)
        stopped.stop()  # by SIGTERM, as Slurm preempts
        (said,) = [line for line in stopped.outputs()[0].splitlines() if line.startswith("stopped at ")]
        assert said.startswith(f"stopped at {(tmp_path / 'progress').read_text().strip()}: ")
        steps += [line for line in stopped.outputs()[0].splitlines() if line.startswith("step ")]

    resumed = start(SCRIPT, *args, ranks=2).finish(timeout_s=200).check()
    # None is missing, none comes twice.
    assert steps + resumed.lines("step ") == undisturbed.lines("step ")
    assert len(undisturbed.lines("step ")) == 8 * EPOCHS
    done = epochs(resumed)
    assert 1 not in done and 3 in done
    assert done == {epoch: values for epoch, values in epochs(undisturbed).items() if epoch in done}
    assert resumed.lines("test accuracy") == undisturbed.lines("test accuracy")
    expected, got = (torch.load(file, weights_only=True) for file in (checkpoint, tmp_path / "stopped.pt"))
    assert got["epoch"] == expected["epoch"] == EPOCHS
    assert got["scheduler"] == expected["scheduler"]
    for name, tensor in expected["model"].items():
        assert torch.equal(got["model"][name], tensor), name
    for index, momentum in expected["optimizer"]["state"].items():
        assert torch.equal(got["optimizer"]["state"][index]["momentum_buffer"], momentum["momentum_buffer"]), index


def test_a_run_that_stops_at_the_end_of_an_epoch_has_said_how_it_was(start, cifar_folder, undisturbed, tmp_path):
    program = tmp_path / "stopping.py"
    # Rank 0 asks itself to stop: the ranks agree on that in the eighth step, the epoch's last.
    program.write_text(in_step(7, rank=0, signal="SIGUSR1"))
    args = (*SMALL, "--data", cifar_folder, "--checkpoint", tmp_path / "stopped.pt", "--resume", "--log-every", 1)
    stopped = start(program, SCRIPT, *args, ranks=2).finish(timeout_s=200)
    assert "stopped at step 8: a checkpoint is in " in stopped.stdout
    assert list(epochs(stopped)) == [1]
    resumed = start(SCRIPT, *args, ranks=2).finish(timeout_s=200).check()
    assert stopped.lines("step ") + resumed.lines("step ") == undisturbed.lines("step ")
    assert {**epochs(stopped), **epochs(resumed)} == epochs(undisturbed)


def test_a_compiled_run_that_was_stopped_has_the_same_losses_from_one_graph(start, cifar_folder, undisturbed, tmp_path):
    program = tmp_path / "compiled.py"
    program.write_text(COMPILE_WITHOUT_A_COMPILER)
    args = (SCRIPT, *SMALL, "--data", cifar_folder, "--checkpoint", tmp_path / "compiled.pt", "--resume", "--log-every", 1, "--compile")
    first = start(program, *args, ranks=2)
    first.wait_for("step 2 ", timeout_s=200)
    first.stop()
    stopped = first.outputs()[0].splitlines()
    resumed = start(program, *args, ranks=2).finish(timeout_s=200).check()
    assert [line for line in stopped if line.startswith("step ")] + resumed.lines("step ") == undisturbed.lines("step ")
    assert resumed.lines("test accuracy") == undisturbed.lines("test accuracy")
    # Of a batch's own shape, before the first epoch: nothing is compiled again in one.
    for lines in (stopped, resumed.stdout.splitlines()):
        assert [line for line in lines if line.startswith("graphs ")] == ["graphs 1 breaks 0"] * 2
        assert sum(line.startswith("compiled in ") for line in lines) == 1


def test_three_ranks_count_each_of_1000_test_images_once(start, cifar_folder, undisturbed, checkpoint):
    # The run is complete, so this only tests. 1,000 does not divide by 3: a padding sampler would count 1,002.
    args = ("--data", cifar_folder, "--checkpoint", checkpoint, "--resume")
    three = start(SCRIPT, *SMALL, *args, ranks=3).finish(timeout_s=200).check()
    assert three.lines("test accuracy") == undisturbed.lines("test accuracy")
    [line] = three.lines("test accuracy")
    assert re.fullmatch(r"test accuracy 0\.\d{4} \(\d+ of 1000 images\)", line)


def test_resuming_another_run_names_what_differs(start, cifar_folder, undisturbed, checkpoint):
    args = ("--data", cifar_folder, "--checkpoint", checkpoint, "--resume", "--seed", 1, "--lr", 0.2)
    result = start(SCRIPT, *SMALL, *args).finish(timeout_s=200)
    assert result.codes == [1]
    assert result.stderr == (
        f"cifar10.py: {checkpoint} was written with other values of: lr, seed\n"
        "  fix: give the same values, or another --checkpoint, or start afresh without --resume\n"
    )


def test_a_batch_that_does_not_divide_among_the_ranks_is_one_clear_error(start, cifar_folder):
    result = start(SCRIPT, *SMALL, "--batch-size", 100, "--data", cifar_folder, ranks=3).finish(timeout_s=200)
    assert result.codes == [1]
    assert result.stderr == ("cifar10.py: --batch-size 100 is global and does not divide among 3 ranks\n  fix: --batch-size 102\n")


def test_two_nodes_of_two_ranks_train(start, cifar_folder):
    args = (*SMALL, "--data", cifar_folder, "--limit-steps", 2)
    result = start(SCRIPT, *args, ranks=2, nodes=2).finish(timeout_s=200).check()
    assert list(epochs(result)) == [1, 2, 3]
    assert sorted(re.findall(r"^rank (\d)/4  local (\d)/2  node (\d)", result.stdout, re.MULTILINE)) == [
        ("0", "0", "0"),
        ("1", "1", "0"),
        ("2", "0", "1"),
        ("3", "1", "1"),
    ]


def test_a_rank_that_raises_ends_both_nodes_and_leaves_its_error(start, cifar_folder, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text(BREAK_RANK_1)
    started = start(broken, SCRIPT, *SMALL, "--data", cifar_folder, ranks=1, nodes=2, torchrun=True)
    result = started.finish(timeout_s=200)
    assert all(code != 0 for code in result.codes)
    files = list(started.files[0][0].parent.rglob("error.json"))
    messages = [json.loads(file.read_text())["message"]["message"] for file in files]
    assert "RuntimeError: rank 1 is broken" in messages


def test_a_missing_dataset_without_a_network_is_one_clear_error(start, tmp_path):
    nowhere = {"https_proxy": "http://127.0.0.1:9", "no_proxy": "", "NO_PROXY": ""}
    result = start(SCRIPT, *SMALL, "--data", tmp_path, ranks=2, env=nowhere).finish(timeout_s=200)
    assert result.codes == [1]
    message = (
        f"cifar10.py: no cifar-10-batches-py in {tmp_path} on {socket.gethostname()}, and the download failed:"
        " <urlopen error [Errno 111] Connection refused>\n"
        "  fix: name the folder that holds cifar-10-batches-py with --data, or fetch it where there is a network:\n"
        f"       mkdir -p {tmp_path} && curl -L https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
        f" | tar xz -C {tmp_path}\n"
    )
    assert result.stderr.count(message) == 1
    assert f'File "{SCRIPT}"' not in result.stderr  # torchrun adds a traceback, but of its own
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def official(monkeypatch, tmp_path):
    """Where the data set is downloaded from: an archive on this machine."""
    file = tmp_path / "archive.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        tar.add(__file__, f"{cifar10_data.FOLDER}/test_batch")
    monkeypatch.setattr(cifar10_data, "URL", file.as_uri())
    monkeypatch.setattr(cifar10_data, "MD5", hashlib.md5(file.read_bytes()).hexdigest())
    return file


def test_what_two_nodes_download_into_one_folder_is_there_once_and_whole(official, tmp_path):
    for _ in range(2):
        cifar10_data.download(tmp_path / "data")
        assert [path.name for path in (tmp_path / "data").iterdir()] == [cifar10_data.FOLDER]
        assert (tmp_path / "data" / cifar10_data.FOLDER / "test_batch").read_bytes() == Path(__file__).read_bytes()


def test_a_download_that_is_cut_off_is_refused_and_leaves_nothing(official, tmp_path):
    official.write_bytes(official.read_bytes()[:-1])
    with pytest.raises(OSError, match=f"^{official.as_uri()} has md5 [0-9a-f]{{32}}, expected {cifar10_data.MD5}$"):
        cifar10_data.download(tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []
