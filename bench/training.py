#!/usr/bin/env python3
"""How fast training is: inside a container beside outside, on two ranks beside one, and cifar10.py beside what came before.

    make cluster && python bench/training.py [--rounds 5] [--check]

Inside and outside. train/digits.py and train/cifar10.py (width 8, 64 images a step), one after the other in one process with
one thread, under torchrun. kit: by `kit submit` on a node of the Slurm cluster in Docker, once for each runtime that starts
containers there, and by `kit run --runtime docker`. Outside: on that node, too, the same files of Python and torch, unpacked
from the same image onto its disk and entered with chroot, which is no container: no overlay, no FUSE, no limits. (The node is
itself one of Docker's, without seccomp.) Seconds an epoch, a median of all but the first: no start is in it. A stub of Enroot
or Pyxis is not measured: what it costs says nothing.

Ranks. train/cifar10.py by `kit run`, one batch of 64 on 1 and on 2 ranks of one thread each; and beside them two runs of
1 rank at a time that know nothing of each other: what they lose is the machine's doing, not the ranks'. On CPUs only.

The original. train/cifar10.py beside train/cifar10_original.py: the same network, data and batches of 256, each by `python`
alone. On a GPU the whole network; on a CPU at width 8, with one thread each, and the original's two processes that prepare images.

The images are random bytes of CIFAR-10's shape: the speed does not depend on them.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import measure
from measure import KIT, ROOT, CannotMeasure, Comparison, Goal, Lines

CLUSTER = ROOT / "tests" / "cluster" / "cluster.sh"
IMAGES = {"apptainer": "/images/train.sif", "enroot": "/images/train.sqsh", "pyxis": "/images/train.sqsh"}
DOCKER_IMAGE = "docker://kit-test/train:latest"
OUTSIDE = "outside"
OVERHEAD = 1.02  # of the same training outside
EPOCH_IMAGES = 50_000  # CIFAR-10's
PUBLISHED = "two V100 GPUs, as published"
PUBLISHED_S = 5.0  # an epoch, in batches of 256: so says a public tutorial of multi-node PyTorch about a program like the original

# Both programs as they are, but for the moment in front of what they print.
BOTH = """\
import builtins, runpy, sys, time
say = builtins.print
builtins.print = lambda *words, **options: say(f"at {time.perf_counter():.6f}", *words, **options)
for words in (
    ["digits.py", "--epochs", "151"],
    ["cifar10.py", "--data", ".", "--width", "8", "--batch-size", "64", "--limit-steps", "4", "--epochs", "9", "--no-compile"],
):
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
"""
EPOCHS = {"digits": 151, "cifar10": 9}  # by which their lines are told apart
JOB = 'name: bench-training\ncommand: both.py\nnodes: 1\nprocesses_per_node: 1\ntime: "00:10:00"\nenv: {OMP_NUM_THREADS: "1"}\n'
SUBMIT = 'cd "$1" && exec kit submit job.yaml --image "$2" --runtime "$3" --slurm nodelist=node1 --output "$(mktemp --dry-run run.XXXXXX)" --follow'

# As root on the node. $1: a folder for the image's tree; $2: the programs' folder, below /shared.
UNPACK = 'unsquashfs -quiet -no-progress -dest "$1/root" /images/train.sqsh >/dev/null && mkdir -p "$1/root/shared"'
ENTER = """
for place in proc sys dev shared; do mount --rbind "/${place}" "$1/root/${place}"; done
exec chroot --userspec=1000:1000 "$1/root" /usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 HOME=/tmp OMP_NUM_THREADS=1 \\
  sh -c 'cd "$1" && exec python3 -m torch.distributed.run --nnodes 1 --nproc-per-node 1 --master-addr 127.0.0.1 --master-port 61999 both.py' sh "$2"
