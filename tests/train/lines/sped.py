"""DeepSpeed."""

import deepspeed
import ranks
import torch

deepspeed.init_distributed()
model = torch.nn.Linear(4, 1)
settings = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
for _ in range(3):
    loss = (engine(torch.ones(2, 4)) - 1).square().mean()
    engine.backward(loss)
    engine.step()
rank, world = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
total = torch.tensor(float(rank + 1))
deepspeed.comm.all_reduce(total)
print(f"rank {rank} of {world}: the ranks' sum is {total.item():.0f}")
ranks.leave()
