"""
Send from one rank to another: a token round the ring of all ranks, and every rank with both neighbours at once.

    python train/point_to_point.py                                one process, which has nobody to talk to
    torchrun --nproc-per-node 4 train/point_to_point.py           four on this machine
    kit run train/point_to_point.yaml                             two "nodes" on this machine
    kit submit train/point_to_point.yaml --image my.sif
    torchrun --nproc-per-node 2 train/point_to_point.py --deadlock      the mistake to make once

A send needs a recv at the other end, with a tensor of the same size and type; nothing else says what is in it.
Every value that arrives is checked, and a wrong one ends the program with exit code 1. Needs torch.
"""

import argparse
import sys
from datetime import timedelta

import ranks
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

DEADLOCK_S = 5  # how long --deadlock waits for what cannot come


def parse_args():
    parser = argparse.ArgumentParser(description="send and recv between ranks")
    parser.add_argument(
        "--deadlock",
        action="store_true",
        help=f"all ranks send before any receives; given up after {DEADLOCK_S} s",
    )
    return parser.parse_args()


def check(me, what, value, expected):
    if value != expected:
        sys.exit(
            f"point_to_point.py: rank {me.rank}: {what} is {value}, not {expected}"
            "\n  fix: run it on one node, then on each pair of nodes: that shows which one alters or mixes up messages"
        )


def neighbours(me):
    """The ranks to the left and right, on a ring: the last one's right neighbour is rank 0."""
    return (me.rank - 1) % me.world, (me.rank + 1) % me.world


def ring(me):
    """Returns the token that arrives, by send and recv: each rank adds its number. In rank 0 it has been everywhere."""
    left, right = neighbours(me)
    token = torch.tensor(0, device=me.device)
    # send returns when the tensor may be changed again, recv when it is filled: so somebody has to receive first. Here
    # all do but rank 0.
    if me.rank > 0:
        dist.recv(token, src=left)
        check(me, "the token", token.item(), sum(range(me.rank)))
        token += me.rank
    dist.send(token, dst=right)
    if me.rank == 0:
        dist.recv(token, src=left)
        check(me, "the token after the whole round", token.item(), sum(range(me.world)))
    return token.item()


def ring_with_handles(me):
    """Returns the same token, by isend and irecv: they only begin, and wait() ends them. Other work fits between."""
    left, right = neighbours(me)
    arrived = torch.tensor(0, device=me.device)
    if me.rank > 0:
        receiving = dist.irecv(arrived, src=left)
        # Here a program computes what needs no token, and the way of the token costs no time.
        receiving.wait()  # `arrived` is not to be read before
        check(me, "the token with handles", arrived.item(), sum(range(me.rank)))
    leaving = arrived + me.rank
    sending = dist.isend(leaving, dst=right)
    # Here, too.
    sending.wait()  # `leaving` is not to be changed before
    if me.rank > 0:
        return leaving.item()
    dist.irecv(arrived, src=left).wait()
    check(me, "the token with handles after the whole round", arrived.item(), sum(range(me.world)))
    return arrived.item()


def exchange(me):
    """Returns what came from the left and from the right: all ranks send and receive in both directions at once."""
    left, right = neighbours(me)
    to_left, to_right = (torch.tensor(10 * me.rank + side, device=me.device) for side in (1, 2))
    from_left, from_right = torch.zeros_like(to_left), torch.zeros_like(to_right)
    # If all ranks call send and then recv, all wait in send: nobody receives (--deadlock shows it). A batch starts all
    # of them together, so that their order does not matter. On GPUs isend and irecv alone are not enough: NCCL runs
    # what it is given one after the other, unless it comes as a batch.
    batch = [
        dist.P2POp(dist.isend, to_right, right),
        dist.P2POp(dist.irecv, from_left, left),
        # Between two ranks left and right are the same one: messages to it arrive in the order of their isends.
        dist.P2POp(dist.isend, to_left, left),
        dist.P2POp(dist.irecv, from_right, right),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    check(me, "what came from the left", from_left.item(), 10 * left + 2)
    check(me, "what came from the right", from_right.item(), 10 * right + 1)
    return from_left.item(), from_right.item()


def deadlock(me):
    """Never returns: every rank waits until the one to its right receives, which waits, too."""
    left, right = neighbours(me)
    impatient = dist.new_group(
        timeout=timedelta(seconds=DEADLOCK_S)
    )  # the group of all waits for minutes
    # Gloo waits with a single number, too. NCCL may take a small tensor into its buffers, and then the mistake shows
    # only when tensors have grown.
    tensor_N = torch.zeros(16 << 20, device=me.device)
    try:
        dist.send(tensor_N, dst=right, group=impatient)
        dist.recv(tensor_N, src=left, group=impatient)
        tensor_N.sum().item()  # a GPU has only been told to do all this: wait for it
    except RuntimeError as error:
        sys.exit(
            f"point_to_point.py: rank {me.rank} sends, and rank {right} does not receive: {error}"
            "\n  fix: let one of the two receive first, or start both at once with batch_isend_irecv"
        )


@record  # writes the traceback to error.json, where torchrun and kit look for the first cause
def main():
    args = parse_args()
    me = ranks.join()
    if me.world == 1:
        print("one rank alone: there is nobody to talk to; start two or more", flush=True)
    elif args.deadlock:
        deadlock(me)
    else:
        token = ring(me)
        again = ring_with_handles(me)
        left, right = exchange(me)
        print(
            f"from rank {me.rank}: token {token}  with handles {again}  from the left {left}  from the right {right}",
            flush=True,
        )
        if me.rank == 0:
            print(f"the token went round {me.world} ranks: {token}", flush=True)
    ranks.leave()


if __name__ == "__main__":
    main()
