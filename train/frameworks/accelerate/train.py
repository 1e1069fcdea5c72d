"""
Train a small network with Hugging Face's Accelerate. Killed at any moment, it goes on from its newest checkpoint.

    python train.py --epochs 2                        one process
    kit run job.yaml                                  two "nodes" of two ranks on this machine
    kit submit job.yaml --image my.sif                on the cluster

Asked by SIGUSR1 or SIGTERM, it writes a checkpoint after the step at hand and ends with code 75: `kit` then starts it
again. The data is made up, so there is nothing to download. Needs accelerate; written for 1.15.
"""

import argparse
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, broadcast_object_list, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GO_ON = 75  # the exit code that asks to be started again
STEPS = "step-" + 8 * "[0-9]"  # and not a copy that somebody keeps beside them


def parse_args():
    parser = argparse.ArgumentParser(description="A small network with Accelerate")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--checkpoints", type=Path, default="checkpoints", metavar="FOLDER")
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument(
        "--pause",
        type=float,
        default=0,
        metavar="SECONDS",
        help="after each step: time to kill a rank",
    )
    return parser.parse_args()


def make_data():
    """4,096 points, and which of ten classes a fixed network says that each belongs to."""
    random = torch.Generator().manual_seed(1)
    points = torch.randn(4096, 32, generator=random)
    return TensorDataset(points, (points @ torch.randn(32, 10, generator=random)).argmax(1))


def save(accelerator, folder, step):
    accelerator.save_state(folder / "part")  # each rank writes its random state, rank 0 the rest
    accelerator.wait_for_everyone()
    if not accelerator.is_main_process:
        return
    # Renamed when all have written: whoever looks for the newest checkpoint never finds half of one.
    (folder / "part").rename(folder / f"step-{step:08d}")
    for old in sorted(folder.glob(STEPS))[:-2]:
        shutil.rmtree(old)
    if "KIT_PROGRESS" in os.environ:
        Path(os.environ["KIT_PROGRESS"]).write_text(f"step {step}\n")


def restore(accelerator, folder):
    """Returns the number of steps done: 0 without a checkpoint."""
    # Rank 0 decides: a network file system may show a new folder late to some.
    (newest,) = broadcast_object_list([max(folder.glob(STEPS), default=None)])
    if newest is None:
        return 0
    accelerator.load_state(newest)
    step = int(newest.name.removeprefix("step-"))
    return step


def leave(accelerator, code):
    global last_barrier
    if accelerator.num_processes > 1:
        # On CPUs the last tensors are Gloo's threads' for a moment longer: see leave() in train/ranks.py.
        last_barrier = dist.barrier(async_op=True)
        last_barrier.wait()
    accelerator.end_training()
    sys.exit(code)


def main():
    args = parse_args()
    # Shuffled by a seed and the epoch: a run that goes on sees the batches that it has not seen.
    seedable = DataLoaderConfiguration(use_seedable_sampler=True)
    # Where there is no GPU, its ranks train each for itself unless it is told so.
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), dataloader_config=seedable)
    asked = []
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, frame: asked.append(number))

    set_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    loader = DataLoader(make_data(), batch_size=args.batch_size, shuffle=True)
    # Accelerate divides the batches among the ranks, and wraps the model in DDP.
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    step = restore(accelerator, args.checkpoints)
    last = args.epochs * len(loader)
    while step < last:
        epoch, done = divmod(step, len(loader))
        loader.set_epoch(epoch)
        for points, classes in accelerator.skip_first_batches(loader, done):
            loss = F.cross_entropy(model(points), classes)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if accelerator.is_main_process:
                print(f"step {step}  loss {loss.item():.6f}", flush=True)
            time.sleep(args.pause)
            if asked:
                accelerator.set_trigger()
            stop = accelerator.check_trigger()  # in all ranks, when one has set it
            if stop or step % args.save_every == 0 or step == last:
                save(accelerator, args.checkpoints, step)
            if stop:
                leave(accelerator, GO_ON)
    leave(accelerator, 0)


if __name__ == "__main__":
    main()
