"""kit build from the first question to the file in its place. Fake engines (tests/fakes); tests/cluster/engine/test_build.py has real ones."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Callable

import pytest
from kit.base import signals
from kit.base.errors import KitError, UsageError
from kit.cli.build_command import make
from kit.config import image_files
from kit.images import bases, build, inventory, pack, recipe, sif, store
from kit.images.build_request import BuilderOptions
from kit.images.engines import apptainer
from kit.images.engines.docker import Docker
from kit.images.engines.enroot import Enroot
from kit.images.sources import adopt
from kit.registry import client, oci, transport
from kit.runs import history
from kit.runs.history import Run
from test_registry import digest, image, layer, plain, serving

from far_side import install
from samples import docker_archive, stub

BASE = "registry.example/base:1"
DIGEST = "sha256:" + "ab" * 32


class Engine:
    """What the fake engine knows, and was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "images").mkdir(parents=True)
        (folder / "containers").mkdir()

    def has(self, name: str, **facts: object) -> None:
        key = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)
        (self.folder / "images" / key).write_text(json.dumps([{"Id": "sha256:" + "12" * 32, "Size": 100, "Config": {"Env": ["A=b"]}, **facts}]))

    def calls(self, word: str = "") -> list[str]:
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.startswith(word) and line != "--version"]  # which tells Docker from Podman


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A project with a Dockerfile whose base is pinned; docker, podman, enroot and apptainer are fakes."""
    install(tmp_path / "bin", docker="fake_docker", podman="fake_docker", enroot="fake_enroot", apptainer="fake_apptainer")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_ENGINE", str(tmp_path / "engine"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model/Dockerfile").write_text(f"FROM {BASE}\nARG API_TOKEN\nARG SIZE\nCOPY data /data\n")
    (tmp_path / "model/data").write_text("mine")
    (tmp_path / "model/image.lock").write_text(json.dumps({BASE: DIGEST}))
    monkeypatch.chdir(tmp_path / "model")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield Engine(tmp_path / "engine")
    for number, handler in before.items():
        signal.signal(number, handler)


def listed(file: Path) -> list[str]:
    """The names in a squashfs."""
    done = subprocess.run(["unsquashfs", "-no-progress", "-ls", "-dest", "", str(file)], capture_output=True, text=True, check=True)
    return [line.lstrip("/") for line in done.stdout.splitlines() if line.startswith("/")]


def built(name: str = "model", suffix: str = ".sqsh") -> Path:
    (found,) = Path("images").glob(f"{name}-*{suffix}")
    return found.absolute()


# ---------------------------------------------------------------- the whole story


def test_a_recipe_becomes_a_file_with_its_record_and_its_log_and_the_second_time_nothing(engine: Engine, capfd) -> None:
    make(build.BuildRequest(arguments={"API_TOKEN": "s3cret", "SIZE": "9"}))
    file, said = built(), capfd.readouterr()
    assert f"kit: building model from {Path('Dockerfile').absolute()} with docker\n" in said.err
    assert [line for line in said.err.splitlines() if line.startswith("kit: step")] == [
        f"kit: step 1/4: FROM {BASE}@{DIGEST}",
        "kit: step 2/4: ARG API_TOKEN",
        "kit: step 3/4: ARG SIZE",
        "kit: step 4/4: COPY data /data",
    ]
    assert "kit: the image's variable BAD-NAME will not hold under Enroot" in said.err
    assert said.out.startswith(f"kit: {file}: ") and said.out.endswith("  in a job: `image: model`\n")
    assert {"context/data", "bin/sh", "etc/rc", ".singularity.d/runscript"} <= set(listed(file))
    record = json.loads(file.with_suffix(".json").read_text())
    assert record["size"] == file.stat().st_size and record["sha256"] == image_files.sha256(file) == image_files.check(file)
    assert file.stem == f"model-{record['digest'][:16]}" and record["bases"] == {BASE: DIGEST} and record["engine"] == "docker"
    assert record["arguments"] == {"API_TOKEN": "(hidden)", "SIZE": "9"} and record["image_id"].startswith("sha256:")
    assert "Step 4/4 : COPY data /data" in file.with_suffix(".log").read_text()
    assert os.readlink("images/model.json") == f"{file.stem}.json" and image_files.named("model", Path.cwd()) == str(file)
    # The value of a secret is in no list of processes.
    assert "s3cret" not in "\n".join(engine.calls()) and "argument API_TOKEN=s3cret" in (engine.folder / "arguments").read_text()
    assert sorted(os.listdir("images")) == sorted([file.name, f"{file.stem}.json", f"{file.stem}.log", "model.json"])
    assert os.listdir(engine.folder / "containers") == [] and engine.calls("build")[0].startswith("build --force-rm --file ")
    asked = len(engine.calls())
    make(build.BuildRequest(arguments={"API_TOKEN": "s3cret", "SIZE": "9"}))
    assert capfd.readouterr().out == f"kit: {file} is up to date\n" and len(engine.calls()) == asked


@pytest.mark.parametrize("to", ["sqsh", "sif"])
def test_links_in_the_place_of_the_files_of_a_build_are_replaced_and_not_followed(to: str, engine: Engine, tmp_path: Path) -> None:
    make(build.BuildRequest(to=to))
    mine = tmp_path / "mine"
    mine.write_text("mine")
    place = store.Place(Path("images"), *built(suffix=f".{to}").stem.split("-"), f".{to}")
    squashfs = [place.unfinished.with_suffix(f".squashfs{store.PARTIAL}")] if to == "sif" else []
    for path in (place.file, place.log, place.unfinished, place.unfinished_record, *squashfs):
        path.unlink(missing_ok=True)
        path.symlink_to(mine)
    make(build.BuildRequest(to=to))
    assert mine.read_text() == "mine" and place.file.stat().st_size > 4 and not place.file.is_symlink() and not place.log.is_symlink()
    assert sorted(os.listdir("images")) == sorted([place.file.name, place.record.name, place.log.name, "model.json"])


def described(file: Path) -> dict[str, str]:
    """The labels in a squashfs."""
    return json.loads(subprocess.run(["unsquashfs", "-cat", file, ".singularity.d/labels.json"], capture_output=True, check=True).stdout)


def test_labels_say_which_build_an_image_is_unless_the_recipe_does(engine: Engine) -> None:
    word = "org.opencontainers.image."
    subprocess.run("git init -q && git add . && git -c user.name=a -c user.email=a@b commit -qm x", shell=True, check=True)
    revision = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    make(build.BuildRequest())
    assert described(built()) == {f"{word}revision": revision, f"{word}version": built().stem.removeprefix("model-")}
    make(build.BuildRequest(to="docker"))
    assert [call.count(f"--label {word}revision={revision} --label {word}version=") for call in engine.calls("build")] == [1, 1]
    built().unlink()
    with Path("Dockerfile").open("a") as file:
        file.write(f"LABEL {word}version=1.2\n")
    make(build.BuildRequest())
    assert described(built()) == {f"{word}revision": f"{revision}-dirty"}


def recorded(change: Callable[[dict], object]) -> Path:
    """The record of this project's image, changed, as it may be under version control."""
    record = json.loads(Path("images/model.json").read_text())
    change(record)
    Path("model.lock.json").write_text(json.dumps(record))
    return Path("model.lock.json")


def with_packages(monkeypatch: pytest.MonkeyPatch, **packages: str) -> None:
    """What pip and apt installed today."""
    squash = pack.squash

    def packed(*arguments: object) -> dict[str, str]:
        squash(*arguments)
        return packages

    monkeypatch.setattr(pack, "squash", packed)


