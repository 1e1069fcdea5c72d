"""A Dockerfile where there is no Docker: kit's own steps, in folders. tests/cluster/engine/test_build_without_docker.py has the real engines."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kit.base.errors import KitError, UsageError
from kit.cli.build_command import make
from kit.config import image_files
from kit.images import build
from test_registry import digest, image, plain, serving

from far_side import install

pytestmark = pytest.mark.slow

ENGINES = ("apptainer", "enroot")
DOCKERFILE = """\
ARG BASE_IMAGE=registry.example/base:1
ARG VERSION=3
FROM ${BASE_IMAGE} AS Builder
ARG VERSION
ARG WORD='two words'
ARG TOKEN
ENV OUT=/out GREETING="it's $VERSION" \\
    PATH=/opt/bin:$PATH
WORKDIR $OUT/deep
COPY app.py run.sh ./
RUN echo "$GREETING $WORD $(pwd) $(id -u) $HOME $PATH" >said \\
  # a comment
  && chmod 640 said && umask >umask && printf %s "$TOKEN" >token
RUN ["/bin/sh", "-c", "echo exec $0 >exec", "a b"]

FROM builder AS unused
RUN --mount=type=cache,target=/c false

FROM scratch AS plain
COPY conf/prod.ini /made/by/copy.ini

FROM ${BASE_IMAGE}
RUN <<-END
	echo "$GREETING$OUT-" >/later
	mkdir -m 555 /closed; ln -s /closed /abs; echo kept >/tmp/kept; echo first >/order
	END
RUN cat >/texts <<A && cat >>/texts <<'B'
one $PWD
A
two $PWD
B
COPY order /order
RUN cat /order /tmp/kept >/seen
COPY --from=builder /out /app
COPY --from=0 --chown=root:root --chmod=0604 /out/deep/[r-s]* /opt/
COPY --from=plain / /plain/
COPY conf/prod.ini /abs/
ADD src link /abs/src/
COPY . /all
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN shopt -qo pipefail
LABEL a="b c" org.x=y
WORKDIR /app
WORKDIR deep
USER root
HEALTHCHECK CMD true
ENV A=1 B=$A
ENV C some $BASED text
ENTRYPOINT ["/entry"]
CMD echo $A
USER 1000
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project whose files a recipe may copy, of a user with a strict umask; apptainer and enroot are fakes, docker is not there."""
    install(tmp_path / "bin", enroot="fake_enroot", apptainer="fake_apptainer")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_ENGINE", str(tmp_path / "engine"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "engine").mkdir()
    folder = tmp_path / "model"
    for name in ("app.py", "run.sh", "order", "conf/prod.ini", "conf/.hidden", "conf/deep/x", "src/x.py", "skip.log"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"this is {name}\n")
    for name, target in (("link", "app.py"), ("src/conf", "../conf"), ("src/nowhere", "/nowhere")):
        (folder / name).symlink_to(target)
    (folder / "run.sh").chmod(0o755)
    (folder / "conf/deep").chmod(0o700)
    (folder / ".dockerignore").write_text("*.log\nDockerfile\nimage.lock\n")
    monkeypatch.chdir(folder)
    before = os.umask(0o077)
    yield folder
    os.umask(before)


@pytest.fixture
def base() -> Iterator[str]:
    """An image in a registry, whose programs are this machine's."""
    with registry(Env=["BASED=there"], WorkingDir="/etc", Cmd=["gone"], Labels={"of": "base"}) as name:
        yield name


