"""Containers under Enroot: made once, whole or not at all, and started as the job says.

Enroot itself is tests/bash/stubs/enroot here, which has the real one's weaknesses; tests/cluster runs the real one.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Optional

import pytest
from kit.base.quote import bash as quoted
from kit.base.quote import bash_array
from kit.config.image_files import fingerprint
from running import BASICS, NOBODY, SCRIPTS, STUBS, TAG, as_ordinary_user, bash, environment, processes, stub, until

# Its entrypoint ends well, and starts nothing.
IMAGE = "hsqs\netc/environment PATH=/image/bin:/usr/bin:/bin\netc/environment BUILD=1\netc/os-release NAME=one two\netc/rc exit 0\nusr/lib/x data\n"
FILES = {
    "etc/environment": "PATH=/image/bin:/usr/bin:/bin\nBUILD=1\n",
    "etc/os-release": "NAME=one two\n",
    "etc/rc": 'exec "$@"\n',
    "usr/lib/x": "data\n",
}

# What run_script.sh does on a node, with what env.sh would hold in $1.
START = f"""
{BASICS}
source "$1" && shift
source "${{KIT_RUN_DIR}}/runtimes/enroot.sh"
[[ -z "${{MISSING+set}}" ]] || mounted_image::missing() {{ printf '%s' "${{MISSING}}"; }} # what this machine lacks, for a test
runtime::check
runtime::prepare
if (($#)); then runtime::exec "$@"; fi
"""


class Node:
    """A folder that is a node's: an image, its scratch, and the calls that the stub of Enroot got."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.image = folder / "image.sqsh"
        self.image.write_text(IMAGE)
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.named_scratch = str(self.scratch)
        self.data = self.scratch / f"kit-{os.getuid()}" / "enroot" / "data"
        self.calls = folder / "calls"
        self.mounts: list[str] = []
        self.remap_root = ""
        self.unpack = "yes"

    def name(self) -> str:
        return f"kit-{fingerprint(self.image)}"

    def mounted(self) -> Path:
        """What the node keeps of a mount that worked."""
        return self.data.parent.parent / "mounted"

    def command(self, *words: str) -> list[str]:
        values = {"KIT_IMAGE": str(self.image), "KIT_SCRATCH": self.named_scratch, "KIT_REMAP_ROOT": self.remap_root, "KIT_UNPACK": self.unpack}
        values["KIT_FINGERPRINT"] = fingerprint(self.image) or ""
        text = "".join(f"{name}={quoted(value)}\n" for name, value in values.items()) + f"KIT_MOUNTS={bash_array(self.mounts)}\n"
        env_sh = self.folder / "env.sh"
        if not env_sh.exists() or env_sh.read_text() != text:  # a start before this one may be reading it
            env_sh.write_text(text)
        return ["bash", "-c", f"set -euo pipefail\n{START}", "bash", str(env_sh), *words]

    def environment(self, *folders: Path, **variables: str) -> dict[str, str]:
        return environment(*folders, STUBS, KIT_RUN_DIR=str(SCRIPTS), ENROOT_STUB_CALLS=str(self.calls), **variables)

    def start(self, *words: str, folders: tuple[Path, ...] = (), timeout_s: float = 60, **variables: str) -> subprocess.CompletedProcess[str]:
        """Prepares the container, and runs `words` in it if there are any."""
        return subprocess.run(self.command(*words), env=self.environment(*folders, **variables), capture_output=True, text=True, timeout=timeout_s)

    def spawn(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*words),
            env=self.environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def creations(self) -> int:
        return sum(line.startswith("create ") for line in self.calls.read_text().splitlines()) if self.calls.exists() else 0

    def containers(self) -> dict[str, dict[str, str]]:
        """Folders in ENROOT_DATA_PATH, those with a dot included: what is in each but the stamp."""
        return {path.name: files(path) for path in self.data.iterdir() if path.is_dir()}


def files(rootfs: Path) -> dict[str, str]:
    found = {str(path.relative_to(rootfs)): path.read_text() for path in sorted(rootfs.rglob("*")) if path.is_file()}
    return {name: text for name, text in found.items() if not name.startswith(".kit-")}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_stub_says_that_it_is_one(node: Node) -> None:
    assert bash("enroot version", env=node.environment()).stdout == "stub 4.1.2\n"
    created = bash('enroot create --name x "$1"', node.image, env=node.environment(ENROOT_DATA_PATH=str(node.folder)))
    assert created.stderr == f"enroot stub: create x from {node.image}\n"


def test_a_container_is_created_once_and_reused(node: Node) -> None:
    first = node.start()
    assert (first.returncode, first.stdout, first.stderr) == (0, "", f"kit: node7: creating the container {node.name()} from {node.image}\n")
    second = node.start()
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert node.creations() == 1
    assert node.containers() == {node.name(): FILES}


def test_a_container_is_created_once_by_32_concurrent_starts(node: Node) -> None:
    starts = [node.spawn("cat", f"{node.data}/{node.name()}/usr/lib/x", ENROOT_STUB_DELAY_S="0.1") for _ in range(32)]
    ended = [(*start.communicate(timeout=120), start.returncode) for start in starts]
    assert [(out, code) for out, _, code in ended] == [("data\n", 0)] * 32
    assert node.creations() == 1
    assert node.containers() == {node.name(): FILES}


def _kill_half_way(node: Node, group: bool, **variables: str) -> Path:
    """Returns a file: whoever unpacks goes on when that is gone."""
    held = node.folder / "held"
    held.touch()
    start = node.spawn(ENROOT_STUB_HELD=str(held), **variables)
    until(lambda: list(node.data.glob(".*/etc/environment")))
    (os.killpg if group else os.kill)(start.pid, signal.SIGKILL)
    start.wait()
    return held


def test_what_a_killed_start_left_is_never_used(node: Node, tag: str) -> None:
    _kill_half_way(node, group=True, **{TAG: tag})
    until(lambda: not processes(tag))
    assert node.name() not in node.containers()
    assert node.containers() != {}, "it was killed too early or too late to show anything"
    done = node.start()
    assert done.returncode == 0, done.stderr
    assert node.containers() == {node.name(): FILES}
    assert node.creations() == 2


def test_a_start_waits_for_an_enroot_whose_own_start_was_killed(node: Node, tag: str) -> None:
    # The killed shell's enroot still unpacks into the folder under the temporary name, and holds the lock.
    held = _kill_half_way(node, group=False, ENROOT_STUB_DELAY_S="0.3", **{TAG: tag})
    assert processes(tag), "enroot ended with the shell that started it"
    held.unlink()
    done = node.start()
    assert not processes(tag), "two unpack into one folder"
    assert done.returncode == 0, done.stderr
    assert node.containers() == {node.name(): FILES}


def test_a_folder_without_a_stamp_under_the_containers_name_is_replaced(node: Node) -> None:
    (node.data / node.name() / "etc").mkdir(parents=True)
    (node.data / node.name() / "etc" / "half-made").write_text("x")
    assert node.start().returncode == 0
    # The old one is only moved aside: a job may be running in a container that lost its stamp.
    assert node.containers() == {node.name(): FILES, f".{node.name()}.stale": {"etc/half-made": "x"}}


def test_what_a_killed_start_left_and_nobody_can_remove_is_named(node: Node, tmp_path: Path) -> None:
    left = node.data / f".{node.name()}.unfinished"
    node.data.mkdir(parents=True, exist_ok=True)
    left.symlink_to(tmp_path)  # kit removes no links
    done = node.start()
    assert (done.returncode, done.stderr) == (1, f"kit: error: node7: cannot remove {left}\n  fix: look what is in it, and remove it by hand\n")


def test_a_rebuilt_image_gets_a_container_of_its_own_and_the_old_one_stays(node: Node) -> None:
    old = node.name()
    assert node.start().returncode == 0
    node.image.write_text(IMAGE.replace("one", "new"))
    assert node.name() != old
    assert node.start("cat", f"{node.data}/{node.name()}/etc/os-release").stdout == "NAME=new two\n"
    assert node.containers() == {old: FILES, node.name(): {**FILES, "etc/os-release": "NAME=new two\n"}}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "Invalid image format: {image}"),
        ("<html>404</html>\n", "Invalid image format: {image}"),
        ("hsqs\netc/x 1\n! etc/y\netc/z 1\n", "FATAL ERROR: writer: failed to read/uncompress file {data}/.{name}.unfinished/etc/y"),
    ],
    ids=["empty", "not an image", "damaged in the middle"],
)
def test_a_corrupt_image_is_reported_and_leaves_nothing(node: Node, content: str, reason: str) -> None:
    node.image.write_text(content)
    done = node.start("true")
    assert done.returncode == 1
    reason = reason.format(image=node.image, data=node.data, name=node.name())
    assert done.stderr == (
        f"kit: node7: creating the container {node.name()} from {node.image}\n"
        f"enroot stub: create .{node.name()}.unfinished from {node.image}\n"
        f"enroot stub: [ERROR] {reason}\n"
        f"kit: error: node7: enroot cannot unpack {node.image}\n"
        f"  fix: see the lines above, and build or copy the image again\n"
    )
    assert node.containers() == {}
    node.image.write_text(IMAGE)
    assert node.start().returncode == 0


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("Write on output file failed because No space left on device\nFATAL ERROR: writer: failed to write file /x", "disk-full"),
        ("create_inode: failed to write file /x, because Disk quota exceeded", "disk-full"),
        ("[ERROR] Invalid image format: /x", "image-damaged"),
        ("gzip uncompress failed with error code -3\nFATAL ERROR: writer: failed to read/uncompress file /x", "image-damaged"),
        ("FATAL ERROR: Can't find a valid SQUASHFS superblock on /x", "image-damaged"),
        ("FATAL ERROR: File system corruption detected", "image-damaged"),
        ("enroot-nsenter: failed to create user namespace: Operation not permitted", "refused"),
    ],
)
def test_what_enroot_says_tells_a_full_disk_from_a_damaged_image_and_from_what_kit_does_not_know(words: str, cause: str, node: Node) -> None:
    stub(node.folder / "bin", "enroot", f'[[ "$1" != create ]] || {{ printf "%s\\n" {quoted(words)} >&2; exit 1; }}\n')
    events = node.folder / "events.jsonl"
    done = node.start(folders=(node.folder / "bin",), KIT_EVENTS=str(events))
    assert done.returncode == 1
    assert f'"event": "node_refused", "node": "node7", "cause": "{cause}", ' in events.read_text()
    free = rf"; free in {node.data}: [\d.]+[KMGT]?(, and [\d.]+[KMGT]? more files)?; `scratch` in the profile names another disk\n"
    fixes = {
        "disk-full": rf"  fix: `kit images gc --nodes` .*{free}",
        "image-damaged": r"  fix: .* build or copy the image again\n",
        "refused": "  fix: see the lines above\n",
    }
    assert re.search(fixes[cause], done.stderr)


