"""
Train a small network with DeepSpeed's ZeRO-2. Killed at any moment, it goes on from its newest checkpoint.

    kit run job.yaml                                  two "nodes" of two ranks on this machine
    kit submit job.yaml --image my.sif                on the cluster

Asked by SIGUSR1 or SIGTERM, it writes a checkpoint after the step at hand and ends with code 75: `kit` then starts it
again. The data is made up, so there is nothing to download. Needs deepspeed; written for 0.19.
"""

import argparse
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

GO_ON = 75  # the exit code that asks to be started again
STEPS = "step-" + 8 * "[0-9]"  # and not a copy that somebody keeps beside them


def parse_args():
    parser = argparse.ArgumentParser(description="A small network with DeepSpeed")
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


def settings(args):
    """What is otherwise the file of `--deepspeed_config`."""
    return {
        "train_micro_batch_size_per_gpu": args.batch_size,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "torch_adam": True}},
        "zero_optimization": {"stage": 2},  # each rank keeps its share of gradients and optimizer
    }


def save(engine, folder, step):
    tag = f"step-{step:08d}"
    # Each rank writes its share, and waits for the others at the end. DeepSpeed itself writes `latest` before that.
    engine.save_checkpoint(folder, tag=tag, client_state={"step": step}, save_latest=False)
    if dist.get_rank() != 0:
        return
    (folder / "latest.part").write_text(tag)
    (folder / "latest.part").rename(folder / "latest")
    # Folders of later steps go first: they are halves that a kill left.
    for old in sorted(folder.glob(STEPS), key=lambda old: (old.name <= tag, old.name))[:-2]:
        shutil.rmtree(old)
    if "KIT_PROGRESS" in os.environ:
        Path(os.environ["KIT_PROGRESS"]).write_text(f"step {step}\n")


def restore(engine, folder):
    """Returns the number of steps done: 0 without a checkpoint."""
    # Rank 0 decides: a network file system may show a new file late to some.
    tag = [(folder / "latest").read_text() if (folder / "latest").exists() else ""]
    dist.broadcast_object_list(tag, device=engine.device)
    if not tag[0]:
        return 0
    _, state = engine.load_checkpoint(folder, tag=tag[0])
    return state["step"]


def leave(code):
    global last_barrier
    # On CPUs the last tensors are Gloo's threads' for a moment longer: see leave() in train/ranks.py.
    last_barrier = dist.barrier(async_op=True)
    last_barrier.wait()
    dist.destroy_process_group()
    sys.exit(code)


def main():
    args = parse_args()
    asked = []
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, frame: asked.append(number))
    deepspeed.init_distributed()  # NCCL, or Gloo where there is no GPU

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 10))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=settings(args)
    )
    data = make_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)

    step = restore(engine, args.checkpoints)
    last = args.epochs * len(loader)
    while step < last:
        epoch, done = divmod(step, len(loader))
        sampler.set_epoch(epoch)  # shuffles by the epoch: a run that goes on sees the same order
        for number, (points, classes) in enumerate(loader):
            if number < done:
                continue  # this epoch's steps before the checkpoint
            loss = F.cross_entropy(engine(points.to(engine.device)), classes.to(engine.device))
            engine.backward(loss)
            engine.step()
            step += 1
            if dist.get_rank() == 0:
                print(f"step {step}  loss {loss.item():.6f}", flush=True)
            time.sleep(args.pause)
            stop = torch.tensor(float(bool(asked)), device=engine.device)
            dist.all_reduce(stop)  # in all ranks, when one was asked
            if stop or step % args.save_every == 0 or step == last:
                save(engine, args.checkpoints, step)
            if stop:
                leave(GO_ON)
    leave(0)


if __name__ == "__main__":
    main()
