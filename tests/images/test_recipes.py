"""What goes into an image, read from its recipe."""

from __future__ import annotations

import gzip
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Optional

import pytest
from kit.base.errors import UsageError
from kit.files import safe_read
from kit.files.digests import Digests
from kit.images import bases, choose, recipe, recipe_files, recipe_formats
from kit.images.build_request import BuildRequest

from samples import ROOT, stub

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


def find(target: Optional[str] = None, *, device: str = "gpu", arguments: Optional[dict[str, str]] = None, engine: str = "docker") -> recipe.Recipe:
    """As `kit build` does, with images in ./images."""
    _, file, folder, name = choose.choose(target, engine, device)
    return recipe.load(file, folder, name, BuildRequest(device=device, arguments=arguments or {}))


def digest(found: recipe.Recipe, pinned: dict[str, str]) -> str:
    return found.digest(pinned, found.contents())


def test_a_dockerfiles_bases_and_files_are_found(project: Path) -> None:
    found = find()
    assert found.name == "my-model"
    assert found.bases == ["registry.example/base:1", "busybox:1"]
    assert found.files() == ["a b.txt", "requirements.txt", "source/", "source/.git/", "source/.git/HEAD", "source/deep/", "source/deep/x.py"]


def test_flags_in_quotes_mean_what_is_in_them(project: Path) -> None:
    lines = [
        'FROM --platform="linux/amd64" a/b:1 AS x',
        "FROM a/c:1",
        'COPY --from="busybox:1" /x /y',
        "COPY --from='x' /x /z",
        'RUN --mount=type=bind,from="a/d:1" y',
    ]
    (project / "Dockerfile").write_text("\n".join(lines))
    found = find()
    assert found.bases == ["a/b:1", "a/c:1", "busybox:1", "a/d:1"]
    exact = found.at(dict.fromkeys(found.bases, "sha256:1")).text
    assert exact.splitlines()[2:] == ['COPY --from="busybox:1@sha256:1" /x /y', lines[3], 'RUN --mount=type=bind,from="a/d:1@sha256:1" y']


def test_the_device_and_arguments_choose_the_base(project: Path) -> None:
    assert find(device="cpu").bases[0] == "python:3.11-slim"
    assert find(device="cpu").name == "my-model-cpu"
    assert find(device="cpu", arguments={"CPU_BASE_IMAGE": "mine:2"}).bases[0] == "mine:2"
    assert find(arguments={"BASE_IMAGE": "mine:1"}).bases[0] == "mine:1"


def test_the_digest_changes_with_everything_that_goes_in_and_with_nothing_else(project: Path) -> None:
    pins = {"registry.example/base:1": "sha256:1", "busybox:1": "sha256:2"}
    first = digest(find(), pins)
    (project / "other.txt").write_text("changed")
    (project / "images").mkdir()
    os.utime(project / "a b.txt", (1, 1))
    assert digest(find(), pins) == first
    digests = {first, digest(find(device="cpu"), pins), digest(find(), {**pins, "busybox:1": "sha256:3"}), digest(find(arguments={"BASE_IMAGE": "x"}), pins)}
    for change in (
        lambda: (project / "a b.txt").write_text("changed"),
        lambda: (project / "a b.txt").chmod(0o755),
        lambda: (project / "a b.txt").chmod(0o750),  # COPY keeps every bit
        lambda: (project / "source/empty").mkdir(),
        lambda: (project / "source/empty").chmod(0o700),
        lambda: (project / "wheels-1").touch(),
        lambda: (project / "source/deep/x.py").rename(project / "source/deep/y.py"),
        lambda: (project / "Dockerfile").write_text(DOCKERFILE + "RUN true\n"),
    ):
        change()
        digests.add(digest(find(), pins))
    assert len(digests) == 12


def test_what_an_engine_gets_is_only_what_goes_in_with_bases_by_digest(project: Path, tmp_path: Path) -> None:
    target = tmp_path / "context"
    target.mkdir()
    exact = find(arguments={"BASE_IMAGE": "mine:1"}).at({"mine:1": "sha256:1", "busybox:1": "sha256:2"})
    text = exact.lay_out(target).read_text()
    assert exact.arguments == {"BASE_IMAGE": "mine:1"} and "FROM mine:1@sha256:1 AS first\n" in text
    assert exact.bases == ["mine:1@sha256:1", "busybox:1@sha256:2"]
    assert "COPY --from=busybox:1@sha256:2 /bin/busybox /bin/\n" in text
    left = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    assert left == ["Dockerfile", "a b.txt", "requirements.txt", "source/.git/HEAD", "source/deep/x.py"]


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        (
            "FROM x\nRUN --mount=type=cache,id=uv:1,target=/root/uv:1 \\\n    # from=uv:1\n\n    --mount=from=uv:1,source=/uv \\\n    true uv:1\n",
            "FROM x\nRUN --mount=type=cache,id=uv:1,target=/root/uv:1 \\\n    # from=uv:1\n\n    --mount=from=uv:1@sha256:2,source=/uv \\\n    true uv:1\n",
        ),
        (
            'FROM "uv:1" AS uv\nCOPY --chmod=755 \\\n     --from=uv:1 /uv /bin/\nCOPY uv:1 /\n',
            'FROM "uv:1@sha256:2" AS uv\nCOPY --chmod=755 \\\n     --from=uv:1@sha256:2 /uv /bin/\nCOPY uv:1 /\n',
        ),
        ("# escape=`\nFROM `\nuv:1 AS a\n", "# escape=`\nFROM `\nuv:1@sha256:2 AS a\n"),
        # Twice in one instruction: each once.
        (
            "FROM x\nRUN --mount=from=uv:1,target=/a --mount=from=uv:1,target=/b true\n",
            "FROM x\nRUN --mount=from=uv:1@sha256:2,target=/a --mount=from=uv:1@sha256:2,target=/b true\n",
        ),
        # Steps see an argument that names a base as it is written.
        (
            "ARG BASE=uv:1\nFROM ${BASE}\nARG BASE\nCOPY --from=uv:1 $BASE /\n",
            "ARG BASE=uv:1\nFROM uv:1@sha256:2\nARG BASE\nCOPY --from=uv:1@sha256:2 $BASE /\n",
        ),
        ('ARG R=uv\nFROM "${R}":1 AS a\n', "ARG R=uv\nFROM uv:1@sha256:2 AS a\n"),
        ("FROM uv:1 \\\\\n", "FROM uv:1@sha256:2 \\\\\n"),
    ],
)
def test_a_base_is_replaced_where_the_instruction_names_it(text: str, exact: str, project: Path) -> None:
    (project / "Dockerfile").write_text(text)
    assert find().at({"uv:1": "sha256:2"}).text == exact


