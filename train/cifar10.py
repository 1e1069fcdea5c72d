"""
Train a ResNet-18 on CIFAR-10 with DDP: augmentation, mixed precision, checkpoints that resume exactly.

    python train/cifar10.py                                      one GPU, or the CPU
    torchrun --nproc-per-node 8 train/cifar10.py                 eight GPUs of one machine
    kit run train/cifar10.yaml -- --width 8 --limit-steps 5 --epochs 2       a rehearsal on a CPU
    kit submit train/cifar10.yaml --image my.sif -- --epochs 60

The same training as programs were written before, to compare: cifar10_original.py.

Asked by SIGUSR1 or SIGTERM, it writes a checkpoint at the next step and ends with code 75: `kit` then starts it again
(on_preempt: checkpoint in the job file). The losses of a run that was stopped so are those of an undisturbed one.

Needs torch and numpy. The data (Krizhevsky 2009, 170 MB) is downloaded once per node, unless --data
holds a folder cifar-10-batches-py, which is used as it is, whatever the number of its images.

Tensor shapes: N images in a batch, C channels, H height, W width, K = 10 classes.
"""

import argparse
import hashlib
import os
import pickle
import shutil
import signal
import socket
import sys
import sysconfig
import tarfile
import tempfile
import time
import urllib.request
from datetime import timedelta
from http.client import HTTPException
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
MD5 = "c58f30108f718f92721af3b95e74349a"
FOLDER = "cifar-10-batches-py"
GPU = torch.cuda.is_available()
if not GPU and int(os.environ.get("KIT_GPUS_PER_NODE", 0)):
    torch.cuda.init()  # raises what keeps torch from the job's GPUs; the CPU would take days
GO_ON = 75  # the exit code that asks to be started again: EX_TEMPFAIL of sysexits.h
# Tensor cores want the channels together. A CPU would like it, too (a fifth faster), but with fewer than 8 channels
# torch 2.13 then writes beyond its memory.
LAYOUT = torch.channels_last if GPU else torch.contiguous_format


def parse_args():
    parser = argparse.ArgumentParser(description="ResNet-18 on CIFAR-10 with DDP")
    parser.add_argument(
        "--data", type=Path, default="data", help=f"the folder that holds {FOLDER}, or gets it"
    )
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument(
        "--batch-size", type=int, default=768, help="global: over all ranks together"
    )
    parser.add_argument(
        "--lr", type=float, default=0.4, help="peak learning rate, for the global batch"
    )
    parser.add_argument(
        "--width", type=int, default=64, help="channels of the first stage; 8 suits a CPU"
    )
    parser.add_argument(
        "--limit-steps", type=int, help="end each epoch after so many steps, to try things out"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--log-every", type=int, metavar="N", help="print the loss of every Nth step"
    )
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=GPU and can_compile(),
        help="by torch.compile (on a GPU: yes)",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="written after every epoch, and when asked by a signal",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from --checkpoint, if it exists"
    )
    args = parser.parse_args()
    if args.resume and not args.checkpoint:
        parser.error("--resume needs --checkpoint FILE")
    return args


