"""What each runtime hands to its container engine, word by word; the engines are stubs that print their arguments.

A mount that the job declares read-only is read-only under every runtime: its flag is in each of these lists.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from running import BASICS, NOBODY, SCRIPTS, as_ordinary_user, bash, environment, stub, turkish

# What run_script.sh does on a node; KIT_MOUNTS is the same for all.
EXEC = f"""
{BASICS}
KIT_MOUNTS=('/data, "the" set' '/in "data"' ro /out /out rw)
source "${{KIT_RUN_DIR}}/runtimes/${{KIT_RUNTIME}}.sh"
"$@"
"""
APPTAINER_MOUNTS = [
    "--mount",
    'type=bind,"source=/data, ""the"" set","destination=/in ""data""",ro',
    "--mount",
    'type=bind,"source=/out","destination=/out"',
]
OCI_MOUNTS = [
    "--mount",
    'type=bind,"source=/data, ""the"" set","target=/in ""data""",readonly',
    "--mount",
    'type=bind,"source=/out","target=/out"',
]
OCI = ["--rm", "--network", "host", "--ipc", "host", "--name", "kit-77-3", "--entrypoint", "bash"]
DOCKER = ["--init", "--ulimit", "stack=67108864", "--user"]
OWN = f"{os.getuid()}:{os.getgid()}"
KEEP_GROUPS = "run.oci.keep_original_groups=1"
KEEP_ID = ["--userns", "keep-id", "--annotation", KEEP_GROUPS] if os.getuid() else []


# What `docker info` prints where kit asks for the engine's security options.
TELLS_SECURITY = '[[ "$1" != info ]] || { printf "%s\\n" "${STUB_SECURITY:-[name=seccomp,profile=builtin]}"; exit; }\n'


def settings(runtime: str, scripts: Path = SCRIPTS, **more: str) -> dict[str, str]:
    return {
        "KIT_RUN_DIR": str(scripts),
        "KIT_RUNTIME": runtime,
        "KIT_IMAGE": "docker://an/image:1" if runtime in ("docker", "podman") else "/images/an image.sif",
        "KIT_FINGERPRINT": "0123456789abcdef",
        "KIT_WORKDIR": "/the project",
        "KIT_REMAP_ROOT": "",
        "KIT_SCRATCH": "/nowhere",
        "SLURM_JOB_ID": "77",
        "SLURM_PROCID": "3",
        **more,
    }


def arguments(folder: Path, runtime: str, *words: str, tool: str = "", **more: str) -> list[str]:
    """What the engine's stub is given by `runtime::exec`, or by `words`."""
    # The GPUs of the machine that runs these tests add words of their own.
    shown = TELLS_SECURITY + 'for word in "$@"; do printf "%s\\0" "${word}"; done\n'
    stub(folder / "bin", tool or runtime, shown)
    done = bash(EXEC, *(words or ("runtime::exec", "bash", "srun.sh", "A=a b")), env=environment(folder / "bin", **settings(runtime, **more)))
    assert done.returncode == 0, done.stderr
    gpus = ("--nv", "--rocm", "--gpus", "all", "memlock=-1", "--device", "nvidia.com/gpu=all", "/dev/kfd", "/dev/dri")
    found = done.stdout.split("\0")[:-1]
    return [word for word in found if word not in gpus] if Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists() else found


@pytest.mark.parametrize("tool", ["apptainer", "singularity"])
def test_apptainer_gets_read_only_mounts_and_neither_the_home_nor_the_current_folder(tool: str, tmp_path: Path) -> None:
    alone = ["--quiet", "exec", "--no-home", "--no-mount", "cwd", "--pwd", "/the project"]
    end = ["/images/an image.sif", "bash", "srun.sh", "A=a b"]
    assert arguments(tmp_path, tool) == [*alone, *APPTAINER_MOUNTS, *end]
    assert arguments(tmp_path, tool, KIT_REMAP_ROOT="yes") == [*alone, "--fakeroot", *APPTAINER_MOUNTS, *end]