def test_no_other_scratch_is_proposed_where_the_containers_are_not_there(node: Node) -> None:
    stub(node.folder / "bin", "enroot", '[[ "$1" != create ]] || { echo "No space left on device" >&2; exit 1; }\n')
    node.data = node.folder / "raid"
    done = node.start(folders=(node.folder / "bin",), ENROOT_DATA_PATH=str(node.data))
    assert f"; free in {node.data}: " in done.stderr and "`scratch`" not in done.stderr


def test_a_missing_image_is_reported(node: Node) -> None:
    node.image.unlink()
    done = node.start()
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        f"kit: error: node7: the image {node.image} does not exist here or cannot be read\n  fix: put it on a file system that every node sees\n",
    )


def test_a_missing_enroot_is_reported(node: Node) -> None:
    (node.folder / "bin").mkdir()
    for tool in ("bash", "tee"):
        (node.folder / "bin" / tool).symlink_to(str(shutil.which(tool)))
    done = subprocess.run(node.command(), env={**node.environment(), "PATH": str(node.folder / "bin")}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        "kit: error: node7: enroot is not installed here\n  fix: install it on every node, or choose another runtime (apptainer runs .sqsh files, too)\n",
    )


def test_scratch_that_is_no_folder_is_reported(node: Node) -> None:
    node.scratch.rmdir()
    node.scratch.touch()
    done = node.start()
    assert done.returncode == 1
    assert done.stderr.endswith(
        f"kit: error: node7: cannot write below {node.scratch}\n  fix: name a writable node-local folder: `scratch: /local` in the cluster's profile\n"
    )


