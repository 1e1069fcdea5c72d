"""What torchrun is told of the nodes. A stub stands in for the Python that has torch: it prints its arguments."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from running import environment, stub
from test_run_script import run_dir


def arguments(folder: Path, node: int, machine: tuple[str, ...] = (), binding: tuple[str, ...] = (), **plan: object) -> list[str]:
    """The words of `python3 -m torch.distributed.run` on a node of three, of which one has the others' addresses."""
    stub(
        folder / "bin",
        "python3",
        'printf "%s\\0" "$@"\nprintf "%s" "${TORCH_DISABLE_SHARE_RDZV_TCP_STORE:-}" >"${KIT_RUN_DIR}/own-store"\nexport -p >"${KIT_RUN_DIR}/environment"\n',
    )
    (folder / "lib/python3.11/site-packages/torch").mkdir(parents=True, exist_ok=True)
    run = run_dir(folder / f"{node}", "echo $$ ${RANK}", nodes=3, processes=4, launcher="torchrun", workdir="/", **plan)
    (run / "addresses").write_text("10.0.0.1\n10.0.0.2\n10.0.0.3\n")
    facts = {"NNODES": 3, "NODE_RANK": node, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": 61000, "KIT_LOG_DIR": run / "log", "KIT_RENDEZVOUS_ID": "77.0"}
    words = [f"{name}={value}" for name, value in {**facts, "KIT_ADDRESSES": run / "addresses"}.items()]
    done = subprocess.run([*machine, "bash", "torchrun.sh", *words], cwd=run, env=environment(folder / "bin"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = done.stdout.split("\0")[:-1]
    common = [
        "--nproc-per-node",
        "4",
        "--rdzv-id",
        "77.0",
        "--max-restarts",
        str(plan.get("max_restarts", 0) if plan.get("elastic") else 0),
        *binding,
        "--log-dir",
        f"{run}/log/.torchrun",
    ]
    # Else ranks would find the addresses of those that are gone.
    assert (run / "own-store").read_text() == ("1" if plan.get("elastic") else "")
    # torchrun makes $ of $$.
    end = [*common, "--no-python", found[-7], f"{run}/torchrun.sh", "--rank", "/", "bash", "-c", "echo $$$$ $${RANK}"]
    assert found[:2] == ["-m", "torch.distributed.run"] and found[-len(end) :] == end
    return found[2 : -len(end)]


@pytest.mark.parametrize("node", [0, 1, 2])
def test_each_node_says_its_own_address_where_torchrun_restarts_the_ranks(node: int, tmp_path: Path) -> None:
    endpoint = ["--nnodes", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint", "10.0.0.1:61000"]
    is_host = "true" if node == 0 else "false"
    assert arguments(tmp_path, node, max_restarts=2, elastic=True) == [*endpoint, "--rdzv-conf", f"is_host={is_host}", "--local-addr", f"10.0.0.{node + 1}"]


@pytest.mark.parametrize("node", [0, 2])
def test_ranks_follow_the_nodes_where_none_is_restarted(node: int, tmp_path: Path) -> None:
    assert arguments(tmp_path, node, ready_timeout_s=7200) == ["--nnodes", "3", "--node-rank", f"{node}", "--master-addr", "10.0.0.1", "--master-port", "61000"]


@pytest.mark.parametrize(("ready_timeout_s", "waits"), [(7200, 7200), (60, 900)])
def test_torchrun_waits_for_a_node_whose_setup_takes_longer(ready_timeout_s: int, waits: int, tmp_path: Path) -> None:
    assert arguments(tmp_path, 0, ready_timeout_s=ready_timeout_s, setup="true\n")[-2:] == ["--rdzv-conf", f"timeout={waits}"]


def test_torchrun_waits_for_a_late_setup_where_it_restarts_the_ranks(tmp_path: Path) -> None:
    late = arguments(tmp_path, 1, max_restarts=2, elastic=True, ready_timeout_s=7200, setup="true\n")
    assert late[late.index("--rdzv-conf") + 1] == "is_host=false,read_timeout=7200,join_timeout=7200"


@pytest.mark.parametrize("share", ["", "group"])
def test_a_rank_is_told_that_its_log_is_shared(share: str, tmp_path: Path) -> None:
    arguments(tmp_path, 0, share=share)
    assert ('KIT_SHARE="group"\n' in (tmp_path / "0/run/environment").read_text()) == bool(share)


TWO_SOCKETS = ("--tmpfs", "/sys/devices/system", "--dir", "/sys/devices/system/node/node0", "--dir", "/sys/devices/system/node/node1")


@pytest.mark.parametrize(
    "lacks",
    ["nothing", "a second socket", "a GPU's driver", "a GPU for each rank", "CPUs that the job may use", "numactl", "numactl on the job's PATH", "torch 2.9"],
)
def test_ranks_are_bound_to_the_cpus_beside_their_gpus_where_torch_can_do_that(lacks: str, tmp_path: Path) -> None:
    """bwrap and stubs make the node: torchrun would end where it cannot bind a rank."""
    (tmp_path / "nvidiactl").touch()
    stub(tmp_path / "bin", "getconf", "echo 16\n")
    stub(tmp_path / "bin", "nproc", f'[[ -z "${{OMP_NUM_THREADS:-}}" ]] && echo {15 if lacks == "CPUs that the job may use" else 16}\n')
    if lacks != "numactl":
        stub(tmp_path / "bin", "numactl", "exit 1\n")
    numa = tmp_path / "lib/python3.11/site-packages/torch/numa"
    numa.mkdir(parents=True)
    if lacks != "torch 2.9":
        (numa / "binding.py").touch()
    machine = ["bwrap", "--dev-bind", "/", "/", "--dev", "/dev", "--ro-bind", "/dev/null", "/dev/nvidia0"]
    machine += ["--ro-bind", str(tmp_path / "nvidiactl"), "/dev/nvidiactl"] if lacks != "a GPU's driver" else []
    machine += TWO_SOCKETS[: -2 if lacks == "a second socket" else None]
    gpus = 3 if lacks == "a GPU for each rank" else 4
    binding = ("--numa-binding", "node") if lacks == "nothing" else ()
    (tmp_path / "job").mkdir()
    (tmp_path / "job/bash").symlink_to(str(shutil.which("bash")))
    env = (("PATH", f"{tmp_path}/job"),) if lacks == "numactl on the job's PATH" else ()
    arguments(tmp_path, 0, machine=tuple(machine), binding=binding, gpus_per_node=gpus, env=env)


@pytest.mark.parametrize(
    ("image", "problem", "fix"),
    [
        (
            "",
            "no python3 or python on PATH has torch (looked in /nowhere)",
            "activate the environment that has it (or pip install torch), and start again; or ",
        ),
        ("a.sif", "no python3 or python on PATH in the image has torch (looked in /nowhere)", "name an image that has it: "),
    ],
)
def test_where_no_python_has_torch_an_image_is_spoken_of_only_where_there_is_one(image: str, problem: str, fix: str) -> None:
    lib = Path(__file__).parents[2] / "launch/scripts/lib"
    script = 'source "$1/messages.sh"; source "$1/program.sh"; PATH=/stand-ins/local:/nowhere; program::lack torch'
    env = {"KIT_IMAGE": image, "KIT_LOOPBACK": "1", "SLURMD_NODENAME": "local0"}
    done = subprocess.run(["/bin/bash", "-c", script, "bash", str(lib)], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.startswith(f"kit: error: local0: {problem}\n  fix: {fix}"), done.stderr
    assert ("`launcher: srun`" in done.stderr) == (not image)


def test_a_python_that_leads_to_nothing_is_named_where_none_has_torch(tmp_path: Path) -> None:
    """As one of uv's in /root, into which only root may look, or which a later stage of the recipe has not copied."""
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python3").symlink_to("/root/.local/share/uv/python/nowhere/bin/python3.12")
    lib = Path(__file__).parents[2] / "launch/scripts/lib"
    script = f'source "$1/messages.sh"; source "$1/program.sh"; PATH={tmp_path}/venv/bin; program::lack torch'
    env = {"KIT_IMAGE": "a.sif", "SLURMD_NODENAME": "node7"}
    done = subprocess.run(["/bin/bash", "-c", script, "bash", str(lib)], env=env, capture_output=True, text=True, timeout=60)
    assert f"  fix: look at {tmp_path}/venv/bin/python3: what it leads to is not there, or this user may not enter" in done.stderr
    assert "; or name an image that has it" in done.stderr
