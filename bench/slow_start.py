#!/usr/bin/env python3
"""The first start of a job on nodes that read its image from a slow file server: by kit, which
mounts the image where it is or copies it first, and by a person's script.

    make cluster && python bench/slow_start.py [--rounds 15] [--check]

As first_start.py, with the image behind a file server that slow_disk.py plays on each node: 1 ms
for each call, 100 MB/s. No container and no copy of the image is on the nodes.

  kit                `unpack: no`; the image is mounted where it is
  kit, copied first  `unpack: no`, `stage: local`
  by hand, unpacked  as in first_start.py, of the file on the server
  by hand, mounted   the same
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import cluster
import measure
from first_start import (
    AS_NEW,
    FORGET,
    HAND,
    NODES,
    SPAN,
    after,
    folder_on_cluster,
    render,
    script_of,
    starts,
    write_by_hand,
)
from measure import KIT, Comparison, Goal

import launch

COPIED = "kit, copied first"
SLOW = "/slow"
# No copy of the image either, nothing of it in memory, and no mount that worked before.
NOTHING = (
    FORGET
    + AS_NEW
    + r"""
rm -f -- "$1"/*
for image in /slow/*.s{qsh,if}; do
  dd if="${image}" of=/dev/null iflag=nocache count=0 status=none
done
"""
)
# As root: the folder /images, as a slow server would show it.
BEHIND = r"""
command -v python3 >/dev/null && python3 -c 'import fusepy' 2>/dev/null || {
  apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-fusepy
} >/dev/null 2>&1
mkdir -p "$1"
mountpoint --quiet "$1" || python3 -c "$2" /images "$1"
"""
IN_FRONT = 'mkdir -p "$1"; mountpoint --quiet "$1" || mount --bind /images "$1"'
NO_MORE = '! mountpoint --quiet "$1" || umount "$1"'


def run(rounds: int) -> Iterator[Comparison]:
    with folder_on_cluster() as folder, slow_server():
        for runtime in cluster.runtimes():
            yield measured(folder, runtime, rounds)


def measured(folder: str, runtime: str, rounds: int) -> Comparison:
    start = starts(folder, make_ready(folder, runtime))
    sides = {side: after(NOTHING, start[side]) for side in start}
    values = measure.take_turns(sides, rounds)
    goals = [Goal(HAND, 0.6)] if HAND in sides else []
    return Comparison(f"slow server, first start under {runtime}", DOES, values, goals=goals)


def make_ready(folder: str, runtime: str) -> dict[str, str]:
    """The script of each side, by its name."""
    image = cluster.IMAGES[runtime].replace("/images", SLOW)
    scripts = write_by_hand(folder, runtime, image, "slow-")
    for side, stage in ((KIT, "none"), (COPIED, "local")):
        run = f"slow-{script_of(runtime, side)}"
        scripts[side] = render(folder, runtime, image, run, stage)
    return scripts


@contextlib.contextmanager
def slow_server() -> Iterator[None]:
    """Meanwhile /slow is /images: of the nodes by slow_disk.py, of the controller as it is."""
    program = measure.ROOT.joinpath("bench/slow_disk.py").read_text()
    try:
        cluster.bash("ctl", IN_FRONT, SLOW, root=True)
        for node in NODES:
            cluster.bash(node, BEHIND, SLOW, program, root=True)
        yield
    finally:
        for node in ("ctl", *NODES):
            cluster.bash(node, NO_MORE, SLOW, root=True)


DOES = (
    f"{SPAN}, with the image behind a file server that takes 1 ms for each call and sends 100 MB/s"
    " to each node (a FUSE file system of the benchmark); no container and no copy of the image on"
    " the nodes."
)


if __name__ == "__main__":
    measure.main(run, rounds=15, versions=launch.versions)