@pytest.fixture
def open_node(open_folder: Path) -> Node:
    """A node whose folder an ordinary user can reach, with the scripts, which may lie in root's home."""
    shutil.copytree(SCRIPTS, open_folder / "scripts")
    shutil.copytree(STUBS, open_folder / "stubs")
    return Node(open_folder)


def _start_as_ordinary_user(node: Node) -> subprocess.CompletedProcess[str]:
    env = environment(node.folder / "stubs", KIT_RUN_DIR=str(node.folder / "scripts"))
    return subprocess.run([*as_ordinary_user(), *node.command()], env=env, capture_output=True, text=True, cwd="/")


def test_an_image_that_may_not_be_read_is_reported(open_node: Node) -> None:
    open_node.image.chmod(0)
    done = _start_as_ordinary_user(open_node)
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        f"kit: error: node7: the image {open_node.image} does not exist here or cannot be read\n  fix: put it on a file system that every node sees\n",
    )


def test_scratch_that_may_not_be_written_is_reported(open_node: Node) -> None:
    open_node.scratch.chmod(0o555)
    done = _start_as_ordinary_user(open_node)
    assert done.returncode == 1
    assert done.stderr.endswith(
        f"kit: error: node7: cannot write below {open_node.scratch}\n  fix: name a writable node-local folder: `scratch: /local` in the cluster's profile\n"
    )


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("whose", ["scratch", "containers"])
def test_a_folder_that_somebody_else_prepared_is_refused(node: Node, whose: str) -> None:
    node.data.mkdir(parents=True)
    os.chown(node.data if whose == "containers" else node.scratch / "kit-0", NOBODY, NOBODY)
    done = node.start()
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        f"kit: error: node7: {node.data if whose == 'containers' else node.scratch / 'kit-0'} belongs to somebody else\n"
        "  fix: have it removed, or name another scratch folder in the cluster's profile\n",
    )
    assert node.containers() == {}


