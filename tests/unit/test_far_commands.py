"""Commands and builds that run on the login node, with a copy of kit. A fake ssh; tests/cluster/test_laptop_build.py has a real one."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from far_side import Far
from kit import cluster as clusters
from kit.build.make import Request
from kit.errors import KitError, UsageError
from kit.remote import build, errand, whole
from kit.remote.host import MARK, Unreachable
from kit.remote.whole import Copy
from kit.runs import history
from kit.runs.history import Run
from samples import docker_archive


@pytest.fixture(scope="module")
def packed() -> dict[str, Path]:
    """What kit copies, looked for once: it starts a Python for that."""
    return whole._files()


@pytest.fixture
def site(far: Far, packed, monkeypatch: pytest.MonkeyPatch) -> clusters.Cluster:
    monkeypatch.setattr(whole, "_files", lambda: packed)
    return build.site_of("far")


@pytest.fixture
def copy(far: Far, site: clusters.Cluster) -> Copy:
    """kit over there, of which a build that is no kit's needs nothing."""
    far.own_kit()
    return Copy(build.whole.Host("login"), str(far.kit), str(far.kit / "kit-0"), "python3")


# ---------------------------------------------------------------- kit itself


def test_kit_is_copied_once_and_runs_there_with_the_packages_it_needs(far: Far, site, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    found = whole.put(site, "nothing is built yet")
    assert capfd.readouterr().err == "kit: copying kit to login, once\n"
    assert (found.folder, Path(found.place).parent) == (str(far.kit), far.kit)
    assert sorted(os.listdir(far.kit)) == [MARK, Path(found.place).name]  # and no part of it
    clean = {"PATH": os.environ["PATH"], "HOME": str(far.home)}
    done = subprocess.run([found.python, "-I", found.place, "--version"], capture_output=True, text=True, env=clean, cwd="/")
    assert re.fullmatch(r"kit \S+\n", done.stdout)
    assert not list(Path(found.place).rglob("*.so")) and (Path(found.place) / "kit/_assets/launch/scripts/run_script.sh").is_file()
    before = far.calls()
    assert whole.put(site, "nothing is built yet")[1:] == found[1:]
    assert far.calls()[len(before) :] == ["call"] and capfd.readouterr().err == ""
    # The same process has all it needs for one whole command there.
    assert errand.run(site, ["images", "--images", "images"]) == 0
    assert capfd.readouterr().out == f"kit: no images of kit build in {far.kit}/images\n"
    assert os.listdir(far.kit / "calls") == []


def test_a_copy_that_was_quicker_is_taken_and_the_own_one_removed(far: Far, copy: Copy) -> None:
    for name in ("part", "kit-0"):
        copy.host.call("login::make_marked", str(far.kit / name), doing="x")
    (far.kit / "kit-0/first").touch()
    copy.host.call("whole::settle", str(far.kit / "part"), str(far.kit / "kit-0"), doing="x")
    assert sorted(os.listdir(far.kit)) == [MARK, "kit-0"] and sorted(os.listdir(far.kit / "kit-0")) == [MARK, "first"]


def test_a_folder_that_cannot_be_made_is_named_with_its_key(far: Far, site) -> None:
    (far.home / "file").write_text("a file")
    site = site._replace(ssh_dir="file/kit")
    with pytest.raises(
        KitError, match=r"cannot make kit's folder on login: .*Not a directory\n  fix: name one that you may write to: the profile's key `ssh_dir`"
    ):
        whole.put(site, "nothing is built yet")


@pytest.mark.parametrize("what", ["a file", "a folder with a file"])
def test_a_folder_that_is_somebody_elses_is_named_with_its_key_and_left_alone(what: str, far: Far, site) -> None:
    mine = far.kit if what == "a file" else far.kit / "thesis"
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    with pytest.raises(KitError) as error:
        whole.put(site, "nothing is built yet")
    assert str(error.value).startswith(f"kit: {far.kit} on login is not kit's: it has other files, and kit did not make it\n  fix: name a folder for kit alone")
    assert mine.read_text() == "mine" and list(far.home.rglob(MARK)) == []


def test_a_login_node_without_a_python_is_told_what_needs_none(far: Far, site) -> None:
    for name in ("python3", *(f"python3.{minor}" for minor in range(9, 16))):
        (far.base / "far/bin" / name).write_text("#!/bin/sh\necho Python 3.6.8\n")
        (far.base / "far/bin" / name).chmod(0o755)
    with pytest.raises(KitError) as error:
        whole.put(site, "kit shell has not begun")
    assert str(error.value).startswith("kit: login has no Python that runs this kit (python3 there: Python 3.6.8): kit shell has not begun\n")
    assert "submit, status, logs, why and cancel need none there" in str(error.value)


# ---------------------------------------------------------------- builds


def test_an_image_here_is_built_there_and_the_same_command_does_nothing_more(far: Far, site, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    docker_archive(far.base / "mine.tar")
    request = Request("mine.tar", name="mine", arguments={"API_TOKEN": "s3cret"})
    assert build.build(request, site) == 0
    said = capfd.readouterr()
    assert "kit: copying mine.tar to login, " in said.err
    (image,) = far.kit.glob("images/mine-*.sqsh")
    assert f"kit: {image}: " in said.out and "  in a job: `image: mine`\n" in said.out
    assert os.listdir(far.kit / "build") == []  # its end was told
    assert build.build(request, site) == 0
    assert capfd.readouterr().out == f"kit: {image} is up to date\n"


def test_a_build_that_fails_ends_with_its_code_and_keeps_what_was_copied(far: Far, site, capfd) -> None:
    (far.base / "broken.tar").write_bytes(b"no tar")
    assert build.build(Request("broken.tar"), site) == 1
    (place,) = (far.kit / "build").iterdir()
    assert (place / "image/broken.tar").is_file() and not (place / "status").exists() and not (place / "call.sh").exists()
    assert "broken.tar" in capfd.readouterr().out


def test_another_folder_for_images_is_refused(far: Far, site) -> None:
    with pytest.raises(UsageError, match=r"--images: over there images are in kit/images"):
        build.build(Request("x", folder=Path("/elsewhere")), site)
    with pytest.raises(UsageError, match="the profile generic names no login node by `ssh`"):
        build.site_of("generic")


def place(far: Far, script: str, copy: Copy) -> str:
    """A build over there that is this script, begun."""
    folder = far.kit / "build/image-0123456789abcdef"
    copy.host.call("login::make_marked", str(folder), doing="x")
    library = build.assets.script("remote/login.sh") + build.assets.script("remote/whole.sh")
    (folder / "work").write_text(script)
    quoted = shlex.quote(str(folder))
    (folder / "call.sh").write_text(f"{library}\nwhole::build {quoted} bash {quoted}/work {quoted}\n")
    copy.host.call("whole::begin", str(folder), doing="x")
    return str(folder)


def test_a_build_is_followed_to_its_end_through_a_broken_connection(far: Far, copy: Copy, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place(far, "echo one; echo zwei ä >&2; exit 4", copy)
    # Up again at the first wait for the next try.
    monkeypatch.setattr(build, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: far.up()))
    far.down()
    assert build._follow(copy, folder) == 4
    said = capfd.readouterr()
    assert said.out == "one\nzwei ä\n"
    assert said.err.splitlines()[-2:] == [
        "kit: connection to login lost (ssh: No route to host); trying again; the build goes on meanwhile",
        "kit: login answers again",
    ]
    assert not os.path.exists(f"{folder}/status")


def test_a_connection_that_stays_away_ends_the_following(far: Far, copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PATIENCE_S", -1.0)
    far.down()
    with pytest.raises(Unreachable, match="No route to host"):
        build._follow(copy, str(far.kit / "build/x"))


@pytest.fixture
def asked_few_times(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever would ask for ever fails instead."""
    left = iter(range(5))
    call = copy.host.call

    def counted(*arguments: str, **options: object) -> object:
        assert next(left, None) is not None, "asks for ever"
        return call(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(copy.host, "call", counted)


@pytest.mark.usefixtures("asked_few_times")
def test_a_build_whose_end_another_kit_was_told_is_not_waited_for(far: Far, copy: Copy) -> None:
    with pytest.raises(KitError, match="another kit of yours has been told how the build ended"):
        build._follow(copy, str(far.kit / "build/x"))


@pytest.mark.usefixtures("asked_few_times")
def test_a_build_that_was_killed_over_there_is_not_waited_for(far: Far, copy: Copy, capfd) -> None:
    folder = far.kit / "build/x"
    copy.host.call("login::make_marked", str(folder), doing="x")
    (folder / "output").write_text("step 1\n")  # and nobody holds its lock
    with pytest.raises(KitError, match="the build on login was killed there"):
        build._follow(copy, str(folder))
    assert capfd.readouterr().out == "step 1\n"


def test_a_build_that_runs_already_is_followed_and_not_begun_again(far: Far, copy: Copy, capfd) -> None:
    folder = place(far, "echo first; until [[ -e go ]]; do sleep 0.05; done", copy)
    build._start(copy, folder, ["build"], build.Reads(None, "kit"), Request())
    assert capfd.readouterr().err == "kit: login builds it already; what it said:\n"
    Path(folder, "go").touch()
    assert build._follow(copy, folder) == 0
    assert capfd.readouterr().out == "first\n"
    copy.host.call("login::make_marked", folder, doing="x")
    for name, text in (("output", "all\n"), ("status", "0\n")):
        Path(folder, name).write_text(text)
    build._start(copy, folder, ["build"], build.Reads(None, "kit"), Request())
    assert capfd.readouterr().err == "kit: login has built it meanwhile; what it said:\n"
    assert build._follow(copy, folder) == 0 and not os.path.exists(folder)


def test_ctrl_c_ends_the_build_over_there_and_leaves_nothing_of_it(far: Far, copy: Copy, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place(far, "echo $$ >pid; exec sleep 100", copy)
    while not (Path(folder, "pid").exists() and Path(folder, "pid").read_text()):
        time.sleep(0.02)
    pid = Path(folder, "pid").read_text().strip()
    assert build._stop(copy, folder) == 130
    assert not os.path.exists(folder) and not os.path.exists(f"/proc/{pid}")
    assert capfd.readouterr().err == "kit: ending the build on login\n"
    assert build._stop(copy, folder) == 130  # gone already


def test_ctrl_c_while_it_is_followed_ends_it_too(far: Far, site, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = []
    monkeypatch.setattr(whole, "put", lambda *_: Copy(build.whole.Host("login"), "/kit", "/kit/kit-0", "python3"))
    monkeypatch.setattr(build, "_start", lambda *_: None)
    monkeypatch.setattr(build, "_follow", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    monkeypatch.setattr(build, "_stop", lambda _, folder: stopped.append(folder) or 130)
    docker_archive(far.base / "mine.tar")
    assert build.build(Request("mine.tar"), site) == 130
    assert len(stopped) == 1 and re.fullmatch(r"/kit/build/image-[0-9a-f]{16}", stopped[0])


def test_a_build_that_does_not_end_is_said_with_its_place(far: Far, copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy.host, "call", lambda *_, **__: subprocess.CompletedProcess([], 1), raising=False)
    with pytest.raises(KitError, match="the build on login does not end\n  fix: see there: /kit/build/x"):
        build._stop(copy, "/kit/build/x")


# ---------------------------------------------------------------- a job's commands


PROJECT = "command: [bash, -c, 'true']\nlauncher: srun\nruntime: none\ncluster: far\nnodes: 2\n"


def test_a_jobs_command_goes_there_with_its_project_and_its_answer_comes_back(far: Far, site, kit_here) -> None:
    project = far.base / "project"
    project.mkdir()
    (project / "job.yaml").write_text(PROJECT)
    (project / "train.py").write_text("x = 1\n")
    os.chdir(project)
    done = kit_here("bench", "job.yaml", "--dry-run", "--output", "given")
    assert done.code == 0, done.err
    assert (far.kit / "work/project/train.py").read_text() == "x = 1\n"
    assert os.listdir(far.kit / "calls") == []
    assert f"{far.kit}/work/project" in done.out
    assert "==> given/run_script.sh <==" in done.out  # --output is honoured over there
    done = kit_here("bench", "job.yaml", "--dry-run")
    assert re.search(r"==> [^\n]*kit/runs/\S+-\d{8}-\d{6}-[0-9a-f]+/run_script.sh <==", done.out), done.out[:300]


def test_what_the_user_has_over_there_stays_where_the_project_goes(far: Far, site, kit_here) -> None:
    """Links, what is behind them, and the modes of folders."""
    project, there = far.base / "project", far.kit / "work/project"
    for folder in (project / "sub", project / "moved", there / "sub", far.home / "mine"):
        folder.mkdir(parents=True)
    (project / "job.yaml").write_text(PROJECT)
    for name in ("train.py", "sub/x.py", "moved/x.py", "late.py"):
        (project / name).write_text("x = 1\n")
    for name, target in {"latest": "runs/1", "same": "sub", "notes": "sub", "fresh": "odd\nname"}.items():
        (project / name).symlink_to(target)
    (far.kit / MARK).touch()
    for name, target in {"latest": "results", "same": "sub", "moved": "../../../mine", "late.py": "sub/y.py"}.items():
        (there / name).symlink_to(target)
    (there / "notes").write_text("mine")
    (far.home / "mine/x.py").write_text("mine")
    (there / "sub").chmod(0o755)
    for path in (*there.iterdir(), far.home / "mine/x.py"):
        os.utime(path, (0, 0), follow_symlinks=False)
    os.chdir(project)
    done = kit_here("bench", "job.yaml", "--dry-run")
    assert done.code == 0, done.err
    assert f"kit: what login has in {there} under these names stays as it is: late.py, latest, moved/x.py, notes\n" in done.err
    links = {path.name: os.readlink(path) for path in there.iterdir() if path.is_symlink()}
    assert links == {"latest": "results", "same": "sub", "moved": "../../../mine", "late.py": "sub/y.py", "fresh": "odd\nname"}
    assert ((there / "notes").read_text(), (far.home / "mine/x.py").read_text()) == ("mine", "mine")
    assert (there / "sub").stat().st_mode & 0o777 == 0o755 and (there / "sub/x.py").read_text() == "x = 1\n"


def test_options_go_before_the_programs_own_arguments() -> None:
    assert errand.with_options(["shell", "job.yaml", "--", "--cluster", "mine"], "--cluster", "x") == [
        "shell",
        "job.yaml",
        "--cluster",
        "x",
        "--",
        "--cluster",
        "mine",
    ]
    assert errand.with_options(["images"], "--cluster", "x") == ["images", "--cluster", "x"]


def test_a_profile_has_over_there_what_is_not_about_the_way_there() -> None:
    assert errand.profile_there("ssh: ada@login\nssh_dir: kit\nscratch: /local\nslurm: {partition: a}\n") == "scratch: /local\nslurm: {partition: a}\n"
    assert errand.profile_there("ssh: ada@login\n") == "{}\n"


def test_kit_exec_notes_the_run_over_there_and_runs_there(far: Far, site, capfd) -> None:
    run = Run("7", str(far.base / "runs/x"), "x", "1x1", 5.0, ssh="login", there=f"{far.kit}/runs/x")
    assert errand.enter(run, ["exec", run.there, "--", "true"]) == 2
    assert "there is no run" in capfd.readouterr().err  # whose folder is not there
    for _ in range(2):
        errand.enter(run, ["runs"])
    (line,) = (far.home / ".local/state/kit/runs.jsonl").read_text().splitlines()
    assert {key: json.loads(line)[key] for key in ("id", "folder", "ssh", "there")} == {"id": "7", "folder": run.there, "ssh": "", "there": ""}


def test_an_image_goes_before_the_command_that_needs_it_and_only_once(far: Far, site, kit_here) -> None:
    (far.base / "job.yaml").write_text(PROJECT.replace("runtime: none", "runtime: apptainer") + "image: my.sif\n")
    (far.base / "my.sif").write_bytes(b"an image")
    kit_here("bench", "job.yaml", "--dry-run")
    (image,) = far.kit.glob("images/*.sif")
    assert image.read_bytes() == b"an image" and re.fullmatch(r"my-[0-9a-f]{16}\.sif", image.name)
    assert "copying my.sif" not in kit_here("bench", "job.yaml", "--dry-run").err


# ---------------------------------------------------------------- notes of bad nodes


def test_bad_nodes_of_a_cluster_elsewhere_are_listed_and_taken_back_there(far: Far, kit_here) -> None:
    assert kit_here("nodes", "--cluster", "far").out == "kit: no node is left out\n"
    notes = far.kit / "bad-nodes/far"
    notes.write_text(f"{int(time.time())} node3 does not answer\n{int(time.time())} node5 x y\n")
    assert [line.split()[0] for line in kit_here("nodes", "--cluster", "far").out.splitlines()] == ["NODE", "node3", "node5"]
    assert kit_here("nodes", "--cluster", "far", "--forget", "node3").out == "kit: node3 is used again\n"
    assert re.fullmatch(r"\d+ node5 x y\n", notes.read_text())
    assert kit_here("nodes", "--cluster", "far", "--forget", "node3").code == 2
    assert history.runs() == []
