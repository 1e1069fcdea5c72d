"""Dockerfiles in the shapes of public projects: of each `kit build` makes the image that `docker build` makes, or says which builder it needs.

The engine keeps a step that it has done before, and every file that a COPY takes in counts: the identity of kit's image is that of
`docker build` where kit has handed over the same files and the same Dockerfile. What becomes of an image is test_build.py's affair.
"""

from __future__ import annotations

import http.server
import io
import os
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from kit.base.errors import KitError
from kit.cli.build_command import make
from kit.images.build_request import BuilderOptions, BuildRequest
from kit.registry import client
from kit.registry.transport import Unavailable

from whole_run import notes

pytestmark = pytest.mark.cluster

BASE = f"kit-test-shapes-{os.getpid()}"  # kit-test/small, by a name of this run of the tests that a stage may have, too
SHAPE = f"shape-{os.getpid()}"  # the project, whose name its images have
SHAPES = {
    "the whole folder": "FROM BASE\nCOPY . /app\n",
    "a stage by its name, in other letters": "FROM BASE AS Build\nCOPY app.py /out/\nFROM BASE\nCOPY --from=build /out /app\n",
    "a stage by its number": "FROM BASE\nCOPY app.py /out/\nFROM scratch\nCOPY --from=0 /out/app.py /app.py\n",
    "a stage of a stage": "FROM BASE AS one\nCOPY app.py /one\nFROM one AS two\nCOPY run.sh /two\nFROM two\n",
    "a stage named as an image is": "FROM BASE AS BASE\nCOPY app.py /one\nFROM BASE\nCOPY run.sh /two\n",
    "a file of another image": "FROM scratch\nCOPY --from=BASE /etc/passwd /etc/passwd\n",
    "only files": "FROM scratch\nCOPY conf /conf\n",
    "an argument in FROM": "ARG IMAGE=BASE\nARG TAG=latest\nFROM ${IMAGE}:$TAG\nCOPY app.py /app/\n",
    "another argument of that name in a stage": "ARG TAG=latest\nFROM BASE:${TAG}\nARG TAG=conf\nCOPY ${TAG}/prod.ini /app/\n",
    "a default in FROM": "ARG TAG\nFROM BASE:${TAG:-latest}\nCOPY app.py /app/\n",
    "an alternative in FROM": "ARG GPU=\nFROM BASE${GPU:+:cuda}\nCOPY app.py /app/\n",
    "a stage chosen by an argument": "ARG KIND=cpu\nFROM BASE AS cpu\nCOPY app.py /cpu\nFROM BASE AS gpu\nCOPY run.sh /gpu\nFROM ${KIND} AS final\n",
    "two arguments in a line": "FROM BASE\nARG FROM_=conf TO='/opt/the files/'\nCOPY ${FROM_}/prod.ini ${TO}\n",
    "a variable in COPY": "FROM BASE\nENV DIR=conf\nCOPY $DIR/prod.ini /app/\n",
    "a variable over an argument": "FROM BASE\nARG DIR=src\nENV DIR conf\nCOPY ${DIR}/prod.ini /app/\n",
    "an argument with two values": "FROM BASE AS one\nARG DIR=conf\nCOPY $DIR /x\nFROM BASE\nARG DIR=src\nCOPY $DIR /x\nCOPY --from=one /x /y\n",
    "a list of words": 'FROM BASE\nCOPY ["a file.txt", "app.py", "/opt/the files/"]\n',
    "hidden files by *": "FROM BASE\nCOPY conf/* /app/\n",
    "letters by [^]": "FROM BASE\nCOPY conf/[^p]* /app/\n",
    "folders by *": "FROM BASE\nCOPY */*.ini /app/\n",
    "a line with comments and blank lines in it": "FROM BASE\n# first\nCOPY app.py \\\n  # why\n\n  run.sh \\\n\n  /app/\n",
    "words that go on in the next line": f"FROM {BASE[:9]}\\\n{BASE[9:]}\nCOPY conf/pr\\\nod.ini /app/\n",
    "another letter for the end of a line": "# escape=`\nFROM BASE\nCOPY app.py `\n  run.sh `\n  /app/\nLABEL path=C:\\\nCOPY conf /conf\n",
    "small letters and tabs": "from\tBASE\nCopy\t--chown=1:2\tapp.py\t/app/\n  workdir /app\n",
    "lines of Windows": "FROM BASE\r\nCOPY app.py \\\r\n  run.sh /app/\r\n",
    "a byte order mark": "\ufeffFROM BASE\nCOPY app.py /app/\n",
    "a link to a file": "FROM BASE\nCOPY link /app/\n",
    "a link to a folder": "FROM BASE\nCOPY links/conf /app/\n",
    "links in a folder": "FROM BASE\nCOPY links /app/\n",
    "empty and closed folders": "FROM BASE\nCOPY empty /app/empty\nCOPY closed /app/closed\n",
    "an archive that is unpacked": "FROM BASE\nADD archive.tar /app/\n",
    "a file of a server": "FROM BASE\nADD http://127.0.0.1:PORT/app.py /app/\n",
    "owners": "FROM BASE\nUSER 7\nCOPY --chown=3:4 app.py run.sh /app/\nWORKDIR /home/x\n",
    "folders that follow each other": "FROM BASE\nWORKDIR /a\nWORKDIR b\nCOPY app.py .\nCOPY conf ./conf/\n",
    "another shell": 'FROM BASE\nSHELL ["/bin/sh", "-e", "-c"]\nRUN echo a >/a && \\\n  # a comment\n  echo b >/b\n',
    "what a program is told": 'FROM BASE\nEXPOSE 80/tcp\nVOLUME /data\nSTOPSIGNAL 9\nLABEL a="b c" d=e\nHEALTHCHECK NONE\nENTRYPOINT ["sh"]\nCMD -c true\n',
    "steps for later stages": "FROM BASE AS base\nONBUILD COPY conf /conf\nFROM base\nCOPY app.py /app.py\n",
    "a stage that is not the last": "FROM BASE AS wanted\nCOPY app.py /app/\nFROM wanted\nRUN false\n",
    "a file of one machine": "FROM BASE\nARG TARGETARCH\nCOPY bin/tool.$TARGETARCH /bin/tool\n",
    "a stage of the builder's machine": "FROM --platform=$BUILDPLATFORM BASE AS tools\nCOPY app.py /x\nFROM BASE\nCOPY --from=tools /x /x\n",
    "a cache": "FROM BASE\nRUN --mount=type=cache,target=/c echo a >/a\n",
    "files that only a step sees": "FROM BASE\nRUN --mount=type=bind,source=conf,target=/c cat /c/prod.ini >/a\n",
    "files of a stage that only a step sees": "FROM BASE AS one\nCOPY app.py /x\nFROM BASE\nRUN --mount=from=one,source=/x,target=/y cat /y >/a\n",
    "a secret": "FROM BASE\nRUN --mount=type=secret,id=TOKEN cat /run/secrets/TOKEN >/dev/null\n",
    "modes": "FROM BASE\nCOPY --chmod=750 app.py /app/\n",
    "a layer of its own": "FROM BASE\nCOPY --link app.py /app/\n",
    "a script in the recipe": "FROM BASE\nRUN <<-EOF cat >/a\n\tCOPY nothing /\n\tEOF\nCOPY app.py /app/\n",
    "a file in the recipe": "FROM BASE\nCOPY <<EOF /etc/made\nFROM nothing\n  EOF\nEOF\nCOPY app.py /app/\n",
    "an ignore file of its own": "FROM BASE\nCOPY . /app\n",
}
# What a builder that is not BuildKit of our days refuses; the last it takes, and makes another image of it.
NEWER = list(SHAPES)[list(SHAPES).index("a file of one machine") :]


