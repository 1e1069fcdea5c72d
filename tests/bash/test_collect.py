"""`kit images gc` on one machine: what is unused goes, what is used, locked, young or not kit's own stays."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from running import STUBS, TAG, stub, until

ID = "0123456789abcdef"


class Scratch:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "scratch"
        self.mine = self.folder / f"kit-{os.getuid()}"
        self.data, self.images = self.mine / "enroot" / "data", self.mine / "images"
        self.data.mkdir(parents=True)
        self.images.mkdir()
        self.caches = self.mine / "cache"
        self.caches.mkdir()
        (folder / "site.yaml").write_text(f"scratch: {self.folder}\n")

    def container(self, name: str, days: float) -> Path:
        path = self.data / name
        (path / "usr").mkdir(parents=True)
        (path / "usr" / "file").write_text("x" * 100_000)
        (path / "usr").chmod(0o555)  # as images have them
        (path / ".kit-complete").write_text("image\n")
        return self.aged(path / ".kit-complete", days).parent

    def cache(self, name: str, days: float) -> Path:
        (self.caches / name / "triton").mkdir(parents=True)
        return self.aged(self.caches / name, days)

    def copy(self, name: str, days: float) -> Path:
        (self.images / name).write_text("x")
        (self.images / name).chmod(0o400)
        return self.aged(self.images / name, days)

    def aged(self, path: Path, days: float) -> Path:
        used_s = time.time() - days * 86400 - 60
        os.utime(path, (used_s, used_s))
        return path

    def left(self) -> set[str]:
        return {path.name for folder in (self.data, self.images, self.caches) for path in folder.iterdir() if path.suffix != ".lock"}


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return Scratch(tmp_path)


def collect(kit, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return kit("images", "gc", "--cluster", "site.yaml", *arguments, **options)


def test_what_no_job_has_used_for_some_days_is_listed_and_removed_when_told_to(kit, scratch: Scratch) -> None:
    scratch.container(f"kit-{ID}", days=8)
    scratch.container("kit-1111111111111111", days=6)
    scratch.copy(f"{ID}.sqsh", days=9)
    scratch.copy("1111111111111111.sif", days=2)
    everything = scratch.left()
    listed = collect(kit).stdout
    assert scratch.left() == everything
    assert [line.split(" days  ", 1)[1] for line in listed.splitlines()[:2]] == [f"{scratch.images}/{ID}.sqsh", f"{scratch.data}/kit-{ID}"]
    assert re.fullmatch(r"kit: 2 unused, 1\d\d KiB", listed.splitlines()[2])
    assert listed.splitlines()[3:] == ["kit: nothing is removed without --yes"]
    assert collect(kit, "--yes").stdout.splitlines()[-1] == "kit: done"
    assert scratch.left() == {"kit-1111111111111111", "1111111111111111.sif"}
    assert collect(kit, "--days", "3", "--yes").stdout.splitlines()[-1] == "kit: done"
    assert scratch.left() == {"1111111111111111.sif"}
    assert collect(kit).stdout == "kit: nothing of yours that has not been used for 7 days\n"


def test_what_killed_jobs_left_goes_at_once_unless_a_creation_holds_it(kit, scratch: Scratch) -> None:
    scratch.container(f".kit-{ID}.unfinished", days=0)
    scratch.container(".pyxis_kit-1111111111111111-1000.stale", days=0)
    scratch.copy(f"{ID}.sqsh.unfinished", days=0)
    scratch.copy(f".{ID}.77.received", days=8)  # of a job that ended between two of its steps
    with (scratch.data / f".kit-{ID}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        collect(kit, "--yes")
    assert scratch.left() == {f".kit-{ID}.unfinished"}
    collect(kit, "--yes")
    assert scratch.left() == set()


@pytest.mark.parametrize("old", ["", "yes"])
def test_containers_in_the_folder_of_the_sites_enroot_conf_go_too(kit, old: str, scratch: Scratch, tmp_path: Path) -> None:
    scratch.data = tmp_path / "site"
    scratch.container(f"pyxis_kit-{ID}-{os.getuid()}", days=8)
    scratch.container(f"pyxis_kit-{ID}", days=8)  # of an older kit
    collect(kit, "--yes", PATH=f"{STUBS}:{os.environ['PATH']}", ENROOT_STUB_SITE=str(scratch.data), ENROOT_STUB_OLD=old)
    assert scratch.left() == set()


def test_what_slurm_may_be_sending_at_this_moment_stays(kit, scratch: Scratch) -> None:
    scratch.copy(f".{ID}.77.received", days=0)
    collect(kit, "--yes", "--days", "1")
    assert scratch.left() == {f".{ID}.77.received"}


def test_what_is_not_kits_stays(kit, scratch: Scratch) -> None:
    for name in ("mine", "kit-mine", f"kit-{ID}.backup", "pytorch+25.03"):
        scratch.container(name, days=99)
    scratch.copy("data.sqsh", days=99)
    (scratch.data / f"kit-{ID}").symlink_to(scratch.data / "mine")
    before = scratch.left()
    assert collect(kit, "--yes").stdout == "kit: nothing of yours that has not been used for 7 days\n"
    assert scratch.left() == before


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_what_belongs_to_somebody_else_stays(kit, scratch: Scratch) -> None:
    os.chown(scratch.container(f"kit-{ID}", days=99), 65534, 65534)
    assert collect(kit, "--yes").stdout == "kit: nothing of yours that has not been used for 7 days\n"
    os.chown(scratch.data / f"kit-{ID}", 0, 0)
    os.chown(scratch.data, 65534, 65534)
    assert collect(kit, "--yes").stdout == "kit: nothing of yours that has not been used for 7 days\n"


def test_a_container_in_which_a_process_runs_stays(kit, scratch: Scratch, tmp_path: Path, tag: str) -> None:
    rootfs = scratch.container(f"kit-{ID}", days=99)
    # What Enroot does: a mount namespace of its own, in which the container's folder is mounted.
    inside = [
        "unshare",
        "--map-root-user",
        "--mount",
        "bash",
        "-c",
        'mount --bind "$1" "$1" && touch "$2" && sleep 60',
        "bash",
        str(rootfs),
        str(tmp_path / "up"),
    ]
    process = subprocess.Popen(inside, env={**os.environ, TAG: tag})
    until(lambda: (tmp_path / "up").exists())
    assert collect(kit, "--yes").stdout == "kit: nothing of yours that has not been used for 7 days\n"
    process.kill()
    process.wait()


def test_a_container_that_a_job_starts_with_at_that_moment_is_put_back(kit, scratch: Scratch, tmp_path: Path, tag: str) -> None:
    """A job takes no lock where it finds a container. This one comes between the first look and the move, for which mv is a stub."""
    rootfs = scratch.container(f"kit-{ID}", days=99)
    scratch.container("kit-1111111111111111", days=99)
    job = f"""
    if [[ "${{!#}}" == */.kit-{ID}.stale ]]; then
      unshare --map-root-user --mount bash -c 'mount --bind "$1" "$1" && touch "$2" && exec sleep 60' bash '{rootfs}' '{tmp_path}/up' \\
        </dev/null >/dev/null 2>&1 &
      until [[ -e '{tmp_path}/up' ]]; do sleep 0.02; done
    fi
    exec {shutil.which("mv")} "$@"
    """
    stub(tmp_path / "bin", "mv", job)
    done = collect(kit, "--yes", PATH=f"{tmp_path}/bin:{os.environ['PATH']}", **{TAG: tag})
    assert (tmp_path / "up").exists(), "the job did not start"
    assert f"{rootfs} is in use again, and stays" in done.stdout + done.stderr
    assert scratch.left() == {f"kit-{ID}"}
    assert (rootfs / "usr/file").exists()


def test_what_a_job_has_prepared_at_that_moment_and_not_yet_started_stays(kit, scratch: Scratch, tmp_path: Path) -> None:
    """It waits for its other nodes. Of all that is listed, one copy is gone by then: another `kit images gc` was faster."""
    rootfs, copy = scratch.container(f"kit-{ID}", days=99), scratch.copy(f"{ID}.sif", days=99)
    gone = scratch.copy("1111111111111111.sif", days=99)
    scratch.container("kit-1111111111111111", days=99)
    meets = f"[[ \"${{!#}}\" != */.kit-{ID}.stale ]] || {{ touch '{rootfs}/.kit-used' '{copy}' && rm -f '{gone}'; }}\n"
    stub(tmp_path / "bin", "mv", f'{meets}exec {shutil.which("mv")} "$@"\n')
    done = collect(kit, "--yes", PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert scratch.left() == {rootfs.name, copy.name}
    said = [line for line in (done.stdout + done.stderr).splitlines() if "stays" in line or "error" in line]
    assert len(said) == 2 and all(f"{path} is in use again, and stays" in line for path, line in zip((rootfs, copy), said))


def test_compile_caches_go_unless_a_process_could_write_to_them_or_a_job_fills_them(kit, scratch: Scratch, tag: str) -> None:
    used = f"kit-cache-{tag[:8]}-GPU"  # a name that no other process has
    for name in ("kit-cache-old-GPU", used, f"{used}-2", ".kit-cache-filled-GPU.unfinished", "mine"):
        scratch.cache(name, days=8)
    scratch.cache("kit-cache-young-GPU", days=2)
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, TAG: tag, "TRITON_CACHE_DIR": f"{scratch.caches}/{used}/triton"})
    with (scratch.caches / ".kit-cache-filled-GPU.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        collect(kit, "--yes")
    assert scratch.left() == {used, ".kit-cache-filled-GPU.unfinished", "mine", "kit-cache-young-GPU"}
    process.kill()
    process.wait()
    collect(kit, "--yes")
    assert scratch.left() == {"mine", "kit-cache-young-GPU"}
    locks = set(scratch.caches.glob(".*.lock"))
    for lock in locks:
        scratch.aged(lock, 8)
    collect(kit, "--yes")
    assert locks and set(scratch.caches.glob(".*.lock")) == locks  # a lock is no leftover, and gets no lock of its own


def test_kept_compile_caches_go_when_no_job_has_begun_with_them(kit, scratch: Scratch, tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir(exist_ok=True)
    name = "kit-cache-0123456789abcdef-GPU-1000.tar.gz"
    for path, days in (
        (name, 8),
        (f".{name}.77.unfinished", 8),
        (name.replace("GPU", "young"), 1),
        ("kit-cache-notes.txt", 99),
        ("kit-cache-a-b-1.tar.gz.bak", 99),
    ):
        (images / path).write_text("x")
        scratch.aged(images / path, days)
    listed = collect(kit).stdout
    assert listed.splitlines()[-2].startswith("kit: 2 unused")
    collect(kit, "--yes")
    assert {path.name for path in images.iterdir()} == {name.replace("GPU", "young"), "kit-cache-notes.txt", "kit-cache-a-b-1.tar.gz.bak"}


def test_days_below_one_are_refused(kit, scratch: Scratch) -> None:
    done = collect(kit, "--days", "0", check=False)
    problem = "kit: --days: 0 is too few: a job that is starting may need what was used today\n  fix: give 1 or more; "
    assert done.returncode == 2 and done.stderr.startswith(problem)
