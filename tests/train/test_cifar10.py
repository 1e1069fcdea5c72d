import json
import re
import socket
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "train" / "cifar10.py"
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
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# Compiles for nothing but the net's graph, which is then run as it is: the losses have to stay what they were.
COMPILE_WITHOUT_A_COMPILER = """
import runpy, sys
import torch
import torch._dynamo.utils
compile = torch.compile
torch.compile = lambda model, **options: compile(model, backend="eager", **options)
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    counters = torch._dynamo.utils.counters
    print("graphs", counters["stats"]["unique_graphs"], "breaks", sum(counters["graph_break"].values()), flush=True)
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


def test_two_nodes_of_two_ranks_train_under_torchrun(start, cifar_folder):
    args = (*SMALL, "--data", cifar_folder, "--limit-steps", 2)
    result = start(SCRIPT, *args, ranks=2, nodes=2, torchrun=True).finish(timeout_s=200).check()
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
