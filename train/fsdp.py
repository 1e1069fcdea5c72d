"""
Train a language model that is too large for one GPU with FSDP2: every rank keeps a shard of each parameter,
its gradient and its optimizer state. A block is put together just before it computes, and let go after.

    python train/fsdp.py                                      one rank, which keeps all
    torchrun --nproc-per-node 2 train/fsdp.py                 two on this machine
    kit run train/fsdp.yaml                                   two "nodes" on this machine
    kit submit train/fsdp.yaml --image my.sif -- --checkpoint /shared/fsdp --steps 1000

It learns to write its own source code, byte by byte, so there is nothing to download. With --checkpoint
FOLDER it goes on from the newest checkpoint in there, even with another number of ranks: each rank writes
its shards, and reads those parts that it needs. All nodes must see the folder. To start afresh, name another.

The number of ranks decides who computes what, never what is computed: on CPUs, in float32, the losses
printed are the same, to rounding. On GPUs blocks compute in bfloat16, which is faster and rounds more.

Needs torch 2.6; written for 2.13. Tensor shapes: N sequences, T bytes in each, B = N T of all, D features, H
heads of d features, V = 256 values of a byte.
"""

import argparse
import shutil
import sys
from pathlib import Path

import ranks
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record

try:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
except ImportError:
    sys.exit(
        f"fsdp.py: torch {torch.__version__} has no torch.distributed.fsdp.fully_shard, which came with 2.6"
        "\n  fix: use an image with torch 2.6 or newer; on an older one data_parallel.py trains with the whole model on every rank"
    )

LENGTH, VALUES = 64, 256
STEPS = "step-" + 8 * "[0-9]"  # and not a copy that somebody keeps beside them


def parse_args():
    parser = argparse.ArgumentParser(description="FSDP2 on a small transformer that reads bytes")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--batch-size", type=ranks.positive, default=16, help="global: over all ranks together"
    )
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument(
        "--width", type=int, default=64, help="features: a multiple of 16, which make a head"
    )
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--recompute",
        action="store_true",
        help="less memory for activations, about a third more computing",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FOLDER",
        help="go on from the newest checkpoint in there, and write more",
    )
    parser.add_argument(
        "--save-every",
        type=ranks.positive,
        default=100,
        metavar="STEPS",
        help="and after the last step",
    )
    args = parser.parse_args()
    if args.width % 16:
        parser.error("--width: give a multiple of 16")
    return args


class Block(nn.Module):
    def __init__(self, width, recompute):
        super().__init__()
        self.recompute, self.heads = recompute, width // 16
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x_NTD):
        # With recompute, backward computes the block once more instead of finding its activations in memory.
        return (
            torch.utils.checkpoint.checkpoint(self.compute, x_NTD, use_reentrant=False)
            if self.recompute
            else self.compute(x_NTD)
        )

    def compute(self, x_NTD):
        parts_NHTd = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm(x_NTD)).chunk(3, dim=2)
        )
        attended_NHTd = F.scaled_dot_product_attention(
            *parts_NHTd, is_causal=True
        )  # a byte sees those before it
        x_NTD = x_NTD + self.out(attended_NHTd.transpose(1, 2).flatten(2))
        return x_NTD + self.mlp(x_NTD)


class Transformer(nn.Module):
    """Made block by block: as soon as a block is there, it is sharded, so that a rank never holds the whole model."""

    def __init__(self, args, device, sharding):
        super().__init__()
        # FSDP does not copy rank 0's weights to the others: they are alike because all start from this seed.
        torch.manual_seed(args.seed)
        with device:
            self.embed, self.place = (
                nn.Embedding(VALUES, args.width),
                nn.Parameter(torch.randn(LENGTH, args.width)),
            )
            self.blocks = nn.ModuleList()
            for _ in range(args.blocks):
                self.blocks.append(fully_shard(Block(args.width, args.recompute), **sharding))
            self.norm, self.head = nn.LayerNorm(args.width), nn.Linear(args.width, VALUES)
        # And the model as a whole: this takes what is in no block.
        fully_shard(self, **sharding)

    def forward(self, bytes_NT):
        x_NTD = self.embed(bytes_NT) + self.place
        for block in self.blocks:
            x_NTD = block(x_NTD)
        # Flattened before the last layer, not after: FSDP warns of a model that returns a view, as that of (N, T, V) would be.
        return self.head(self.norm(x_NTD).flatten(0, 1))


def make_batch(text, args, step, me):
    """Returns bytes_NT, and the byte that follows each: this rank's share of the step's batch."""
    random = torch.Generator().manual_seed(
        args.seed * 100_003 + step
    )  # the same in every rank, and in a run that goes on
    starts_N = torch.randint(len(text) - LENGTH, (args.batch_size,), generator=random)[
        me.rank :: me.world
    ]
    rows_NT = torch.stack([text[start : start + LENGTH + 1] for start in starts_N]).to(me.device)
    return rows_NT[:, :-1], rows_NT[:, 1:]


