#!/usr/bin/env python3
"""Trains on this machine's NVIDIA GPUs, checks what only GPUs show, and writes a report of it.

    make gpu-test [ARGS="--image my.sif --data FOLDER --report gpu-report.md"]

Without --image the programs run under the first python3 on PATH, whose torch has to be one for CUDA. Everything is started by
`kit run`, as a user would. Without a GPU this fails: nothing can stand in for one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Each with what it prints when it is right. With one GPU there is nobody to talk to.
PROGRAMS = {
    "digits": "device cuda:0  backend nccl",
    "collectives": "every result was right in all",
    "bandwidth": "by nccl|one rank alone",
    "point_to_point": "the token went round|one rank alone",
    "data_parallel": "the same losses in all",
    "fsdp": r"step \d+/\d+  loss ",
    "model_parallel": r"first half on cuda:0[\s\S]*equal to the undivided model",
    "pipeline": r"step \d+/\d+  loss ",
    "spawn": r"step \d+/\d+  loss ",
}
ONE_PROCESS = "model_parallel"  # which uses two GPUs
ON_NODES = [name for name in PROGRAMS if name != ONE_PROCESS]
# As their users start them, but for one node.
FRAMEWORKS: dict[str, tuple[str, ...]] = {
    "accelerate": (),
    "deepspeed": (),
    "hf_trainer": (),
    "lightning": (),
    "ray": (),
}
EPOCH_IMAGES = 50_000  # CIFAR-10's
PUBLISHED_S = 5.0  # an epoch on two V100 GPUs, by a public tutorial of multi-node PyTorch about a program like this one
# What each rank sees and can do. `uuid` is that of nvidia-smi.
PROBE = """
import json, os, torch
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
net = torch.compile(torch.nn.Linear(64, 64).cuda())
with torch.autocast("cuda", dtype=torch.bfloat16):
    out = net(torch.randn(8, 64, device="cuda"))
