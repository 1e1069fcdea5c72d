"""
Measure all-reduce over sizes, and between every two nodes alone: how fast the network is, and which link is slow.

    torchrun --nproc-per-node 4 train/bandwidth.py                         four processes on this machine
    torchrun --nproc-per-node 4 train/bandwidth.py --sizes 64K 4M --repeats 20
    kit bench -j 4x8 --image my.sif --pairs                                starts this on nodes, and shows what it found

The table that it prints has, as NVIDIA's nccl-tests define them
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md):

    size     bytes of the tensor, which every rank has whole
    median   of the repetitions, of each the time of one call in the rank that took longest; least likewise
    algbw    algorithm bandwidth: size / median time (nccl-tests: mean time)
    busbw    bus bandwidth: algbw times 2 (n - 1) / n for n ranks, the speed of the links whatever their number

A repetition begins with a barrier. Small tensors are summed several times in one, until it lasts long enough to be
timed; sizes are repeated as often as --seconds allow. The first sum of every size is compared with what it must be, and
a wrong one ends the program with exit code 1, after all other sizes. With --pairs the nodes meet as in a tournament:
each round has every node in one pair at most, and the pairs of a round run at the same time.

All of it is written as JSON to --output, or to bench.json in the folder that KIT_LOG_DIR names. Needs torch, and
collectives.py and ranks.py beside it. Tensor shapes: S values.
"""

import argparse
import json
import math
import os
import socket
import sys
from datetime import timedelta
from pathlib import Path

import ranks
import torch
import torch.distributed as dist
from collectives import check, mean_s, size, spans
from torch.distributed.elastic.multiprocessing.errors import record

FORMAT = 1  # of the JSON
REPETITION_S = 0.002  # shorter ones would be made of the clock's and the barrier's own noise
LEAST, MOST = 3, 100  # repetitions of a size
LONG_S = 0.1  # of a call that needs no warming up


def parse_args():
    parser = argparse.ArgumentParser(
        description="Measure all-reduce over sizes and between pairs of nodes"
    )
    parser.add_argument(
        "--sizes",
        type=size,
        nargs="+",
        metavar="BYTES",
        help="such as 512, 64K, 4M or 1G [1K to 64M, on GPUs to 1G]",
    )
    parser.add_argument(
        "--repeats",
        type=ranks.positive,
        metavar="N",
        help="repetitions of each size [as many as --seconds allow]",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=1.0,
        metavar="S",
        help="for each size, and for each pair, about",
    )
    parser.add_argument(
        "--pairs", action="store_true", help="then every two nodes alone, with the largest size"
    )
    parser.add_argument(
        "--expect",
        type=float,
        nargs=2,
        metavar=("GBPS", "SHARE"),
        help="what kit bench is to compare it with; for the JSON alone",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the results as JSON [bench.json in KIT_LOG_DIR]",
    )
    args = parser.parse_args()
    if args.output is None and "KIT_LOG_DIR" in os.environ:
        args.output = Path(os.environ["KIT_LOG_DIR"], "bench.json")
    return args


def default_sizes(device):
    return [1024 * 4**step for step in range(11 if device.type == "cuda" else 9)]


def slowest(me, values, group, members):
    """Returns the largest of each value over the ranks of the group, the same in all of them."""
    everyone = [None] * len(members)
    dist.all_gather_object(
        everyone, values, group=group
    )  # not by all_reduce: it may be what is wrong
    return [max(column) for column in zip(*everyone)]