def test_a_build_that_differs_from_a_record_is_refused_and_leaves_the_last_one_as_it_is(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with_packages(monkeypatch, torch="2.13.0", scipy="1.16.2", mpmath="1.3.0")
    make(build.BuildRequest())
    first, lock = built(), recorded(lambda record: None)
    make(build.BuildRequest(locked=lock))  # it is there, and the same
    Path("data").write_text("other")
    make(build.BuildRequest(locked=lock))  # other files, the same packages
    second = os.readlink("images/model.json")
    Path("data").write_text("a third")
    with_packages(monkeypatch, torch="2.13.0", scipy="1.16.3", sympy="1.14.0")
    with pytest.raises(KitError) as error:
        make(build.BuildRequest(locked=lock))
    assert str(error.value) == (
        "kit: 3 packages differ from model.lock.json: mpmath missing (was 1.3.0), scipy 1.16.3 (was 1.16.2), sympy 1.14.0 (was missing)\n"
        "  fix: pin them in requirements.txt; or, where the new ones are meant, leave --locked out and keep the new record"
    )
    assert os.readlink("images/model.json") == second != f"{first.stem}.json"
    assert len(list(Path("images").glob("*.sqsh"))) == 2 and not list(Path("images").glob(".*.partial"))


def test_what_is_there_already_is_compared_with_a_record_too(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with_packages(monkeypatch, **{f"p{number}": "1" for number in range(9)})
    make(build.BuildRequest())
    lock = recorded(lambda record: record.update(packages={"p0": "1"}))
    with pytest.raises(KitError, match=r"8 packages differ from model\.lock\.json: p1 1 \(was missing\), .*, p8 1 \(was missing\)\n"):
        make(build.BuildRequest(locked=lock))
    lock = recorded(lambda record: record.update(packages={}))
    with pytest.raises(KitError, match=r"p7 1 \(was missing\) and 1 more\n"):
        make(build.BuildRequest(locked=lock))


def test_a_records_bases_hold_over_image_lock_and_another_one_is_refused(engine: Engine) -> None:
    other = "sha256:" + "cd" * 32
    make(build.BuildRequest())
    lock = recorded(lambda record: record.update(bases={BASE: other}))
    make(build.BuildRequest(locked=lock))
    given = [path.read_text() for path in (engine.folder / "images").glob("*.files/context/Dockerfile")]
    assert sorted(text.split()[1] for text in given) == [f"{BASE}@{DIGEST}", f"{BASE}@{other}"]
    assert json.loads(Path("image.lock").read_text()) == {BASE: DIGEST}
    Path("Dockerfile").write_text(f"FROM {BASE.replace(':1', ':2')}@{DIGEST}\n")
    with pytest.raises(KitError, match=r"2 base images differ from model\.lock\.json: registry\.example/base:1 missing \(was sha256:cdcd"):
        make(build.BuildRequest(locked=lock))


def test_a_record_may_have_the_base_of_a_stage_that_is_not_built(engine: Engine) -> None:
    """As those of earlier versions of kit have."""
    Path("Dockerfile").write_text(f"FROM other:1 AS other\nFROM {BASE}\n")
    make(build.BuildRequest())
    lock = recorded(lambda record: record["bases"].update({"other:1": DIGEST}))
    make(build.BuildRequest(locked=lock))
    assert json.loads(built().with_suffix(".json").read_text())["bases"] == {BASE: DIGEST}


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (build.BuildRequest(locked=Path("nothing.json")), "--locked: nothing.json is not there, or says no packages of an image"),
        (build.BuildRequest(locked=Path("image.lock")), "--locked: image.lock is not there, or says no packages of an image"),
        (build.BuildRequest(locked=Path("image.lock"), to="docker"), "--locked: only the file of a recipe can be compared with a record"),
        (build.BuildRequest("docker://x", locked=Path("image.lock")), "--locked: only the file of a recipe can be compared with a record"),
        (build.BuildRequest(locked=Path("image.lock"), update=True), "--locked, --update: a record's bases are not asked for again"),
    ],
)
def test_a_record_that_cannot_be_compared_with_is_refused(request_: build.BuildRequest, said: str, engine: Engine, monkeypatch) -> None:
    monkeypatch.setattr(build.find, "source", lambda target, *_, **__: object() if "://" in target else None)
    with pytest.raises(UsageError) as error:
        make(request_)
    assert said in str(error.value) and engine.calls("build") == []


@pytest.mark.parametrize(
    ("base", "definition", "said", "expected"),
    [
        (("LANG=C.UTF-8", "A=b"), "", "LANG=C\0A=b", ("LANG=C.UTF-8", "A=b")),  # Apptainer's own, set before the image could
        (("A=b",), "%environment\n export LANG=C.UTF-8", "LANG=C.UTF-8\0A=b", ("LANG=C.UTF-8", "A=b")),
        (("A=b",), "", "LANG=C\0A=b\0HOME=/root", ("A=b",)),
    ],
)
def test_the_lang_of_an_image_is_kept_by_apptainer(
    base: tuple[str, ...], definition: str, said: str, expected: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "said").write_text(said)
    stub(tmp_path, "apptainer", f"cat '{tmp_path}/said'")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert apptainer._environment(tmp_path, base, definition) == expected


def test_a_changed_file_or_a_damaged_image_is_built_again(engine: Engine, capfd) -> None:
    make(build.BuildRequest())
    first = built()
    Path("data").write_text("other")
    make(build.BuildRequest())
    assert len(list(Path("images").glob("*.sqsh"))) == 2 and image_files.named("model", Path.cwd()) != str(first)
    Path("data").write_text("mine")
    first.write_bytes(b"cut off")
    capfd.readouterr()
    make(build.BuildRequest())
    said = capfd.readouterr()
    assert f"kit: {first} is not the file that was built" in said.err and "building it again" in said.err
    assert image_files.check(first) and image_files.named("model", Path.cwd()) == str(first)


LOCAL = "localhost:9/mine:1"


def test_an_engines_own_base_is_known_by_its_id_and_no_file_is_ever_replaced(engine: Engine, capfd) -> None:
    Path("Dockerfile").write_text(f"FROM {LOCAL}\n")
    engine.has(LOCAL)
    make(build.BuildRequest())
    said = f"kit: registry localhost:9 cannot be reached: Connection refused: this machine's own {LOCAL} is taken, until kit build --update\n"
    assert capfd.readouterr().err.startswith(said)
    first = built()
    before = first.stat()
    assert json.loads(first.with_suffix(".json").read_text())["bases"] == {LOCAL: "local:sha256:" + "12" * 32}
    assert f"Step 1/1 : FROM {LOCAL}\n" in first.with_suffix(".log").read_text()
    for update in (False, True):
        make(build.BuildRequest(update=update))
        assert capfd.readouterr().out == f"kit: {first} is up to date\n"
    engine.has(LOCAL, Id="sha256:" + "34" * 32)
    make(build.BuildRequest())
    (second,) = set(Path.cwd().glob("images/*.sqsh")) - {first}
    assert image_files.named("model", Path.cwd()) == str(second) and first.stat() == before
    next((engine.folder / "images").glob("localhost*")).unlink()
    capfd.readouterr()
    make(build.BuildRequest())  # the file outlives its base
    assert capfd.readouterr().out == f"kit: {second} is up to date\n"


