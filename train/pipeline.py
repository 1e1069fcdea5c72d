"""
Train a model divided over many ranks as a pipeline: every rank holds a stage, a few blocks of the model. A
batch goes through in small parts, so that all stages work at once. For a model too large for one node's GPUs.

    python train/pipeline.py                                  one stage: the undivided model
    torchrun --nproc-per-node 2 train/pipeline.py             two on this machine
    kit run train/pipeline.yaml                               two "nodes" on this machine
    kit submit train/pipeline.yaml --image my.sif -- --blocks 32

Needs torch 2.6, written for 2.13, and model_parallel.py beside it, whose model and data it takes. The number
of ranks decides who computes what, never what is computed: the losses printed are the same, to rounding.

The order of work is "1F1B": once the pipeline is full, a stage computes one micro-batch forward, then one
backward. So it keeps the activations of at most as many micro-batches as there are stages. While the
pipeline fills and empties, stages wait: about (ranks - 1) / (micro-batches + ranks - 1) of the time.

Tensor shapes: N examples in a batch, D features, C classes.
"""

import argparse
import sys

import ranks
import torch
import torch.nn.functional as F
from model_parallel import BATCH, make_batch, make_layers
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


def stage_layers(blocks, me):
    """Returns the indices of this rank's layers: shares of the blocks that differ by one at most; the last rank also has the classifier."""
    first, end = me.rank * blocks // me.world, (me.rank + 1) * blocks // me.world
    return range(first, end + (me.rank == me.world - 1))


def train_step(schedule, stage, inputs_ND, labels_N, device):
    """Computes the gradients of this rank's stage. Returns the loss in the last rank, None in the others."""
    losses = []  # of the micro-batches
    inputs = (
        [inputs_ND.to(device)] if stage.is_first else []
    )  # the other stages get theirs from the one before
    labels_N = labels_N.to(device) if stage.is_last else None
    # Forward and backward of every micro-batch, and all that is sent and received between.
    schedule.step(*inputs, target=labels_N, losses=losses)
    return torch.stack(losses).mean().item() if stage.is_last else None


@record  # writes the traceback to error.json, where torchrun and kit look for the first cause
def main():
    parser = argparse.ArgumentParser(description="one model as a pipeline over all ranks")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=8, help="divided over the ranks")
    parser.add_argument(
        "--micro-batches",
        type=int,
        default=8,
        help="parts of a batch; more of them keep the stages busier",
    )
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if [int(number) for number in torch.__version__.split(".")[:2]] < [2, 6]:
        sys.exit(
            f"pipeline.py: torch {torch.__version__} wants every stage to say the shapes of its inputs; finding them by itself came with 2.6"
            "\n  fix: use an image with torch 2.6 or newer"
        )

    # Before joining, so that nobody waits for anybody: every rank finds the same fault.
    me, most = ranks.find(), min(args.blocks, args.micro_batches)
    if me.world > most:
        sys.exit(
            f"pipeline.py: {me.world} ranks, each of which needs a block and a micro-batch: there are {args.blocks} and {args.micro_batches}"
            f"\n  fix: start at most {most} ranks, or raise --blocks and --micro-batches to {me.world} or more"
        )
    if BATCH % args.micro_batches:
        sys.exit(
            f"pipeline.py: a batch of {BATCH} does not divide into {args.micro_batches} equal micro-batches, and the mean loss would lean to the"
            f" small ones\n  fix: --micro-batches with a divisor of {BATCH}"
        )
    me = ranks.join(me)
    if me.device.type == "cpu":
        torch.set_num_threads(
            1
        )  # too small a model to share: with several ranks on a node, threads would only get in each other's way

    mine = stage_layers(args.blocks, me)
    module = make_layers(mine, args.blocks, args.seed).to(me.device)
    print(
        f"rank {me.rank} holds layers {mine[0]}-{mine[-1]}: {sum(p.numel() for p in module.parameters())} parameters",
        flush=True,
    )
    optimizer = torch.optim.SGD(
        module.parameters(), lr=args.lr, momentum=0.9
    )  # of this stage's parameters
    stage = PipelineStage(module, me.rank, me.world, me.device)
    # cross_entropy is a mean over a micro-batch; the schedule divides the gradients by the number of micro-batches.
    schedule = Schedule1F1B(stage, args.micro_batches, loss_fn=F.cross_entropy)
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = train_step(schedule, stage, *make_batch(args.seed, step), me.device)
        optimizer.step()
        if stage.is_last:  # it alone knows the loss
            print(f"step {step + 1}/{args.steps}  loss {loss:.8f}", flush=True)
    ranks.leave()


if __name__ == "__main__":
    main()
