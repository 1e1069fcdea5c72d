"""
Train a ResNet-18 on CIFAR-10 with DDP: augmentation, mixed precision, checkpoints to resume from.

    python train/cifar10.py                                      one GPU, or the CPU
    torchrun --nproc-per-node 8 train/cifar10.py                 eight GPUs of one machine
    kit run train/cifar10.yaml -- --width 8 --limit-steps 5 --epochs 2 --checkpoint try.pt       a rehearsal on a CPU
    kit submit train/cifar10.yaml --image my.sif -- --epochs 60 --checkpoint long.pt

A checkpoint fits only the values that it was written with: give a run with others a --checkpoint of its own.

Asked by SIGUSR1 or SIGTERM, it writes a checkpoint at the next step and ends with code 75: `kit` then starts it again
(on_preempt: checkpoint in the job file). The losses are then those of an undisturbed run, on CPUs to the last bit.

Needs torch, numpy, and beside it ranks.py, by which it joins the other ranks, cifar10_data.py and resnet.py, and not
torchvision: its crop shifts all images of a batch alike, its ResNet-18 has one width, and its data set refuses all but the
complete files. cifar10_original.py is the same training as programs were written before.
Tensor shapes: N images in a batch, C channels, H height, W width, K = 10 classes.
"""

import argparse
import os
import shutil
import signal
import sysconfig
import time
from datetime import timedelta
from pathlib import Path

import ranks
import torch
import torch.distributed as dist
import torch.nn.functional as F
from cifar10_data import FOLDER, LAYOUT, augment, load, normalize
from resnet import resnet18
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler

GPU = torch.cuda.is_available()
# A GPU's matrix units multiply bf16, which needs no loss scaling; sums and weights stay float32.
AUTOCAST = torch.autocast("cuda", torch.bfloat16, enabled=GPU)


def parse_args():
    # torch.compile needs a C compiler and Python's headers, which small images leave out.
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    compiles = GPU and compiler and Path(sysconfig.get_path("include"), "Python.h").is_file()
    parser = argparse.ArgumentParser(description="ResNet-18 on CIFAR-10 with DDP")
    add = parser.add_argument
    add("--data", type=Path, default="data", help=f"the folder that holds {FOLDER}, or gets it")
    add("--epochs", type=int, default=30)
    add("--batch-size", type=ranks.positive, default=768, help="global: over all ranks together")
    add("--lr", type=float, default=0.4, help="peak learning rate, for the global batch")
    add("--width", type=int, default=64, help="channels of the first stage; 8 suits a CPU")
    add("--limit-steps", type=int, help="end each epoch after so many steps, to try things out")
    add("--seed", type=int, default=0)
    add("--log-every", type=int, metavar="N", help="print the loss of every Nth step")
    add("--compile", action=argparse.BooleanOptionalAction, default=compiles, help="on a GPU: yes")
    add("--checkpoint", type=Path, metavar="FILE", help="written after every epoch, or on a signal")
    add("--resume", action="store_true", help="go on from --checkpoint, if it exists")
    args = parser.parse_args()
    if args.resume and not args.checkpoint:
        parser.error("--resume needs --checkpoint FILE")
    return args


def warm_up(model, batch_size, device):
    """A step that does not count, of a whole batch: after it cuDNN has chosen its algorithms, torch.compile has compiled,
    and DDP has sorted its gradients into buckets in the order in which they came. Another order of adding rounds
    differently: without this, a resumed run of more than two ranks would differ from an undisturbed one."""
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    black_NCHW = torch.zeros(batch_size, 3, 32, 32, dtype=torch.uint8, device=device)
    with AUTOCAST:
        loss = model(normalize(black_NCHW)).float().sum()
    loss.backward()
    model.module.load_state_dict(before)


class Stop:
    """Whether somebody wants this run to end at a checkpoint. The ranks hear of it at different steps, so they agree on one."""

    def __init__(self):
        self.asked, self.last = [], None
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, lambda number, frame: self.asked.append(number))

    def agreed(self):
        """Every rank calls it after every step, and all get the same: what any of them knew a step before."""
        # On the CPU: reading it must not wait for the GPU. It has the time of a step to come around.
        asked = torch.tensor(float(bool(self.asked)))
        work = dist.all_reduce(asked, dist.ReduceOp.MAX, async_op=True)
        before, self.last = self.last, (asked, work)
        if before is None:
            return False
        before[1].wait()
        return bool(before[0])


