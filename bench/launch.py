#!/usr/bin/env python3
"""From the start of the batch script to the end of the first all-reduce, beside the shortest batch
script that a person would write for the same runtime: 3 nodes x 2 ranks, gloo, started by torchrun.

    make cluster && python bench/launch.py [--rounds 3] [--check]

On the Slurm cluster in Docker of tests/cluster, whose machines share one clock. For Enroot and
Pyxis bring it up with their packages: KIT_CLUSTER_DEBS=FOLDER tests/cluster/cluster.sh up. A stub
of them is not measured: what it costs says nothing.

Both sides: sbatch of a script whose first line writes down the time; the same program, which writes
it down again when rank 0 is behind its first all_reduce and barrier; the same image, mounts, CPUs,
OMP_NUM_THREADS, and the same arguments of torchrun.

  kit       the run_script.sh that `kit render` wrote. It also makes sure that all nodes are ready
            before any rank waits for another, checks the image on each, finds the Python that has
            torch, and keeps a log and the exit code of each rank.
  by hand   BY_HAND below. Enroot: unpack the image where no container of that name is, then start
            it. Pyxis: a named container.
            Everything in one srun, and none of the checks.
  torch import alone    six processes, each `import torch, torch.distributed`, through the same
                        runtime's srun: the floor.
            torchrun cannot reach it: it imports torch, and then its ranks do.

warm: the containers are on the nodes. cold: none is; image and page cache are as they were.
Apptainer and none make nothing on a node, so there they are the same. Containers are unpacked into
memory: here all nodes share one disk, whose pace changes by half from job to job.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent import futures

import cluster
import measure
from measure import KIT, Comparison, Goal

HAND, FLOOR = "by hand", "torch import alone"
CREATES = ("enroot", "pyxis")  # those with something to make on a node
WARM, COLD = 1.03, 1.0  # goals, of the script by hand

PROGRAM = """\
import sys
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
dist.barrier()
now = time.time_ns()
assert ones.item() == 6
if dist.get_rank() == 0:
    with open(sys.argv[1], "a") as file:
        file.write(f"{now}\\n")
dist.destroy_process_group()
"""
IMPORT = """\
import sys
import time
import torch
import torch.distributed
with open(sys.argv[1], "a") as file:
    file.write(f"{time.time_ns()}\\n")
"""

BEGUN = "(($#)) || date +%s%N >FOLDER/begun"  # srun starts kit's script again, with arguments
HEADER = f"""\
#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=1 --cpus-per-task=2 --chdir=FOLDER --output=FOLDER/job.out
{BEGUN}
export OMP_NUM_THREADS=1
"""
FIRST_NODE = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
# In the step, which knows its SLURM_NODEID. The port is outside the range of outgoing connections.
TORCHRUN = (
    "torch.distributed.run --nnodes 3 --node-rank $SLURM_NODEID --master-addr $MASTER_ADDR"
    " --master-port 61000 --nproc-per-node 2 --rdzv-id $SLURM_JOB_ID --max-restarts 0 --log-dir"
    " FOLDER/torchrun program.py FOLDER/end"
)
PYXIS = (
    "--container-image=IMAGE --container-name=train --container-mounts=FOLDER:FOLDER"
    " --container-workdir=FOLDER"
)
BY_HAND = {
    "apptainer": (
        f"srun bash -c 'exec apptainer exec --no-home --bind FOLDER IMAGE python3 -m {TORCHRUN}'\n"
    ),
    "enroot": (
        f"""srun bash -c '
  [[ -e /scratch/enroot/data-$UID/train ]] || enroot create --name train IMAGE
  ENROOT_LOGIN_SHELL=no exec enroot start --env OMP_NUM_THREADS --mount FOLDER:FOLDER train \\
    python3 -m {TORCHRUN.replace("program.py", "FOLDER/program.py")}