def test_a_base_that_cannot_be_replaced_is_refused(project: Path) -> None:
    (project / "Dockerfile").write_text("FROM x\nCOPY --from=uv\\\n:1 /uv /bin/\nCOPY --from=other uv:1 /\n")
    with pytest.raises(UsageError, match=r"Dockerfile:2: uv:1 is not in one piece\n  fix: "):
        find().at({"uv:1": "sha256:2"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM x\nCOPY missing.txt /\n", "Dockerfile:2: missing.txt is not in "),
        ("FROM ${WHICH}\n", "Dockerfile:1: WHICH has no value\n  fix: give it one: kit build --build-arg WHICH=VALUE"),
        ("FROM x\nCOPY ../up /\n", "Dockerfile:2: up is not in "),
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


@pytest.mark.parametrize(
    ("text", "bases", "sources"),
    [
        ("FROM base AS Build\nFROM other\nCOPY --from=build /x /\nCOPY --from=0 /x /\n", ["base", "other"], []),
        ("ARG VERSION=2\nARG IMAGE=base:${VERSION}\nFROM $IMAGE\n", ["base:2"], []),
        ("ARG STAGE=first\nFROM base AS first\nFROM ${STAGE}\nFROM ${NONE:-last}\n", ["last"], []),
        ("FROM base\nCOPY\tx\t/\nadd https://example.org/y z /\n", ["base"], ["x", "z"]),
        ("FROM base\nRUN --mount=type=bind,source=x,target=/x --mount=from=tools,target=/t true\n", ["base", "tools"], ["x"]),
        ("FROM base\nRUN --mount=type=cache,target=/c --mount=type=secret,id=s true\n", ["base"], []),
        ("FROM base\nRUN <<EOF cat && cat <<-'END'\nCOPY a /\nEOF\nCOPY b /\nEND\nCOPY x /\n", ["base"], ["x"]),
        ("FROM base\nRUN echo $((1<<SHIFT))\nCOPY x /\n", ["base"], ["x"]),
        ("FROM base\nCOPY <<EOF /etc/made\nCOPY a /\nEOF\nCOPY x /\n", ["base"], ["x"]),
        ("FROM base\nRUN true \\\n  # a comment\n\n  && COPY a\nCOPY x \\\n  /\n", ["base"], ["x"]),
        ("FROM base\nCOPY <<-EOF /x\nCOPY a /\n\tEOF\nCOPY <<EOF /y\n  EOF\nCOPY b /\nEOF\nCOPY x /\n", ["base"], ["x"]),
        ("FROM base\nCOPY x \\\n\n  # a comment\n\n  y /\n", ["base"], ["x", "y"]),
        ("FROM base\nCOPY sour\\\nce /\n", ["base"], ["source"]),
        ("# Escape = `\n# syntax=x\nFROM base\nCOPY x `\n  y /\nLABEL path=C:\\\nCOPY z /\n", ["base"], ["x", "y", "z"]),
        ("# not first\n# escape=`\nFROM base\nCOPY x \\\n  y /\n", ["base"], ["x", "y"]),
        ("FROM base\nCOPY --link\t--chown=1:1  x /\n", ["base"], ["x"]),
        ("ARG V=1\nFROM base:$V\nARG V=2\nFROM last:$V\nCOPY --from=0 / /\n", ["base:1", "last:1"], []),
        ("ARG A=\nARG B=-b\nFROM base${A:+:none}${A+:a}${B:+$B}${C-:c${B}}\n", ["base:a-b:c-b"], []),
        ("FROM base AS base\nFROM BASE\n", ["base"], []),
        ("ARG KIND=gpu\nFROM base AS cpu\nFROM other AS gpu\nFROM $KIND\n", ["other"], []),
        ('ARG UB=22.04\nARG BASE\nARG BASE=${BASE:-"base:${UB}"}\nFROM ${BASE}\n', ["base:22.04"], []),
        ("ARG TAG=v3.11\nARG BASE=base:${TAG#v}\nFROM ${BASE}\n", ["base:3.11"], []),
        ("ARG V=1\nARG B=base:${V}\nARG V=2\nFROM ${B}\n", ["base:1"], []),
        ("ARG A=1\nARG B='base:$A'\nARG C=${B}\nFROM ${C:+base:\"$A\"}\n", ["base:1"], []),
        ("FROM base\nCOPY ../x /\n", ["base"], ["../x"]),
        ("FROM base\nARG URL=https://example.org/x\nADD ${URL} $URL/y x /\n", ["base"], ["x"]),
        ("FROM base\nENV V=1 URL=https://example.org\nADD ${URL}/a-${V}.tgz x /\n", ["base"], ["x"]),
        ('FROM base\nRUN echo "usage: cat <<EOF"\nCOPY x /\n', ["base"], ["x"]),
        ("FROM base\nRUN echo 'it <<EOF\nCOPY x /\n", ["base"], ["x"]),
        ('FROM base\nRUN ["cat", "<<EOF"]\nCOPY x /\n', ["base"], ["x"]),
        ("FROM base\nRUN cat <<'END-OF-FILE' <<\"end.2\" <<E\\ F\nCOPY a /\nEND-OF-FILE\nend.2\nCOPY b /\nE F\nCOPY x /\n", ["base"], ["x"]),
        ("FROM base\nONBUILD RUN <<EOF\nCOPY a /\nEOF\nCOPY x /\n", ["base"], ["x"]),
        ("FROM base\nENV P=C:\\\\\nCOPY x /\nRUN a \\\\ \nCOPY y /\n", ["base"], ["x", "y"]),
        ("FROM base\n# \u2028COPY a /\nCOPY x /\n", ["base"], ["x"]),
        ("# version=1.0\n# escape=`\nFROM base\nCOPY x \\\n  y /\n", ["base"], ["x", "y"]),
        ("# check=skip=all;error=true\n# escape=`\nFROM base\nCOPY x `\n  y /\n", ["base"], ["x", "y"]),
        ("FROM one AS test\nCOPY a /\nFROM two AS part\nCOPY b /\nFROM base\nRUN --mount=from=part,target=/p true\nCOPY x /\n", ["two", "base"], ["b", "x"]),
        ("FROM --platform=linux/amd64 base\nSHELL not-json [\nCOPY [x y /\n", ["base"], ["[x", "y"]),
    ],
)
def test_a_dockerfile_is_read_as_docker_reads_it(text: str, bases: list[str], sources: list[str], project: Path) -> None:
    (project / "Dockerfile").write_text(text)
    assert find().bases == bases
    assert [source.word for source in find().parts.sources] == sources


def test_only_an_argument_before_the_first_from_names_a_base(project: Path) -> None:
    (project / "Dockerfile").write_text("FROM python:${PY:-3.11}\nARG PY\n")
    assert find(arguments={"PY": "3.12"}).bases == ["python:3.11"]
    (project / "Dockerfile").write_text("ARG PY\nFROM python:${PY:-3.11}\n")
    assert find(arguments={"PY": "3.12"}).bases == ["python:3.12"]


def test_a_value_of_the_command_line_is_taken_as_it_is(project: Path) -> None:
    (project / "Dockerfile").write_text("ARG V=1\nARG TAG\nFROM base:1\nARG TAG\nCOPY $TAG /\n")
    (project / "${V}").touch()
    assert find(arguments={"TAG": "${V}"}).files() == ["${V}"]


def test_steps_see_an_argument_that_names_a_base_as_before(project: Path) -> None:
    (project / "Dockerfile").write_text("ARG OS=debian\nFROM ${OS}\nARG OS\nCOPY install-${OS}.sh /\n")
    (project / "install-debian.sh").touch()
    exact = find().at({"debian": "sha256:1"})
    assert (exact.bases, exact.arguments, exact.files()) == (["debian@sha256:1"], {}, ["install-debian.sh"])


def test_the_folder_of_git_is_told_to_be_left_out_by_kit(project: Path) -> None:
    (project / ".git").mkdir()
    (project / ".git/HEAD").touch()
    (project / "Dockerfile").write_text("FROM x\nRUN --mount=type=bind,source=.git,target=.git git describe\n")
    with pytest.raises(
        UsageError, match=r"Dockerfile:2: \.git is in no image that kit builds.*\n  fix: tell the step what it reads there: kit build --build-arg VERSION="
    ):
        find().files()
    (project / "Dockerfile").write_text("FROM x\nRUN --mount=source=.git/HEAD,target=/head cat /head\n")
    assert find().files() == [".git/HEAD"]


@pytest.mark.parametrize(
    ("text", "bases", "sources"),
    [
        ("Bootstrap:docker\nFrom:base:1\n", ["base:1"], []),
        ("BootStrap : docker\nfrom : base:1 # not base:2\n", ["base:1"], []),
        ("Registry: nvcr.io\nBootstrap: docker\nFrom: {{ B }}\nNamespace: nvidia\n%arguments\n B = base:1\n", ["nvidia/base:1"], []),
        ("Bootstrap: docker\nFrom: pytorch:1\nRegistry: nvcr.io\nNamespace: nvidia\n", ["nvcr.io/nvidia/pytorch:1"], []),
        ("Bootstrap: docker\nFrom: base:1\n%help\nFrom: the lab of X\n%files\n a b\n", ["base:1"], ["a"]),
        ("Bootstrap: docker\nFrom: base:{{ V }}\n%arguments\n  V = 2\n  W={{V}}\n%files\n {{ W }}/run.sh /opt/\n", ["base:2"], ["2/run.sh"]),
        ("Bootstrap: docker\nFrom: {{ IMG }}\n", ["given:1"], []),
        ('Bootstrap: docker\nFrom: base:1\n%FILES\n "a b.txt" /opt/\n run#1.csv /\n # no.csv /\n', ["base:1"], ["a b.txt", "run#1.csv"]),
        ("Bootstrap: docker\nFrom: base:1\n%appfiles foo\n a\n%files from one\n b\n", ["base:1"], ["a"]),
        ("Bootstrap: docker\nFrom: base:{{ V }}\n%arguments\n V=1\nBootstrap: docker\nFrom: base:{{ V }}\n%arguments\n V=2\n", ["base:1", "base:2"], []),
    ],
)
def test_a_definition_is_read_as_apptainer_reads_it(text: str, bases: list[str], sources: list[str], project: Path) -> None:
    (project / "image.def").write_text(text)
    found = find(engine="apptainer", arguments={"IMG": "given:1"} if "IMG" in text else {})
    assert (found.bases, [source.word for source in found.parts.sources]) == (bases, sources)
    exact = found.at(dict.fromkeys(bases, "sha256:1"))
    assert exact.bases == [f"{base}@sha256:1" for base in bases] and exact.arguments == found.arguments


def test_an_argument_of_a_definition_without_a_value_is_named(project: Path) -> None:
    for text in ("Bootstrap: docker\nFrom: {{ IMG }}\n", "Bootstrap: docker\nRegistry: {{ IMG }}\nFrom: base:1\n"):
        (project / "image.def").write_text(text)
        with pytest.raises(UsageError, match=r"IMG has no value\n  fix: give it one: kit build --build-arg IMG=VALUE"):
            find(engine="apptainer").bases


@pytest.mark.parametrize("name", ["base.tar", "base.tar:tagged"])
@pytest.mark.parametrize("bootstrap", ["docker-archive", "oci-archive", "oci"])
def test_an_archive_that_a_definition_is_built_on_counts(bootstrap: str, name: str, project: Path, tmp_path: Path) -> None:
    (project / "image.def").write_text(f"Bootstrap: {bootstrap}\nFrom: {name}\n")
    digests = set()
    for text in ("one", "two"):
        (project / "base.tar").write_text(text)
        digests.add(digest(find(engine="apptainer"), {}))
    (project / "base.tar").unlink()
    (project / "base.tar").mkdir()
    (project / "base.tar/index.json").write_text("{}")  # a folder, as that of `Bootstrap: oci`
    digests.add(digest(find(engine="apptainer"), {}))
    assert len(digests) == 3
    (tmp_path / "context").mkdir()
    assert find(engine="apptainer").lay_out(tmp_path / "context").read_text() == f"Bootstrap: {bootstrap}\nFrom: {project}/{name}\n"


@pytest.mark.parametrize(
    ("name", "engine", "text"),
    [
        ("Dockerfile", "docker", "\\\nFROM x\nARG\nENV\nCOPY\nADD\nRUN\nONBUILD\nFROM\n\\"),
        ("Dockerfile", "docker", 'FROM x\nARG A="\nENV B=\'\nCOPY "$A ${B ${C^} /\nRUN --mount\n'),
        ("image.def", "apptainer", '%files\n "\n%arguments\n=\nA\n%\n:\nBootstrap:\nFrom:\n'),
        ("image.enroot.sh", "enroot", '# base:\n# base: ${\n# files: "a\n# argument: \n# argument: =\n'),
    ],
)
def test_half_a_recipe_is_left_to_the_engine(name: str, engine: str, text: str, project: Path) -> None:
    (project / name).write_text(text)
    found = find(engine=engine)
    with suppress(UsageError):
        found.files()
    with suppress(UsageError):
        assert found.at(dict.fromkeys(found.bases, "sha256:1")).parts.declared == found.parts.declared


def test_a_script_of_enroots_names_files_with_blanks_in_quotes(project: Path) -> None:
    (project / "image.enroot.sh").write_text('# base: base:${V}\n# files: "a b.txt" ${F}\n# argument: V=1\n# argument: F=other.txt\n')
    found = find(engine="enroot")
    assert (found.bases, found.files()) == (["base:1"], ["a b.txt", "other.txt"])
    assert found.at({"base:1": "sha256:1"}).text.startswith("# base: base:1@sha256:1\n# files")


def test_a_base_of_apptainers_that_is_in_no_registry_has_no_digest(project: Path) -> None:
    (project / "image.def").write_text(
        "Bootstrap: localimage\nFrom: base.sif\nStage: one\n\nBootstrap: docker\nFrom: base:1\n%files from one\n  /x\n%files\n  a b.txt\n"
    )
    assert find(engine="apptainer").bases == ["base:1"]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ("*\n!source/deep\n", ["source/", "source/deep/", "source/deep/x.py"]),
        ("source\n", ["a b.txt"]),
        ("**/x.py\n", ["a b.txt", "source/", "source/.git/", "source/.git/HEAD", "source/deep/"]),
        ("source/**\n!**/HEAD\n", ["a b.txt", "source/", "source/.git/", "source/.git/HEAD"]),
        ("?\\ b.txt\nsource/d*\n/source/.git/\n# a b.txt\n", ["source/"]),
        ("a b.txt\nsource/deep/[a-x].py\n", ["source/", "source/.git/", "source/.git/HEAD", "source/deep/"]),
    ],
)
@pytest.mark.parametrize("file", [".dockerignore", ".containerignore"])
def test_what_dockerignore_names_stays_out(file: str, patterns: str, expected: list[str], project: Path) -> None:
    (project / "Dockerfile").write_text('FROM x\nCOPY ["a*b.txt", "sourc[e]", "/opt/"]\n')
    (project / ".dockerignore").unlink()
    (project / file).write_text(f"**/skipped.log\n{patterns}")
    assert find().files() == expected


