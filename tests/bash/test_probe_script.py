"""probe.sh on this machine: the facts that it tells of an image, a shared folder and mounts. What they mean is judged elsewhere."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from kit.config.image_files import fingerprint
from running import SCRIPTS, as_ordinary_user, bash, environment, stub, turkish


def facts(*words: str, before: tuple[str, ...] = (), scripts: Path = SCRIPTS, **variables: str) -> list[list[str]]:
    """What probe.sh says, but for the facts of this very machine."""
    env = environment(KIT_RUN_DIR=str(scripts), **variables)
    done = subprocess.run([*before, "bash", str(scripts / "probe.sh"), *words], env=env, input="", capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert {line[0] for line in lines} == {"node7"}
    assert lines[0][1] == "user" and lines[-1] == ["node7", "ready"]
    return [line[1:] for line in lines]


def of(found: list[list[str]], *names: str) -> list[list[str]]:
    return [fact for fact in found if fact[0] in names]


def test_the_version_of_bash_is_told() -> None:
    version = subprocess.run(["bash", "-c", 'printf %s "${BASH_VERSION}"'], capture_output=True, text=True).stdout
    assert of(facts(), "bash") == [["bash", version]]


def test_a_node_among_thousands_asks_for_its_own_name_once() -> None:
    script = """
    source "${KIT_RUN_DIR}/lib/reach.sh"
    kit::node() { printf 'asked\\n' >&2 && printf 'node7'; }
    NODES=(node{0..4095})
    reach::neighbours
    """
    done = bash(script, env=environment(KIT_RUN_DIR=str(SCRIPTS)))
    assert done.stdout.split() == ["node0", *(f"node{number}" for number in range(8, 24))]
    assert done.stderr.split() == ["asked"]


def test_a_bash_that_is_too_old_for_a_run_tells_of_the_runtimes_all_the_same(tmp_path: Path) -> None:
    """Before 4.4, `local -` and `local -n` are errors that bash goes on behind: here by a kit::split that does what it does there."""
    scripts = tmp_path / "scripts"
    shutil.copytree(SCRIPTS, scripts)
    with (scripts / "lib/messages.sh").open("a") as file:
        file.write("kit::split() { set -f; }\n")
    told, expected = ([fact[:2] for fact in of(found, "fabric", "containers")] for found in (facts(scripts=scripts), facts()))
    assert told == expected


def test_a_line_is_never_longer_than_srun_hands_on_in_one_piece() -> None:
    path = f"/{'/'.join(['é' * 100] * 6)}"
    env = environment(KIT_RUN_DIR=str(SCRIPTS), LC_ALL="C.UTF-8")
    done = subprocess.run(["bash", str(SCRIPTS / "probe.sh"), f"mount={path}"], env=env, input=b"", capture_output=True, timeout=60, cwd="/")
    (line,) = [line for line in done.stdout.splitlines() if b"missing" in line and b"/\xc3" in line]
    assert len(line) == 900


def test_bash_does_not_warn_at_each_fact_of_a_locale_that_the_node_lacks() -> None:
    env = environment(KIT_RUN_DIR=str(SCRIPTS), LC_ALL="xx_XX.UTF-8")
    done = subprocess.run(["bash", str(SCRIPTS / "probe.sh")], env=env, input="", capture_output=True, text=True, timeout=60, cwd="/")
    assert "probe.sh: line" not in done.stderr  # a bash that starts says it once


@pytest.mark.parametrize("kind", ["same", "other", "missing", "folder", "not asked"])
def test_an_image_that_this_node_sees_differently_is_told(kind: str, tmp_path: Path) -> None:
    image = tmp_path / "an image.sif"
    image.write_bytes(b"then")
    then = fingerprint(image) or ""
    if kind == "missing":
        image.unlink()
    elif kind == "folder":
        image.unlink()
        image.mkdir()
    elif kind != "same":
        image.write_bytes(b"replaced")
    asked = [] if kind == "not asked" else [f"fingerprint={then}"]
    told = {"same": "ok", "other": "other", "missing": "missing", "folder": "ok", "not asked": "ok"}[kind]
    assert of(facts(f"image={image}", *asked), "image") == [["image", told]]


def test_an_image_is_started_only_where_that_is_asked_and_it_is_the_right_one(tmp_path: Path) -> None:
    image = tmp_path / "image.sif"
    image.write_bytes(b"x")
    stub(
        tmp_path / "bin",
        "apptainer",
        f'[[ -z "${{PYTHONPATH:-}}" ]] || exit 7\ncase "$2" in exec) touch "{tmp_path}/started"; ${{STUB_STARTS}} "${{@:9}}" ;; *) exit 1 ;; esac\n',
    )
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    variables = {"PATH": path, "STUB_STARTS": "env CUDA_VERSION=12.4", "PYTHONPATH": "/of/the/host"}
    assert of(facts(f"image={image}", **variables), "start", "image-cuda") == []
    assert of(facts(f"image={image}", "start=apptainer", "fingerprint=another", **variables), "image", "start") == [["image", "other"]]
    assert not (tmp_path / "started").exists()
    assert of(facts(f"image={image}", "start=apptainer", **variables), "start", "image-cuda") == [["start", "ok"], ["image-cuda", "12.4", ""]]
    variables["STUB_STARTS"] = "false"
    assert of(facts(f"image={image}", "start=apptainer", **variables), "start", "image-cuda") == [["start", ""]]


def test_a_file_that_names_an_image_is_not_looked_into(tmp_path: Path) -> None:
    (tmp_path / "ngc.toml").write_text('image = "nvcr.io#nvidia/pytorch:25.11-py3"\n')
    told = of(facts(f"image={tmp_path}/ngc.toml", "start=container-engine"), "image", "image-files", "start")
    assert told == [["image", "ok"], ["image", "remote"]]


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python that has made_up beside it, and nothing else."""
    stub(tmp_path / "own/bin", "python3", "exit 1\n")
    (tmp_path / "own/lib/python3.11/site-packages/madeup").mkdir(parents=True)
    return tmp_path / "own/bin/python3"


