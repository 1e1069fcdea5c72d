"""train/ranks.py: who a process is, by what each launcher leaves in its environment."""

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "train"
SCRIPT = FOLDER / "ranks.py"
sys.path.insert(0, str(FOLDER))

import ranks  # noqa: E402 - it is no package

STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[1-2]", "SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_TASKS_PER_NODE": "3,2"}
TASK = {**STEP, "SLURM_PROCID": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "TORCHELASTIC_RUN_ID": "x"}
MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "4"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, ("none", 0, 1, 0, 1, 0)),
        ({**TORCHRUN, "MASTER_ADDR": "a", "MASTER_PORT": "1"}, ("torchrun", 3, 4, 1, 2, 1)),
        ({**TORCHRUN, **TASK, "MASTER_ADDR": "a"}, ("torchrun", 3, 4, 1, 2, 1)),
        (TASK, ("srun", 4, 5, 1, 2, 1)),
        ({**TASK, "PMIX_RANK": "4"}, ("mpi", 4, 5, 1, 2, 1)),
        ({**MPI, "MASTER_ADDR": "a"}, ("mpi", 3, 4, 1, 2, 1)),
        (MPICH, ("mpi", 3, 4, 3, 4, 0)),
        # sbatch's script and salloc's shell are not tasks.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}, ("none", 0, 1, 0, 1, 0)),
        ({**TASK, "SLURM_STEP_ID": "4294967290"}, ("none", 0, 1, 0, 1, 0)),
    ],
)
def test_the_place_is_found_whatever_started_it(env, expected):
    found = ranks.find(env)
    assert (found.launcher, found.rank, found.world, found.local_rank, found.local_world, found.node) == expected


def test_spawns_children_count_on_from_their_node():
    env = {"NODE_RANK": "1", "NNODES": "2", "NPROC_PER_NODE": "3", "MASTER_ADDR": "a", "MASTER_PORT": "9"}
    found = ranks.spawned(2, env=env)
    assert (found.launcher, found.rank, found.world, found.local_rank, found.node, found.master) == ("spawn", 5, 6, 2, 1, ("a", 9))
    alone = ranks.spawned(1, processes=2, env={})
    assert (alone.rank, alone.world, alone.master[0]) == (1, 2, "127.0.0.1")


def test_programs_that_spawn_on_one_node_of_a_job_have_each_a_port_of_its_own(monkeypatch):
    def port(parent, nodes):
        monkeypatch.setattr(ranks.os, "getppid", lambda: parent)
        env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", "NNODES": str(nodes), "NODE_RANK": "0"}
        return ranks.spawned(0, processes=2, env=env).master[1]

    assert port(100, nodes=1) == port(100, nodes=1) != port(200, nodes=1)
    assert port(100, nodes=2) == port(200, nodes=2)  # each node has another parent


def test_a_number_that_has_to_be_positive_is():
    assert ranks.positive("3") == 3
    for text in ("0", "-1", "x"):
        with pytest.raises(ValueError):
            ranks.positive(text)


def test_the_master_is_slurms_first_node_and_all_tasks_of_a_step_have_its_port_alone():
    first, other = (ranks.find({**TASK, "SLURM_STEP_ID": step}) for step in ("0", "1"))
    assert first.master[0] == "node1" and first.hosts == ("node1", "node2")
    assert first.master == ranks.find({**TASK, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}).master != other.master
    assert 61000 <= first.master[1] < 65000


def test_mpiruns_processes_agree_although_only_those_of_other_nodes_are_in_a_step():
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", "PMIX_NAMESPACE": "1234"}
    size = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    head = {**job, **size, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node2", "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}
    remote = {**job, **size, **step, "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    first, second = ranks.find(head), ranks.find(remote)
    assert (first.rank, first.node, second.rank, second.node) == (1, 0, 2, 1)
    assert first.master == second.master and first.master[0] == "node1"
    assert ranks.find({**head, "PMIX_NAMESPACE": "5678"}).master != first.master  # another mpirun of the job


def test_spawns_children_under_plain_srun_count_on_from_their_node():
    task = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "node[1-2]",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_PROCID": "1",
        "SLURM_NODEID": "1",
    }
    found = ranks.spawned(1, processes=2, env=task)
    assert (found.rank, found.world, found.node, found.master[0]) == (3, 4, 1, "node1")


def test_several_nodes_without_a_master_are_refused():
    with pytest.raises(SystemExit, match="MASTER_ADDR does not say where rank 0 is\n  fix: export MASTER_ADDR="):
        ranks.find(MPI)


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("", []),
        ("a", ["a"]),
        ("node[01-03,07],gpu1", ["node01", "node02", "node03", "node07", "gpu1"]),
        ("r[1-2]n[9-10]", ["r1n9", "r1n10", "r2n9", "r2n10"]),
        ("n[8-11]-ib,x-[1]", ["n8-ib", "n9-ib", "n10-ib", "n11-ib", "x-1"]),
    ],
)
def test_host_lists_are_expanded_as_scontrol_does(hosts, expected):
    assert ranks.expand(hosts) == expected


def test_alone_and_under_torchrun_all_agree(start):
    assert start(FOLDER / "ranks.py").finish(200).check().lines("all ") == ["all 1 ranks agree: sum 0"]
    done = start(FOLDER / "ranks.py", ranks=1, nodes=2, torchrun=True).finish(200).check()
    assert done.lines("all ") == ["all 2 ranks agree: sum 1"]
    assert sorted(line.split()[1] for line in done.lines("rank ")) == ["0/2", "1/2"]


def test_a_wrong_sum_is_said(start, tmp_path):
    program = tmp_path / "wrong.py"
    program.write_text(
        f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n"
        "import torch.distributed as dist, ranks\n"
        "dist.all_reduce = lambda total: total.add_(1)\n"
        "ranks.main()\n"
    )
    done = start(program).finish(200)
    assert done.codes == [1]
    assert "rank 0: the sum over all ranks is 1, not 0\n  fix: " in done.stderr