def test_much_to_read_is_named_with_its_largest_part_before_it_is_read(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "Dockerfile").write_text("FROM x\nCOPY . /opt/\n")
    for name, count in (("source/data/train/x", 700_000), ("source/data/train/y", 200_000), ("source/data/test", 99_000), ("a b.txt", 2_000)):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_bytes(bytes(count))
    for large, said in ((10**6, 1), (1_100_000, 0)):
        monkeypatch.setattr(recipe_files, "LARGE", large)
        notes: list[str] = []
        find().contents(notes.append)
        line = f"the recipe takes in 978 KiB of {project}, 976 KiB of it in source: where no step needs that, "
        assert notes == said * [f"{line}write source in {project}/.dockerignore"]
    (project / "Dockerfile.dockerignore").write_text("source/data/train\n")
    monkeypatch.setattr(recipe_files, "LARGE", 90_000)
    find().contents(notes.append)
    assert notes[-1].endswith(f"of it in source: where no step needs that, write source in {project}/Dockerfile.dockerignore")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose digest is made, in a minute in which all of them have been there for long. Keys are looked for in all of them."""
    found, now_ns = [], time.time_ns
    noting = SimpleNamespace(opened=lambda path: (found.append(Path(path).name), safe_read.opened(path))[1])
    monkeypatch.setattr(recipe_files, "safe_read", noting)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + 60 * 10**9)
    return found


def test_a_large_file_is_read_again_only_when_its_inode_says_that_it_changed(project: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    large = project / "source/deep/x.py"
    large.write_bytes(bytes(recipe_files.WORTH_NOTING))
    first = find().contents()
    assert "x.py" in reads and "a b.txt" in reads
    reads.clear()
    assert find().contents() == first and "x.py" not in reads and "a b.txt" in reads
    seen = {tuple(first.items())}
    facts = large.stat()
    for change in (
        lambda: (large.write_bytes(b"1" + bytes(recipe_files.WORTH_NOTING - 1)), os.utime(large, ns=(facts.st_atime_ns, facts.st_mtime_ns))),
        lambda: large.chmod(0o755),
        lambda: os.replace(large.rename(project / "moved"), large.with_name("y.py")),
    ):
        change()
        seen.add(tuple(find().contents().items()))
    assert len(seen) == 4
    monkeypatch.undo()


def test_a_file_that_has_just_changed_is_not_believed_to_stay_so(project: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "source/deep/x.py").write_bytes(bytes(recipe_files.WORTH_NOTING))
    now_ns = time.time_ns() - 60 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    for _ in range(2):
        reads.clear()
        find().contents()
        assert "x.py" in reads


@pytest.mark.parametrize("damage", [b"", b"\0\xff", b"[]", b'{"x": 1}', b"PATHS[]", b"PATHS[1, 2, 3, 4]", b"PATHS{}", b"PATHSnull", b'PATHS"x"'])
def test_a_damaged_memory_of_what_was_read_costs_reading_again(damage: bytes, project: Path, reads: list[str], tmp_path: Path) -> None:
    large = project / "source/deep/x.py"
    large.write_bytes(bytes(recipe_files.WORTH_NOTING))
    first = find().contents()
    memory = tmp_path / "cache/kit/files.json"
    assert list(json.loads(memory.read_text())) == [str(large)]
    memory.write_bytes(b'{"%b": %b}' % (str(large).encode(), damage[5:]) if damage.startswith(b"PATHS") else damage)
    reads.clear()
    assert find().contents() == first and "x.py" in reads
    memory.unlink()
    memory.mkdir()
    assert find().contents() == first


def test_only_the_last_digests_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    paths = [tmp_path / name for name in "abcd"]
    for path in paths:
        path.touch()
    for path in (*paths[:3], paths[0], paths[3]):
        known = Digests("files", most=3)
        known.note(path, path.stat(), f"digest of {path.name}")
        known.save()
    known = Digests("files", most=3)
    assert [known.find(path, path.stat()) for path in paths] == ["digest of a", None, "digest of c", "digest of d"]
    assert os.listdir(tmp_path / "kit") == ["files.json"]


@pytest.mark.parametrize("patterns", ["database\n", "*\n!source\n"])
def test_a_closed_folder_that_dockerignore_names_is_not_looked_into(patterns: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a database in a container, which belongs to another user."""
    (project / "database/deep").mkdir(parents=True)
    listdir = os.listdir

    def refuse(folder: os.PathLike[str]) -> list[str]:
        if Path(folder).name == "database":
            raise PermissionError(13, "Permission denied", str(folder))
        return listdir(folder)

    monkeypatch.setattr(os, "listdir", refuse)
    (project / "Dockerfile").write_text("FROM x\nCOPY . /opt/\n")
    with pytest.raises(PermissionError):
        find().files()
    (project / ".dockerignore").write_text(patterns)
    assert "source/deep/x.py" in find().files()