@pytest.mark.parametrize("runtime", ["none", "apptainer", "docker"])
def test_what_the_job_starts_is_looked_for_where_it_will_run(runtime: str, python: Path, tmp_path: Path) -> None:
    image = tmp_path / "an image.sif"
    image.write_bytes(b"x")
    stub(tmp_path / "bin", "apptainer", '[[ "$2" == exec ]] || exit 1\nPATH="${INSIDE}" exec "${@:9}"\n')
    stub(tmp_path / "bin", "docker", '[[ "$1" != image ]] || exit 0\n[[ "$1" == run ]] || exit 1\nPATH="${INSIDE}" exec "$6" "${@:8}"\n')
    inside = f"{python.parent}:/usr/bin:/bin"
    outside = f"{tmp_path}/bin:{inside if runtime == 'none' else '/usr/bin:/bin'}"
    asked = ["command=yes"] if runtime == "none" else ["command=yes", f"image={image}", f"start={runtime}"]

    def told(*more: str) -> list[list[str]]:
        return of(facts(*asked, *more, PATH=outside, INSIDE=inside), "python", "program", "start")[runtime != "none" :]

    assert told("module=madeup") == [["python", str(python), "madeup"]]
    assert told("module=nowhere") == [["python", str(python), ""]]
    stub(tmp_path / "own/bin", "python3", '[[ "${PYTHONPATH:-}" == /home/ada/packages ]]\n')
    assert told("module=nowhere", "pythonpath=/home/ada/packages") == [["python", str(python), "nowhere"]]
    stub(tmp_path / "own/bin", "tool", "")
    assert told("program=tool")[1:] == [["program", f"{tmp_path}/own/bin/tool"]]
    assert told("program=tool", "path=/usr/bin:/bin")[1:] == [["program", ""]]