"""


def said(*command: str | Path, folder: Path | None = None, gpu: bool = False) -> str:
    """What the command printed; it must succeed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({} if gpu else {"CUDA_VISIBLE_DEVICES": ""})
    done = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise CannotMeasure(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{(done.stdout + done.stderr).strip()[-2000:]}")
    return done.stdout


def on_node(node: str, *command: str, root: bool = False) -> str:
    return said(CLUSTER, "exec", node, *(["--root"] if root else []), *command)


def put_data(folder: Path, images: int, test_images: int) -> None:
    """Puts so many random images into cifar-10-batches-py, as the programs read it."""
    import numpy as np

    target = folder / "cifar-10-batches-py"
    target.mkdir()
    random = np.random.default_rng(0)
    for name, number in [*((f"data_batch_{i}", images // 5) for i in range(1, 6)), ("test_batch", test_images)]:
        batch = {"data": random.integers(0, 256, (number, 3072), dtype=np.uint8), "labels": random.integers(0, 10, number).tolist()}
        (target / name).write_bytes(pickle.dumps(batch))


# --- inside and outside --------------------------------------------------------------------


def epochs_s(output: str) -> dict[str, float]:
    """Median seconds of an epoch, of each program."""
    found = {}
    for program, epochs in EPOCHS.items():
        moments = [float(moment) for moment in re.findall(rf"at ([\d.]+) epoch \d+/{epochs} ", output)]
        if len(moments) != epochs:
            raise CannotMeasure(f"{program} printed {len(moments)} of its {epochs} epochs:\n{output[-2000:]}")
        found[program] = statistics.median(after - before for before, after in zip(moments, moments[1:]))
    return found


def by_docker(folder: Path) -> str:
    run = tempfile.mktemp(prefix="run.", dir=folder)  # noqa: S306 - kit makes it, and refuses an existing one
    return said(sys.executable, "-m", "kit", "run", "job.yaml", "--image", DOCKER_IMAGE, "--runtime", "docker", "--output", run, folder=folder)


def real_runtimes() -> list[str]:
    enroot, pyxis = (said(CLUSTER, part).strip() == "real" for part in ("enroot", "pyxis"))
    return ["apptainer", *(["enroot"] if enroot else []), *(["pyxis"] if enroot and pyxis else [])]


def overheads(rounds: int) -> Iterator[Comparison]:
    shared, tree = (on_node("node1", "mktemp", "--directory", f"--tmpdir={place}", "training.XXXXXX").strip() for place in ("/shared", "/scratch"))
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            put_data(folder, 2000, 100)
            (folder / "both.py").write_text(BOTH)
            (folder / "job.yaml").write_text(JOB)
            for program in EPOCHS:
                shutil.copy(ROOT / "train" / f"{program}.py", folder)
            said("docker", "cp", f"{folder}/.", f"{os.environ.get('KIT_CLUSTER_NAME', 'kit')}-ctl:{shared}")
            on_node("ctl", "chown", "-R", "ada", shared, root=True)
            measure.progress("unpacking the image")
            on_node("node1", "bash", "-euc", UNPACK, "bash", tree, root=True)
            sides: dict[str, Callable[[], str]] = {
                OUTSIDE: partial(on_node, "node1", "unshare", "--mount", "bash", "-euc", ENTER, "bash", tree, shared, root=True)
            }
            sides |= {runtime: partial(on_node, "ctl", "bash", "-euc", SUBMIT, "bash", shared, IMAGES[runtime], runtime) for runtime in real_runtimes()}
            sides["docker"] = partial(by_docker, folder)
            yield from inside_and_outside(sides, rounds)
    finally:
        on_node("node1", "rm", "-rf", shared, tree, root=True)


def inside_and_outside(sides: dict[str, Callable[[], str]], rounds: int) -> Iterator[Comparison]:
    # Nothing to warm up: no start is measured.
    values = measure.take_turns({side: lambda train=train: epochs_s(train()) for side, train in sides.items()}, rounds, warm_up=0)
    for program in EPOCHS:
        of_sides = {side: [value[program] for value in found] for side, found in values.items()}
        for runtime in sides:
            if runtime != OUTSIDE:
                yield Comparison(
                    f"an epoch of {program} inside {runtime}",
                    "one process with one thread on CPUs, random images; outside: the same Python and torch, unpacked from the image, by chroot.",
                    {KIT: of_sides[runtime], OUTSIDE: of_sides[OUTSIDE]},
                    goals=[Goal(OUTSIDE, OVERHEAD)],
                    tolerance=0.05,
                )


# --- ranks ---------------------------------------------------------------------------------


def images_per_s(output: str) -> float:
    """Median of all epochs but the first."""
    found = [float(value) for value in re.findall(r"epoch \d+/\d+ .* images/s ([\d.]+)", output)]
    if len(found) < 2:
        raise CannotMeasure(f"no two epochs were printed:\n{output[-2000:]}")
    return statistics.median(found[1:])


def of_ranks(folder: Path, ranks: int) -> float:
    run = tempfile.mktemp(prefix="run.", dir=folder)  # noqa: S306 - kit makes it, and refuses an existing one
    options = "--data . --width 8 --batch-size 64 --limit-steps 12 --epochs 4".split()
    return images_per_s(said(sys.executable, "-m", "kit", "run", "cifar10.py", "-j", f"1x{ranks}", "--output", run, "--", *options, folder=folder))


def scaling(rounds: int) -> Iterator[Comparison | Lines]:
    one, apart = "1 rank", "2 runs of 1 rank at a time"
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        folder = Path(name)
        put_data(folder, 2000, 100)
        shutil.copy(ROOT / "train" / "cifar10.py", folder)
        # Seconds of a core that 1,000 images take: the same for any number of ranks, were nothing lost.
        sides: dict[str, Callable[[], float]] = {
            KIT: lambda: 2 * 1000 / of_ranks(folder, 2),
            one: lambda: 1000 / of_ranks(folder, 1),
            apart: lambda: 2 * 1000 / sum(pool.map(partial(of_ranks, folder), (1, 1))),
        }
        values = measure.take_turns(sides, rounds, warm_up=0)
    comparison = Comparison(
        "1,000 images of cifar10 on 2 ranks",
        f"core-seconds on {os.cpu_count()} CPU cores, no GPU, the same global batch of 64; 1 over a ratio is the efficiency.",
        values,
        unit="core-s",
        tolerance=0.15,
    )
    rates = {side: 1000 * (1 if side == one else 2) / comparison.spread(side).median for side in values}
    start = (1.0, rates[one])
    points = {"2 ranks": [start, (2.0, rates[KIT])], apart: [start, (2.0, rates[apart])], "nothing lost": [start, (2.0, 2 * rates[one])]}
    yield comparison
    yield Lines(f"cifar10, width 8, a global batch of 64, on {os.cpu_count()} CPU cores", "processes", "images/s", points, log=False)


# --- the original --------------------------------------------------------------------------


def beside_the_original(rounds: int) -> Iterator[Comparison]:
    import torch

    gpu = torch.cuda.is_available()
    options = "--data . --batch-size 256".split() + ("--epochs 4" if gpu else "--width 8 --limit-steps 5 --epochs 2").split()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        put_data(folder, EPOCH_IMAGES if gpu else 5 * 256, 10_000 if gpu else 100)

        def epoch_s(program: str) -> float:
            return EPOCH_IMAGES / images_per_s(said(sys.executable, ROOT / "train" / program, *options, folder=folder, gpu=gpu))

        values = measure.take_turns({KIT: lambda: epoch_s("cifar10.py"), "the original": lambda: epoch_s("cifar10_original.py")}, rounds, warm_up=0)
    device = torch.cuda.get_device_name() if gpu else "a CPU, width 8, one thread, at the pace of 5 steps"
    differs = "bf16, channels_last, torch.compile, " if gpu else ""
    yield Comparison(
        "an epoch of cifar10",
        f"50,000 random images in batches of 256 through the same network on {device}. cifar10.py has {differs}images on the device and augmented "
        "there as a batch, Nesterov, label smoothing and one cycle; the original a DataLoader with two processes, float32, and a loss read in every step.",
        values | ({PUBLISHED: [PUBLISHED_S] * rounds} if gpu else {}),
        goals=[Goal(PUBLISHED, 1)] if gpu else [],
        tolerance=0.15,
    )


def run(rounds: int) -> Iterator[Comparison | Lines]:
    try:
        version("torch")
    except PackageNotFoundError:
        raise CannotMeasure("this Python has no torch: pip install -e '.[train]'") from None
    on_node("ctl", "bash", "-c", "type kit >/dev/null || { echo 'no kit there: make cluster' >&2; exit 1; }")
    yield from overheads(rounds)
    yield from scaling(rounds)
    yield from beside_the_original(rounds)


def versions() -> dict[str, str]:
    in_image = said(
        "docker", "run", "--rm", "--network", "none", DOCKER_IMAGE.removeprefix("docker://"), "python3", "-c", "import torch; print(torch.__version__)"
    )
    return {"torch": version("torch"), "torch in the image": in_image.strip(), "Apptainer": on_node("node1", "apptainer", "--version").split()[-1]}


if __name__ == "__main__":
    measure.main(run, rounds=5, versions=versions)
