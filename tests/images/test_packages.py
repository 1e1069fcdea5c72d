"""`packages`: real pip against an index on loopback, with the Python of a venv in the place of an image's. What the image has stays; the rest is locked,
packed once, unpacked once per node, and used again without a question to the index."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pip
import pytest
from kit.base.errors import Problems
from kit.config import requirements
from kit.config.job import Job
from kit.config.requirements import Requirement
from kit.config.yaml_source import Located
from kit.files import typed_json
from kit.images import image_python, package_store, pip_settings
from kit.plan import packages

from plans import plan_of
from samples import stub
from wheels import wheel

pytestmark = pytest.mark.slow

TORCH = "2.9.0a0+nv25.9"  # as NVIDIA's images have it, and no index
PASSWORD = "zq-of-the-index"
PROGRAM = """
import importlib.metadata as m, os, shutil, sys
for name in sys.argv[1:]:
    module = __import__(name)
    print("FOUND", name, m.version(name), module.__file__)
print("SAYS", shutil.which("alpha-say"))
print("PATHS", os.environ["PYTHONPATH"])
"""


class Index:
    """A simple index: a folder for each package, as http.server lists it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked, self.login = folder, [], ""
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        index = self

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked.append(self.path)
                index.begun.set()
                index.go_on.wait(120)
                if index.login and self.headers.get("Authorization") != index.login:
                    self.send_response(401)
                    self.send_header("WWW-Authenticate", "Basic")
                    self.end_headers()
                    return
                super().do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, login: str = "") -> str:
        return f"http://{login}127.0.0.1:{self.server.server_port}/"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with pip and with a torch that no index has."""
    folder = tmp_path_factory.mktemp("image")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    shutil.copytree(Path(pip.__file__).parent, site / "pip")  # to install it takes as long as some tests
    for name, version in (("torch", TORCH), ("numpy", "2.1.0")):
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(f"VERSION = {version!r}\n")
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text("")
        (info / "INSTALLER").write_text("pip\n")
    return folder


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    folder = tmp_path / "index"
    wheel(folder, "alpha", "1.0", ("beta>=1", "torch>=2"), "alpha-say")
    wheel(folder, "beta", "1.5")
    wheel(folder, "torch", "2.99")
    wheel(folder, "numpy", "9.9")
    wheel(folder, "needs_numpy", "2.0", ("numpy>=9",))
    (folder / "source-only").mkdir()
    with tarfile.open(folder / "source-only" / "source_only-1.0.tar.gz", "w:gz"):
        pass
    made = Index(folder)
    yield made
    made.go_on.set()
    made.server.shutdown()


class Project:
    def __init__(self, kit, folder: Path, python: Path, index: Index) -> None:
        self.kit, self.folder, self.index, self.scratch = kit, folder, index, folder / "scratch"
        self.folder.mkdir()
        self.scratch.mkdir()
        (folder / "train.py").write_text(PROGRAM)
        (folder / "site.yaml").write_text(f"scratch: {self.scratch}\n")
        self.env = {
            **{"PATH": f"{python}/bin:{os.environ['PATH']}", "PIP_INDEX_URL": index.url(), "PIP_CONFIG_FILE": "/dev/null"},
            **{"PIP_RETRIES": "0", "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""},
        }

    def job(self, *requirements: str, program: str = "train.py alpha beta torch", more: str = "") -> None:
        (self.folder / "requirements.txt").write_text("".join(f"{line}\n" for line in requirements))
        text = f"command: {program}\nlauncher: spawn\ncluster: ./site.yaml\npackages: requirements.txt\n{more}"
        (self.folder / "job.yaml").write_text(text)

    def run(self, *words: str, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        return self.kit("run", "job.yaml", *words, cwd=self.folder, check=check, **{**self.env, **env})

    def start(self) -> subprocess.Popen[str]:
        """A kit of its own, to be killed."""
        command = [str(Path(sys.executable).with_name("kit")), "run", "job.yaml"]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.folder, env={**os.environ, **self.env}, stdout=pipe, stderr=subprocess.STDOUT, text=True)

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "images").glob("*")) + sorted(path.name for path in (self.folder / "images").glob(".*"))

    @property
    def unpacked(self) -> Path:
        (found,) = (self.scratch / f"kit-{os.getuid()}" / "packages").glob("kit-*")
        return found


@pytest.fixture
def project(kit, tmp_path: Path, python: Path, index: Index) -> Project:
    return Project(kit, tmp_path / "project", python, index)


def found(output: str) -> dict[str, list[str]]:
    lines = [line.split("FOUND ", 1)[1].split(maxsplit=2) for line in output.splitlines() if "FOUND " in line]
    return {name: rest for name, *rest in lines}


def test_what_the_image_lacks_is_brought_and_what_it_has_stays(project: Project) -> None:
    project.job("alpha  # with what it needs", more="env: {PYTHONPATH: /of/the/job}\n")
    output = project.run().stdout
    had = found(output)
    assert had["alpha"] == ["1.0", f"{project.unpacked}/alpha/__init__.py"]
    assert had["beta"][0] == "1.5"
    assert had["torch"][0] == TORCH and not had["torch"][1].startswith(str(project.scratch))
    assert f"SAYS {project.unpacked}/bin/alpha-say" in output
    assert f"PATHS /of/the/job:{project.unpacked}" in output, "the job's own comes first"
    assert not [path for path in project.index.asked if path.startswith(("/torch", "/numpy"))], "what the image has is not looked for"
    writable = [path for path in project.unpacked.rglob("*") if path.stat().st_mode & 0o222]
    assert not writable and not project.unpacked.stat().st_mode & 0o222
    assert list(project.unpacked.glob("alpha/__pycache__/*.pyc")), "nobody can compile them later"


def test_the_same_requirements_ask_nobody_again_and_are_compared_by_their_versions(project: Project, index: Index) -> None:
    project.job("alpha")
    project.run()
    asked, unpacked = len(index.asked), project.unpacked.stat().st_ino
    assert asked
    index.server.shutdown()
    index.server.server_close()
    assert found(project.run().stdout)["alpha"][0] == "1.0"
    assert len(index.asked) == asked and project.unpacked.stat().st_ino == unpacked
    one, two = (json.loads((path / "run.json").read_text())["plan"]["container"]["packages"] for path in sorted(project.folder.glob("runs/*-*")))
    assert one == two
    assert [line.split(" ")[0] for line in one["lock"]] == ["alpha==1.0", "beta==1.5"]
    assert all("--hash=sha256:" in line for line in one["lock"])


def test_another_version_of_the_lock_is_a_difference_of_two_runs(project: Project, index: Index) -> None:
    project.job("beta", program="train.py beta")
    project.run()
    wheel(index.folder, "beta", "1.6")
    project.job("beta>=1.6", program="train.py beta")
    project.run()
    runs = [str(path) for path in sorted(project.folder.glob("runs/*-*"), key=lambda path: path.stat().st_mtime)]
    said = project.kit("diff", *runs, cwd=project.folder, check=False, **project.env).stdout
    assert re.search(r"beta: 1\.5 \([0-9a-f]{8}\) -> 1\.6 \([0-9a-f]{8}\)\n", said)


def test_a_conflict_with_the_image_is_an_error_that_names_both_and_leaves_nothing(project: Project) -> None:
    project.job("needs-numpy")
    done = project.run(check=False)
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert "packages: they conflict with what this machine's Python has, which stays\n" in said
    assert "needs-numpy 2.0 depends on numpy>=9" in said and "The user requested (constraint) numpy==2.1.0" in said, "pip's own lines"
    assert project.files == [] and not (project.folder / "runs").exists()


def test_another_torch_than_the_images_is_a_conflict(project: Project) -> None:
    project.job("torch==2.99")
    done = project.run(check=False)
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert "packages: they conflict with what this machine's Python has, which stays\n" in said
    assert "The user requested torch==2.99" in said and "The user requested (constraint) torch" in said and f"=={TORCH}" in said


@pytest.mark.parametrize("name", ["source-only", "nowhere"])
def test_what_has_no_wheel_is_an_error_with_pips_lines(name: str, project: Project) -> None:
    project.job(name)
    said = project.run(check=False)
    assert said.returncode == 1
    assert f"No matching distribution found for {name}" in said.stdout + said.stderr
    assert "kit installs only wheels" in said.stdout + said.stderr


def command_lines() -> list[bytes]:
    """Those of all processes; one may end before it is read."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    return found


