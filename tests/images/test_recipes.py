"""What goes into an image, read from its recipe."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kit.build import formats, recipe
from kit.errors import UsageError
from samples import ROOT

DOCKERFILE = """\
# syntax=docker/dockerfile:1
ARG BASE_IMAGE=registry.example/base:1
ARG CPU_BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE} AS first
COPY --chown=1:1 requirements*.txt wheels* /tmp/
RUN <<END
COPY not-an-instruction /
END
FROM scratch AS empty
FROM first
COPY --from=busybox:1 /bin/busybox /bin/
COPY --from=empty / /
ADD ["a b.txt", "https://example.org/x", "/opt/"]
RUN true \\
  # in between
  && COPY=1
COPY source/ /opt/
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "My Model"
    folder.mkdir()
    (folder / "Dockerfile").write_text(DOCKERFILE)
    for name in ("requirements.txt", "a b.txt", "source/deep/x.py", "source/.git/HEAD", "other.txt", "source/skipped.log"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / ".dockerignore").write_text("# none of these\n**/*.log\n")
    monkeypatch.chdir(folder)
    return folder


def find(**values) -> recipe.Recipe:
    return recipe.find(**{"target": None, "usual": "Dockerfile", "device": "gpu", "arguments": {}, "name": None, **values})


def test_a_dockerfiles_bases_and_files_are_found(project: Path) -> None:
    found = find()
    assert found.name == "my-model"
    assert found.bases == ["registry.example/base:1", "busybox:1"]
    assert found.files() == ["a b.txt", "requirements.txt", "source/deep/x.py"]


def test_the_device_and_arguments_choose_the_base(project: Path) -> None:
    assert find(device="cpu").bases[0] == "python:3.11-slim"
    assert find(device="cpu").name == "my-model-cpu"
    assert find(device="cpu", arguments={"CPU_BASE_IMAGE": "mine:2"}).bases[0] == "mine:2"
    assert find(arguments={"BASE_IMAGE": "mine:1"}).bases[0] == "mine:1"


def test_the_digest_changes_with_everything_that_goes_in_and_with_nothing_else(project: Path) -> None:
    pins = {"registry.example/base:1": "sha256:1", "busybox:1": "sha256:2"}
    first = find().digest(pins)
    (project / "other.txt").write_text("changed")
    (project / "images").mkdir()
    os.utime(project / "a b.txt", (1, 1))
    assert find().digest(pins) == first
    digests = {first, find(device="cpu").digest(pins), find().digest({**pins, "busybox:1": "sha256:3"}), find(arguments={"BASE_IMAGE": "x"}).digest(pins)}
    for change in (
        lambda: (project / "a b.txt").write_text("changed"),
        lambda: (project / "a b.txt").chmod(0o755),
        lambda: (project / "wheels-1").touch(),
        lambda: (project / "source/deep/x.py").rename(project / "source/deep/y.py"),
        lambda: (project / "Dockerfile").write_text(DOCKERFILE + "RUN true\n"),
    ):
        change()
        digests.add(find().digest(pins))
    assert len(digests) == 9


def test_what_an_engine_gets_is_only_what_goes_in_with_bases_by_digest(project: Path, tmp_path: Path) -> None:
    target = tmp_path / "context"
    target.mkdir()
    exact = find(arguments={"BASE_IMAGE": "mine:1"}).at({"mine:1": "sha256:1", "busybox:1": "sha256:2"})
    text = exact.lay_out(target).read_text()
    assert exact.arguments == {"BASE_IMAGE": "mine:1@sha256:1"}
    assert exact.bases == ["mine:1@sha256:1", "busybox:1@sha256:2"]
    assert "COPY --from=busybox:1@sha256:2 /bin/busybox /bin/\n" in text
    left = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    assert left == ["Dockerfile", "a b.txt", "requirements.txt", "source/deep/x.py"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM x\nCOPY missing.txt /\n", "Dockerfile:2: missing.txt is not in "),
        ("FROM ${WHICH}\n", "Dockerfile:1: WHICH has no value\n  fix: give it one: kit build --build-arg WHICH=VALUE"),
        ("FROM x\nCOPY ../up /\n", "is outside"),
    ],
)
def test_what_is_not_there_is_named_with_its_line(text: str, expected: str, project: Path) -> None:
    (project / "Dockerfile").write_text(text)
    (project.parent / "up").touch()
    found = find()
    with pytest.raises(UsageError) as error:
        found.bases, found.files()
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"target": "nothing"},
            "there is no recipe nothing\n  fix: looked for nothing/Dockerfile, containers/nothing/Dockerfile and containers/nothing.Dockerfile",
        ),
        ({"target": "nvidia/cuda:13"}, "; for an image of a registry: docker://nvidia/cuda:13"),
        ({"target": "s3://x"}, "kit build does not know s3://\n  fix: it knows docker://, dockerd:// and podman://, and files"),
        ({"arguments": {"BASE": "x"}}, "--build-arg: "),
        ({"device": "cpu", "target": "plain"}, "it names no base for CPUs\n  fix: add beside its other arguments: CPU_BASE_IMAGE="),
    ],
)
def test_a_wrong_request_is_refused_with_a_fix(values: dict, expected: str, project: Path) -> None:
    (project / "containers/plain").mkdir(parents=True)
    (project / "containers/plain/Dockerfile").write_text("FROM x\n")
    with pytest.raises(UsageError) as error:
        find(**values)
    assert expected in str(error.value)


def test_more_images_are_a_folder_or_a_file_each_in_containers(project: Path) -> None:
    (project / "containers/eval").mkdir(parents=True)
    (project / "containers/eval/Dockerfile").write_text("FROM x\nCOPY own.txt /\n")
    (project / "containers/eval/own.txt").touch()
    (project / "containers/serve.Dockerfile").write_text("FROM x\nCOPY other.txt /\n")
    assert (find(target="eval").name, find(target="eval").files()) == ("eval", ["own.txt"])
    assert (find(target="serve").name, find(target="serve").files()) == ("serve", ["other.txt"])
    assert find(target="containers/eval/Dockerfile").name == "eval"


@pytest.mark.parametrize("name", ["Dockerfile", "containers/image.def", "containers/image.enroot.sh"])
def test_the_kits_own_recipes_make_the_same_image_from_the_same_files(name: str) -> None:
    parts = formats.read(name, (ROOT / name).read_text())
    assert [word.strip("${} ") for _, word in parts.bases] == ["BASE_IMAGE"]
    assert [word for _, word in parts.sources] == ["containers/install"]
    dockerfile = formats.read("Dockerfile", (ROOT / "Dockerfile").read_text())
    assert parts.arguments == dockerfile.arguments and set(parts.arguments) == {"BASE_IMAGE", "CPU_BASE_IMAGE"}
    assert "install.sh" in (ROOT / name).read_text()