'
"""
    ),
    "pyxis": f"srun {PYXIS} bash -c 'exec python3 -m {TORCHRUN}'\n",
    "none": f"srun bash -c 'exec python3 -m {TORCHRUN}'\n",
}
EACH = "srun --ntasks=6 --ntasks-per-node=2 --cpus-per-task=1"
IMPORTS = {
    "apptainer": (
        f"{EACH} apptainer exec --no-home --bind FOLDER IMAGE python3 import.py FOLDER/end\n"
    ),
    "enroot": (
        f"ENROOT_LOGIN_SHELL=no {EACH} enroot start --mount FOLDER:FOLDER train python3"
        " FOLDER/import.py FOLDER/end\n"
    ),
    "pyxis": f"{EACH} {PYXIS} python3 import.py FOLDER/end\n",
    "none": f"{EACH} python3 import.py FOLDER/end\n",
}

# On the controller: $1 folder, $2 script. Prints nanoseconds, when it is over. Questions to Slurm
# are load: few until the end.
JOB = r"""
cd -- "$1"
rm -f begun end job.out
[[ "$2" != none-* ]] || export PATH="$1/host/bin:${PATH}" LD_LIBRARY_PATH="$1/host/lib"
id="$(sbatch --parsable -- "$2")"
for ((i = 1; ; i++)); do
  sleep 0.2
  [[ -s end ]] || ((i % 25 == 0)) || continue
  state="$(squeue --noheader --states=all --jobs="${id}" --format=%T)"
  case "${state}" in
    COMPLETED) break ;;
    PENDING | CONFIGURING | RUNNING | COMPLETING) ;;
    *)
      printf '%s: %s\n' "$2" "${state}" >&2
      tail -q -n 20 job.out "${2%/*}/log/slurm-${id}.out" >&2 2>/dev/null || true
      exit 1
      ;;
  esac
done
printf '%d\n' "$(($(sort -n end | tail -n 1) - $(<begun)))"
"""

# What both sides put on a node; written out, so that no side pays later for what another wrote.
FORGET = r"""
shopt -s nullglob
for container in /scratch/enroot/data-1000/*; do
  enroot remove --force "${container##*/}" >/dev/null 2>&1 || rm -rf -- "${container}"
done
rm -rf -- /tmp/kit-1000
sync
"""

# For containers; as root.
IN_MEMORY = "mount -t tmpfs -o mode=1777,size=4g kit-bench /scratch/enroot"
NO_MORE = "! mountpoint --quiet /scratch/enroot || umount --lazy /scratch/enroot"
# However a benchmark ended, its jobs have, too.
ENDED = """
squeue --me --noheader --format='%i %Z' |
  while read -r id folder; do [[ "${folder}" != "$1"* ]] || scancel "${id}"; done
while squeue --me --noheader --format=%Z | grep -q "^$1"; do sleep 1; done
"""

# Without a container, the nodes' Python is the image's: unpacked on the shared file system, behind
# a virtual environment.
HOST_PYTHON = r"""
cd -- "$1"
unsquashfs -quiet -no-progress -no-xattrs -ignore-errors -dest root "$2" >unpacked.log 2>&1 ||
  [[ -x root/usr/bin/python3 ]]
