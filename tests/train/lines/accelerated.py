"""Hugging Face's Accelerate."""

import ranks
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.ones(16, 4), torch.ones(16, 1)), batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for inputs, targets in loader:
    loss = (model(inputs) - targets).square().mean()
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
rank, world = accelerator.process_index, accelerator.num_processes
total = accelerator.reduce(torch.tensor(float(rank + 1)))
print(f"rank {rank} of {world}: the ranks' sum is {total.item():.0f}, after {len(loader)} batches of 8")
ranks.leave()
