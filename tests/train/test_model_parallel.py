from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "train" / "model_parallel.py"
# A machine without GPUs still has a second device: "meta", whose tensors have shapes but no values. Layers on it
# refuse what lies on the CPU.
TO_ANOTHER_DEVICE = """
import torch
from model_parallel import BATCH, CLASSES, Halves, make_batch

halves = Halves(blocks=4, seed=0, devices=[torch.device("cpu"), torch.device("meta")])
inputs_ND, _ = make_batch(seed=0, step=0)
logits_NC = halves(inputs_ND)
for half in (halves.first, halves.second):
    print("lies on", *{parameter.device.type for parameter in half.parameters()}, flush=True)
assert logits_NC.device.type == "meta" and logits_NC.shape == (BATCH, CLASSES)
"""


@pytest.fixture(scope="module")
def trained(start):
    return start(SCRIPT, "--steps", 30).finish(timeout_s=200).check()


def test_the_divided_model_learns_and_equals_the_undivided_one(trained):
    losses = [float(line.split()[3]) for line in trained.lines("step ")]
    assert len(losses) == 30
    assert sum(losses[-5:]) / 5 < losses[0] - 0.8
    assert trained.lines("equal") == ["equal to the undivided model in every step"]


def test_it_says_which_devices_it_uses(trained):
    assert trained.lines("GPUs") == ["GPUs: 0  first half on cpu  second half on cpu"]


def test_the_activations_move_to_the_second_half(start, tmp_path):
    script = tmp_path / "devices.py"
    script.write_text(TO_ANOTHER_DEVICE)
    result = start(script, env={"PYTHONPATH": str(SCRIPT.parent)}).finish(timeout_s=200).check()
    assert result.lines("lies on") == ["lies on cpu", "lies on meta"]


def test_a_second_process_is_refused(start):
    result = start(SCRIPT, env={"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}).finish(timeout_s=200)
    assert result.codes == [1]
    assert result.stderr == (
        "model_parallel.py: one process uses both GPUs, but 2 were started\n"
        "  fix: nodes: 1 and processes_per_node: 1 in the job file\n"
    )  # fmt: skip
