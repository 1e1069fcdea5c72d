"""
Train the ResNet-18 of cifar10.py as programs did before it: the baseline that its speed is compared with.

    python train/cifar10_original.py --data data                         one GPU, or the CPU
    torchrun --nproc-per-node 2 train/cifar10_original.py --data data    two GPUs
    kit run train/cifar10_original.yaml -- --width 8 --limit-steps 5     a rehearsal on a CPU

The network (resnet.py), the data and the batch are those of cifar10.py. What it does otherwise:
- every number is a float of 32 bits, every image a plane after another, and no step is compiled;
- the processes of a DataLoader shift, mirror and normalize the images, one by one on the CPU;
- SGD without Nesterov, at a rate that falls to a tenth after half of the epochs, and again after three quarters;
- the loss is read in every step, for which the CPU waits for the GPU;
- one rank tests, while the others wait; there are no checkpoints.

A public tutorial of multi-node PyTorch reports 5.0 s an epoch for such a program, on two V100 GPUs with batches of 256.

Needs torch, numpy, and the data: a folder cifar-10-batches-py, which cifar10.py downloads.
Tensor shapes: N images in a batch, C channels, H height, W width, K = 10 classes.
"""

import argparse
import os
import pickle
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from resnet import resnet18
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FOLDER = "cifar-10-batches-py"
GPU = torch.cuda.is_available()
if not GPU and int(os.environ.get("KIT_GPUS_PER_NODE", 0)):
    torch.cuda.init()  # raises what keeps torch from the job's GPUs; the CPU would take days
MEAN, DEVIATION = 120.7, 64.2  # of CIFAR-10's bytes, one of each for all three channels


def parse_args():
    parser = argparse.ArgumentParser(description="ResNet-18 on CIFAR-10, the old way")
    parser.add_argument("--data", type=Path, default="data", help=f"the folder that holds {FOLDER}")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument(
        "--batch-size", type=int, default=256, help="global: over all ranks together"
    )
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate at the start")
    parser.add_argument(
        "--width", type=int, default=64, help="channels of the first stage; 8 suits a CPU"
    )
    parser.add_argument(
        "--limit-steps", type=int, help="end each epoch after so many steps, to try things out"
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="processes that prepare images, for each rank"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not (args.data / FOLDER).is_dir():
        sys.exit(
            f"cifar10_original.py: no {FOLDER} in {args.data.resolve()}\n  fix: name the folder that holds it with --data; cifar10.py downloads it"
        )
    return args


class Cifar10(Dataset):
    """Images as float32 CHW, one at a time; those to train on are shifted by up to 4 pixels, and half of them mirrored."""

    def __init__(self, data, names, augmented):
        # Python 2 wrote these; latin1 is the encoding that leaves the bytes of its arrays alone.
        batches = [
            pickle.loads((data / FOLDER / name).read_bytes(), encoding="latin1") for name in names
        ]
        self.images_NCHW = np.concatenate([batch["data"] for batch in batches]).reshape(
            -1, 3, 32, 32
        )
        self.labels_N = np.concatenate([batch["labels"] for batch in batches])
        self.augmented = augmented

    def __len__(self):
        return len(self.labels_N)

    def __getitem__(self, index):
        image_CHW = self.images_NCHW[index]
        if self.augmented:
            padded_CHW = np.pad(image_CHW, ((0, 0), (4, 4), (4, 4)))
            # torch's generator: a DataLoader seeds it in each of its processes.
            top, left, mirrored = (
                torch.randint(0, 9, ()).item(),
                torch.randint(0, 9, ()).item(),
                torch.rand(()).item() < 0.5,
            )
            image_CHW = padded_CHW[:, top : top + 32, left : left + 32]
            if mirrored:
                image_CHW = image_CHW[:, :, ::-1]
        return torch.from_numpy((image_CHW.astype(np.float32) - MEAN) / DEVIATION), int(
            self.labels_N[index]
        )


def train_epoch(model, optimizer, loader, device, limit_steps):
    """Returns (steps, mean loss, share recognised), of this rank's images."""
    model.train()
    steps, seen, loss_sum, correct = 0, 0, 0.0, 0
    for images_NCHW, labels_N in loader:
        images_NCHW, labels_N = images_NCHW.to(device), labels_N.to(device)
        logits_NK = model(images_NCHW)
        loss = F.cross_entropy(logits_NK, labels_N)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += loss.item() * len(labels_N)
        correct += (logits_NK.argmax(1) == labels_N).sum().item()
        seen += len(labels_N)
        steps += 1
        if steps == limit_steps:
            break
    return steps, loss_sum / seen, correct / seen


@torch.no_grad()
def evaluate(net, loader, device):
    net.eval()
    return sum(
        (net(images_NCHW.to(device)).argmax(1) == labels_N.to(device)).sum().item()
        for images_NCHW, labels_N in loader
    )


@record  # writes the traceback to error.json, where torchrun and kit look for the first cause
def main():
    args = parse_args()
    rank, world, local = (
        int(os.environ.get(name, default))
        for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
    )
    device = torch.device("cuda", local) if GPU else torch.device("cpu")
    if GPU:
        torch.cuda.set_device(device)
    if world > 1:
        dist.init_process_group("nccl" if GPU else "gloo")
    torch.manual_seed(args.seed)

    train = Cifar10(args.data, [f"data_batch_{i}" for i in range(1, 6)], augmented=True)
    test = Cifar10(args.data, ["test_batch"], augmented=False)
    sampler = DistributedSampler(train, world, rank, seed=args.seed)
    # The processes live on from epoch to epoch: to start them anew would be the larger part of a short one.
    shared = {
        "num_workers": args.workers,
        "pin_memory": GPU,
        "persistent_workers": args.workers > 0,
    }
    train_loader = DataLoader(
        train, args.batch_size // world, sampler=sampler, drop_last=True, **shared
    )
    test_loader = DataLoader(test, 500, **shared)

    net = resnet18(args.width).to(device)
    model = DDP(net, device_ids=[local] if GPU else None) if world > 1 else net
    optimizer = torch.optim.SGD(net.parameters(), args.lr, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(
        optimizer, [max(1, args.epochs // 2), max(1, args.epochs * 3 // 4)]
    )

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        start = time.perf_counter()
        steps, loss, recognised = train_epoch(
            model, optimizer, train_loader, device, args.limit_steps
        )
        images_per_s = steps * (args.batch_size // world) * world / (time.perf_counter() - start)
        scheduler.step()
        if rank == 0:
            accuracy = evaluate(net, test_loader, device) / len(test)
            print(
                f"epoch {epoch + 1}/{args.epochs}  loss {loss:.4f}  train acc {recognised:.4f}  test acc {accuracy:.4f}  images/s {images_per_s:.1f}",
                flush=True,
            )
    if world > 1:
        # Global, so that it outlives main(): else a thread of Gloo may free it, wait for Python's
        # lock while Python ends, and abort the process. See leave() in train/ranks.py.
        global last_barrier
        last_barrier = dist.barrier(async_op=True)
        last_barrier.wait()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