def test_a_killed_submission_leaves_nothing_that_another_uses(project: Project, index: Index) -> None:
    project.job("alpha")
    index.go_on.clear()
    killed = project.start()
    assert index.begun.wait(120)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert [name for name in project.files if name.endswith(".partial")], "it was in the middle"
    of_pip = [str(path) for path in (project.folder / "images").glob(".*.partial")]
    deadline = time.monotonic() + 60
    while any(of_pip[0].encode() in line for line in command_lines()):
        assert time.monotonic() < deadline, "the pip of a killed kit goes on"
        time.sleep(0.1)
    index.go_on.set()
    assert found(project.run().stdout)["alpha"][0] == "1.0"
    assert not [name for name in project.files if name.startswith(".")]


def test_two_submissions_at_once_make_one_file(project: Project, index: Index) -> None:
    project.job("alpha")
    index.go_on.clear()
    both = [project.start(), project.start()]
    assert index.begun.wait(120)
    time.sleep(2)
    index.go_on.set()
    outputs = [each.communicate(timeout=300)[0] for each in both]
    assert [each.returncode for each in both] == [0, 0], outputs
    assert all(found(output)["alpha"][0] == "1.0" for output in outputs)
    assert sorted("packages: resolving" in output for output in outputs) == [False, True], outputs
    assert len([name for name in project.files if name.endswith(".tar.gz")]) == 1


