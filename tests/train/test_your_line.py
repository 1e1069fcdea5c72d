"""Each job of docs/your-line.md is run as it stands there, and its ranks meet: on two local nodes, without a container and without GPUs.

Four of them have half of their ranks. The programs are those of tests/train/lines: each adds up the ranks' numbers by its framework's own means.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from samples import ROOT

PROGRAMS = {
    "torchrun on one node": ["ddp"],
    "torchrun on several nodes": ["ddp"],
    "python -m torch.distributed.launch": ["local_rank"],
    "srun python train.py": ["by_slurm"],
    "accelerate launch": ["accelerated", "accelerated"],
    "Hugging Face's Trainer": ["hf_trainer"],
    "deepspeed": ["sped"],
    "Lightning's Trainer": ["lit"],
    "Lightning Fabric": ["fabric"],
    "python main.py --rank ...": ["main"],
    "mpirun": ["over_mpi"],
    "ft_launcher and dlrover-run": ["ddp", "ddp"],
}
# They are not installed here: torchrun, whose options they take, stands for them, without their own.
STAND_IN = """#!/usr/bin/env bash
while (($# > 0)); do
  [[ "$1" == --ft-* ]] && shift 2 || { words+=("$1") && shift; }
done
exec python3 -m torch.distributed.run "${words[@]}"
"""
# What a program needs beyond torch. DeepSpeed compiles for minutes: it is not in the test extra.
PACKAGES = {"accelerated": "accelerate", "lit": "lightning", "fabric": "lightning", "over_mpi": "mpi4py", "hf_trainer": "transformers", "sped": "deepspeed"}
HEAVY = ("sped",)
PAGE = (ROOT / "docs/your-line.md").read_text()
_PARTS = re.split(r"^## (.*)\n", PAGE, flags=re.MULTILINE)[1:]
SECTIONS = dict(zip(_PARTS[::2], _PARTS[1::2]))


def jobs(heading: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", SECTIONS[heading], re.DOTALL)


def lacks(program: str) -> list[pytest.MarkDecorator]:
    """The marks of a test that something here would keep from running."""
    marks = []
    package = PACKAGES.get(program, "torch")
    if program in HEAVY:
        reason = f"pip install {package}, before a release: KIT_TEST_FRAMEWORKS=1 does it"
        marks.append(pytest.mark.skipif(os.environ.get("KIT_TEST_FRAMEWORKS") != "1", reason=reason))
    else:
        marks.append(pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"not here: {package}"))
    if package == "mpi4py":
        marks.append(pytest.mark.skipif(shutil.which("mpirun") is None, reason="not here: mpirun"))
    return marks


def test_every_job_of_the_page_has_its_program() -> None:
    assert {heading: len(programs) for heading, programs in PROGRAMS.items()} == {heading: len(jobs(heading)) for heading in SECTIONS if jobs(heading)}
    assert {name for names in PROGRAMS.values() for name in names} == {path.stem for path in (ROOT / "tests/train/lines").glob("*.py")}


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="not here: accelerate")
def test_accelerates_settings_are_the_same_from_its_file_and_from_the_variables_that_the_page_shows(kit, tmp_path: Path) -> None:
    fsdp = "fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 1234, fsdp_reshard_after_forward: true}\n"
    (tmp_path / "accelerate.yaml").write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\n" + fsdp)
    plugin = "from accelerate.utils import FullyShardedDataParallelPlugin as Plugin\n"
    (tmp_path / "show.py").write_text(
        plugin + "import os, re\nprint('SHOWN', os.environ.get('ACCELERATE_MIXED_PRECISION'), re.sub('0x[0-9a-f]+', '', repr(Plugin())))\n"
    )
    (command,) = re.findall(r"^accelerate launch .* env .*$", PAGE, re.MULTILINE)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    launched, shown = (
        subprocess.run(["bash", "-c", words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=True).stdout
        for words in (command.partition("--no_python")[0] + "show.py", command)
    )
    job = [word for line in shown.splitlines() for word in ("--env", line)]
    done = [
        kit("run", "show.py", "--launcher", "srun", "-j", "1x1", "--runtime", "none", *options, "--output", output)
        for output, options in (("with", job), ("without", []))
    ]
    said = [re.search(r"SHOWN .*", text)[0] for text in (launched, done[0].stdout, done[1].stdout)]
    assert said[0] == said[1] != said[2]
    assert "SHOWN bf16 " in said[0] and "1234" in shown


@pytest.mark.parametrize(
    ("program", "text"),
    [
        pytest.param(name, text, id=f"{heading}: {number}", marks=lacks(name))
        for heading, names in PROGRAMS.items()
        for number, (name, text) in enumerate(zip(names, jobs(heading)))
    ],
)
def test_the_ranks_of_a_job_of_the_page_meet(program: str, text: str, kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "main.py" if program == "main" else "train.py"
    shutil.copy(ROOT / f"tests/train/lines/{program}.py", tmp_path / own)
    shutil.copy(ROOT / "train/ranks.py", tmp_path)  # the programs end with its leave()
    (tmp_path / "accelerate.yaml").write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\n")
    (tmp_path / "job.yaml").write_text(text)
    for name in ("ft_launcher", "dlrover-run"):
        (tmp_path / "bin" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(STAND_IN)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    # Each import takes 3 to 5 s of CPU. Jobs that have a number of ranks in them, and programs that have one, get all of theirs.
    halved = "nodes: 2" in text and "script:" not in text and program in ("ddp", "accelerated", "hf_trainer", "fabric")
    shape = ["-j", "2x1"] if halved else []
    # Without a GPU Accelerate, which Transformers uses, has to be told of the CPUs.
    done = kit("run", "job.yaml", *shape, "--runtime", "none", "--env", "ACCELERATE_USE_CPU=true", timeout_s=900)
    # Ranks that a launcher starts share a pipe, in which two lines may become one.
    ranks = sorted(re.findall(r"rank (\d) of (\d): the ranks' sum is (\d+)", done.stdout))
    world = 4 if "nodes: 2" in text and not shape else 2
    assert ranks == [(str(rank), str(world), str(world * (world + 1) // 2)) for rank in range(world)], done.stdout + done.stderr
    assert "all ranks ended well" in done.stdout
    # MPI has other ways to meet.
    assert "ranks were connected with each other" in kit("why").stdout or program == "over_mpi"
    assert "was ever connected" not in done.stdout + done.stderr
    if program == "fabric":
        (shown,) = re.findall(r"```python\n(.*?)```", SECTIONS["Lightning Fabric"], re.DOTALL)
        squeezed = [re.sub(r"\s|,(?=\s*\))", "", code) for code in (shown, (tmp_path / own).read_text())]
        assert squeezed[0] in squeezed[1]
