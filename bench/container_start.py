#!/usr/bin/env python3
"""What the kit adds to a warm start of a container, beside the shortest script that a person would write for it.

    make cluster && python bench/container_start.py [--runs 31] [--check]

On one node of the Slurm cluster in Docker, for each runtime that starts containers there: the time from the start of
the step's script through the generated scripts, in turn with a script of three lines that does only `apptainer exec` or
`enroot start`. To two moments: "process", at which torchrun's process would start, and "torchrun", at which it has
loaded torch and begins its own work. A median of ratios; --check ends with 1 where torchrun's is above LIMIT.

Measured 2026-11 on 2 shared x86-64 cores, Slurm 24.11.5, n=21: to torchrun's own work Enroot 4.1.2 0.99 (1.4 s by hand),
Apptainer 1.4.5 1.02 (2.8 s). To its process 1.05 (0.26 s) and 1.11 (0.15 s): a bash in the image, which Apptainer reads
through FUSE, takes 10 ms; `apptainer exec IMAGE sh` alone is at 1.06 of `apptainer exec IMAGE date` there.
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
BY_HAND = {
    "apptainer": 'exec apptainer exec --no-home --pwd "$PWD" --bind "$PWD" IMAGE COMMAND\n',
    "enroot": "ENROOT_LOGIN_SHELL=no exec enroot start --rw --mount $PWD:$PWD CONTAINER COMMAND\n",
}
# What the container starts where torchrun would be, by hand and in the run directory's script: it prints nanoseconds.
MOMENTS = {"process": "date +%s%N", "torchrun": "python3 FOLDER/moment.py"}
MOMENT = "import time\nimport torch.distributed.run\nprint(time.time_ns())\n"
REPLACE = r's|^  exec "\$@"$|  exec COMMAND|'

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


def ratios(runtime: str, image: str, moment: str, runs: int) -> tuple[list[float], list[float]]:
    """(kit over by hand, seconds by hand), of each pair."""
    folder = on_node("ctl", "mktemp --directory --tmpdir=/shared bench.XXXXXX").strip()
    render = 'cd "$1" && printf "%s" "$4" >program.py && kit render program.py --image "$2" --runtime "$3" --output run >/dev/null 2>&1 && cat run/run.json'
    fingerprint = json.loads(on_node("ctl", render, folder, image, runtime, PROGRAM))["plan"]["fingerprint"]
    container = {"IMAGE": image, "CONTAINER": f"kit-{fingerprint}"}
    command = MOMENTS[moment].replace("FOLDER", folder)
    script = BY_HAND[runtime].replace("COMMAND", command)
    for word, value in container.items():
        script = script.replace(word, value)
    write = 'cd "$1" && printf "#!/usr/bin/env bash\n%s" "$2" >by_hand.sh && sed -i "$3" run/torchrun.sh && printf "%s" "$4" >moment.py'
    on_node("ctl", write, folder, script, REPLACE.replace("COMMAND", command), MOMENT)
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
    print(f"{'':12}{'to':10}{'by hand s':>10}{'kit / by hand':>15}{'quartiles':>16}")
    slow = []
    for runtime, image in IMAGES.items():
        if runtime == "enroot" and enroot != "real":
            continue  # what a stub costs says nothing
        for moment in MOMENTS:
            ratio, hand = ratios(runtime, image, moment, args.runs)
            low, middle, high = statistics.quantiles(ratio, n=4)
            print(f"{runtime:12}{moment:10}{statistics.median(hand):>10.3f}{middle:>15.3f}{f'{low:.3f} - {high:.3f}':>16}", flush=True)
            if moment == "torchrun" and middle > LIMIT:
                slow.append(runtime)
    if args.check and slow:
        sys.exit(f"over {LIMIT}: {', '.join(slow)}")


if __name__ == "__main__":
    main()