def test_a_base_that_is_replaced_while_the_image_is_built_makes_none(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("Dockerfile").write_text(f"FROM {LOCAL}\n")
    ids = iter(["sha256:1", "sha256:2"])
    monkeypatch.setattr(Docker, "identity", lambda *_: next(ids))
    with pytest.raises(KitError, match=f"{LOCAL} was replaced while the image was built\n  fix: build again"):
        make(build.BuildRequest())
    assert not list(Path("images").glob("*.sqsh"))


def test_a_file_that_is_not_there_is_said_before_a_registry_is_asked(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(client, "resolve", lambda base, _: asked.append(base))
    Path("Dockerfile").write_text(f"FROM {LOCAL}\nCOPY missing /\n")
    with pytest.raises(UsageError, match="Dockerfile:2: missing is not in "):
        make(build.BuildRequest())
    assert asked == []


def test_an_image_for_the_engine_alone_leaves_no_file(engine: Engine, capfd) -> None:
    make(build.BuildRequest(to="docker", engine="podman"))
    tag = capfd.readouterr().out.removeprefix("kit: ").strip()
    assert tag.startswith("kit/model:") and engine.calls("create") == []
    assert not list(Path("images").glob("*.sqsh")) and not Path("images/model.json").exists()


def test_a_sif_is_the_same_file_in_apptainers_wrapping(engine: Engine, capfd) -> None:
    make(build.BuildRequest(to="sif"))
    file = built(suffix=".sif")
    assert file.read_bytes().startswith(b"FAKE SIF\nhsqs")
    assert sorted(path.name.partition("-")[0] for path in Path("images").iterdir()) == ["model"] * 3 + ["model.json"]
    assert json.loads(Path(f"{file}.json").read_text())["file"] == file.name


@pytest.mark.parametrize("command", ["new", "add"])
def test_a_sif_that_apptainer_cannot_write_is_none(command: str, engine: Engine) -> None:
    (engine.folder / "sif-fails").write_text(command)
    with pytest.raises(KitError, match=f"apptainer sif {command} failed: FATAL: disk quota exceeded\n  fix: free space"):
        make(build.BuildRequest(to="sif"))
    assert [path.suffix for path in Path("images").iterdir()] == [".log"]


def test_a_sif_says_of_which_machine_it_is(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hsqs")
    sif.wrap(tmp_path / "x", tmp_path / "x.sif", "aarch64")
    new, add = engine.calls("sif")
    assert new == f"sif new {tmp_path}/x.sif"
    assert add == f"sif add --datatype 4 --partfs 1 --parttype 2 --partarch 4 {tmp_path}/x.sif {tmp_path}/x"


def test_an_image_for_the_nodes_kind_of_machine_is_taken_where_this_one_is_another(engine: Engine, tmp_path: Path) -> None:
    here, other, name = ("amd64", "arm64", "aarch64") if os.uname().machine == "x86_64" else ("arm64", "amd64", "x86_64")
    save = docker_archive(tmp_path / "a.tar", other)
    with pytest.raises(KitError) as refused:
        make(build.BuildRequest(str(save)))
    assert refused.value.problems[0].problem == f"{save} is for linux/{other}, this machine is linux/{here}"
    assert refused.value.problems[0].fix.endswith(f"; if the nodes are so: --platform linux/{other}")
    make(build.BuildRequest(str(save), to="sif", options=BuilderOptions(platform=f"linux/{other}/v8")))
    assert image_files.record(Path("images/a.json"))["architecture"] == name
    assert f"--partarch {sif.ARCHITECTURES[name]} " in engine.calls("sif")[1]
    with pytest.raises(UsageError, match="is for one kind of machine already"):
        make(build.BuildRequest("dockerd://a", options=BuilderOptions(platform=f"linux/{other}")))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_build_as_ctrl_c_does_and_leaves_nothing_half_done(number: int, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    signals.end_cleanly()
    monkeypatch.setattr(pack, "squash", lambda *_: os.kill(os.getpid(), number))
    with pytest.raises(SystemExit) as end:
        make(build.BuildRequest())
    assert end.value.code == 128 + number
    assert [path.suffix for path in Path("images").iterdir()] == [".log"] and os.listdir(engine.folder / "containers") == []


def test_a_disk_that_is_too_small_is_said_before_anything_is_written(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6, 1000))
    with pytest.raises(KitError, match=r"images has 1000 bytes free; a file of 4 KiB of files needs about 2 KiB\n  fix: free some, or write elsewhere"):
        make(build.BuildRequest())
    assert engine.calls("create") == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6, 2048))
    store.check_space(Path("images"), 2048, "x")
    with pytest.raises(KitError):
        store.check_space(Path("images"), 2049, "x")


# ---------------------------------------------------------------- Docker


def test_a_folder_with_an_index_of_its_own_is_no_image(engine: Engine) -> None:
    Path("index.json").write_text("{}")
    make(build.BuildRequest(target="."))
    assert json.loads(built().with_suffix(".json").read_text())["engine"] == "docker"


def test_a_step_that_fails_is_named_and_its_last_lines_are_shown(engine: Engine, capfd) -> None:
    lines = "".join(f"\x1b[0m\x1b[91mline \x1b[38;5;9m{number}\x1b[K\n\x1b[0m" for number in range(20))
    (engine.folder / "build-says").write_text(f"Step 1/2 : FROM x\n#7 [2/4] \x1b[1mRUN pip install nothing\n{lines}")
    with pytest.raises(KitError, match=r"docker build failed in step 2/4: RUN pip install nothing\n  fix: correct that step; the log: .*\.log"):
        make(build.BuildRequest())
    shown = [line for line in capfd.readouterr().err.splitlines() if line.startswith("  | ")]
    assert shown == [f"  | line {number}" for number in range(8, 20)]
    assert [path.suffix for path in Path("images").iterdir()] == [".log"] and "[91mline " in next(Path("images").iterdir()).read_text()


# As Podman 5 writes it where /etc/subuid has no line for the user.
FEW_IDS = (
    "unpacking failed (error: exit status 1; output: potentially insufficient UIDs or GIDs available in user namespace (requested 0:42 for /etc/gshadow): "
    'Check /etc/subuid and /etc/subgid if configured locally and run "podman system migrate": lchown /etc/gshadow: invalid argument)'
)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("Step 1/3 : FROM registry.example/base:1\nunauthorized", "the registry refuses the base image {base}\n  fix: log in: docker login"),
        ("STEP 1/3: FROM x\nmanifest for registry.example/base:1 not found", "there is no base image {base}\n"),
        ("#2 load metadata for registry.example/base:1\ndial tcp: no such host", "the registry of {base} cannot be reached\n"),
        (
            "Step 2/3 : RUN x\nno space left on device",
            "the engine's disk, or your quota there, is full\n  fix: free some: docker system df, docker system prune; df -h",
        ),
        ("Step 1/3 : FROM x\nwriting blob: storing blob: write /home/ada/x: disk quota exceeded", "the engine's disk, or your quota there, is full\n"),
        (
            f"STEP 1/3: FROM x\nError: creating build container: {FEW_IDS}",
            "docker cannot give the image's files their owners: you have too few ids here\n  fix: build with another engine: --engine apptainer, ",
        ),
        ("Step 2/3 : RUN curl x\nunauthorized", "docker build failed in step 2/3: RUN curl x\n"),
        ("cannot read", "docker build failed in its first step\n"),
    ],
)
def test_why_docker_failed_is_told_by_what_it_said(said: str, problem: str, engine: Engine) -> None:
    (engine.folder / "build-says").write_text(said + "\n")
    with pytest.raises(KitError) as error:
        make(build.BuildRequest())
    assert problem.format(base=f"{BASE}@{DIGEST}") in str(error.value)


def test_a_login_for_docker_hub_has_the_name_under_which_docker_looks_for_it(engine: Engine) -> None:
    Path("Dockerfile").write_text("FROM team/base:1\n")
    Path("image.lock").write_text(json.dumps({"team/base:1": DIGEST}))
    (engine.folder / "build-says").write_text("Step 1/1 : FROM team/base:1\nunauthorized\n")
    with pytest.raises(KitError, match=r"\n  fix: log in: docker login docker\.io; the log: "):
        make(build.BuildRequest())


