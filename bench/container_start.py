#!/usr/bin/env python3
"""What the kit adds to a warm start of a container, beside the shortest script that a person would write for it.

    make cluster && python bench/container_start.py [--runs 31] [--check]

On one node of the Slurm cluster in Docker, for each runtime that starts containers there: the time from the start of
the step's script to the moment at which torchrun would start, through the generated scripts, in turn with a script of
three lines that does only `apptainer exec` or `enroot start`. A median of ratios; --check ends with 1 above LIMIT.

Measured 2026-11 on 2 shared x86-64 cores, Slurm 24.11.5, n=31: Enroot 4.1.2 1.03 (0.228 s by hand), Apptainer 1.4.5 1.07
(0.146 s by hand; what is left is a bash in the image's file system and two scripts to read, 10 ms).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

LIMIT = 1.05
CLUSTER = Path(__file__).parent.parent / "tests" / "cluster" / "cluster.sh"
IMAGES = {"apptainer": "/images/train.sif", "enroot": "/images/train.sqsh"}

PROGRAM = "print('never started')\n"
# By hand, the container starts `date` where torchrun would be; so does the run directory's script, see REPLACE.
BY_HAND = {
    "apptainer": 'exec apptainer exec --no-home --pwd "$PWD" --bind "$PWD" IMAGE date +%s%N\n',
    "enroot": "ENROOT_LOGIN_SHELL=no exec enroot start --rw --mount $PWD:$PWD CONTAINER date +%s%N\n",
}
REPLACE = r's|^  exec "\$@"$|  exec date +%s%N|'

# On the node: $1 folder, $2 runs. Prints nanoseconds by hand and through the kit, a pair a line.
MEASURE = r"""
set -euo pipefail
cd -- "$1"
export SLURM_JOB_ID=1 SLURM_NODEID=0 SLURM_NNODES=1 SLURMD_NODENAME=node1 SLURM_JOB_NODELIST=node1
export MASTER_ADDR=127.0.0.1 MASTER_PORT=61001 KIT_LOG_DIR="$1/run/log/1" KIT_LOOPBACK=1
export SLURM_CPUS_ON_NODE=2 USER=ada
mkdir -p -- "${KIT_LOG_DIR}/.torchrun"
bash -c 'cd run && exec bash run_script.sh prepare' >/dev/null
for ((i = 0; i < $2; i++)); do
  start_ns="$(date +%s%N)"
  end_ns="$(bash by_hand.sh)"
  printf '%d ' "$((end_ns - start_ns))"
  start_ns="$(date +%s%N)"
  end_ns="$(cd run && bash run_script.sh start)"
  printf '%d\n' "$((end_ns - start_ns))"
done
"""


def on_node(node: str, script: str, *arguments: str) -> str:
    done = subprocess.run([str(CLUSTER), "exec", node, "bash", "-euc", script, "bash", *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"{node} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def ratios(runtime: str, image: str, runs: int) -> tuple[list[float], list[float]]:
    """(kit over by hand, seconds by hand), of each pair."""
    folder = on_node("ctl", "mktemp --directory --tmpdir=/shared bench.XXXXXX").strip()
    render = 'cd "$1" && printf "%s" "$4" >program.py && kit render program.py --image "$2" --runtime "$3" --output run >/dev/null 2>&1 && cat run/run.json'
    fingerprint = json.loads(on_node("ctl", render, folder, image, runtime, PROGRAM))["plan"]["fingerprint"]
    container = {"IMAGE": image, "CONTAINER": f"kit-{fingerprint}"}
    script = BY_HAND[runtime]
    for word, value in container.items():
        script = script.replace(word, value)
    on_node("ctl", 'cd "$1" && printf "#!/usr/bin/env bash\n%s" "$2" >by_hand.sh && sed -i "$3" run/torchrun.sh', folder, script, REPLACE)
    lines = on_node("node1", f"export KIT_FINGERPRINT={fingerprint}\n{MEASURE}", folder, str(runs + 2)).splitlines()[2:]
    pairs = [[int(value) / 1e9 for value in line.split()] for line in lines]
    on_node("ctl", 'rm -rf -- "$1"', folder)
    return [kit / hand for hand, kit in pairs], [hand for hand, _ in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=31)
    parser.add_argument("--check", action="store_true", help=f"fail above {LIMIT} of the script by hand")
    args = parser.parse_args()
    enroot = subprocess.run([str(CLUSTER), "enroot"], capture_output=True, text=True, check=True).stdout.strip()
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, n={args.runs}, enroot: {enroot}")
    print(f"{'':12}{'by hand s':>10}{'kit / by hand':>15}{'quartiles':>16}")
    slow = []
    for runtime, image in IMAGES.items():
        if runtime == "enroot" and enroot != "real":
            continue  # what a stub costs says nothing
        ratio, hand = ratios(runtime, image, args.runs)
        low, middle, high = statistics.quantiles(ratio, n=4)
        print(f"{runtime:12}{statistics.median(hand):>10.3f}{middle:>15.3f}{f'{low:.3f} - {high:.3f}':>16}", flush=True)
        if middle > LIMIT:
            slow.append(runtime)
    if args.check and slow:
        sys.exit(f"over {LIMIT}: {', '.join(slow)}")


if __name__ == "__main__":
    main()