def can_compile():
    """Whether torch.compile finds here what it calls: a C compiler and Python's headers, which small images leave out."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return bool(compiler) and Path(sysconfig.get_path("include"), "Python.h").is_file()


def join_world():
    """Returns (rank, world, local_rank, device), after joining the process group and saying who this is."""
    # Everything comes from torchrun's environment; without it this is a world of one.
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local, local_world = (
        int(os.environ.get("LOCAL_RANK", 0)),
        int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
    )
    node = int(os.environ.get("GROUP_RANK", rank // local_world))
    alone = "RANK" not in os.environ
    master = "none" if alone else f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"

    # Gloo beside NCCL, for what ranks agree on without waiting for their GPUs.
    backend, device = (
        ("cpu:gloo,cuda:nccl", torch.device("cuda", local))
        if GPU
        else ("gloo", torch.device("cpu"))
    )
    if GPU:
        # Before anything touches CUDA: otherwise every rank opens a context on GPU 0.
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True  # the shapes never change, so the search pays

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
        device_id=device if GPU else None,
        timeout=timedelta(
            minutes=10
        ),  # also the longest that ranks wait for another node's download
    )
    return rank, world, local, device


def leave(problem, fix):
    """Ends the run without a traceback. Every rank must call it; those with a problem say it, and they alone fail."""
    if problem:
        print(f"cifar10.py: {problem}\n  fix: {fix}", file=sys.stderr, flush=True)
    dist.barrier()  # torchrun ends the others when the first is gone: not before all have spoken
    dist.destroy_process_group()
    sys.exit(1 if problem else 0)  # so that kit names a rank whose log says why


def download(data):
    """Puts the official dataset into the folder `data`; raises OSError or HTTPException."""
    data.mkdir(parents=True, exist_ok=True)
    # In a folder of its own, moved into place when complete: nodes may share `data`, and each downloads.
    with tempfile.TemporaryDirectory(dir=data, prefix=".download-") as part:
        archive = Path(part, "archive.tar.gz")
        with urllib.request.urlopen(URL, timeout=60) as response:
            archive.write_bytes(response.read())
        md5 = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
        if md5 != MD5:
            raise OSError(f"{URL} has md5 {md5}, expected {MD5}")
        with tarfile.open(archive) as tar:
            tar.extractall(part, filter="data")
        try:
            Path(part, FOLDER).rename(data / FOLDER)
        except OSError:
            if not (data / FOLDER).is_dir():  # else another node was first, with the same files
                raise


def ensure_data(data, local_rank, device):
    """Returns when every node has the dataset, or ends the run if one has not."""
    problem = ""
    if local_rank == 0 and not (data / FOLDER).is_dir():
        print(f"downloading {URL} to {data.resolve()} on {socket.gethostname()}", flush=True)
        try:
            download(data)
        except (OSError, HTTPException) as error:
            problem = f"no {FOLDER} in {data.resolve()} on {socket.gethostname()}, and the download failed: {error}"
    # A barrier that carries the outcome, so that no rank waits for one that gave up.
    failures = torch.tensor(1 if problem else 0, device=device)
    dist.all_reduce(failures)
    if failures:
        leave(
            problem,
            f"name the folder that holds {FOLDER} with --data, or fetch it where there is a network:\n"
            f"       mkdir -p {data} && curl -L {URL} | tar xz -C {data}",
        )


def load(data, names, device):
    """Returns images_NCHW (bytes) and labels_N of the batch files, on the device: 180 MB in all."""
    # Python 2 wrote these; latin1 is the encoding that leaves the bytes of its arrays alone.
    batches = [
        pickle.loads((data / FOLDER / name).read_bytes(), encoding="latin1") for name in names
    ]
    images_NCHW = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
    labels_N = np.concatenate([batch["labels"] for batch in batches])
    return torch.from_numpy(images_NCHW).to(device), torch.from_numpy(labels_N).to(device)


def augment(images_NCHW):
    """Returns each image shifted by up to 4 pixels over a black border, and half of them mirrored."""
    n, device = len(images_NCHW), images_NCHW.device
    images_NCHW = F.pad(images_NCHW, (4, 4, 4, 4))
    top_N1, left_N1 = torch.randint(0, 9, (2, n, 1), device=device)
    mirror_N1 = torch.rand(n, 1, device=device) < 0.5
    pixels_W = torch.arange(32, device=device)
    rows_NH, columns_NW = (
        top_N1 + pixels_W,
        left_N1 + torch.where(mirror_N1, pixels_W.flip(0), pixels_W),
    )
    n_N111 = torch.arange(n, device=device).view(n, 1, 1, 1)
    c_C11 = torch.arange(3, device=device).view(3, 1, 1)
    # One gather for the whole batch, with an index that broadcasts to NCHW.
    return images_NCHW[n_N111, c_C11, rows_NH.view(n, 1, 32, 1), columns_NW.view(n, 1, 1, 32)]


def normalize(images_NCHW):
    """Returns bytes as floats of mean 0 and deviation 1 over CIFAR-10: one of each for all three channels."""
    return ((images_NCHW.float() - 120.7) / 64.2).to(memory_format=LAYOUT)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut: He et al. 2015, figure 2."""

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = (
            nn.Identity()
            if channels_in == channels
            else nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )
        )

    def forward(self, x_NCHW):
        y_NCHW = F.relu(self.norm1(self.conv1(x_NCHW)))
        return F.relu(self.norm2(self.conv2(y_NCHW)) + self.shortcut(x_NCHW))