@pytest.mark.parametrize(("pattern", "kept"), [(".*", True), (".", True), ("./", True), ("?", True), ("*", False), ("**", False)])
def test_no_pattern_means_the_folder_of_the_recipe_itself(pattern: str, kept: bool, project: Path) -> None:
    """`.*` names the hidden files in it, and Docker knows no pattern `.`."""
    (project / "Dockerfile").write_text("FROM x\nCOPY . /opt/\n")
    (project / ".dockerignore").write_text(f"{pattern}\n")
    if kept:
        assert "source/deep/x.py" in find().files() and (pattern == ".*") == (".dockerignore" not in find().files())
        return
    with pytest.raises(UsageError, match=r"nothing of \. is left"):
        find().files()


def test_a_socket_of_another_program_is_no_part_of_a_recipe(project: Path) -> None:
    """As for Docker."""
    (project / "Dockerfile").write_text("FROM x\nCOPY source /opt/\n")
    before = find().contents()
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind("source/agent")  # the whole path may be too long for one
    assert find().contents() == before


def test_pictures_in_the_folder_of_kits_images_are_missed_aloud(project: Path) -> None:
    (project / "images").mkdir()
    for name in ("cat.png", "model-1.sqsh"):
        (project / "images" / name).touch()
    subprocess.run("git init -q . && git add images/cat.png", cwd=project, check=True, shell=True)
    for number, (copied, said) in enumerate(((".", True), ("source", False))):
        (project / "Dockerfile").write_text(f"FROM x\nCOPY {copied} /opt/\n")
        notes: list[str] = []
        find().lay_out(project.parent / f"context{number}", notes.append)
        told = "images/ is not in the image, though git tracks images/cat.png; to take it in, have kit's own images elsewhere: --images DIR"
        assert (told in notes) == said