def test_a_link_in_place_of_the_scratch_folder_is_refused(node: Node) -> None:
    (node.folder / "elsewhere").mkdir()
    (node.scratch / f"kit-{os.getuid()}").symlink_to(node.folder / "elsewhere")
    done = node.start()
    assert done.returncode == 1
    assert done.stderr.startswith(f"kit: error: node7: {node.scratch}/kit-{os.getuid()} belongs to somebody else\n")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a link away")
def test_a_link_in_place_of_the_containers_folder_is_followed_unless_somebody_else_made_it(node: Node) -> None:
    """They could turn it to what they have prepared, when kit has looked."""
    own, link = node.folder / "own", node.folder / "link"
    own.mkdir()
    link.symlink_to(own)
    site = 'source "${KIT_RUN_DIR}/lib/enroot.sh" && enroot::site_data_path'
    env = node.environment(ENROOT_STUB_SITE=str(link), HOME=str(node.folder / "home"))
    assert node.start(ENROOT_DATA_PATH=str(link)).returncode == 0
    assert bash(site, env=env).stdout == f"{link}\n"
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    for path in (link, f"{link}/"):
        done = node.start(ENROOT_DATA_PATH=str(path))
        assert done.returncode == 1 and done.stderr.startswith(f"kit: error: node7: {path} belongs to somebody else\n"), done.stderr
    assert bash(site, env=env).stdout == ""


def test_links_of_an_image_in_the_place_of_kits_own_files_lead_to_no_file_of_the_host(tmp_path: Path) -> None:
    rootfs, thesis = tmp_path / "rootfs", tmp_path / "thesis.tex"
    rootfs.mkdir()
    thesis.write_text("years of work\n")
    os.utime(thesis, (0, 0))
    script = 'source "${KIT_RUN_DIR}/lib/kept_container.sh"; kept_container::"$2" "$1" "${@:3}"'
    for name in (".kit-used", ".kit-complete"):
        (rootfs / name).symlink_to(thesis)
    bash(script, rootfs, "stamp", "image x", env=environment(KIT_RUN_DIR=str(SCRIPTS)), check=True)
    assert (rootfs / ".kit-complete").read_text() == "image x\n" and (rootfs / ".kit-used").read_text() == ""
    (rootfs / ".kit-used").unlink()
    (rootfs / ".kit-used").symlink_to(thesis)  # by a program of the job
    bash(script, rootfs, "use", env=environment(KIT_RUN_DIR=str(SCRIPTS)), check=True)
    assert (thesis.read_text(), thesis.stat().st_mtime) == ("years of work\n", 0)


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "gpfs", "panfs", "ceph", "fuse.ceph-fuse", "cifs", "smb3", "afs", "beegfs", "wekafs", "virtiofs"])
def test_containers_on_a_network_file_system_are_refused(node: Node, kind: str) -> None:
    stub(node.folder / "bin", "df", f'if [[ "$1" == --output=fstype ]]; then printf "Type\\n{kind}\\n"; else exec {shutil.which("df")} "$@"; fi\n')
    shared = node.folder / "home" / "enroot"
    done = node.start(folders=(node.folder / "bin",), ENROOT_DATA_PATH=str(shared))
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        f"kit: error: node7: {shared} is on a network file system\n  fix: name node-local scratch in the cluster's profile, or unset ENROOT_DATA_PATH\n",
    )


