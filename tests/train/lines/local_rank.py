"""A program that wants --local-rank, as torch.distributed.launch passes it."""

import argparse
import os

import ranks
import torch
from torch import distributed

parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", type=int, required=True)
args = parser.parse_args()
distributed.init_process_group("gloo")
assert args.local_rank == int(os.environ["LOCAL_RANK"])
rank, world = distributed.get_rank(), distributed.get_world_size()
total = torch.tensor(float(rank + 1))
distributed.all_reduce(total)
print(f"rank {rank} of {world}: the ranks' sum is {total.item():.0f}, local rank {args.local_rank}")
ranks.leave()
