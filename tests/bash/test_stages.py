"""Copies of the image on a node's own disk: made once, whole or not at all, and checked."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit.base.quote import bash as quoted
from kit.config.image_files import fingerprint
from running import SCRIPTS, bash, environment, stub

# What run_script.sh does on a node, with what env.sh would hold in $1.
PREPARE = """
source "$1"
source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/image.sh"
source "${KIT_RUN_DIR}/stages/${KIT_STAGE}.sh"
stage::prepare
image::check
printf '%s\\n' "${KIT_IMAGE}"
"""


class Node:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.image = folder / "an image.sqsh"
        self.image.write_bytes(os.urandom(3_000_000))
        self.built = ""  # the sha256 that kit build noted
        self.images = folder / "scratch" / f"kit-{os.getuid()}" / "images"

    def copy(self) -> Path:
        return self.images / f"{fingerprint(self.image)}.sqsh"

    def command(self, before: str = "") -> list[str]:
        values = {
            "KIT_IMAGE": str(self.image),
            "KIT_STAGE": "local",
            "KIT_SCRATCH": str(self.folder / "scratch"),
            "KIT_FINGERPRINT": fingerprint(self.image) or "",
            "KIT_SUBMITTED_SHA256": self.built,
        }
        (self.folder / "env.sh").write_text("".join(f"{name}={quoted(value)}\n" for name, value in values.items()))
        return ["bash", "-c", f"set -euo pipefail\n{before}{PREPARE}", "bash", str(self.folder / "env.sh")]

    def environment(self) -> dict[str, str]:
        return environment(self.folder / "bin", KIT_RUN_DIR=str(SCRIPTS))

    def prepare(self, before: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(before), env=self.environment(), capture_output=True, text=True, timeout=120)

    def left(self) -> list[str]:
        return sorted(path.name for path in self.images.glob("*") if path.suffix != ".lock")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "scratch").mkdir()
    return Node(tmp_path)


def test_the_image_is_copied_once_and_the_copy_is_used(node: Node) -> None:
    first, second = node.prepare(), node.prepare()
    assert (first.returncode, first.stdout) == (0, f"{node.copy()}\n")
    assert first.stderr == f"kit: node7: copying {node.image} to {node.copy()}\n"
    assert (second.returncode, second.stdout, second.stderr) == (0, f"{node.copy()}\n", "")
    assert node.copy().read_bytes() == node.image.read_bytes()
    assert (node.images.parent.stat().st_mode & 0o777, node.copy().stat().st_mode & 0o777) == (0o700, 0o400)


def test_every_start_is_noted_as_the_copys_last_use(node: Node) -> None:
    """By that note `kit images gc` knows what nobody needs."""
    node.prepare()
    os.utime(node.copy(), (0, 0))
    before_s = time.time()
    assert node.prepare().returncode == 0
    assert node.copy().stat().st_mtime > before_s - 60


@pytest.mark.parametrize("left", [b"", b"\0" * 100])
def test_a_copy_that_a_crash_of_the_node_emptied_is_made_again(left: bytes, node: Node) -> None:
    node.prepare()
    node.copy().chmod(0o600)
    node.copy().write_bytes(left)
    assert node.prepare().returncode == 0
    assert node.copy().read_bytes() == node.image.read_bytes()


def test_32_concurrent_starts_copy_once(node: Node) -> None:
    command, env = node.command(), node.environment()
    starts = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(32)]
    ended = [(*start.communicate(timeout=120), start.returncode) for start in starts]
    assert {(out, code) for out, _, code in ended} == {(f"{node.copy()}\n", 0)}
    assert sum("copying" in err for _, err, _ in ended) == 1
    assert node.left() == [node.copy().name]


def test_a_rebuilt_image_gets_a_copy_of_its_own(node: Node) -> None:
    node.prepare()
    old = node.copy()
    node.image.write_bytes(os.urandom(3_000_000))
    assert node.prepare().stdout == f"{node.copy()}\n"
    assert node.left() == sorted([old.name, node.copy().name])


def test_what_a_killed_copy_left_is_replaced(node: Node) -> None:
    node.images.mkdir(parents=True)
    (node.images / f"{node.copy().name}.unfinished").write_text("half")
    assert node.prepare().returncode == 0
    assert node.left() == [node.copy().name]
    assert node.copy().read_bytes() == node.image.read_bytes()


def test_a_copy_that_the_disk_damages_is_not_kept(node: Node) -> None:
    # A disk that loses the end of what is written to it.
    tee = shutil.which("tee")
    stub(node.folder / "bin", "tee", f'{tee} "$@"\nif [[ "${{!#}}" == *.unfinished ]]; then truncate --size=1000 "${{!#}}"; fi\n')
    done = node.prepare()
    assert (done.returncode, done.stdout) == (1, "")
    assert "kit: error: node7: the copy of the image on this node's disk is damaged: sha256 " in done.stderr
    assert node.left() == []


@pytest.mark.parametrize("stage", ["local", "sbcast"])
def test_an_image_in_which_a_byte_was_changed_since_it_was_built_is_not_copied(stage: str, node: Node) -> None:
    node.built = hashlib.sha256(node.image.read_bytes()).hexdigest()
    with node.image.open("r+b") as file:
        file.seek(1_500_000)
        byte = file.read(1)[0]
        file.seek(1_500_000)
        file.write(bytes([255 - byte]))
    now = hashlib.sha256(node.image.read_bytes()).hexdigest()
    assert now != node.built
    if stage == "sbcast":
        shutil.copy(node.image, received(node))
    done = node.prepare() if stage == "local" else take(node)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(
        f"kit: error: node7: {node.image} is damaged: its sha256 is {now[:12]}, and was {node.built[:12]} at submission\n"
        "  fix: put a good one in its place (kit build), and submit again; its disk or its file server may be bad\n"
    )
    assert node.left() == [] and not received(node).exists()
    node.built = now
    if stage == "sbcast":
        shutil.copy(node.image, received(node))
    assert (node.prepare() if stage == "local" else take(node)).returncode == 0


def test_an_image_that_does_not_fit_is_refused_before_it_is_copied(node: Node) -> None:
    os.truncate(node.image, 1 << 43)
    done = node.prepare()
    assert done.returncode == 1
    assert done.stderr.startswith(f"kit: error: node7: {node.images} has ")
    assert done.stderr.endswith(f" MiB free; a copy of {node.image} needs 8388608\n  fix: free some, or name another scratch folder in the cluster's profile\n")
    assert node.left() == []


def test_a_copy_that_cannot_be_finished_leaves_nothing(node: Node) -> None:
    done = node.prepare("ulimit -f 100\n")
    assert done.returncode == 1
    assert done.stderr.endswith(f"kit: error: node7: cannot copy {node.image} to {node.images}\n  fix: see the line above; free there: df -h {node.images}\n")
    assert node.left() == []


def test_a_missing_image_is_reported(node: Node) -> None:
    command = node.command()
    node.image.unlink()
    done = subprocess.run(command, env=node.environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        f"kit: error: node7: the image {node.image} does not exist here or cannot be read\n  fix: put it on a file system that every node sees\n",
    )


@pytest.mark.parametrize("stage", ["local", "sbcast"])
def test_a_run_uses_the_copy_and_the_next_one_makes_none(stage: str, kit, tmp_path: Path) -> None:
    # Apptainer is a stub here: what counts is the file that it is given.
    (tmp_path / "scratch").mkdir()
    (tmp_path / "profile.yaml").write_text(f"scratch: {tmp_path}/scratch\n")
    (tmp_path / "program.sh").write_text("true\n")
    (tmp_path / "start-up.sh").write_text("echo Welcome\n")  # which is no answer of a node
    image = tmp_path / "image.sif"
    image.write_bytes(os.urandom(10_000))
    stub(
        tmp_path / "bin",
        "apptainer",
        'for word in "$@"; do case "${word}" in *.sif) printf "%s\\n" "${word}" >>images ;; bash) break ;; esac; shift; done\nexec "$@"\n',
    )
    path = os.pathsep.join([str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    arguments = [
        "run",
        "program.sh",
        "--nodes",
        "2",
        "--image",
        "image.sif",
        "--stage",
        stage,
        "--cluster",
        "profile.yaml",
        "--mount",
        f"{tmp_path}:{tmp_path}",
    ]
    (tmp_path / "job.yaml").write_text("command: [bash, program.sh]\nlauncher: srun\n")
    arguments[1] = "job.yaml"
    first, second = (kit(*arguments, "--output", name, PATH=path, BASH_ENV=str(tmp_path / "start-up.sh")) for name in ("first", "second"))
    copy = tmp_path / "scratch" / f"kit-{os.getuid()}" / "images" / f"{fingerprint(image)}.sif"
    for run in ("first", "second"):
        assert {word for file in (tmp_path / run).glob("images") for word in file.read_text().splitlines()} == {str(copy)}
    assert ("sending" in first.stdout, "copying" in first.stdout) == ((True, False) if stage == "sbcast" else (False, True))
    assert "sending" not in second.stdout and "copying" not in second.stdout
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == [f"kit-{os.getuid()}"]


def test_an_image_that_this_node_sees_differently_is_refused(node: Node) -> None:
    command = [word.replace("stage::prepare\n", "") for word in node.command()]
    node.image.write_bytes(b"replaced")
    done = subprocess.run(command, env=node.environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        f"kit: error: node7: {node.image} differs here from the image on the first node\n"
        "  fix: it was just replaced and this node has not noticed: submit again; or it is a copy on this node's own disk: copy it again\n",
    )


def test_an_image_that_cannot_be_read_to_its_end_has_one_reason(node: Node) -> None:
    script = 'for file in messages image; do source "${KIT_RUN_DIR}/lib/${file}.sh"; done; image::check'
    unreadable = {"KIT_IMAGE": "/proc/self/mem", "KIT_FINGERPRINT": "0"}  # a read of its beginning fails: EIO
    done = bash(script, env={**node.environment(), **unreadable})
    assert (done.returncode, done.stderr.splitlines()[1:]) == (
        1,
        [
            "kit: error: node7: the image /proc/self/mem cannot be read",
            "  fix: see the line above; try: head -c 1 '/proc/self/mem'",
        ],
    )


def test_a_copy_that_cannot_be_read_is_made_again_and_no_reason_to_end(node: Node) -> None:
    node.prepare()
    stub(
        node.folder / "bin",
        "head",
        f'[[ "${{!#}}" != *.sqsh || -e "{node.folder}/failed" ]] || {{ touch "{node.folder}/failed"; exit 1; }}\nexec /usr/bin/head "$@"\n',
    )
    done = node.prepare()
    assert (done.returncode, done.stdout) == (0, f"{node.copy()}\n")
    assert (node.folder / "failed").exists() and "kit: error" not in done.stderr, done.stderr


def received(node: Node) -> Path:
    """Where sbcast puts what it sends; on every node, of each job a copy."""
    node.images.mkdir(parents=True, exist_ok=True)  # as the step before has made it
    return node.images / f".{fingerprint(node.image)}.77.received"


def take(node: Node, digest: str = "") -> subprocess.CompletedProcess[str]:
    """A node's preparation after sbcast sent it the image."""
    node.command()
    command = ["bash", "-c", f"set -euo pipefail\n{PREPARE}", "bash", str(node.folder / "env.sh")]
    env_sh = node.folder / "env.sh"
    env_sh.write_text(env_sh.read_text().replace("KIT_STAGE=local", "KIT_STAGE=sbcast"))
    digest = digest or hashlib.sha256(node.image.read_bytes()).hexdigest()
    variables = {"SLURM_JOB_ID": "77", "KIT_IMAGE_SHA256": digest}
    return subprocess.run(command, env={**node.environment(), **variables}, capture_output=True, text=True, timeout=120)


