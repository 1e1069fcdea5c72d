"""The report of `make gpu-test`, without a GPU: nvidia-smi is a stand-in here, and nothing is trained."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpu_report
from samples import ROOT

ONE = gpu_report.Gpu("NVIDIA H100 80GB HBM3", "GPU-5e1f", "570.86.15", "81559 MiB")


def smi(folder: Path, says: str) -> None:
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{says}\n")
    (folder / "nvidia-smi").chmod(0o755)


@pytest.mark.parametrize("says", [None, "echo 'No devices were found' >&2; exit 6"])
def test_without_a_gpu_it_says_so_and_fails(says: str, tmp_path: Path) -> None:
    if says:
        smi(tmp_path, says)
    words = [sys.executable, str(ROOT / "tests/gpu_report.py"), "--report", str(tmp_path / "report.md")]
    done = subprocess.run(words, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("gpu-test: this machine has no NVIDIA GPU that works: ")
    assert not (tmp_path / "report.md").exists()


def test_the_gpus_are_those_of_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, "echo 'NVIDIA H100 80GB HBM3, GPU-5e1f, 570.86.15, 81559 MiB'")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert gpu_report.gpus() == [ONE]


def test_the_report_has_a_row_for_each_check() -> None:
    assert gpu_report.report([ONE, ONE], [("train/spawn.yaml", "right", "2 ranks", 3.4)]).splitlines()[2:] == [
        f"{gpu_report.time.strftime('%Y-%m-%d')}: 2 x NVIDIA H100 80GB HBM3, 81559 MiB each, driver 570.86.15.",
        "",
        "| | | | |",
        "|---|---|---|---|",
        "| train/spawn.yaml | right | 2 ranks | 3 s |",
    ]


def test_every_program_of_train_that_torch_runs_is_tried() -> None:
    others = {"cifar10", "cifar10_original", "horovod_digits", "mpi_sum", "tensorflow_digits"}  # by itself, its twin, or without torch's NCCL
    assert {path.stem for path in (ROOT / "train").glob("*.yaml")} == {*gpu_report.PROGRAMS, *others}


def test_every_framework_is_tried() -> None:
    assert {path.parent.name for path in (ROOT / "train/frameworks").glob("*/job.yaml")} == set(gpu_report.FRAMEWORKS)


@pytest.mark.parametrize(
    "lacks", ["ModuleNotFoundError: No module named 'deepspeed.ops'", "kit: error: local0: no python3 or python on PATH has deepspeed (looked in /usr/bin)"]
)
def test_a_framework_that_is_not_installed_is_not_tried(lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`kit` is a stand-in here, too."""
    (tmp_path / "kit").write_text(f'#!/bin/sh\necho "{lacks}" >&2\nexit 1\n')
    (tmp_path / "kit").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    machine = gpu_report.Machine([ONE], [], tmp_path, tmp_path)
    with pytest.raises(gpu_report.Lacking, match=r"^deepspeed is not installed$"):
        machine.kit(ROOT / "train/frameworks/deepspeed/job.yaml")


def test_a_gpu_whose_memory_nobody_took_was_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, 'printf "100\\n%d\\n" "$(cat "$0.mb")"')
    (tmp_path / "nvidia-smi.mb").write_text("90")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with gpu_report.Memory() as memory:
        (tmp_path / "nvidia-smi.mb").write_text("700")
        until = gpu_report.time.monotonic() + 30
        while memory.most[1] < 700 and gpu_report.time.monotonic() < until:
            gpu_report.time.sleep(0.05)
    assert memory.held_mb() == [0, 610]


def test_what_each_program_is_to_print_is_in_its_text() -> None:
    for name, line in gpu_report.PROGRAMS.items():
        text = (ROOT / f"train/{name}.py").read_text()
        for word in line.split("|"):
            start = re.split(r"\\d| cuda:0|by nccl", word)[0].strip()
            assert start in text, (name, word)
