#!/usr/bin/env python3
"""How long one image takes to become a file: kit build, apptainer build, enroot import, from the same image at one time.

    make cluster && python bench/image_build.py [--image kit-test/train] [--runs 3] [--check]

All three run in one container with the tools of the test cluster's nodes, one after the other, in turn. kit and Enroot
take the image from Docker, Apptainer from an archive of it, which saves it a copy. "extra disk" is the most that was on
disk at a time beside the file itself, over the size of the image's files. --check ends with 1 where a goal is missed.

Measured 2026-11 on 2 shared x86-64 cores, squashfs-tools 4.6.1, a 1.76 GB image with torch for CPUs, n=1: kit 20.1 s and
507 MB; Enroot 4.1.2 77.1 s, 1180 MB, extra disk 88 %; Apptainer 1.4.5 214 s, 470 MB, extra disk 134 %. kit over Enroot
0.26, over Apptainer 0.09.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
GOALS = {"enroot": 0.35, "apptainer": 0.15}  # of their time
SIZE_GOAL, DISK_GOAL = 1.15, 0.05  # of the .sif; of the image's files
TOOLS = "kit-test/controller"
CAPABILITIES = ["--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"]

COMMANDS = {
    "kit": 'cd /work/kit && exec python3 -m kit build "dockerd://$1" --name bench',
    "enroot": 'cd /work/enroot && exec enroot import --output image.sqsh "dockerd://$1"',
    "apptainer": "cd /work/apptainer && exec apptainer build image.sif docker-archive:/work/image.tar",
}


class Result(NamedTuple):
    seconds: float
    bytes: int
    extra_bytes: int


class Peak(threading.Thread):
    """The most bytes that a folder held, looked at every 0.2 s."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.bytes, self.done = folder, 0, threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.2):
            du = subprocess.run(["du", "--summarize", "--block-size=1", str(self.folder)], capture_output=True, text=True)
            self.bytes = max(self.bytes, int(du.stdout.split()[0]) if du.stdout else 0)


def measure(tool: str, image: str, work: Path) -> Result:
    folder = work / tool
    folder.mkdir()
    folder.chmod(0o777)
    site = next((Path(sys.prefix) / "lib").glob("python3*/site-packages"))
    mounts = [
        f"{work}:/work",
        f"{ROOT}/launch:/kit:ro",
        f"{site}:/site:ro",
        f"{shutil.which('docker')}:/usr/bin/docker:ro",
        "/var/run/docker.sock:/var/run/docker.sock",
    ]
    temporary = f"/work/{tool}/tmp"  # noqa: S108 - in its container
    variables = {"PYTHONPATH": "/kit:/site", "TMPDIR": temporary, "ENROOT_TEMP_PATH": temporary, "APPTAINER_TMPDIR": temporary, "HOME": f"/work/{tool}/home"}
    command = ["docker", "run", "--rm", "--network", "none", *CAPABILITIES, "--entrypoint", "bash"]
    command += [word for mount in mounts for word in ("--volume", mount)] + [word for pair in variables.items() for word in ("--env", "=".join(pair))]
    script = f'mkdir -p "${{TMPDIR}}" "${{HOME}}"; {COMMANDS[tool]}'
    peak = Peak(folder)
    peak.start()
    start = time.monotonic()
    done = subprocess.run([*command, TOOLS, "-euc", script, "bash", image], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    seconds = time.monotonic() - start
    peak.done.set()
    peak.join()
    if done.returncode:
        sys.exit(f"{tool} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    size = max(path.stat().st_size for path in folder.rglob("*") if path.suffix in (".sqsh", ".sif") and not path.is_symlink())
    subprocess.run(["rm", "-rf", folder], check=True)
    return Result(seconds, size, max(0, peak.bytes - size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default="kit-test/train:latest")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    real = (
        "stub"
        not in subprocess.run(["docker", "run", "--rm", "--entrypoint", "head", TOOLS, "-n2", "/usr/local/bin/enroot"], capture_output=True, text=True).stdout
    )
    tools = [tool for tool in COMMANDS if tool != "enroot" or real]
    inspect = ["docker", "image", "inspect", "--format", "{{.Size}}", args.image]
    whole = int(subprocess.run(inspect, capture_output=True, text=True, check=True).stdout)
    # Enroot wants a CMD.
    subprocess.run(
        ["docker", "build", "--quiet", "--tag", "kit-bench", "-"], input=f'FROM {args.image}\nCMD ["/bin/sh"]\n', text=True, check=True, capture_output=True
    )
    results: dict[str, list[Result]] = {tool: [] for tool in tools}
    with tempfile.TemporaryDirectory(prefix="kit-bench.", dir=Path.home()) as name:
        work = Path(name)
        work.chmod(0o755)
        subprocess.run(["docker", "save", "--output", work / "image.tar", "kit-bench"], check=True)
        for _ in range(args.runs):
            for tool in tools:
                results[tool].append(measure(tool, "kit-bench", work))
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, n={args.runs}, {args.image}: {whole / 1e6:.0f} MB of files")
    print(f"{'':12}{'seconds':>9}{'kit / it':>10}{'MB':>8}{'kit / it':>10}{'extra disk':>12}")
    missed = []
    for tool in tools:
        mine = statistics.median(one.seconds for one in results["kit"])
        theirs = statistics.median(one.seconds for one in results[tool])
        ratio = statistics.median(a.seconds / b.seconds for a, b in zip(results["kit"], results[tool]))
        size = results["kit"][0].bytes / results[tool][0].bytes
        extra = max(one.extra_bytes for one in results[tool]) / whole
        print(f"{tool:12}{theirs:>9.1f}{ratio:>10.2f}{results[tool][0].bytes / 1e6:>8.0f}{size:>10.2f}{extra:>12.1%}")
        if ratio > GOALS.get(tool, 1) or mine <= 0 or (tool == "apptainer" and size > SIZE_GOAL) or (tool == "kit" and extra > DISK_GOAL):
            missed.append(tool)
    if args.check and missed:
        sys.exit(f"goals missed against: {', '.join(missed)}")


if __name__ == "__main__":
    main()
