"""What becomes of a Dockerfile's lines where there is no Docker, and which of them are refused, with the ways out."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Optional

import pytest
from kit.base.errors import UsageError
from kit.images import dockerfile, dockerfile_words, recipe
from kit.images.build_request import BuildRequest
from kit.images.dockerfile_stage import CopyStep, RunStep, Stage
from kit.registry.oci import Config, architecture

from samples import ROOT

VALUES = {"V": "v3.11.07", "A": "1", "EMPTY": "", "SPACE": "a b", "DOLLAR": "$A"}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("$A", "1"),
        ("x${A}y$A/z", "x1y1/z"),
        ("$NONE|${NONE}", "|"),
        ("${NONE:-b}${EMPTY:-c}${EMPTY-d}${A:-e}", "bc1"),
        ("${NONE:+b}${EMPTY:+c}${EMPTY+d}${A:+e$A}", "de1"),
        ("${NONE:-${NOT:-$A}}", "1"),
        ("${NONE:-'}'}", "}"),
        ("'$A'", "$A"),
        ('"$A"', "1"),
        (r"\$A", "$A"),
        (r'"\$A \" \\ \x"', r"$A \" \\ \x".replace(r"\"", '"').replace("\\\\", "\\")),
        (r"a\ b\\c", "a b\\c"),
        ("\"it's $SPACE\"'\"'", "it's a b\""),
        ("$DOLLAR", "$A"),
        ("$ 5$", "$ 5$"),
        ("$1", ""),
        ("$Ab$A-b", "1-b"),
        ("${A:?no}${A?}${EMPTY?}", "11"),
        ("${V#v}|${V##*.}|${V#*.}|${V%.*}|${V%%.*}|${V%0?}|${V#\\*}|${NONE#x}", "3.11.07|07|11.07|v3.11|v3|v3.11.|v3.11.07|"),
        ("${V/1/-}|${V//1/-}|${V//[.]/}|${V//./$A}", "v3.-1.07|v3.--.07|v3.11.07|v3111107"),
    ],
)
def test_a_word_has_dockers_quotes_and_variables(word: str, expected: str) -> None:
    assert dockerfile_words.expand(word, VALUES, "\\") == expected


@pytest.mark.parametrize("word", ["${", "${A", "${A:", "${NONE:?no}", "${EMPTY:?}", "${NONE?}", "${A^x}", "${A/x}", "${}", '"a', "'a", "${A:-'x}"])
def test_a_word_that_no_docker_reads_or_not_every_one_is_refused(word: str) -> None:
    with pytest.raises(ValueError):
        dockerfile_words.expand(word, VALUES, "\\")


def test_words_end_at_blanks_that_are_not_quoted() -> None:
    assert dockerfile_words.split(r"""a="b c" d='e "f' g\ h  i=""" + "\t'j'k", "\\") == ['a="b c"', "d='e \"f'", r"g\ h", "i=", "'j'k"]
    assert dockerfile_words.split(r"a=C:\ b=`  c", "`") == ["a=C:\\", "b=` ", "c"]
    with pytest.raises(ValueError, match="a quote is not closed"):
        dockerfile_words.split("\\a" * 2000 + ' "b', "\\")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").touch()
    return tmp_path


def load(text: str, arguments: Optional[dict[str, str]] = None) -> recipe.Recipe:
    Path("Dockerfile").write_text(text)
    return recipe.load(Path("Dockerfile").absolute(), Path.cwd(), "x", BuildRequest(arguments=arguments or {}))


def last(text: str, arguments: Optional[dict[str, str]] = None, **bases: Config) -> Stage:
    stages = dockerfile.translate(load(text, arguments), "apptainer", bases)
    return stages[max(stages)]


def test_a_base_in_quotes_is_the_base(project: Path) -> None:
    assert last('ARG B=x:1\nFROM "${B}" AS one\n').base == "x:1"
    assert last("FROM 'x:1'\n").base == "x:1"


def variables(stage: Stage) -> dict[str, str]:
    """What the stage's last RUN has, but for HOME and PATH."""
    (*_, run) = [step for step in stage.steps if isinstance(step, RunStep)]
    return {name: value for name, value in run.env.items() if name not in ("HOME", "PATH")}


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        ("FROM x\nENV A=1\nENV A=2 B=$A\nRUN y\n", {}, {"A": "2", "B": "1"}),
        ("FROM x\nENV A b  c\nRUN y\n", {}, {"A": "b  c"}),
        ("FROM x\nARG A=1\nENV A=2\nRUN y\n", {}, {"A": "2"}),
        ("FROM x\nARG A=1\nRUN y\n", {"A": "9"}, {"A": "9"}),
        ("ARG A=1\nFROM x\nRUN y\n", {"A": "9"}, {}),
        ("ARG A=1\nARG B=$A$A\nFROM x\nARG B\nRUN y\n", {}, {"B": "11"}),
        ("ARG A=1\nFROM x\nARG A=2 C=$A\nRUN y\n", {}, {"A": "2", "C": "2"}),
        ("FROM x\nARG A\nRUN y\n", {}, {}),
        ("FROM x AS b\nARG A=1\nENV B=2\nFROM b\nRUN y\n", {}, {"A": "1", "B": "2"}),
        ("FROM x AS b\nARG A=1\nENV B=2\nFROM x\nRUN y\n", {}, {}),
        ("FROM x\nARG TARGETARCH\nRUN y\n", {}, {"TARGETARCH": architecture()}),
        ("FROM x\nRUN y\n", {"http_proxy": "http://p"}, {"http_proxy": "http://p"}),
        ("ARG B='$A'\nARG A=1\nFROM x\nARG B\nRUN y\n", {}, {"B": "$A"}),
        ("ARG G\nFROM x\nARG A\nARG G\nRUN y\n", {"A": "a$b ${HOME}", "G": "${A}"}, {"A": "a$b ${HOME}", "G": "${A}"}),
        ("FROM one:${V:-x} AS V\nARG V=2\nARG W=${V%2}3\nRUN y\n", {}, {"V": "2", "W": "3"}),
    ],
)
def test_a_step_has_the_variables_that_docker_gives_it(text: str, arguments: dict[str, str], expected: dict[str, str], project: Path) -> None:
    assert variables(last(text, arguments)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ENTRYPOINT a b\nCMD c", (("/bin/sh", "-c", "a b"), ("/bin/sh", "-c", "c"))),
        ('ENTRYPOINT ["a"]', (("a",), ())),
        ('CMD ["c"]\nENTRYPOINT ["a"]', (("a",), ("c",))),
        ('CMD ["c"]', (("of-base",), ("c",))),
        ("CMD [c]", (("of-base",), ("/bin/sh", "-c", "[c]"))),
        ('SHELL ["bash", "-c"]\nENTRYPOINT []\nCMD c', ((), ("bash", "-c", "c"))),
        ("EXPOSE 80", (("of-base",), ("cmd-of-base",))),
    ],
)
def test_entrypoint_and_cmd_are_dockers(text: str, expected: tuple[tuple[str, ...], tuple[str, ...]], project: Path) -> None:
    config = last(f"FROM x\n{text}\n", x=Config(entrypoint=("of-base",), cmd=("cmd-of-base",))).config
    assert (config.entrypoint, config.cmd) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("COPY a.py .", (("a.py",), None, "/w/", None)),
        ("COPY ./a.py /x/../b", (("a.py",), None, "/b", None)),
        ("COPY . /", (("",), None, "/", None)),
        ('COPY ["a.py", "$W/b c/"]', (("a.py",), None, "/w/b c/", None)),
        ("COPY --from=one --chmod=755 --chown=0 --link /out/* d", (("out/*",), 0, "/w/d", 0o755)),
        ("COPY --from=0 / ./", (("",), 0, "/w/", None)),
        ("COPY --from=other:1 /bin/uv /bin/", (("bin/uv",), "other:1", "/bin/", None)),
        ("ADD a.py sub/", (("a.py",), None, "/w/sub/", None)),
        ("WORKDIR ../v", ((), None, "/v/", None)),
        ("WORKDIR /", ((), None, "/", None)),
    ],
)
def test_the_places_of_files_are_dockers(text: str, expected: tuple[object, ...], project: Path) -> None:
    step = last(f"FROM x AS One\nFROM x\nENV W=/w\nWORKDIR $W\n{text}\n").steps[-1]
    assert isinstance(step, CopyStep) and step[1:] == expected