mkdir -p host/bin host/lib/python3.11
ln -s "$1/root/usr/bin/python3.11" host/bin/python3
ln -s "$1/root/usr/local/lib/python3.11/dist-packages" host/lib/python3.11/site-packages
printf 'home = %s\n' "$1/root/usr/bin" >host/pyvenv.cfg
libraries="$1/root/usr/lib/x86_64-linux-gnu"
mapfile -t missing < <(ldd host/bin/python3 root/usr/lib/python3.11/lib-dynload/*.so |
  sed -n 's/^\s*\(.*\) => not found/\1/p' | sort -u)
for name in "${missing[@]}"; do
  [[ ! -e "${libraries}/${name}" ]] || ln -s "${libraries}/${name}" host/lib
done
LD_LIBRARY_PATH="$1/host/lib" host/bin/python3 -c 'import torch.distributed'
"""

RENDER = r"""
cd -- "$1"
[[ "$2" != none ]] || export PATH="$1/host/bin:${PATH}" LD_LIBRARY_PATH="$1/host/lib"
kit render -j 3x2 --runtime "$2" --env OMP_NUM_THREADS=1 "${@:4}" --output "$2-kit" \
  program.py -- "$1/end" >/dev/null
sed -i "/^set -euo pipefail/i $3" "$2-kit/run_script.sh"
"""


def make_ready(folder: str, runtimes: list[str]) -> None:
    """This checkout's kit on the controller, and the programs and scripts of all sides in the
    folder."""
    cluster.install_kit()
    put(folder, "program.py", PROGRAM)
    put(folder, "import.py", IMPORT)
    put(folder, ".kitignore", "/root\n/host\n")  # of HOST_PYTHON
    cluster.bash("node1", HOST_PYTHON, folder, cluster.IMAGES["none"])
    for runtime in runtimes:
        put(folder, f"{runtime}-hand.sh", HEADER + FIRST_NODE + BY_HAND[runtime], runtime)
        put(folder, f"{runtime}-import.sh", HEADER + IMPORTS[runtime], runtime)
        image = [] if runtime == "none" else ["--image", cluster.IMAGES[runtime]]
        cluster.bash("ctl", RENDER, folder, runtime, BEGUN.replace("FOLDER", folder), *image)


def put(folder: str, name: str, text: str, runtime: str = "none") -> None:
    cluster.bash(
        "ctl",
        'printf "%s" "$2" >"$1"',
        f"{folder}/{name}",
        text.replace("FOLDER", folder).replace("IMAGE", cluster.IMAGES[runtime]),
    )


def launched(folder: str, script: str) -> float:
    """Seconds of one job."""
    return int(cluster.bash("ctl", JOB, folder, script)) / 1e9


def forgotten(then: Callable[[], float]) -> Callable[[], float]:
    """The same side, with nothing of any side on the nodes."""

    def run() -> float:
        forget()
        return then()

    return run


def forget() -> None:
    on_each(FORGET)


def on_each(script: str, root: bool = False) -> None:
    with futures.ThreadPoolExecutor() as pool:
        list(pool.map(lambda node: cluster.bash(node, script, root=root), cluster.NODES))


def run(rounds: int) -> Iterator[Comparison]:
    with contextlib.ExitStack() as afterwards:
        afterwards.callback(on_each, NO_MORE, root=True)
        on_each(IN_MEMORY, root=True)
        folder = cluster.bash("ctl", "mktemp --directory --tmpdir=/shared launch.XXXXXX")
        afterwards.callback(cluster.bash, "ctl", 'rm -rf -- "$1"', folder)
        afterwards.callback(forget)
        afterwards.callback(cluster.bash, "ctl", ENDED, folder)
        runtimes = ["none", *cluster.runtimes()]
        make_ready(folder, runtimes)
        for runtime in runtimes:
            sides: dict[str, Callable[[], float]] = {
                KIT: functools.partial(launched, folder, f"{runtime}-kit/run_script.sh"),
                HAND: functools.partial(launched, folder, f"{runtime}-hand.sh"),
                FLOOR: functools.partial(launched, folder, f"{runtime}-import.sh"),
            }
            if runtime in CREATES:
                forget()  # memory has room for few of them
                sides[HAND]()  # whose container is the floor's, too
            yield Comparison(
                f"launch under {runtime}, warm",
                DOES,
                measure.take_turns(sides, rounds),
                goals=[Goal(HAND, WARM)],
                headline=True,
                why=WHY_WARM,
            )
            if runtime in CREATES:
                cold = {name: forgotten(sides[name]) for name in (KIT, HAND)}
                yield Comparison(
                    f"launch under {runtime}, cold",
                    DOES_COLD,
                    measure.take_turns(cold, rounds, warm_up=0),
                    goals=[Goal(HAND, COLD)],
                    headline=True,
                    why=WHY,
                )


DOES = (
    "from the start of the batch script to the end of the first all-reduce, 3 nodes x 2 ranks,"
    " containers on the nodes; torch alone: six imports."
)
DOES_COLD = "the same, with no container on the nodes; both unpack the same file."
WHY_WARM = (
    "0.37 s of it, by the timeline of one run under Pyxis, is the step after which all nodes are"
    " known to be ready; by hand there is none."
)
WHY = (
    "What kit saves from cold is in the file, which kit build makes smaller than enroot import: see"
    " image, cold start under Enroot."
)


def versions() -> dict[str, str]:
    asked = (
        'sbatch --version; apptainer --version; ! command -v enroot >/dev/null || printf "enroot'
        ' %s\n" "$(enroot version)"'
    )
    lines = cluster.bash("node1", asked).splitlines()
    return {line.split()[0]: line.split()[-1] for line in lines}


if __name__ == "__main__":
    measure.main(run, rounds=3, versions=versions)
