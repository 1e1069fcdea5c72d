"""Lightning Fabric."""

import os

import ranks
import torch
from lightning.fabric import Fabric

# What torchrun says of the node and of the job; `fabric run` says it in the variables of its own.
fabric = Fabric(devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), strategy="ddp")
fabric.launch()
model = torch.nn.Linear(4, 1)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(3):
    loss = (model(torch.ones(2, 4)) - 1).square().mean()
    optimizer.zero_grad()
    fabric.backward(loss)
    optimizer.step()
total = fabric.all_reduce(torch.tensor(float(fabric.global_rank + 1)), reduce_op="sum")
print(f"rank {fabric.global_rank} of {fabric.world_size}: the ranks' sum is {total.item():.0f}")
ranks.leave()
