"""
Train a small network on 1,797 real handwritten digits with Horovod: digits.py for those whose programs use Horovod
rather than DDP. No download, seconds on a CPU.

    python train/horovod_digits.py                            one process
    mpirun -n 2 python train/horovod_digits.py                two on this machine
    kit run train/horovod_digits.yaml                         two "nodes" on this machine
    kit submit train/horovod_digits.yaml --image horovod.sif -- --epochs 40

The number of ranks decides who computes what, never what is computed: the losses printed are the
same, to rounding, for any number of ranks, and for digits.py.

Needs horovod, which is built for the torch that is installed, torch, numpy and scikit-learn.
Tensor shapes: N images in a batch, D = 64 pixels, C = 10 classes.
"""

import argparse
import importlib.util
import os
import socket
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

TEST_IMAGES = 360  # a fifth of the 1,797


def parse_args():
    parser = argparse.ArgumentParser(description="Horovod on scikit-learn's handwritten digits")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--batch-size", type=int, default=192, help="global: over all ranks together"
    )
    parser.add_argument("--lr", type=float, default=0.01, help="peak learning rate of AdamW")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def join_world():
    """Returns this process's device, after joining the others and saying who this process is."""
    hvd.init()  # by mpirun's own variables, or as a world of one
    if torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank())
        torch.cuda.set_device(
            device
        )  # before anything touches CUDA: otherwise every rank opens a context on GPU 0
    else:
        if int(os.environ.get("KIT_GPUS_PER_NODE", 0)):
            torch.cuda.init()  # raises what keeps torch from the job's GPUs; the CPU would take days
        device = torch.device("cpu")
        # Too small a network to share: on busy cores a second thread made digits.py ten times slower.
        torch.set_num_threads(1)
    means = "+".join(
        name
        for name, there in (
            ("nccl", hvd.nccl_built()),
            ("mpi", hvd.mpi_enabled()),
            ("gloo", hvd.gloo_enabled()),
        )
        if there
    )
    # In one piece: with PYTHONUNBUFFERED, print writes its newline by itself, and mpirun joins the ranks' lines.
    print(
        f"rank {hvd.rank()}/{hvd.size()}  local {hvd.local_rank()}/{hvd.local_size()}  host {socket.gethostname()}"
        f"  pid {os.getpid()}  device {device}  horovod over {means}  torch {torch.__version__}\n",
        end="",
        flush=True,
    )
    return device


def load(device):
    """Returns train and test images_ND in 0..1 and labels_N: the same split in every rank and run."""
    # What load_digits() reads, without importing sklearn: that takes 1.5 s of CPU in every process.
    sklearn = importlib.util.find_spec("sklearn")
    if sklearn is None:
        sys.exit(
            f"horovod_digits.py: the digits come with scikit-learn, which this Python lacks\n  fix: {sys.executable} -m pip install scikit-learn"
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


def train_epoch(model, optimizer, scheduler, images_ND, labels_N, order_N, batch_size):
    """Returns the mean loss over the epoch's images of all ranks."""
    loss_sum = torch.zeros((), dtype=torch.float64, device=images_ND.device)
    for batch_N in order_N.split(batch_size):  # the same global batch in every rank ...
        mine_N = batch_N[
            hvd.rank() :: hvd.size()
        ]  # ... of which each takes its share, equal or one apart
        loss = F.cross_entropy(model(images_ND[mine_N]), labels_N[mine_N], reduction="sum")
        loss_sum += loss.detach()
        optimizer.zero_grad()
        # Horovod averages over ranks, so this is the mean over the global batch even if the shares differ.
        (loss * hvd.size() / len(batch_N)).backward()
        optimizer.step()  # waits for the averages
        scheduler.step()
    return hvd.allreduce(loss_sum, op=hvd.Sum, name="loss").item() / len(order_N)


@torch.no_grad()
def test_accuracy(model, images_ND, labels_N):
    """Returns the share of test images recognised; every image is seen by exactly one rank."""
    mine = slice(hvd.rank(), None, hvd.size())
    correct_N = model(images_ND[mine]).argmax(1) == labels_N[mine]
    return hvd.allreduce(correct_N.sum(), op=hvd.Sum, name="correct").item() / len(labels_N)


def main():
    args = parse_args()
    device = join_world()
    train, test = load(device)

    torch.manual_seed(args.seed)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    steps = args.epochs * -(-len(train[0]) // args.batch_size)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(1, steps))

    start = time.time()
    for epoch in range(args.epochs):
        # Seeded alike in every rank: the shares are disjoint only if the order is the same.
        shuffle = torch.Generator().manual_seed(args.seed * 100_003 + epoch)
        order_N = torch.randperm(len(train[0]), generator=shuffle).to(device)
        loss = train_epoch(net, optimizer, scheduler, *train, order_N, args.batch_size)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}/{args.epochs}  loss {loss:.4f}", flush=True)

    accuracy = test_accuracy(net, *test)
    if hvd.rank() == 0:
        print(f"trained in {time.time() - start:.1f} s", flush=True)
        print(f"test accuracy {accuracy:.3f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
