"""
Train a model that is divided over two GPUs by one process: the first half of its blocks lies on one, the
second on the other. For a model too large for one GPU, where two in one node are enough.

    python train/model_parallel.py
    kit run train/model_parallel.yaml
    kit submit train/model_parallel.yaml --image my.sif -- --steps 100

Needs torch. Where there are no two GPUs, both halves lie on the one, or on the CPU; a line says so.

An undivided twin trains beside it, on one device, and the program fails where their losses differ. Remove
the twin where your model is truly too large. The GPUs take turns: one waits while the other computes;
pipeline.py keeps all of them busy, over many nodes.

Tensor shapes: N examples in a batch, D features, C classes.
"""

import argparse
import sys

import ranks
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record

BATCH, WIDTH, CLASSES = 64, 64, 10


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x_ND):
        return x_ND + self.layers(x_ND)


def make_layers(indices, blocks, seed):
    """The layers of these indices: blocks, and behind the last one, at index `blocks`, the layer that tells the classes apart."""
    layers = []
    for index in indices:
        torch.manual_seed(
            seed * 100_003 + index
        )  # a layer's own seed: its weights are the same wherever and by whomever it is made
        layers.append(Block() if index < blocks else nn.Linear(WIDTH, CLASSES))
    return nn.Sequential(*layers)


class Halves(nn.Module):
    def __init__(self, blocks, seed, devices):
        super().__init__()
        self.devices = devices
        # Each half moves as soon as it is made, so the whole model is never in one place.
        self.first = make_layers(range(blocks // 2), blocks, seed).to(devices[0])
        self.second = make_layers(range(blocks // 2, blocks + 1), blocks, seed).to(devices[1])

    def forward(self, x_ND):
        x_ND = self.first(x_ND.to(self.devices[0]))
        # All there is to it: the activations go over. Autograd brings their gradients back the same way.
        return self.second(x_ND.to(self.devices[1]))


def make_batch(seed, step):
    """Returns inputs_ND and labels_N. The label is the largest of the first C features: easy to learn, no download."""
    random = torch.Generator().manual_seed(seed * 100_003 + step)
    inputs_ND = torch.randn(BATCH, WIDTH, generator=random)
    return inputs_ND, inputs_ND[:, :CLASSES].argmax(1)


def train_step(model, optimizer, inputs_ND, labels_N):
    """Returns the loss before the step."""
    logits_NC = model(inputs_ND)
    loss = F.cross_entropy(
        logits_NC, labels_N.to(logits_NC.device)
    )  # the labels go where the output is
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@record  # writes the traceback to error.json, where torchrun and kit look for the first cause
def main():
    parser = argparse.ArgumentParser(description="one model on two GPUs of one process")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    me = ranks.find()  # there is nobody to talk to, so nothing to join
    print(me, flush=True)
    if me.world > 1:
        sys.exit(
            f"model_parallel.py: one process uses both GPUs, but {me.world} were started\n  fix: nodes: 1 and processes_per_node: 1 in the job file"
        )
    gpus = torch.cuda.device_count() if me.device.type == "cuda" else 0
    devices = (
        [torch.device("cuda", 0), torch.device("cuda", min(1, gpus - 1))]
        if gpus
        else [torch.device("cpu")] * 2
    )
    print(f"GPUs: {gpus}  first half on {devices[0]}  second half on {devices[1]}", flush=True)

    divided = Halves(args.blocks, args.seed, devices)
    undivided = Halves(args.blocks, args.seed, [devices[0]] * 2)
    # An optimizer's state lies where its parameter does: it is divided, too.
    optimizers = [
        torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
        for model in (divided, undivided)
    ]
    for step in range(args.steps):
        batch = make_batch(args.seed, step)
        loss, expected = (
            train_step(model, optimizer, *batch)
            for model, optimizer in zip((divided, undivided), optimizers)
        )
        print(f"step {step + 1}/{args.steps}  loss {loss:.8f}", flush=True)
        if not abs(loss - expected) <= 1e-5:  # written so that nan fails, too
            sys.exit(
                f"model_parallel.py: step {step + 1}: the loss is {loss:.8f} divided, {expected:.8f} undivided\n  fix: report this; it is a bug"
            )
    print("equal to the undivided model in every step", flush=True)


if __name__ == "__main__":
    main()