def test_no_function_of_the_host_is_in_the_image_that_is_looked_into(tmp_path: Path) -> None:
    (tmp_path / "image.sif").touch()
    stub(tmp_path / "bin", "apptainer", f'env >{tmp_path}/environment\nexec "${{@:9}}"\n')
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    found = facts(f"image={tmp_path}/image.sif", "start=apptainer", PATH=path, **{"BASH_FUNC_which%%": "() { false; }"})
    assert of(found, "start") == [["start", "ok"]]
    assert "BASH_FUNC_" not in (tmp_path / "environment").read_text()


def test_the_nodes_network_is_told_and_what_the_image_lacks_for_it(tmp_path: Path) -> None:
    """Of a node and an image that are made up: in the scripts, other folders stand for their /."""
    scripts = tmp_path / "scripts"
    shutil.copytree(SCRIPTS, scripts)
    for name, was, now in (
        ("probe.sh", "fabric::look ''", f"fabric::look {tmp_path}/node"),
        ("probe.sh", "probe::make ''", f"probe::make {tmp_path}/node"),
        ("lib/contents.sh", "find_lacks ''", f"find_lacks {tmp_path}/inside"),
    ):
        text = (scripts / name).read_text()
        assert text.count(was) == 1
        (scripts / name).write_text(text.replace(was, now))
    port = tmp_path / "node/sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("1: DOWN\n")
    (port / "link_layer").write_text("InfiniBand\n")
    (port.parent.parent / "device").mkdir()
    (port.parent.parent / "device/uevent").write_text("DRIVER=mlx5_core\n")
    for file, text in (("sys/class/dmi/id/chassis_asset_tag", "a tag \n"), ("dev/nvidia-caps-imex-channels/channel0", "")):
        (tmp_path / "node" / file).parent.mkdir(parents=True)
        (tmp_path / "node" / file).write_text(text)
    (tmp_path / "node/dev/aperture_devices").mkdir()
    (tmp_path / "inside/usr/lib").mkdir(parents=True)
    (tmp_path / "inside/usr/lib/libibverbs.so.1").touch()
    (tmp_path / "image.sif").touch()
    stub(tmp_path / "bin", "apptainer", '[[ "$2" == exec ]] || exit 1\nexec "${@:9}"\n')
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    found = facts(f"image={tmp_path}/image.sif", "start=apptainer", scripts=scripts, PATH=path)
    assert of(found, "fabric", "chassis", "devices", "fabric-lacks", "start") == [
        ["fabric", "ib", "mlx5", "0", "mlx5_0/1"],
        ["chassis", "a tag"],
        ["devices", "/dev/nvidia-caps-imex-channels"],
        ["start", "ok"],
        ["fabric-lacks", "libmlx5-rdmav*.so /dev/infiniband/uverbs*"],
    ]


def test_a_range_of_ids_that_a_directory_has_is_told(tmp_path: Path) -> None:
    """On a path without grep, as /etc/subuid of this machine may have lines."""
    stub(tmp_path / "bin", "grep", "exit 1\n")
    stub(tmp_path / "bin", "getsubids", '[[ "$1" == -g ]] && start=200000 && shift || start=100000\necho "0: $1 ${start} 65536"\n')
    user = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
    found = of(facts(PATH=f"{tmp_path}/bin:{os.environ['PATH']}"), "subuid", "subgid")
    assert found == [["subuid", f"0: {user} 100000 65536"], ["subgid", f"0: {user} 200000 65536"]]