def test_what_sbcast_sent_becomes_the_copy_and_nothing_of_it_stays(node: Node) -> None:
    shutil.copy(node.image, received(node))
    done = take(node)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{node.copy()}\n", "")
    assert not received(node).exists() and node.left() == [node.copy().name]
    assert node.copy().read_bytes() == node.image.read_bytes()
    # sbcast sends to all nodes, to those that have the image, too.
    shutil.copy(node.image, received(node))
    assert take(node).returncode == 0
    assert not received(node).exists() and node.left() == [node.copy().name]


def test_what_arrives_damaged_is_refused_and_what_does_not_arrive_is_said(node: Node) -> None:
    shutil.copy(node.image, received(node))
    done = take(node, "0" * 64)
    assert done.returncode == 1 and f"not {'0' * 12}\n  fix: submit again without this node" in done.stderr
    assert node.left() == []
    done = take(node)
    assert done.returncode == 1 and "kit: error: node7: sbcast sent no image to this node\n  fix: " in done.stderr


def test_a_node_answers_whether_it_has_the_image(node: Node) -> None:
    node.command()
    parts = "".join(f'source "${{KIT_RUN_DIR}}/{part}.sh"; ' for part in ("lib/messages", "lib/events", "stages/sbcast"))
    env = {**node.environment(), "SLURM_JOB_ID": "77"}
    for event in ("image_missing", "image_found"):
        done = bash(f'source "$1"; {parts}stage::missing', node.folder / "env.sh", env=env)
        answer = json.loads(done.stdout)
        assert (done.returncode, answer["event"], answer["node"]) == (0, event, "node7")
        node.prepare()


@pytest.mark.parametrize("stage", ["local", "sbcast"])
def test_a_copy_in_a_folder_of_somebody_else_is_not_started(stage: str, node: Node, tmp_path: Path) -> None:
    others = tmp_path / "others"
    (others / "images").mkdir(parents=True)
    node.images.parent.symlink_to(others)  # whoever may write to /tmp can put one there first
    node.command()
    (others / "images" / node.copy().name).write_bytes(b"planted")
    for words in (PREPARE, 'source "$1"; source "${KIT_RUN_DIR}/lib/messages.sh"; source "${KIT_RUN_DIR}/stages/sbcast.sh"; stage::missing'):
        env_sh = node.folder / "env.sh"
        env_sh.write_text(env_sh.read_text().replace("KIT_STAGE=local", f"KIT_STAGE={stage}"))
        variables = {"SLURM_JOB_ID": "77", "KIT_IMAGE_SHA256": ""}
        done = subprocess.run(
            ["bash", "-c", f"set -euo pipefail\n{words}", "bash", str(env_sh)],
            env={**node.environment(), **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 1 and f"{node.images.parent} belongs to somebody else\n  fix: " in done.stderr
