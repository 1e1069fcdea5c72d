"""Which recipe `kit build` takes, and which engine, by what is there and what is installed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from kit.base.errors import KitError
from kit.cli import completion
from kit.images.choose import Choice, choose

from samples import ROOT, stub


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, on a machine without any engine."""
    folder = tmp_path / "My Model"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return folder


def install(project: Path, *engines: str) -> None:
    for name in engines:
        stub(project.parent / "bin", name, "exit 1")


def write(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()


def short(choice: Choice) -> tuple[str, str, str, str]:
    """The engine, the file below its folder, that folder's name, the image's name."""
    return choice.engine.name, str(choice.file.relative_to(choice.folder)), choice.folder.name, choice.name


@pytest.mark.parametrize(
    ("installed", "recipes", "expected"),
    [
        ("docker apptainer", "Dockerfile image.def", ("docker", "Dockerfile")),
        ("podman", "Dockerfile", ("podman", "Dockerfile")),
        ("podman", "Containerfile image.def", ("podman", "Containerfile")),
        ("docker", "Containerfile containers/Dockerfile Dockerfile", ("docker", "Dockerfile")),
        ("docker apptainer", "containers/image.def", ("apptainer", "containers/image.def")),
        ("docker enroot", "image.enroot.sh", ("enroot", "image.enroot.sh")),
        ("apptainer", "Dockerfile image.def", ("apptainer", "image.def")),
        # Without Docker, a Dockerfile is translated, unless an engine has a recipe of its own kind.
        ("apptainer enroot", "Dockerfile", ("apptainer", "Dockerfile")),
        ("enroot", "containers/Dockerfile", ("enroot", "containers/Dockerfile")),
        ("apptainer enroot", "Dockerfile image.enroot.sh", ("enroot", "image.enroot.sh")),
    ],
)
def test_the_first_engine_with_a_recipe_here_is_taken(installed: str, recipes: str, expected: tuple[str, str], project: Path) -> None:
    install(project, *installed.split())
    write(*recipes.split())
    assert short(choose(None, None, "gpu")) == (*expected, "My Model", "my-model")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("other/Containerfile", ("docker", "Containerfile", "other", "other")),
        ("small", ("docker", "Containerfile", "small", "small")),
        ("fast", ("docker", "containers/fast.Containerfile", "My Model", "fast")),
        ("containers/fast.Containerfile", ("docker", "containers/fast.Containerfile", "My Model", "fast")),
        ("eval", ("docker", "Dockerfile", "eval", "eval")),
        ("serve", ("docker", "containers/serve.Dockerfile", "My Model", "serve")),
        ("containers/eval/Dockerfile", ("docker", "Dockerfile", "eval", "eval")),
        ("containers/image.def", ("apptainer", "containers/image.def", "My Model", "my-model")),
        ("containers/lean.image.enroot.sh", ("enroot", "containers/lean.image.enroot.sh", "My Model", "lean")),
        ("lean", ("enroot", "containers/lean.image.enroot.sh", "My Model", "lean")),
        # `image: my.def` in a job would mean the definition itself.
        ("my.def", ("apptainer", "my.def", "My Model", "my")),
        ("fast.image.def", ("apptainer", "fast.image.def", "My Model", "fast")),
        ("lean.enroot.sh", ("enroot", "lean.enroot.sh", "My Model", "lean")),
        ("web.dockerfile", ("docker", "web.dockerfile", "My Model", "web")),
        ("deep/er/..", ("docker", "Containerfile", "..", "deep")),
        ("deep/er", ("docker", "Dockerfile", "er", "er")),
        ("tensorflow", ("docker", "Dockerfile", "tensorflow", "tensorflow")),  # the kit's own
    ],
)
def test_a_recipe_is_named_by_its_place_in_containers_its_file_or_its_folder(target: str, expected: tuple[str, ...], project: Path) -> None:
    install(project, "docker", "apptainer", "enroot")
    write(
        "containers/eval/Dockerfile",
        "containers/serve.Dockerfile",
        "containers/image.def",
        "containers/lean.image.enroot.sh",
        "deep/er/Dockerfile",
        "deep/Containerfile",
        "my.def",
        "fast.image.def",
        "lean.enroot.sh",
        "web.dockerfile",
        "other/Containerfile",
        "containers/small/Containerfile",
        "containers/fast.Containerfile",
    )
    assert short(choose(target, None, "gpu")) == expected


def test_the_kits_own_recipe_is_taken_where_there_is_none(project: Path) -> None:
    install(project, "apptainer")
    found = choose(None, None, "cpu")
    assert (found.file, found.folder, found.name) == (ROOT / "containers/image.def", ROOT, "kit-cpu")


def test_podman_under_dockers_name_is_podman(project: Path) -> None:
    """As the package podman-docker installs it."""
    install(project, "podman")
    stub(project.parent / "bin", "docker", "echo podman version 5.4.2")
    (project.parent / "bin/bash").symlink_to(str(shutil.which("bash", path=os.defpath)))
    write("Dockerfile")
    assert choose(None, None, "gpu").engine.name == "podman"


@pytest.mark.parametrize("target", [".", "..", "./"])
def test_a_folder_without_a_recipe_is_none_of_kits_own(target: str, project: Path) -> None:
    install(project, "docker", "apptainer")
    with pytest.raises(KitError, match=f"there is no recipe {target}"):
        choose(target, None, "gpu")


@pytest.mark.parametrize(
    ("installed", "target", "engine", "expected"),
    [
        ("", None, None, "no engine is installed here: docker, podman, apptainer, enroot\n  fix: install one; or take an image of a registry"),
        ("docker", None, "buildah", "kit: --engine: there is no engine buildah\n  fix: the engines are docker, podman, apptainer, enroot"),
        ("apptainer", "x.enroot.sh", None, "x.enroot.sh is for enroot, not for apptainer\n  fix: build with --engine enroot, or write one: image.def"),
        ("docker", "image.def", None, "there is no recipe image.def"),
        ("docker", "Dockerfil", None, "there is no recipe Dockerfil\n  fix: did you mean 'Dockerfile'?"),
        ("docker", "dockerfile", "docker", "there is no recipe dockerfile\n  fix: did you mean 'Dockerfile'?"),
        ("docker", "x.def", "docker", "x.def is for apptainer, not for docker\n  fix: build with --engine apptainer, or write one: Dockerfile"),
    ],
)
def test_what_cannot_be_built_is_said(installed: str, target: str, engine: str, expected: str, project: Path) -> None:
    install(project, *installed.split())
    write("Dockerfile", "x.def", "x.enroot.sh")
    with pytest.raises(KitError) as error:
        choose(target, engine, "gpu")
    assert expected in str(error.value)


def test_the_tab_key_offers_each_recipe_by_its_name(project: Path) -> None:
    write("containers/small/Containerfile", "containers/fast.Dockerfile", "containers/hpc/image.def")
    offered = completion.recipes()
    assert [*offered] == sorted({*offered}) and {"small", "fast", "hpc", "horovod"} <= {*offered}
