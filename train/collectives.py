"""
Check what the ranks do together, and how fast: broadcast, reduce, all_reduce, scatter, gather and their relatives.

    python train/collectives.py                                      one process: nothing has to travel
    torchrun --nproc-per-node 4 train/collectives.py                 four on this machine
    kit run train/collectives.yaml                                   two "nodes" on this machine
    kit submit train/collectives.yaml --image my.sif -- --sizes 1M 1G

First every rank says which CPUs it may run on, and one of each node how that node is built. Then comes a table, with
the bandwidths as NVIDIA's nccl-tests define them, so that they can be compared with those of others:

    size     bytes of the whole tensor: where each rank holds a share of it, of all shares together
    time     of one call, in the rank that took longest
    algbw    algorithm bandwidth: size / time
    busbw    bus bandwidth: algbw times a factor that makes it the speed of the links, for any number of ranks. The
             factors are those of https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md; for scatter and
             gather, which it leaves out, those of src/scatter.cu and src/gather.cu there.

Every rank compares what it gets with what it must be. After a wrong result the others are still tried, and the program
ends with exit code 1. Needs torch. Tensor shapes: S values in the whole tensor, P = S / ranks in one rank's share.
"""

import argparse
import functools
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import ranks
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

SYS = Path("/sys/devices/system")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

# As torch 2.13 calls them, and before it did: one tensor for all shares, which saves NCCL a copy of each.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def parse_args():
    parser = argparse.ArgumentParser(description="Check and time collective operations")
    parser.add_argument(
        "--sizes",
        type=size,
        nargs="+",
        default=[1 << 10, 64 << 10, 4 << 20],
        metavar="BYTES",
        help="such as 512, 64K, 4M or 1G",
    )
    parser.add_argument(
        "--repeats", type=ranks.positive, default=10, help="calls whose mean time counts"
    )
    parser.add_argument(
        "--warm-up",
        type=int,
        default=3,
        help="calls before, which open connections and fill caches",
    )
    return parser.parse_args()


def size(text):
    match = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 512, 64K, 4M or 1G")
    return int(match[1]) * UNITS[match[2]]


def topology(me):
    """Returns what this node is made of: by nvidia-smi where there are GPUs, else by what Linux says of the CPUs."""
    if me.device.type == "cuda":
        try:
            done = subprocess.run(
                ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=60
            )
            said = done.stdout + done.stderr
            return re.sub(r"\x1b\[\d*m", "", said)  # it underlines, even in a log
        except (FileNotFoundError, subprocess.TimeoutExpired) as error:
            return f"no nvidia-smi here, so only the CPUs: {error}\n{cpus()}"
    return cpus()


def cpus():
    # CPUs that share a core are listed alike in both; a socket is a "physical package".
    cores = {read(file) for file in SYS.glob("cpu/cpu[0-9]*/topology/thread_siblings_list")}
    sockets = {read(file) for file in SYS.glob("cpu/cpu[0-9]*/topology/physical_package_id")}
    # Memory that is nearer to some CPUs than to others: a process wants its CPUs, its memory and its GPU in one.
    numa = {int(file.parent.name[4:]): read(file) for file in SYS.glob("node/node[0-9]*/cpulist")}
    lines = [
        f"CPUs {read(SYS / 'cpu' / 'online')}  cores {len(cores)}  sockets {len(sockets)}  NUMA nodes {len(numa)}"
    ]
    return "\n".join(
        lines + [f"NUMA node {node}: CPUs {numa[node] or 'none'}" for node in sorted(numa)]
    )


def read(file):
    return file.read_text().strip()


