"""
Train a small network with Ray Train. Killed at any moment, it goes on from its newest checkpoint.

    python train.py --epochs 2                        one worker, on a Ray of its own
    kit run job.yaml                                  two "nodes" of two workers on this machine
    kit submit job.yaml --image my.sif                on the cluster

This is Ray's driver: it runs once, on the first node, and its workers run where Ray has room for them. Asked for a
checkpoint, the workers write one after the step at hand, and the driver ends with code 75: `kit` then starts it again. The
data is made up, so there is nothing to download. Needs ray[train]; written for 2.60.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GO_ON = 75  # the exit code that asks to be started again


def parse_args():
    parser = argparse.ArgumentParser(description="A small network with Ray Train")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--checkpoints", type=Path, default="checkpoints", metavar="FOLDER")
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument(
        "--pause",
        type=float,
        default=0,
        metavar="SECONDS",
        help="after each step: time to kill a worker",
    )
    return parser.parse_args()


def make_data():
    """4,096 points, and which of ten classes a fixed network says that each belongs to."""
    random = torch.Generator().manual_seed(1)
    points = torch.randn(4096, 32, generator=random)
    return TensorDataset(points, (points @ torch.randn(32, 10, generator=random)).argmax(1))


def is_asked():
    """Whether a checkpoint is wanted. All workers have to agree: one may see the file before another."""
    asked = torch.tensor(float(os.path.exists(os.environ.get("KIT_CHECKPOINT_FILE", ""))))
    if dist.is_initialized():
        asked = asked.to(ray.train.torch.get_device())
        dist.all_reduce(asked)
    return asked.item() > 0


def save(model, optimizer, step, metrics):
    """All workers report; the first one's folder becomes the checkpoint. Ray copies it, and only then counts it as one."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, Path(folder) / "state.pt")
            checkpoint = Checkpoint.from_directory(folder)
        ray.train.report(metrics, checkpoint=checkpoint)
    if "KIT_PROGRESS" in os.environ and ray.train.get_context().get_world_rank() == 0:
        Path(os.environ["KIT_PROGRESS"]).write_text(f"step {step}\n")


def train(config):
    """What each worker runs. Ray has joined them: torch.distributed is ready."""
    is_first = ray.train.get_context().get_world_rank() == 0
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 10))
    model = ray.train.torch.prepare_model(model)  # wraps it in DDP
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    loader = DataLoader(make_data(), batch_size=config["batch_size"], shuffle=True)
    loader = ray.train.torch.prepare_data_loader(loader)  # divides the points among the workers

    step = 0
    newest = ray.train.get_checkpoint()
    if newest:
        with newest.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt", map_location="cpu")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    while step < config["epochs"] * len(loader):
        epoch, done = divmod(step, len(loader))
        # A run that goes on sees the same order: one worker shuffles by the seed, several by the epoch.
        torch.manual_seed(epoch)
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for number, (points, classes) in enumerate(loader):
            if number < done:
                continue  # this epoch's steps before the checkpoint
            loss = F.cross_entropy(model(points), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if is_first:
                print(f"step {step}  loss {loss.item():.6f}", flush=True)
            time.sleep(config["pause"])
            stop = is_asked()
            if stop or step % config["save_every"] == 0:
                save(model, optimizer, step, {"loss": loss.item(), "stopped": stop})
            if stop:
                return
    # Ray's result has what was reported with the newest checkpoint, perhaps by a start before that was asked to stop.
    save(model, optimizer, step, {"stopped": False})


def main():
    args = parse_args()
    signal.signal(
        signal.SIGUSR1, lambda number, frame: None
    )  # the workers see the file that comes with it
    workers = int(os.environ.get("NNODES", 1)) * int(os.environ.get("NPROC_PER_NODE", 1))
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config=vars(args) | {"checkpoints": None},
        scaling_config=ScalingConfig(
            num_workers=workers,
            use_gpu=torch.cuda.is_available(),
            placement_strategy="SPREAD",  # not all on one node, where there is room for them
        ),
        run_config=RunConfig(
            name="run",  # with the same name and folder, the next start goes on with the newest checkpoint
            storage_path=str(args.checkpoints.resolve()),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )
    result = trainer.fit()  # raises when a worker has died: then kit starts all again
    sys.exit(GO_ON if (result.metrics or {}).get("stopped") else 0)


if __name__ == "__main__":
    main()