def train_step(model, optimizer, scheduler, images_NCHW, labels_N, totals):
    """Returns the loss. Adds to totals: losses, images recognised, images seen."""
    with AUTOCAST:
        logits_NK = model(normalize(augment(images_NCHW)))
        loss = F.cross_entropy(logits_NK, labels_N, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    # Added up on the device: an .item() in every step would make the CPU wait for the GPU.
    totals[0] += loss.detach() * len(labels_N)
    totals[1] += (logits_NK.argmax(1) == labels_N).sum()
    totals[2] += len(labels_N)
    return loss.detach()


@torch.no_grad()
def evaluate(net, images_NCHW, labels_N, me):
    """Returns (images recognised, images seen), over all ranks."""
    net.eval()
    totals = torch.zeros(2, dtype=torch.int64, device=me.device)
    # Every world'th image, without a sampler: that would pad to equal shares and count some twice.
    for batch_N in torch.arange(me.rank, len(labels_N), me.world, device=me.device).split(500):
        with AUTOCAST:
            totals[0] += (net(normalize(images_NCHW[batch_N])).argmax(1) == labels_N[batch_N]).sum()
        totals[1] += len(batch_N)
    dist.all_reduce(totals)
    return totals.tolist()


def restore(file, settings, me):
    """Returns rank 0's checkpoint in every rank, or None if there is none; ends the run if it is another run's."""
    # Only rank 0 reads: the nodes need not share the file, and a thousand ranks do not open it at once.
    found = me.rank == 0 and file.exists()
    message = [torch.load(file, map_location="cpu", weights_only=True) if found else None]
    dist.broadcast_object_list(message, src=0, device=me.device)
    state = message[0]
    changed = [name for name in settings if state and settings[name] != state["settings"].get(name)]
    if changed:
        problem = f"{file} was written with other values of: {', '.join(changed)}"
        fix = "give the same values, or another --checkpoint, or start afresh without --resume"
        ranks.fail(problem if me.rank == 0 else "", fix)
    if not state:
        me.say(f"no checkpoint at {file}: starting from scratch")
    return state


@record  # writes the traceback to error.json, where torchrun and kit look for the first cause
def main():
    args = parse_args()
    # Gloo beside NCCL, for what ranks agree on without waiting for their GPUs. Nodes wait for others' downloads.
    me = ranks.join(on_gpus="cpu:gloo,cuda:nccl", timeout=timedelta(minutes=10))
    rank, world, device = me.rank, me.world, me.device
    me.say(f"torch {torch.__version__}  threads {torch.get_num_threads()}  device {device}")
    batch_size, left = divmod(args.batch_size, world)
    if left:
        wrong = f"--batch-size {args.batch_size} is global and does not divide among {world} ranks"
        ranks.fail(wrong if rank == 0 else "", f"--batch-size {args.batch_size - left + world}")
    (images_NCHW, labels_N), test = load(args.data, me)
    sampler = DistributedSampler(labels_N, world, rank, seed=args.seed, drop_last=True)
    steps = min(max(1, len(sampler) // batch_size), args.limit_steps or len(sampler))  # in an epoch
    total = args.epochs * steps

    torch.backends.cudnn.benchmark = True  # the shapes never change, so the search pays
    torch.manual_seed(args.seed)
    net = resnet18(args.width).to(device, memory_format=LAYOUT)
    how = {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4, "fused": GPU}
    optimizer = torch.optim.SGD(net.parameters(), args.lr, **how)
    rise = max(1, total // 5)  # One cycle: up for a fifth of the steps, down to zero for the rest.
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / rise, (total - step) / max(1, total - rise))
    )
    # What decides the course of a run. The seed stands for the random state, see below.
    deciding = ("epochs", "batch_size", "lr", "width", "limit_steps", "seed")
    settings = {name: vars(args)[name] for name in deciding}
    state = restore(args.checkpoint, settings, me) if args.resume else None
    # Inside DDP, whose own code would break the graph into one a block. It is still cut at DDP's buckets, so that each is
    # sent while the next is computed. Tests and checkpoints use the net itself.
    inner = torch.compile(net, dynamic=False) if args.compile else net
    model = DDP(inner, device_ids=[device.index] if GPU else None)
    start = time.perf_counter()
    warm_up(model, batch_size, device)
    if args.compile:
        me.say(f"compiled in {time.perf_counter() - start:.1f} s")
    parts = {"model": net, "optimizer": optimizer, "scheduler": scheduler}
    first, totals = 0, torch.zeros(3, dtype=torch.float64, device=device)
    if state:
        for name, part in parts.items():
            part.load_state_dict(state[name])
        first = state["epoch"] * steps + state["step"]
        if rank == 0:  # of all ranks
            totals += torch.tensor(state["totals"], dtype=torch.float64, device=device)

    stop = Stop() if args.checkpoint else None
    for step in range(first, total):
        epoch, index = divmod(step, steps)
        if index == 0 or step == first:
            totals *= index > 0
            sampler.set_epoch(epoch)  # without this every epoch has the same order
            batches = torch.tensor(list(sampler), device=device).split(batch_size)
            begun, start = step, time.perf_counter()
            model.train()
        # Random numbers follow from seed, step and rank, so a run that resumes at any step draws the same.
        torch.manual_seed((args.seed * 1_000_003 + step) * 100_003 + rank)
        batch = images_NCHW[batches[index]], labels_N[batches[index]]
        loss = train_step(model, optimizer, scheduler, *batch, totals)
        if args.log_every and step % args.log_every == 0:
            mean = loss / world
            dist.all_reduce(mean)
            me.say(f"step {step}  loss {mean.item():.6f}")
        stopping, ended = stop and stop.agreed(), index + 1 == steps
        if not stopping and not ended:
            continue

        dist.all_reduce(totals)
        # Reading them waits for the steps that the CPU has asked the GPU for.
        loss_sum, recognised, seen = totals.tolist()
        images_per_s = (step + 1 - begun) * args.batch_size / (time.perf_counter() - start)
        # DDP copies rank 0's BatchNorm statistics to all before a step, so the last step's still differ.
        for buffer in net.buffers():
            dist.broadcast(buffer, src=0)
        if ended:
            correct, tested = evaluate(net, *test, me)
        if rank == 0 and args.checkpoint:
            state = {name: part.state_dict() for name, part in parts.items()}
            state |= {"epoch": (step + 1) // steps, "step": (step + 1) % steps}
            state |= {"totals": totals.tolist(), "settings": settings}
            # Atomically: who reads the file, even after a crash, gets a whole checkpoint, old or new.
            args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            part = args.checkpoint.with_name(args.checkpoint.name + ".tmp")
            with part.open("wb") as out:
                torch.save(state, out)
                out.flush()
                os.fsync(out.fileno())  # the data must be on disk before the name is
            part.replace(args.checkpoint)
            if file := os.environ.get("KIT_PROGRESS"):  # kit gives up on a run that gets nowhere
                Path(file).write_text(f"step {step + 1}\n")
        if ended:  # and saved: an epoch that was printed is an epoch that will not be lost
            line = f"epoch {epoch + 1}/{args.epochs}  loss {loss_sum / seen:.4f}"
            line += f"  train acc {recognised / seen:.4f}  test acc {correct / tested:.4f}"
            me.say(f"{line}  images/s {images_per_s:.1f}")
        if stopping:
            me.say(f"stopped at step {step + 1}: a checkpoint is in {args.checkpoint}")
            ranks.leave()  # no rank ends before the checkpoint is written
            raise SystemExit(os.EX_TEMPFAIL)  # 75: asks to be started again

    if first >= total:
        correct, tested = evaluate(net, *test, me)
    me.say(f"test accuracy {correct / tested:.4f} ({correct} of {tested} images)")
    ranks.leave()


if __name__ == "__main__":
    main()
