"""The lines that sbatch reads, in full."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import site_slurm

ALWAYS = {"job-name": "x", "nodes": "2", "chdir": "{run}", "output": "log/slurm-%j.out", "open-mode": "append"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), {"ntasks-per-node": "1", "cpus-per-task": "1", "no-requeue": ""}),
        (("-j", "2x4", "--gpus-per-node", "4"), {"ntasks-per-node": "1", "gpus-per-node": "4", "cpus-per-task": "4", "no-requeue": ""}),
        (("-j", "2x4", "--launcher", "srun"), {"ntasks-per-node": "4", "cpus-per-task": "1", "no-requeue": ""}),
        # A process that drives several GPUs loads the data for all of them.
        (
            ("--launcher", "tensorflow", "--gpus-per-node", "8"),
            {"ntasks-per-node": "1", "gpus-per-node": "8", "cpus-per-task": "8", "no-requeue": ""},
        ),
        (
            ("-j", "2x2", "--launcher", "srun", "--gpus-per-node", "8"),
            {"ntasks-per-node": "2", "gpus-per-node": "8", "cpus-per-task": "4", "no-requeue": ""},
        ),
        (("--slurm", "requeue"), {"ntasks-per-node": "1", "cpus-per-task": "1", "requeue": ""}),
        (("--slurm", "gres=gpu:2", "--gpus-per-node", "2"), {"ntasks-per-node": "1", "gres": "gpu:2", "cpus-per-task": "2", "no-requeue": ""}),
        # What names no GPU asks for none.
        (
            ("--slurm", "gres=nvme:1", "--slurm", "tres-per-task=license/x:1", "--gpus-per-node", "2"),
            {"ntasks-per-node": "1", "gres": "nvme:1", "tres-per-task": "license/x:1", "gpus-per-node": "2", "cpus-per-task": "2", "no-requeue": ""},
        ),
        (
            ("--slurm", "tres-per-task=cpu:4,gres/gpu:2", "--gpus-per-node", "2"),
            {"ntasks-per-node": "1", "tres-per-task": "cpu:4,gres/gpu:2", "no-requeue": ""},  # not --cpus-per-task as well, which sbatch refuses
        ),
        (("--slurm", "exclusive"), {"ntasks-per-node": "1", "exclusive": "", "no-requeue": ""}),
        (("--slurm", "exclusive=user"), {"ntasks-per-node": "1", "exclusive": "user", "cpus-per-task": "1", "no-requeue": ""}),
        # 0 is no limit; one second more than the notice is enough.
        (("--time", "0", "--on-preempt", "checkpoint"), {"ntasks-per-node": "1", "time": "0", "cpus-per-task": "1", "requeue": "", "signal": "B:USR1@120"}),
        (
            ("--time", "00:02:01", "--on-preempt", "checkpoint"),
            {"ntasks-per-node": "1", "time": "00:02:01", "cpus-per-task": "1", "requeue": "", "signal": "B:USR1@120"},
        ),
        (("--time", "5", "--on-preempt", "checkpoint"), {"ntasks-per-node": "1", "time": "5", "cpus-per-task": "1", "requeue": "", "signal": "B:USR1@120"}),
        (
            ("--time", "7-0", "--on-preempt", "checkpoint", "--checkpoint-s", "65535"),
            {"ntasks-per-node": "1", "time": "7-0", "cpus-per-task": "1", "requeue": "", "signal": "B:USR1@65535"},
        ),
        (
            ("--on-preempt", "requeue", "--checkpoints", "out/", "--checkpoint-s", "60"),
            {"ntasks-per-node": "1", "cpus-per-task": "1", "requeue": "", "signal": "B:USR1@60"},
        ),
    ],
)
def test_slurm_is_told_what_was_asked_for_and_nothing_else(options: tuple[str, ...], expected: dict[str, str], tmp_path: Path, kit_here, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "train.py").touch()
    shape = () if "-j" in options else ("-j", "2x1")
    done = kit_here("submit", "train.py", "--name", "x", "--runtime", "none", "--output", "run", "--code", "live", "--dry-run", *shape, *options)
    assert done.code == 0, done.err
    found = options_of(done.out)
    assert found == {**ALWAYS, "chdir": str(tmp_path / "run"), **expected}


def options_of(script: str) -> dict[str, str]:
    lines = [line[len("#SBATCH --") :].partition("=") for line in script.splitlines() if line.startswith("#SBATCH")]
    found = {name: value.strip("\"'") for name, _, value in lines}
    assert len(lines) == len(found)
    return found


@pytest.mark.parametrize("own", ["mem", "mem-per-cpu", "mem-per-gpu"])
def test_the_jobs_memory_goes_over_any_kind_that_the_profile_names(own: str, tmp_path: Path, kit_here, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "site.yaml").write_text("slurm: {mem-per-cpu: 4G, account: x}\n")
    done = kit_here("submit", "train.py", "--cluster", "./site.yaml", "--runtime", "none", "--code", "live", "--slurm", f"{own}=64G", "--dry-run")
    assert done.code == 0, done.err
    found = options_of(done.out)
    assert {name: value for name, value in found.items() if name.startswith(("mem", "account"))} == {own: "64G", "account": "x"}


def test_memory_that_is_typed_goes_over_any_kind_in_the_file(tmp_path: Path, kit_here, monkeypatch) -> None:
    """As `kit why` advises after a job that ran out of memory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("command: [bash, -c, 'true']\nslurm: {mem-per-cpu: 4G}\n")
    done = kit_here("submit", "--runtime", "none", "--code", "live", "--slurm", "mem=0", "--dry-run")
    assert done.code == 0, done.err
    assert {name: value for name, value in options_of(done.out).items() if name.startswith("mem")} == {"mem": "0"}


