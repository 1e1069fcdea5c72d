"""What reaches the ranks: nothing of the submitting shell but what the job names, and the node's own, alike under every runtime."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from kit.runs import run_record
from kit.slurm import client
from running import SCRIPTS, STUBS, bash, environment, stub
from test_run_script import logs, run_dir, slurm, start, wrap_nodes

FUNCTION = "BASH_FUNC_which%%"  # as bash exports a function: /etc/profile.d of RHEL does so
SHELL = {
    **{"NCCL_ALGO": "Ring", "MY_SHELL_ONLY": "1", "HF_HOME": "/x", "CUDA_HOME": "/y", "OMP_NUM_THREADS": "7", "https_proxy": "http://p", "LC_ALL": "C"},
    **{"APPTAINERENV_A": "1", "NNODES": "5", "PYTHONPATH": "/shell", "TMPDIR": "/tmp"},
    FUNCTION: "() { false; }",
}
NODE = {"NCCL_IB_HCA": "mlx5_0", "UCX_TLS": "rc", "FI_PROVIDER": "efa", "GLOO_DEVICE": "a b", "CUDA_MPS_LOG_DIRECTORY": "/m", "TRACE_OF_PROLOG": "1"}
OWN = ("NCCL_IB_HCA", "UCX_TLS", "FI_PROVIDER", "GLOO_DEVICE", "CUDA_MPS_LOG_DIRECTORY")
PROLOG = "export " + " ".join(f"{name}='{value}'" for name, value in NODE.items()) + "\n"
JOB = (("NCCL_DEBUG", "INFO"), ("A", "of the job"))


def seen(folder: Path, runtime: str, shell: dict[str, str]) -> dict[str, str]:
    """The variables of a rank."""
    folder.mkdir()
    (folder / "image.sqsh").write_text("hsqs\netc/environment PATH=/usr/bin:/bin\netc/rc exit 0\n")
    wrap_nodes(folder / "bin", PROLOG)
    # Both hand on what they are told to, as the real ones do.
    stub(folder / "bin", "apptainer", f'until [[ "$1" == {folder}/image.sqsh ]]; do shift; done; shift; LD_LIBRARY_PATH= exec "$@"\n')
    stub(folder / "bin", "docker", '[[ "$1" == run ]] || exit 0\nuntil [[ "$1" == image ]]; do shift; done\nexec env -i PATH="$PATH" HOME=/ bash "${@:2}"\n')
    image = {"none": None, "docker": "docker://image"}.get(runtime, str(folder / "image.sqsh"))
    run = run_dir(folder, "exec env", runtime=runtime, image=image, env=JOB, scratch=str(folder))
    done = start(run, env=slurm(folders=(folder / "bin", STUBS), **shell))
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in logs(run)["rank0.out"].splitlines() if line != "}")


@pytest.mark.parametrize("runtime", ["none", "apptainer", "enroot", "docker"])
def test_ranks_get_the_same_variables_from_every_shell(runtime: str, open_folder: Path) -> None:
    one, two = (seen(open_folder / name, runtime, shell) for name, shell in (("one", {}), ("two", SHELL)))
    changing = {"KIT_BEGUN", "KIT_ENTERED", "KIT_PATH", "PATH", "APPTAINER_TMPDIR"}  # the last is for the real one alone
    kept = {"LC_ALL", "PYTHONPATH", "TMPDIR", FUNCTION} if runtime == "none" else set()
    differing = {name for name in {*one, *two} - changing if one.get(name, "").replace("/one", "/two") != two.get(name)}
    assert differing == kept - {name for name in kept if one.get(name) == two[name]}
    assert {name: two.get(name) for name in [*OWN, "NCCL_DEBUG", "A", "NNODES"]} == {**{name: NODE[name] for name in OWN}, **dict(JOB), "NNODES": "1"}
    assert not {"NCCL_ALGO", "MY_SHELL_ONLY", "HF_HOME", "CUDA_HOME", "https_proxy", "APPTAINERENV_A"} & two.keys()
    assert two["OMP_NUM_THREADS"] == "1"


ONE_CLUSTER = 'if [[ "${SLURM_CLUSTERS:-}" == *,* ]]; then echo "scontrol: fatal: Only one cluster can be used at a time with scontrol" >&2; exit 1; fi\n'


def test_a_job_asks_its_own_cluster_whatever_clusters_its_submitters_shell_named(tmp_path: Path) -> None:
    stub(tmp_path / "bin", "scontrol", f'{ONE_CLUSTER}exec {SCRIPTS / "local/scontrol"} "$@"\n')
    run = run_dir(tmp_path, "compgen -e | grep CLUSTERS || true")
    done = start(run, env=slurm(folders=(tmp_path / "bin",), SLURM_CLUSTERS="a,b", SBATCH_CLUSTERS="a,b"))
    assert (done.returncode, logs(run)["rank0.out"]) == (0, ""), done.stderr


@pytest.mark.parametrize(
    ("clusters", "cluster", "asked"),
    [("a,b", "b", "b"), ("all", "b", "b"), ("a", "b", "a"), ("a,b", "", "a,b"), ("", "b", "")],
    ids=["a list", "all", "one", "no Slurm", "none"],
)
def test_a_shell_of_kit_names_its_jobs_cluster_where_the_users_names_several(clusters: str, cluster: str, asked: str, tmp_path: Path) -> None:
    assert of_shell(tmp_path, "", clusters, cluster) == asked


@pytest.mark.parametrize(("cluster", "asked"), [("b", "b"), ("", "")], ids=["salloc", "kit shell --local"])
def test_a_shell_of_kit_names_the_cluster_that_its_job_has_chosen(cluster: str, asked: str, tmp_path: Path) -> None:
    assert of_shell(tmp_path, "#SBATCH --clusters=b\n", "", cluster) == asked


def of_shell(folder: Path, header: str, clusters: str, cluster: str) -> str:
    (folder / "run_script.sh").write_text(f"#!/bin/bash\n{header}")
    names = {"SLURM_CLUSTERS": clusters, "SLURM_CLUSTER_NAME": cluster, "KIT_RUN_DIR": str(folder)}
    script = 'source "$1"; environment::choose_cluster shell; env | sed -n "s/^SLURM_CLUSTERS=//p"'
    done = bash(script, SCRIPTS / "lib/environment.sh", env=environment(**{name: value for name, value in names.items() if value}))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_finds_slurm_and_the_jobs_cluster_reaches_the_last_step_of_kit_shell_and_nothing_of_its_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    finders = {f"SLURM_{name}" for name in ("CONF", "CONF_SERVER", "SACK_SOCKET", "JWT", "CLUSTERS")}
    values = dict.fromkeys([*finders, "SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_CONFIG"], "x")
    script = 'for name in messages environment exec; do source "${KIT_RUN_DIR}/lib/${name}.sh"; done; exec::forget_slurm; env | sed -n "s/^\\(S[LR]U[A-Z_]*\\)=.*/\\1/p"'
    done = bash(script, env={**environment(KIT_RUN_DIR=str(SCRIPTS)), **values})
    assert set(done.stdout.split()) & values.keys() == finders, done.stderr
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert client.environment().keys() & values.keys() == finders | {"SRUN_CPUS_PER_TASK"}  # what kit itself asks Slurm by


def test_times_of_a_jobs_keys_are_those_of_the_job_alone(tmp_path: Path) -> None:
    done = start(run_dir(tmp_path, "true", max_restarts=1), env=slurm(KIT_STALL_S="1", KIT_CHECKPOINT_S="1"))
    assert (done.returncode, "No such file" in done.stderr) == (0, False), done.stderr


def test_a_command_beside_the_ranks_gets_as_little_of_its_own_shell(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true")
    facts = ["KIT_HOSTS=local0", "NNODES=1", f"KIT_LOG_DIR={tmp_path}"]
    done = start(run, "attach", "local0", *facts, "--", "env", env=slurm(NCCL_ALGO="Ring", hosts="mine", SLURM_JOB_ID="1"))
    assert done.returncode == 0, done.stderr
    assert not {"NCCL_ALGO", "hosts"} & {line.partition("=")[0] for line in done.stdout.splitlines()}


def test_no_function_of_the_host_reaches_a_container_behind_the_jobs_own_lines_for_nodes(tmp_path: Path) -> None:
    """`module load` needs the host's functions there."""
    (tmp_path / "image.sif").touch()
    stub(tmp_path / "bin", "apptainer", f'until [[ "$1" == {tmp_path}/image.sif ]]; do shift; done; shift; exec "$@"\n')
    run = run_dir(tmp_path, "env", runtime="apptainer", image=str(tmp_path / "image.sif"), host_setup="which", scratch=str(tmp_path))
    done = start(run, env=slurm(folders=(tmp_path / "bin",), **{FUNCTION: "() { echo from the function; }"}))
    assert done.returncode == 0 and "from the function" in done.stdout, done.stderr
    assert FUNCTION not in logs(run)["rank0.out"]


