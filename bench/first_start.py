#!/usr/bin/env python3
"""The first start of a job on nodes that have nothing of its image: by kit, which mounts the image,
and by a person's script, which unpacks it. And kit's next start, which next_start.py compares.

    make cluster && python bench/first_start.py [--rounds 15] [--check]

On the Slurm cluster in Docker of tests/cluster with the packages of Enroot and Pyxis; a stub of
them is not measured. Two nodes, one rank on each, torchrun, gloo: from the start of the batch
script to the end of the first all-reduce. The image is on the nodes' own disk, as `stage: local`
leaves it, for all sides.

  kit                `unpack: no`, `stage: local`; Apptainer mounts always
  by hand, unpacked  Enroot: `enroot create` where no container is, and `enroot start`. Pyxis: a
                     named container. Not for Apptainer

first: no container is on the nodes, and the image's file has left their memory.
next: the file is in memory, and the node has mounted it within the hour.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import cluster
import measure
from measure import KIT, Comparison, Goal

import launch

HAND, MOUNTED = "by hand, unpacked", "by hand, mounted"
NEXT = "its next start"
NODES = cluster.NODES[:2]
PLACE = "/tmp/kit-1000/images"  # noqa: S108 - kit's own there, of the cluster's user

# Its three nodes, two ranks on each and shared image are launch.py's.
PROGRAM = launch.PROGRAM.replace("== 6", "== 2")
TORCHRUN = launch.TORCHRUN.replace("--nnodes 3", "--nnodes 2").replace(
    "--nproc-per-node 2", "--nproc-per-node 1"
)
# The nodes' own names are loopback addresses there, which kit looks for by itself.
HEADER = (
    launch.HEADER.replace("--nodes=3", "--nodes=2 --nodelist=node[1-2]")
    + "export GLOO_SOCKET_IFNAME=eth0\n"
)
INSIDE = TORCHRUN.replace("program.py", "FOLDER/program.py")
START = (
    "ENROOT_LOGIN_SHELL=no exec enroot start --rw --env OMP_NUM_THREADS --env GLOO_SOCKET_IFNAME"
    " --mount FOLDER:FOLDER"
)
PYXIS = "--container-image=COPY --container-mounts=FOLDER:FOLDER --container-workdir=FOLDER"
BY_HAND = {
    "apptainer": {
        MOUNTED: launch.BY_HAND["apptainer"].replace(launch.TORCHRUN, TORCHRUN),
    },
    "enroot": {
        HAND: f"""srun bash -c '
  [[ -e /scratch/enroot/data-$UID/train ]] || enroot create --name train COPY
  {START} train python3 -m {INSIDE}
'
""",
        MOUNTED: f"srun bash -c '{START} COPY python3 -m {INSIDE}'\n",
    },
    "pyxis": {
        HAND: f"srun {PYXIS} --container-name=train bash -c 'exec python3 -m {TORCHRUN}'\n",
        MOUNTED: f"srun {PYXIS} --container-writable bash -c 'exec python3 -m {TORCHRUN}'\n",
    },
}

RENDER = r"""
cd -- "$1"
kit render -j 2x1 --runtime "$2" --image "$3" --unpack "$5" --stage "$7" \
  --slurm 'nodelist=node[1-2]' --env OMP_NUM_THREADS=1 --output "$6" program.py -- "$1/end" \
  >/dev/null
