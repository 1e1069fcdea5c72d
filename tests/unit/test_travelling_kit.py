"""The copy of kit that a login node gets: it needs nothing but Python, and is what a wheel is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kit.cli import entry
from kit.plan import file_list
from kit.remote import context, install, landing, packing
from kit.remote.where import Typed

from samples import ROOT


def test_the_copy_runs_with_a_bare_python_and_finds_its_assets(tmp_path: Path) -> None:
    for inside, path in install._files().items():
        (tmp_path / "copy" / inside).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, tmp_path / "copy" / inside)
    (tmp_path / "copy/__main__.py").write_text(install._PROGRAMS["__main__.py"])
    (tmp_path / "program.py").touch()

    def call(*words: str) -> str:
        # -S: without what is installed beside this Python.
        line = [sys.executable, "-I", "-S", str(tmp_path / "copy"), *words]
        return subprocess.run(line, cwd=tmp_path, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)}, capture_output=True, text=True, check=True).stdout

    assert call("--version").startswith("kit ")
    assert "torchrun" in call("submit", "program.py", "--runtime", "none", "--dry-run")
    assert "(exit-code)\n" in call("why", str(shutil.copytree(ROOT / "tests/corpus/exit-code", tmp_path / "run")))
    assert not [path for path in (tmp_path / "copy").rglob("*") if path.suffix in (".so", ".pyd")]


def test_its_assets_are_those_of_a_wheel() -> None:
    included = (ROOT / "pyproject.toml").read_text().split("force-include]\n")[1].split("\n\n")[0]
    assert dict(re.findall(r'^"(.+)" = "(.+)"$', included, re.MULTILINE)) == {name: f"kit/_assets/{name}" for name in install.ASSETS}


def test_what_is_asked_before_the_copy_is_there_needs_python_alone(tmp_path: Path) -> None:
    source = Path(landing.__file__).read_text()
    assert set(re.findall(r"^(?:from|import) (\S+)", source, re.MULTILINE)) <= {"__future__", "json", "os", "sys", "time", "contextlib", "typing"}
    assert landing.BROUGHT == file_list.NAME


def test_a_profile_keeps_all_but_the_way_to_it_and_its_secrets() -> None:
    text = "ssh: login\nssh_dir: /shared/kit\nssh_python: /p\nsecrets: [X]\nruntime: none\nslurm: {time: '1:00', exclusive: true, nice: 010}\n"
    assert packing.profile_there(text) == "runtime: none\nslurm: {time: '1:00', exclusive: true, nice: 010}\n"
    assert packing.profile_there("ssh: login\n") == "{}\n"


def test_options_go_before_the_programs_own_arguments() -> None:
    assert packing.with_options(["bench", "job.yaml"], "--cluster", "x") == ["bench", "job.yaml", "--cluster", "x"]
    assert packing.with_options(["shell", "a", "--", "--cluster", "y"], "--cluster", "x") == ["shell", "a", "--cluster", "x", "--", "--cluster", "y"]


def test_a_word_that_is_also_the_value_of_an_option_stays() -> None:
    def sent(*words: str) -> list[str]:
        typed = Typed("build", ["build", *words], {"target": "first"}, None, None, None)  # type: ignore[arg-type]
        return context.words(typed, context.Context("first", "first"), "/k")[0]

    end = ["--images", "/k/images", "first"]
    assert sent("first", "--name", "first", "--cluster", "far") == ["build", "--name", "first", *end]
    assert sent("--cluster=first", "--no-cache", "first", "--", "first") == ["build", "--no-cache", *end, "--", "first"]
    typed = Typed("build", ["build", "build"], {"target": "build"}, None, None, None)  # type: ignore[arg-type]
    assert context.words(typed, context.Context("build", "build"), "/k")[0] == ["build", "--images", "/k/images", "build"]
    options = [option for option in entry.tree("build").commands["build"].params if option.param_type_name == "option"]
    assert {name for option in options if option.is_flag for name in option.opts} == {*context.FLAGS}


def test_the_bases_that_image_lock_names_are_those_of_a_build_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("Dockerfile").write_text("FROM base:1\nCOPY train.py /\n")
    Path("train.py").touch()
    Path("image.lock").write_text('{"base:1": "sha256:1"}')
    typed = Typed("build", ["build"], {}, None, None, print)  # type: ignore[arg-type]
    with context.read(typed) as found:
        assert found.source and sorted(os.listdir(found.source)) == ["Dockerfile", "image.lock", "train.py"]


def test_absolute_paths_of_the_project_are_relative_on_the_way() -> None:
    words = ["/home/ada/p/job.yaml", "--output", "/home/ada/p/runs/x", "--workdir=/home/ada/p", "/home/ada/p2", "--", "/home/ada/p/y"]
    expected = ["../job.yaml", "--output", "../runs/x", "--workdir=..", "/home/ada/p2", "--", "/home/ada/p/y"]
    assert packing._relative(words, "/home/ada/p", "/home/ada/p/sub") == expected