def test_words_for_the_container_come_from_the_jobs_own_lines_for_nodes_and_not_from_the_shell(tmp_path: Path) -> None:
    """The modules of many sites set them, beside SINGULARITY_BIND: where their libraries for the network are."""
    (tmp_path / "image.sif").touch()
    stub(tmp_path / "bin", "apptainer", f'until [[ "$1" == {tmp_path}/image.sif ]]; do shift; done; shift; exec "$@"\n')
    module = "export SINGULARITYENV_LD_LIBRARY_PATH=/site/lib APPTAINERENV_A=1 OTHER=1"
    run = run_dir(tmp_path, "env", runtime="apptainer", image=str(tmp_path / "image.sif"), host_setup=module, scratch=str(tmp_path))
    done = start(run, env=slurm(folders=(tmp_path / "bin",), APPTAINERENV_B="of the shell"))
    assert done.returncode == 0, done.stderr
    seen = {line for line in logs(run)["rank0.out"].splitlines() if re.match("(APPTAINER|SINGULARITY)ENV_|OTHER", line)}
    assert seen == {"SINGULARITYENV_LD_LIBRARY_PATH=/site/lib", "APPTAINERENV_A=1"}


def bashs_own() -> dict[str, str]:
    """Return what bash sets in every shell, as a profile would export it. That of SLES exports HOSTTYPE, and many a ~/.bashrc UID."""
    listed = subprocess.run(["env", "-i", "bash", "-c", "export $(compgen -v); env -0"], stdout=subprocess.PIPE, text=True, check=True)
    own = dict(entry.split("=", 1) for entry in listed.stdout.split("\0")[:-1])
    return {name: value for name, value in own.items() if name not in ("_", "PATH", "PWD", "HOSTNAME", "SHELL", "TERM")}


