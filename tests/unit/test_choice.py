"""Which runtime a job gets when it names none, and what the user is told about it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tame


def tool(folder: Path, name: str, output: str = "") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho '{output}'\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def chosen(kit, tmp_path: Path):
    """What kit says on stderr of a dry run of an image, with only these tools installed."""
    (tmp_path / "train.py").touch()
    for name in ("image.sqsh", "image.sif"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()

    def say(*arguments: str, tools: tuple[str, ...] = (), pyxis: bool = False) -> str:
        for name in tools:
            tool(tmp_path / "bin", name)
        if pyxis:
            tool(tmp_path / "bin", "srun", "  --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH")
        # Not the machine's own PATH, which may have any of them.
        return kit("submit", "train.py", *arguments, "--dry-run", cwd=tmp_path, PATH=str(tmp_path / "bin"), XDG_CONFIG_HOME=str(tmp_path)).stderr

    return say


@pytest.mark.parametrize(
    ("tools", "pyxis", "said"),
    [
        (("enroot", "apptainer"), True, "kit: runtime enroot: enroot is installed here\n"),
        (("apptainer",), True, "kit: runtime pyxis: srun has --container-image here\n"),
        (("apptainer", "srun"), False, "kit: runtime apptainer: apptainer is installed here\n"),
        (
            (),
            False,
            "kit: runtime enroot: nothing here tells which runtime the nodes have, so the scripts are for enroot; for another: `runtime: pyxis` or `runtime: apptainer`\n",
        ),
    ],
)
def test_a_squashfs_runs_under_what_is_installed(tools: tuple[str, ...], pyxis: bool, said: str, chosen) -> None:
    assert chosen("--image", "image.sqsh", tools=tools, pyxis=pyxis) == said
    assert chosen("--image", "image.sqsh", "--runtime", "auto") == said


def test_the_clusters_profile_comes_before_what_is_installed(chosen, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("runtime: pyxis\n")
    assert chosen("--image", "image.sqsh", "--cluster", "site.yaml", tools=("enroot",)) == "kit: runtime pyxis: the cluster's profile site names it\n"


@pytest.mark.parametrize(
    ("image", "said"), [("image.sif", "kit: runtime apptainer: the image is a .sif file\n"), ("folder", "kit: runtime apptainer: the image is a folder\n")]
)
def test_only_apptainer_runs_its_own_images(image: str, said: str, chosen) -> None:
    assert chosen("--image", image, tools=("enroot",)) == said


@pytest.mark.parametrize(
    ("tools", "runtime"),
    [(("singularity",), "singularity"), (("apptainer", "singularity"), "apptainer"), ((), "apptainer")],
    ids=["alone", "beside", "neither"],
)
def test_of_two_that_run_the_same_files_the_second_is_chosen_only_where_it_alone_is_installed(tools: tuple[str, ...], runtime: str, chosen) -> None:
    """Apptainer brings a command `singularity` of its own."""
    assert chosen("--image", "image.sif", tools=tools) == f"kit: runtime {runtime}: the image is a .sif file\n"


@pytest.mark.parametrize(("named", "here"), [("singularity", "apptainer"), ("apptainer", "singularity")])
def test_the_profile_says_which_of_two_that_run_the_same_files_the_nodes_have(named: str, here: str, chosen, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(f"runtime: {named}\n")
    assert chosen("--image", "image.sif", "--cluster", "site.yaml", tools=(here,)) == f"kit: runtime {named}: the cluster's profile site names it\n"


def test_a_named_runtime_needs_no_reason(chosen) -> None:
    assert chosen("--image", "image.sqsh", "--runtime", "apptainer") == ""
    assert chosen() == ""


def test_the_reason_is_in_the_record(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "image.sif").touch()
    kit("render", "train.py", "--image", "image.sif", "--output", "run", PATH=os.path.dirname(sys.executable))
    assert '"why_runtime": "the image is a .sif file"' in (tmp_path / "run/run.json").read_text()


def test_only_an_image_file_can_be_staged(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "folder").mkdir()
    done = kit("submit", "train.py", "--image", "folder", "--stage", "local", check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "kit: --stage: there is no image file to copy to the nodes\n  fix: remove `stage`, or name an image file: .sif, .sqsh\n",
    )


def test_an_unknown_stage_is_refused_with_the_known_ones(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    done = kit("submit", "train.py", "--stage", "locl", check=False)
    assert (done.returncode, done.stderr) == (2, "kit: --stage: unknown stage 'locl'\n  fix: did you mean 'local'?\n")
