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
import time
from collections.abc import Callable
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
    "model_parallel": "equal to the undivided model",
    "pipeline": r"step \d+/\d+  loss ",
    "spawn": r"step \d+/\d+  loss ",
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


class Failed(Exception):
    """What was seen instead."""


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


@dataclass(frozen=True)
class Machine:
    gpus: list[Gpu]
    image: list[str]  # options of kit run
    folder: Path
    data: Path

    def kit(self, program: Path, *, ranks: int = 0, gpus: int = 0, arguments: list[str] = [], check: bool = True) -> str:
        """What `kit run` prints; on all GPUs, unless told otherwise."""
        own = Path(sys.executable).parent  # whose torch is one for CPUs
        path = os.pathsep.join(word for word in os.environ["PATH"].split(os.pathsep) if Path(word).resolve() != own.resolve())
        count = len(self.gpus)
        output = tempfile.mkdtemp(dir=self.folder)
        shape = ["--nodes", "1", "--processes-per-node", str(ranks or count), "--gpus-per-node", str(gpus or count)]
        words = [own / "kit", "run", program, *shape, *self.image, "--output", f"{output}/run", "--", *arguments]
        done = subprocess.run(words, cwd=self.folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=1800)
        said = done.stdout + done.stderr
        if check and done.returncode:
            raise Failed(f"exit code {done.returncode}: {said.strip().splitlines()[-1]}")
        return said

    def trains(self, name: str) -> str:
        said = self.kit(ROOT / f"train/{name}.yaml")
        if not re.search(PROGRAMS[name], said):
            raise Failed(f"it does not print `{PROGRAMS[name]}`")
        return f"{len(self.gpus)} ranks"

    def probe(self) -> str:
        """Every rank has a GPU of its own, compiles for it and computes in bfloat16."""
        said = self.kit(self.folder / "probe.py")
        found = [json.loads(line) for line in re.findall(r"^(?:\[rank\d+\] )?found (.*)$", said, re.MULTILINE)]
        uuids = sorted(rank["uuid"].removeprefix("GPU-") for rank in found)
        if uuids != sorted(gpu.uuid.removeprefix("GPU-") for gpu in self.gpus):
            raise Failed(f"the ranks are on the GPUs {uuids}")
        if any(rank["type"] != "torch.bfloat16" or not rank["is_finite"] for rank in found):
            raise Failed(f"bfloat16 gives {found}")
        return f"{len(found)} ranks, each on a GPU of its own"

    def refuses(self) -> str:
        """A job that asks for more GPUs than there are does not train on what there is, nor on the CPUs."""
        said = self.kit(self.folder / "probe.py", ranks=1, gpus=len(self.gpus) + 1, check=False)
        refused = re.search(rf"^kit: error: .*{len(self.gpus)} GPUs.*the job asked for {len(self.gpus) + 1}$", said, re.MULTILINE)
        if not refused or "found {" in said:
            raise Failed(f"it is not refused: {said.strip()[-300:]}")
        return refused[0].removeprefix("kit: error: ")

    def cifar10(self) -> str:
        arguments = ["--epochs", "4", "--batch-size", "768", "--data", str(self.data), "--checkpoint", str(self.folder / "cifar10.pt")]
        said = self.kit(ROOT / "train/cifar10.yaml", arguments=arguments)
        rates = [float(rate) for rate in re.findall(r"images/s ([\d.]+)", said)]
        if len(rates) != 4:
            raise Failed(f"it printed {len(rates)} epochs of 4")
        best, right = max(rates), re.findall(r"test accuracy ([\d.]+)", said)
        return f"{best:.0f} images/s, {EPOCH_IMAGES / best:.2f} s an epoch ({PUBLISHED_S} s published for two V100); test accuracy {right[-1]} after 4"


def checks(machine: Machine) -> dict[str, Callable[[], str]]:
    return {
        "a GPU for each rank, torch.compile, bfloat16": machine.probe,
        "more GPUs than there are": machine.refuses,
        **{f"train/{name}.yaml": lambda name=name: machine.trains(name) for name in PROGRAMS},  # type: ignore[misc]
        "train/cifar10.yaml": machine.cifar10,
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
        begun_s = time.monotonic()
        try:
            outcome, detail = "right", check()
        except (Failed, subprocess.TimeoutExpired) as error:
            outcome, detail = "**failed**", str(error)
        rows.append((name, outcome, detail, time.monotonic() - begun_s))
        print(f"{outcome}: {name}: {detail}", flush=True)
        chosen.report.write_text(report(found, rows))
    shutil.rmtree(folder, ignore_errors=True)
    return int(any(outcome != "right" for _, outcome, _, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