sed -i "/^set -euo pipefail/i $4" "$6/run_script.sh"
"""
# As `stage: local` names it, by the fingerprint that the run directory has.
COPY = r"""
mkdir -p -m 700 "$2" "${2%/*}"
[[ -e "$2/$3" ]] || { cp -- "$1" "$2/$3.new" && chmod 400 "$2/$3.new" && mv "$2/$3.new" "$2/$3"; }
sync
"""
FORGET = r"""
shopt -s nullglob
for container in /scratch/enroot/data-1000/* /tmp/kit-1000/enroot/data/{,.}kit-*; do
  rm -rf -- "${container}"
done
for image in "$1"/*; do
  dd if="${image}" of=/dev/null iflag=nocache count=0 status=none
done
"""
# What kit keeps of a mount that worked; a new node has none.
AS_NEW = 'rm -f -- "${1%/*}/mounted"'
REMEMBER = 'cat -- "$1"/* >/dev/null'


def script_of(runtime: str, side: str) -> str:
    return f"{runtime}-{side.replace(', ', '-').replace(' ', '-')}"


def make_ready(folder: str, runtime: str) -> dict[str, str]:
    """The script of each side, by its name; the nodes have the image on their disk."""
    image = cluster.IMAGES[runtime]
    run = script_of(runtime, KIT)
    by_kit = render(folder, runtime, image, run, "local")
    copy = put_on_nodes(image, f"{folder}/{run}")
    return {KIT: by_kit, **write_by_hand(folder, runtime, copy)}


def render(folder: str, runtime: str, image: str, run: str, stage: str) -> str:
    """kit's script of a run that mounts the image."""
    unpack = "auto" if runtime == "apptainer" else "no"
    begun = launch.BEGUN.replace("FOLDER", folder)
    cluster.bash("ctl", RENDER, folder, runtime, image, begun, unpack, run, stage)
    return f"{run}/run_script.sh"


def write_by_hand(folder: str, runtime: str, image: str, where: str = "") -> dict[str, str]:
    """A person's scripts for that image, by their side's name."""
    scripts = {}
    for side, text in BY_HAND[runtime].items():
        scripts[side] = f"{where}{script_of(runtime, side)}.sh"
        whole = (HEADER + launch.FIRST_NODE + text).replace("IMAGE", "COPY")
        launch.put(folder, scripts[side], whole.replace("COPY", image), runtime)
    return scripts


def put_on_nodes(image: str, run: str) -> str:
    """The path of the copy that each node has, where the run's `stage: local` looks for it."""
    find = """sed -n "s/^KIT_SUBMITTED_FINGERPRINT='\\{0,1\\}\\([0-9a-f]*\\).*/\\1/p" "$1" """
    digest = cluster.bash("ctl", find, f"{run}/env.sh")
    name = f"{digest}.{image.rpartition('.')[2]}"
    for node in NODES:
        cluster.bash(node, COPY, image, PLACE, name)
    return f"{PLACE}/{name}"


def on_nodes(script: str) -> None:
    for node in NODES:
        cluster.bash(node, script, PLACE)


def after(script: str, start: Callable[[], float]) -> Callable[[], float]:
    """The start, after a script on each node."""

    def run() -> float:
        on_nodes(script)
        return start()

    return run


def starts(folder: str, scripts: dict[str, str]) -> dict[str, Callable[[], float]]:
    return {
        side: functools.partial(launch.launched, folder, script) for side, script in scripts.items()
    }


@contextlib.contextmanager
def folder_on_cluster() -> Iterator[str]:
    """Of all nodes, with the program; afterwards it is gone, and so is what was unpacked."""
    with contextlib.ExitStack() as afterwards:
        folder = cluster.bash("ctl", "mktemp --directory --tmpdir=/shared first.XXXXXX")
        afterwards.callback(cluster.bash, "ctl", 'rm -rf -- "$1"', folder)
        afterwards.callback(on_nodes, FORGET)
        afterwards.callback(cluster.bash, "ctl", launch.ENDED, folder)
        cluster.install_kit()
        launch.put(folder, "program.py", PROGRAM)
        yield folder


def run(rounds: int) -> Iterator[Comparison]:
    with folder_on_cluster() as folder:
        for runtime in cluster.runtimes():
            yield measured(folder, runtime, rounds)


def measured(folder: str, runtime: str, rounds: int) -> Comparison:
    start = starts(folder, make_ready(folder, runtime))
    sides = {KIT: after(FORGET + AS_NEW, start[KIT])}
    if HAND in start:
        sides[HAND] = after(FORGET, start[HAND])
    sides[NEXT] = after(REMEMBER, start[KIT])
    values = measure.take_turns(sides, rounds)
    goals = [Goal(HAND, 0.6)] if HAND in values else [Goal(NEXT, 1.3)]
    return Comparison(f"first start under {runtime}", DOES, values, goals=goals)


SPAN = "from the start of the batch script to the end of the first all-reduce, 2 nodes x 1 rank"
DOES = (
    f"{SPAN}; no container on the nodes, the image's file on their disk and not in memory. Its next"
    " start: the file in memory, which the node has mounted before."
)


if __name__ == "__main__":
    measure.main(run, rounds=15, versions=launch.versions)