@pytest.mark.parametrize("runtime", ["apptainer", "docker", "podman"])
def test_the_place_of_a_mount_that_is_in_another_is_made_by_the_user(runtime: str, tmp_path: Path) -> None:
    """The compile caches' is in /tmp, which a job may mount. Apptainer makes nothing in what it has mounted, and ends the job; what Docker makes is root's.

    What is mounted read-only stays as it is: there the engines end the job, too.
    """
    folders = ("local", "kept", "deep", "given")
    for name in folders:
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "local/link").symlink_to("elsewhere")
    caches = [("local", "/tmp/", "rw"), ("kept", "/tmp/kit-1/cache", "rw"), ("deep", "/tmp/kit-1/cache/x", "rw")]
    others = [
        ("kept", "/tmpx/y", "rw"),
        *(("file", f"/tmp/{name}", "rw") for name in ("file", "new/file", "link")),
        ("file", "/tmp/data", "data"),
        ("given", "/given", "ro"),
        ("kept", "/given/x", "rw"),
    ]
    words = [word for name, *rest in [("kept", "/a", "rw"), *caches, *others] for word in (str(tmp_path / name), *rest)]
    script = EXEC.replace("KIT_MOUNTS=(", f"KIT_MOUNTS=({shlex.join(words)} ")
    stub(tmp_path / "bin", runtime, "exit\n")
    done = bash(script, "runtime::exec", "true", env=environment(tmp_path / "bin", **settings(runtime)))
    assert (done.returncode, done.stderr) == (0, "")
    made = [str(path.relative_to(tmp_path)) for name in folders for path in (tmp_path / name).rglob("*")]
    assert sorted(made) == ["kept/x", *(f"local/{name}" for name in ("data", "file", "kit-1", "kit-1/cache", "link", "new", "new/file"))]


@pytest.mark.parametrize(("tool", "own"), [("apptainer", "APPTAINER_TMPDIR"), ("singularity", "SINGULARITY_TMPDIR")])
@pytest.mark.parametrize(("site", "expected"), [({}, "/job"), ({"own": "/the site's"}, "/the site's")])
def test_apptainer_unpacks_in_the_jobs_temporary_folder(tool: str, own: str, site: dict[str, str], expected: str, tmp_path: Path) -> None:
    stub(tmp_path / "bin", tool, "exec env\n")
    env = {**environment(tmp_path / "bin", **settings(tool)), "TMPDIR": "/job", **({own: site["own"]} if site else {})}
    done = bash(EXEC, "runtime::exec", "true", env=env)
    assert f"{own}={expected}" in done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(("tool", "own"), [("apptainer", "APPTAINER_TMPDIR"), ("singularity", "SINGULARITY_TMPDIR")])
def test_apptainer_starts_in_turkish_whose_capital_i_has_a_dot(tool: str, own: str, tmp_path: Path) -> None:
    stub(tmp_path / "bin", tool, "exec env\n")
    env = {**environment(tmp_path / "bin", **settings(tool)), "TMPDIR": "/job", **turkish(tmp_path)}
    done = bash(EXEC, "runtime::exec", "true", env=env)
    assert f"{own}=/job" in done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(("device", "option"), [("/dev/kfd", "--rocm"), ("/dev/nvidiactl", "--nv"), ("/dev/dxg", "--nv")])
