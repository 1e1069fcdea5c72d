#!/usr/bin/env python3
"""The first step of torch.compile on a node that has never run the program, with what another node
kept, beside a node with a warm cache and one with none.

    python bench/compile_caches.py [--rounds 9] [--check]

Inductor's C++ backend compiles forward and backward of a small network on CPUs: needs g++. One
node compiles and keeps; then every round has a start on a new node with that file (`cache: keep`),
one on the first node again (warm), and one on a new node without the file (cold). A node is a
folder; the scripts are those of a run, without Slurm and without a container.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from measure import KIT, ROOT, CannotMeasure, Comparison, Goal, main, take_turns

NUMBERS = itertools.count()
PROGRAM = """\
import time
import torch
torch.manual_seed(0)
first = [torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.LayerNorm(256)]
layers = [*first, torch.nn.Linear(256, 64), torch.nn.Softmax(-1)]
network = torch.compile(torch.nn.Sequential(*layers))
images_ND = torch.randn(32, 64)
begun = time.perf_counter()
network(images_ND).square().sum().backward()
print("first step", time.perf_counter() - begun)
"""
NODE = """
source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/cache.sh"
cache::begin
cache::prepare
cache::set_variables
"$@"
[[ "${KIT_RANKS_BEGUN_S}" == '' ]] || kept_cache::keep 0
"""


class Took(NamedTuple):
    step: float
    all: float  # from the node's preparation to the end of the program


class Nodes:
    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "program.py").write_text(PROGRAM)
        (place / "image.sif").write_bytes(b"an image")

    def start(self, node: str, *, keeps: bool = False, cache: str = "keep") -> Took:
        variables = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.place),
            "KIT_RUN_DIR": str(ROOT / "launch/scripts"),
            "KIT_SCRATCH": str(self.place / node),
            "KIT_IMAGE": str(self.place / "image.sif"),
            "KIT_RUNTIME": "none",
            "KIT_CACHE": cache,
            "KIT_RANKS_BEGUN_S": "1" if keeps else "",
            "NNODES": "1",
            "SLURM_JOB_ID": "1",
        }
        begun = time.perf_counter()
        command = ["bash", "-euo", "pipefail", "-c", NODE, "node", sys.executable]
        command.append(str(self.place / "program.py"))
        done = subprocess.run(command, env=variables, capture_output=True, text=True)
        took = time.perf_counter() - begun
        if done.returncode or "warning" in done.stderr:
            raise CannotMeasure(f"the program failed:\n{done.stderr.strip()[-2000:]}")
        return Took(float(done.stdout.split()[-1]), took)

    def new(self, cache: str) -> Took:
        node = f"new{next(NUMBERS)}"
        took = self.start(node, cache=cache)
        shutil.rmtree(self.place / node)
        return took


def run(rounds: int) -> Iterator[Comparison]:
    if not shutil.which("g++"):
        raise CannotMeasure("there is no g++, which Inductor's C++ backend needs")
    with tempfile.TemporaryDirectory() as name:
        nodes = Nodes(Path(name).resolve())
        nodes.start("first", keeps=True)
        sides = {
            KIT: lambda: nodes.new("keep"),
            "warm": lambda: nodes.start("first"),
            "cold": lambda: nodes.new("node"),
        }
        values = take_turns(sides, rounds)
        yield Comparison(
            "first step on a new node",
            "A step of torch.compile, forward and backward, on CPUs: kit on a new node with what"
            " another kept, warm on the node that kept it, cold on a new node without.",
            {side: [took.step for took in found] for side, found in values.items()},
            goals=[Goal("warm", 1.15)],
            headline=True,
        )
        yield Comparison(
            "start to first step on a new node",
            "The same with the import of torch and, on kit's side, the unpacking of the file.",
            {side: [took.all for took in found] for side, found in values.items()},
        )


def versions() -> dict[str, str]:
    import torch

    return {"torch": torch.__version__}


if __name__ == "__main__":
    main(run, 9, versions)
