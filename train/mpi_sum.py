"""
Check MPI: every rank adds an array to those of all others with mpi4py, and rank 0 prints how fast that was.

    python train/mpi_sum.py                                   one process
    mpirun -n 4 python train/mpi_sum.py                       four on this machine
    kit run train/mpi_sum.yaml                                two "nodes" on this machine
    kit submit train/mpi_sum.yaml --image mpi.sif -- --mib 256

Where torch is installed, the same processes then join its process group by ranks.py, and torch's sum has to be MPI's:
what a program needs that trains with torch and exchanges something else over MPI.

Needs mpi4py, the MPI library that mpirun belongs to, and numpy. The array is in the memory of the host.
"""

import argparse
import importlib.util
import os
import socket
import sys
import time

import numpy as np
from mpi4py import MPI  # joins: waits until all ranks are here
from mpi4py.run import set_abort_status

ROUNDS = 5


def parse_args():
    parser = argparse.ArgumentParser(description="an Allreduce over MPI, checked and timed")
    parser.add_argument("--mib", type=int, default=16, help="size of each rank's array")
    return parser.parse_args()


def sum_over_mpi(comm, mine):
    """Returns the sum over all ranks and the seconds of the fastest of a few rounds, as the slowest rank saw it."""
    total, fastest_s = np.empty_like(mine), float("inf")
    for _ in range(ROUNDS):  # the first also connects
        comm.Barrier()
        start = time.perf_counter()
        comm.Allreduce(mine, total)
        fastest_s = min(fastest_s, comm.allreduce(time.perf_counter() - start, MPI.MAX))
    return total, fastest_s


def sum_over_torch(mine):
    """Returns the sum over all ranks by torch's own collectives: NCCL on GPUs, Gloo on CPUs."""
    import ranks
    import torch
    import torch.distributed as dist

    me = ranks.join()
    total = torch.from_numpy(mine).to(me.device, copy=True)
    dist.all_reduce(total)
    ranks.leave()
    return total.cpu().numpy()


def check(comm, library, total, expected):
    """Ends the job if a rank's sum is wrong, and names the rank."""
    wrong = np.flatnonzero(total != expected)
    if len(wrong):
        at = wrong[0]
        sys.exit(
            f"mpi_sum.py: rank {comm.rank}: {library}'s sum has {len(wrong)} wrong numbers: {total[at]} at {at}, not {expected[at]}"
            "\n  fix: look for ranks above that are missing or twice, then at the network"
        )


def main():
    args, comm = parse_args(), MPI.COMM_WORLD
    library = MPI.Get_library_version().replace("\0", "").split(",")[0].splitlines()[0]
    # In one piece: with PYTHONUNBUFFERED, print writes its newline by itself, and mpirun joins the ranks' lines.
    print(
        f"mpi rank {comm.rank}/{comm.size}  host {socket.gethostname()}  pid {os.getpid()}  {library}\n",
        end="",
        flush=True,
    )

    # Whole numbers, small enough for every order of adding them to give the same float32.
    numbers = np.arange(args.mib * 2**20 // 4, dtype=np.float32) % 1000
    expected = comm.size * numbers + comm.size * (comm.size - 1) // 2
    total, fastest_s = sum_over_mpi(comm, numbers + comm.rank)
    check(comm, "MPI", total, expected)
    comm.Barrier()  # behind it, all ranks' sums are right
    if comm.rank == 0:
        # Of a ring, the best there is for large arrays: every rank sends, and receives, 2 (n-1)/n of its array
        # (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).
        gb_per_s = numbers.nbytes * 2 * (comm.size - 1) / comm.size / fastest_s / 1e9
        print(
            f"MPI: all {comm.size} ranks agree  {args.mib} MiB in {fastest_s * 1e3:.1f} ms  bus bandwidth {gb_per_s:.2f} GB/s",
            flush=True,
        )

    if importlib.util.find_spec("torch"):
        check(comm, "torch", sum_over_torch(numbers + comm.rank), expected)
        comm.Barrier()
        if comm.rank == 0:
            print(f"torch: all {comm.size} ranks agree with MPI", flush=True)
    elif comm.rank == 0:
        print("torch: not installed, not checked", flush=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException as end:
        # At exit MPI would wait for the other ranks, and they for this one: this ends them.
        set_abort_status(end.code if isinstance(end, SystemExit) else 1)
        raise