REFUSED = """\
# escape=`
FROM x AS never
ADD https://example.org/x /
FROM --platform=linux/s390x base AS used
RUN --mount=type=cache,target=/c --network=none true
ONBUILD RUN true
FROM used
ADD https://example.org/x git@example.org:x a.tar.gz a.py /
COPY --chown=1000 --parents --chmod=u+x a.py /
COPY <<EOF /made
text
EOF
RUN <<EOF
#!/usr/bin/env python3
EOF
USER app
RUN one
RUN two
ENV A="b
ENV A
COPY --from=7 /x /y
COPY a.py
SHELL bash
INSTALL x
ENV B=${A^x}
USER root
RUN --network=default three
"""


def test_all_lines_that_are_for_docker_alone_are_refused_at_once_with_the_ways_out(project: Path) -> None:
    with tarfile.open("a.tar.gz", "w:gz") as archive:
        archive.add("a.py")
    with pytest.raises(UsageError) as error:
        dockerfile.translate(load(REFUSED), "apptainer", {})
    file = Path.cwd() / "Dockerfile"
    ways_out, *found = str(error.value).replace(f"kit: {file}", "kit: ").split("kit: ")[1:]
    assert ways_out == (
        ": 15 lines are only for Docker or Podman, not for apptainer\n"
        "  fix: change what follows; or build it on a machine that has one of them: `kit submit --cluster NAME` copies the image from there; "
        "or `docker save -o FILE.tar IMAGE` there and `kit build FILE.tar` here; or `docker push` there and `kit build docker://IMAGE` here\n"
    )
    assert [item.split("\n")[0] for item in found] == [
        ":4: --platform=linux/s390x is not this machine's platform",
        ":5: RUN --mount=type=cache,target=/c needs Docker's builder",
        ":5: RUN --network=none needs Docker's builder",
        ":6: ONBUILD is for images that other images are built on",
        ":8: ADD https://example.org/x is a download",
        ":8: ADD git@example.org:x is a download",
        ":8: ADD would unpack a.tar.gz",
        ":9: --chown=1000 cannot be held: all files are root's",
        ":9: COPY --parents needs Docker's builder",
        ":9: COPY --chmod=u+x needs Docker's builder",
        ":10: a file in the recipe needs Docker's builder",
        ":13: a script with #! needs Docker's builder",
        ":16: the steps of USER app would be root's, as are all files",
        ":19: ENV: a quote is not closed",
        ":20: ENV: it wants NAME=VALUE",
        ":21: COPY: there is no stage 7 above it",
        ":22: COPY: it wants at least one file, and a target",
        ':23: SHELL: it wants a list: SHELL ["/bin/bash", "-c"]',
        ":24: INSTALL is not known",
        ":25: ENV: ${A...} has a form that Docker does not know",
    ]
    assert all("\n  fix: " in item for item in found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# syntax=example/other\nFROM x\n", "Dockerfile:1: example/other is another language\n"),
        ("ARG V=${A^}\nFROM x:$V\n", "Dockerfile:2: x:$V: only the engine knows V\n  fix: name the image itself"),
        ("ARG V=${A^}\nFROM x\nARG V\n", "Dockerfile:3: ARG: kit cannot read the value of V\n"),
        ("RUN true\nFROM x\n", "Dockerfile:1: there is no FROM before it\n"),
        ("ARG A\n", "Dockerfile is no recipe: it has no FROM\n  fix: a recipe is UTF-8 text (a Dockerfile has a FROM)"),
    ],
)
def test_what_is_no_dockerfile_is_said(text: str, said: str, project: Path) -> None:
    with pytest.raises(UsageError) as error:
        dockerfile.translate(load(text), "enroot", {})
    assert said in str(error.value)


@pytest.mark.parametrize(
    "name", ["docker/dockerfile-upstream:master", "registry.example:5000/mirror/docker/dockerfile:1@sha256:12", "docker.io/docker/dockerfile"]
)
def test_dockers_own_language_may_come_from_anywhere(name: str, project: Path) -> None:
    assert last(f"# syntax = {name}\nFROM x\n").base == "x"


def test_a_stage_that_is_not_built_is_not_read(project: Path) -> None:
    text = "FROM x:$NONE\nADD https://example.org/x /\nCOPY missing /\nFROM y AS last\nCOPY a.py /\n"
    assert last(text).base == "y" and load(text).files() == ["a.py"]


@pytest.mark.parametrize(
    "name",
    [
        "Dockerfile",
        "containers/tensorflow/Dockerfile",
        "containers/horovod/Dockerfile",
        *(f"tests/cluster/{name}.Dockerfile" for name in ("node", "controller", "python")),
    ],
)
def test_every_dockerfile_of_this_repository_can_be_built_without_docker(name: str) -> None:
    file = ROOT / name
    dockerfile.translate(recipe.load(file, file.parent, "x", BuildRequest()), "apptainer", {})