def test_a_file_beside_the_folder_of_the_recipe_is_told_where_kit_would_find_it(project: Path) -> None:
    """As `docker build -f docker/Dockerfile .` has it."""
    (project / "docker").mkdir()
    (project / "docker/Dockerfile").write_text("FROM x\nCOPY requirements.txt /\n")
    with pytest.raises(UsageError, match=r"is not in .*/docker\n  fix: .*; it is in .*/My Model: move the recipe there, or to containers/ there"):
        find("docker/Dockerfile").files()
    (project / "containers").mkdir()
    (project / "docker/Dockerfile").rename(project / "containers/Dockerfile")
    assert find("containers/Dockerfile").files() == ["requirements.txt"]


@pytest.mark.parametrize("name", ["image.tar.gz", "image.sif"])
def test_an_image_of_another_kind_is_no_recipe_with_a_wrong_letter(name: str, project: Path) -> None:
    (project / name).write_bytes(gzip.compress(b"image"))
    with pytest.raises(UsageError, match=rf"{name} is neither a recipe nor an image that kit knows\n  fix: .* not compressed .* FILE\.sif"):
        find(name)


def test_a_text_without_a_from_is_no_recipe(project: Path) -> None:
    (project / "image.tar.gz").write_text("<html>Log in</html>")
    with pytest.raises(UsageError, match=r"image\.tar\.gz is no recipe: it has no FROM\n  fix: .* not compressed"):
        find("image.tar.gz")


