#!/usr/bin/env python3
"""The next start of a job on nodes that have mounted its image before, and have the file in memory:
how much longer kit takes than a person's script that mounts the same file.

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
from first_start import MOUNTED, REMEMBER, SPAN, after, folder_on_cluster, make_ready, starts
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


DOES = f"{SPAN}. Each node has mounted the image before, and has its file in memory."
WHY = (
    "kit starts the ranks only when every node has said in an earlier step that it is ready. A"
    " script by hand has no such step. The quartiles of the difference are further apart than the"
    " goal."
)


if __name__ == "__main__":
    measure.main(run, rounds=15, versions=launch.versions)