def resnet18(width):
    """Returns ResNet-18 for 32x32 pixels: a 3x3 stem of stride 1, and no max pool to shrink them at once."""
    w = width
    return nn.Sequential(
        nn.Conv2d(3, w, 3, padding=1, bias=False),
        nn.BatchNorm2d(w),
        nn.ReLU(),
        Block(w, w, 1),
        Block(w, w, 1),
        Block(w, 2 * w, 2),
        Block(2 * w, 2 * w, 1),
        Block(2 * w, 4 * w, 2),
        Block(4 * w, 4 * w, 1),
        Block(4 * w, 8 * w, 2),
        Block(8 * w, 8 * w, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * w, 10),
    )


def autocast():
    """Where a GPU is, its matrix units multiply bf16, which needs no loss scaling; sums and weights stay float32."""
    return torch.autocast("cuda", torch.bfloat16, enabled=GPU)


def settle(model, batch_size, device):
    """A step that does not count, of a whole batch: after it cuDNN has chosen its algorithms, torch.compile has compiled,
    and DDP has sorted its gradients into buckets in the order in which they came.

    Another order of adding rounds differently, and training makes much of little: without this, a resumed run of more
    than two ranks would differ from an undisturbed one, whose first backward was long ago.
    """
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    with autocast():
        loss = (
            model(normalize(torch.zeros(batch_size, 3, 32, 32, dtype=torch.uint8, device=device)))
            .float()
            .sum()
        )
    loss.backward()
    model.module.load_state_dict(before)


class Stop:
    """Whether somebody wants this run to end at a checkpoint. The ranks hear of it at different steps, so they agree on one."""

    def __init__(self):
        self.asked, self.last = False, None
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number, frame):
        self.asked = True

    def agreed(self):
        """Every rank calls it after every step, and all get the same: what any of them knew a step before.

        So the answer had the time of a step to come around, and nobody waits for it.
        """
        asked = torch.tensor(
            [float(self.asked)]
        )  # on the CPU: reading it must not wait for the GPU
        before, self.last = (
            self.last,
            (asked, dist.all_reduce(asked, dist.ReduceOp.MAX, async_op=True)),
        )
        if before is None:
            return False
        before[1].wait()
        return bool(before[0])


