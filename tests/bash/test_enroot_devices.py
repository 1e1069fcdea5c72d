"""What Enroot's hooks for GPUs and for Mellanox's adapters are told. Neither is here: bwrap puts files in their places."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from running import SCRIPTS, bash, environment, stub

SET = 'KIT_RUN_DIR="$1"; source "$1/lib/messages.sh"; source "$1/lib/enroot.sh"; enroot::set_devices; env'
NAMES = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "MELLANOX_VISIBLE_DEVICES")
MLX5 = "/sys/bus/pci/drivers/mlx5_core/0000:3b:00.0/infiniband_verbs"
EFA = "/sys/bus/pci/drivers/efa/0000:00:1d.0/infiniband_verbs"


def told(tmp_path: Path, gpu: bool = False, adapter: str = "", script: str = SET, **variables: str) -> list[str]:
    """The hooks' variables on a node with /dev/nvidiactl, and with that folder of an adapter's driver."""
    (tmp_path / "nvidiactl").touch()
    machine = ["--dev", "/dev", "--tmpfs", "/sys/bus"]
    machine += ["--ro-bind", str(tmp_path / "nvidiactl"), "/dev/nvidiactl"] if gpu else []
    machine += ["--dir", "/dev/infiniband", "--dir", adapter] if adapter else []
    env = environment(tmp_path / "bin", TMPDIR=str(tmp_path), **variables)
    env = {name: value for name, value in env.items() if name not in NAMES or name in variables}
    command = ["bwrap", "--dev-bind", "/", "/", *machine, "bash", "-c", f"set -euo pipefail\n{script}", "bash", str(SCRIPTS)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return sorted(line for line in done.stdout.splitlines() if line.partition("=")[0] in NAMES)


def image(tmp_path: Path, environment: str) -> str:
    (tmp_path / "files/etc").mkdir(parents=True)
    (tmp_path / "files/etc/environment").write_text(environment)
    path = tmp_path / "an image.sqsh"
    subprocess.run(["mksquashfs", tmp_path / "files", path, "-quiet", "-no-progress"], check=True, capture_output=True)
    return str(path)


@pytest.mark.parametrize(
    ("adapter", "variables", "expected"),
    [
        ("", {}, []),
        (EFA, {}, []),  # which the hook would hide
        (MLX5, {}, ["MELLANOX_VISIBLE_DEVICES=all"]),
        (MLX5, {"MELLANOX_VISIBLE_DEVICES": "0"}, ["MELLANOX_VISIBLE_DEVICES=0"]),
        (EFA, {"MELLANOX_VISIBLE_DEVICES": "void"}, ["MELLANOX_VISIBLE_DEVICES=void"]),
    ],
)
def test_mellanox_hook_is_for_mellanox_adapters_alone(adapter: str, variables: dict[str, str], expected: list[str], tmp_path: Path) -> None:
    assert told(tmp_path, adapter=adapter, **variables) == [*expected, "NVIDIA_VISIBLE_DEVICES=void"]


@pytest.mark.parametrize(
    ("of_image", "variables", "expected"),
    [
        ("PATH=/usr/bin\n", {}, ["NVIDIA_DRIVER_CAPABILITIES=compute,utility"]),
        ("PATH=/usr/bin\nNVIDIA_DRIVER_CAPABILITIES=compute,utility,video\n", {}, []),
        ("NVIDIA_DRIVER_CAPABILITIES=all\n", {"NVIDIA_DRIVER_CAPABILITIES": "compute"}, ["NVIDIA_DRIVER_CAPABILITIES=compute"]),
    ],
)
def test_parts_of_the_driver_are_named_where_the_image_names_none(of_image: str, variables: dict[str, str], expected: list[str], tmp_path: Path) -> None:
    assert told(tmp_path, gpu=True, KIT_IMAGE=image(tmp_path, of_image), **variables) == [*expected, "NVIDIA_VISIBLE_DEVICES=all"]
    assert not list(tmp_path.glob("kit-image.*"))


def test_an_image_that_cannot_be_read_here_gets_the_usual_parts(tmp_path: Path) -> None:
    expected = ["NVIDIA_DRIVER_CAPABILITIES=compute,utility", "NVIDIA_VISIBLE_DEVICES=all"]
    assert told(tmp_path, gpu=True, KIT_IMAGE="/not/here.sqsh") == expected
    assert not list(tmp_path.glob("kit-image.*"))


@pytest.mark.parametrize("adapters", [("mlx5", "mlx5"), ("mlx5", "")])
def test_from_a_login_node_each_of_the_jobs_nodes_is_asked_in_one_step(adapters: tuple[str, str], tmp_path: Path) -> None:
    """`kit exec` under Pyxis: a device counts where all nodes have it."""
    lines = "".join(f"(compgen() {{ [[ $2 == *mlx5* && -n '{adapter}' ]]; }}; export -f compgen; \"$@\")\n" for adapter in adapters)
    stub(tmp_path / "bin", "srun", f'echo x >>"{tmp_path}/steps"\nshift\n{lines}')
    found = told(tmp_path, gpu=True, script=f"KIT_ON_NODE=(srun --overlap)\n{SET}")
    assert found == [*(["MELLANOX_VISIBLE_DEVICES=all"] if all(adapters) else []), "NVIDIA_VISIBLE_DEVICES=void"]
    assert (tmp_path / "steps").read_text() == "x\n"


def test_without_an_answer_no_device_is_asked_for(tmp_path: Path) -> None:
    stub(tmp_path / "bin", "srun", "exit 1\n")
    assert told(tmp_path, gpu=True, adapter=MLX5, script=f"KIT_ON_NODE=(srun)\n{SET}") == ["NVIDIA_VISIBLE_DEVICES=void"]


@pytest.mark.parametrize(("modprobe", "said"), [('touch "${DEV}/nvidia-uvm"', ""), ("exit 1", "this node has no /dev/nvidia-uvm")])
def test_a_node_that_was_just_booted_gets_what_cuda_needs_before_its_containers(modprobe: str, said: str, tmp_path: Path) -> None:
    stub(tmp_path / "bin", "nvidia-modprobe", f'[[ "$*" == "-u -c 0" ]] || exit 2\n{modprobe}\n')
    script = 'source "${KIT_RUN_DIR}/lib/messages.sh"; source "${KIT_RUN_DIR}/lib/gpus.sh"; gpus::bring_memory "$1"'
    settings = {"KIT_RUN_DIR": str(SCRIPTS), "DEV": str(tmp_path)}
    assert bash(script, tmp_path, env=environment(tmp_path / "bin", **settings)).stderr == ""  # no driver
    (tmp_path / "nvidiactl").touch()
    done = bash(script, tmp_path, env=environment(tmp_path / "bin", **settings))
    assert done.returncode == 0 and said in done.stderr and bool(done.stderr) == bool(said)
