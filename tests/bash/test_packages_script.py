"""A job's Python packages on a node's own disk: unpacked once, whole or not at all, checked, and removed only when no job uses them."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from kit.base.quote import bash as quoted
from running import NOBODY, SCRIPTS, bash, environment, stub, until

PREPARE = """
source "$1"
source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/packages.sh"
packages::prepare
packages::choose_folder
printf '%s\\n' "${KIT_PACKAGES_FOLDER}"
"""
DAY_S = 86400


class Node:
    def __init__(self, folder: Path) -> None:
        self.folder, self.scratch = folder, folder / "the scratch"
        self.scratch.mkdir()
        source = folder / "packages"
        (source / "alpha").mkdir(parents=True)
        (source / "alpha" / "__init__.py").write_text("x" * 100_000)
        os.utime(source / "alpha" / "__init__.py", (time.time() - 40 * DAY_S,) * 2)
        self.archive = folder / "packages-it's.tar.gz"
        with tarfile.open(self.archive, "w:gz") as archive:
            archive.add(source / "alpha", "alpha")
        self.sha256 = hashlib.sha256(self.archive.read_bytes()).hexdigest()
        self.place = self.scratch / f"kit-{os.getuid()}" / "packages" / f"kit-{self.sha256[:16]}"
        self.env = environment(folder / "stubs", KIT_RUN_DIR=str(SCRIPTS))

    def values(self, size: int = 100_000, sha256: str = "") -> Path:
        values = {"KIT_SCRATCH": str(self.scratch), "KIT_PACKAGES": str(self.archive), "KIT_PACKAGES_SHA256": sha256 or self.sha256}
        lines = [f"{name}={quoted(value)}\n" for name, value in {**values, "KIT_PACKAGES_BYTES": str(size), "KIT_RUNTIME": "none"}.items()]
        (self.folder / "env.sh.new").write_text("".join(lines))
        return (self.folder / "env.sh.new").rename(self.folder / "env.sh")  # a start may read the last one meanwhile

    def prepare(self, **values: object) -> subprocess.CompletedProcess[str]:
        return bash(PREPARE, self.values(**values), env=self.env)  # type: ignore[arg-type]

    def start(self) -> subprocess.Popen[str]:
        command = ["bash", "-c", f"set -euo pipefail\n{PREPARE}", "bash", str(self.values())]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def slow_tar(self) -> Path:
        """A tar that unpacks, tells so, and goes on only when it is told to."""
        begun, told = self.folder / "begun", self.folder / "go"
        stub(self.folder / "stubs", "tar", f"/bin/tar \"$@\"\nprintf 'x' >>'{begun}'\nwhile [[ ! -e '{told}' ]]; do sleep 0.1; done\n")
        return begun

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.place.parent.iterdir() if not path.name.endswith(".lock"))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_they_are_unpacked_once_and_nobody_may_write_to_them(node: Node) -> None:
    done = node.prepare()
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{node.place}\n"
    assert (node.place / "alpha" / "__init__.py").stat().st_size == 100_000
    assert not [path for path in (node.place, *node.place.rglob("*")) if path.stat().st_mode & 0o222]
    before = node.place.stat().st_ino
    os.utime(node.place / ".kit-used", (0, 0))
    node.archive.unlink()
    again = node.prepare()
    assert again.returncode == 0, again.stderr
    assert node.place.stat().st_ino == before and (node.place / ".kit-used").stat().st_mtime > 1e9, "`kit images gc` goes by it"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_those_in_a_folder_that_somebody_else_prepared_are_not_used(node: Node) -> None:
    node.prepare()
    mine = node.place.parent.parent
    os.chown(mine, NOBODY, NOBODY)
    done = node.prepare()
    assert done.returncode == 1 and done.stderr.startswith(f"kit: error: node7: {mine} belongs to somebody else\n  fix: "), done.stderr
    mine.rename(node.folder / "theirs")
    os.chown(node.folder / "theirs", 0, 0)
    mine.symlink_to(node.folder / "theirs")
    assert f"{mine} belongs to somebody else" in node.prepare().stderr


def test_a_start_that_was_killed_in_the_middle_leaves_nothing_that_another_uses(node: Node) -> None:
    begun = node.slow_tar()
    killed = node.start()
    until(begun.exists)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert node.left == [f".{node.place.name}.unfinished"]
    (node.folder / "stubs" / "tar").unlink()
    done = node.prepare()
    assert done.returncode == 0, done.stderr
    assert node.left == [node.place.name]


def test_one_that_a_cleaner_of_tmp_robbed_is_unpacked_again(node: Node) -> None:
    node.prepare()
    node.place.chmod(0o755)
    (node.place / ".kit-complete").unlink()
    (node.place / "alpha").chmod(0o755)
    (node.place / "alpha" / "__init__.py").unlink()
    node.place.chmod(0o555)
    done = node.prepare()
    assert done.returncode == 0, done.stderr
    assert (node.place / "alpha" / "__init__.py").exists()


def test_one_that_a_cleaner_robbed_which_goes_by_when_files_were_written_is_unpacked_again(node: Node) -> None:
    """The files have the dates that they have in the archive."""
    alpha = node.place / "alpha/__init__.py"
    node.prepare()
    bash('chmod -R u+w "$1" && find "$1" -type f -mtime +30 -delete', node.place, env=node.env, check=True)
    assert not alpha.exists() and (node.place / ".kit-used").exists()
    done = node.prepare()
    assert done.returncode == 0, done.stderr
    assert alpha.exists() and (node.place / ".kit-complete").stat().st_atime > 1e9, "others go by when they were read"


def test_a_job_that_uses_a_robbed_one_keeps_what_is_left_of_it(node: Node) -> None:
    for _ in range(2):  # the second start finds the folder that the first one moved aside
        node.prepare()
        node.place.chmod(0o755)
        (node.place / ".kit-complete").unlink()
        node.place.chmod(0o555)
    mounted = os.open(node.place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        done = node.prepare()
        assert done.returncode == 0, done.stderr
        assert os.stat("alpha/__init__.py", dir_fd=mounted).st_size == 100_000
    finally:
        os.close(mounted)
    assert node.left == [f".{node.place.name}.stale", node.place.name]


def test_two_at_once_unpack_once(node: Node) -> None:
    begun = node.slow_tar()
    both = [node.start(), node.start()]
    until(begun.exists)
    time.sleep(1)
    (node.folder / "go").touch()
    said = [each.communicate(timeout=120) for each in both]
    assert [each.returncode for each in both] == [0, 0], said
    assert begun.read_text() == "x"
    assert node.left == [node.place.name]


@pytest.mark.parametrize(
    "fault, problem",
    [
        ({"size": 1 << 60}, "unpacked, needs 1099511627776"),
        ({"sha256": "0" * 64}, "was replaced after submission: its sha256 is "),
        ({"gone": True}, "do not exist here or cannot be read"),
        ({"tar": "exit 1\n"}, "cannot unpack "),
    ],
)
def test_what_cannot_be_unpacked_is_named_and_leaves_nothing(fault: dict[str, object], problem: str, node: Node) -> None:
    if fault.pop("gone", None):
        node.archive.unlink()
    if body := fault.pop("tar", ""):
        stub(node.folder / "stubs", "tar", str(body))
    done = node.prepare(**fault)
    assert done.returncode == 1
    assert problem in done.stderr and "\n  fix: " in done.stderr
    assert node.left == []


@pytest.mark.parametrize(("name", "is_told"), [("alpha.cpython-312.so", True), ("alpha.sortable.js", False)])
def test_compiled_modules_on_a_disk_from_which_no_code_can_be_loaded_are_told_of(name: str, is_told: bool, node: Node) -> None:
    (node.folder / "packages/alpha" / name).touch()
    with tarfile.open(node.archive, "w:gz") as archive:
        archive.add(node.folder / "packages/alpha", "alpha")
    values = node.values(sha256=hashlib.sha256(node.archive.read_bytes()).hexdigest())
    script = f'mount -t tmpfs -o noexec none "$2"\n{PREPARE}'
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "bash", "-c", f"set -euo pipefail\n{script}", "bash", str(values), str(node.scratch)],
        env=node.env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert ("is mounted noexec, so alpha/alpha.cpython-312.so cannot be loaded from there\n  fix: " in done.stderr) == is_told, done.stderr


@pytest.mark.parametrize(
    ("machine", "modules", "foreign"),
    [
        ("aarch64", ["x86_64"], "x86_64"),
        ("x86_64", ["aarch64"], "aarch64"),
        ("x86_64", ["x86_64"], ""),
        ("aarch64", ["x86_64", "aarch64"], ""),
        ("ppc64le", ["powerpc64le"], ""),  # Python's name for it is another than uname's
    ],
)
def test_packages_for_another_kind_of_cpu_are_told_of_before_a_rank_misses_a_module(machine: str, modules: list[str], foreign: str, node: Node) -> None:
    for name in modules:
        (node.folder / f"packages/alpha/beta.cpython-312-{name}-linux-gnu.so").touch()
    with tarfile.open(node.archive, "w:gz") as archive:
        archive.add(node.folder / "packages/alpha", "alpha")
    stub(node.folder / "stubs", "uname", f"echo {machine}\n")
    done = node.prepare(sha256=hashlib.sha256(node.archive.read_bytes()).hexdigest())
    if not foreign:
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode == 1 and node.left == []
    found = f"this node's is {machine}, and alpha/beta.cpython-312-{foreign}-linux-gnu.so is for {foreign}\n  fix: submit from a machine like the nodes; "
    assert f"the packages are for machines with another CPU: {found}" in done.stderr


def test_old_ones_are_removed_unless_a_process_has_them_on_its_path(kit, node: Node) -> None:
    node.prepare()
    old_s = time.time() - 8 * DAY_S
    os.utime(node.place / ".kit-used", (old_s, old_s))
    (node.folder / "site.yaml").write_text(f"scratch: {str(node.scratch)!r}\n")
    process = subprocess.Popen(["sleep", "300"], env={"PATH": os.environ["PATH"], "PYTHONPATH": str(node.place)})
    try:
        kit("images", "gc", "--cluster", "site.yaml", "--yes", cwd=node.folder)
        assert node.left == [node.place.name]
    finally:
        process.kill()
        process.wait()
    kit("images", "gc", "--cluster", "site.yaml", "--yes", cwd=node.folder)
    assert node.left == []


@pytest.mark.parametrize(("path", "found"), [("/mine", "/mine:/opt/kit-packages/bin"), ("/opt/kit-packages/bin:/usr/bin", "/opt/kit-packages/bin:/usr/bin")])
def test_their_programs_stay_on_a_path_of_the_jobs_own(path: str, found: str) -> None:
    lines = (
        'source "${KIT_RUN_DIR}/lib/packages.sh"\nKIT_PACKAGES_FOLDER=/opt/kit-packages PATH="$1" PYTHONPATH=""\npackages::add; echo "${PATH} ${PYTHONPATH}"\n'
    )
    assert bash(lines, path, env=environment(KIT_RUN_DIR=str(SCRIPTS))).stdout == f"{found} /opt/kit-packages\n"
