"""What kit says of a command's arguments: which files of this machine the container will not see."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kit.base.errors import Problems
from kit.config import plugins
from kit.config.job import Job
from kit.config.mount_list import Mount
from kit.plan import arguments, mounting


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that no image has, though it may be below /tmp: a project, a data set, and one that is mounted."""
    monkeypatch.setattr(arguments, "_OF_SYSTEMS", re.compile("/usr/"))
    for name in ("project", "data/train", "mounted/train"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project/link").symlink_to("../data/train")
    (tmp_path / "project/seen").symlink_to(tmp_path / "mounted/train")
    (tmp_path / "project/inner").symlink_to(tmp_path / "project")
    return tmp_path


def said(place: Path, *words: str, runtime: str = "apptainer", on_nodes: bool = False, target: str = "@/mounted", script: str = "") -> list[str]:
    problems = Problems()
    mounts = (Mount(str(place / "mounted"), target.replace("@", str(place)), True, "", on_nodes=on_nodes),)
    command = ("train.py", *(word.replace("@", str(place)) for word in words))
    job = Job(command=command, workdir=str(place / "project"), mounts=mounts, script=script)
    view = mounting.complete(job, str(place / "project/runs/a"), plugins.find("runtimes", runtime, ""), problems)
    arguments.check(job, view, problems)
    return [found.problem.removeprefix("warning: ").replace(str(place), "@") for found in problems.warnings]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--data", "@/data"], "@/data is here, but outside of the working directory and of all mounts: the container sees only one of its own"),
        (["data.path=@/data/train"], "@/data/train is here, but outside of the working directory and of all mounts: the container sees only one of its own"),
        (["../data"], "../data leads to @/data, which is outside of the working directory and of all mounts: the container does not see it"),
        (["--data=link"], "link leads to @/data/train, which is outside of the working directory and of all mounts: the container does not see it"),
        (["--out", "@/project/link/"], "@/project/link/ leads to @/data/train, which is outside of the working directory and of all mounts: the container does not see it"),
    ],
)  # fmt: skip
def test_data_that_no_mount_shows_is_named_before_the_job_waits(words: list[str], expected: str, place: Path) -> None:
    assert said(place, *words) == [expected]
    assert said(place, *words, runtime="none") == []


@pytest.mark.parametrize("word", ["@/mounted/train", "seen", "inner", "@/project", ".", "8", "", "@/gone", "/usr/bin/env", "@/data/*"])
def test_what_the_container_sees_or_this_machine_lacks_is_not_named(word: str, place: Path) -> None:
    assert said(place, "--data", word) == []
    assert said(place, "--data", word, on_nodes=True) == []


def test_data_that_has_another_name_in_the_container_is_named_by_it(place: Path) -> None:
    expected = "the container has @/mounted/train only as /set/train, its target in `mounts`"
    assert said(place, "--data", "@/mounted/train", target="/set") == [expected]


def test_a_folder_in_which_the_job_mounts_something_is_not_named(place: Path) -> None:
    assert said(place, "--root", "@/data", target="@/data/set") == []


def test_a_relative_name_is_not_judged_where_the_script_goes_elsewhere(place: Path) -> None:
    assert said(place, "--out", "../data", script='cd src && "$@"\n') == []
