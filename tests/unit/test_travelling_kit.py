"""The copy of kit that a login node gets: it needs nothing but Python, and is what a wheel is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from kit.remote import errand, whole
from samples import ROOT


def test_the_copy_runs_with_a_bare_python_and_finds_its_assets(tmp_path: Path) -> None:
    for inside, path in whole._files().items():
        (tmp_path / "copy" / inside).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, tmp_path / "copy" / inside)
    (tmp_path / "copy/__main__.py").write_text(whole._MAIN)
    (tmp_path / "program.py").touch()

    def call(*words: str) -> str:
        # -S: without what is installed beside this Python.
        line = [sys.executable, "-I", "-S", str(tmp_path / "copy"), *words]
        return subprocess.run(line, cwd=tmp_path, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)}, capture_output=True, text=True, check=True).stdout

    assert call("--version").startswith("kit ")
    assert "torchrun" in call("submit", "program.py", "--runtime", "none", "--dry-run")
    assert not [path for path in (tmp_path / "copy").rglob("*") if path.suffix in (".so", ".pyd")]


def test_its_assets_are_those_of_a_wheel() -> None:
    included = (ROOT / "pyproject.toml").read_text().split("force-include]\n")[1].split("\n\n")[0]
    assert dict(re.findall(r'^"(.+)" = "(.+)"$', included, re.MULTILINE)) == {name: f"kit/_assets/{name}" for name in whole.ASSETS}


def test_a_profile_keeps_all_but_the_way_to_it() -> None:
    text = "ssh: login\nssh_dir: /shared/kit\nruntime: none\nslurm: {time: '1:00', exclusive: true, nice: 010}\n"
    assert errand.profile_there(text) == "runtime: none\nslurm: {time: '1:00', exclusive: true, nice: 010}\n"
    assert errand.profile_there("ssh: login\n") == "{}\n"


def test_options_go_before_the_programs_own_arguments() -> None:
    assert errand.with_options(["bench", "job.yaml"], "--cluster", "x") == ["bench", "job.yaml", "--cluster", "x"]
    assert errand.with_options(["shell", "a", "--", "--cluster", "y"], "--cluster", "x") == ["shell", "a", "--cluster", "x", "--", "--cluster", "y"]
