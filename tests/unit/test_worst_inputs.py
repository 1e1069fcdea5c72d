"""The sixty inputs that users get wrong most, each with all that kit says of it: tests/unit/golden/worst_inputs.txt.

KIT_UPDATE_GOLDEN=1 writes the file anew; read it as a tired user would. Slurm's answers are those of tests/bad_jobs/slurm.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Callable

import pytest

import event_lines
import site_slurm
from plans import noted_run
from samples import ROOT

GOLDEN = ROOT / "tests/unit/golden/worst_inputs.txt"
GPU = "slurm: {partition: gpu}"
CPU = "slurm: {partition: cpu}"
# A job.yaml, which `kit submit --dry-run` is to take.
JOBS = (
    "command: |\n  python a.py\n  python b.py",
    "command: export OMP_NUM_THREADS=4",
    "command: module load cuda",
    "command: accelerate launch --num_processes 8 train.py --lr 0.1",
    "command: torchrun --nproc-per-node 8 --nnodes 2 train.py",
    "command: srun python train.py",
    "command: sbatch train.sbatch",
    "command: docker run pytorch train.py",
    "command: train.py; echo done",
    "command: train.py --data $DATA --log ~/logs --files *.tar",
    "command: “train.py”",
    "command: fit.sh --epochs 3",
    "command: train --epochs 3",
    "command: train.yaml",
    f"command: [train.py, --lr 0.1]\n{CPU}",
    f"command: train.py --config small.yml\n{CPU}",
    f"command: my-trainer --lr 0.1\n{CPU}",
    f"command: broken.py\n{CPU}",
    "command: ../other/train.py\nimage: images/train.sif",
    "command: train.py\nimage: first",
    "command: train.py\nimage: nvcr.io/nvidia/pytorch:25.09-py3",
    "command: train.py\nruntime: charliecloud",
    "command: train.py\nnodes: two\ntime: 2h\ngpus_per_node: a100:8",
    "command: train.py\nnodes: 1..4\nstage: nvme",
    f"command: train.py\nprocesses_per_node: 4\n{GPU}",
    "command: train.py\nslurm: {partition: gpu, gres: 'gpu:4'}",
    "command: train.py\ngpus_per_node: 4\nslurm: {partition: gpu, gres: 'gpu:2'}",
    f"command: train.py\nprocesses_per_node: 8\ngpus_per_node: 4\n{GPU}",
    "command: train.py\nslurm: {mem: 64 GB, partition: , account: ''}",
    "command: train.py\nslurm: {p: gpu, ntasks-per-node: 8, output: x.log}",
    "command: train.py\nnodes: 500\ntime: 30-0\nslurm: {partition: gpuu}",
    "comand: train.py\nvolumes: [/data]\nnproc_per_node: 8\npartition: gpu",
    "command: train.py\nenv: [A=1]\nmounts: /data",
    "command: train.py\nenv: {HF_TOKEN: hf_aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH}",
    "command: train.py\n\tnodes: 2",
    "- train.py",
)
# What is typed behind `kit`, beside a good job of another name.
TYPED = (
    "submit train.py --epochs 3",
    "submit train.py --mem 10G",
    "submit train.py --gres gpu:8",
    "submit train.py -n 16",
    "submit train.py -c config.yaml",
    "submit train.py --slurm partition",
    "submit train.py -j 2",
    "submit train.py --after 99",
    "submit",
    "submit smal.yaml",
    "submit images/train.sif",
    "submit data",
    "run --dry-run train.py",
    "run train.py --runtime docker",
    "logs trian",
    "logs --rank 9",
    "cancel",
    "runs --state failde",
    "status --watch --json",
    "diff",
    "ps",
    "version",
    "build -t first",
    "init imagez",
)


pytestmark = pytest.mark.tame


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site_slurm.put(tmp_path / "slurm", monkeypatch)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "project"
    shutil.copytree(ROOT / "tests/bad_jobs/slurm", folder / "data")
    (folder / "images").mkdir()
    for name in ("images/train.sif", "fit.sh", "train.py", "small.yaml"):
        (folder / name).touch()
    (folder / "broken.py").write_text("import os\nif True\n")
    monkeypatch.chdir(folder)
    logs = folder / "runs/train-1/log/1200000001"
    event_lines.add(logs, "batch", "ends", node="local0", code=0)
    noted_run(folder / "runs/train-1", "train", 1, 4, "1200000001", local=True)
    return folder


def test_there_are_sixty() -> None:
    assert len(JOBS) + len(TYPED) == 60


def test_the_worst_inputs_get_the_answers_of_the_golden_file(project: Path, kit_here: Callable) -> None:
    said = []
    for text in JOBS:
        (project / "job.yaml").write_text(f"{text}\n")
        shown = "".join(f"  {line}\n" for line in text.replace("\t", "<Tab>").splitlines())
        said.append(f"job.yaml:\n{shown}" + answer(project, kit_here("submit", "--dry-run"), is_dry=True))
    (project / "job.yaml").unlink()
    said += [f"$ kit {typed}\n{answer(project, kit_here(*typed.split()))}" for typed in TYPED]
    text = "\n".join(said)
    if os.environ.get("KIT_UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    assert not re.findall(r"^kit: .*$(?!\n  fix: \S)", text, re.MULTILINE), "a problem without a fix"
    assert not re.search("Traceback|internal error|None", text)


def answer(project: Path, done: tuple[int, str, str], *, is_dry: bool = False) -> str:
    """What a command said on both streams, without the scripts of a dry run, and its exit code."""
    code, out, err = done
    said = err if is_dry else out + err
    said = re.sub(r"Python 3\.\d+ ", "Python 3.X ", said.replace(str(project), "PROJECT").replace(str(project.parent), "TMP"))
    return f"{said}exit code {code}\n"
