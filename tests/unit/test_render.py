"""The generated scripts: a change of what users run shows up as a change of tests/golden.

tests/golden has the env.sh of every runtime, and of every other case what differs there; and for each the names of the
files that its scripts are put together from. One case has its scripts whole, #SBATCH header included. The others are
compared with launch/scripts itself, so that an edit of a script changes one golden file at most. After a wanted change: KIT_UPDATE_GOLDEN=1 pytest tests/unit/test_render.py, and
read the difference.
"""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter

import pytest
from kit import plugins, values
from kit.plan import Plan
from kit.render import render
from kit.secret_values import Secret
from kit.snapshot import Snapshot
from kit.sources import Sources
from samples import ROOT

GOLDEN = ROOT / "tests" / "golden"
SCRIPTS = ROOT / "launch" / "scripts"
WHOLE = "apptainer"  # the case whose scripts are kept whole


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
        header=(
            ("job-name", "digits & more"),
            ("nodes", "2"),
            ("exclusive", None),
            ("comment", 'say "hi" # no comment'),
        ),
        stage="none",
        on_preempt="none",
        checkpoint_s=120,
        max_requeues=None,
        ready_timeout_s=1200,
        scratch="/tmp",
        remap_root=False,
        cluster="generic",
    )


def cases() -> dict[str, Plan]:
    """Every runtime and every launcher, and what else changes a script, once each."""
    found = {runtime: plan(runtime) for runtime in plugins.names("runtimes")}
    found |= {name: plan("none")._replace(launcher=name) for name in plugins.names("launchers") if name != "torchrun"}
    found["sbcast"] = plan("enroot")._replace(stage="sbcast", remap_root=True)
    found["local"] = plan("docker")._replace(stage="local", scratch="/local scratch")
    found["checkpoint"] = plan("none")._replace(
        on_preempt="checkpoint",
        checkpoint_s=300,
        max_requeues=7,
        spares=2,
        bad_nodes="/shared/bad nodes",
        max_restarts=3,
    )
    found["endless"] = plan("none")._replace(on_preempt="checkpoint")
    found["sweep"] = plan("none")._replace(
        array="0-1",
        sweep=(("lr", ("0.1", "it's")),),
        command=("train.py", "--lr={lr}", "{other}"),
        env=(("RATE", "{lr}"),),
    )
    found["frozen"] = plan("none")._replace(
        command=("/shared/runs/digits/code/train.py", "--config=/shared/runs/digits/code/a b.yaml", ""),
        env=(("CONFIG", "/shared/runs/digits/code/c.yaml"),),
        secrets=(Secret("HF_TOKEN", "env", "HF_TOKEN", ""), Secret("WANDB_API_KEY", "file", "/home/me/keys", "")),
        code=Snapshot(Sources("/shared/project", ("train.py",), 1, False, (), ()), "/shared/project", ("train.py",), False),
    )
    found["module"] = plan("none")._replace(code=Snapshot(Sources("/shared/project", ("train.py",), 1, False, (), ()), "/shared/project", ("train.py",), True))
    return found


CASES = cases()


def check_golden(place: str, text: str) -> None:
    file = GOLDEN / place
    if os.environ.get("KIT_UPDATE_GOLDEN") == "1":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), f"tests/golden/{place} has another text"


def env_file(case: str, text: str) -> tuple[str, str]:
    """The golden file for an env.sh: whole for a runtime, otherwise the lines that differ from those of its runtime."""
    runtime = CASES[case].runtime
    if case == runtime:
        return "env.sh", text
    plain = render(CASES[runtime])["env.sh"]
    lines = difflib.unified_diff(plain.splitlines(), text.splitlines(), lineterm="", n=0)
    # Without the numbers of the lines: a new line of env.sh changes those of the runtimes alone.
    return "env.diff", "".join("@@\n" if line.startswith("@@") else f"{line}\n" for line in list(lines)[2:])


