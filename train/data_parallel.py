"""
Train the same network three ways - in one process, with DataParallel, with DistributedDataParallel - and compare.

    python train/data_parallel.py                                      one process, which uses all of its GPUs
    torchrun --nproc-per-node 2 train/data_parallel.py                 two on this machine
    kit run train/data_parallel.yaml                                   two "nodes" on this machine
    kit submit train/data_parallel.yaml --image my.sif

DataParallel is one process with a thread for each GPU. In every step it copies the network to all GPUs, and collects
the outputs on the first. It ends at the machine's border, and its threads share one Python.

DistributedDataParallel is one process for each GPU, on any number of machines. Each keeps its own copy of the network,
and only gradients travel, while the backward pass still computes.

All get the same network and the same batches, so they must have the same losses, in every step: where they differ by
more than 0.00001, the program ends with exit code 1. Needs torch. Tensor shapes: N examples, D numbers in each, B
examples in a batch of all ranks together, T steps.
"""

import argparse
import sys
import time

import ranks
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DataParallel
from torch.nn.parallel import DistributedDataParallel as DDP

EXAMPLES, NUMBERS = 4096, 64
TOLERANCE = 1e-5  # float32 adds up differently in another order, by less than this
WARM_UP = 2  # steps before the clock starts: the first ones set things up


def parse_args():
    parser = argparse.ArgumentParser(description="DataParallel against DistributedDataParallel")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument(
        "--batch-size", type=ranks.positive, default=500, help="global: over all ranks together"
    )
    parser.add_argument(
        "--width",
        type=int,
        default=512,
        help="of the hidden layers: the larger, the more there is to win",
    )
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.steps <= WARM_UP:
        parser.error(f"--steps {args.steps}: the clock starts after {WARM_UP}, so give more")
    return args


def make_net(args, device):
    """Returns the same network in every rank, every time."""
    torch.manual_seed(args.seed)
    layers = (
        nn.Linear(NUMBERS, args.width),
        nn.ReLU(),
        nn.Linear(args.width, args.width),
        nn.ReLU(),
        nn.Linear(args.width, 1),
    )
    return nn.Sequential(*layers, nn.Flatten(0)).to(device)


def make_data(args, device):
    """Returns inputs_ND and targets_N: a curve, the same in every rank."""
    random = torch.Generator().manual_seed(args.seed)
    inputs_ND = torch.randn(EXAMPLES, NUMBERS, generator=random)
    targets_N = torch.sin(inputs_ND @ torch.randn(NUMBERS, generator=random) / 8)
    return inputs_ND.to(device), targets_N.to(device)


def wait_for_gpu(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def train(model, args, device, rank=0, world=1):
    """Returns (losses_T over the global batches, steps per second) of a model that lives in `world` ranks."""
    inputs_ND, targets_N = make_data(args, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    losses_T = torch.zeros(args.steps, device=device)
    for step in range(args.steps):
        if step == WARM_UP:
            wait_for_gpu(device)
            start = time.perf_counter()
        batch_B = (
            torch.arange(step * args.batch_size, (step + 1) * args.batch_size, device=device)
            % EXAMPLES
        )
        mine_B = batch_B[rank::world]  # equal shares, or one apart
        loss = (
            F.mse_loss(model(inputs_ND[mine_B]), targets_N[mine_B], reduction="sum")
            / args.batch_size
        )
        optimizer.zero_grad()
        # DDP averages over the ranks. For the mean over the global batch their sum is wanted, also if shares differ.
        (loss * world).backward()
        optimizer.step()
        losses_T[step] = loss.detach()
    wait_for_gpu(device)
    steps_per_s = (args.steps - WARM_UP) / (time.perf_counter() - start)
    if world > 1:
        dist.all_reduce(losses_T)  # each has had the share of its examples
    return losses_T, steps_per_s


def train_in_one_process(args, device):
    """Returns {name: (losses_T, steps per second, remark)} of the two ways that know nothing of ranks."""
    plain = train(make_net(args, device), args, device)
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    # Without a GPU this calls the network as it is; with several, it cuts each batch among them.
    parallel = train(DataParallel(make_net(args, device)), args, device)
    remark = (
        f"{gpus} GPUs, by threads of one process"
        if gpus
        else "no GPU here: it runs the network as it is"
    )
    return {"one process": (*plain, f"on {device}"), "DataParallel": (*parallel, remark)}


@record  # writes the traceback to error.json, where torchrun and kit look for the first cause
def main():
    args = parse_args()
    me = ranks.join()
    if me.device.type == "cpu":
        torch.set_num_threads(
            1
        )  # a core for each: a process alone would take all, and leave nothing to win
    # The others wait here on their CPUs: a barrier of NCCL would occupy the GPUs that DataParallel is to use.
    waiting = dist.new_group(backend="gloo")
    results = train_in_one_process(args, me.device) if me.rank == 0 else {}
    dist.barrier(group=waiting)

    net = make_net(args, me.device)
    model = DDP(net, device_ids=[me.device.index] if me.device.type == "cuda" else None)
    results["DistributedDataParallel"] = (
        *train(model, args, me.device, me.rank, me.world),
        f"ranks: {me.world}",
    )
    ranks.leave()
    if me.rank > 0:
        return

    print(f"{'':24} {'last loss':>12} {'steps/s':>9}", flush=True)
    for name, (losses_T, steps_per_s, remark) in results.items():
        print(f"{name:24} {losses_T[-1].item():>12.7f} {steps_per_s:>9.1f}  {remark}", flush=True)
    expected_T = results["one process"][0]
    for name, (losses_T, _, _) in results.items():
        apart_T = (losses_T - expected_T).abs()
        if not apart_T.max() <= TOLERANCE:  # also where one is not a number
            step = apart_T.gt(TOLERANCE).logical_or(apart_T.isnan()).nonzero()[0].item()
            sys.exit(
                f"data_parallel.py: {name} has the loss {losses_T[step].item():.7f} in step {step + 1},"
                f" and one process has {expected_T[step].item():.7f}"
                "\n  fix: see that all nodes have the same torch and the same GPUs, and run train/collectives.py on them"
            )
    print(f"the same losses in all {args.steps} steps, to {TOLERANCE:.5f}", flush=True)


if __name__ == "__main__":
    main()
