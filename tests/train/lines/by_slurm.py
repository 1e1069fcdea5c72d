"""A program that reads Slurm's own variables, as srun sets them."""

import os

import ranks
import torch
from torch import distributed

rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
distributed.init_process_group("gloo", rank=rank, world_size=world)  # MASTER_ADDR and MASTER_PORT are set
total = torch.tensor(float(rank + 1))
distributed.all_reduce(total)
print(f"rank {rank} of {world}: the ranks' sum is {total.item():.0f}, local rank {os.environ['SLURM_LOCALID']}")
ranks.leave()