@pytest.mark.parametrize(("setting", "told"), [("1\n", "apparmor"), ("0\n", ""), (None, "")])
def test_that_apparmor_restricts_user_namespaces_is_told_where_unshare_may_make_none(setting: str | None, told: str, tmp_path: Path) -> None:
    scripts, sysctl = tmp_path / "scripts", tmp_path / "node/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
    shutil.copytree(SCRIPTS, scripts)
    text = (scripts / "probe.sh").read_text()
    assert text.count("probe::restriction ''") == 1
    (scripts / "probe.sh").write_text(text.replace("probe::restriction ''", f"probe::restriction '{tmp_path}/node'"))
    if setting:
        sysctl.parent.mkdir(parents=True)
        sysctl.write_text(setting)
    stub(tmp_path / "bin", "unshare", "echo 'unshare: write failed /proc/self/uid_map: Operation not permitted' >&2\nexit 1\n")
    found = of(facts(scripts=scripts, PATH=f"{tmp_path}/bin:{os.environ['PATH']}"), "namespaces")
    assert found == [["namespaces", "unshare: write failed /proc/self/uid_map: Operation not permitted", told]]


CUT = "echo 'GPU 0: x (UUID: GPU-1)'; echo '  MIG 3g.40gb     Device  0: (UUID: MIG-1)'; echo '  MIG 3g.40gb     Device  1: (UUID: MIG-2)'"


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        (CUT, [["gpus", "1", "0"], ["gpus-of-slurm", "2"], ["gpu", "x"]]),
        (f"{CUT}; echo 'GPU 1: y (UUID: GPU-2)'", [["gpus", "2", "0"], ["gpus-of-slurm", "3"], ["gpu", "x", "y"]]),
        ("echo 'GPU 1: y (UUID: GPU-2)'", [["gpus", "1", "0"], ["gpu", "y"]]),
        ("echo 'No devices were found'", [["gpus", "0", "0"]]),
        ("exec sleep 60", [["gpus", "0", "0", "nvidia-smi: has not answered within 1 s"]]),
    ],
)
def test_gpus_and_their_parts_are_counted_as_slurm_counts_them(listed: str, told: list[list[str]], tmp_path: Path) -> None:
    stub(tmp_path / "bin", "nvidia-smi", f'[[ "$1" == --list-gpus ]] || exit 0\n{listed}\n')
    patience_s = "1" if "sleep" in listed else "60"
    found = of(facts(PATH=f"{tmp_path}/bin:{os.environ['PATH']}", KIT_GPUS_TIMEOUT_S=patience_s), "gpus", "gpus-of-slurm", "gpu")
    assert [[*fact[:2], "0", *fact[3:]] if fact[0] == "gpus" else fact for fact in found] == told


@pytest.mark.parametrize(
    ("devices", "vendor", "count"),
    [
        ("drm/renderD128 drm/renderD129", "0x1002", "2"),
        ("accel/accel0 accel/accel1 accel/accel_controlD0", "0x1da3", "2"),
        ("drm/renderD128 drm/renderD129", "0x10de", "0"),  # NVIDIA's, by nouveau
    ],
)
def test_gpus_of_other_makes_count_though_nothing_lists_them(devices: str, vendor: str, count: str, tmp_path: Path) -> None:
    """Of AMD's in /sys/class/kfd the kernel shows a job only those that it has."""
    (tmp_path / "vendor").write_text(f"{vendor}\n")
    made = [["--dir", f"/sys/class/{name}/device", "--ro-bind", str(tmp_path / "vendor"), f"/sys/class/{name}/device/vendor"] for name in devices.split()]
    machine = ["bwrap", "--dev-bind", "/", "/", "--proc", "/proc", "--tmpfs", "/sys/class", *itertools.chain(*made)]
    found = of(facts(before=tuple(machine)), "gpus")
    assert [fact[:3] for fact in found] == [["gpus", "0", count]]


@pytest.mark.parametrize("says", ["Driver Version: 610.43 CUDA Version: 13.3", "KMD Version: 610.43 CUDA UMD Version: 13.3"])
def test_the_driver_is_named_in_the_words_of_old_and_new_ones(says: str, tmp_path: Path) -> None:
    stub(
        tmp_path / "bin",
        "nvidia-smi",
        f'case "$1" in --list-gpus) echo "GPU 0: x" ;; *) echo "| NVIDIA-SMI 610.43 {says} |"; echo "Product Brand : NVIDIA" ;; esac\n',
    )
    assert of(facts("command=yes", PATH=f"{tmp_path}/bin:{os.environ['PATH']}"), "driver") == [["driver", "610.43", "13.3", "nvidia"]]