def test_an_engine_that_is_not_there_or_does_not_answer_is_said(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    (engine.folder / "down").touch()
    with pytest.raises(KitError, match=r"docker does not answer: Cannot connect to the daemon. Is it running\?\n  fix: start it, or join the group docker"):
        Docker("docker").check()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(KitError, match="podman is not installed here"):
        Docker("podman").check()


def test_what_a_killed_build_left_in_the_engine_is_removed_by_the_next_and_nothing_else(engine: Engine, tmp_path: Path) -> None:
    mine, running, killed, ended = (store.Place(tmp_path, name, 8 * "0123abcd") for name in ("mine", "running", "killed", "ended"))
    here = f"kit.host={socket.gethostname()}"
    labels = [(f"kit.build={tmp_path}:{place.stem}", here) for place in (mine, running, killed, ended)]
    labels += [(f"kit.build={tmp_path}:{ended.stem}", "kit.host=elsewhere"), ("other=mine", here), (f"kit.build=/not/there:{ended.stem}", here)]
    for number, lines in enumerate(labels):
        (engine.folder / "containers" / str(number)).write_text("\n".join([*lines, "x\n"]))
    (tmp_path / f".{killed.stem}.lock").write_text(f"process 1 on {socket.gethostname()}")
    with store.locked(mine, 1), store.locked(running, 1):
        Docker("docker").forget(f"{tmp_path}:{mine.stem}")
        assert sorted(os.listdir(engine.folder / "containers")) == ["1", "4", "5", "6"]
        Docker("docker").forget(f"{tmp_path}:{mine.stem}")
    assert engine.calls("rm") == ["rm --force --volumes 0 2 3"]


def test_a_build_in_another_users_closed_home_is_none_that_has_ended(tmp_path: Path) -> None:
    """One Docker serves them both."""
    home, user = tmp_path / "home", os.geteuid()
    (home / "images").mkdir(parents=True)
    home.chmod(0)
    if user == 0:
        os.seteuid(65534)
    try:
        assert not store.is_abandoned(home / "images", "mine-0123456789abcdef")
    finally:
        os.seteuid(user)
        home.chmod(0o700)
    assert store.is_abandoned(home / "images", "mine-0123456789abcdef")


def test_what_a_killed_build_left_goes_with_the_next_one_that_needs_no_engine(foreign: Path, engine: Engine, tmp_path: Path) -> None:
    killed = store.Place(Path("images").absolute(), "killed", 8 * "0123abcd")
    killed.folder.mkdir()
    (killed.folder / f".{killed.stem}.lock").write_text(f"process 1 on {socket.gethostname()}")
    killed.unfinished.touch()
    killed.unfinished_record.touch()
    (engine.folder / "containers/1").write_text(f"kit.build={killed.folder}:{killed.stem}\nkit.host={socket.gethostname()}\nx\n")
    make(build.BuildRequest(str(foreign)))
    assert os.listdir(engine.folder / "containers") == [] and [name for name in os.listdir("images") if name.startswith(".")] == []


def test_a_lock_of_a_build_that_was_killed_before_it_signed_goes_with_the_next(foreign: Path, engine: Engine) -> None:
    """One that is about to sign stays."""
    old, new = (Path("images") / f".{name}-{8 * '01'}.lock" for name in ("old", "new"))
    old.parent.mkdir()
    old.touch()
    new.touch()
    os.utime(old, (time.time() - 60, time.time() - 60))
    make(build.BuildRequest(str(foreign)))
    assert [name for name in os.listdir("images") if name.startswith(".")] == [new.name]


def test_a_build_killed_while_it_looks_into_a_foreign_file_leaves_nothing_that_stays(foreign: Path, engine: Engine, tmp_path: Path) -> None:
    tools, temporary = tmp_path / "tools", tmp_path / "temporary"
    temporary.mkdir()
    stub(tools, "unsquashfs", "kill -KILL $PPID")
    command, env = [sys.executable, "-m", "kit", "build", str(foreign)], {**os.environ, "TMPDIR": str(temporary)}
    killed = subprocess.run(command, env={**env, "PATH": f"{tools}:{env['PATH']}"}, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    (left,) = temporary.iterdir()
    os.utime(left, (time.time() - 60, time.time() - 60))  # older than a folder that is about to be locked
    subprocess.run(command[:-1], env=env, capture_output=True, check=True)  # a build of something else
    assert os.listdir(temporary) == []


def test_a_signal_while_the_engine_makes_a_container_leaves_none(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's tool goes on, and kit has not heard of the container's name."""
    communicate = subprocess.Popen.communicate

    def interrupted(process: subprocess.Popen, *arguments: object, **options: object) -> object:
        if "create" in process.args:
            assert os.getpgid(process.pid) != os.getpgid(0)  # a terminal's Ctrl-C does not reach it
            raise KeyboardInterrupt
        return communicate(process, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(build.BuildRequest())
    assert engine.calls("rm") != [] and os.listdir(engine.folder / "containers") == []


def test_the_engine_keeps_no_name_of_an_image_that_became_a_file_and_the_steps_of_it(engine: Engine) -> None:
    make(build.BuildRequest(to="docker"))
    (kept,) = [path.read_text() for path in (engine.folder / "images").glob("*.tag")]
    Path("Dockerfile").write_text(Path("Dockerfile").read_text() + "RUN true\n")
    make(build.BuildRequest())
    assert [path.read_text() for path in (engine.folder / "images").glob("*.tag")] == [kept] and kept.startswith("kit/model:")
    record = json.loads(built().with_suffix(".json").read_text())
    assert (engine.folder / "images" / record["image_id"].replace(":", "_")).exists()


def test_files_that_the_engine_cannot_give_are_no_image(engine: Engine) -> None:
    (engine.folder / "export-fails").touch()
    with pytest.raises(KitError, match="docker export failed: no space left"):
        make(build.BuildRequest())
    assert os.listdir(engine.folder / "containers") == [] and not list(Path("images").glob("*.sqsh"))


def test_an_engine_that_breaks_off_within_the_files_says_why(engine: Engine) -> None:
    (engine.folder / "export-breaks-off").touch()
    with pytest.raises(KitError, match="docker export failed: input/output error"):
        make(build.BuildRequest())


def test_an_engine_that_ends_while_it_gives_the_files_is_said_and_the_next_build_removes_its_container(engine: Engine) -> None:
    (engine.folder / "export-ends").touch()
    with pytest.raises(KitError, match="docker export failed: the connection was lost"):
        make(build.BuildRequest())
    (engine.folder / "down").unlink()
    make(build.BuildRequest())
    assert os.listdir(engine.folder / "containers") == [] and built()


def test_an_image_that_was_removed_while_it_was_built_is_said(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Docker, "image", lambda *_: None)
    with pytest.raises(KitError, match=r"docker has built sha256:[0-9a-f]+, and has no such image\n  fix: .* unset BUILDX_BUILDER"):
        make(build.BuildRequest())


def test_an_image_of_the_engine_is_converted_as_it_is(engine: Engine, capfd) -> None:
    make(build.BuildRequest(to="docker"))
    tag = capfd.readouterr().out.removeprefix("kit: ").strip()
    make(build.BuildRequest(f"dockerd://{tag}", name="other"))
    assert "context/data" in listed(built("other"))
    with pytest.raises(KitError, match="docker has no image nobody:1"):
        make(build.BuildRequest("dockerd://nobody:1"))
    with pytest.raises(KitError, match=f"dockerd://{tag} is an image already"):
        make(build.BuildRequest(f"dockerd://{tag}", to="docker"))


def test_what_only_the_engine_knows_reaches_it_and_is_part_of_the_name(engine: Engine, capfd) -> None:
    Path("value").write_text("s3cret")
    wanted = BuilderOptions(("id=A,src=value", "id=B,env=B_VALUE"), ("default",), "second", "linux/arm64", True, ("--network", "host"))
    make(build.BuildRequest(options=wanted))
    (command,) = engine.calls("build")
    said = "--secret id=A,src={0}/value --secret id=B,env=B_VALUE --ssh default --target second --platform linux/arm64 --no-cache --network host"
    assert said.format(Path.cwd()) in command and "s3cret" not in command
    first = built()
    record = json.loads(first.with_suffix(".json").read_text())
    assert (
        record["secrets"] == ["A", "B"] and record["target"] == "second" and record["platform"] == "linux/arm64" and record["options"] == ["--network", "host"]
    )
    Path("value").write_text("another")
    capfd.readouterr()
    make(build.BuildRequest(options=wanted._replace(no_cache=False)))  # a new token is no new image
    assert capfd.readouterr().out == f"kit: {first} is up to date\n"
    make(build.BuildRequest(options=wanted))
    kept = f"  kit replaces no file; to build again, remove it first: rm {shlex.quote(str(first))}\n"
    assert capfd.readouterr().out == f"kit: {first} is up to date\n{kept}" and len(engine.calls("build")) == 1
    for change in ({"stage": "first"}, {"platform": None}, {"words": ()}, {"secrets": ()}):
        make(build.BuildRequest(options=wanted._replace(**change)))  # type: ignore[arg-type]
    assert len(list(Path("images").glob("*.sqsh"))) == 5


def test_the_digest_of_a_base_is_in_the_recipe_and_in_no_argument(engine: Engine) -> None:
    text = f"ARG OS={BASE}\nARG SAME={BASE}\nFROM ${{OS}}\nARG OS\nRUN test ${{OS}} = {BASE}\n"
    Path("Dockerfile").write_text(text)
    make(build.BuildRequest())
    (given,) = (engine.folder / "images").glob("*.files/context/Dockerfile")
    assert given.read_text() == text.replace("FROM ${OS}", f"FROM {BASE}@{DIGEST}")
    assert not (engine.folder / "arguments").exists()


STAGES = """\
FROM first:1 AS First
COPY mine /
FROM second:1
COPY data /
FROM third:$NONE
COPY missing id_rsa /
FROM last:1
"""


@pytest.mark.parametrize(
    ("options", "base", "file", "other"),
    [
        (BuilderOptions(), "last:1", "", "data"),
        (BuilderOptions(stage="first"), "first:1", "mine", "data"),
        (BuilderOptions(stage="1"), "second:1", "data", "mine"),
        (BuilderOptions(words=("--target", "first", "--label=target=1")), "first:1", "mine", "data"),
        (BuilderOptions(stage="first", words=("--target=1",)), "second:1", "data", "mine"),
    ],
)
def test_only_the_stages_that_are_built_count(options: BuilderOptions, base: str, file: str, other: str, engine: Engine) -> None:
    """What is there of the others goes to the engine: Docker's classic builder builds them, too."""
    Path("Dockerfile").write_text(STAGES)
    Path("image.lock").write_text(json.dumps({base: DIGEST}))
    for name in ("mine", "id_rsa"):
        Path(name).write_text(name)
    for changed, images in ((other, 1), (file, 2 if file else 1)):
        make(build.BuildRequest(options=options))
        assert json.loads(built().with_suffix(".json").read_text())["bases"] == {base: DIGEST}
        if changed:
            Path(changed).write_text("changed")
        make(build.BuildRequest(options=options))
        assert len(list(Path("images").glob("*.sqsh"))) == images
    for context in (engine.folder / "images").glob("*.files/context"):
        assert {name for name in os.listdir(context) if not name.startswith(".")} == {"Dockerfile", "mine", "data"}


# Apptainer 1.1, which knows no arguments.
OLD_APPTAINER = """\
case " $* " in
  *" --build-arg-file "*) echo "Error for command \\"build\\": unknown flag: --build-arg-file" >&2 && exit 1 ;;
  " build "*) mkdir -p "$4/bin" && cp "$5" "$4/recipe" && base="$(sed -n 's/^From: //p' "$5")" && { [[ ! -f "${base}" ]] || cp "${base}" "$4/base"; } ;;
  *" env -0 ") printf 'A=b\\0' ;;
esac
"""


@pytest.mark.parametrize("arguments", [{}, {"SIZE": "9"}])
def test_a_definition_without_arguments_is_built_by_an_apptainer_that_knows_none(arguments: dict[str, str], engine: Engine, tmp_path: Path) -> None:
    stub(tmp_path / "bin", "apptainer", OLD_APPTAINER)
    Path("image.def").write_text("Bootstrap: localimage\nFrom: base.sif\n%arguments\n  SIZE=1\n%labels\n  size {{ SIZE }}\n")
    Path("base.sif").touch()
    if arguments:
        with pytest.raises(KitError, match="apptainer build ended with code 1"):
            make(build.BuildRequest(engine="apptainer", arguments=arguments))
    else:
        make(build.BuildRequest(engine="apptainer"))
        assert {"recipe", "base"} <= set(listed(built()))


def test_an_argument_that_only_names_the_base_is_not_given_to_apptainer(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest stands in its place, and Apptainer refuses an argument without a use."""
    stub(tmp_path / "bin", "apptainer", OLD_APPTAINER)
    monkeypatch.setattr(client, "open_image", lambda name, _: oci.Image(name, "", oci.Config(), ()))
    Path("image.def").write_text("Bootstrap: docker\nFrom: {{ NAME }}\n")
    make(build.BuildRequest(engine="apptainer", arguments={"NAME": BASE}))
    assert json.loads(built().with_suffix(".json").read_text())["arguments"] == {"NAME": BASE}


def test_another_file_that_a_definition_is_built_on_makes_another_image(engine: Engine, tmp_path: Path) -> None:
    stub(tmp_path / "bin", "apptainer", OLD_APPTAINER)
    for place in ("base.sif", f"{tmp_path}/model/base.sif"):
        Path("image.def").write_text(f"Bootstrap: localimage\nFrom: {place}\n")
        for content in ("one", "two", "one"):
            Path("base.sif").write_text(content)
            make(build.BuildRequest(engine="apptainer"))
    assert len(list(Path("images").glob("*.sqsh"))) == 4
    Path("base.sif").unlink()
    with pytest.raises(KitError, match=r"base\.sif cannot be read"):
        make(build.BuildRequest(engine="apptainer"))


def test_another_content_of_the_sandbox_that_a_definition_is_built_on_makes_another_image(engine: Engine, tmp_path: Path) -> None:
    stub(tmp_path / "bin", "apptainer", OLD_APPTAINER)
    Path("image.def").write_text("Bootstrap: localimage\nFrom: base\n")
    Path("base/etc").mkdir(parents=True)
    for expected, content in ((1, "one"), (2, "another"), (2, "")):
        if content:
            Path("base/etc/file").write_text(content)
        make(build.BuildRequest(engine="apptainer"))
        assert len(list(Path("images").glob("*.sqsh"))) == expected
    Path("base").rename("../base")
    os.symlink("../base", "base")
    make(build.BuildRequest(engine="apptainer"))
    assert len(list(Path("images").glob("*.sqsh"))) == 2


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ("Bootstrap: localimage\nFrom: base.sif", ["A=b"]),
        ("Bootstrap: library\nFrom: alpine", ["A=b"]),
        ("Bootstrap: docker\nFrom: first:1", ["A=first:1"]),
    ],
)
def test_an_image_of_apptainer_has_the_variables_of_its_last_stages_base(
    last: str, expected: list[str], engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(name: str, _: object) -> oci.Image:
        return oci.Image(name, "", oci.Config((f"A={name.partition('@')[0]}",)), ())

    stub(tmp_path / "bin", "apptainer", OLD_APPTAINER)
    monkeypatch.setattr(client, "open_image", opened)
    Path("image.lock").write_text(json.dumps(dict.fromkeys(("first:1", "second:1"), DIGEST)))
    Path("base.sif").touch()
    stages = ["Bootstrap: docker\nFrom: first:1\nStage: a", "Bootstrap: docker\nFrom: second:1\nStage: b", f"{last}\nStage: c"]
    Path("image.def").write_text("\n".join(f"{stage}\n%post\n  true\n" for stage in stages))
    make(build.BuildRequest(engine="apptainer"))
    assert json.loads(built().with_suffix(".json").read_text())["env"] == expected


@pytest.mark.parametrize("place", ["base.sif", "./base.sif", "../base.sif", "{{ BASE }}"])
def test_a_definition_may_copy_the_folder_of_the_file_that_it_is_built_on(place: str, engine: Engine, tmp_path: Path) -> None:
    stub(tmp_path / "bin", "apptainer", OLD_APPTAINER)
    for base in (Path("base.sif"), Path("../base.sif")):
        base.write_text("model")
    for label in ("one", "two"):
        Path("image.def").write_text(f"Bootstrap: localimage\nFrom: {place}\n%labels\n  of {label}\n%files\n  . /app\n%arguments\n  BASE=base.sif\n")
        make(build.BuildRequest(engine="apptainer"))
        assert "base" in listed(built())
        assert not os.path.lexists("images/base.sif")
        built().unlink()


def test_the_record_hides_secrets_behind_the_dashes_which_still_decide_the_name(engine: Engine) -> None:
    for value in ("x", "y"):
        make(build.BuildRequest(options=BuilderOptions(words=("--label", f"MY_PASSWORD={value}", f"--label=API_KEY={value}", "--label=size=9"))))
    records = [json.loads(file.with_suffix(".json").read_text()) for file in Path("images").glob("*.sqsh")]
    shown = ["--label", "MY_PASSWORD=(hidden)", "--label=API_KEY=(hidden)", "--label=size=9"]
    assert [record["options"] for record in records] == [shown, shown]


def test_an_argument_that_only_buildkit_reads_is_part_of_the_name_as_any_other(engine: Engine, monkeypatch: pytest.MonkeyPatch, kit) -> None:
    for value in ("1", "2", "1"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", value)
        kit("build", "--build-arg", "SOURCE_DATE_EPOCH", "--build-arg", "BUILDKIT_INLINE_CACHE=1", cwd=Path.cwd())
    assert [line for line in (engine.folder / "arguments").read_text().splitlines() if "EPOCH" in line] == [
        "argument SOURCE_DATE_EPOCH=1",
        "argument SOURCE_DATE_EPOCH=2",
    ]
    with pytest.raises(UsageError, match=r"has no argument OTHER\n  fix: it has: API_TOKEN, SIZE; if its base takes this one, add a line: ARG OTHER$"):
        make(build.BuildRequest(arguments={"OTHER": "1"}))


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (build.BuildRequest(arguments={"API_TOKEN": "hf" + "_" + 34 * "a"}), "--build-arg: the value of API_TOKEN looks like a Hugging Face token"),
        (build.BuildRequest(arguments={"WANDB_KEY": 40 * "a"}), "--build-arg: the value of WANDB_KEY looks like a key"),
        *(
            (
                build.BuildRequest(options=BuilderOptions(words=words)),
                f"--: {words[0].partition('=')[0]} here would hide an argument, which may name the base\n  fix: write it before the --: kit build ",
            )
            for words in (("--build-arg", "SIZE"), ("--build-arg=SIZE=1",), ("--build-arg-file", "values"))
        ),
        (build.BuildRequest(options=BuilderOptions(words=("--label", "t=hf" + "_" + 34 * "a"))), "--: one of these words looks like a Hugging Face token"),
        (build.BuildRequest(options=BuilderOptions(("src=value",))), "--secret: this is not a build secret"),
        (build.BuildRequest(options=BuilderOptions(("id=A,src=value,env=B",))), "--secret: this is not a build secret"),
        (build.BuildRequest(options=BuilderOptions(("id=A,src=missing",))), "--secret: there is no file "),
        (build.BuildRequest("docker://x", options=BuilderOptions(stage="x")), "--target: docker://x is an image already: nothing is built"),
        (build.BuildRequest("docker://x", options=BuilderOptions(platform="arm64")), "--platform: 'arm64' is no platform of Linux"),
        (build.BuildRequest("docker://x", options=BuilderOptions(platform="linux")), "--platform: 'linux' is no platform of Linux"),
        (build.BuildRequest("docker://x", options=BuilderOptions(platform="windows/amd64")), "--platform: 'windows/amd64' is no platform of Linux"),
        (build.BuildRequest("docker://x", options=BuilderOptions(no_cache=True)), "--no-cache: docker://x is an image already: nothing is built"),
        (build.BuildRequest("docker://x", engine="docker"), "--engine: docker://x is an image already: nothing is built"),
        (build.BuildRequest("docker://x", device="cpu"), "--device: docker://x is an image already: nothing is built"),
        (
            build.BuildRequest("docker://x", arguments={"A": "1"}, options=BuilderOptions(stage="x")),
            "--build-arg, --target: docker://x is an image already: nothing is built",
        ),
        (build.BuildRequest(engine="enroot", options=BuilderOptions(no_cache=True)), "--no-cache: enroot builds here, and only docker and podman can do this"),
        (
            build.BuildRequest(engine="enroot", options=BuilderOptions(ssh=("default",), stage="x", words=("--pull",))),
            "--ssh, --target, --: enroot builds here",
        ),
        *(
            (build.BuildRequest(options=BuilderOptions(words=(word, "x"))), f"--: {option} is not for a build by kit")
            for word, option in (
                *(("--build-context=a=/data", "--build-context"), ("--output=type=tar", "--output"), ("-otype=tar", "-o"), ("-fother", "-f")),
                *((option, option) for option in ("--build-context", "-f", "--file", "-o", "--push", "--iidfile")),
            )
        ),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_built(request_: build.BuildRequest, said: str, engine: Engine, monkeypatch) -> None:
    monkeypatch.setattr(build.find, "source", lambda target, *_, **__: object() if "://" in target else None)
    Path("value").touch()
    Path("image.enroot.sh").write_text(f"# base: {BASE}\ntrue\n")
    with pytest.raises(UsageError) as error:
        make(request_)
    assert said in str(error.value) and "hf_" not in str(error.value) and engine.calls("build") == []


def test_options_of_the_engine_follow_two_dashes_and_a_second_recipe_is_none(engine: Engine, kit) -> None:
    kit("build", "--", "--network", "host", cwd=Path.cwd())
    assert "--network host" in engine.calls("build")[0]
    done = kit("build", ".", "other", cwd=Path.cwd(), check=False)
    assert done.returncode == 2 and "kit: kit build takes one recipe or image, and not also other\n" in done.stderr


@pytest.mark.parametrize(
    "said",
    [
        "the --mount option requires BuildKit. Refer to",
        "unknown flag: --secret",
        "Step 1/2 : FROM --platform=$BUILDPLATFORM base\nfailed to parse platform",
        "Step 2/2 : COPY x.$TARGETARCH /\nCOPY failed: no source files were specified",
        "dockerfile parse error line 3: unknown instruction: ECHO",
    ],
)
def test_a_recipe_that_needs_buildkit_is_told_so(said: str, engine: Engine) -> None:
    with Path("Dockerfile").open("a") as recipe:
        recipe.write("RUN <<EOF\necho\nEOF\n")
    (engine.folder / "build-says").write_text(f"{said}\n")
    with pytest.raises(KitError, match="the recipe needs BuildKit, which is not here\n  fix: install Docker's own builder: apt-get install docker-buildx"):
        make(build.BuildRequest())


def test_podman_has_no_buildkit_and_lacks_none(engine: Engine) -> None:
    (engine.folder / "build-says").write_text("STEP 2/2: COPY x.$TARGETARCH /\nno such file\n")
    with pytest.raises(KitError, match="podman build failed in step 2/2: COPY"):
        make(build.BuildRequest(engine="podman"))


@pytest.mark.parametrize("said", ["Step 3/4 : RUN false\nreturned a non-zero code: 1", "#5 [1/2] FROM base\nno such file"])
def test_a_step_that_fails_does_not_need_buildkit_for_what_other_steps_have(said: str, engine: Engine) -> None:
    with Path("Dockerfile").open("a") as recipe:
        recipe.write("RUN <<EOF\necho\nEOF\n")
    (engine.folder / "build-says").write_text(f"{said}\n")
    with pytest.raises(KitError, match="docker build failed in step "):
        make(build.BuildRequest())


@pytest.mark.parametrize("said", ["# Executing 1 build trigger", "#6 [2/2] ONBUILD COPY . /app"])
def test_a_base_that_copies_files_that_kit_has_not_given_is_refused(said: str, engine: Engine) -> None:
    (engine.folder / "build-mentions").write_text(f"{said}\n")
    with pytest.raises(
        KitError, match=r"the base image copies files by itself \(ONBUILD\), .*\n  fix: .*: docker build --tag model \. && kit build dockerd://model"
    ):
        make(build.BuildRequest())
    assert not list(Path("images").glob("*.sqsh")) and not list((engine.folder / "images").glob("*.tag"))
    with Path("Dockerfile").open("a") as recipe:
        recipe.write("COPY . /all\n")
    make(build.BuildRequest())
    assert built()


def test_a_projects_requirements_go_into_the_image_of_kits_own_recipe(engine: Engine, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("Dockerfile").unlink()
    monkeypatch.setattr(bases, "pin", lambda found, *_, **__: dict.fromkeys(found.bases, DIGEST))
    make(build.BuildRequest(device="cpu"))
    Path("requirements.txt").write_text("einops==0.8.1\n")
    capfd.readouterr()
    make(build.BuildRequest(device="cpu"))
    assert f"kit: {Path.cwd()}/requirements.txt is installed, too\n" in capfd.readouterr().err
    files = [listed(file) for file in Path("images").glob("kit-cpu-*.sqsh")]
    assert sorted("context/containers/install/project.txt" in names for names in files) == [False, True]
    Path("requirements.txt").write_text("--extra-index-url https://me:" + "glpat-" + 20 * "a" + "@pip.example/simple\n")
    with pytest.raises(UsageError, match=r"requirements\.txt holds what looks like a token"):
        make(build.BuildRequest(device="cpu"))


# ---------------------------------------------------------------- Enroot


def test_enroot_runs_the_recipe_in_the_base_that_a_registry_has(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path.cwd().rename(tmp_path / "My: \\ Model")
    monkeypatch.chdir(tmp_path / "My: \\ Model")
    manifest, blobs = image(layer(low=b"low"))
    steps = 'set -eu\nmkdir -p "${FAKE_ROOT}/opt"\ncp data "${FAKE_ROOT}/opt/"\nprintf "%s" "${API_TOKEN}" >"${FAKE_ROOT}/token"\n'
    with serving(plain(manifest, blobs)) as server:
        base = f"{server.address}/lib/base:1"
        Path("my model's.enroot.sh").write_text(f"# base: {base}\n# files: data\n# argument: API_TOKEN\n{steps}")
        make(build.BuildRequest("my model's.enroot.sh", engine="enroot", name="model", arguments={"API_TOKEN": "s3cret"}))
    file = built()
    assert {"low", "opt/data", "token"} <= set(listed(file))
    assert json.loads(file.with_suffix(".json").read_text())["bases"] == {base: digest(manifest)}
    assert json.loads(Path("image.lock").read_text()) == {BASE: DIGEST, base: digest(manifest)}
    assert "s3cret" not in "\n".join(engine.calls())
    create, start = engine.calls()
    assert create.startswith("create --name image ") and "--root --rw --mount" in start and start.count(":/context:none:x-create=dir,bind,ro") == 1
    assert not os.path.exists(create.split()[-1])


def test_a_recipe_that_fails_under_enroot_is_said_with_its_log(engine: Engine) -> None:
    manifest, blobs = image(layer(low=b"low"))
    with serving(plain(manifest, blobs)) as server:
        Path("image.enroot.sh").write_text(f"# base: {server.address}/lib/base:1\nexit 3\n")
        with pytest.raises(KitError, match=r"enroot start ended with code 3\n  fix: see the lines above; the log: .*\.log"):
            make(build.BuildRequest(engine="enroot"))
    assert not list(Path("images").glob("*.sqsh"))
    assert Enroot().identity("anything") == ""
    Path("image.enroot.sh").write_text("exit 3\n")
    with pytest.raises(KitError, match="the recipe has one base image, in which it runs\n  fix: name it in one line at its head: # base: IMAGE"):
        make(build.BuildRequest(engine="enroot"))


@pytest.mark.parametrize("recipe_file, words", [("image.enroot.sh", "# base:"), ("Dockerfile", "FROM")])
def test_a_base_that_is_unpacked_in_part_on_a_full_disk_ends_the_build(recipe_file: str, words: str, engine: Engine, tmp_path: Path) -> None:
    """Older versions of unsquashfs then end with 0."""
    full = "write_file: failed to write file usr/x, because No space left on device"
    stub(tmp_path / "bin", "unsquashfs", f'{shutil.which("unsquashfs")} "$@"\necho "{full}" >&2')
    manifest, blobs = image(layer(low=b"low"))
    with serving(plain(manifest, blobs)) as server:
        Path(recipe_file).write_text(f"{words} {server.address}/lib/base:1\n")
        with pytest.raises(KitError, match=r"(enroot|sh) has no space left"):
            make(build.BuildRequest(recipe_file, engine="enroot"))
    assert not list(Path("images").glob("*.sqsh"))


# ---------------------------------------------------------------- an image of somebody else's Enroot


@pytest.fixture
def foreign(tmp_path: Path, engine: Engine) -> Path:
    """What enroot import wrote: no .singularity.d, and files that are its own."""
    tree = tmp_path / "tree"
    for name, text in (("etc/environment", "# theirs\nA='b c'\nPATH=/bin\n"), ("etc/rc", "exec theirs\n"), ("etc/fstab", "theirs"), ("opt/file", "x")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    subprocess.run(["mksquashfs", str(tree), str(tmp_path / "theirs.sqsh"), "-no-progress", "-quiet"], check=True, capture_output=True)
    return tmp_path / "theirs.sqsh"


def test_a_foreign_image_gets_what_apptainer_reads_and_nothing_of_its_own_is_replaced(foreign: Path, tmp_path: Path, capfd) -> None:
    before = foreign.read_bytes()
    make(build.BuildRequest(str(foreign)))
    assert foreign.read_bytes() == before
    subprocess.run(["unsquashfs", "-no-progress", "-quiet", "-dest", str(tmp_path / "out"), str(built("theirs"))], check=True, capture_output=True)
    out = tmp_path / "out"
    top = sorted(path.name for path in out.iterdir())
    assert top == [".singularity.d", "etc", "opt"]  # neither etc_1 nor tmp
    assert sorted(path.name for path in (out / "etc").iterdir()) == ["environment", "fstab", "rc"]
    assert (out / "etc/fstab").read_text() == "theirs" and (out / "etc/rc").read_text() == "exec theirs\n"
    assert (out / ".singularity.d/runscript").read_text() == '#!/bin/sh\nexec /bin/sh /etc/rc "$@"\n'
    assert (out / ".singularity.d/runscript").stat().st_mode & 0o777 == 0o755 == out.stat().st_mode & 0o777
    assert (out / ".singularity.d/env/10-image.sh").read_text() == "export A='b c'\nexport PATH=/bin\n"


def test_a_foreign_image_is_read_with_an_unsquashfs_older_than_its_option_cat(foreign: Path, tmp_path: Path) -> None:
    stub(tmp_path / "bin", "unsquashfs", f'[ $1 != -cat ] || exit 1\nexec {shutil.which("unsquashfs")} "$@"')
    make(build.BuildRequest(str(foreign)))
    assert ".singularity.d/runscript" in listed(built("theirs"))


def test_an_image_that_has_both_already_is_copied_as_it_is(foreign: Path) -> None:
    make(build.BuildRequest(str(foreign), name="first"))
    first = built("first")
    make(build.BuildRequest(str(first), name="second"))
    assert built("second").read_bytes() == first.read_bytes()


def test_a_foreign_image_is_adopted_without_a_home(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")
    make(build.BuildRequest(str(foreign)))
    assert ".singularity.d/runscript" in listed(built("theirs"))


def test_progress_counts_each_byte_of_a_copy_once(foreign: Path, tmp_path: Path) -> None:
    counted: list[int] = []
    with (tmp_path / "log").open("wb") as log:
        adopt.write(adopt.find(foreign), tmp_path / "copy.sqsh", log, counted.append)
    assert sum(counted) == foreign.stat().st_size


def test_a_foreign_image_gets_a_name_that_a_job_can_use(foreign: Path) -> None:
    assert adopt.find(foreign.rename(foreign.with_name("nvidia+My Image.sqsh"))).name == "nvidia-my-image"


def test_what_cannot_be_adopted_is_said(foreign: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.sqsh").write_bytes(b"x" * 5000)
    with pytest.raises(KitError, match="is not a squashfs"):
        adopt.find(tmp_path / "bad.sqsh")
    with pytest.raises(KitError, match="there is no file"):
        adopt.find(tmp_path / "gone.sqsh")
    (tmp_path / "empty/etc").mkdir(parents=True)
    (tmp_path / "empty/etc/environment").touch()
    subprocess.run(["mksquashfs", str(tmp_path / "empty"), str(tmp_path / "empty.sqsh"), "-no-progress"], check=True, capture_output=True)
    with pytest.raises(KitError, match="does not say how it is started"):
        adopt.find(tmp_path / "empty.sqsh")
    good = adopt.find(foreign)
    with (tmp_path / "log").open("wb") as log, pytest.raises((KitError, OSError)):
        adopt.write(good, tmp_path / "no/such/place.sqsh", log, lambda _: None)


# ---------------------------------------------------------------- bases


def found(text: str) -> recipe.Recipe:
    Path("Dockerfile").write_text(text)
    return recipe.load(Path("Dockerfile").absolute(), Path.cwd(), "x", build.BuildRequest())


def nobody(base: str) -> str:
    raise AssertionError(f"asked for {base}")


def test_a_base_is_asked_for_once_and_its_digest_is_kept_beside_the_recipe(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    answers = {"a.example/x:1": "sha256:" + "1" * 64, BASE: "sha256:" + "2" * 64}
    monkeypatch.setattr(client, "resolve", lambda base, _: asked.append(base) or answers[base])
    both = found(f"FROM a.example/x:1\nFROM {BASE}\nCOPY --from=0 / /\nCOPY --from=b.example/y@{DIGEST} / /\n")
    whole = {"a.example/x:1": "sha256:" + "1" * 64, BASE: DIGEST, f"b.example/y@{DIGEST}": DIGEST}
    assert bases.pin(both, {}, nobody, update=False) == whole
    assert asked == ["a.example/x:1"]
    text = Path("image.lock").read_text()
    assert json.loads(text) == {"a.example/x:1": "sha256:" + "1" * 64, BASE: DIGEST} and text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"
    assert bases.pin(both, {}, nobody, update=False) == whole and len(asked) == 1
    assert bases.pin(both, {}, nobody, update=True)[BASE] == "sha256:" + "2" * 64 and asked[1:] == ["a.example/x:1", BASE]
    assert json.loads(Path("image.lock").read_text())[BASE] == "sha256:" + "2" * 64
    assert [path for path in os.listdir() if path.startswith(".image.lock")] == []


def test_the_digest_of_a_base_by_enroots_name_is_what_follows_the_last_at(engine: Engine) -> None:
    base = f"ada@intranet#a/b@{DIGEST}"
    assert bases.pin(found(f"FROM {base}\n"), {}, nobody, update=False) == {base: DIGEST}


def test_a_recipe_that_takes_in_its_whole_folder_is_built_once(engine: Engine, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("image.lock").unlink()
    monkeypatch.setattr(client, "resolve", lambda base, _: DIGEST)
    Path("Dockerfile").write_text(f"FROM {BASE}\nCOPY . /app\n")
    make(build.BuildRequest())
    assert Path("image.lock").exists() and "context/image.lock" not in listed(built())
    capfd.readouterr()
    make(build.BuildRequest())
    assert capfd.readouterr().out == f"kit: {built()} is up to date\n" and len(engine.calls("build")) == 1


def test_a_base_that_only_this_machine_has_is_no_secret_and_in_no_lock_file(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(base: str, _: object) -> str:
        raise transport.Unavailable(f"no {base}", "x")

    monkeypatch.setattr(client, "resolve", refuse)
    own = found("FROM mine:1\n")
    notes: list[str] = []
    assert bases.pin(own, {}, {"mine:1": "sha256:1"}.__getitem__, update=False, note=notes.append) == {"mine:1": "local:sha256:1"}
    assert notes == ["no mine:1: this machine's own mine:1 is taken, until kit build --update"]
    assert json.loads(Path("image.lock").read_text()) == {BASE: DIGEST}
    assert bases.pin(own, {"mine:1": "local:sha256:2"}, lambda _: "", update=False) == {"mine:1": "local:sha256:2"}
    with pytest.raises(KitError, match="no mine:1"):
        bases.pin(own, {"mine:1": "local:sha256:2"}, lambda _: "", update=True)


@pytest.mark.parametrize(("status", "is_own_taken"), [(401, True), (403, True), (404, True), (429, False), (500, False), (503, False)])
def test_a_base_is_this_machines_own_only_where_the_registry_does_not_give_it(
    status: int, is_own_taken: bool, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "BACK_OFF_S", ())
    with serving(lambda path, headers: (status, {}, b"")) as server:
        base = f"{server.address}/mine:1"
        if is_own_taken:
            assert bases.pin(found(f"FROM {base}\n"), {}, lambda _: "sha256:1", update=False) == {base: "local:sha256:1"}
        else:
            with pytest.raises(KitError, match=f"registry {server.address} "):
                bases.pin(found(f"FROM {base}\n"), {}, nobody, update=False)


def test_an_installed_kits_own_recipes_have_their_lock_file_in_the_users_folder(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade removes what is among kit's files, and all projects have those."""
    own = tmp_path / "site-packages/kit/_assets"
    monkeypatch.setattr(client, "resolve", lambda *_: DIGEST)
    monkeypatch.setattr(bases.assets, "folder", lambda name: own / name)
    for number, folder in enumerate((own, own / "containers/horovod", tmp_path / "model/other")):
        folder.mkdir(parents=True)
        one = replace(found(f"FROM own:{number}\n"), folder=folder)
        bases.pin(one, {}, nobody, update=False)
    assert json.loads(Path("image.lock").read_text()) == {BASE: DIGEST, "own:0": DIGEST, "own:1": DIGEST}
    assert Path("other/image.lock").exists() and not list(own.rglob("image.lock"))


def test_a_lock_file_that_cannot_be_written_ends_no_build(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "resolve", lambda *_: DIGEST)
    monkeypatch.setattr(bases, "LOCK", "no/such/folder.lock")
    notes: list[str] = []
    assert bases.pin(found("FROM z.example/z:1\n"), {}, nobody, update=False, note=notes.append) == {"z.example/z:1": DIGEST}
    assert notes[0].endswith("folder.lock cannot be written (No such file or directory): the next build asks the registry again")


# ---------------------------------------------------------------- the folder images/


@pytest.fixture
def place(tmp_path: Path, engine: Engine) -> store.Place:
    (tmp_path / "images").mkdir()
    return store.Place(tmp_path / "images", "mine", "0123456789abcdef00")


def publish(place: store.Place, content: bytes = b"image", **origin: object) -> dict:
    place.unfinished.write_bytes(content)
    return store.publish(place, origin)


def test_a_file_gets_its_name_and_its_record_and_is_known_as_whole(place: store.Place) -> None:
    assert not store.is_built(place)
    record = publish(place, engine="docker")
    expected = {
        "file": "mine-0123456789abcdef.sqsh",
        "size": 5 + image_files.BLOCK,
        "sha256": image_files.sha256(place.file),
        "digest": "0123456789abcdef00",
        "engine": "docker",
    }
    assert record == expected == json.loads(place.record.read_text()) == image_files.record(place.record)
    assert sorted(os.listdir(place.folder)) == ["mine-0123456789abcdef.json", "mine-0123456789abcdef.sqsh"]
    assert store.is_built(place)


@pytest.mark.parametrize("what", ["no file", "no record", "another content"])
def test_what_is_not_what_was_built_is_not_built(what: str, place: store.Place) -> None:
    publish(place)
    if what == "no file":
        place.file.unlink()
    elif what == "no record":
        place.record.unlink()
    else:
        place.file.write_bytes(b"other")
    notes: list[str] = []
    assert not store.is_built(place, notes.append)
    assert [note.endswith("; building it again") for note in notes] == [True] * (what == "another content")


@pytest.mark.parametrize(("key", "value"), [("size", "5"), ("size", None), ("file", 1), ("sha256", None), ("bases", []), ("bases", {})])
def test_a_record_whose_values_are_of_another_kind_is_none(key: str, value: object, place: store.Place) -> None:
    record = {**publish(place), key: value}
    place.record.write_text(json.dumps(record))
    assert image_files.record(place.record) == (record if value == {} else {})


def test_a_sif_and_a_squashfs_of_one_build_have_records_of_their_own(place: store.Place) -> None:
    other = store.Place(place.folder, "mine", place.digest, ".sif")
    publish(place)
    publish(other, b"sif")
    assert image_files.check(place.file) != image_files.check(other.file) and store.is_built(place) and store.is_built(other)


# ---------------------------------------------------------------- what may go


def aged(path: Path, days: float) -> None:
    used_s = time.time() - days * 86400
    os.utime(path, (used_s, used_s))


def kept(place: store.Place, digest_: str, days: float) -> Path:
    one = store.Place(place.folder, "mine", digest_ * 16)
    publish(one, digest_.encode(), kit="0.1.0")
    aged(one.file, days)
    aged(one.record, days)
    return one.file


def run_of(folder: Path, image_: Path, days: float) -> None:
    (folder / "log/7").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"plan": {"container": {"image": str(image_)}}}))
    (folder / "log/7/node1.out").touch()
    for path in (folder / "log/7/node1.out", folder / "log/7", folder / "log", folder / "run.json"):
        aged(path, days)


def test_only_what_neither_a_build_nor_a_run_nor_a_job_needs_may_go(place: store.Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    young, old, ran, waits = kept(place, "a", 1), kept(place, "b", 30), kept(place, "c", 30), kept(place, "d", 30)
    (tmp_path / "link").symlink_to(place.folder)
    run_of(tmp_path / "runs/one", tmp_path / "link" / ran.name, 2)  # by another name of the folder
    run_of(tmp_path / "elsewhere/two", waits, 30)
    run_of(tmp_path / "elsewhere/three", old, 30)
    run_of(tmp_path / "runs/old", old, 20)
    (tmp_path / "runs/broken").mkdir()
    (tmp_path / "runs/broken/run.json").write_text("[]")
    install(tmp_path / "bin", squeue="fake_slurm")
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path / "slurm"))
    (tmp_path / "slurm/jobs").mkdir(parents=True)
    (tmp_path / "slurm/jobs/7").write_text(f"PENDING\nNone\n0:0\n\n{tmp_path}/elsewhere/two\n")
    (tmp_path / "slurm/jobs/8").write_text(f"COMPLETED\nNone\n0:0\n\n{tmp_path}/elsewhere/three\n")
    assert [item.file for item in inventory.unused(place.folder, 7)] == [old]
    assert {item.file for item in inventory.unused(place.folder, 3)} == {old}
    assert inventory.unused(place.folder, 25) == []  # one of its runs is 20 days old
    assert [item.file.name for item in inventory.unused(tmp_path / "link", 7)] == [old.name]
    assert young.exists()
    aged(tmp_path / "runs/old/log", 1)  # as kit run does there while its program is silent
    assert inventory.unused(place.folder, 7) == []
    shutil.rmtree(tmp_path / "runs/old/log")  # its user needed the space
    users = inventory._users([tmp_path / "runs", tmp_path / "none"])
    assert {image_: list(runs) for image_, runs in users.items()} == {
        str(ran): [str(tmp_path / "runs/one")],
        str(old): [str(tmp_path / "runs/old")],
    }
    assert abs(time.time() - 2 * 86400 - users[str(ran)][str(tmp_path / "runs/one")]) < 600
    assert len((tmp_path / "slurm/calls").read_text().splitlines()) == 5