@contextmanager
def registry(**config: object) -> Iterator[str]:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, target in (("usr", ""), ("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64"), ("opt", "")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = (tarfile.SYMTYPE, target, 0o777) if target else (tarfile.DIRTYPE, "", 0o755)
            archive.addfile(info)
    blobs, manifest = configured(*image(content.getvalue()), **config)
    with serving(plain(manifest, blobs)) as server:
        yield f"{server.address}/lib/base:1"


def configured(manifest: bytes, blobs: dict[str, bytes], **config: object) -> tuple[dict[str, bytes], bytes]:
    """The image with another configuration."""
    document = json.loads(manifest)
    old = json.loads(blobs.pop(document["config"]["digest"]))
    content = json.dumps({**old, "config": config}).encode()
    document["config"].update(digest=digest(content), size=len(content))
    return {**blobs, digest(content): content}, json.dumps(document).encode()


def unpacked(folder: Path, name: str = "model") -> Path:
    (file,) = Path("images").glob(f"{name}-*.sqsh")
    # Without root it leaves out of the modes what the umask has.
    subprocess.run(["unsquashfs", "-no-progress", "-quiet", "-dest", str(folder), str(file)], check=True, capture_output=True, umask=0o022)
    return folder


def described(root: Path, *names: str) -> dict[str, tuple[str, object]]:
    """Type and mode, and text, target or names of some files."""
    found: dict[str, tuple[str, object]] = {}
    for name in names:
        path = root / name
        content: object = os.readlink(path) if path.is_symlink() else sorted(os.listdir(path)) if path.is_dir() else path.read_text()
        found[name] = (stat.filemode(path.lstat().st_mode), content)
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_the_steps_happen_in_their_order_and_mean_what_they_mean_to_docker(engine: str, project: Path, base: str, tmp_path: Path, capfd) -> None:
    Path("Dockerfile").write_text(DOCKERFILE)
    request = build.BuildRequest(engine=engine, arguments={"BASE_IMAGE": base, "TOKEN": "s3cret"})
    make(request)
    path = "/opt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert described(
        unpacked(tmp_path / "out"), "later", "texts", "seen", "order", "tmp/kept", "abs", "closed", "closed/prod.ini", "closed/src", "closed/src/conf", "app"
    ) == {
        "later": ("-rw-r--r--", "-\n"),  # a stage has no variables of another one
        "texts": ("-rw-r--r--", "one /etc\ntwo $PWD\n"),
        "seen": ("-rw-r--r--", "this is order\nkept\n"),
        "order": ("-rw-r--r--", "this is order\n"),
        "tmp/kept": ("-rw-r--r--", "kept\n"),
        "abs": ("lrwxrwxrwx", "/closed"),
        "closed": ("drwxr-xr-x", ["prod.ini", "src"]),  # 0555, and what its owner needs
        "closed/prod.ini": ("-rw-r--r--", "this is conf/prod.ini\n"),
        "closed/src": ("drwxr-xr-x", ["conf", "link", "nowhere", "x.py"]),
        "closed/src/conf": ("lrwxrwxrwx", "../conf"),
        "app": ("drwxr-xr-x", ["deep"]),
    }
    assert described(tmp_path / "out", "app/deep", "app/deep/said", "app/deep/exec", "app/deep/umask", "app/deep/run.sh", "app/deep/token", "opt") == {
        "app/deep": ("drwxr-xr-x", ["app.py", "exec", "run.sh", "said", "token", "umask"]),
        "app/deep/said": ("-rw-r-----", f"it's 3 two words /out/deep 0 /root {path}\n"),
        "app/deep/exec": ("-rw-r--r--", "exec a b\n"),
        "app/deep/umask": ("-rw-r--r--", "0022\n"),
        "app/deep/run.sh": ("-rwxr-xr-x", "this is run.sh\n"),
        "app/deep/token": ("-rw-r--r--", "s3cret"),
        "opt": ("drwxr-xr-x", ["run.sh", "said"]),
    }
    names = ("opt/said", "opt/run.sh", "plain", "plain/made/by/copy.ini", "all", "all/conf", "all/conf/deep", "all/link", "")
    assert described(tmp_path / "out", *names) == {
        "opt/said": ("-rw----r--", f"it's 3 two words /out/deep 0 /root {path}\n"),
        "opt/run.sh": ("-rw----r--", "this is run.sh\n"),
        "plain": ("drwxr-xr-x", sorted(["dev", "etc", "home", "made", "proc", "root", "run", "sys", "tmp", "var"])),
        "plain/made/by/copy.ini": ("-rw-r--r--", "this is conf/prod.ini\n"),
        "all": ("drwxr-xr-x", [".dockerignore", "app.py", "conf", "link", "order", "run.sh", "src"]),
        "all/conf": ("drwxr-xr-x", [".hidden", "deep", "prod.ini"]),
        "all/conf/deep": ("drwx------", ["x"]),
        "all/link": ("lrwxrwxrwx", "app.py"),
        "": (
            "drwxr-xr-x",
            sorted(".singularity.d abs all app bin closed dev etc home later lib lib64 opt order plain proc root run seen sys texts tmp usr var".split()),
        ),
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_the_image_says_of_itself_what_dockers_would(engine: str, project: Path, base: str, tmp_path: Path, capfd) -> None:
    Path("Dockerfile").write_text(DOCKERFILE)
    request = build.BuildRequest(engine=engine, arguments={"BASE_IMAGE": base, "TOKEN": "s3cret"})
    make(request)
    said, record = capfd.readouterr(), json.loads(Path("images/model.json").read_text())
    root = unpacked(tmp_path / "out")
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert (root / "etc/environment").read_text() == f"BASED=there\nPATH={path}\nA=1\nB=\nC=some there text\n"
    labels = json.loads((root / ".singularity.d/labels.json").read_text())
    assert {name: labels[name] for name in ("of", "a", "org.x")} == {"of": "base", "a": "b c", "org.x": "y"}
    script = (root / "etc/rc").read_text()
    assert "cd /app/deep || exit 1\n" in script and "set -- /bin/bash -o pipefail -c 'echo $A'\n" in script and 'exec /entry "$@"\n' in script
    assert "kit: step 1/18: WORKDIR $OUT/deep\n" in said.err and "kit: step 18/18: WORKDIR deep\n" in said.err
    assert record["engine"] == engine and record["arguments"]["TOKEN"] == "(hidden)" and list(record["bases"]) == [base]
    # The value of a secret is in no list of processes and in no log, and nothing else is left of the build.
    calls = (tmp_path / "engine/calls").read_text()
    assert "s3cret" not in calls + said.err + (image_files_of("model").with_suffix(".log")).read_text()
    assert os.listdir(tmp_path / "tmp") == []
    make(request)
    assert capfd.readouterr().out.endswith("is up to date\n") and (tmp_path / "engine/calls").read_text() == calls


def image_files_of(name: str) -> Path:
    return Path(str(image_files.named(name, Path.cwd())))


def test_each_engine_makes_an_image_of_its_own_and_docker_another_one(project: Path, base: str, tmp_path: Path) -> None:
    Path("Dockerfile").write_text(f"FROM {base}\nCOPY app.py /\n")
    for engine in ENGINES:
        make(build.BuildRequest(engine=engine))
    install(tmp_path / "bin", docker="fake_docker")
    for name in ("images", "containers"):
        (tmp_path / "engine" / name).mkdir()
    make(build.BuildRequest())
    assert len(list(Path("images").glob("model-*.sqsh"))) == 3


@pytest.mark.parametrize("engine", ENGINES)
def test_a_user_number_may_be_an_argument_where_the_shell_is_bash(engine: str, project: Path, base: str, tmp_path: Path) -> None:
    """As in images of Fedora and its kin: there it lets no script set this variable, unless it was started with it."""
    bash = "RUN rm /bin && mkdir /bin && ln -s /usr/bin/bash /bin/sh"
    Path("Dockerfile").write_text(f"FROM {base}\n{bash}\nARG UID=1000\nARG GID=100\nRUN echo $UID $GID $BASH >/said\n")
    make(build.BuildRequest(engine=engine))
    assert (unpacked(tmp_path / "tree") / "said").read_text() == "1000 100 /bin/sh\n"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_that_fails_is_named_by_its_line_and_nothing_is_left(engine: str, project: Path, base: str, tmp_path: Path, capfd) -> None:
    Path("Dockerfile").write_text(f"FROM {base}\nRUN true\nRUN echo about-to-fail; \\\n  mkdir -m 0 /x; exit 3\n")
    with pytest.raises(KitError, match=r"Dockerfile:3: RUN ended with code 3\n  fix: see the lines above; the log: .*\.log"):
        make(build.BuildRequest(engine=engine))
    assert "about-to-fail" in capfd.readouterr().err
    assert not list(Path("images").glob("*.sqsh")) and os.listdir(tmp_path / "tmp") == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("COPY --from=0 /nothing /x", "there is no nothing"),
        ("COPY app.py run.sh /x", "several files want a folder: write /x/"),
        ("COPY conf /file", "file is a folder, and in its place is a file or a link"),
        ("COPY app.py /folder/app.py/..", "app.py is a file, and in its place is a folder"),
        ("COPY app.py /round/x", "the links of /round/x lead to each other"),
    ],
)
def test_a_copy_that_cannot_be_done_is_named_by_its_line(line: str, said: str, project: Path, base: str) -> None:
    Path("Dockerfile").write_text(f"FROM {base} AS one\nFROM {base}\nRUN echo >/file; mkdir -p /folder/app.py /folder/folder; ln -s round /round\n{line}\n")
    with pytest.raises(KitError) as error:
        make(build.BuildRequest(engine="apptainer"))
    assert f"Dockerfile:4: COPY: {said}\n  fix: correct that line; the log: " in str(error.value)