def train_epoch(
    model, optimizer, scheduler, images_NCHW, labels_N, batches, totals, seed_of, stop, log
):
    """Trains on the batches (index within the epoch, batch_N). Adds to totals: losses, images recognised, images seen.

    Returns the index at which to go on if `stop` is agreed on, or None at the end.
    """
    model.train()
    for step, batch_N in batches:
        torch.manual_seed(seed_of(step))
        with autocast():
            logits_NK = model(normalize(augment(images_NCHW[batch_N])))
            loss = F.cross_entropy(logits_NK, labels_N[batch_N], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        # Added up on the device: an .item() in every step would make the CPU wait for the GPU.
        totals[0] += loss.detach() * len(batch_N)
        totals[1] += (logits_NK.argmax(1) == labels_N[batch_N]).sum()
        totals[2] += len(batch_N)
        log(step, loss)
        if stop and stop.agreed():
            return step + 1
    return None


@torch.no_grad()
def evaluate(net, images_NCHW, labels_N, rank, world):
    """Returns (images recognised, images seen), over all ranks."""
    net.eval()
    totals = torch.zeros(2, dtype=torch.int64, device=images_NCHW.device)
    # Every world'th image, without a sampler: that would pad to equal shares and count some images twice.
    for batch_NCHW, batch_N in zip(
        images_NCHW[rank::world].split(500), labels_N[rank::world].split(500)
    ):
        with autocast():
            totals[0] += (net(normalize(batch_NCHW)).argmax(1) == batch_N).sum()
        totals[1] += len(batch_N)
    dist.all_reduce(totals)
    return totals.tolist()


def save(state, file):
    """Writes atomically: who reads the file, even after a crash, gets a whole checkpoint, old or new."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(file.name + ".tmp")
    with part.open("wb") as out:
        torch.save(state, out)
        out.flush()
        os.fsync(out.fileno())  # the data must be on disk before the name is
    os.replace(part, file)


def note_progress(step):
    """Tells kit how far the run is: it gives up on one that is started again and again without getting on."""
    if file := os.environ.get("KIT_PROGRESS"):
        Path(file).write_text(f"step {step}\n")


def restore(file, settings, rank, device):
    """Returns rank 0's checkpoint in every rank, or None if there is none; ends the run if it is another run's."""
    # Only rank 0 reads: the nodes need not share the file, and a thousand ranks do not open it at once.
    message = [
        torch.load(file, map_location="cpu", weights_only=True)
        if rank == 0 and file.exists()
        else None
    ]
    dist.broadcast_object_list(message, src=0, device=device)
    state = message[0]
    if state and state["settings"] != settings:
        changed = [name for name in settings if settings[name] != state["settings"].get(name)]
        leave(
            rank == 0 and f"{file} was written with other values of: {', '.join(changed)}",
            "give the same values, or another --checkpoint, or start afresh without --resume",
        )
    if rank == 0 and not state:
        print(f"no checkpoint at {file}: starting from scratch", flush=True)
    return state


@record  # writes the traceback to error.json, where torchrun and kit look for the first cause
def main():
    args = parse_args()
    rank, world, local_rank, device = join_world()
    if args.batch_size % world:
        leave(
            rank == 0
            and f"--batch-size {args.batch_size} is global and does not divide among {world} ranks",
            f"--batch-size {-(-args.batch_size // world) * world}",
        )
    ensure_data(args.data, local_rank, device)
    train_images, train_labels = load(args.data, [f"data_batch_{i}" for i in range(1, 6)], device)
    test = load(args.data, ["test_batch"], device)

    batch_size = args.batch_size // world
    sampler = DistributedSampler(train_labels, world, rank, seed=args.seed, drop_last=True)
    steps = min(max(1, len(sampler) // batch_size), args.limit_steps or len(sampler))  # in an epoch

    torch.manual_seed(args.seed)
    net = resnet18(args.width).to(device, memory_format=LAYOUT)
    optimizer = torch.optim.SGD(
        net.parameters(), args.lr, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=GPU
    )
    total = args.epochs * steps
    warmup = max(1, total // 5)
    # One cycle: up for a fifth of the steps, down to zero for the rest.
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (total - step) / max(1, total - warmup))
    )

    # What decides the course of a run. The seed stands for the random state, see below.
    settings = {
        name: vars(args)[name]
        for name in ("epochs", "batch_size", "lr", "width", "limit_steps", "seed")
    }
    state = restore(args.checkpoint, settings, rank, device) if args.resume else None
    # Inside DDP, whose own code would break the graph into one a block. It is still cut at DDP's buckets, so that each is
    # sent while the next is computed. Tests and checkpoints use the net itself.
    model = DDP(
        torch.compile(net, dynamic=False) if args.compile else net,
        device_ids=[local_rank] if GPU else None,
    )
    start = time.perf_counter()
    settle(model, batch_size, device)
    if args.compile and rank == 0:
        print(f"compiled in {time.perf_counter() - start:.1f} s", flush=True)
    if state:
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
    first_epoch = state["epoch"] if state else 0
    stop = Stop() if args.checkpoint else None

    def keep(epoch, step, totals):
        if rank == 0 and args.checkpoint:
            parts = {"model": net, "optimizer": optimizer, "scheduler": scheduler}
            state = {name: part.state_dict() for name, part in parts.items()}
            save(
                {
                    **state,
                    "epoch": epoch,
                    "step": step,
                    "totals": totals.tolist(),
                    "settings": settings,
                },
                args.checkpoint,
            )
            note_progress(epoch * steps + step)

    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)  # without this every epoch has the same order
        batches = torch.tensor(list(sampler), device=device).split(batch_size)[:steps]
        first_step = state["step"] if state and epoch == first_epoch else 0
        totals = torch.zeros(3, dtype=torch.float64, device=device)
        if first_step and rank == 0:
            totals += torch.tensor(
                state["totals"], dtype=torch.float64, device=device
            )  # of all ranks

        def seed_of(step, epoch=epoch):
            # Random numbers follow from seed, step and rank, so a run that resumes at any step draws the same.
            return (args.seed * 1_000_003 + epoch * steps + step) * 100_003 + rank

        def log(step, loss, epoch=epoch):
            if args.log_every and (epoch * steps + step) % args.log_every == 0:
                mean = loss.detach() / world
                dist.all_reduce(mean)
                if rank == 0:
                    print(f"step {epoch * steps + step}  loss {mean.item():.6f}", flush=True)

        start = time.perf_counter()
        rest = list(enumerate(batches))[first_step:]
        stopped_at = train_epoch(
            model,
            optimizer,
            scheduler,
            train_images,
            train_labels,
            rest,
            totals,
            seed_of,
            stop,
            log,
        )
        dist.all_reduce(totals)
        if GPU:
            torch.cuda.synchronize()  # only now are the steps done that the CPU has asked for
        images_per_s = len(rest) * args.batch_size / (time.perf_counter() - start)
        # DDP copies rank 0's BatchNorm statistics to all before a step, so the last step's still differ.
        for buffer in net.buffers():
            dist.broadcast(buffer, src=0)
        if stopped_at is not None:
            keep(epoch, stopped_at, totals)
            if rank == 0:
                print(
                    f"stopped at step {epoch * steps + stopped_at}: a checkpoint is in {args.checkpoint}",
                    flush=True,
                )
            barrier = dist.barrier(async_op=True)  # kept, as that below
            barrier.wait()  # no rank ends before the checkpoint is written
            dist.destroy_process_group()
            sys.exit(GO_ON)
        correct, tested = evaluate(net, *test, rank, world)
        keep(epoch + 1, 0, totals)
        if rank == 0:
            loss_sum, recognised, seen = totals.tolist()
            # After saving: an epoch that was printed is an epoch that will not be lost.
            print(
                f"epoch {epoch + 1}/{args.epochs}  loss {loss_sum / seen:.4f}  train acc {recognised / seen:.4f}"
                f"  test acc {correct / tested:.4f}  images/s {images_per_s:.1f}",
                flush=True,
            )

    if first_epoch >= args.epochs:
        correct, tested = evaluate(net, *test, rank, world)
    if rank == 0:
        print(f"test accuracy {correct / tested:.4f} ({correct} of {tested} images)", flush=True)
    # Gives Gloo's threads time to let go of the last tensors, for which they need Python's lock: without it, torch 2.13
    # hung at exit in 3 of 20 runs on busy cores (https://github.com/pytorch/pytorch/pull/179291). And the barrier is kept:
    # let go here, it may be freed by a thread of Gloo, for whose end the process group waits while it holds that lock.
    barrier = dist.barrier(async_op=True)
    barrier.wait()
    # Not in a finally: after a failure it would wait for ranks that are gone.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