def measure(me, args, total_bytes, group=None, members=None):
    """Returns what all-reduce of this size did in the group, as the JSON has it; every rank in it calls this, and all get the same."""
    members = members or list(range(me.world))
    n, count = len(members), max(1, total_bytes // 4)  # float32
    position_S = torch.arange(count, device=me.device, dtype=torch.float32) % 7
    buffer_S = position_S + members.index(me.rank)

    def call():
        dist.all_reduce(buffer_S, group=group)

    call()  # the first one opens connections, too
    right = check(me, "all_reduce", buffer_S, position_S * n + sum(range(n)))
    del position_S
    buffer_S.zero_()  # what is summed in place over and over would overflow
    # All must make as many calls, so they agree on how long one takes.
    once_s, wrong = slowest(me, (mean_s(me, call, 1, group), not right), group, members)
    if once_s < LONG_S:
        mean_s(me, call, 3, group)
        (once_s,) = slowest(me, (mean_s(me, call, 5, group),), group, members)
    calls = max(1, math.ceil(REPETITION_S / once_s))
    repeats = args.repeats or max(LEAST, min(MOST, int(args.seconds / (once_s * calls))))
    times_s = slowest(me, [mean_s(me, call, calls, group) for _ in range(repeats)], group, members)
    median_s = (
        sorted(times_s)[len(times_s) // 2]
        if len(times_s) % 2
        else sum(sorted(times_s)[len(times_s) // 2 - 1 :][:2]) / 2
    )
    algbw = count * 4 / median_s / 1e9
    return {
        "bytes": count * 4,
        "repetitions": repeats,
        "calls": calls,  # in each repetition
        "median_s": median_s,
        "min_s": min(times_s),
        "algbw_GBps": algbw,
        "busbw_GBps": algbw * 2 * (n - 1) / n,
        "right": not wrong,
    }


def say(me, what, found):
    if me.rank == 0:
        verdict = "right" if found["right"] else "WRONG"
        times = f"{found['median_s'] * 1e6:>12.1f} {found['min_s'] * 1e6:>12.1f} {found['repetitions']:>4}x{found['calls']:<4}"
        print(
            f"{what:24} {found['bytes']:>12} {times} {found['algbw_GBps']:>9.3f} {found['busbw_GBps']:>9.3f}  {verdict}",
            flush=True,
        )


def rounds(count):
    """Yields lists of pairs (i, j), i < j < count: all pairs once, and nobody twice in a list. By the circle method: one
    stays at its place, and the others walk around the table."""
    places = [*range(count), *([None] if count % 2 else [])]  # who sits opposite None has a break
    half = len(places) // 2
    for _ in range(len(places) - 1):
        opposite = zip(places[:half], reversed(places[half:]))
        yield [(min(pair), max(pair)) for pair in opposite if None not in pair]
        places = [places[0], places[-1], *places[1:-1]]


def measure_pairs(me, args, nodes, total_bytes):
    """Yields what each pair of nodes did, as the JSON has it; the same in every rank."""
    for pairs in rounds(len(nodes)):
        mine = None
        for pair in pairs:
            members = sorted(rank for node in pair for rank in nodes[node]["ranks"])
            # All ranks make all groups, in one order, whether they are in it or not: NCCL splits its communicator together.
            group = dist.new_group(members)
            if me.rank in members:
                mine = (pair, group, members)
        found = None
        dist.barrier()  # begin together
        if mine:
            pair, group, members = mine
            found = {
                "nodes": [nodes[node]["name"] for node in pair],
                **measure(me, args, total_bytes, group, members),
            }
            found = found if me.rank == members[0] else None  # it is enough that one tells
        everyone = [None] * me.world
        dist.all_gather_object(everyone, found)
        yield from (found for found in everyone if found)
        if mine:
            dist.destroy_process_group(mine[1])


def describe(me, args):
    """Returns what is measured here, for the JSON; the same in every rank."""
    mine = (me.node, os.environ.get("SLURMD_NODENAME") or socket.gethostname(), me.rank)
    everyone = [None] * me.world
    dist.all_gather_object(everyone, mine)
    nodes = {}
    for node, name, rank in sorted(everyone):
        nodes.setdefault(node, {"name": name, "ranks": []})["ranks"].append(rank)
    gpu = me.device.type == "cuda"
    return {
        "format": FORMAT,
        "operation": "all_reduce",
        "backend": dist.get_backend(),
        "device": torch.cuda.get_device_name(me.device) if gpu else "CPU",
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpu else None,
        "ranks": me.world,
        "nodes": list(nodes.values()),
        "expect": dict(zip(("busbw_GBps", "share"), args.expect)) if args.expect else None,
        "sizes": [],
        "pairs": None,
    }


def write(me, args, found):
    """Replaces the file in one step; what was measured so far is in it, should the rest fail."""
    if me.rank or not args.output:
        return
    partial = args.output.with_name(f".{args.output.name}.partial")
    try:
        partial.write_text(json.dumps(found, indent=1) + "\n")
        partial.replace(args.output)
    except OSError as error:
        sys.exit(
            f"bandwidth.py: cannot write {args.output}: {error.strerror}\n  fix: free space there, or name another place: --output FILE"
        )


@record  # writes the traceback to error.json, where torchrun and kit look for the first cause
def main():
    args = parse_args()
    me = ranks.join(timeout=timedelta(minutes=30))  # the others wait while a pair has a slow link
    found = describe(me, args)
    sizes = sorted(set(args.sizes or default_sizes(me.device)))
    if me.rank == 0:
        shape = ", ".join(
            f"{node['name']} (ranks {spans(node['ranks'])})" for node in found["nodes"]
        )
        print(f"all_reduce over {me.world} ranks by {found['backend']}: {shape}", flush=True)
        if me.world == 1:
            print("one rank alone: nothing travels", flush=True)
        print(
            f"{'':24} {'size':>12} {'median':>12} {'least':>12} {'times':>9} {'algbw':>9} {'busbw':>9}",
            flush=True,
        )
        print(
            f"{'':24} {'bytes':>12} {'us':>12} {'us':>12} {'':>9} {'GB/s':>9} {'GB/s':>9}",
            flush=True,
        )
    for total_bytes in sizes:
        found["sizes"].append(measure(me, args, total_bytes))
        say(me, "all", found["sizes"][-1])
        write(me, args, found)
    if args.pairs:
        found["pairs"] = []
        for pair in measure_pairs(me, args, found["nodes"], sizes[-1]):
            found["pairs"].append(pair)
            say(me, " - ".join(pair["nodes"]), pair)
            write(me, args, found)
        write(me, args, found)
    ranks.leave()  # not before all have said what is wrong: the launcher ends the others when the first is gone
    if not all(item["right"] for item in [*found["sizes"], *(found["pairs"] or [])]):
        sys.exit(1)


if __name__ == "__main__":
    main()