@pytest.mark.parametrize("scratch", [True, False], ids=["scratch in the profile", "no scratch in the profile"])
def test_containers_are_where_the_user_says(node: Node, scratch: bool) -> None:
    node.named_scratch = str(node.scratch) if scratch else ""
    node.data = node.folder / "raid"
    assert node.start(ENROOT_DATA_PATH=str(node.data), ENROOT_STUB_SITE=str(node.folder / "site")).returncode == 0
    assert node.containers() == {node.name(): FILES}


def test_containers_are_where_the_cluster_profile_says_before_the_sites_enroot_conf(node: Node) -> None:
    assert node.start(ENROOT_STUB_SITE=str(node.folder / "site")).returncode == 0
    assert node.containers() == {node.name(): FILES}


@pytest.mark.parametrize("old", ["", "yes"])
def test_containers_are_where_the_sites_enroot_conf_says(old: str, node: Node) -> None:
    node.named_scratch, node.data = "", node.folder / "site"
    assert node.start(ENROOT_STUB_SITE=str(node.data), HOME=str(node.folder / "home"), ENROOT_STUB_OLD=old).returncode == 0
    assert node.containers() == {node.name(): FILES}


@pytest.mark.parametrize(("place", "code"), [("site", 0), ("home/ada/enroot", 1)])
def test_the_sites_place_is_not_used_in_a_home_folder(node: Node, place: str, code: int) -> None:
    env = node.environment(ENROOT_STUB_SITE=str(node.folder / place), HOME=str(node.folder / "home/ada"), ENROOT_DATA_PATH="/nowhere")
    found = bash('source "${KIT_RUN_DIR}/lib/enroot.sh" && enroot::site_data_path', env=env)
    assert (found.returncode, found.stdout, found.stderr) == (code, "" if code else f"{node.folder / place}\n", "")


def test_a_container_from_before_the_sites_enroot_conf_named_a_place_is_used_further(node: Node) -> None:
    """Where its start looks for it, too."""
    script = """
    source "${KIT_RUN_DIR}/runtimes/enroot.sh"
    KIT_SCRATCH='' OWN="$1/own" SITE="$1/site"
    enroot::has_own() { [[ "$1" == old ]]; }
    enroot::site_data_path() { printf '%s' "${SITE}"; }
    enroot::set_paths() { ENROOT_DATA_PATH="${OWN}" ENROOT_RUNTIME_PATH="${OWN}" ENROOT_CACHE_PATH="${OWN}" ENROOT_TEMP_PATH="${OWN}"; }
    for name in old new; do
      (enroot::choose_paths "${name}" && echo "${ENROOT_DATA_PATH}")
    done
    """
    assert bash(script, node.folder, env=node.environment()).stdout == f"{node.folder}/own\n{node.folder}/site\n"


def test_the_sites_place_is_not_used_where_it_is_somebody_elses(node: Node) -> None:
    """In a folder of all users one of them could prepare what another one starts."""
    site = node.folder / "site"
    site.mkdir(mode=0o777)
    if os.getuid() == 0:
        os.chown(site, NOBODY, NOBODY)
    else:
        site = Path("/tmp")  # root's, and everybody may write there
    env = node.environment(ENROOT_STUB_SITE=str(site), HOME=str(node.folder / "home"))
    found = bash('source "${KIT_RUN_DIR}/lib/enroot.sh" && enroot::site_data_path', env=env)
    assert (found.returncode, found.stdout, found.stderr) == (1, "", "")


