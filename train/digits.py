"""
Train a small network on 1,797 real handwritten digits with DDP. No download, seconds on a CPU:
the program to run first on a new cluster, because whatever fails here is the cluster.

    python train/digits.py                                    one process
    torchrun --nproc-per-node 2 train/digits.py               two on this machine
    kit run train/digits.yaml                                 two "nodes" on this machine
    kit submit train/digits.yaml --image my.sif -- --epochs 40

On two nodes by hand, with NODE_RANK 0 on node1 and 1 on node2:

    torchrun --nnodes 2 --node-rank $NODE_RANK --nproc-per-node 2 \
             --master-addr node1 --master-port 61000 train/digits.py

The number of ranks decides who computes what, never what is computed: the losses printed are the
same, to rounding, for any number of ranks.

Needs torch, numpy and scikit-learn. Tensor shapes: N images in a batch, D = 64 pixels, C = 10 classes.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

TEST_IMAGES = 360  # a fifth of the 1,797


def parse_args():
    parser = argparse.ArgumentParser(description="DDP on scikit-learn's handwritten digits")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--batch-size", type=int, default=192, help="global: over all ranks together"
    )
    parser.add_argument("--lr", type=float, default=0.01, help="peak learning rate of AdamW")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def join_world():
    """Returns (rank, world, device), after joining the process group and saying who this process is."""
    # Not by ranks.py, since `kit init` copies this file alone.
    # Everything comes from torchrun's environment; without it this is a world of one.
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local, local_world = (
        int(os.environ.get("LOCAL_RANK", 0)),
        int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
    )
    node = int(os.environ.get("GROUP_RANK", rank // local_world))
    alone = "RANK" not in os.environ
    master = "none" if alone else f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"

    if torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        if local >= gpus:
            sys.exit(
                f"digits.py: {local_world} processes on {socket.gethostname()}, which shows {gpus} GPUs"
                f"\n  fix: start {gpus} processes per node, one for each GPU"
            )
        backend, device = "nccl", torch.device("cuda", local)
        # Before anything touches CUDA: otherwise every rank opens a context on GPU 0.
        torch.cuda.set_device(device)
    else:
        if int(os.environ.get("KIT_GPUS_PER_NODE", 0)):
            torch.cuda.init()  # raises what keeps torch from the job's GPUs; the CPU would take days
        backend, device = "gloo", torch.device("cpu")
        # Too small a network to share: on busy cores a second thread made it ten times slower.
        torch.set_num_threads(1)

    # Before the rendezvous: when that hangs, these lines show who is missing.
    if rank == 0:
        print(
            f"torch {torch.__version__}  threads {torch.get_num_threads()}  world size {world}",
            flush=True,
        )
    print(
        f"rank {rank}/{world}  local {local}/{local_world}  node {node}  host {socket.gethostname()}"
        f"  pid {os.getpid()}  device {device}  backend {backend}  master {master}",
        flush=True,
    )

    dist.init_process_group(
        backend,
        rank=rank,
        world_size=world,
        store=dist.HashStore() if alone else None,  # a store in this process: no address, no port
        # With a device, NCCL connects now rather than in the first collective: a broken fabric shows here.
        device_id=device if device.type == "cuda" else None,
        timeout=timedelta(
            minutes=5
        ),  # nothing here takes that long, so a lost rank ends the run soon
    )
    return rank, world, device


def load(device):
    """Returns train and test images_ND in 0..1 and labels_N: the same split in every rank and run."""
    # What load_digits() reads, without importing sklearn: that takes 1.5 s of CPU in every process.
    sklearn = importlib.util.find_spec("sklearn")
    if sklearn is None:
        sys.exit(
            f"digits.py: the digits come with scikit-learn, which this Python lacks\n  fix: {sys.executable} -m pip install scikit-learn"
        )
    file = Path(sklearn.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    rows = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.float32)).to(
        device
    )  # 64 pixels, label
    images_ND, labels_N = rows[:, :64] / 16, rows[:, 64].long()
    # Shuffled: the file is ordered by writer, and its last fifth is written by people not in the rest.
    order = torch.randperm(len(labels_N), generator=torch.Generator().manual_seed(0)).to(device)
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return (images_ND[train], labels_N[train]), (images_ND[test], labels_N[test])


def note_first_step(rank):
    """Tells `kit timeline` that the first step is done. Without kit, or where that cannot be written, does nothing."""
    with contextlib.suppress(KeyError, OSError), open(os.environ["KIT_EVENTS"], "a") as file:
        file.write(json.dumps({"t": time.time(), "event": "first_step", "rank": rank}) + "\n")


def train_epoch(model, optimizer, scheduler, images_ND, labels_N, order_N, batch_size, rank, world):
    """Returns the mean loss over the epoch's images of all ranks."""
    loss_sum = torch.zeros((), dtype=torch.float64, device=images_ND.device)
    for batch_N in order_N.split(batch_size):  # the same global batch in every rank ...
        mine_N = batch_N[rank::world]  # ... of which each takes its share, equal or one apart
        loss = F.cross_entropy(model(images_ND[mine_N]), labels_N[mine_N], reduction="sum")
        loss_sum += loss.detach()
        optimizer.zero_grad()
        # DDP averages over ranks, so this is the mean over the global batch even if the shares differ.
        (loss * world / len(batch_N)).backward()
        optimizer.step()
        scheduler.step()
        if scheduler.last_epoch == 1:
            loss.item()  # waits for the GPU
            note_first_step(rank)
    dist.all_reduce(loss_sum)
    return loss_sum.item() / len(order_N)


@torch.no_grad()
def test_accuracy(model, images_ND, labels_N, rank, world):
    """Returns the share of test images recognised; every image is seen by exactly one rank."""
    correct_N = model(images_ND[rank::world]).argmax(1) == labels_N[rank::world]
    count = correct_N.sum()
    dist.all_reduce(count)
    return count.item() / len(labels_N)


@record  # writes the traceback to error.json, where torchrun and kit look for the first cause
def main():
    args = parse_args()
    rank, world, device = join_world()
    train, test = load(device)

    torch.manual_seed(args.seed)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    model = DDP(net, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    steps = args.epochs * -(-len(train[0]) // args.batch_size)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(1, steps))

    start = time.time()
    for epoch in range(args.epochs):
        # Seeded alike in every rank: the shares are disjoint only if the order is the same.
        shuffle = torch.Generator().manual_seed(args.seed * 100_003 + epoch)
        order_N = torch.randperm(len(train[0]), generator=shuffle).to(device)
        loss = train_epoch(
            model, optimizer, scheduler, *train, order_N, args.batch_size, rank, world
        )
        if rank == 0:
            print(f"epoch {epoch + 1}/{args.epochs}  loss {loss:.4f}", flush=True)

    accuracy = test_accuracy(net, *test, rank, world)
    if rank == 0:
        print(f"trained in {time.time() - start:.1f} s", flush=True)
        print(f"test accuracy {accuracy:.3f}", flush=True)
    # A thread of Gloo says that a collective is done before it lets go of it, and needs Python's
    # lock to free its tensors. The barrier keeps these tensors alive, and is global so that it
    # outlives main(): a thread that is the last to let go of it, and waits for the lock when
    # Python ends, aborts the process (https://github.com/pytorch/pytorch/issues/190489). With the
    # threads held up to 0.1 s there, torch 2.13 aborted in 12 of 60 runs of 4 ranks with a local
    # variable, and in none of 60 with this one.
    global last_barrier
    last_barrier = dist.barrier(async_op=True)
    last_barrier.wait()
    # Not in a finally: after a failure it would wait for ranks that are gone.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
