"""Compile caches: where they lie, what a job keeps of them, and what goes wrong with them. The programs are bash, and write what a compiler would."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from running import SCRIPTS, TAG, as_ordinary_user, bash, environment, kill_all, processes, stub, until
from test_run_script import JOB_ID, logs, run_dir, slurm, start

COMPILES = 'ls -A "${TRITON_CACHE_DIR}" 2>/dev/null; mkdir -p "${TRITON_CACHE_DIR}" && echo code >"${TRITON_CACHE_DIR}/kernel"; echo "${TRITON_CACHE_DIR}"'


class Site:
    """An image, and nodes: each has a disk of its own."""

    def __init__(self, folder: Path, **other: Any) -> None:
        self.folder, self.other = folder, other
        self.images = folder / "images"
        self.images.mkdir()
        (self.images / "image.sif").write_bytes(b"an image")

    def run(self, node: str, program: str = COMPILES, cache: str = "keep", **other: Any) -> Path:
        """A run directory of a job with the image; the runtime is none, which reads nothing of it."""
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        image = str(self.images / "image.sif")
        return run_dir(self.folder, program, image=image, cache=cache, scratch=str(self.folder / node), **{**self.other, **other})

    def job(self, node: str, *arguments: str, code: int = 0, **options: Any) -> str:
        """Runs one, and returns what its rank and kit said."""
        run = self.run(node, *arguments, **options)
        done = start(run)
        assert done.returncode == code, done.stderr
        errors = (run / "log" / str(JOB_ID) / "local0.out").read_text()
        return (run / "log" / str(JOB_ID) / "rank0.out").read_text() + errors + done.stderr

    def kept(self) -> Path:
        (file,) = self.images.glob("kit-cache-*.tar.gz")
        return file

    def cache(self, node: str) -> Path:
        (folder,) = (self.folder / node / f"kit-{os.getuid()}" / "cache").glob("kit-cache-*")
        return folder

    def unfinished(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("*.unfinished"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def names(file: Path) -> list[str]:
    with tarfile.open(file) as archive:
        return sorted(member.name for member in archive)


# ---------------------------------------------------------------- where they lie

SHOWS = 'printf "%s\\n" "${TRITON_CACHE_DIR-}" "${TORCHINDUCTOR_CACHE_DIR-}" "${CUDA_CACHE_PATH-}" "${JAX_COMPILATION_CACHE_DIR-}"'


def test_each_cache_has_its_place_in_a_folder_of_the_image_and_the_machine_on_this_nodes_disk(site: Site) -> None:
    run = site.run("node", SHOWS, cache="node", env=(("CUDA_CACHE_PATH", "/mine"),))
    assert start(run, env=slurm(TRITON_CACHE_DIR="/of/the/shell")).returncode == 0
    folder = site.cache("node")
    assert folder.name.startswith("kit-cache-") and folder.stat().st_mode & 0o777 == 0o700
    lines = (run / "log" / str(JOB_ID) / "rank0.out").read_text().splitlines()
    assert lines == [f"{folder}/triton", f"{folder}/inductor", "/mine", f"{folder}/jax"]
    assert not list(site.images.glob("kit-cache-*"))


def test_what_the_image_says_stays(tmp_path: Path) -> None:
    script = (
        'for file in messages program cache; do source "${KIT_RUN_DIR}/lib/${file}.sh"; done; KIT_CACHE_DIR="$1" NNODES=1 KIT_RUNTIME=apptainer; cache::set_variables;'
        + SHOWS
    )
    done = bash(script, tmp_path, env=slurm(KIT_RUN_DIR=str(SCRIPTS), TORCHINDUCTOR_CACHE_DIR="/image"))
    assert done.stdout.splitlines() == [f"{tmp_path}/triton", "/image", f"{tmp_path}/cuda", f"{tmp_path}/jax"]


def test_on_several_nodes_jax_is_left_alone(tmp_path: Path) -> None:
    script = (
        'for file in messages program cache; do source "${KIT_RUN_DIR}/lib/${file}.sh"; done; KIT_CACHE_DIR="$1" NNODES=2 KIT_RUNTIME=apptainer; cache::set_variables;'
        + SHOWS
    )
    assert bash(script, tmp_path, env=slurm(KIT_RUN_DIR=str(SCRIPTS))).stdout.splitlines()[3] == ""


@pytest.mark.parametrize(
    ("runtime", "files", "said", "expected"),
    [
        ("apptainer", ["__init__.py"], {"PYTHONDONTWRITEBYTECODE": "1"}, ["/cache/python", ""]),
        ("apptainer", ["__init__.py", "__pycache__/__init__.cpython-312.pyc"], {"PYTHONDONTWRITEBYTECODE": "1"}, ["", "1"]),
        ("apptainer", ["__init__.py"], {"PYTHONPYCACHEPREFIX": "/image"}, ["/image", ""]),
        ("apptainer", [], {}, ["", ""]),
        ("none", ["__init__.py"], {}, ["", ""]),
    ],
)
def test_bytecode_is_kept_where_the_image_has_none(runtime: str, files: list[str], said: dict[str, str], expected: list[str], tmp_path: Path) -> None:
    for file in files:
        path = tmp_path / "lib/python3.12/site-packages/torch" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    stub(tmp_path / "bin", "python3", "exit 1")
    script = f"""
    for name in messages program; do source "${{KIT_RUN_DIR}}/lib/${{name}}.sh"; done # as container.sh does
    source "${{KIT_RUN_DIR}}/lib/cache.sh"
    cd "$1" && mkdir -p cache && KIT_CACHE_DIR="$1/cache" NNODES=1 KIT_RUNTIME={runtime} PATH="$1/bin:/usr/bin:/bin"
    cache::set_variables
    printf '%s\\n' "${{PYTHONPYCACHEPREFIX-}}" "${{PYTHONDONTWRITEBYTECODE-}}"
    """
    shown = bash(script, tmp_path, env={**slurm(KIT_RUN_DIR=str(SCRIPTS)), "PYTHONDONTWRITEBYTECODE": "", **said}).stdout.splitlines()
    assert [line.removeprefix(str(tmp_path)) for line in shown] == expected


@pytest.mark.parametrize("has_amd", [True, False])
def test_miopen_keeps_its_databases_there_on_nodes_with_amds_gpus(has_amd: bool, tmp_path: Path) -> None:
    script = 'source "${KIT_RUN_DIR}/lib/cache.sh"; mkdir "$1/cache"; KIT_CACHE_DIR="$1/cache" NNODES=2 KIT_RUNTIME=none cache::set_variables; env | grep ^MIOPEN_ | sort'
    machine = ["bwrap", "--bind", "/", "/", "--dev", "/dev", *(["--ro-bind", "/dev/null", "/dev/kfd"] if has_amd else [])]
    env = slurm(KIT_RUN_DIR=str(SCRIPTS), MIOPEN_CUSTOM_CACHE_DIR="/mine") if has_amd else slurm(KIT_RUN_DIR=str(SCRIPTS))
    done = subprocess.run([*machine, "bash", "-c", script, "bash", str(tmp_path)], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == (["MIOPEN_CUSTOM_CACHE_DIR=/mine", f"MIOPEN_USER_DB_PATH={tmp_path}/cache/miopen"] if has_amd else []), done.stderr


def test_bytecode_alone_is_no_news_and_that_of_the_runs_own_code_is_not_kept(site: Site) -> None:
    compiles = 'place="${TRITON_CACHE_DIR%/*}/python" && mkdir -p "${place}/usr" "${place}${KIT_RUN_DIR}/code" && echo code | tee "${place}/usr/a.pyc" >"${place}${KIT_RUN_DIR}/code/b.pyc"'
    site.job("first", compiles)
    assert not list(site.images.glob("kit-cache-*"))
    site.job("first", f"{compiles}; {COMPILES}")
    assert names(site.kept()) == ["./python/usr/a.pyc", "./triton/kernel"]


def test_off_sets_nothing_and_makes_nothing(site: Site) -> None:
    run = site.run("node", SHOWS, cache="")
    assert start(run).returncode == 0
    assert (run / "log" / str(JOB_ID) / "rank0.out").read_text() == "\n" * 4
    assert not (site.folder / "node").exists() and not (run / "lib/cache.sh").exists()


# What the kernel says of a machine, in a mount namespace.
MACHINE = """
mount -t tmpfs none /proc/driver && mkdir -p /proc/driver/nvidia/gpus/0 && printf 'Model: \\t\\t NVIDIA H100 80GB\\n' >/proc/driver/nvidia/gpus/0/information
printf 'model name\\t: Some CPU (R) 5\\n' >"$1/cpuinfo" && mount --bind "$1/cpuinfo" /proc/cpuinfo
exec bash -c 'source "${KIT_RUN_DIR}/lib/cache.sh"; KIT_FINGERPRINT=0123456789abcdef; cache::choose; echo "${KIT_CACHE_DIR##*/}"'
"""


def test_the_folders_name_has_the_image_the_gpu_and_the_cpu(tmp_path: Path) -> None:
    inside = ["unshare", "--map-root-user", "--mount", "bash", "-c", MACHINE, "bash", str(tmp_path)]
    done = subprocess.run(inside, env=slurm(KIT_RUN_DIR=str(SCRIPTS)), capture_output=True, text=True)
    if "permission denied" in done.stderr or "must be superuser" in done.stderr:
        pytest.skip("this machine lets nobody mount over /proc")
    assert done.stdout == "kit-cache-0123456789abcdef-NVIDIA_H100_80GB-Some_CPU__R__5\n", done.stderr


def test_without_a_folder_of_its_own_the_job_goes_on_and_kit_says_so(site: Site) -> None:
    (site.folder / "elsewhere").mkdir()
    (site.folder / "node").mkdir()
    (site.folder / "node" / f"kit-{os.getuid()}").symlink_to(site.folder / "elsewhere")
    said = site.job("node", 'echo "[${TRITON_CACHE_DIR-unset}]"')
    assert said.startswith("[unset]\n") and "kit: warning: local0: there is no folder of this user's own for compile caches: " in said
    assert not list((site.folder / "elsewhere").iterdir())


def test_a_disk_from_which_no_code_can_be_loaded_holds_no_caches_and_kit_says_so(site: Site) -> None:
    run = site.run("node", 'echo "[${TRITON_CACHE_DIR-unset}]"')
    script = 'mkdir -p "$1" && mount -t tmpfs -o noexec none "$1" && exec bash run_script.sh'
    inside = ["unshare", "--map-root-user", "--mount", "bash", "-c", script, "bash", str(site.folder / "node")]
    done = subprocess.run(inside, cwd=run, env=slurm(), capture_output=True, text=True)
    logs = run / "log" / str(JOB_ID)
    said = (logs / "local0.out").read_text() + done.stderr
    assert done.returncode == 0 and (logs / "rank0.out").read_text() == "[unset]\n", said
    assert said.count("kit: warning: ") == 1 and "/cache is mounted noexec, so no compiled code can be loaded from there" in said, said


# ---------------------------------------------------------------- what is kept


def test_a_node_that_never_ran_the_job_begins_with_what_another_kept(site: Site) -> None:
    assert "kernel" not in site.job("first").split()
    assert names(site.kept()) == ["./triton/kernel"] and site.kept().stat().st_mode & 0o777 == 0o600
    assert site.job("second").split()[0] == "kernel"
    assert site.unfinished() == []


def test_what_has_not_changed_is_not_packed_again(site: Site) -> None:
    reads = 'cat "${TRITON_CACHE_DIR}/kernel" && mkdir -p "${TRITON_CACHE_DIR}/locks" && : >"${TRITON_CACHE_DIR}/locks/a.lock"'
    site.job("first")
    before = site.kept().stat().st_ino
    for node in ("first", "second"):
        site.job(node, reads)
        assert site.kept().stat().st_ino == before
    site.job("second", 'echo more >"${TRITON_CACHE_DIR}/other"')
    assert names(site.kept()) == ["./triton/kernel", "./triton/locks/a.lock", "./triton/other"]


def test_of_a_failed_job_what_was_written_last_is_not_kept(site: Site) -> None:
    """A compiler that was killed with its rank leaves half a file under its name."""
    site.job("first", COMPILES + '; touch -d "-5 minutes" "${TRITON_CACHE_DIR}/kernel"; echo half >"${TRITON_CACHE_DIR}/half"; exit 3', code=3)
    assert names(site.kept()) == ["./triton/kernel"]
    site.job("first", "true")  # which reads it, or has written it anew
    assert names(site.kept()) == ["./triton/half", "./triton/kernel"]


def test_what_a_job_compiled_and_soon_failed_is_kept_by_the_next_one_that_ends_well(site: Site) -> None:
    site.job("first", COMPILES + "; exit 3", code=3)
    assert not list(site.images.glob("*kit-cache-*"))
    site.job("first", "true")
    assert names(site.kept()) == ["./triton/kernel"]


def test_a_job_that_compiles_nothing_keeps_nothing(site: Site) -> None:
    site.job("first", "true")
    assert not list(site.images.glob("*kit-cache-*"))


@pytest.mark.parametrize("damage", ["truncated", "no archive", "a pipe"])
def test_a_damaged_file_is_a_warning_and_the_job_begins_cold(damage: str, site: Site) -> None:
    site.job("first", 'mkdir -p "${TRITON_CACHE_DIR}" && head -c 100000 /dev/urandom >"${TRITON_CACHE_DIR}/big"')
    file = site.kept()
    whole = file.read_bytes()
    file.unlink()
    if damage == "a pipe":
        os.mkfifo(file)
    else:
        file.write_bytes(whole[: len(whole) // 2] if damage == "truncated" else b"text")
    said = site.job("second")
    assert "kit: warning: local0: the kept compile caches are not used: " in said and f"  fix: {'look at it' if damage == 'a pipe' else 'if the file'}" in said
    assert "big" not in said.split() and site.unfinished() == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_another_users_file_is_neither_unpacked_nor_replaced(site: Site) -> None:
    site.job("first")
    file = site.kept()
    os.chown(file, 65534, 65534)
    said = site.job("second")
    assert f"{file} is not a readable file of your own" in said and said.split()[0] != "kernel"
    assert file.stat().st_uid == 65534


def test_a_link_that_somebody_else_put_beside_the_image_is_not_written_through(site: Site) -> None:
    site.job("first")
    file, thesis = site.kept(), site.folder / "thesis.tex"
    thesis.write_text("years of work\n")
    (site.images / f".{file.name}.{JOB_ID}.unfinished").symlink_to(thesis)
    site.job("first", 'echo more >"${TRITON_CACHE_DIR}/other"')
    assert thesis.read_text() == "years of work\n" and site.unfinished() == []
    assert names(file) == ["./triton/kernel", "./triton/other"] and not file.is_symlink()


def test_an_image_folder_that_is_not_writable_is_named_once(open_folder: Path) -> None:
    if not as_ordinary_user():
        pytest.skip("needs root, to become another user whom permissions bind")
    site = Site(open_folder)
    run = site.run("node", nodes=2)
    for path in [open_folder, *open_folder.rglob("*")]:
        os.chown(path, 65534, 65534)
    os.chown(site.images, 0, 0)
    done = subprocess.run([*as_ordinary_user(), "bash", "run_script.sh"], cwd=run, env=slurm(2, HOME=str(open_folder)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the compile caches are not kept") == 1 and f"{site.images} is not writable\n  fix: make room there" in done.stderr


# ---------------------------------------------------------------- kills, full disks, two at once


def kill_while(site: Site, run: Path, tool: str, body: str, tag: str) -> None:
    """Starts the job with a stand-in for the tool, which does `body`, notes that it has come so far, and waits; then kills all of it."""
    (site.folder / "here").unlink(missing_ok=True)
    stub(site.folder / "bin", tool, f"{body}\ntouch '{site.folder}/here'; sleep 300\n")
    process = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=slurm(folders=(site.folder / "bin",), **{TAG: tag}), stderr=subprocess.DEVNULL)
    until((site.folder / "here").exists)
    kill_all(tag)
    assert process.wait() == -signal.SIGKILL
    assert not processes(tag)


def test_a_kill_while_packing_leaves_the_old_file(site: Site, tag: str) -> None:
    site.job("first")
    before = site.kept().read_bytes()
    kill_while(site, site.run("first", 'echo more >"${TRITON_CACHE_DIR}/other"'), "gzip", "head -c 100", tag)
    assert site.kept().read_bytes() == before
    (left,) = site.unfinished()
    assert left.startswith(".kit-cache-")
    old_s = time.time() - 7200
    os.utime(site.images / left, (old_s, old_s))
    site.job("first", "true")  # what the killed job compiled is still news
    assert names(site.kept()) == ["./triton/kernel", "./triton/other"] and site.unfinished() == []


def test_a_kill_while_seeding_leaves_nothing_half_made(site: Site, tag: str) -> None:
    site.job("first")
    half = '[[ "$*" == *--extract* ]] && mkdir -p "${!##*=}/triton" && echo half >"${!##*=}/triton/kernel"'
    kill_while(site, site.run("second"), "tar", half, tag)
    assert site.unfinished() == [f".{site.cache('second').name}.unfinished"]
    assert not list(site.cache("second").iterdir())
    assert "kernel" in site.job("second", 'ls "${TRITON_CACHE_DIR}"; cat "${TRITON_CACHE_DIR}/kernel"').split()
    assert (site.cache("second") / "triton/kernel").read_text() == "code\n" and site.unfinished() == []


def test_a_job_that_is_ended_before_its_ranks_have_a_folder_ends_with_its_own_code(site: Site, tag: str) -> None:
    run = site.run("node")
    stub(site.folder / "bin", "srun", f"trap 'exit 143' TERM\nexec 2>/dev/null\ntouch '{site.folder}/here'\nwhile :; do sleep 0.05; done\n")
    env = slurm(folders=(site.folder / "bin",), **{TAG: tag})
    process = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until((site.folder / "here").exists)
    os.killpg(process.pid, signal.SIGTERM)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 143 and "unbound variable" not in said, said
    assert not list(site.images.glob("*kit-cache-*"))


def test_what_cannot_be_removed_is_a_warning_and_the_job_begins_cold(site: Site) -> None:
    """As where something is mounted below it, or a file server keeps files that a program had open when it was killed. Here it is a link."""
    site.job("first")
    elsewhere = site.folder / "elsewhere"
    elsewhere.mkdir()
    half = f'rmdir "${{!##*=}}" && ln -s "{elsewhere}" "${{!##*=}}"; echo half >&2; exit 1'
    stub(site.folder / "bin", "tar", f'if [[ "$*" == *--extract* ]]; then {half}; fi\nexec {shutil.which("tar")} "$@"\n')
    run = site.run("second")
    left = site.cache("first").name
    reasons = ("half", f"cannot remove {site.folder}/second/kit-{os.getuid()}/cache/.{left}.unfinished")
    for attempt, reason in enumerate(reasons, 1):
        done = start(run, env=slurm(folders=(site.folder / "bin",)))
        errors = logs(run, attempt)["local0.out"]
        assert done.returncode == 0, errors + done.stderr
        assert f"kit: warning: local0: the kept compile caches are not used: {reason}\n" in errors
        shutil.rmtree(site.cache("second"))
    assert elsewhere.is_dir()


BIG = 'mkdir -p "${TRITON_CACHE_DIR}" && head -c 3000000 /dev/urandom >"${TRITON_CACHE_DIR}/big"; echo done'


@pytest.mark.parametrize("place", ["images", "second"])
def test_a_full_disk_is_a_warning(place: str, site: Site) -> None:
    if place == "second":
        site.job("first", BIG)
    run = site.run("second", BIG if place == "images" else "echo done")
    full = 'mkdir -p "$1" && cp -a "$1" "$1.before" && mount -t tmpfs -o size=1m none "$1" && cp -a "$1.before/." "$1" && { bash run_script.sh; code=$?; ls -AR "$1"; exit "${code}"; }'
    inside = ["unshare", "--map-root-user", "--mount", "bash", "-c", full, "bash", str(site.folder / place)]
    done = subprocess.run(inside, cwd=run, env=slurm(), capture_output=True, text=True)
    said = done.stderr + (run / "log" / str(JOB_ID) / "local0.out").read_text()
    assert done.returncode == 0, said
    expected = "the compile caches are not kept" if place == "images" else "the kept compile caches are not used"
    assert f"kit: warning: local0: {expected}" in said and ".unfinished" not in done.stdout and "big" not in done.stdout


def test_jobs_at_the_same_time_on_one_node_fill_the_folder_once_and_keep_one_whole_file(site: Site) -> None:
    site.job("first", COMPILES + '; for i in {1..200}; do echo "${i}" >"${TRITON_CACHE_DIR}/${i}"; done')
    run = site.run("second", "true")
    script = """
    cd "$1" && mkdir -p log/1
    export SLURM_NODEID=0 KIT_LOG_DIR="$1/log/1" KIT_CACHE_ROOT="$3"
    for ((i = 0; i < 8; i++)); do KIT_FINGERPRINT="$2" bash run_script.sh prepare & done
    wait
    """
    identity = site.cache("first").name.split("-")[2]
    root = site.folder / "second" / f"kit-{os.getuid()}" / "cache"
    done = bash(script, run, identity, root, env=slurm())
    assert done.stdout.count("node_ready") == 8 and "warning" not in done.stderr
    assert len(list((site.cache("second") / "triton").iterdir())) == 201 and site.unfinished() == []
    keep = """
    source "${KIT_RUN_DIR}/lib/messages.sh"; source "${KIT_RUN_DIR}/lib/cache.sh"
    KIT_CACHE_ROOT="$1" KIT_IMAGE="$2" KIT_FINGERPRINT="$3" KIT_CACHE=keep KIT_RANKS_BEGUN_S=1
    cache::begin
    for ((i = 0; i < 6; i++)); do (SLURM_JOB_ID="${i}"; echo "${i}" >"${KIT_CACHE_DIR}/triton/new${i}"; kept_cache::keep 0) & done
    wait
    """
    bash(keep, root, site.images / "image.sif", identity, env=slurm(KIT_RUN_DIR=str(SCRIPTS)))
    assert len(names(site.kept())) >= 201 and site.unfinished() == []


# ---------------------------------------------------------------- a home whose file server has lost its handles

# A library that is loaded first: below HOME every one of these calls returns ESTALE, as on NFS, and is noted.
STALE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static int stale(const char *path) {
  const char *home = getenv("HOME"), *notes = getenv("STALE_NOTES");
  if (!path || !home || !notes || strncmp(path, home, strlen(home))) return 0;
  int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
  int file = real(notes, O_WRONLY | O_APPEND | O_CREAT, 0600);
  if (write(file, path, strlen(path)) < 0 || write(file, "\\n", 1) < 0) abort();
  close(file);
  errno = ESTALE;
  return 1;
}
#define WRAP(name, declared, used, path) int name declared { \\
  static int (*real) declared; if (!real) real = dlsym(RTLD_NEXT, #name); return stale(path) ? -1 : real used; }
#define WRAP_OPEN(name, declared, used, path) int name declared { static int (*real)(); mode_t mode = 0; \\
  if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); } \\
  if (!real) real = dlsym(RTLD_NEXT, #name); return stale(path) ? -1 : real used; }
WRAP_OPEN(open, (const char *path, int flags, ...), (path, flags, mode), path)
WRAP_OPEN(open64, (const char *path, int flags, ...), (path, flags, mode), path)
WRAP_OPEN(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode), path)
WRAP_OPEN(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode), path)
WRAP(mkdir, (const char *path, mode_t mode), (path, mode), path)
WRAP(mkdirat, (int at, const char *path, mode_t mode), (at, path, mode), path)
WRAP(access, (const char *path, int mode), (path, mode), path)
WRAP(stat, (const char *path, struct stat *found), (path, found), path)
WRAP(stat64, (const char *path, struct stat64 *found), (path, found), path)
WRAP(lstat, (const char *path, struct stat *found), (path, found), path)
WRAP(fstatat, (int at, const char *path, struct stat *found, int flags), (at, path, found, flags), path)
WRAP(rename, (const char *from, const char *to), (from, to), to)
"""