def test_what_kit_writes_is_no_part_of_a_recipe_but_the_same_name_deeper_is(project: Path) -> None:
    for name in ("images/old.sqsh", "runs/1/run.json", ".git/HEAD", "image.lock", "source/images/x.png"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch()
    (project / "Dockerfile").write_text("FROM x\nCOPY . /opt/\n")
    assert find().files() == [
        ".dockerignore",
        "Dockerfile",
        "a b.txt",
        "other.txt",
        "requirements.txt",
        "source/",
        "source/.git/",
        "source/.git/HEAD",
        "source/deep/",
        "source/deep/x.py",
        "source/images/",
        "source/images/x.png",
    ]
    (project / "Dockerfile").write_text("FROM x\nCOPY runs /opt/\n")
    with pytest.raises(UsageError, match=r"runs is in no image that kit builds: kit writes to it\n  fix: take the files from another folder"):
        find().files()


def test_the_recipe_itself_is_never_changed(project: Path, tmp_path: Path) -> None:
    text = "FROM base:1\nCOPY . /opt/\n"
    (project / "Dockerfile").write_text(text)
    (tmp_path / "context").mkdir()
    laid_out = find().at({"base:1": "sha256:1"}).lay_out(tmp_path / "context")
    assert laid_out.read_text() == "FROM base:1@sha256:1\nCOPY . /opt/\n"
    assert (project / "Dockerfile").read_text() == text


@pytest.mark.parametrize(
    ("name", "engine", "text"),
    [("Dockerfile", "docker", "FROM base:1\nRUN <<END\ntrue\nEND\n"), ("image.def", "apptainer", "Bootstrap: docker\nFrom: base:1\n%post\n    true\n")],
)
def test_a_recipe_from_windows_is_the_same_recipe(name: str, engine: str, text: str, project: Path, tmp_path: Path) -> None:
    """Shells of an image would take the carriage returns of %post, or of a text in it, for parts of words."""
    (tmp_path / "context").mkdir()
    digests = set()
    for written in (text, text.replace("\n", "\r\n")):
        (project / name).write_bytes(written.encode())
        digests.add(digest(find(name, engine=engine), {}))
    assert len(digests) == 1
    assert find(name, engine=engine).lay_out(tmp_path / "context").read_bytes() == text.encode()


def test_scripts_of_windows_that_a_recipe_copies_are_named(project: Path, tmp_path: Path) -> None:
    (project / "Dockerfile").write_text("FROM base:1\nCOPY . /opt/\n")
    for name, text in (("a.sh", b"true\r\n"), ("b.sh", b"true\n"), ("c.py", b"1\r\n")):
        (project / name).write_bytes(text)
    (tmp_path / "context").mkdir()
    said: list[str] = []
    find().lay_out(tmp_path / "context", said.append)
    assert said == ["lines end as on Windows (CRLF) in a.sh; where a step runs one: perl -pi -e 's/\\r$//' FILE"]


def test_a_recipe_in_a_linked_folder_is_never_changed(project: Path, tmp_path: Path) -> None:
    """Also not the files that it copies through a link, and copies beside the link."""
    text = "FROM base:1\nCOPY . /opt/\nCOPY same/x.py /opt/\n"
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/Dockerfile").write_text(text)
    (project / "containers").symlink_to(tmp_path / "shared")
    (project / "same").symlink_to("source/deep")
    (project / "Dockerfile").unlink()
    (tmp_path / "context").mkdir()
    laid_out = find("containers/Dockerfile").at({"base:1": "sha256:1"}).lay_out(tmp_path / "context")
    assert laid_out.read_text().startswith("FROM base:1@sha256:1\n") and not laid_out.is_symlink()
    assert (tmp_path / "shared/Dockerfile").read_text() == text
    assert (tmp_path / "context/same/x.py").samefile(project / "source/deep/x.py")


def test_empty_folders_and_the_modes_of_folders_reach_the_engine(project: Path, tmp_path: Path) -> None:
    for name, mode in (("source/empty", 0o755), ("source/closed/in", 0o750), ("source/closed", 0o500), ("alone", 0o1777)):
        (project / name).mkdir(parents=True, exist_ok=True)
        (project / name).chmod(mode)
    (project / "Dockerfile").write_text("FROM x\nCOPY source /opt/\nCOPY alone /run/alone\n")
    (tmp_path / "context").mkdir()
    find().lay_out(tmp_path / "context")
    for name in ("source/empty", "source/closed", "source/closed/in", "alone"):
        assert (tmp_path / "context" / name).stat().st_mode == (project / name).stat().st_mode, name
    for folder in (tmp_path / "context/source/closed", project / "source/closed"):
        folder.chmod(0o700)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM x\nENV D=other.txt\nCOPY $D /opt/\n", ["other.txt"]),
        ("FROM x\nARG D\nCOPY $D /opt/\n", "all"),
        ("FROM x\nARG D=source\nENV D other.txt\nCOPY $D /opt/\n", ["other.txt"]),
        ("FROM x\nARG D=source\nENV D=$E\nCOPY $D /opt/\n", "all"),
        ("FROM x\nARG D='a b.txt'\nCOPY $D /opt/\nFROM x\nARG D=other.txt\nCOPY $D /opt/\nCOPY --from=0 / /\n", ["a b.txt", "other.txt"]),
        ("ARG D=other.txt\nFROM x\nCOPY ${D:-source} /opt/\n", "all"),
        ("ARG D=other.txt\nFROM scratch\nCOPY ${D:-a*} /opt/\n", ["a b.txt"]),
        ("FROM x\nCOPY ${D:-source} /opt/\n", "all"),
        ("FROM x\nARG D=$E\nCOPY $D /opt/\n", "all"),
        ("FROM x AS one\nONBUILD COPY missing /opt/\nFROM one\n", "all"),
        ("FROM x\nARG TARGETARCH\nCOPY for-$TARGETARCH /opt/\n", ["for-amd64" if platform.machine() == "x86_64" else "for-arm64"]),
    ],
)
def test_what_only_the_engine_knows_takes_the_whole_folder_in(text: str, expected: object, project: Path) -> None:
    for arch in ("amd64", "arm64"):
        (project / f"for-{arch}").touch()
    (project / "Dockerfile").write_text("FROM x\nCOPY . /opt/\n")
    everything = find().files()
    (project / "Dockerfile").write_text(text)
    assert find().files() == (everything if expected == "all" else expected)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("conf/*", ["conf/.hidden", "conf/deep/", "conf/deep/in/", "conf/deep/in/z.ini", "conf/prod.ini"]),
        ("conf/[^p]*", ["conf/.hidden", "conf/deep/", "conf/deep/in/", "conf/deep/in/z.ini"]),
        ("--parents conf/**/*.ini", ["conf/deep/in/z.ini", "conf/prod.ini"]),
        ("./conf//prod.ini", ["conf/prod.ini"]),
        ("link", ["link", "other.txt"]),
        ("links/conf", ["conf/", "conf/.hidden", "conf/deep/", "conf/deep/in/", "conf/deep/in/z.ini", "conf/prod.ini", "links/conf"]),
        ("links", ["links/", "links/conf", "links/outside"]),
        ("links/outside", ["links/outside"]),
    ],
)
def test_copy_takes_hidden_files_and_what_a_link_means(words: str, expected: list[str], project: Path) -> None:
    (project / "conf/deep/in").mkdir(parents=True)
    (project / "links").mkdir()
    for name in ("conf/.hidden", "conf/prod.ini", "conf/deep/in/z.ini"):
        (project / name).touch()
    for name, target in (("link", "other.txt"), ("links/conf", "../conf"), ("links/outside", "/etc")):
        (project / name).symlink_to(target)
    (project / "Dockerfile").write_text(f"FROM x\nCOPY {words} /opt/\n")
    assert find().files() == expected