def test_a_start_with_a_ready_container_takes_no_lock(node: Node) -> None:
    assert node.start().returncode == 0
    with (node.data / f".{node.name()}.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert node.start("true", timeout_s=120).returncode == 0


def test_every_start_is_noted_as_the_containers_last_use(node: Node) -> None:
    """By that note `kit images gc` knows what nobody needs. The stamp ages with the files that nobody reads, and goes with them."""
    assert node.start().returncode == 0
    rootfs = node.data / node.name()
    for name in (".kit-used", ".kit-complete"):
        os.utime(rootfs / name, (0, 0))
    before_s = time.time()
    assert node.start().returncode == 0
    assert (rootfs / ".kit-used").stat().st_mtime > before_s - 60
    assert (rootfs / ".kit-complete").stat().st_mtime == (rootfs / ".kit-complete").stat().st_atime == 0


def test_a_container_that_a_crash_of_the_node_emptied_is_made_again(node: Node) -> None:
    """The names of its files had reached the disk, but not their content."""
    assert node.start().returncode == 0
    rootfs = node.data / node.name()
    before = files(rootfs)
    for path in rootfs.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.write_bytes(b"")
    assert node.start().returncode == 0
    assert files(rootfs) == before and node.creations() == 2


def test_folders_below_which_this_run_mounts_something_are_opened(open_folder: Path) -> None:
    """Enroot makes what it mounts on without any permission. The caches are mounted only where the ranks start."""
    outside = open_folder / "outside"
    outside.mkdir(mode=0o000)
    rootfs = open_folder / "rootfs"
    for name in ("local", "data", "kept"):
        (rootfs / name).mkdir(parents=True)
        (rootfs / name).chmod(0o000)
    (rootfs / "link").symlink_to(outside)
    if as_ordinary_user():
        subprocess.run(["chown", "-R", "--no-dereference", f"{NOBODY}:{NOBODY}", str(rootfs), str(outside)], check=True)
    script = """
    for name in messages enroot; do source "${KIT_RUN_DIR}/lib/${name}.sh"; done
    KIT_MOUNTS=(/x /data/set ro /x /link/set ro /x /kept rw) KIT_CACHE=node KIT_CACHE_ROOT=/local/kit-1/cache
    enroot::open_folders "$1"
    """
    command = ["bash", "-euc", script, "bash", str(rootfs)]
    subprocess.run([*as_ordinary_user(), *command], env=environment(KIT_RUN_DIR=str(SCRIPTS)), check=True)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (rootfs / "local", rootfs / "data", rootfs / "kept", outside)}
    assert modes == {"local": 0o755, "data": 0o755, "kept": 0, "outside": 0}


