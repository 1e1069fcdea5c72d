"""The bash is lint-clean as it stands and as it is rendered, and keeps to the rules of CONTRIBUTING.md."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from kit import plugins
from kit.plan import Plan
from kit.render import render
from kit.values import Mount
from samples import HOSTILE_NAME, ROOT

SCRIPTS = ROOT / "launch" / "scripts"


def is_bash(path: Path) -> bool:
    if not path.is_file() or path.suffix not in ("", ".sh", ".bash"):
        return False
    first = path.open("rb").readline()
    return path.suffix != "" or (first.startswith(b"#!") and b"bash" in first)


def relative(paths: list[Path]) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in paths)


OURS = relative([path for path in SCRIPTS.rglob("*") if is_bash(path)])
FOLDERS = (".ci", "bench", "containers", "docs", "env", "launch", "tests", "train")
ALL = relative([path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if is_bash(path)])


def lint(*arguments: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(["shellcheck", *arguments], cwd=cwd, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_the_scripts_are_found() -> None:
    assert {"launch/scripts/run_script.sh", "launch/scripts/local/srun", "launch/scripts/local/scontrol"} <= set(OURS)
    assert {"tests/bash/stubs/enroot", ".ci/run", *OURS} <= set(ALL)


def test_all_bash_is_clean_as_it_stands() -> None:
    assert lint("--external-sources", "--source-path=.", "--source-path=launch/scripts", *ALL) == ""


@pytest.mark.parametrize(
    ("runtime", "launcher", "stage", "on_preempt"),
    [
        *((runtime, "torchrun", stage, "none") for runtime in plugins.names("runtimes") for stage in plugins.names("stages")),
        *(("none", launcher, "none", "none") for launcher in plugins.names("launchers")),  # whose scripts hold nothing of the others
        ("none", "torchrun", "none", "checkpoint"),
    ],
)
def test_rendered_scripts_are_clean(runtime: str, launcher: str, stage: str, on_preempt: str, tmp_path: Path) -> None:
    plan = Plan(
        name=HOSTILE_NAME,
        run_dir=f"/shared/{HOSTILE_NAME}",
        nodes=2,
        spares=1 if on_preempt == "checkpoint" else 0,
        bad_nodes="",
        left_out=(),
        processes_per_node=4,
        gpus_per_node=4,
        tasks_per_node=1,
        runtime=runtime,
        why_runtime="",
        launcher=launcher,
        max_restarts=0,
        image=f"/shared/{HOSTILE_NAME}.sqsh",
        fingerprint="0123456789abcdef",
        image_sha256=None,
        workdir=f"/shared/{HOSTILE_NAME}",
        mounts=(Mount(f"/shared/{HOSTILE_NAME}", "/data", True, "here"),),
        command=("train.py", HOSTILE_NAME, "a\nb"),
        env=(("GREETING", HOSTILE_NAME),),
        header=(("job-name", HOSTILE_NAME), ("exclusive", None)),
        stage=stage,
        on_preempt=on_preempt,
        checkpoint_s=120,
        max_requeues=None,
        ready_timeout_s=1200,
        scratch="/tmp",
        remap_root=True,
        cluster="generic",
    )
    scripts = render(plan)
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
    assert sorted(scripts) == sorted(["env.sh", "run_script.sh", f"{launcher}.sh"])
    assert not re.search(r"^\s*source .*KIT_SCRIPTS", "".join(scripts.values()), re.MULTILINE), "something was not inlined"
    assert lint(*scripts, cwd=tmp_path) == ""


def numbered(names: list[str]) -> list[tuple[str, str]]:
    """Every line, with the place that an editor would open."""
    return [(f"{name}:{number}", line) for name in names for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)]


def test_every_disabled_check_carries_its_reason() -> None:
    bare = [place for place, line in numbered(ALL) if re.search(r"#\s*shellcheck\s+disable=", line) and not re.search(r"disable=[A-Z0-9,]+\s+#\s*\w+", line)]
    assert bare == []


def test_every_script_starts_with_what_it_is() -> None:
    for name in OURS:
        lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith(("#!", "# shellcheck "))]
        place = str(Path(name).relative_to("launch/scripts"))
        own_names = {place, Path(name).name}
        match = re.match(r"# (\S+) - \w+", lines[0])
        assert match and match[1] in own_names, f"{name} starts with {lines[0]!r}"


def test_scripts_are_bash_and_nothing_else() -> None:
    code = [(place, line.partition(" #")[0]) for place, line in numbered(OURS) if not line.lstrip().startswith("#")]
    assert [place for place, line in numbered(OURS) if "\t" in line] == []
    assert [place for place, line in code if re.search(r"(^|[\s;&|(])eval\s", line)] == []
    assert [place for place, line in code if "<<" in line and "<<<" not in line] == [], "a here-document may hold another language"
    python = [line.strip() for _, line in code if re.search(r"\bimport\b", line)]
    assert len(python) == 1 and "find_spec" in python[0]