def test_a_name_that_begins_with_two_dots_is_in_the_folder(project: Path) -> None:
    (project / "..data").mkdir()
    (project / "..data/conf").touch()
    (project / "link").symlink_to("..data/conf")
    (project / "Dockerfile").write_text("FROM x\nCOPY ..data link /opt/\n")
    assert find().files() == ["..data/", "..data/conf", "link"]


def test_a_base_is_named_by_its_digest_where_an_argument_of_a_stage_has_the_same_name(project: Path) -> None:
    (project / "Dockerfile").write_bytes(b"\xef\xbb\xbfARG V=1\nFROM base:$V AS base\nARG V=2\nFROM base\n")
    found = find().at({"base:1": "sha256:1"})
    assert found.text == "ARG V=1\nFROM base:1@sha256:1 AS base\nARG V=2\nFROM base\n" and found.arguments == {}


def test_a_stage_that_is_called_like_its_own_base_stays_the_stage(project: Path) -> None:
    """By the base's digest its RUN would be in no image."""
    later = "FROM base AS final\nCOPY --from=base /usr /usr\nRUN --mount=from=base,target=/x true\n"
    (project / "Dockerfile").write_text(f"FROM base AS base\nRUN true\n{later}")
    assert find().at({"base": "sha256:1"}).text == f"FROM base@sha256:1 AS base\nRUN true\n{later}"