def spans(numbers):
    """Returns numbers as Linux writes a set of CPUs: 0-3,8."""
    ends = []
    for number in sorted(numbers):
        if ends and number == ends[-1][1] + 1:
            ends[-1][1] = number
        else:
            ends.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def collectives(me, count):
    """Yields (name, factor of the bus bandwidth, call, result_S or _P, what that must be or None) for S = count."""
    n, root = me.world, me.rank == 0
    position_S = torch.arange(count, device=me.device, dtype=torch.float32) % 7

    def given(rank):
        """What a rank brings: whole numbers, whose sum float32 holds exactly. Anyone can tell what all others have."""
        return position_S + rank

    mine_S, sum_S = given(me.rank), position_S * n + sum(range(n))
    mine_P, result_P, result_S = (
        mine_S[: count // n].clone(),
        torch.zeros(count // n, device=me.device),
        torch.zeros(count, device=me.device),
    )
    firsts_S = torch.cat([position_S[: count // n] + rank for rank in range(n)])
    share = (n - 1) / n  # of the data has to travel: each rank has its own already

    buffer_S = mine_S.clone()
    yield "broadcast", 1, lambda: dist.broadcast(buffer_S, src=0), buffer_S, given(0)
    # These work in place, so every further call goes on from results. Nobody looks at them: the first call is what is checked.
    buffer_S = mine_S.clone()
    yield (
        "reduce",
        1,
        lambda: dist.reduce(buffer_S, dst=0),
        buffer_S,
        sum_S if root else None,
    )  # elsewhere it may hold anything
    one_of_many_S = given(1) if root else torch.ones_like(position_S)  # float32 holds the product
    for name, operation, own_S, expected_S in (
        ("all_reduce", dist.ReduceOp.SUM, mine_S, sum_S),
        ("all_reduce_max", dist.ReduceOp.MAX, mine_S, given(n - 1)),
        ("all_reduce_min", dist.ReduceOp.MIN, mine_S, given(0)),
        ("all_reduce_product", dist.ReduceOp.PRODUCT, one_of_many_S, given(1)),
    ):
        buffer_S = own_S.clone()
        call = functools.partial(dist.all_reduce, buffer_S, operation)
        yield name, 2 * share, call, buffer_S, expected_S
    # The lists hold views, so what is gathered lands in result_S. Only the root has one.
    shares = list(mine_S.chunk(n)) if root else None
    yield (
        "scatter",
        share,
        lambda: dist.scatter(result_P, shares, src=0),
        result_P,
        given(0).chunk(n)[me.rank],
    )
    places = list(result_S.chunk(n)) if root else None
    yield (
        "gather",
        share,
        lambda: dist.gather(mine_P, places, dst=0),
        result_S,
        firsts_S if root else None,
    )
    result_S = torch.zeros_like(result_S)
    yield "all_gather", share, lambda: all_gather(result_S, mine_P), result_S, firsts_S
    result_P = torch.zeros_like(result_P)
    yield (
        "reduce_scatter",
        share,
        lambda: reduce_scatter(result_P, mine_S),
        result_P,
        sum_S.chunk(n)[me.rank],
    )
    result_S = torch.zeros_like(result_S)
    swapped_S = torch.cat([position_S.chunk(n)[me.rank] + rank for rank in range(n)])
    yield "all_to_all", share, lambda: dist.all_to_all_single(result_S, mine_S), result_S, swapped_S


def supported(call):
    """Makes the first call. False where the backend cannot do it: the Gloo of older torch lacks some."""
    try:
        call()
    except RuntimeError as error:
        if "does not support" not in str(error):
            raise
        return False
    return True


def check(me, name, result, expected):
    """Returns whether the result is right, after saying what is not."""
    if expected is None or torch.equal(result, expected):
        return True
    wrong = (result != expected).nonzero().flatten()
    first = wrong[0].item()
    print(
        f"{Path(sys.argv[0]).name}: rank {me.rank} on {socket.gethostname()}: {name} of {len(result)} values has {len(wrong)} wrong ones:"
        f" value {first} is {result[first].item()}, not {expected[first].item()}"
        "\n  fix: run it on fewer nodes, until it is right: what you left out last alters data",
        file=sys.stderr,
        flush=True,
    )
    return False


def mean_s(me, call, repeats, group=None):
    """Returns seconds per call in this rank. group: of those that call it; all, where none is given."""
    dist.barrier(group)  # begin together
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    if me.device.type == "cuda":
        torch.cuda.synchronize()  # a GPU has only been told to do all this
    return (time.perf_counter() - start) / repeats


def measure(me, args, total_bytes):
    """Returns whether all results of this size were right in all ranks; rank 0 prints a line for each."""
    count = me.world * max(
        1, total_bytes // 4 // me.world
    )  # float32; the same share for every rank
    all_right = True
    for name, factor, call, result, expected in collectives(me, count):
        if not supported(call):
            if me.rank == 0:
                print(f"{name:18} {count * 4:>12}  {dist.get_backend()} cannot", flush=True)
            continue
        right = check(me, name, result, expected)
        for _ in range(args.warm_up):
            call()
        everyone = [None] * me.world
        # Not by all_reduce: it may be what is wrong.
        dist.all_gather_object(everyone, (mean_s(me, call, args.repeats), right))
        slowest_s = max(seconds for seconds, _ in everyone)
        algbw = count * 4 / slowest_s / 1e9
        wrong = {rank for rank, (_, its_right) in enumerate(everyone) if not its_right}
        all_right = all_right and right and not wrong
        if me.rank == 0:
            verdict = f"WRONG in rank {spans(wrong)}" if wrong else "right"
            print(
                f"{name:18} {count * 4:>12} {slowest_s * 1e6:>12.1f} {algbw:>10.3f} {algbw * factor:>10.3f}  {verdict}",
                flush=True,
            )
    return all_right


@record  # writes the traceback to error.json, where torchrun and kit look for the first cause
def main():
    args = parse_args()
    me = ranks.find()
    # Before anything is sent: where that hangs, this may tell why.
    if me.local_rank == 0:
        print(f"node {me.node} is {socket.gethostname()}:\n{topology(me)}", flush=True)
    print(f"rank {me.rank} may run on CPUs {spans(os.sched_getaffinity(0))}", flush=True)
    ranks.join(me)
    dist.barrier()  # the table comes after all of these lines
    if me.rank == 0:
        if me.world == 1:
            print(
                "one rank alone: nothing travels, so the bandwidths are those of its memory",
                flush=True,
            )
        print(
            f"{'':18} {'size':>12} {'time':>12} {'algbw':>10} {'busbw':>10}\n{'':18} {'bytes':>12} {'us':>12} {'GB/s':>10} {'GB/s':>10}",
            flush=True,
        )
    right = [measure(me, args, total_bytes) for total_bytes in args.sizes]
    ranks.leave()  # not before all have said what is wrong: the launcher ends the others when the first is gone
    if not all(right):
        sys.exit(1)
    if me.rank == 0:
        print(f"every result was right in all {me.world} ranks", flush=True)


if __name__ == "__main__":
    main()