def test_a_start_that_waited_for_the_lock_uses_what_was_made_meanwhile(node: Node) -> None:
    node.data.mkdir(parents=True)
    with (node.data / f".{node.name()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        start = node.spawn("echo", "started")
        time.sleep(1)
        assert start.poll() is None, "it did not wait"
        rootfs = node.data / node.name()
        (rootfs / "etc").mkdir(parents=True)
        (rootfs / ".kit-complete").write_text("image\n")
    assert (*start.communicate(timeout=120), start.returncode)[::2] == ("started\n", 0)
    assert node.creations() == 0


def test_a_start_waits_for_another_ones_container_as_long_as_the_nodes_have_to_be_ready(node: Node) -> None:
    node.data.mkdir(parents=True)
    file = node.data / f".{node.name()}.lock"
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = node.start(KIT_READY_TIMEOUT_S="2", timeout_s=20)
    assert (done.returncode, done.stderr) == (
        1,
        f"kit: error: node7: another job has been creating {node.name()} for 1 s\n  fix: look for it: fuser {file}; to wait longer: `ready_timeout_s`\n",
    )


def test_the_container_gets_the_images_environment_and_nothing_of_the_hosts(node: Node) -> None:
    done = node.start("env", HOME="/home/ada", SECRET="x", SLURM_JOB_ID="1")
    assert done.returncode == 0
    lines = [line for line in done.stdout.splitlines() if not re.match(r"(PWD|OLDPWD|SHLVL|_)=", line)]  # those are of the shell of /etc/rc
    assert sorted(lines) == ["BUILD=1", "PATH=/image/bin:/usr/bin:/bin"]


def test_mounts_gpus_and_the_remapped_root_reach_enroot(open_folder: Path) -> None:
    node = Node(open_folder)  # Enroot mounts no path with a space
    (node.folder / "data").mkdir()
    node.mounts = [str(node.folder / "data"), "/data", "ro", str(node.folder), "/project", "rw"]
    node.remap_root = "yes"
    assert node.start().returncode == 0
    done = node.start("true", NVIDIA_VISIBLE_DEVICES="all")
    gpus = "all, capabilities compute,utility" if Path("/dev/nvidiactl").exists() else "void, capabilities unset"
    assert done.stderr.splitlines() == [
        f"enroot stub: mount {node.folder}/data:/data:none:x-create=auto,rbind,ro (not done)",
        f"enroot stub: mount {node.folder}:/project:none:x-create=auto,rbind,rw (not done)",
        "enroot stub: start as root (not done)",
        f"enroot stub: start with GPUs {gpus}, no isolation",
    ]


@pytest.mark.parametrize(("program", "signalled", "code"), [("exit 7", None, 7), ("exec sleep 60", signal.SIGTERM, -signal.SIGTERM)])
def test_the_command_replaces_the_process(node: Node, program: str, signalled: Optional[signal.Signals], code: int) -> None:
    start = node.spawn("bash", "-c", f"echo $$; {program}")
    assert start.stdout is not None
    assert int(start.stdout.readline()) == start.pid
    if signalled:
        start.send_signal(signalled)
    start.communicate(timeout=120)
    assert start.returncode == code


def test_a_program_can_act_on_a_signal(node: Node) -> None:
    start = node.spawn("bash", "-c", 'trap "echo checkpoint; exit 3" TERM; echo up; while :; do sleep 0.05; done')
    assert start.stdout is not None and start.stdout.readline() == "up\n"
    start.terminate()
    assert (start.communicate(timeout=120)[0], start.returncode) == ("checkpoint\n", 3)


def test_bash_and_python_compute_the_same_fingerprint(node: Node) -> None:
    for size in (0, 1, 1 << 20, (1 << 20) + 1, (1 << 21) + 7):
        node.image.write_bytes(os.urandom(size))
        computed = bash('source "$1" && image::fingerprint "$2"', SCRIPTS / "lib/image.sh", node.image, env=node.environment())
        assert computed.stdout == f"{fingerprint(node.image)}\n"


MOUNTED = "kit: node7: mounting {image} instead of unpacking it\n"
LATE = "kit: node7: cannot mount {image}, and tries again: enroot stub: [ERROR] Failed to mount: {image}\n"


@pytest.mark.parametrize("unpack", ["auto", "no"])
def test_an_image_is_mounted_without_its_entrypoint(unpack: str, node: Node) -> None:
    node.unpack = unpack
    done = node.start("bash", "-c", "echo ${PATH} ${BUILD}")
    assert (done.returncode, done.stdout) == (0, "/image/bin:/usr/bin:/bin 1\n"), done.stderr
    assert MOUNTED.format(image=node.image) in done.stderr
    assert (node.creations(), node.containers()) == (0, {})


def test_a_container_that_is_there_is_used_unless_the_job_says_no(node: Node) -> None:
    node.start()
    in_it = f"{node.data}/{node.name()}/new"
    for unpack, is_mounted in (("auto", False), ("no", True)):
        node.unpack = unpack
        done = node.start("touch", in_it)
        assert done.returncode == 0 and (MOUNTED.format(image=node.image) in done.stderr) == is_mounted
    assert node.creations() == 1


def test_a_mount_that_comes_too_late_is_tried_again_and_then_the_image_is_unpacked(node: Node) -> None:
    late = node.folder / "late"
    node.unpack = "auto"
    late.write_text("x\nx\n")
    done = node.start(ENROOT_STUB_LATE=str(late), MISSING="")
    assert (done.returncode, done.stderr.count(LATE.format(image=node.image)), node.creations()) == (0, 2, 0), done.stderr
    assert MOUNTED.format(image=node.image) in done.stderr
    late.write_text("x\nx\nx\n")
    node.mounted().unlink()
    done = node.start("cat", f"{node.data}/{node.name()}/usr/lib/x", ENROOT_STUB_LATE=str(late), MISSING="")
    assert (done.returncode, done.stdout, node.creations()) == (0, "data\n", 1), done.stderr
    assert f"unpacking the image, since this node cannot mount it: enroot stub: [ERROR] Failed to mount: {node.image}\n" in done.stderr


def test_where_nothing_is_unpacked_enroot_is_not_asked_where_containers_lie(node: Node) -> None:
    node.unpack, node.named_scratch = "no", ""
    assert node.start("true").returncode == 0
    assert "info" not in node.calls.read_text().split()


def test_a_mount_is_tried_before_the_first_start_of_an_hour_and_where_something_changed(node: Node) -> None:
    node.unpack = "auto"
    own_tools = node.folder / "bin"
    stub(own_tools, "squashfuse", "")

    def starts(**variables: str) -> int:
        before = node.calls.read_text().count("start ") if node.calls.exists() else 0
        done = node.start("true", PATH=f"{own_tools}:{environment(STUBS)['PATH']}", **variables)
        assert done.returncode == 0 and MOUNTED.format(image=node.image) in done.stderr, done.stderr
        return node.calls.read_text().count("start ") - before

    tried, known = 2, 1
    assert [starts(), starts(), starts()] == [tried, known, known]
    assert [starts(ENROOT_X="1"), starts(ENROOT_X="1"), starts()] == [tried, known, tried]
    os.utime(own_tools / "squashfuse", (1, 1))
    assert [starts(), starts()] == [tried, known]
    for name in "yz":
        node.image.write_text(f"{IMAGE}usr/lib/{name} more\n")
        assert [starts(), starts()] == [tried, known]
    os.utime(node.image, (1, 1))  # as each start does with a copy on the node
    assert starts() == known
    os.utime(node.mounted(), (time.time() - 3700,) * 2)
    assert [starts(), starts()] == [tried, known]
    node.mounted().unlink()
    node.mounted().mkdir()  # so that nothing can be kept there
    assert [starts(), starts()] == [tried, tried]


@pytest.mark.parametrize(
    ("said", "cause", "fix"),
    [
        ("/proc/self/fd/3: 3: exec: bash: not found", "no-bash", "add bash to the image"),
        ("[ERROR] Failed to mount: /x", "image-not-mounted", "have it unpacked: `unpack: yes`, or auto, which also says if it is damaged"),
    ],
)
def test_an_image_without_bash_is_not_to_be_unpacked_but_to_have_one(said: str, cause: str, fix: str, node: Node) -> None:
    stub(node.folder / "bin", "enroot", f'[[ "$1" != start ]] || {{ printf "%s\\n" {quoted(said)} >&2; exit 127; }}\n')
    node.unpack, events = "no", node.folder / "events.jsonl"
    done = node.start(folders=(node.folder / "bin",), KIT_EVENTS=str(events), MISSING="")
    assert done.returncode == 1 and f"cannot mount {node.image}: {said}\n  fix: {fix}" in done.stderr
    assert f'"event": "node_refused", "node": "node7", "cause": "{cause}", ' in events.read_text()


def test_where_something_is_missing_it_is_named_and_nothing_is_tried_again(node: Node) -> None:
    late = node.folder / "late"
    late.write_text("x\nx\nx\nx\n")
    node.unpack = "auto"
    done = node.start(ENROOT_STUB_LATE=str(late), MISSING="squashfuse is not installed")
    assert (done.returncode, node.creations()) == (0, 1)
    assert "unpacking the image, since this node cannot mount it: squashfuse is not installed\n" in done.stderr
    node.unpack = "no"
    done = node.start(ENROOT_STUB_LATE=str(late), MISSING="squashfuse is not installed")
    assert (done.returncode, node.creations()) == (1, 1)
    assert f"cannot mount {node.image}: squashfuse is not installed\n  fix: have it unpacked: `unpack: yes`" in done.stderr
    assert late.read_text() == "x\nx\n"


def test_what_is_missing_for_a_mount_is_found(tmp_path: Path) -> None:
    """Each tool is a stub that is there or not; /dev/fuse is this machine's."""
    stub(tmp_path / "info", "enroot", "echo ENROOT_NATIVE_OVERLAYFS=${OVERLAY}\n")
    stub(tmp_path / "squashfuse", "squashfuse", "exit 0\n")
    stub(tmp_path / "unshare", "unshare", "exit 1\n")
    body = 'source "${KIT_RUN_DIR}/lib/mounted_image.sh"; mounted_image::missing'

    def missing(*folders: str, overlay: str = "no") -> str:
        env = environment(KIT_RUN_DIR=str(SCRIPTS), OVERLAY=overlay)
        tools = tmp_path / "tools"
        if not tools.exists():
            tools.mkdir()
            for tool in ("bash", "env", "sed"):
                (tools / tool).symlink_to(shutil.which(tool) or "")
        env["PATH"] = os.pathsep.join(str(tmp_path / name) for name in ("info", *folders, "tools"))
        return bash(body, env=env).stdout.strip()

    assert missing() == "squashfuse is not installed"
    if os.access("/dev/fuse", os.R_OK | os.W_OK):
        assert missing("squashfuse") == "fuse-overlayfs is not installed"
        assert missing("squashfuse", "unshare", overlay="true").startswith("the kernel's overlay does not work in user namespaces")
    else:
        assert missing("squashfuse") == "/dev/fuse is not there, or cannot be opened"
