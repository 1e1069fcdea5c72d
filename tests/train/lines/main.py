"""A program that takes its rank from its arguments, as many did before torchrun."""

import argparse

import ranks
import torch
from torch import distributed

parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, required=True)
parser.add_argument("--world-size", type=int, required=True)
parser.add_argument("--dist-url", required=True)
args = parser.parse_args()
distributed.init_process_group("gloo", init_method=args.dist_url, rank=args.rank, world_size=args.world_size)
total = torch.tensor(float(args.rank + 1))
distributed.all_reduce(total)
print(f"rank {args.rank} of {args.world_size}: the ranks' sum is {total.item():.0f}")
ranks.leave()