out.float().sum().backward()
about = torch.cuda.get_device_properties(torch.cuda.current_device())
found = {"uuid": str(about.uuid), "type": str(out.dtype), "is_finite": bool(out.isfinite().all())}
print("found", json.dumps(found), flush=True)
"""
HELD_MB = 200  # of a GPU's memory, at least, by a process that computes on it


class Failed(Exception):
    """What was seen instead."""


class Lacking(Exception):
    """What is not installed, so that there is nothing to see."""


@dataclass(frozen=True)
class Gpu:
    name: str
    uuid: str
    driver: str
    memory: str


def gpus() -> list[Gpu]:
    """The GPUs that nvidia-smi lists. Raises Failed if it fails, as it does without any."""
    try:
        words = ["nvidia-smi", "--query-gpu=name,uuid,driver_version,memory.total", "--format=csv,noheader"]
        said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise Failed(f"this machine has no NVIDIA GPU that works: {error}") from None
    return [Gpu(*map(str.strip, line.split(","))) for line in said.splitlines() if line.strip()]


def ranks(count: int) -> str:
    return f"{count} rank{'' if count == 1 else 's'}"


def right(name: str, said: str) -> None:
    """Raises Failed where a program has not printed what it prints when it is right."""
    if not re.search(PROGRAMS[name], said):
        raise Failed(f"it does not print `{PROGRAMS[name]}`")


@dataclass(frozen=True)
class Machine:
    gpus: list[Gpu]
    image: list[str]  # options of kit run
    folder: Path
    data: Path

    def kit(self, program: Path, *, options: Sequence[str] = (), arguments: Sequence[str] = (), check: bool = True) -> str:
        """What `kit run` prints."""
        own = Path(sys.executable).parent  # whose torch is one for CPUs
        path = os.pathsep.join(word for word in os.environ["PATH"].split(os.pathsep) if Path(word).resolve() != own.resolve())
        output = Path(tempfile.mkdtemp(dir=self.folder, prefix=f"{program.parent.name}-{program.stem}-"))
        words = [str(own / "kit"), "run", str(program), *options, *self.image, "--output", f"{output}/run", "--", *arguments]
        done = subprocess.run(words, cwd=self.folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=1800)
        said = done.stdout + done.stderr
        (output / "said").write_text(said)
        if lacks := re.search(r"No module named '(\w+)|no python3 or python on PATH has (\w+)", said):
            if (lacks[1] or lacks[2]) == "torch":
                raise Failed("python3 on PATH has no torch; see --image")
            raise Lacking(f"{lacks[1] or lacks[2]} is not installed")
        if check and done.returncode:
            errors = re.findall(r"^kit: error: .*", said, re.MULTILINE) or said.strip().splitlines()[-1:]
            raise Failed(f"exit code {done.returncode}: {errors[0]}")
        return said

    def on_all(self, program: Path, *, options: Sequence[str] = (), arguments: Sequence[str] = ()) -> str:
        """What `kit run` prints of a rank on each GPU. Raises Failed where one of the GPUs was not used."""
        count = str(len(self.gpus))
        with Memory() as memory:
            said = self.kit(program, options=["-j", f"1x{count}", "--gpus-per-node", count, *options], arguments=arguments)
        if min(memory.held_mb()) < HELD_MB:
            raise Failed(f"it held {memory.held_mb()} MiB of the GPUs' memory")
        return said

    def trains(self, name: str) -> str:
        program = ROOT / f"train/{name}.yaml"
        if name == ONE_PROCESS:
            right(name, self.kit(program, options=["--gpus-per-node", str(len(self.gpus))]))
            return ranks(1)
        right(name, self.on_all(program))
        return ranks(len(self.gpus))

    def trains_on_nodes(self, name: str) -> str:
        """Two nodes of this machine, which share a GPU if it has but one: ranks that talk by NCCL's sockets."""
        said = self.kit(ROOT / f"train/{name}.yaml", options=["-j", "2x1", "--gpus-per-node", "1", "--env", "NCCL_DEBUG=INFO"])
        right(name, said)
        if not re.search(r"NCCL INFO .*nRanks 2 nNodes 2", said):
            raise Failed("NCCL does not say that it connects two nodes")
        return ranks(2)

    def framework(self, name: str) -> str:
        arguments = ["--epochs", "4", "--checkpoints", str(self.folder / name)]
        said = self.on_all(ROOT / f"train/frameworks/{name}/job.yaml", options=FRAMEWORKS[name], arguments=arguments)
        losses = [float(loss) for loss in re.findall(r"step \d+\S* +loss (\S+)$", said, re.MULTILINE)]
        if not losses or not losses[-1] < losses[0]:
            raise Failed(f"its losses are {losses[:1]} at first, {losses[-1:]} in the end")
        return f"{ranks(len(self.gpus))}; loss {losses[0]:.3f} to {losses[-1]:.3f}"

    def rehearses(self) -> str:
        """More ranks than GPUs, in a job that asks for none: they run on the CPUs, since NCCL refuses two of them on one GPU."""
        said = self.kit(ROOT / "train/digits.yaml", options=["-j", f"1x{len(self.gpus) + 1}"])
        warned = re.search(r"warning: (this machine has .*, so they run on the CPUs)$", said, re.MULTILINE)
        if not warned or "device cpu  backend gloo" not in said:
            raise Failed("it says nothing of it, or is not on the CPUs")
        return warned[1]

    def probe(self) -> str:
        """Every rank has a GPU of its own, compiles for it and computes in bfloat16."""
        said = self.on_all(self.folder / "probe.py")
        found = [json.loads(line) for line in re.findall(r"^(?:\[rank\d+\] )?found (.*)$", said, re.MULTILINE)]
        uuids = sorted(rank["uuid"].removeprefix("GPU-") for rank in found)
        if uuids != sorted(gpu.uuid.removeprefix("GPU-") for gpu in self.gpus):
            raise Failed(f"the ranks are on the GPUs {uuids}")
        if any(rank["type"] != "torch.bfloat16" or not rank["is_finite"] for rank in found):
            raise Failed(f"bfloat16 gives {found}")
        return f"{ranks(len(found))}, each on a GPU of its own"

    def refuses(self) -> str:
        """A job that asks for more GPUs than there are does not train on what there is, nor on the CPUs."""
        more = str(len(self.gpus) + 1)
        said = self.kit(self.folder / "probe.py", options=["-j", "1x1", "--gpus-per-node", more], check=False)
        refused = re.search(rf"this machine has {len(self.gpus)} GPUs?, and the job asks for {more} on each node", said)
        if not refused or "found {" in said:
            raise Failed(f"it is not refused: {said.strip()[-300:]}")
        return refused[0]

    def cifar10(self) -> str:
        arguments = ["--epochs", "4", "--batch-size", "768", "--data", str(self.data), "--checkpoint", str(self.folder / "cifar10.pt")]
        said = self.on_all(ROOT / "train/cifar10.yaml", arguments=arguments)
        rates = [float(rate) for rate in re.findall(r"images/s ([\d.]+)", said)]
        if len(rates) != 4:
            raise Failed(f"it printed {len(rates)} epochs of 4")
        best, accuracies = max(rates), re.findall(r"test accuracy ([\d.]+)", said)
        return f"{best:.0f} images/s, {EPOCH_IMAGES / best:.2f} s an epoch ({PUBLISHED_S} s published for two V100); test accuracy {accuracies[-1]} after 4"


