"""
Train a small network with Lightning's Trainer. Killed at any moment, it goes on from its newest checkpoint.

    python train.py --epochs 2                        one process
    kit run job.yaml                                  two "nodes" of two ranks on this machine
    kit submit job.yaml --image my.sif                on the cluster

Asked by SIGUSR1 or SIGTERM, it writes a checkpoint after the step at hand and ends with code 75: `kit` then starts it
again. The data is made up, so there is nothing to download. Needs lightning; written for 2.6.
"""

import argparse
import itertools
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

GO_ON = 75  # the exit code that asks to be started again


class Network(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, index):
        points, classes = batch
        return F.cross_entropy(self.layers(points), classes)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.003)


class Resumable(DataLoader):
    """Lightning asks a loader with these two methods for its place. Any other it begins anew, in the middle of an epoch, too."""

    done = begin = 0

    def __iter__(self):
        self.done, self.begin = self.begin, 0
        for batch in itertools.islice(super().__iter__(), self.done, None):
            self.done += 1
            yield batch

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.begin = state["done"]


class Checkpoints(Callback):
    """One every so many steps, and one when asked: what kit and a program agree on, as docs/preemption.md says it."""

    def __init__(self, folder, save_every, pause_s):
        self.file, self.save_every, self.pause_s = folder / "last.ckpt", save_every, pause_s
        self.asked, self.stopped, self.is_due = [], False, False

    def on_train_start(self, trainer, module):
        # Only here, in place of Lightning's own: in 2.6 that of SIGTERM begins a broadcast wherever its rank happens to be,
        # and under `launcher: srun` that of SIGUSR1 calls `scontrol requeue`, which is kit's work.
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, lambda number, frame: self.asked.append(number))

    def on_train_batch_end(self, trainer, module, loss, batch, index):
        if trainer.is_global_zero:
            print(f"step {trainer.global_step}  loss {loss['loss'].item():.6f}", flush=True)
        time.sleep(self.pause_s)
        self.stopped = trainer.strategy.reduce_boolean_decision(bool(self.asked), all=False)
        trainer.should_stop = self.stopped  # in all ranks, when one was asked
        self.is_due = self.is_due or self.stopped or trainer.global_step % self.save_every == 0
        # Lightning 2.6 goes astray from a checkpoint of an epoch's last batch, but not from one of its end.
        if not trainer.is_last_batch:
            self.save_if_due(trainer)

    def on_train_epoch_end(self, trainer, module):
        is_whole = not self.stopped  # else Lightning ends the epoch in its middle
        # A program with max_steps, max_time or EarlyStopping has to ask for that end here.
        self.is_due = self.is_due or (is_whole and trainer.current_epoch + 1 == trainer.max_epochs)
        self.save_if_due(trainer)

    def save_if_due(self, trainer):
        if not self.is_due:
            return
        # Under another name first: Lightning moves it from $TMPDIR, which is a copy where that is on another file system.
        part = self.file.with_name("last.ckpt.part")
        trainer.save_checkpoint(part)
        if trainer.is_global_zero:
            part.replace(self.file)
            if "KIT_PROGRESS" in os.environ:
                Path(os.environ["KIT_PROGRESS"]).write_text(f"step {trainer.global_step}\n")
        trainer.strategy.barrier()  # nobody goes on before the file is there
        self.is_due = False


def make_data():
    """4,096 points, and which of ten classes a fixed network says that each belongs to."""
    random = torch.Generator().manual_seed(1)
    points = torch.randn(4096, 32, generator=random)
    return TensorDataset(points, (points @ torch.randn(32, 10, generator=random)).argmax(1))


def main():
    parser = argparse.ArgumentParser(description="A small network with Lightning")
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
    args = parser.parse_args()

    seed_everything(0)
    checkpoints = Checkpoints(args.checkpoints, args.save_every, args.pause)
    trainer = Trainer(
        # What kit knows. Without these two, Lightning takes the devices of one node, and each node trains alone.
        num_nodes=int(os.environ.get("NNODES", 1)),
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        strategy="ddp" if "RANK" in os.environ else "auto",
        max_epochs=args.epochs,
        callbacks=[checkpoints],
        enable_checkpointing=False,
        use_distributed_sampler=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = make_data()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    order = DistributedSampler(data, world, rank)  # of each epoch: Lightning tells it which one
    loader = Resumable(data, batch_size=args.batch_size, sampler=order)
    # Rank 0 decides: a network file system may show a new file late to some.
    trainer.strategy.setup_environment()  # connects the ranks
    begin = trainer.strategy.broadcast(checkpoints.file if checkpoints.file.exists() else None)
    trainer.fit(Network(), loader, ckpt_path=begin)
    global last_barrier
    if dist.is_initialized():
        # On CPUs the last tensors are Gloo's threads' for a moment longer: see leave() in train/ranks.py.
        last_barrier = dist.barrier(async_op=True)
        last_barrier.wait()
        dist.destroy_process_group()
    sys.exit(GO_ON if checkpoints.stopped else 0)


if __name__ == "__main__":
    main()