def test_apptainer_brings_a_gpus_libraries_along_where_its_driver_is(device: str, option: str, tmp_path: Path) -> None:
    stub(tmp_path / "bin", "apptainer", 'printf "%s\\n" "$@"\n')
    machine = ["bwrap", "--dev-bind", "/", "/", "--dev", "/dev", "--ro-bind", "/dev/null", device]
    env = environment(tmp_path / "bin", **settings("apptainer"))
    done = subprocess.run([*machine, "bash", "-c", EXEC, "bash", "runtime::exec", "bash"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert {"--rocm", "--nv"} & set(done.stdout.splitlines()) == {option}


# `id` of a user in three groups.
THREE_GROUPS = 'case "$1" in -G) printf "1001 27 5000\\n" ;; *) printf "1001\\n" ;; esac\n'


def test_docker_gets_read_only_mounts_and_the_users_own_number_with_all_groups(tmp_path: Path) -> None:
    """Data may be readable by one of the user's groups alone, and --user drops them."""
    stub(tmp_path / "bin", "id", THREE_GROUPS)
    own = ["1001:1001", "--group-add", "1001", "--group-add", "27", "--group-add", "5000"]
    end = ["an/image:1", "srun.sh", "A=a b"]
    assert arguments(tmp_path, "docker") == ["run", *OCI, *OCI_MOUNTS, *DOCKER, *own, *end]
    assert arguments(tmp_path, "docker", KIT_REMAP_ROOT="yes") == ["run", *OCI, *OCI_MOUNTS, *DOCKER, *own, "--user", "0:0", *end]


def test_root_of_a_rootless_docker_is_the_user_and_gets_no_higher_limits(tmp_path: Path) -> None:
    """Its other numbers are outside those that the user has in /etc/subuid, and cannot write to the user's folders."""
    stub(tmp_path / "bin", "id", THREE_GROUPS)
    stub(tmp_path / "bin", "docker", TELLS_SECURITY + 'printf "%s\\n" "$*"\n')
    machine = ["bwrap", "--dev-bind", "/", "/", "--dev", "/dev", "--ro-bind", "/dev/null", "/dev/nvidiactl"]
    env = environment(tmp_path / "bin", STUB_SECURITY="[name=seccomp,profile=builtin name=rootless name=cgroupns]", **settings("docker"))
    done = subprocess.run([*machine, "bash", "-c", EXEC, "bash", "runtime::exec", "bash"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.findall("--user ([^ ]+)", done.stdout) == ["0:0"]
    assert " --gpus all " in done.stdout
    assert not re.search("--group-add|memlock", done.stdout)


def test_a_docker_that_maps_users_leaves_the_users_number_as_it_is(tmp_path: Path) -> None:
    stub(tmp_path / "bin", "id", THREE_GROUPS)
    words = arguments(tmp_path, "docker", STUB_SECURITY="[name=seccomp,profile=builtin name=userns]")
    assert words[words.index("--userns") + 1] == "host" and words[words.index("--user") + 1] == "1001:1001"


def test_podman_gets_read_only_mounts_and_keeps_the_users_number(tmp_path: Path) -> None:
    end = ["an/image:1", "srun.sh", "A=a b"]
    assert arguments(tmp_path, "podman") == ["run", *OCI, *OCI_MOUNTS, *KEEP_ID, *end]
    root = ["--userns", "host", "--user", "0:0"]
    assert arguments(tmp_path, "podman", KIT_REMAP_ROOT="yes") == ["run", *OCI, *OCI_MOUNTS, *KEEP_ID, *root, *end]


@pytest.mark.parametrize("tool", ["docker", "podman"])
@pytest.mark.parametrize(("attempt", "beside", "removals"), [("1", "", 0), ("2", "", 3), ("2", "yes", 0)])
def test_the_container_of_the_attempt_before_gives_its_name_back(attempt: str, beside: str, removals: int, tool: str, tmp_path: Path) -> None:
    """The engine is still removing it: it has refused twice. A command of `kit exec` leaves the container of the ranks alone."""
    asked = tmp_path / "asked"
    tries = f'echo x >>"{asked}"; n="$(grep -c x "{asked}")"'
    stub(
        tmp_path / "bin",
        tool,
        f"""{TELLS_SECURITY}case "$*" in
  'container inspect kit-77-3') [[ ! -e '{tmp_path}/gone' ]] ;;
  'rm --force kit-77-3') {tries}; ((n == 3)) && touch '{tmp_path}/gone' ;;
  *) [[ "$1" != run ]] || printf '%s\n' "$*" ;;
esac
""",
    )
    env = environment(tmp_path / "bin", **settings(tool, KIT_ATTEMPT=attempt, KIT_BESIDE=beside))
    done = bash(EXEC, "runtime::exec", "bash", env=env)
    assert done.returncode == 0 and " --name kit-77-3 " in done.stdout, done.stderr
    assert len(asked.read_text().splitlines() if asked.exists() else []) == removals


@pytest.mark.parametrize("tool", ["docker", "podman"])
def test_an_engine_gets_the_gpus_of_amd_and_their_group(tool: str, tmp_path: Path) -> None:
    stub(tmp_path / "bin", tool, 'printf "%s\n" "$*"\n')
    stub(tmp_path / "bin", "id", 'printf "1001\\n"\n')
    (tmp_path / "gpu").touch()
    if os.getuid() == 0:
        os.chown(tmp_path / "gpu", -1, NOBODY)
    machine = ["bwrap", "--dev-bind", "/", "/", "--dev", "/dev"]
    for device in ("/dev/kfd", "/dev/dri/renderD128"):
        machine += ["--ro-bind", str(tmp_path / "gpu"), device]
    env = environment(tmp_path / "bin", **settings(tool))
    done = subprocess.run([*machine, "bash", "-c", EXEC, "bash", "runtime::exec", "bash"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert " --device /dev/kfd --device /dev/dri " in done.stdout
    owner = (tmp_path / "gpu").stat().st_gid
    added = re.findall("--group-add ([^ ]+)", done.stdout)
    assert added == {"docker": ["1001", *([str(owner)] if owner else [])], "podman": []}[tool]
    assert (KEEP_GROUPS in done.stdout) == (tool == "podman" and os.getuid() != 0)


@pytest.mark.parametrize("device", ["/dev/nvidiactl", "/dev/dxg"])
@pytest.mark.parametrize(("tool", "option"), [("docker", "--gpus all"), ("podman", "--device nvidia.com/gpu=all")])
@pytest.mark.parametrize(("hidden", "is_shown"), [("", True), ("KIT_ENV=(A=b CUDA_VISIBLE_DEVICES=)", False), ("export CUDA_VISIBLE_DEVICES=", False)])
def test_an_engine_is_asked_for_nvidias_gpus_unless_they_are_hidden(device: str, hidden: str, is_shown: bool, tool: str, option: str, tmp_path: Path) -> None:
    """An engine without NVIDIA's toolkit cannot give them: a job for the CPUs has to start there, too."""
    stub(tmp_path / "bin", tool, 'printf "%s\n" "$*"\n')
    machine = ["bwrap", "--dev-bind", "/", "/", "--dev", "/dev", "--ro-bind", "/dev/null", device]
    env = environment(tmp_path / "bin", **settings(tool))
    env.pop("CUDA_VISIBLE_DEVICES", None)
    words = [*machine, "bash", "-c", f"{hidden}\n{EXEC}", "bash", "runtime::exec", "bash"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (f" {option} " in done.stdout) == is_shown


SHOW_DATA = "KIT_MOUNTS=('/a \"b\".sqsh' /data data /out /out rw) && runtime::exec bash srun.sh"


def test_the_content_of_a_squashfs_file_is_mounted(tmp_path: Path) -> None:
    mount = 'type=bind,"source=/a ""b"".sqsh","destination=/data",image-src=/,ro'
    found = arguments(tmp_path, "apptainer", "eval", SHOW_DATA)
    assert [word for word in found if "/data" in word] == [mount]
    data = tmp_path / f"scratch/kit-{os.getuid()}/data/0"
    data.parents[2].mkdir()
    stub(tmp_path / "bin", "enroot", "exit 9\n")  # which the other starts
    found = arguments(tmp_path, "enroot", "eval", SHOW_DATA, tool="enroot-nsenter", KIT_SCRATCH=str(tmp_path / "scratch"))
    around = ["--user", "--mount", "bash", f"{SCRIPTS}/lib/data_images.sh", '/a "b".sqsh', str(data), "--", "enroot", "start", "--rw"]
    mounts = ["--mount", f"{data}:/data:none:x-create=dir,rbind,ro", "--mount", "/out:/out:none:x-create=auto,rbind,rw"]
    assert found == [*around, *mounts, "kit-0123456789abcdef", "bash", "srun.sh"]


def test_enroot_gets_read_only_mounts_and_no_home(tmp_path: Path) -> None:
    mounts = [
        "--mount",
        '/data, "the" set:/in "data":none:x-create=auto,rbind,ro',
        "--mount",
        "/out:/out:none:x-create=auto,rbind,rw",
    ]
    end = ["kit-0123456789abcdef", "bash", "srun.sh", "A=a b"]
    assert arguments(tmp_path, "enroot", KIT_SCRATCH=str(tmp_path)) == ["start", "--rw", *mounts, *end]
    assert arguments(tmp_path, "enroot", KIT_SCRATCH=str(tmp_path), KIT_REMAP_ROOT="yes") == ["start", "--rw", "--root", *mounts, *end]
    stub(tmp_path / "bin", "enroot", 'printf "%s %s\\n" "${ENROOT_MOUNT_HOME}" "${ENROOT_LOGIN_SHELL}"\n')
    env = environment(tmp_path / "bin", ENROOT_MOUNT_HOME="yes", ENROOT_LOGIN_SHELL="yes", **settings("enroot", KIT_SCRATCH=str(tmp_path)))
    assert bash(EXEC, "runtime::exec", "true", env=env).stdout == "no no\n"


@pytest.mark.parametrize(
    ("runtime", "words"),
    [("docker", [*DOCKER, f"{NOBODY}:{NOBODY}"]), ("podman", ["--userns", "keep-id", "--annotation", KEEP_GROUPS])],
)
def test_files_that_an_ordinary_users_container_makes_are_theirs(runtime: str, words: list[str], open_folder: Path) -> None:
    stub(open_folder / "bin", runtime, 'printf "%s\\n" "$@"\n')
    shutil.copytree(SCRIPTS, open_folder / "scripts")
    if os.getuid():
        words = [OWN if word == f"{NOBODY}:{NOBODY}" else word for word in words]
    done = subprocess.run(
        [*as_ordinary_user(), "bash", "-c", f"set -euo pipefail\n{EXEC}", "bash", "runtime::exec", "bash", "srun.sh"],
        env=environment(open_folder / "bin", **settings(runtime, open_folder / "scripts")),
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "\n".join(words) in done.stdout


@pytest.mark.parametrize("runtime", ["apptainer", "pyxis"])
def test_paths_into_the_hosts_python_do_not_reach_a_container_that_has_the_hosts_environment(runtime: str, tmp_path: Path) -> None:
    names = ["PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "LD_PRELOAD"]
    variables = dict.fromkeys(names, "/host") | {"LD_PRELOAD": ""}  # ld.so would complain of a file that does not exist
    stub(tmp_path / "bin", "apptainer", "exec env\n")
    call = {"apptainer": "runtime::exec true", "pyxis": "pyxis::check_version() { :; }; runtime::srun_args; env"}[runtime]
    env = {**environment(tmp_path / "bin", **settings(runtime)), **variables}
    done = bash(EXEC.replace('"$@"', call), env=env)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.partition("=")[0] in names] == []


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_a_command_beside_the_ranks_enters_their_container_or_starts_one(runtime: str, tmp_path: Path) -> None:
    stub(tmp_path / "bin", runtime, '[[ "$1 $2" != "container inspect" ]] || exit "${STUB_CODE}"\nprintf "%s\\n" "$*"\n')
    enter = ("runtime::enter", "bash", "srun.sh")
    variables = settings(runtime, KIT_BESIDE="yes")
    inside = bash(EXEC, *enter, env=environment(tmp_path / "bin", STUB_CODE="0", **variables))
    assert inside.stdout == "exec --interactive kit-77-3 bash srun.sh\n"
    new = bash(EXEC, *enter, env=environment(tmp_path / "bin", STUB_CODE="1", **variables))
    assert new.stdout.startswith("run --rm ") and " --interactive " in new.stdout and new.stdout.endswith(" an/image:1 srun.sh\n")


@pytest.mark.parametrize(
    ("docker", "said"),
    [
        (
            "echo 'permission denied' >&2; exit 1",
            "no Docker Engine answers: permission denied\n  fix: start it, or join the group docker: docker info; or run in Podman: ",
        ),
        ('[[ "$1" != --version ]] || echo podman version 4.9.4', "docker is another name of Podman here\n  fix: name Podman itself: "),
    ],
)
def test_where_docker_does_not_serve_this_user_podman_is_named(docker: str, said: str, tmp_path: Path) -> None:
    for name, body in (("docker", docker), ("podman", "exit 0")):
        stub(tmp_path / "bin", name, f"{body}\n")
    done = bash(EXEC, "runtime::check", env=environment(tmp_path / "bin", **settings("docker")))
    assert (done.returncode, done.stderr) == (1, f"kit: error: node7: {said}--runtime podman\n")


@pytest.mark.parametrize("runtime", ["docker", "podman"])
@pytest.mark.parametrize(("there", "pulls", "code"), [(True, False, 0), (False, True, 0), (False, False, 1)])
def test_an_image_that_is_not_there_is_pulled(runtime: str, there: bool, pulls: bool, code: int, tmp_path: Path) -> None:
    body = f"""
    printf '%s\\n' "$*" >>{tmp_path}/calls
    case "$1" in
      image) {"true" if there else "false"} ;;
      pull) {"true" if pulls else "false"} ;;
    esac
    """
    stub(tmp_path / "bin", runtime, body.replace(str(tmp_path), f"'{tmp_path}'"))
    done = bash(EXEC, "runtime::prepare", env=environment(tmp_path / "bin", **settings(runtime)))
    assert done.returncode == code
    calls = ["image inspect an/image:1", *([] if there else ["pull an/image:1"])]
    assert (tmp_path / "calls").read_text().splitlines() == calls
    if code:
        assert "kit: error: node7: there is no image docker://an/image:1, and it cannot be pulled\n  fix: " in done.stderr