class Memory:
    """Watches how much of each GPU's memory is in use."""

    def __init__(self) -> None:
        self.first = self.most = self.used_mb()
        self.is_done = threading.Event()
        self.thread = threading.Thread(target=self.watch)

    @staticmethod
    def used_mb() -> list[int]:
        words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return list(map(int, subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.split()))

    def watch(self) -> None:
        while not self.is_done.wait(0.2):
            self.most = list(map(max, self.most, self.used_mb()))

    def held_mb(self) -> list[int]:
        return [most - first for most, first in zip(self.most, self.first)]

    def __enter__(self) -> Memory:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_done.set()
        self.thread.join()


def checks(machine: Machine) -> dict[str, Callable[[], str]]:
    return {
        "a GPU for each rank, torch.compile, bfloat16": machine.probe,
        "more GPUs than there are": machine.refuses,
        "more ranks than GPUs": machine.rehearses,
        **{f"train/{name}.yaml": lambda name=name: machine.trains(name) for name in PROGRAMS},  # type: ignore[misc]
        **{f"train/{name}.yaml, 2 nodes": lambda name=name: machine.trains_on_nodes(name) for name in ON_NODES},  # type: ignore[misc]
        "train/cifar10.yaml": machine.cifar10,
        **{f"train/frameworks/{name}": lambda name=name: machine.framework(name) for name in FRAMEWORKS},  # type: ignore[misc]
    }


def report(found: list[Gpu], rows: list[tuple[str, str, str, float]]) -> str:
    kinds = ", ".join(f"{sum(gpu.name == name for gpu in found)} x {name}" for name in dict.fromkeys(gpu.name for gpu in found))
    head = f"# On GPUs\n\n{time.strftime('%Y-%m-%d')}: {kinds}, {found[0].memory} each, driver {found[0].driver}.\n\n"
    table = "".join(f"| {name} | {outcome} | {detail} | {took_s:.0f} s |\n" for name, outcome, detail, took_s in rows)
    return f"{head}| | | | |\n|---|---|---|---|\n{table}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", help="as of kit run")
    parser.add_argument("--runtime", help="as of kit run")
    parser.add_argument("--data", type=Path, default=ROOT / "data", help="the folder that holds CIFAR-10, or gets it")
    parser.add_argument("--only", default="", metavar="WORD", help="of what is checked, what has this word in its name")
    parser.add_argument("--report", type=Path, default=Path("gpu-report.md"))
    chosen = parser.parse_args()
    try:
        found = gpus()
    except Failed as error:
        print(f"gpu-test: {error}", file=sys.stderr)
        return 1
    given = {"--image": chosen.image, "--runtime": chosen.runtime}
    image = [word for option, value in given.items() if value for word in (option, value)]
    folder = Path(tempfile.mkdtemp(prefix="kit-gpu-"))
    (folder / "probe.py").write_text(PROBE)
    rows = []
    for name, check in checks(Machine(found, image, folder, chosen.data.absolute())).items():
        if chosen.only not in name:
            continue
        begun_s = time.monotonic()
        try:
            outcome, detail = "right", check()
        except Lacking as error:
            outcome, detail = "not tried", str(error)
        except (Failed, subprocess.SubprocessError) as error:
            outcome, detail = "**failed**", str(error)
        rows.append((name, outcome, detail, time.monotonic() - begun_s))
        print(f"{outcome}: {name}: {detail}", flush=True)
        chosen.report.write_text(report(found, rows))
    if any(outcome == "**failed**" for _, outcome, _, _ in rows):
        print(f"gpu-test: what was printed, and the run directories: {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