def train_step(model, optimizer, bytes_NT, next_NT, world):
    """Returns the loss before the step, the mean over all ranks."""
    logits_BV = model(bytes_NT)
    loss = F.cross_entropy(logits_BV.float(), next_NT.flatten())
    optimizer.zero_grad()
    loss.backward()  # FSDP averages gradients over ranks: right because the shares are equal
    optimizer.step()
    loss = loss.detach()
    dist.all_reduce(loss)
    return loss.item() / world


def memory(model):
    """Returns the bytes of parameters in this rank, and in the whole model."""
    parameters = list(
        model.parameters()
    )  # each is a DTensor: it has the size of the whole, and holds a shard
    return sum(p.to_local().nbytes for p in parameters), sum(p.nbytes for p in parameters)


def newest(folder):
    """Returns the newest complete checkpoint, or None. The file .metadata is written last, so without it there is none."""
    return max((file.parent for file in folder.glob(f"{STEPS}/.metadata")), default=None)


def settings(args):
    """What a run that goes on must have in common with the one that wrote the checkpoint: not the number of ranks."""
    return {name: getattr(args, name) for name in ("batch_size", "blocks", "lr", "seed", "width")}


def save(args, step, model, optimizer, me):
    model_state, optimizer_state = get_state_dict(
        model, optimizer
    )  # names in place of parameter numbers; shards stay shards
    target = args.checkpoint / f"step-{step:08d}"
    dcp.save(
        {
            "model": model_state,
            "optimizer": optimizer_state,
            "step": step,
            "settings": settings(args),
        },
        checkpoint_id=target,
    )
    if me.rank == 0:
        # Only now, when the new one is complete, and none that another program has saved there.
        for old in set(args.checkpoint.glob(STEPS)) - {target}:
            if {file.suffix for file in old.iterdir()} <= {".distcp", ".tmp", ""}:
                shutil.rmtree(old)


def restore(args, model, optimizer, me):
    """Returns the number of steps done: 0 without a checkpoint."""
    found = [newest(args.checkpoint) if me.rank == 0 else None]
    dist.broadcast_object_list(
        found, device=me.device
    )  # one decides: a network file system may show a new folder late to some
    if found[0] is None:
        if me.rank == 0:
            print(f"no checkpoint in {args.checkpoint}: starting from scratch", flush=True)
        return 0
    state = {"settings": settings(args)}
    dcp.load(state, checkpoint_id=found[0])
    if other := [
        name for name, value in settings(args).items() if state["settings"][name] != value
    ]:
        sys.exit(
            f"fsdp.py: {found[0]} was written with other values of: {', '.join(other)}\n  fix: give the same values, or another --checkpoint"
        )
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "step": 0}
    dcp.load(
        state, checkpoint_id=found[0]
    )  # into the tensors that are there: they say which parts this rank reads
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    if me.rank == 0:
        print(f"going on after step {state['step']}, from {found[0]}", flush=True)
    return state["step"]


@record  # writes the traceback to error.json, where torchrun and kit look for the first cause
def main():
    args = parse_args()
    me = ranks.find()
    # Before joining, so that nobody waits for anybody: every rank finds the same fault.
    if args.batch_size % me.world:
        sys.exit(
            f"fsdp.py: a batch of {args.batch_size} does not divide into {me.world} equal shares, which the mean of the gradients needs"
            f"\n  fix: --batch-size with a multiple of {me.world}, or another number of ranks"
        )
    me = ranks.join(me)
    # Over all ranks of the process group. Said, since the default is to look for GPUs, which a CPU run may hide.
    sharding = {"mesh": init_device_mesh(me.device.type, (me.world,))}
    if me.device.type == "cuda":
        # Shards stay in float32, for the optimizer; what is put together for a block is bfloat16.
        sharding["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
    else:
        torch.set_num_threads(
            1
        )  # too small a model to share: with several ranks on a node, threads would only get in each other's way

    text = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8).long()
    model = Transformer(args, me.device, sharding)
    held, whole = memory(model)
    print(f"rank {me.rank} holds {held} of the model's {whole} bytes of parameters", flush=True)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr
    )  # after sharding, so that its state is sharded, too

    done = restore(args, model, optimizer, me) if args.checkpoint else 0
    for step in range(done, args.steps):
        loss = train_step(model, optimizer, *make_batch(text, args, step, me), me.world)
        if me.rank == 0:
            print(f"step {step + 1}/{args.steps}  loss {loss:.8f}", flush=True)
        if args.checkpoint and ((step + 1) % args.save_every == 0 or step + 1 == args.steps):
            save(args, step + 1, model, optimizer, me)
    ranks.leave()


if __name__ == "__main__":
    main()
