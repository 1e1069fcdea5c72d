"""The generated scripts, whole: a change of what users run shows up as a change of tests/golden."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kit import plugins, values
from kit.plan import Plan
from kit.render import render
from samples import ROOT

GOLDEN = ROOT / "tests" / "golden"


def plan(runtime: str) -> Plan:
    image = {"none": None, "enroot": "/images/train.sqsh", "docker": "docker://train", "podman": "docker://train"}.get(runtime, "/images/train.sif")
    return Plan(
        name="digits & more",
        run_dir="/shared/runs/digits",
        nodes=2,
        spares=0,
        bad_nodes="",
        left_out=(),
        processes_per_node=4,
        gpus_per_node=4,
        tasks_per_node=1,
        runtime=runtime,
        why_runtime="",
        launcher="torchrun",
        max_restarts=0,
        image=image,
        fingerprint="0123456789abcdef",
        image_sha256=None,
        workdir="/shared/project",
        mounts=(values.Mount("/shared/project", "/shared/project", False, ""), values.Mount("/data", "/data", True, "")) if image else (),
        command=("train.py", "--name", "it's $HOME\n"),
        env=(("NCCL_DEBUG", "INFO"), ("GREETING", "a b")),
        header=(("job-name", "digits & more"), ("nodes", "2"), ("exclusive", None), ("comment", 'say "hi" # no comment')),
        stage="none",
        on_preempt="none",
        checkpoint_s=120,
        max_requeues=None,
        ready_timeout_s=1200,
        scratch="/tmp",
        remap_root=False,
        cluster="generic",
    )


@pytest.mark.parametrize("runtime", plugins.names("runtimes"))
def test_scripts_are_the_golden_ones(runtime: str) -> None:
    """After a wanted change: KIT_UPDATE_GOLDEN=1 pytest tests/unit/test_render.py, and read the difference."""
    for name, text in render(plan(runtime)).items():
        file = GOLDEN / runtime / name
        if os.environ.get("KIT_UPDATE_GOLDEN") == "1":
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        assert text == file.read_text(), f"{name} of the runtime {runtime} changed"


def test_the_same_plan_renders_the_same_bytes() -> None:
    assert render(plan("apptainer")) == render(plan("apptainer"))


@pytest.mark.parametrize("runtime", plugins.names("runtimes"))
def test_nothing_is_left_to_source_but_env_sh(runtime: str) -> None:
    for text in render(plan(runtime)).values():
        assert "KIT_SCRIPTS" not in text
        assert all("env.sh" in line for line in text.splitlines() if line.startswith("source "))


def test_values_are_in_env_sh_alone() -> None:
    scripts = render(plan("apptainer"))
    body = "\n".join(line for line in scripts["run_script.sh"].splitlines() if not line.startswith("#SBATCH"))
    for value in ("/shared/runs", "/shared/project", "/images/train.sif", "it's $HOME", "GREETING"):
        assert value not in body + scripts["torchrun.sh"]


def test_a_golden_folder_is_there_for_every_runtime_and_no_other() -> None:
    assert sorted(path.name for path in Path(GOLDEN).iterdir()) == plugins.names("runtimes")