@pytest.fixture(scope="module")
def builder(engine: str) -> Iterator[str]:
    """What builds here: buildkit, or classic."""
    docker("tag", "kit-test/small", BASE)
    tried = docker("build", "--quiet", "-", input="FROM scratch\nLABEL of=a-test\n", check=False, env={**os.environ, "DOCKER_BUILDKIT": "1"})
    found = "classic" if tried.returncode else "buildkit"
    notes.append(f"Dockerfiles were built by: Docker {docker('version', '--format', '{{.Server.Version}}').stdout.strip()}, its {found} builder")
    yield found
    names = docker("images", "--format", "{{.Repository}}:{{.Tag}}", f"kit/{SHAPE}").stdout.split()
    docker("image", "rm", "--force", BASE, *names)


def docker(*arguments: str, check: bool = True, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *arguments], check=check, capture_output=True, text=True, **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of one on this machine's loopback that has app.py."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "app.py").write_text("from a server\n")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running.server_address[1]
        running.shutdown()


@pytest.fixture
def project(builder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder called SHAPE, with what the recipes copy; no registry answers."""
    folder = tmp_path / SHAPE
    for name in ("app.py", "run.sh", "a file.txt", "conf/prod.ini", "conf/dev.ini", "conf/.hidden", "src/x.ini", "src/deep/y.py", "left/out.log"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"this is {name}\n")
    for name in ("bin", "empty/in", "closed/in", "links"):
        (folder / name).mkdir(parents=True)
    for machine in ("amd64", "arm64"):
        (folder / f"bin/tool.{machine}").write_text(machine)
    for name, target in (("link", "app.py"), ("links/conf", "../conf"), ("links/nowhere", "/not/there")):
        (folder / name).symlink_to(target)
    with tarfile.open(folder / "archive.tar", "w") as archive:
        archive.add(folder / "conf", "unpacked")
    (folder / "run.sh").chmod(0o755)
    (folder / "closed").chmod(0o700)
    (folder / ".dockerignore").write_text("left\n")
    (tmp_path / "token").write_text("s3cret")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DOCKER_BUILDKIT", "1" if builder == "buildkit" else "0")
    monkeypatch.setattr(client, "resolve", no_registry)
    return folder


def no_registry(name: str, _: object) -> str:
    raise Unavailable(f"no registry has {name}", "none is asked")


def build(capsys: pytest.CaptureFixture[str], options: BuilderOptions = BuilderOptions()) -> str:
    """The identity of the image that kit lets the engine make."""
    make(BuildRequest(to="docker", options=options))
    tag = capsys.readouterr().out.removeprefix("kit: ").strip()
    return docker("image", "inspect", "--format", "{{.Id}}", tag).stdout


def tree(image: str) -> dict[str, tuple[object, ...]]:
    """Everything of an image's files but their times."""
    container = docker("create", image.strip(), "/bin/true").stdout.strip()
    exported = subprocess.run(["docker", "export", container], check=True, capture_output=True).stdout
    docker("rm", "--force", "--volumes", container)
    with tarfile.open(fileobj=io.BytesIO(exported)) as archive:
        return {
            item.name: (item.type, item.mode, item.uid, item.gid, item.linkname, archive.extractfile(item).read() if item.isreg() else b"")  # type: ignore[union-attr]
            for item in archive
        }


@pytest.mark.parametrize("shape", SHAPES)
def test_kit_builds_what_docker_builds_or_says_what_is_missing(shape: str, builder: str, project: Path, server: int, capsys) -> None:
    (project / "Dockerfile").write_bytes(SHAPES[shape].replace("BASE", BASE).replace("PORT", str(server)).encode())
    if shape == "an ignore file of its own":
        if builder == "classic":
            return  # it reads .dockerignore alone
        (project / "Dockerfile.dockerignore").write_text("src\n")
    options = BuilderOptions(
        stage="wanted" if shape == "a stage that is not the last" else None,
        secrets=(f"id=TOKEN,src={project.parent}/token",) if shape == "a secret" else (),
    )
    done = docker("build", "--quiet", *options.command(), ".", check=False)
    if done.returncode:
        assert shape in NEWER and builder == "classic", done.stderr
        with pytest.raises(KitError, match="the recipe needs BuildKit, which is not here\n  fix: install Docker's own builder"):
            build(capsys, options)
    else:
        made = build(capsys, options)
        # A link's own step is another one to the classic builder where the link leads to what only the whole folder has.
        assert made == done.stdout or tree(made) == tree(done.stdout)


def test_a_base_that_copies_by_itself_is_refused_since_kit_has_not_given_it_the_files(builder: str, project: Path, capsys) -> None:
    if builder == "buildkit":
        return  # Docker 26's does not say that a step is the base's
    docker("build", "--quiet", "--tag", "kit-test-onbuild", "-", input=f"FROM {BASE}\nONBUILD COPY . /app\n")
    try:
        (project / "Dockerfile").write_text("FROM kit-test-onbuild\nCOPY app.py /x\n")
        with pytest.raises(KitError, match="the base image copies files by itself"):
            build(capsys)
    finally:
        docker("image", "rm", "--force", "kit-test-onbuild")
