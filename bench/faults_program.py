"""A training on CPUs in which one rank goes wrong when bench/faults.py wants it to.

    faults_program.py FOLDER [HOW RANK]

Each rank says every step that it has taken, and when. Once FOLDER/now is there, the rank goes wrong
in the way HOW: at whichever of the marked moments of a step comes next.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import mmap
import os
import resource
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

folder = Path(sys.argv[1])
how, chosen = (sys.argv[2], int(sys.argv[3])) if len(sys.argv) > 2 else ("", -1)
group = folder / "memory-group"  # a control group with little memory


class Images(Dataset):
    """Sixteen batches of noise, from a file that may go away."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if is_time("in a loader's worker: an exception"):
            raise ValueError(f"the image {index} has 3 channels, and 1 was expected")
        if is_time("in a loader's worker: it waits"):
            time.sleep(100_000)
        return torch.randn(32, 64)


def is_time(name):
    return how == name and os.environ["RANK"] == str(chosen) and (folder / "now").exists()


def moment():
    """Go wrong here, once, if it is time."""
    if how in WAYS and not gone_wrong and is_time(how):
        gone_wrong.append(True)
        WAYS[how]()


def segfault():
    ctypes.string_at(0)


def bus_error():
    with tempfile.TemporaryFile() as file:
        file.truncate(1 << 20)
        mapped = mmap.mmap(file.fileno(), 1 << 20)
        file.truncate(0)
        print(mapped[1000])


def key_error():
    print(json.loads('{"images": 60000}')["labels"])


def assertion():
    assert dist.get_world_size() % 3 == 0, "the batch does not divide among the ranks"


def data_gone():
    (folder / f"shard-{chosen}.bin").read_bytes()


def doze():
    time.sleep(100_000)


def lock_twice():
    lock = threading.Lock()
    with lock:
        lock.acquire()


def read_from_nobody():
    ours, _theirs = socket.socketpair()
    ours.recv(1)


def spin():
    while True:
        pass


def compute():
    a = torch.randn(300, 300)
    while True:
        a = torch.tanh(a @ a)


def wait_at_barrier():
    dist.barrier()


def send_to_all():
    dist.broadcast(torch.ones(1), chosen)


def gather():
    dist.all_gather([torch.zeros(1) for _ in range(dist.get_world_size())], torch.ones(1))


def skip():
    """The next all_reduce is left out: every one behind it meets another one."""
    to_skip.append(True)


def little_memory():
    used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20),) * 2)


def allocate_bytes():
    little_memory()
    kept = []
    while True:
        kept.append(bytearray(16 << 20))


def allocate_tensors():
    little_memory()
    kept = []
    while True:
        kept.append(torch.zeros(4 << 20))


def allocate_until_killed():
    (group / "cgroup.procs").write_text(str(os.getpid()))
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 20)) * 16)


gone_wrong, to_skip = [], []
WAYS = {
    "a read outside of its memory": segfault,
    "the end of a mapped file": bus_error,
    "abort()": os.abort,
    "KeyError": key_error,
    "AssertionError": assertion,
    "a file that is gone": data_gone,
    "a sleep": doze,
    "a lock taken twice": lock_twice,
    "a socket that says nothing": read_from_nobody,
    "in Python": spin,
    "in torch": compute,
    "barrier": wait_at_barrier,
    "all_gather": gather,
    "broadcast": send_to_all,
    "one all_reduce less": skip,
    "sys.exit(0)": lambda: sys.exit(0),
    "os._exit(0)": lambda: os._exit(0),
    "a limit, in Python": allocate_bytes,
    "a limit, in torch": allocate_tensors,
    "by the kernel": allocate_until_killed,
}


def batches():
    """With a worker process where that is what goes wrong."""
    while True:
        yield from DataLoader(Images(), batch_size=None, num_workers=int("worker" in how))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = itertools.count(1)
    for step, x in zip(steps, batches()):
        moment()
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        moment()
        loss.backward()
        for parameter in model.parameters():
            moment()
            if to_skip and to_skip.pop():
                continue
            dist.all_reduce(parameter.grad)
            parameter.grad /= ranks
        optimizer.step()
        moment()
        print(f"step {step} at {time.time():.3f} loss {loss.item():.4f}", flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
