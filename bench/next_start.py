#!/usr/bin/env python3
"""The next start of a job whose image the nodes have on their disk and in memory, and have mounted
before: what kit takes longer than a person's script that mounts the same file.

    make cluster && python bench/next_start.py [--rounds 15] [--check]

As first_start.py, with another script by hand.

  kit               `unpack: no`, `stage: local`; Apptainer mounts always
  by hand, mounted  Enroot: `enroot start FILE`. Pyxis: `srun --container-image=FILE`, where the
                    site says use_squashfuse=1. Apptainer: `apptainer exec FILE`
"""

from __future__ import annotations

from collections.abc import Iterator

import cluster
import measure
from first_start import MOUNTED, REMEMBER, after, folder_on_cluster, make_ready, starts
from measure import KIT, Comparison, Goal

import launch


def run(rounds: int) -> Iterator[Comparison]:
    with folder_on_cluster() as folder:
        for runtime in cluster.runtimes():
            start = starts(folder, make_ready(folder, runtime))
            sides = {side: after(REMEMBER, start[side]) for side in (KIT, MOUNTED)}
            values = measure.take_turns(sides, rounds)
            goals = [Goal(MOUNTED, 0.2, over=True)]
            yield Comparison(f"next start under {runtime}", DOES, values, goals=goals, why=WHY)


DOES = (
    "from the start of the batch script to the end of the first all-reduce, 2 nodes x 1 rank; the"
    " image's file in memory, which the node has mounted before."
)
WHY = (
    "Before any rank starts, a step of its own tells the first node that each node is ready; by"
    " hand there is none. The rounds differ from each other by more than that."
)


if __name__ == "__main__":
    measure.main(run, rounds=15, versions=launch.versions)