def test_a_base_that_only_the_engine_can_name_is_left_to_it(project: Path) -> None:
    text = "ARG V=${TARGETARCH^} V=${V:-64}\nFROM base:$V\n"
    (project / "Dockerfile").write_text(text)
    pinned = bases.pin(find(), {}, lambda name: "", update=False)
    bases.check(pinned, lambda name: "")
    assert list(pinned.values()) == [bases.LOCAL] and find().at(pinned).text == text


@pytest.mark.parametrize("name", ["Dockerfile", "containers/image.def", "containers/image.enroot.sh"])
def test_the_kits_own_recipes_make_the_same_image_from_the_same_files(name: str) -> None:
    parts = recipe_formats.read(name, (ROOT / name).read_text())
    assert [base.word.strip("${} ") for base in parts.bases] == ["BASE_IMAGE"]
    assert [source.word for source in parts.sources] == ["containers/install"]
    dockerfile = recipe_formats.read("Dockerfile", (ROOT / "Dockerfile").read_text())
    assert {key: value for key, value in parts.arguments.items() if value} == dockerfile.arguments
    assert parts.declared == dockerfile.declared == {"BASE_IMAGE", "CPU_BASE_IMAGE", "TORCH_INDEX", "PIP_INDEX_URL", "APT_PACKAGES"}
    assert "install.sh" in (ROOT / name).read_text()


def test_apptainers_recipe_copies_its_files_to_where_its_script_sees_them() -> None:
    """While %post runs, /tmp is the host's."""
    text = (ROOT / "containers/image.def").read_text()
    ((_, place),) = [line.split() for line in text.partition("%files\n")[2].partition("\n\n")[0].splitlines()]
    assert not place.startswith(("/tmp", "/var/tmp", "/root")) and f"bash {place}/install.sh\n    rm -rf {place}\n" in text


def test_the_base_is_chosen_in_one_place() -> None:
    """In the Dockerfile; wherever else the kit names one, it is that one."""
    base = recipe_formats.read("Dockerfile", (ROOT / "Dockerfile").read_text()).arguments["BASE_IMAGE"]
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(path for path in (ROOT / "containers").rglob("*") if path.is_file())]
    named = {str(path.relative_to(ROOT)): set(re.findall(r"nvidia/pytorch:[0-9][\w.-]+", path.read_text())) for path in files}
    assert {name for name, found in named.items() if found} == {
        "docs/commands.md",
        "docs/coming-from.md",
        "docs/first-image.md",
        "docs/registries.md",
        "containers/horovod/Dockerfile",
        "containers/image.def",
        "containers/image.enroot.sh",
        "docs/images.md",
        "docs/laptop.md",
    }
    assert set.union(*named.values()) == {base.partition("/")[2]}


PIP = """\
if [[ "$1" == -c ]]; then
  [[ "$2" != *distributions* ]] || printf 'pip 1\n%s' "${HAS:-}"
elif [[ "$*" == *--index-url* ]]; then
  printf 'from %s: %s\n' "$6" "$(tr '\n' ' ' <"$8")" && exit "${FAILS:-0}"
else
  printf 'install %s, index %s\n' "${*:5}" "${PIP_NO_INDEX:-yes}"
fi
"""


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ["from https://download.pytorch.org/whl/cpu: torch==2 torchvision==0 ", "install requirements-cpu.txt, index yes"]),
        ({"TORCH_INDEX": "http://mine/"}, ["from http://mine/: torch==2 torchvision==0 ", "install requirements-cpu.txt, index yes"]),
        ({"CUDA_VERSION": "13.0"}, ["install requirements-cpu.txt, index yes"]),
        ({"HAS": "torch 2.10\n"}, ["install requirements.txt, index yes"]),
        ({"wheels": "yes", "TORCH_INDEX": "http://mine/"}, ["install requirements-cpu.txt, index 1"]),
    ],
)
def test_torch_for_cpus_comes_from_an_index_without_the_build_for_cuda(values: dict[str, str], expected: list[str], tmp_path: Path) -> None:
    done = _install(tmp_path, **values)
    assert done.returncode == 0 and done.stdout.splitlines() == expected, done.stderr


def test_an_index_of_torch_that_is_not_reached_is_named(tmp_path: Path) -> None:
    done = _install(tmp_path, FAILS="1")
    assert done.returncode == 1 and done.stdout.splitlines() == ["from https://download.pytorch.org/whl/cpu: torch==2 torchvision==0 "]
    assert done.stderr == (
        "kit: torch cannot be had from https://download.pytorch.org/whl/cpu: pip says why above\n"
        "  fix: name an index that is reached from here: kit build --build-arg TORCH_INDEX=URL; or put wheels into containers/install/wheels\n"
    )


def _install(folder: Path, **values: str) -> subprocess.CompletedProcess[str]:
    """install.sh with a python3 that says what pip is asked for. APT_PACKAGES would change this machine: tests/cluster/engine has it."""
    shutil.copy(ROOT / "containers/install/install.sh", folder)
    (folder / "requirements-cpu.txt").write_text("torch==2\ntorchvision==0\nnumpy==1\n")
    for name, script in (("python3", PIP), ("ldconfig", "")):
        stub(folder / "bin", name, script)
    if values.pop("wheels", ""):
        (folder / "wheels").mkdir()
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(["bash", folder / "install.sh"], env={"PATH": path, **values}, capture_output=True, text=True)
