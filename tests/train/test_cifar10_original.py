"""cifar10_original.py, and what has to hold for cifar10.py to be compared with it."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

TRAIN = Path(__file__).parents[2] / "train"
SCRIPT = TRAIN / "cifar10_original.py"
SMALL = ("--width", 4, "--batch-size", 120, "--limit-steps", 6, "--workers", 1)


def program(name: str) -> ModuleType:
    # cifar10.py imports what is beside it.
    if str(TRAIN) not in sys.path:
        sys.path.insert(0, str(TRAIN))
    spec = importlib.util.spec_from_file_location(name, TRAIN / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class NoWaiting(TorchDispatchMode):
    """Refuses what makes the CPU wait for a GPU: reading a value, or a shape that depends on one."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket.__name__ in ("_local_scalar_dense", "nonzero", "masked_select", "equal"):
            raise AssertionError(f"{function} waits")
        return function(*args, **(kwargs or {}))


def test_no_step_of_cifar10_waits_for_the_device_and_every_one_of_the_original_does() -> None:
    cifar10, original = program("cifar10"), program("cifar10_original")
    images_NCHW, labels_N = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8), torch.randint(0, 10, (40,))
    net = cifar10.resnet18(8)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    totals = torch.zeros(3, dtype=torch.float64)
    with NoWaiting():
        for batch_N in torch.arange(40).split(10):
            cifar10.train_step(net, optimizer, scheduler, images_NCHW[batch_N], labels_N[batch_N], totals)
    assert totals[2] == 40 and totals[0] > 0

    with NoWaiting(), pytest.raises(AssertionError, match="_local_scalar_dense"):
        original.train_epoch(net, optimizer, [(images_NCHW[:10].float(), labels_N[:10])], torch.device("cpu"), None)


def test_the_original_learns_on_two_ranks(start, cifar_folder) -> None:
    done = start(SCRIPT, *SMALL, "--epochs", 3, "--data", cifar_folder, ranks=2).finish(timeout_s=200).check()
    line = r"epoch \d/3  loss (\d+\.\d+)  train acc 0\.\d+  test acc 0\.\d+  images/s \d+\.\d"
    losses = [float(re.fullmatch(line, said)[1]) for said in done.lines("epoch ")]
    assert len(losses) == 3 and losses[2] < losses[0] - 0.05


def test_an_original_without_data_says_where_to_get_it(start, tmp_path: Path) -> None:
    done = start(SCRIPT, *SMALL, "--data", tmp_path).finish(timeout_s=200)
    assert done.codes == [1]
    assert done.stderr == (
        f"cifar10_original.py: no cifar-10-batches-py in {tmp_path}\n  fix: name the folder that holds it with --data; cifar10.py downloads it\n"
    )
