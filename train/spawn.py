"""
Start the ranks from within the program, by torch.multiprocessing.spawn: no torchrun, one start per node.

    python train/spawn.py --processes 2                     two on this machine
    kit run train/spawn.yaml                                two "nodes" of two, on this machine
    kit submit train/spawn.yaml --image my.sif

On two nodes by hand, with NODE_RANK 0 on node1 and 1 on node2:

    NNODES=2 NODE_RANK=0 NPROC_PER_NODE=2 MASTER_ADDR=node1 MASTER_PORT=61000 python train/spawn.py

spawn suits a program that brings its own processes, such as a notebook or a test. torchrun does more: it notes who
failed first, and can start all again. What is trained is a toy, with DDP: the losses printed are the same, to rounding,
for any number of ranks. Needs torch. Tensor shapes: N examples, D numbers in each.
"""

import argparse
import os
import signal

import ranks
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

EXAMPLES, NUMBERS = 250, 8


def parse_args():
    parser = argparse.ArgumentParser(description="DDP in processes that the program starts itself")
    parser.add_argument(
        "--processes",
        type=int,
        default=int(os.environ.get("NPROC_PER_NODE", 1)),
        help="on this node [NPROC_PER_NODE, or 1]",
    )
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_data(seed):
    """Returns inputs_ND and targets_N: a curve through noise, the same in every rank."""
    random = torch.Generator().manual_seed(seed)
    inputs_ND = torch.randn(EXAMPLES, NUMBERS, generator=random)
    targets_N = torch.sin(
        inputs_ND @ torch.randn(NUMBERS, generator=random) / 2
    ) + 0.1 * torch.randn(EXAMPLES, generator=random)
    return inputs_ND, targets_N


def train(index, args):
    """One rank. spawn calls it in a new process, which has only what is passed here: not the parent's variables."""
    me = ranks.join(ranks.spawned(index, args.processes))
    if me.device.type == "cpu":
        torch.set_num_threads(1)  # too small a network to share
    inputs_ND, targets_N = make_data(args.seed)
    mine_ND, mine_N = (
        tensor[me.rank :: me.world].to(me.device) for tensor in (inputs_ND, targets_N)
    )

    torch.manual_seed(args.seed)
    net = nn.Sequential(nn.Linear(NUMBERS, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0)).to(
        me.device
    )
    model = DDP(net, device_ids=[me.device.index] if me.device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step in range(args.steps):
        # The mean over the examples of all ranks, of which these are a part; the parts may differ by one.
        loss = F.mse_loss(model(mine_ND), mine_N, reduction="sum") / EXAMPLES
        optimizer.zero_grad()
        (loss * me.world).backward()  # DDP averages over the ranks, and a sum is wanted
        optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        if me.rank == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1}/{args.steps}  loss {total.item():.7f}", flush=True)
    ranks.leave()


def main():
    args = parse_args()
    # The children import this file anew, so what starts them has to stand below `if __name__ == "__main__"`, or they
    # would start children, too.
    started = mp.spawn(train, args=(args,), nprocs=args.processes, join=False)
    # Who ends a job asks this process to end, and knows nothing of the children: without this they would go on.
    signal.signal(signal.SIGTERM, lambda *_: [process.terminate() for process in started.processes])
    # join returns whether all have ended. When one fails, it ends the others and raises what that one raised.
    while not started.join():
        pass


if __name__ == "__main__":
    main()
