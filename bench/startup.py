#!/usr/bin/env python3
"""How long the command line takes: whole processes, from their start to their end, beside the bare
interpreter and what peers have.

    python bench/startup.py [--rounds 11] [--check]

bare python is `python -c pass` of the environment that kit is in: what no Python program goes
below. Each peer is in a virtual environment of its own, of the same Python, without torch:
peers.py. All sides run in the same empty folder with a train.py, once before the first round, so
that everybody's caches are written. There is no Slurm: stand-ins for squeue, sacct and srun answer
all sides.

The help is that of the whole program. The dry run is of train.py on 2 nodes of 2 processes: kit,
TorchX and NeMo-Run print the scripts that they would submit. Writing is of the same job to files,
without submitting: kit its run directory, HPC-launcher its launch folder, submitit the text of its
sbatch file alone, which is less than it does to submit. The status is of 20 jobs that Slurm knows.

Left out: submitit's help, dry run and status, for it has no command line; NeMo-Run's status, which
is of one experiment that it submitted itself; HPC-launcher's dry run, which prints no script, and
its status, which it leaves to squeue; TorchX's and NeMo-Run's writing, which is a part of their
submission. HPC-launcher is measured by `launch`: its torchrun-hpc wants torch.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import peers
from measure import Comparison, Goal, main, seconds, take_turns

BARE = "bare python"
DRY_RUN = Goal("TorchX", 0.6, floor=BARE)
HELP = Goal("TorchX dry run", 0.8, floor=BARE)
JOBS = 20
NUMBERS = itertools.count()
JOB_FILE = "command: train.py\nnodes: 2\nprocesses_per_node: 2\ntime: 1:00:00\n"


def run(rounds: int) -> Iterator[Comparison]:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        environment = prepare(place)

        def compare(
            claim: str,
            does: str,
            goals: Sequence[Goal] = (),
            **commands: Sequence[str | Path],
        ) -> Comparison:
            sides = {
                side.replace("_", " "): timed(command, place / "work", environment)
                for side, command in commands.items()
            }
            return Comparison(
                claim,
                does,
                take_turns(sides, rounds),
                goals=list(goals),
                headline=bool(goals),
            )

        kit, bare = Path(sys.executable).with_name("kit"), [sys.executable, "-c", "pass"]
        torchx = peers.tool("torchx", "torchx")
        torchx_dry_run = [torchx, "run", "--dryrun", "-s", "slurm", "dist.ddp"]
        torchx_dry_run += ["-j", "2x2", "--script", "train.py"]
        yield compare(
            "kit --help",
            "Each prints the help of its whole program, HPC-launcher that of `launch`.",
            [HELP],
            kit=[kit, "--help"],
            bare_python=bare,
            TorchX_dry_run=torchx_dry_run,
            TorchX=[torchx, "--help"],
            NeMo_Run=[peers.tool("nemo-run", "nemorun"), "--help"],
            HPC_launcher=[peers.tool("hpc-launcher", "launch"), "--help"],
        )
        yield compare(
            "dry run of 2x2, from flags",
            "Each prints the scripts that it would submit; NeMo-Run by a program of ten lines,"
            " which is how it is used.",
            [DRY_RUN],
            kit=[kit, "submit", "train.py", "-j", "2x2", "--time", "1:00:00", "--dry-run"],
            bare_python=bare,
            TorchX=torchx_dry_run,
            NeMo_Run=[peers.tool("nemo-run"), peers.PEERS / "nemo_dry_run.py"],
        )
        yield compare(
            "dry run of 2x2, from job.yaml",
            "The same job from kit's job file; TorchX has none, and takes its flags.",
            [DRY_RUN],
            kit=[kit, "submit", "job.yaml", "--dry-run"],
            bare_python=bare,
            TorchX=torchx_dry_run,
        )
        yield compare(
            "writing the files of 2x2",
            "kit render writes a run directory with the code's snapshot, HPC-launcher's"
            " --setup-only its launch folder, submitit its sbatch file alone.",
            kit=[kit, "render", "train.py", "-j", "2x2", "--output", "NEW"],
            bare_python=bare,
            HPC_launcher=[
                peers.tool("hpc-launcher", "launch"),
                "--setup-only",
                "--bg",
                "--scheduler",
                "slurm",
                "-N",
                "2",
                "-n",
                "2",
                "-l",
                "NEW",
                "train.py",
            ],
            submitit=[peers.tool("submitit"), peers.PEERS / "submitit_render.py", "NEW"],
        )
        yield compare(
            f"status of {JOBS} jobs",
            "kit asks squeue and names its runs with their reasons; TorchX asks sacct for JSON and"
            " lists ids and states. Both tools answer at once.",
            kit=[kit, "status"],
            bare_python=bare,
            TorchX=[torchx, "list", "-s", "slurm"],
        )


def timed(
    command: Sequence[str | Path], folder: Path, environment: dict[str, str]
) -> Callable[[], float]:
    """NEW in a command is a name that nothing has yet."""

    def take() -> float:
        return seconds(
            [f"new{next(NUMBERS)}" if word == "NEW" else word for word in command],
            cwd=folder,
            env=environment,
        )

    return take


def prepare(place: Path) -> dict[str, str]:
    """Makes what all sides find, and returns the environment of all their processes."""
    tools, work, state = place / "tools", place / "work", place / "state/kit"
    for folder in (tools, work, state):
        folder.mkdir(parents=True)
    (work / "train.py").touch()
    (work / "job.yaml").write_text(JOB_FILE)
    numbers = range(1, JOBS + 1)
    answers = {
        "squeue": "".join(
            f"{number}|RUNNING|N/A|4:12|1:00:00|node{number}|None|{work}\n" for number in numbers
        ),
        "sacct": (
            json.dumps(
                {
                    "jobs": [
                        {"job_id": number, "state": {"current": "RUNNING"}} for number in numbers
                    ]
                }
            )
            + "\n"
        ),
        "srun": "",  # submitit asks only whether it is there
    }
    for name, answer in answers.items():
        (place / name).write_text(answer)
        (tools / name).write_text(f"#!/bin/sh\nexec cat '{place / name}'\n")
        (tools / name).chmod(0o755)
    known = [
        {
            "id": str(number),
            "folder": str(work),
            "name": "train",
            "shape": "2x2",
            "created_s": time.time(),
        }
        for number in numbers
    ]
    (state / "runs.jsonl").write_text("".join(json.dumps(item) + "\n" for item in known))
    path = f"{tools}{os.pathsep}/usr/bin{os.pathsep}/bin"
    return {
        **os.environ,
        "PATH": path,
        "HOME": str(place),
        "XDG_STATE_HOME": str(place / "state"),
        "NEMORUN_HOME": str(place / "nemo"),
    }


def versions() -> dict[str, str]:
    return peers.versions("torchx", "nemo-run", "hpc-launcher", "submitit")


if __name__ == "__main__":
    main(run, rounds=11, versions=versions)
