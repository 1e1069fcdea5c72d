"""
Tells a process who it is among those that compute together, whatever started it, and lets them talk.

    import ranks

    me = ranks.join()                    # the process group is up: gloo on CPUs, nccl on GPUs
    print(me.rank, me.world, me.device)
    ranks.leave()

Under torchrun, srun, mpirun, or alone. What torch.multiprocessing.spawn starts calls ranks.join(ranks.spawned(index)).
Copy this file beside your program; it needs torch and nothing else. As a program it checks a launch:

    python train/ranks.py
    torchrun --nproc-per-node 2 train/ranks.py
    srun --ntasks=4 python train/ranks.py

Where each number comes from, the first line that is there (Slurm's own MPI plug-ins set the last two):

                  rank                  world                 local rank                  local world
    torchrun      RANK                  WORLD_SIZE            LOCAL_RANK                  LOCAL_WORLD_SIZE
    Open MPI      OMPI_COMM_WORLD_RANK  OMPI_COMM_WORLD_SIZE  OMPI_COMM_WORLD_LOCAL_RANK  OMPI_COMM_WORLD_LOCAL_SIZE
    MPICH, Intel  PMI_RANK              PMI_SIZE              MPI_LOCALRANKID             MPI_LOCALNRANKS
    srun          SLURM_PROCID          SLURM_STEP_NUM_TASKS  SLURM_LOCALID               SLURM_STEP_TASKS_PER_NODE
"""

import os
import re
import socket
import sys
import zlib
from dataclasses import dataclass
from datetime import timedelta

FIRST_PORT, PORTS = 61000, 4000  # above those that Linux gives to outgoing connections
_last_barrier = None


@dataclass(frozen=True)
class Place:
    """One process among all."""

    launcher: str  # torchrun, mpi, srun, spawn; hand where RANK comes from elsewhere; none for a process alone
    rank: int
    world: int  # processes
    local_rank: int  # among those of this node
    local_world: int
    node: int
    hosts: tuple[str, ...] = ()  # of all nodes, where Slurm says it
    master: tuple[str, int] = ("127.0.0.1", 0)  # where rank 0 listens

    @property
    def device(self):
        """This process's GPU, or the CPU. Raises SystemExit where there are fewer GPUs than processes, and torch's error where the job's are not seen."""
        import torch

        if not torch.cuda.is_available():
            if int(os.environ.get("KIT_GPUS_PER_NODE", 0)):
                torch.cuda.init()  # raises what keeps torch from the job's GPUs; the CPU would take days
            return torch.device("cpu")
        gpus = torch.cuda.device_count()
        if self.local_rank >= gpus > 1:
            sys.exit(
                f"{self.local_world} processes on {socket.gethostname()}, which shows {gpus} GPUs\n  fix: start one process for each GPU"
            )
        return torch.device(
            "cuda", 0 if gpus == 1 else self.local_rank
        )  # 1: Slurm may show each task its own

    def say(self, text):
        """Prints what one process is to say for all."""
        if self.rank == 0:
            print(text, flush=True)

    def __str__(self):
        where = f"{self.master[0]}:{self.master[1]}" if self.world > 1 else "none"
        numbers = f"rank {self.rank}/{self.world}  local {self.local_rank}/{self.local_world}  node {self.node}"
        return f"{numbers}  host {socket.gethostname()}  pid {os.getpid()}  launcher {self.launcher}  master {where}"