def test_links_in_an_image_lead_nowhere_out_of_it(project: Path, base: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("the user's")
    up = "../" * 20 + str(outside).lstrip("/")
    Path("Dockerfile").write_text(
        f"FROM {base} AS one\nRUN ln -s '{outside}' /out; ln -s '{up}' /up; ln -s '{outside}/secret' /secret; mkdir -p '{outside}'\n"
        f"RUN rm -f /.kit-build-apt; ln -s '{outside}/secret' /.kit-build-apt 2>/dev/null; true\n"
        "RUN true\nCOPY app.py /out/\nCOPY app.py /up/b.py\nCOPY app.py /secret\n"
        f"FROM {base}\nCOPY --from=one /out /of-out\nCOPY --from=one /up /of-up\nCOPY --from=one /secret* /of-secret/\n"
    )
    make(build.BuildRequest(engine="apptainer"))
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"secret": "the user's"}
    assert described(unpacked(tmp_path / "unpacked"), "of-out", "of-up", "of-secret/secret") == {
        "of-out": ("drwxr-xr-x", ["app.py", "b.py", "secret"]),
        "of-up": ("drwxr-xr-x", ["app.py", "b.py", "secret"]),
        "of-secret/secret": ("-rw-r--r--", "this is app.py\n"),
    }


