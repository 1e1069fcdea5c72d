"""Plain PyTorch: what torchrun, srun or torch.distributed.launch starts."""

import argparse

import ranks
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()
distributed.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rank, world = distributed.get_rank(), distributed.get_world_size()
inputs = torch.arange(16.0).reshape(4, 4) / 16
for _ in range(args.epochs):
    loss = (model(inputs[rank % 4 :][:1]) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
total = torch.tensor(float(rank + 1))
distributed.all_reduce(total)
print(f"rank {rank} of {world}: the ranks' sum is {total.item():.0f}, after {args.epochs} epochs")
ranks.leave()