@pytest.mark.parametrize("words", [(), ("attach", "local0", "KIT_HOSTS=local0", "NNODES=1", "KIT_FINGERPRINT=0", "KIT_LOG_DIR=log", "--", "true")])
def test_a_job_runs_where_the_profile_exports_what_bash_says_of_itself(words: tuple[str, ...], open_folder: Path) -> None:
    image = open_folder / "image.sif"
    image.touch()
    stub(open_folder / "bin", "apptainer", 'until [[ "$1" == */images/*.sif ]]; do shift; done; shift; exec "$@"\n')
    run = run_dir(open_folder, "true", runtime="apptainer", image=str(image), stage="local", cache="keep", scratch=str(open_folder))
    done = start(run, *words, env=slurm(folders=(open_folder / "bin", STUBS), **bashs_own()))
    assert done.returncode == 0 and "unbound variable" not in done.stderr, done.stderr


@pytest.mark.parametrize("forget", ["forget_shell", "forget_host"])
def test_the_scripts_find_what_bash_says_of_itself_and_hand_it_on_to_nobody(forget: str) -> None:
    scripts = "".join(re.sub(r"(?m)(^|\s)#.*", "", path.read_text()) for path in SCRIPTS.rglob("*") if path.suffix != ".py" and path.is_file())
    read = sorted(name for name in bashs_own() if re.search(rf"\$\{{?{name}\b", scripts))
    assert {"SECONDS", "UID"} <= set(read)
    script = (
        f'KIT_RUNTIME=none; source {SCRIPTS}/lib/environment.sh; environment::{forget}; for name; do [[ -v "${{name}}" ]] || echo "no ${{name}}"; done; env'
    )
    lines = bash(script, *read, env={**environment(), **bashs_own()}, check=True).stdout.splitlines()
    handed_on = {line.partition("=")[0] for line in lines if not line.startswith("BASH")}
    assert not [line for line in lines if line.startswith("no ")] and not handed_on & {*read, "SHELLOPTS"}