def find(env=os.environ):
    """The place of this process by its environment. Raises KeyError where a launcher left out what it should say."""
    in_step = _in_step(env)
    if "RANK" in env and "WORLD_SIZE" in env:
        local_world = int(env.get("LOCAL_WORLD_SIZE", 1))
        node = int(env.get("GROUP_RANK", int(env["RANK"]) // local_world))
        launcher = (
            "torchrun" if "TORCHELASTIC_RUN_ID" in env else _slurms(env) if in_step else "hand"
        )
        return _place(
            env,
            launcher,
            int(env["RANK"]),
            int(env["WORLD_SIZE"]),
            int(env.get("LOCAL_RANK", 0)),
            local_world,
            node,
        )
    for prefix, local_rank, local_world in (
        ("OMPI_COMM_WORLD_", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ):
        # Slurm's pmi2 sets PMI_RANK, too, but not the rest. What Slurm says of its steps is not for us: mpirun starts the
        # processes of its own node without one, and those of the others through one.
        if f"{prefix}RANK" in env and local_rank in env:
            rank, local = int(env[f"{prefix}RANK"]), int(env[local_world])
            return _place(
                env,
                "mpi",
                rank,
                int(env[f"{prefix}SIZE"]),
                int(env[local_rank]),
                local,
                rank // local,
                step=False,
            )
    if in_step:
        node = int(env["SLURM_NODEID"])
        local_world = _counts(env.get("SLURM_STEP_TASKS_PER_NODE", "1"))[node]
        return _place(
            env,
            _slurms(env),
            int(env["SLURM_PROCID"]),
            int(env["SLURM_STEP_NUM_TASKS"]),
            int(env["SLURM_LOCALID"]),
            local_world,
            node,
        )
    return Place("none", 0, 1, 0, 1, 0)


def spawned(index, processes=None, env=os.environ):
    """The place of the child `index` of torch.multiprocessing.spawn. processes: per node; NPROC_PER_NODE where not given."""
    local_world = int(processes or env.get("NPROC_PER_NODE", 1))
    own = (
        env
        if "NNODES" in env
        else {"NODE_RANK": env["SLURM_NODEID"], "NNODES": env["SLURM_STEP_NUM_NODES"]}
        if _in_step(env)
        else {}
    )
    node, nodes = int(own.get("NODE_RANK", 0)), int(own.get("NNODES", 1))
    return _place(
        env, "spawn", node * local_world + index, nodes * local_world, index, local_world, node
    )


def join(place=None, timeout=timedelta(minutes=5), on_gpus="nccl"):
    """Joins the process group and returns the place. Prints it before: where that hangs, the lines show who is missing.

    timeout: of joining, and of every collective operation later; torch's own is 10 minutes for nccl and 30 for gloo.
    on_gpus: the backend there. With "cpu:gloo,cuda:nccl", ranks can also exchange what is in the memory of their CPUs.
    """
    import torch
    import torch.distributed as dist

    me = place or find()
    print(
        f"{me}\n", end="", flush=True
    )  # in one piece: unbuffered, print writes the newline by itself, and ranks' lines mix
    # What reads these later, such as FSDP's device mesh, finds what torchrun would have set.
    numbers = {
        "RANK": me.rank,
        "WORLD_SIZE": me.world,
        "LOCAL_RANK": me.local_rank,
        "LOCAL_WORLD_SIZE": me.local_world,
    }
    os.environ.update({name: str(value) for name, value in numbers.items()})
    gpu = me.device.type == "cuda"
    if gpu:
        torch.cuda.set_device(
            me.device
        )  # before anything touches CUDA: otherwise every rank opens a context on GPU 0
    store = None
    if me.world == 1 and me.launcher != "torchrun":
        store = dist.HashStore()  # in this process: no address, no port
    else:
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = me.master[0], str(me.master[1])
    # With a device, NCCL connects now rather than in the first collective: a broken fabric shows here.
    dist.init_process_group(
        on_gpus if gpu else "gloo",
        rank=me.rank,
        world_size=me.world,
        store=store,
        timeout=timeout,
        device_id=me.device if gpu else None,
    )
    return me


def leave():
    """At the end of a program that went well; after a failure it would wait for ranks that are gone."""
    import torch.distributed as dist

    # A thread of Gloo says that a collective is done before it lets go of it, and needs Python's
    # lock to free its tensors. The barrier keeps these tensors alive: without one, torch 2.13 hung
    # at exit in 3 of 20 runs on busy cores. It is global so that no thread is the last to let go
    # of it:
    # - While the main thread frees the process group, it has the lock and waits for the group's
    #   threads. One that waits for the lock hangs with it: 7 of 19 runs on very busy cores, and
    #   none with this.
    # - A thread that waits for the lock when Python ends aborts the process
    #   (https://github.com/pytorch/pytorch/issues/190489). With the threads held up to 0.1 s
    #   there, digits.py aborted in 12 of 60 runs of 4 ranks with a local variable, and in none of
    #   60 with a global one.
    # Python frees it after it has begun to end: from then on torch leaves such tensors alone.
    global _last_barrier
    _last_barrier = dist.barrier(async_op=True)
    _last_barrier.wait()
    dist.destroy_process_group()


def fail(problem, fix):
    """Ends the program without a traceback. Every rank calls it: those with a problem say it, and they alone fail."""
    if problem:
        name = os.path.basename(sys.argv[0])
        print(f"{name}: {problem}\n  fix: {fix}", file=sys.stderr, flush=True)
    leave()  # torchrun ends the others when the first is gone: not before all have spoken
    sys.exit(1 if problem else 0)  # so that kit names a rank whose log says why


def expand(hosts):
    """Slurm's host list as names: "node[01-02,7],gpu1" is node01, node02, node7, gpu1."""
    names = []
    for item in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", hosts):
        head, bracket, rest = item.partition("[")
        if not bracket:
            names.append(item)
            continue
        numbers, _, tail = rest.partition("]")
        for part in numbers.split(","):
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                names += [f"{head}{number:0{len(first)}d}{end}" for end in expand(tail) or [""]]
    return names


def _in_step(env):
    """Whether srun started this: sbatch's script and salloc's shell have SLURM_PROCID=0, too, but no step of their own."""
    return "SLURM_PROCID" in env and int(env.get("SLURM_STEP_ID", 1 << 32)) < 0xFFFFFFF0


def _slurms(env):
    return "mpi" if "PMIX_RANK" in env or "PMI_RANK" in env else "srun"


def _counts(tasks_per_node):
    """Slurm's "2(x3),1" as a list: 2, 2, 2, 1."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks_per_node)
    return [int(count) for count, times in found for _ in range(int(times or 1))]


def _place(env, launcher, rank, world, local_rank, local_world, node, step=True):
    """step: whether what Slurm says of a step is said to all processes of this world."""
    hosts = tuple(
        expand(
            env.get("SLURM_STEP_NODELIST" if step and _in_step(env) else "SLURM_JOB_NODELIST", "")
        )
    )
    address = env.get("MASTER_ADDR") or (
        "127.0.0.1" if world == local_world else hosts[0] if hosts else ""
    )
    if not address:
        sys.exit(
            f"{world} processes on several nodes, and MASTER_ADDR does not say where rank 0 is\n  fix: export MASTER_ADDR=THE_FIRST_NODE"
        )
    # What they have in common, and those of another world on the same node have not.
    common = [
        env.get("SLURM_JOB_ID"),
        env.get("SLURM_STEP_ID") if step else None,
        env.get("PMIX_NAMESPACE"),
    ]
    if launcher == "spawn" and world == local_world:
        common.append(os.getppid())  # who spawned them
    port = int(env.get("MASTER_PORT") or FIRST_PORT + zlib.crc32(repr(common).encode()) % PORTS)
    return Place(launcher, rank, world, local_rank, local_world, node, hosts, (address, port))


def positive(text):
    """For argparse: a whole number from 1 on."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def main():
    """Every rank adds its number and checks the sum."""
    import torch
    import torch.distributed as dist

    me = join()
    total = torch.tensor([me.rank], device=me.device)
    dist.all_reduce(total)
    expected = me.world * (me.world - 1) // 2
    if total.item() != expected:
        sys.exit(
            f"rank {me.rank}: the sum over all ranks is {total.item()}, not {expected}\n  fix: see which rank's line above is missing or twice"
        )
    if me.rank == 0:
        print(f"all {me.world} ranks agree: sum {total.item()}", flush=True)
    leave()


if __name__ == "__main__":
    main()
