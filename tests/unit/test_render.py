"""The files of a run directory: a change of what users run shows up as a change of tests/golden.

tests/golden has the env.sh of every runtime, and of every other case what differs there; for each the names of its files;
and one #SBATCH header. The scripts themselves are those of launch/scripts, which is checked here. After a wanted change:
KIT_UPDATE_GOLDEN=1 pytest tests/unit/test_render.py, and read the difference.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
from pathlib import Path

import pytest
from kit.base import assets
from kit.config import plugins
from kit.config.mount_list import Mount
from kit.config.notify import Notify
from kit.config.secrets import Secret
from kit.plan import run_paths
from kit.plan.packages import Packages
from kit.plan.plan import Plan, Snapshot
from kit.plan.render import render
from kit.plan.source_files import Sources

from plans import changed, plan_of
from samples import ROOT

GOLDEN = ROOT / "tests" / "golden"
SCRIPTS = ROOT / "launch" / "scripts"
WHOLE = "apptainer"  # the case whose header is kept


def plan(runtime: str) -> Plan:
    image = {"none": None, "enroot": "/images/train.sqsh", "docker": "docker://train", "podman": "docker://train"}.get(runtime, "/images/train.sif")
    return plan_of(
        name="digits & more",
        run_dir="/shared/runs/digits",
        nodes=2,
        processes_per_node=4,
        gpus_per_node=4,
        runtime=runtime,
        image=image,
        fingerprint="0123456789abcdef",
        workdir="/shared/project",
        mounts=(Mount("/shared/project", "/shared/project", False, ""), Mount("/data", "/data", True, "")) if image else (),
        command=("train.py", "--name", "it's $HOME\n"),
        env=(("NCCL_DEBUG", "INFO"), ("GREETING", "a b")),
        header=(
            ("job-name", "digits & more"),
            ("nodes", "2"),
            ("exclusive", None),
            ("comment", 'say "hi" # no comment'),
        ),
    )


def cases() -> dict[str, Plan]:
    """Every runtime and every launcher, and what else changes a script, once each."""
    found = {runtime: plan(runtime) for runtime in plugins.names("runtimes")}
    found |= {name: changed(plan("none"), launcher=name) for name in plugins.names("launchers") if name != "torchrun"}
    found["sbcast"] = changed(plan("enroot"), stage="sbcast", remap_root=True, unpack="auto")
    found["local"] = changed(plan("docker"), stage="local", scratch="/local scratch")
    found["checkpoint"] = changed(
        plan("none"),
        on_preempt="checkpoint",
        checkpoint_s=300,
        max_requeues=7,
        spares=2,
        health="/site/it's well",
        bad_nodes="/shared/bad nodes",
        max_restarts=3,
    )
    found["elastic"] = changed(plan("none"), max_restarts=3, elastic=True)
    found["endless"] = changed(plan("none"), on_preempt="checkpoint", resubmit=True)
    found["requeue"] = changed(plan("none"), on_preempt="requeue", checkpoints="/shared/it's out/{lr}", array="0-1", sweep=(("lr", ("0.1", "0.2")),))
    found["sweep"] = changed(
        plan("none"),
        array="0-1",
        sweep=(("lr", ("0.1", "it's")),),
        command=("train.py", "--lr={lr}", "{other}"),
        env=(("RATE", "{lr}"),),
    )
    found["frozen"] = changed(
        plan("none"),
        command=("/shared/runs/digits/code/train.py", "--config=/shared/runs/digits/code/a b.yaml", ""),
        env=(("CONFIG", "/shared/runs/digits/code/c.yaml"),),
        secrets=(Secret("HF_TOKEN", "env", "HF_TOKEN", ""), Secret("WANDB_API_KEY", "file", "/home/me/keys", "")),
        code=Snapshot(Sources("/shared/project", ("train.py",), 1, False, (), ()), "/shared/project", ("train.py",), False),
    )
    found["notify"] = changed(
        plan("none"), secrets=(Secret("HOOK", "env", "HOOK", ""),), notify=Notify(("start", "end"), "HOOK", ("mail", "-s", "it's $HOME\n", "me"), "")
    )
    found["stall"] = changed(plan("none"), stall_s=600, nodes=4, least=2, max_restarts=3)
    found["share"] = changed(plan("none"), on_preempt="checkpoint", share="group")
    found["cache"] = changed(plan("apptainer"), cache="keep")
    found["module"] = changed(plan("none"), code=Snapshot(Sources("/shared/project", ("train.py",), 1, False, (), ()), "/shared/project", ("train.py",), True))
    found["lines"] = changed(
        plan("none"),
        launcher="spawn",
        command=("bash", "/shared/runs/digits/lib/own_lines.sh", "script", "--lr", "a b"),
        script="python train.py\n",
        setup='ulimit -n 65536; source "${KIT_RUN_DIR}/lib/of-the-user.sh"\n',
        host_setup="module load cuda\n",
    )
    found["packages"] = changed(plan("enroot"), packages=Packages(("einops",), ("einops==0.8.1",), "/shared/it's/packages.tar.gz", "0123abcd" * 8, 4096))
    found["data"] = changed(plan("enroot"), mounts=(Mount("/shared/it's/data.sqsh", "/data", True, "", True),))
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
    runtime = CASES[case].container.runtime
    if case == runtime:
        return "env.sh", text
    plain = render(CASES[runtime])["env.sh"]
    lines = difflib.unified_diff(plain.splitlines(), text.splitlines(), lineterm="", n=0)
    # Without the numbers of the lines: a new line of env.sh changes those of the runtimes alone.
    return "env.diff", "".join("@@\n" if line.startswith("@@") else f"{line}\n" for line in list(lines)[2:])


def header(script: str) -> list[str]:
    return [line for line in script.splitlines() if line.startswith("#SBATCH ")]


def source(place: str) -> Path:
    """The file of launch/scripts that a file of a run directory is a copy of."""
    if place in ("run_script.sh", "module.py"):
        return SCRIPTS / place
    if "/" not in place:
        return SCRIPTS / "launchers" / place
    return SCRIPTS / (place if place.count("/") == 1 else place[len("lib/") :])


@pytest.mark.parametrize("case", CASES)
def test_the_values_and_the_files_of_a_run_are_the_golden_ones(case: str) -> None:
    files = render(CASES[case])
    check_golden(f"{case}/files", "".join(f"{name}\n" for name in files))
    check_golden("/".join((case, env_file(case, files["env.sh"])[0])), env_file(case, files["env.sh"])[1])


def test_the_header_is_the_golden_one_and_depends_on_the_plans_options_alone() -> None:
    headers = {name: header(render(case)["run_script.sh"]) for name, case in CASES.items()}
    check_golden(f"{WHOLE}/header", "".join(f"{line}\n" for line in headers[WHOLE]))
    assert headers == dict.fromkeys(CASES, headers[WHOLE]) and len(headers[WHOLE]) == len(CASES[WHOLE].header)
    assert render(changed(CASES[WHOLE], header=()))["run_script.sh"].splitlines()[:2] == ["#!/usr/bin/env bash", "#"]


@pytest.mark.parametrize("case", CASES)
def test_every_file_but_env_sh_is_the_one_of_launch_scripts(case: str) -> None:
    files = render(CASES[case])
    for key, name in run_paths.LINES.items():
        assert files.pop(name, "") == getattr(CASES[case].program, key)
    plain = source("run_script.sh").read_text()
    assert files.pop("run_script.sh").replace("".join(f"#SBATCH {line[8:]}\n" for line in header(render(CASES[case])["run_script.sh"])) + "#\n", "", 1) == plain
    del files["env.sh"]
    assert files == {name: source(name).read_text() for name in files}


@pytest.mark.parametrize("case", CASES)
def test_a_run_has_every_file_that_its_scripts_source_without_a_condition(case: str) -> None:
    """And no other: each file of lib/ is named by another one."""
    files = render(CASES[case])
    variables = {
        "${KIT_RUNTIME}": CASES[case].container.runtime,
        "${KIT_STAGE}": CASES[case].container.stage,
        "${KIT_ON_PREEMPT}": CASES[case].policy.on_preempt,
    }
    of_the_job = ("env.sh", *run_paths.LINES.values())
    text = "".join(text for name, text in files.items() if name not in of_the_job)
    for variable, value in variables.items():
        text = text.replace(variable, value)
    always = set(re.findall(r'(?m)^source "\$\{KIT_RUN_DIR\}/(lib/\S+)"$', text))
    named = set(re.findall(r'"\$\{KIT_RUN_DIR\}/(lib/[^"]+)"', text))
    assert always <= {name for name in files if name.startswith("lib/")} <= named


def test_what_a_person_reads_first_is_short() -> None:
    for case, plan in CASES.items():
        files = render(changed(plan, header=tuple((f"option-{number}", "1") for number in range(15))))
        assert files["run_script.sh"].count("\n") <= 150, case
        assert files[f"{plan.program.launcher}.sh"].count("\n") <= 80, case


def test_each_file_of_lib_is_in_some_run() -> None:
    there = {str(path.relative_to(SCRIPTS)) for folder in ("lib", "runtimes", "stages", "preempt") for path in (SCRIPTS / folder).iterdir() if path.is_file()}
    of_no_run = {"lib/contents.sh", "lib/reach.sh", "lib/runtimes.sh"}  # parts of probe.sh and collect.sh
    assert {str(source(name).relative_to(SCRIPTS)) for case in CASES.values() for name in render(case) if name.startswith("lib/")} == there - of_no_run


@pytest.mark.parametrize("name", ["probe.sh", "collect.sh"])
def test_a_script_that_travels_as_one_argument_is_not_too_long_for_linux(name: str) -> None:
    text = assets.script(name)
    runtime = assets.script("runtimes/enroot.sh")  # the longest: a site may add one that is as long, and sources as much
    assert len(text.encode()) + len(runtime.encode()) < 131_072  # with the zero at its end
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == ""


def test_the_same_plan_renders_the_same_bytes() -> None:
    assert render(plan("apptainer")) == render(plan("apptainer"))


def test_values_are_in_env_sh_alone() -> None:
    scripts = render(plan("apptainer"))
    body = "\n".join(line for name, text in scripts.items() if name != "env.sh" for line in text.splitlines() if not line.startswith("#SBATCH"))
    for value in ("/shared/runs", "/shared/project", "/images/train.sif", "it's $HOME", "GREETING"):
        assert value not in body


def test_there_is_no_golden_file_that_no_case_has() -> None:
    expected = {f"{WHOLE}/header"} | {f"{case}/{name}" for case in CASES for name in (env_file(case, "")[0], "files")}
    assert {str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*") if path.is_file()} == expected
