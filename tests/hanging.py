"""A run that hangs: its program, and the py-spy that shows where."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

# Rank 3 never comes out of its loading, rank 2 waits for its loader's worker, the others wait for them in all_reduce.
PROGRAM = """\
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader


class Files:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return stuck_in_reading()


def stuck_in_reading():
    time.sleep(1000)


def stuck_in_loading():
    time.sleep(1000)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    values = torch.ones(1)
    dist.all_reduce(values)
    print("up", rank, flush=True)
    if rank == 3:
        stuck_in_loading()
    if rank == 2:
        for batch in DataLoader(Files(), num_workers=1):
            print(batch)
    dist.all_reduce(values)


main()
"""


def py_spy() -> Path:
    """That of the tests' environment."""
    beside = Path(sys.executable).parent / "py-spy"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")
    assert found, "there is no py-spy: pip install -e '.[test]'"
    return Path(found)