def test_the_projects_files_are_copies_which_a_step_may_change(project: Path, base: str) -> None:
    Path("Dockerfile").write_text(f"FROM {base}\nCOPY conf /conf\nRUN echo changed >/conf/prod.ini; chmod 777 /conf/*\n")
    make(build.BuildRequest(engine="apptainer"))
    assert described(project, "conf/prod.ini") == {"conf/prod.ini": ("-rw-r--r--", "this is conf/prod.ini\n")}


@pytest.mark.parametrize(
    ("config", "dockerfile", "said"),
    [
        ({"User": "jovyan"}, "FROM BASE\nRUN true\n", ":1: the steps of USER jovyan would be root's, as are all files\n  fix: write USER root before them"),
        ({"OnBuild": ["COPY . /x"]}, "FROM BASE\nRUN true\n", ":1: the base has steps of its own (ONBUILD)\n  fix: "),
        ({"User": "jovyan"}, "FROM BASE\nUSER root\nRUN true\nUSER jovyan\n", ""),
        ({"User": "jovyan"}, "FROM BASE\nCOPY app.py /\n", ""),
    ],
)
def test_what_a_base_wants_of_a_build_is_asked_before_a_step(config: dict, dockerfile: str, said: str, project: Path, tmp_path: Path) -> None:
    with registry(**config) as name:
        Path("Dockerfile").write_text(dockerfile.replace("BASE", name))
        if not said:
            make(build.BuildRequest(engine="apptainer"))
            return
        with pytest.raises(UsageError) as error:
            make(build.BuildRequest(engine="apptainer"))
    assert said in str(error.value) and not (tmp_path / "engine/calls").exists()