@pytest.mark.parametrize("place", ["environment", "pip.conf"])
def test_a_password_of_the_index_reaches_no_file_and_no_command_line(place: str, project: Project, index: Index, tmp_path: Path) -> None:
    index.login = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()
    project.job("alpha")
    project.env["PIP_INDEX_URL"] = url = index.url(f"me:{PASSWORD}@")
    if place == "pip.conf":
        del project.env["PIP_INDEX_URL"]
        project.env["PIP_CONFIG_FILE"] = str(tmp_path / "mine.conf")
        (tmp_path / "mine.conf").write_text(f"[global]\nindex-url = {url}\n")
    index.go_on.clear()
    running = project.start()
    assert index.begun.wait(120)
    lines = command_lines()
    written = [path for path in project.folder.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
    index.go_on.set()
    output, _ = running.communicate(timeout=300)
    assert running.returncode == 0, output
    assert not [line for line in lines if PASSWORD.encode() in line] and not written
    places = [project.folder, Path(os.environ["XDG_STATE_HOME"])]
    assert not [path for top in places for path in top.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
    index.login = "Basic none"
    project.job("alpha", "needs-numpy")
    said = project.run(check=False)
    assert said.returncode == 1 and PASSWORD not in said.stdout + said.stderr


def test_wheels_in_a_folder_need_no_index(project: Project, index: Index) -> None:
    project.job("--no-index", "--find-links ../links", "alpha", "beta")
    links = project.folder.parent / "links"
    links.mkdir()
    for path in index.folder.glob("*/*.whl"):
        shutil.copy(path, links)
    assert found(project.run().stdout)["alpha"][0] == "1.0"
    wheel(index.folder, "beta", "1.5", script="beta-say")
    shutil.copy(index.folder / "beta" / "beta-1.5-py3-none-any.whl", links)
    assert "packages: resolving" in project.run().stderr, "a wheel of one's own was built again"
    assert index.asked == []
    runs = [str(path) for path in sorted(project.folder.glob("runs/*-*"), key=lambda path: path.stat().st_mtime)]
    said = project.kit("diff", *runs, cwd=project.folder, check=False, **project.env).stdout
    assert re.search(r"beta: 1\.5 \([0-9a-f]{8}\) -> 1\.5 \([0-9a-f]{8}\)", said) and "alpha" not in said


def test_a_dry_run_asks_nobody(project: Project, index: Index) -> None:
    project.job("alpha")
    done = project.kit("submit", "job.yaml", "--dry-run", cwd=project.folder, **project.env)
    assert "packages: a submission resolves them against this machine's Python, once" in done.stderr
    assert index.asked == [] and project.files == []


def test_a_run_is_repeated_with_its_packages_and_not_without(project: Project) -> None:
    project.job("alpha")
    project.run()
    again = project.kit("rerun", cwd=project.folder, **project.env)
    assert found(again.stdout)["alpha"][0] == "1.0"
    (file,) = (project.folder / "images").glob("*.tar.gz")
    with file.open("ab") as opened:
        opened.write(b"x")
    other = project.kit("rerun", cwd=project.folder, check=False, **project.env)
    assert other.returncode == 1 and "the packages were resolved again since that run" in other.stderr
    file.unlink()
    gone = project.kit("rerun", cwd=project.folder, check=False, **project.env)
    assert gone.returncode == 1 and f"{file} is gone, which held the run's Python packages" in gone.stderr


def test_a_changed_file_is_made_again(project: Project) -> None:
    project.job("alpha")
    project.run()
    (file,) = (project.folder / "images").glob("*.tar.gz")
    with file.open("r+b") as opened:
        opened.write(b"x")
    assert found(project.run().stdout)["alpha"][0] == "1.0"
    assert file.read_bytes()[:2] == b"\x1f\x8b"


@pytest.mark.parametrize(
    "line, problem",
    [
        ("-e .", "'-e .' is a folder, and no package of an index"),
        ("git+https://host/x.git", "'git+https://host/x.git' is not the name of a package"),
        ("x @ file:///x.whl", "'x @ file:///x.whl' is not the name of a package"),
        ("./x-1.0.whl", "'./x-1.0.whl' is not the name of a package"),
        ("x-1.0-py3-none-any.whl", "'x-1.0-py3-none-any.whl' is not the name of a package"),
        ("pyproject.toml", "'pyproject.toml' is not the name of a package"),
        ("uv.lock", "'uv.lock' is not the name of a package"),
        ("environment.yml", "'environment.yml' is not the name of a package"),
        ("environment.yaml", "'environment.yaml' is not the name of a package"),
        ("requirements.in", "'requirements.in' is not the name of a package"),
        ("x==${VERSION}", "kit does not replace variables in 'x==${VERSION}'"),
        ("x==1 --hash=sha256:00", "'x==1' is given with a hash"),
        ("--no-binary x", "kit does not know the line '--no-binary x'"),
        ("two words", "cannot read the requirement 'two words'"),
        (f"--index-url https://me:{PASSWORD}@host/", "the line holds a password or a token, which the run's record would show"),
        (f"--extra-index-url https://{PASSWORD}@host/simple", "the line holds a password or a token, which the run's record would show"),
        ("-r gone.txt", "no such file: {folder}/gone.txt"),
        ("-r itself.txt", "the files of requirements name one another"),
    ],
)
def test_a_line_that_kit_does_not_give_to_pip_is_named(line: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "itself.txt").write_text(f"# first\n{line}\n")
    problems = Problems()
    packages.requested(Job(packages=(Requirement(str(tmp_path / "itself.txt"), "job.yaml:3"),)), None, "", problems)
    (said,) = problems.found
    assert (said.where, said.problem) == (f"{tmp_path}/itself.txt:2", problem.replace("{folder}", str(tmp_path)))
    assert said.fix and PASSWORD not in str(said)


def test_files_of_requirements_that_name_one_another_are_each_read_once(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.txt").write_text(f"{name}\n" + f"-r {other}.txt\n" * 10)
    problems = Problems()
    found = packages.requested(Job(packages=(Requirement(str(tmp_path / "a.txt"), ""),)), None, "", problems)
    assert found.requirements == ("a", "b")
    assert [item.problem for item in problems.found] == ["the files of requirements name one another"] * 10


def test_a_file_that_others_name_several_times_is_read_once_for_packages_and_once_for_constraints(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"p{number}\n" + f"-r {number + 1}.txt\n-c {number + 1}.txt\n" * 10)
    (tmp_path / "3.txt").write_text("p3\n")
    problems = Problems()
    files = tuple(Requirement(str(tmp_path / f"{number}.txt"), "") for number in (0, 3))
    found = packages.requested(Job(packages=files), None, "", problems)
    assert found.requirements == ("p0", "p1", "p2", "p3", "-c p3", "-c p2", "-c p1")
    assert not problems.found


def test_a_file_is_read_as_pip_reads_it(tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text("\ufeffa>=1, \\\n  <2 # comment\n\n-r more/b.txt\n-c more/c.txt\n--pre\n-i https://host/simple\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.txt").write_text("b[x,y]~=1.0 ; python_version > '3.8'\r\n-f wheels\r\n")
    (tmp_path / "more" / "c.txt").write_text("c\t<3\r\n", encoding="utf-16")  # by `pip freeze >` of PowerShell
    problems = Problems()
    job = Job(packages=(Requirement("first", ""), Requirement(str(tmp_path / "all.txt"), "")))
    lines = packages.requested(job, None, "", problems).requirements
    assert not problems.found
    assert lines == (
        *("first", "a>=1,   <2", "b[x,y]~=1.0 ; python_version > '3.8'", f"--find-links {tmp_path}/more/wheels"),
        *("-c c <3", "--pre", "-i https://host/simple"),
    )


def test_the_settings_of_pip_are_taken_where_they_say_where_packages_come_from(tmp_path: Path) -> None:
    conf = tmp_path / ".config" / "pip" / "pip.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text("[global]\nindex-url = https://me:a%40b@one/\ntarget = /nowhere\n[install]\nfind-links =\n    /a\n    /b\n")
    site = pip_settings.variables({"HOME": "/nowhere"})
    home = {"HOME": str(tmp_path), "PIP_EXTRA_INDEX_URL": "https://two/", "PIP_USER": "1", "https_proxy": "http://p:1", "PATH": "/bin"}
    taken = pip_settings.variables(home)
    taken = {name: value for name, value in taken.items() if value not in site.values()}
    assert taken == {
        **{"PIP_INDEX_URL": "https://me:a%40b@one/", "PIP_FIND_LINKS": "/a /b", "PIP_EXTRA_INDEX_URL": "https://two/", "https_proxy": "http://p:1"},
    }
    assert pip_settings.variables({**home, "PIP_INDEX_URL": "https://mine/"})["PIP_INDEX_URL"] == "https://mine/"
    proxy = {"PIP_PROXY": f"me:{PASSWORD}@proxy:80", "no_proxy": "[::1],localhost"}
    assert pip_settings.hide(f"cannot reach me:{PASSWORD}@proxy:80", proxy) == "cannot reach me:****@proxy:80"
    assert pip_settings.hide("me asked https://me:a%40b@one/ with a@b", taken) == "me asked https://me:****@one/ with ****"


@pytest.fixture
def plain_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home without a blank: pip's lists have blanks between their paths."""
    with tempfile.TemporaryDirectory(prefix="kit-home-", dir="/tmp") as home:
        monkeypatch.setenv("HOME", home)
        yield Path(home)


def test_a_home_folder_in_the_settings_of_pip_is_the_users_and_not_that_of_the_image(plain_home: Path) -> None:
    for name in ("wheels", "more"):
        (plain_home / name).mkdir()
    (plain_home / "ca.pem").touch()
    conf = plain_home / ".config" / "pip" / "pip.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text("[global]\nfind-links =\n    ~/wheels\n    https://host/~me/\n    ~/more\ncert = ~/ca.pem\n")
    found = pip_settings.variables({"HOME": str(plain_home)})
    assert (found["PIP_FIND_LINKS"], found["PIP_CERT"]) == (f"{plain_home}/wheels https://host/~me/ {plain_home}/more", f"{plain_home}/ca.pem")
    assert set(pip_settings.paths(found, ())) >= {f"{plain_home}/wheels", f"{plain_home}/more", f"{plain_home}/ca.pem"}


def test_packages_of_several_gigabytes_are_read_back_from_the_record() -> None:
    large = packages.Packages(("torch",), bytes=5 * 10**9)
    faults: list[str] = []
    assert typed_json.read(packages.Packages, json.loads(json.dumps(typed_json.plain(large))), faults) == large
    assert not faults


def test_a_file_of_requirements_is_named_alone() -> None:
    problems = Problems()
    requirements.parse(Located("-r requirements.txt", "job.yaml:3"), problems)
    assert [(item.problem, item.fix) for item in problems.found] == [("kit does not know the line '-r requirements.txt'", "write the file's name alone")]


def test_the_nodes_scratch_folder_serves_here_only_if_it_is_here(tmp_path: Path) -> None:
    assert image_python._scratch(str(tmp_path)) == str(tmp_path)
    assert image_python._scratch(str(tmp_path / "of-the-nodes")) == ""
    assert image_python._scratch("") == ""


def test_an_image_without_pip_is_named(project: Project, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    (site,) = bare.glob("lib/python3*/site-packages")
    (site / "torch.py").touch()
    project.job("alpha")
    done = project.run(check=False, PATH=f"{bare}/bin:{os.environ['PATH']}")
    assert done.returncode == 1 and "this machine's Python has no pip" in done.stderr


def test_packages_are_for_the_python_that_the_command_names(project: Project, python: Path, tmp_path: Path) -> None:
    stub(tmp_path / "first", "python3", "exit 1\n")
    project.job("alpha", program=json.dumps([f"{python}/bin/python3", "train.py", "alpha"]))
    assert found(project.run(PATH=f"{tmp_path}/first:/usr/bin:/bin").stdout)["alpha"][0] == "1.0"


def test_packages_are_for_the_python_that_the_command_names_with_its_version(project: Project, python: Path, tmp_path: Path) -> None:
    """Not for the system's python3 beside it."""
    stub(tmp_path / "own", "python3", "exit 1\n")
    stub(tmp_path / "own", "python3.99", f'exec {shlex.quote(str(python))}/bin/python3 "$@"\n')
    project.job("alpha", program=json.dumps([f"{tmp_path}/own/python3.99", "train.py", "alpha"]))
    assert found(project.run(PATH="/usr/bin:/bin").stdout)["alpha"][0] == "1.0"


def test_another_python_of_one_image_has_packages_of_its_own() -> None:
    def name(**job: Any) -> str:
        plan = plan_of(image="/images/a.sqsh", fingerprint="1", **job)
        return package_store._Build(plan, image_python.ImagePython(plan, str), {}, print)._digest()

    commands = ("train.py",), ("python3", "train.py"), ("/opt/one/bin/python", "train.py"), ("/opt/two/bin/python", "train.py")
    commands = (*commands, ("/opt/one/bin/python3.12", "train.py"))
    names = [name(command=command) for command in commands]
    names.append(name(command=("train.py",), env=(("PATH", "/opt/three/bin:/usr/bin"),)))
    assert names[0] == names[1] and len({*names}) == 5


def test_a_pip_of_letters_and_a_package_without_a_version_are_no_obstacle(project: Project, python: Path) -> None:
    (site,) = python.glob("lib/python3*/site-packages")
    name = site / "pip" / "__init__.py"
    text = name.read_text()
    broken = site / "broken.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\n")
    name.write_text(re.sub(r"__version__ = .*", '__version__ = "24.1b1"', text))
    project.job("alpha")
    try:
        assert found(project.run().stdout)["alpha"][0] == "1.0"
    finally:
        name.write_text(text)
        shutil.rmtree(broken)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "packages",
            "kit: `packages`: the image has put a link in the place of the packages\n  fix: take another image: this one reaches for files of yours\n",
        ),
        ("answer.json", "which does not start here"),
    ],
)
def test_a_link_that_the_image_leaves_leads_to_no_file_of_the_users(name: str, said: str, project: Project, python: Path) -> None:
    mine = project.folder / "mine"
    mine.mkdir()
    (mine / "id_rsa").write_text(json.dumps({"problem": "what is mine"}))
    target = mine if name == "packages" else mine / "id_rsa"
    (site,) = python.glob("lib/python3*/site-packages")
    custom = site / "sitecustomize.py"
    custom.write_text(
        "import atexit, os, sys\n"
        "def end():\n"
        f"    place = os.path.join(sys.argv[-1], {name!r})\n"
        "    if os.path.exists(os.path.join(sys.argv[-1], 'answer.json')) and sys.argv[0] == '-c':\n"
        "        os.path.lexists(place) and os.rename(place, place + '.old')\n"
        f"        os.symlink({str(target)!r}, place)\n"
        "atexit.register(end)\n"
    )
    project.job("alpha")
    try:
        done = project.run(check=False)
    finally:
        custom.unlink()
    assert done.returncode == 1 and said in done.stderr and "what is mine" not in done.stderr
    assert not list((project.folder / "images").glob("packages-*"))


def test_packages_are_not_listed_as_images(project: Project) -> None:
    project.job("alpha")
    project.run()
    assert "no images of kit build" in project.kit("images", cwd=project.folder).stdout
    assert json.loads(project.kit("images", "--json", cwd=project.folder).stdout) == []


def test_a_folder_where_nobody_may_write_is_named(project: Project) -> None:
    project.job("alpha")
    (project.folder / "images").write_text("a file\n")
    done = project.run(check=False)
    assert done.returncode == 1 and f"cannot write to {project.folder}/images" in done.stderr
    assert "or copy the project to a folder of your own" in done.stderr