@pytest.mark.parametrize("name", run_record.FINDING)
def test_what_the_record_has_of_the_shell_stays_without_a_container(name: str) -> None:
    script = f"KIT_RUNTIME=none; source {SCRIPTS}/lib/environment.sh; environment::forget_shell; [[ -v {name} ]]; [[ ! -v OTHER ]]"
    env = {**environment(OTHER="1"), **({} if name in ("PATH", "LD_PRELOAD", "LD_LIBRARY_PATH") else {name: ""})}
    if name not in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
        bash(script, env=env, check=True)


@pytest.mark.parametrize("forget", ["forget_shell", "forget_host"])
def test_which_gpus_are_meant_and_by_which_order_stays(forget: str) -> None:
    script = (
        f"KIT_RUNTIME=none; source {SCRIPTS}/lib/environment.sh; environment::{forget}; echo ${{CUDA_DEVICE_ORDER-}} ${{CUDA_VISIBLE_DEVICES-}} ${{OTHER-}}"
    )
    done = bash(script, env=environment(CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES="1", OTHER="x"), check=True)
    assert done.stdout == "PCI_BUS_ID 1\n"


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "PALS_APINFO"])
def test_a_container_is_told_which_gpus_are_meant_and_where_mpi_begins(name: str) -> None:
    script = f'KIT_MOUNTS=() KIT_RUN_DIR={SCRIPTS}; source {SCRIPTS}/lib/node.sh; node::collect_facts; printf "%s\n" "${{KIT_NODE_FACTS[@]}}"'
    done = bash(script, env=environment(NNODES="1", KIT_GPUS_PER_NODE="0", **{name: "2"}), check=True)
    assert f"{name}=2" in done.stdout.splitlines()


def test_a_node_mounts_what_its_fabric_names(tmp_path: Path) -> None:
    (tmp_path / "mps").mkdir()
    (tmp_path / "topology.xml").touch()
    script = f'KIT_MOUNTS=() KIT_RUN_DIR={SCRIPTS}; source {SCRIPTS}/lib/node.sh; node::collect_facts; printf "%s\\n" "${{KIT_MOUNTS[@]}}"'
    env = environment(
        NNODES="1",
        KIT_GPUS_PER_NODE="0",
        CUDA_MPS_PIPE_DIRECTORY=str(tmp_path / "mps"),
        NCCL_TOPO_FILE=str(tmp_path / "topology.xml"),
        PMIX_SERVER_TMPDIR="/not/there",
    )
    places = [str(tmp_path / "mps"), str(tmp_path / "topology.xml")]
    assert bash(script, env=env, check=True).stdout.splitlines() == [places[0], places[0], "rw", places[1], places[1], "rw"]