# Where these compilers put things without their variable, and how: another name first.
COMPILERS = """
import os, pathlib
for name, usual in {"TRITON_CACHE_DIR": "~/.triton/cache", "CUDA_CACHE_PATH": "~/.nv/ComputeCache", "TORCHINDUCTOR_CACHE_DIR": "~/.cache/inductor"}.items():
    folder = pathlib.Path(os.environ.get(name) or os.path.expanduser(usual))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"new.{os.getpid()}").write_text("code")
    os.rename(folder / f"new.{os.getpid()}", folder / "kernel")
    assert (folder / "kernel").read_text() == "code"
"""


@pytest.fixture
def stale_home(tmp_path: Path) -> dict[str, str]:
    """The variables of a user with such a home."""
    if not shutil.which("gcc"):
        pytest.skip("needs gcc, to build the library that returns ESTALE")
    (tmp_path / "stale.c").write_text(STALE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", tmp_path / "stale.so", tmp_path / "stale.c", "-ldl"], check=True)
    (tmp_path / "home").mkdir()
    return {"HOME": str(tmp_path / "home"), "LD_PRELOAD": str(tmp_path / "stale.so"), "BASH_ENV": str(tmp_path / "notes.sh")}


def test_no_start_touches_a_home_that_returns_estale(site: Site, stale_home: dict[str, str]) -> None:
    """KIT_TEST_STARTS=200 for as many; here a few. Without kit's variables the same program fails, and is seen to touch the home."""
    (site.folder / "compilers.py").write_text(COMPILERS)
    notes = site.folder / "touched"
    (site.folder / "notes.sh").write_text(f"export STALE_NOTES={notes}\n")
    program = f"exec python3 -I -S {site.folder}/compilers.py"
    env = slurm(2, **stale_home)
    failed = subprocess.run(["bash", "run_script.sh"], cwd=site.run("node", program, cache="", nodes=2), env=env, capture_output=True, text=True)
    assert failed.returncode != 0 and "Stale file handle" in failed.stderr and ".triton" in notes.read_text(), failed.stderr
    notes.unlink()
    run = site.run("node", program, nodes=2)
    for _ in range(int(os.environ.get("KIT_TEST_STARTS", "3"))):
        shutil.rmtree(site.folder / "node", ignore_errors=True)
        done = subprocess.run(["bash", "run_script.sh"], cwd=run, env=env, capture_output=True, text=True)
        assert done.returncode == 0 and not notes.exists(), done.stderr + (notes.read_text() if notes.exists() else "")


# ---------------------------------------------------------------- the real compiler

# The compiler would be called for each kind of vectors that this CPU has, to see whether it can build for them: one is enough.
INDUCTOR = """
import torch
from torch._inductor import cpu_vec_isa
cpu_vec_isa.supported_vec_isa_list = [cpu_vec_isa.VecAVX2()]
torch.compile(lambda x: x.sin() + 1)(torch.ones(64))
"""


def test_inductor_compiles_on_the_first_node_and_not_on_the_next(site: Site, stale_home: dict[str, str]) -> None:
    """Counts the compiler's calls; the home returns ESTALE, and no cache is looked for there."""
    torch = pytest.importorskip("torch")
    real = shutil.which("g++")
    if not real or torch.__version__ < "2.5":
        pytest.skip("needs g++ and torch 2.5, for Inductor's C++ backend")
    stub(site.folder / "bin", "g++", f'[[ "$*" != *.so* ]] || echo built >>"{site.folder}/built"\nexec {real} "$@"\n')
    (site.folder / "step.py").write_text(INDUCTOR)
    (site.folder / "notes.sh").write_text(f"export STALE_NOTES={site.folder}/touched\n")
    built = []
    for node in ("first", "second"):
        run = site.run(node, f"exec python3 {site.folder}/step.py")
        done = start(run, env=slurm(folders=(site.folder / "bin",), **stale_home), timeout_s=600)
        assert done.returncode == 0, done.stderr + (run / "log" / str(JOB_ID) / "rank0.out").read_text()
        built.append((site.folder / "built").read_text().count("built"))
    assert built[0] > 0 and built[1] == built[0]
    touched = (site.folder / "touched").read_text() if (site.folder / "touched").exists() else ""
    assert not [path for path in touched.splitlines() if any(word in path for word in ("triton", "inductor", "/.nv", "/.cache"))]


LACKS = """
source "${KIT_RUN_DIR}/lib/messages.sh"
runtime::srun_args() { :; } # Slurm starts the containers
source "${KIT_RUN_DIR}/lib/cache.sh"
event::of() { cat "${answers}"; }
readonly answers="$1"
cache::begin
echo "${KIT_CACHE}"
"""


@pytest.mark.parametrize(("answer", "cache"), [(', "cache": "no"', ""), ("", "node")])
def test_where_slurm_starts_the_containers_one_node_without_a_folder_decides_for_all(answer: str, cache: str, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    answers.write_text(f'{{"t": 1, "event": "node_ready", "node": "node1"}}\n{{"t": 1, "event": "node_ready", "node": "node2"{answer}}}\n')
    done = bash(LACKS, answers, env=environment(KIT_RUN_DIR=str(SCRIPTS), KIT_CACHE="node", KIT_SCRATCH=str(tmp_path)))
    assert (done.returncode, done.stdout) == (0, f"{cache}\n"), done.stderr