def test_the_brand_of_the_gpus_is_known_in_turkish_whose_small_i_has_no_dot(tmp_path: Path) -> None:
    says = 'case "$1" in --list-gpus) echo "GPU 0: x" ;; *) echo "Driver Version: 550.1 CUDA Version: 12.4"; echo "Product Brand : NVIDIA RTX" ;; esac\n'
    stub(tmp_path / "bin", "nvidia-smi", says)
    variables = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", **turkish(tmp_path)}
    assert of(facts("command=yes", **variables), "driver") == [["driver", "550.1", "12.4", "nvidiartx"]]


def test_an_image_that_is_unpacked_is_looked_into_by_its_names(tmp_path: Path) -> None:
    tree, image = tmp_path / "tree", tmp_path / "image.sqsh"
    for name in ("usr/bin/python3", "usr/lib/python3/dist-packages/madeup/x", "opt/tool", "etc/environment", "usr/local/cuda-13.0/compat/libcuda.so.1"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    (tree / "etc/environment").write_text(
        "CUDA_VERSION=13.0.2\nNVIDIA_REQUIRE_CUDA=cuda>=13.0 brand=tesla,driver>=535,driver<536 brand=nvidia,driver>=550,driver<551\n"
    )
    subprocess.run(["mksquashfs", tree, image, "-quiet", "-no-progress"], check=True, capture_output=True)
    stub(
        tmp_path / "bin",
        "nvidia-smi",
        'case "$1" in --list-gpus) echo "GPU 0: x" ;; *) echo "Driver Version: 550.1 CUDA Version: 12.4"; echo "Product Brand : NVIDIA" ;; esac\n',
    )
    stub(tmp_path / "bin", "unsquashfs", f'[ "$1" != -cat ] || exit 1\nexec {shutil.which("unsquashfs")} "$@"\n')  # version 4.4 does not know that option
    asked = ["command=yes", f"image={image}", "start=enroot"]
    names = "unpack", "python", "program", "image-compat", "image-cuda", "driver"
    variables = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    assert of(facts(*asked, "module=madeup", "program=/opt/tool", **variables), *names) == [
        ["driver", "550.1", "12.4", "nvidia"],
        ["unpack", "ok"],
        ["python", "/usr/bin/python3", "madeup"],
        ["program", "/opt/tool"],
        ["image-compat", "/usr/local/cuda-13.0/compat/libcuda.so.1"],
        ["image-cuda", "13.0.2", "550 "],
    ]
    assert of(facts(*asked, "module=made", "program=too"), *names[:3]) == [["unpack", "ok"], ["python", "/usr/bin/python3", ""], ["program", ""]]
    image.write_bytes(image.read_bytes()[:100])
    ((_, compression, said),) = of(facts(*asked), "unpack")
    assert compression == "" and said
    words = "Filesystem uses zstd compression, this is unsupported by this version"
    stub(tmp_path / "bin", "unsquashfs", f"printf '%s\\n' '{words}' 'Decompressors available:' '\tgzip' >&2\nexit 1\n")
    assert of(facts(*asked, **variables), "unpack") == [["unpack", words, " gzip"]]


@pytest.mark.parametrize(("text", "told"), [("mark", ["folder", "ok"]), ("of another folder", ["folder", "other", "mark"])])
def test_a_folder_of_the_same_name_that_is_another_one_is_told(text: str, told: list[str], tmp_path: Path) -> None:
    (tmp_path / "mark").write_text("mark")
    (found,) = of(facts(f"folder={tmp_path}", f"mark={tmp_path}/mark", f"text={text}"), "folder")
    assert found[: len(told)] == told
    assert of(facts(f"folder={tmp_path}/none", "mark=x", "text=x"), "folder") == [["folder", "missing"]]


def test_mounts_and_scratch_that_this_user_cannot_use_are_told(open_folder: Path) -> None:
    scripts = open_folder / "scripts"
    shutil.copytree(SCRIPTS, scripts)
    modes = {"closed": 0, "listed": 0o444, "entered": 0o111}
    for name, mode in modes.items():
        (open_folder / name).mkdir()
        (open_folder / name).chmod(mode)
    (open_folder / "scratch").mkdir()
    (open_folder / "scratch").chmod(0o555)
    asked = [f"mount={open_folder}/{name}" for name in (*modes, "none", "scripts")]
    found = facts(*asked, f"scratch={open_folder}/scratch/deep", before=tuple(as_ordinary_user()), scripts=scripts)
    told = [(problem, source.split(" is of ")[0].rpartition("/")[2]) for _, problem, source in of(found, "mount")]
    assert told == [("unreadable", "closed"), ("unreadable", "listed"), ("missing", "none")]
    ((_, asked_for, place, able, *_),) = of(found, "scratch")
    assert (asked_for, place) == (f"{open_folder}/scratch/deep", f"{open_folder}/scratch")
    assert able.endswith(" with mode 555")


def test_a_scratch_from_which_no_code_can_be_loaded_is_told(tmp_path: Path) -> None:
    inside = ("unshare", "--map-root-user", "--mount", "bash", "-c", 'mount -t tmpfs -o noexec none "$0" && exec "$@"', str(tmp_path))
    assert of(facts(f"scratch={tmp_path}/deep", before=inside), "scratch-noexec") == [["scratch-noexec", str(tmp_path)]]
    assert of(facts(f"scratch={tmp_path}/deep"), "scratch-noexec") == []


def test_containers_that_nobody_makes_any_more_are_told_and_those_being_made_are_not(tmp_path: Path) -> None:
    data = tmp_path / f"kit-{os.getuid()}/enroot/data"
    for name in (".kit-1111111111111111.unfinished", ".kit-2222222222222222.unfinished", "kit-3333333333333333", "kit-4444444444444444", "mine"):
        (data / name).mkdir(parents=True)
    (data / "kit-4444444444444444/.kit-complete").write_text("image\n")
    with (data / ".kit-2222222222222222.lock").open("w") as lock:
        subprocess.run(["flock", str(lock.fileno())], pass_fds=[lock.fileno()], check=True)
        found = facts(f"scratch={tmp_path}")
    assert sorted(fact[1] for fact in of(found, "half-made")) == [f"{data}/.kit-1111111111111111.unfinished", f"{data}/kit-3333333333333333"]


def test_a_node_looks_up_itself_and_those_that_it_connects_to(tmp_path: Path) -> None:
    """Else as many nodes would ask a name server for as many names, all at once."""
    stub(tmp_path / "bin", "getent", f'echo "$2" >>{tmp_path}/names\necho 10.0.0.1\n')
    nodes = [f"node{number}" for number in range(1, 101)]
    facts(*(f"{name}:{name}" for name in nodes), PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    asked = set((tmp_path / "names").read_text().split()) & {*nodes}
    assert asked == {"node1", *nodes[6:23]}  # node7 and the 16 after it


def test_names_that_lead_back_to_this_node_are_told(tmp_path: Path) -> None:
    stub(tmp_path / "bin", "getent", 'case "$2" in n1) echo 10.0.0.1 ;; n2) echo 127.0.1.1 ;; n4) printf "127.0.0.1\\n10.0.0.4\\n" ;; esac; exit 0\n')
    found = facts("n1:n1", "n2:10.0.0.2", "n3:", "n4:n4", "n5:10.0.0.5", PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert of(found, "loopback-name", "unknown-name") == [["loopback-name", "n2", "127.0.1.1"], ["unknown-name", "n3"]]