@pytest.mark.parametrize(
    ("place", "target", "is_mounted"),
    [
        ("the job's", "", True),
        ("the job's", "/data", True),
        ("the job's", "{}-other", True),
        ("the job's", "{}", False),  # the job has something of its own there
        ("the job's", "{}/data", False),
        ("gone", "", False),
        ("/tmp", "", False),
    ],
)
def test_a_node_mounts_the_jobs_own_folder_that_the_site_makes(place: str, target: str, is_mounted: bool, tmp_path: Path) -> None:
    (tmp_path / "the job's").mkdir()
    path = str(tmp_path / place)
    mounts = ["/source", target.format(path), "ro"] if target else []
    script = f'KIT_MOUNTS=("${{@}}") KIT_RUN_DIR={SCRIPTS}; source {SCRIPTS}/lib/node.sh; node::collect_facts; printf "%s\\n" "${{KIT_MOUNTS[@]}}"'
    done = bash(script, *mounts, env=environment(NNODES="1", KIT_GPUS_PER_NODE="0", SLURM_TMPDIR=path), check=True)
    assert done.stdout.split("\n")[:-1] == ([*mounts, path, path, "rw"] if is_mounted else mounts or [""])


def test_a_node_says_on_which_kernel_driver_and_gpus_the_ranks_run(tmp_path: Path) -> None:
    models = {"0": "NVIDIA H100 80GB HBM3", "1": "NVIDIA H100 80GB HBM3", "2": "NVIDIA L4"}
    files = {f"proc/driver/nvidia/gpus/{place}/information": f"Model: \t\t {model}\nIRQ:   \t\t 1\n" for place, model in models.items()}
    files |= {"proc/sys/kernel/osrelease": "5.14.0-427.el9.x86_64\n", "sys/module/nvidia/version": "550.90.07\n"}
    script = f'KIT_RUN_DIR={SCRIPTS}; set -euo pipefail; source {SCRIPTS}/lib/node.sh; for root in "$@"; do node::describe "${{root}}"; echo "${{KIT_MACHINE}}"; done'
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    done = bash(script, str(tmp_path), "/nowhere", env=environment(KIT_GPUS_PER_NODE="0"), check=True)
    assert done.stdout == "Linux 5.14.0-427.el9.x86_64, NVIDIA 550.90.07, NVIDIA H100 80GB HBM3, NVIDIA L4\n\n"


PULLS_AND_STARTS = """
KIT_RUNTIME="$1" KIT_IMAGE=docker://image KIT_REMAP_ROOT='' KIT_MOUNTS=() KIT_ENV=() SLURM_JOB_ID=1 SLURM_PROCID=0
for file in lib/messages lib/environment "runtimes/$1"; do source "${KIT_RUN_DIR}/${file}.sh"; done
environment::forget_shell
runtime::prepare
runtime::exec true
"""


@pytest.mark.parametrize(("runtime", "handed_on"), [("docker", {"SSL_CERT_FILE", "https_proxy"}), ("podman", {"SSL_CERT_FILE"})])
def test_an_engine_pulls_by_the_shells_proxy_which_podman_would_hand_on(runtime: str, handed_on: set[str], tmp_path: Path) -> None:
    stub(tmp_path / "bin", runtime, f'compgen -e | grep -E "^(HF_HOME|SSL_CERT_FILE|https_proxy)$" >"{tmp_path}/$1"\n')
    env = environment(tmp_path / "bin", KIT_RUN_DIR=str(SCRIPTS), HF_HOME="/x", SSL_CERT_FILE="/y", https_proxy="http://p")
    done = bash(PULLS_AND_STARTS, runtime, env=env)
    assert done.returncode == 0, done.stderr
    assert set((tmp_path / "image").read_text().split()) == {"SSL_CERT_FILE", "https_proxy"}
    assert set((tmp_path / "run").read_text().split()) == handed_on