SQUEUE_OF_TWO_CLUSTERS = """\
of="${SLURM_CLUSTERS:-own}"
for word; do [[ "${word}" != --clusters=* ]] || of="${word#*=}"; done
[[ "${of}" != down ]] || { echo "squeue: error: slurmdbd does not answer" >&2; exit 1; }
cat -- "FOLDER/${of}"
"""


@pytest.mark.parametrize("chosen", ["", "b"])
def test_an_image_stays_whichever_cluster_its_job_waits_on(chosen: str, place: store.Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell's SLURM_CLUSTERS may be the other one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_CLUSTERS", chosen)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    waiting = {"own": kept(place, "a", 30), "b": kept(place, "b", 30), "ended": kept(place, "c", 30)}
    for name, image_ in waiting.items():
        run_of(tmp_path / "elsewhere" / name, image_, 30)
        cluster, state = ("down", "COMPLETED") if name == "ended" else (name, "")
        history.add(Run("7", f"{tmp_path}/elsewhere/{name}", name, "1x1", 1.0, state=state, cluster=cluster, is_member=name != "own"))
        (tmp_path / name).write_text(f"7|PENDING|N/A|0:00|1:00||Priority|{tmp_path}/elsewhere/{name}\n")
    stub(tmp_path / "bin", "squeue", SQUEUE_OF_TWO_CLUSTERS.replace("FOLDER", str(tmp_path)))
    assert [item.file for item in inventory.unused(place.folder, 7)] == [waiting["ended"]]
    history.add(Run("8", f"{tmp_path}/elsewhere/ended", "x", "1x1", 1.0, cluster="down", is_member=True))
    with pytest.raises(KitError, match="slurmdbd does not answer"):
        inventory.unused(place.folder, 7)


def test_images_of_others_stay_in_a_folder_that_several_share(place: store.Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine, theirs = kept(place, "a", 30), kept(place, "b", 30)
    if os.getuid() == 0:
        os.chown(theirs, 12345, -1)
    else:  # as that file's owner sees the folder
        monkeypatch.setattr(os, "getuid", lambda uid=os.getuid(): uid + 1)
    expected = [mine] if theirs.stat().st_uid == 12345 else []
    assert [item.file for item in inventory.unused(place.folder, 7)] == expected
    assert {item.file for item in inventory.kept(place.folder)} == {mine, theirs}


def test_without_slurm_and_without_anything_old_nobody_is_asked(place: store.Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept(place, "a", 1)
    install(tmp_path / "bin", squeue="fake_slurm")
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path / "slurm"))
    assert inventory.unused(place.folder, 7) == [] and not (tmp_path / "slurm").exists()
    old = kept(place, "b", 30)
    (tmp_path / "bin/squeue").unlink()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/nowhere")
    assert [item.file for item in inventory.unused(place.folder, 7)] == [old]