@pytest.mark.parametrize("place", ["the profile", "the file"])
@pytest.mark.parametrize(("typed", "other"), [("cpus-per-task", "cpus-per-gpu"), ("cpus-per-gpu", "cpus-per-task")])
def test_cpus_that_are_typed_go_over_those_counted_in_the_other_way(typed: str, other: str, place: str, tmp_path: Path, kit_here, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    own, site = (f"slurm: {{{other}: 8}}" if place == here else "" for here in ("the file", "the profile"))
    (tmp_path / "job.yaml").write_text(f"command: [bash, -c, 'true']\ncluster: ./site.yaml\n{own}\n")
    (tmp_path / "site.yaml").write_text(f"description: x\n{site}\n")
    done = kit_here("submit", "--runtime", "none", "--code", "live", "--gpus-per-node", "8", "--slurm", f"{typed}=64", "--dry-run")
    assert done.code == 0, done.err
    assert {name: value for name, value in options_of(done.out).items() if name.startswith("cpus")} == {typed: "64"}


def test_an_alternative_that_is_switched_off_replaces_nothing(tmp_path: Path, kit_here, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("command: [bash, -c, 'true']\nslurm: {cpus-per-task: 4, mem: 8G}\n")
    off = ("--slurm", "cpus-per-gpu=no", "--slurm", "mem-per-cpu=no")
    done = kit_here("submit", "--runtime", "none", "--code", "live", *off, "--dry-run")
    assert done.code == 0, done.err
    found = options_of(done.out)
    assert (found["cpus-per-task"], found["mem"]) == ("4", "8G")


def test_gpus_are_added_to_another_gres_where_the_site_wants_them_there(tmp_path: Path, kit_here, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "site.yaml").write_text("gpu_directive: gres\n")
    where = ("--cluster", "./site.yaml", "--runtime", "none", "--code", "live")
    done = kit_here("submit", "train.py", *where, "--gpus-per-node", "2", "--slurm", "gres=nvme:1", "--dry-run")
    assert done.code == 0, done.err
    assert options_of(done.out)["gres"] == "gpu:2,nvme:1"


@pytest.mark.parametrize(
    ("options", "defaults", "cpus"),
    [
        (("--gpus-per-node", "2"), "DefCpuPerGPU=8,DefMemPerGPU=100", None),
        (("--gpus-per-node", "2"), "DefMemPerGPU=100", "2"),
        (("--gpus-per-node", "2", "--slurm", "cpus-per-task=3"), "DefCpuPerGPU=8", "3"),
        ((), "DefCpuPerGPU=8", "1"),
        ((), "(null) Exclusive=NODE", None),
        (("--gpus-per-node", "2"), "(null) Exclusive=NODE", None),
        (("--slurm", "cpus-per-task=3"), "(null) Exclusive=NODE", "3"),
    ],
)
def test_a_site_that_counts_cpus_by_gpus_or_gives_whole_nodes_is_not_overridden(
    options: tuple[str, ...], defaults: str, cpus: str | None, tmp_path: Path, kit_here, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = site_slurm.put(tmp_path / "slurm", monkeypatch)
    file = place / "partitions.txt"
    file.write_text(file.read_text().replace("PartitionName=gpu ", f"PartitionName=gpu JobDefaults={defaults} "))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    done = kit_here("submit", "train.py", "--runtime", "none", "--code", "live", "--slurm", "partition=gpu", "--dry-run", *options)
    assert done.code == 0, done.err
    assert options_of(done.out).get("cpus-per-task") == cpus


@pytest.mark.parametrize(("plugins", "cpus"), [("(null)", None), ("lua", "1")])
def test_a_default_partition_gives_whole_nodes_where_no_plugin_may_choose_another(
    plugins: str, cpus: str | None, tmp_path: Path, kit_here, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = site_slurm.put(tmp_path / "slurm", monkeypatch)
    file = place / "partitions.txt"
    file.write_text(re.sub(r"PartitionName=(?=.* Default=YES)", "Exclusive=NODE PartitionName=", file.read_text()))
    with (place / "config.txt").open("a") as config:
        config.write(f"JobSubmitPlugins = {plugins}\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    done = kit_here("submit", "train.py", "--runtime", "none", "--code", "live", "--dry-run")
    assert done.code == 0, done.err
    assert options_of(done.out).get("cpus-per-task") == cpus


@pytest.mark.parametrize(
    "option",
    ["gres=gpu:8", "gres=gpu:a100:8", "gres=gpu:a100:6,nvme:1,gres/gpu:h100:2", "tres-per-task=gres/gpu=8", "gpus-per-task=a100:8", "gpus=16", "gpus=no"],
)
def test_any_option_of_sbatch_may_ask_for_the_gpus_of_the_key(option: str, tmp_path: Path, kit_here, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    done = kit_here("submit", "train.py", "--runtime", "none", "-j", "2x8", "--gpus-per-node", "8", "--slurm", option, "--dry-run")
    assert (done.code, "warning" in done.err) == (0, False), done.err
    assert ("gpus-per-node" in options_of(done.out)) == (option == "gpus=no")


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        (("gres=gpu:a100:8,nvme:1",), 8),
        (("gpus=16",), 8),
        (("gpus-per-socket=4", "sockets-per-node=2"), 8),
        (("gpus-per-socket=4",), 0),  # of an unknown number of sockets
        (("gpus=15",), 0),  # no number of each node
        (("gres=nvme:1",), 0),
    ],
)
def test_the_scripts_know_the_gpus_that_only_an_option_of_sbatch_asks_for(options: tuple[str, ...], gpus: int, tmp_path: Path, kit_here, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    own = [word for option in options for word in ("--slurm", option)]
    done = kit_here("submit", "train.py", "--runtime", "none", "-j", "2x8", *own, "--dry-run")
    assert (done.code, "warning" in done.err) == (0, False), done.err
    assert f"\nKIT_GPUS_PER_NODE={gpus} " in done.out and "\nNPROC_PER_NODE=8\n" in done.out
    assert "gpus-per-node" not in options_of(done.out)


def test_ranks_that_share_the_gpus_of_an_option_are_noticed(tmp_path: Path, kit_here, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    done = kit_here("submit", "train.py", "--runtime", "none", "-j", "2x8", "--slurm", "gpus-per-task=1", "--dry-run")
    assert (done.code, done.err.splitlines()[:2]) == (
        0,
        [
            "kit: -j: warning: 8 ranks on each node share 1 GPU, and NCCL refuses two ranks on one GPU",
            "  fix: write `processes_per_node: 1`, or `gpus_per_node: 8` instead of `gpus-per-task`",
        ],
    )


def test_a_job_without_gpus_does_not_get_those_of_the_profile(tmp_path: Path, kit_here, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KIT_CLUSTERS", str(tmp_path))
    (tmp_path / "train.py").touch()
    (tmp_path / "lab.yaml").write_text("slurm: {gres: 'gpu:8'}\n")
    command = ("submit", "train.py", "--cluster", "lab", "--runtime", "none", "--gpus-per-node", "0", "--dry-run")
    done = kit_here(*command)
    assert (done.code, done.err) == (
        2,
        f"kit: {tmp_path}/lab.yaml:1: 'gres' asks for 8 GPUs on each node, and `gpus_per_node` for 0\n"
        "  fix: write `gpus_per_node: 8`, or take the GPUs out of gres, for this job alone: `slurm: {gres: no}`\n",
    )
    assert "gres" not in options_of(kit_here(*command, "--slurm", "gres=no").out)


@pytest.mark.parametrize(
    ("launcher", "gpus", "bind", "is_refused"),
    [
        ("torchrun", "2", "single:1", True),
        ("srun", "2", "per_task:1", True),
        ("srun", "2", "map:0,1", True),
        ("torchrun", "2", "verbose,mask:0x1", True),
        ("srun", "2", "closest", False),
        ("torchrun", "2", "verbose,closest", False),
        ("srun", "2", "none", False),
        ("srun", "1", "single:1", False),
    ],
)
def test_tasks_are_not_bound_to_some_of_several_gpus(launcher: str, gpus: str, bind: str, is_refused: bool, tmp_path: Path, kit_here, monkeypatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    options = ("--runtime", "none", "--launcher", launcher, "--gpus-per-node", gpus, "--slurm", f"gpu-bind={bind}")
    done = kit_here("submit", "train.py", *options, "--dry-run")
    refusal = f"with gpu-bind {bind} each task sees only some GPUs of its node"
    assert (refusal in done.err, done.code != 0) == (is_refused, is_refused), done.err


def test_the_gpus_of_the_profile_are_compared_with_those_of_the_command_line(tmp_path: Path, kit_here, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KIT_CLUSTERS", str(tmp_path))
    (tmp_path / "train.py").touch()
    (tmp_path / "lab.yaml").write_text("slurm: {gpus: 2}\n")
    command = ("submit", "train.py", "--cluster", "lab", "--runtime", "none", "-j", "4x8", "--gpus-per-node", "8", "--dry-run")
    done = kit_here(*command)
    assert (done.code, done.err) == (
        2,
        f"kit: {tmp_path}/lab.yaml:1: 'gpus' asks for 2 GPUs on all nodes together, and `gpus_per_node` for 8 on each of 4 nodes\n"
        "  fix: leave gpus out, for this job alone: `slurm: {gpus: no}`\n",
    )
    assert options_of(kit_here(*command, "--slurm", "gpus=no").out)["gpus-per-node"] == "8"
    # Here nobody reads that option, which is for another number of nodes.
    rehearsal = kit_here("run", "train.py", "--cluster", "lab", "--runtime", "none", "--launcher", "srun", "--gpus-per-node", "1")
    assert "asks for 2 GPUs" not in rehearsal.err


@pytest.mark.parametrize(("nodes", "spares", "segment"), [(4, 4, 4), (2, 1, 8), (6, 0, 4)])
def test_spares_that_make_whole_segments_are_taken(nodes: int, spares: int, segment: int, tmp_path: Path, kit_here, monkeypatch) -> None:
    """Slurm ignores a segment of more nodes than the job has, and judges a job without spares itself."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    words = ("--nodes", str(nodes), "--spares", str(spares), "--slurm", f"segment={segment}")
    done = kit_here("submit", "train.py", "--runtime", "none", *words, "--dry-run")
    assert done.code == 0, done.err
    assert options_of(done.out)["segment"] == str(segment)


def test_a_least_time_is_only_for_slurm(tmp_path: Path, kit_here, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("command: [bash, -c, 'true']\ntime: '04:00:00'\nslurm: {time-min: '02:00:00'}\n")
    shorter = ("job.yaml", "--runtime", "none", "--launcher", "srun", "--time", "01:00:00")
    assert kit_here("submit", *shorter, "--dry-run").code == 2
    assert options_of(kit_here("submit", *shorter, "--slurm", "time-min=no", "--dry-run").out)["time"] == "01:00:00"
    done = kit_here("run", *shorter)
    assert done.code == 0, done.err


@pytest.mark.parametrize("of_site", ["requeue", "no-requeue"])
def test_a_job_that_is_started_again_may_have_any_requeue_of_the_profile(of_site: str, tmp_path: Path, kit_here, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "site.yaml").write_text(f"slurm: {{{of_site}: true}}\n")
    command = ("submit", "train.py", "--cluster", "./site.yaml", "--runtime", "none", "--code", "live", "--on-preempt", "checkpoint", "--dry-run")
    for own in ((), ("--slurm", "requeue=true")):
        done = kit_here(*command, *own)
        assert done.code == 0, done.err
        assert "requeue" in options_of(done.out) and "no-requeue" not in options_of(done.out)


def test_a_requeue_of_the_jobs_own_goes_over_the_profile_that_wants_none(tmp_path: Path, kit_here, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "site.yaml").write_text("slurm: {no-requeue: true}\n")
    command = ("submit", "train.py", "--cluster", "./site.yaml", "--runtime", "none", "--code", "live", "--dry-run")
    for own in (("--slurm", "requeue=true"), ("--on-preempt", "checkpoint")):
        done = kit_here(*command, *own)
        assert done.code == 0, done.err
        assert "requeue" in options_of(done.out) and "no-requeue" not in options_of(done.out)
    assert "no-requeue" in options_of(kit_here(*command).out)