def own_lines(part: str) -> list[str]:
    """The lines of a file of launch/scripts, but those that name what is put in their place."""
    return re.sub(
        r"(?m)\A# shellcheck shell=bash\n|^# shellcheck source=\S+\nsource \"\$\{KIT_SCRIPTS\}/.*\n",
        "",
        (SCRIPTS / part).read_text(),
    ).splitlines()


TITLES = {own_lines(str(path.relative_to(SCRIPTS)))[0]: str(path.relative_to(SCRIPTS)) for path in SCRIPTS.rglob("*.sh")}


def parts(script: str, text: str) -> list[str]:
    """The files of launch/scripts in a generated script, in its order, by their first lines."""
    source = script if script in ("run_script.sh", "module.py") else f"launchers/{script}"
    return [source, *(TITLES[line] for line in text.splitlines()[1:] if line in TITLES)]


@pytest.mark.parametrize("case", CASES)
def test_the_values_and_the_parts_of_a_run_are_the_golden_ones(case: str) -> None:
    scripts = render(CASES[case])
    name, text = env_file(case, scripts.pop("env.sh"))
    check_golden(f"{case}/{name}", text)
    check_golden(f"{case}/parts", "".join(f"{name}: {' '.join(parts(name, text))}\n" for name, text in scripts.items()))


@pytest.mark.parametrize("name", ["run_script.sh", "torchrun.sh"])
def test_the_scripts_of_one_run_are_the_golden_ones_whole(name: str) -> None:
    check_golden(f"{WHOLE}/{name}", render(CASES[WHOLE])[name])


def test_the_header_depends_on_the_plans_options_alone() -> None:
    headers = {name: re.findall(r"(?m)^#SBATCH .*", render(case)["run_script.sh"]) for name, case in CASES.items()}
    assert headers == dict.fromkeys(CASES, headers[WHOLE]) and len(headers[WHOLE]) == len(CASES[WHOLE].header)
    assert render(CASES[WHOLE]._replace(header=()))["run_script.sh"].splitlines()[:2] == ["#!/usr/bin/env bash", "#"]


@pytest.mark.parametrize("case", CASES)
def test_a_script_is_its_parts_whole_and_nothing_else(case: str) -> None:
    scripts = render(CASES[case])
    assert set(scripts) == {
        "env.sh",
        "run_script.sh",
        f"{CASES[case].launcher}.sh",
        *(["module.py"] if case == "module" else []),
    }
    for name in set(scripts) - {"env.sh"}:
        header = [line for line in scripts[name].splitlines() if line.startswith("#SBATCH ")]
        found = Counter(scripts[name].splitlines()) - Counter([*header, "#"] if header else [])
        assert found == Counter(line for part in parts(name, scripts[name]) for line in own_lines(part)), name


def test_the_same_plan_renders_the_same_bytes() -> None:
    assert render(plan("apptainer")) == render(plan("apptainer"))


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_left_to_source_but_env_sh(case: str) -> None:
    scripts = render(CASES[case])
    sourced = [line for text in scripts.values() for line in text.splitlines() if re.match(r"\s*(source|\.) ", line)]
    assert "KIT_SCRIPTS" not in "".join(scripts.values())
    assert sourced and all("env.sh" in line for line in sourced)


def test_values_are_in_env_sh_alone() -> None:
    scripts = render(plan("apptainer"))
    body = "\n".join(line for line in scripts["run_script.sh"].splitlines() if not line.startswith("#SBATCH"))
    for value in ("/shared/runs", "/shared/project", "/images/train.sif", "it's $HOME", "GREETING"):
        assert value not in body + scripts["torchrun.sh"]


def test_there_is_no_golden_file_that_no_case_has() -> None:
    expected = {f"{WHOLE}/run_script.sh", f"{WHOLE}/torchrun.sh"}
    expected |= {f"{case}/{name}" for case in CASES for name in (env_file(case, "")[0], "parts")}
    assert {str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*") if path.is_file()} == expected
