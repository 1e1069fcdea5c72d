#!/usr/bin/env python3
"""How fast training is: inside a container beside outside, on two ranks beside one, and cifar10.py
beside what came before.

    make cluster && python bench/training.py [--rounds 5] [--check]

Inside and outside. train/digits.py and train/cifar10.py (width 8, 64 images a step), one after the
other in one process with one thread, under torchrun. kit: by `kit submit` on a node of the Slurm
cluster in Docker, once for each runtime that starts containers there, and by `kit run --runtime
docker`. Outside: on that node, too, the same files of Python and torch, unpacked from the same
image onto its disk and entered with chroot, which is no container: no overlay, no FUSE, no limits.
(The node is itself one of Docker's, without seccomp.) All of them are started, and then only one
trains at a time, for an epoch: the pace of a shared machine changes by half within seconds, and so
meets all alike. A value is the median of ten epochs; no start is in it, and no part of kit that
runs beside the training. Outside is there twice: what the two differ by is noise. A stub of Enroot
or Pyxis is not measured: what it costs says nothing.

Ranks. train/cifar10.py by `kit run`, one batch of 64 on 1 and on 2 ranks of one thread each; and
beside them two runs of 1 rank at a time that know nothing of each other: what they lose is the
machine's doing, not the ranks'. On CPUs only.

The original. train/cifar10.py beside train/cifar10_original.py: the same network, data and batches
of 256, each by `python` alone. On a GPU the whole network; on a CPU at width 8, with one thread
each, and the original's two processes that prepare images.

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
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import cluster
import measure
from measure import KIT, ROOT, CannotMeasure, Comparison, Goal, Lines

DOCKER_IMAGE = "docker://kit-test/train:latest"
OUTSIDE, AGAIN = "outside", "outside, once more"
OVERHEAD = 1.02  # of the same training outside
EPOCH_IMAGES = 50_000  # CIFAR-10's
PUBLISHED = "two V100 GPUs, as published"
# An epoch, in batches of 256: so says a public tutorial of multi-node PyTorch about a program like
# the original.
PUBLISHED_S = 5.0

# Both programs as they are, but for what happens at the end of each epoch, which is a line of their
# output. $1 is this side's name, $2 that of the next one; a pipe in /ring has each side's turn.
# Nobody begins before all are there.
BOTH = """\
import builtins, os, pathlib, runpy, select, sys, time

me, after = sys.argv[1:]
mine, theirs = (os.open(f"/ring/{side}", os.O_RDWR) for side in (me, after))
say, begun = builtins.print, None


def end_of_epoch(*words, **options):
    global begun
    if not str(words[0]).startswith("epoch "):
        return say(*words, **options)
    if begun is None:
        pathlib.Path(f"/ring/{me}.ready").touch()
    else:
        say(f"took {time.perf_counter() - begun:.6f}", *words, **options)
        os.write(theirs, b".")
    if not select.select([mine], [], [], 200 if begun else 500)[0]:
        sys.exit(f"{me}: no turn for so long: another side has ended")
    os.read(mine, 1)
    time.sleep(0.05)  # what the side before has printed is on its way through pipes and programs
    begun = time.perf_counter()


builtins.print = end_of_epoch
for sys.argv in (
    ["digits.py", "--epochs", "DIGITS"],
    ["cifar10.py", "--data", ".", "--width", "8", "--batch-size", "64", "--limit-steps", "1",
     "--epochs", "CIFAR10", "--no-compile"],
):
    runpy.run_path(sys.argv[0], run_name="__main__")
os.write(theirs, b".")
"""
LAPS = 10  # epochs of a value
CIFAR10 = ("cifar10", "cifar10_data", "ranks", "resnet")  # the program, and what it imports
JOB = (
    "name: bench-training\ncommand: both.py\nnodes: 1\nprocesses_per_node: 1\ntime:"
    ' "00:20:00"\nenv: {OMP_NUM_THREADS: "1"}\n'
)
# $1: a folder with code/ and ring/. As it is called there: sides $2 and $3; the image and the
# runtime.
SUBMIT = r"""
cd "$1/code"
exec kit submit job.yaml --image "$4" --runtime "$2" --mount "$1/ring:/ring" \
  --slurm nodelist=node1 --output "$1/$2" --follow -- "$2" "$3"
"""

# As root on the node. $1: a folder for the image's tree; $2: a folder with code/ and ring/, below
# /shared; $3: a port; $4 and $5: sides.
UNPACK = (
    'unsquashfs -quiet -no-progress -dest "$1/root" /images/train.sqsh >/dev/null && mkdir -p'
    ' "$1/root/shared" "$1/root/ring"'
)
ENTER = """
for place in proc sys dev shared; do mount --rbind "/${place}" "$1/root/${place}"; done
mount --bind "$2/ring" "$1/root/ring"
exec chroot --userspec=1000:1000 "$1/root" /usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/bin \\
  LANG=C.UTF-8 HOME=/tmp OMP_NUM_THREADS=1 \\
  sh -c '
    cd "$1/code"
    port="$2"
    shift 2
    exec python3 -m torch.distributed.run --nnodes 1 --nproc-per-node 1 \\
      --master-addr 127.0.0.1 --master-port "${port}" both.py "$@"
  ' sh "${@:2}"
"""


def said(*command: str | Path, folder: Path | None = None, gpu: bool = False) -> str:
    """What the command printed; it must succeed."""
    environment = (
        os.environ | {"OMP_NUM_THREADS": "1"} | ({} if gpu else {"CUDA_VISIBLE_DEVICES": ""})
    )
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise CannotMeasure(
            f"{' '.join(map(str, command))} ended with"
            f" {done.returncode}:\n{(done.stdout + done.stderr).strip()[-2000:]}"
        )
    return done.stdout


def put_data(folder: Path, images: int, test_images: int) -> None:
    """Puts so many random images into cifar-10-batches-py, as the programs read it."""
    import numpy as np

    target = folder / "cifar-10-batches-py"
    target.mkdir()
    random = np.random.default_rng(0)
    for name, number in [
        *((f"data_batch_{i}", images // 5) for i in range(1, 6)),
        ("test_batch", test_images),
    ]:
        batch = {
            "data": random.integers(0, 256, (number, 3072), dtype=np.uint8),
            "labels": random.integers(0, 10, number).tolist(),
        }
        (target / name).write_bytes(pickle.dumps(batch))


# --- inside and outside --------------------------------------------------------------------


def epochs_s(program: str, epochs: int, output: str) -> list[float]:
    """Seconds of an epoch of the program, medians of LAPS each, without the first, which has its
    start in it."""
    found = {
        int(epoch): float(took)
        for took, epoch in re.findall(rf"took ([\d.]+) epoch (\d+)/{epochs} ", output)
    }
    if sorted(found)[-(epochs - 1) :] != list(range(2, epochs + 1)):
        raise CannotMeasure(
            f"{program} printed {len(found)} of its {epochs} epochs:\n{output[-2000:]}"
        )
    return [
        statistics.median(found[epoch] for epoch in range(first, first + LAPS))
        for first in range(2, epochs, LAPS)
    ]


def overheads(rounds: int) -> Iterator[Comparison]:
    # Two numbers, by which the lines of the two are told apart.
    epochs = {"digits": 3 * LAPS * rounds + 1, "cifar10": LAPS * rounds + 1}
    tree = cluster.on("node1", "mktemp", "--directory", "--tmpdir=/scratch", "training.XXXXXX")
    shared = cluster.on("ctl", "mktemp", "--directory", "--tmpdir=/shared", "training.XXXXXX")
    here = cluster.shared() / Path(shared).name
    try:
        (here / "code").mkdir()
        put_data(here / "code", 2000, 100)
        (here / "code/both.py").write_text(
            BOTH.replace("DIGITS", str(epochs["digits"])).replace("CIFAR10", str(epochs["cifar10"]))
        )
        (here / "code/job.yaml").write_text(JOB)
        for name in ("digits", *CIFAR10):
            shutil.copy(ROOT / "train" / f"{name}.py", here / "code")
        cluster.on("ctl", "chown", "-R", "ada", shared, root=True)
        measure.progress("unpacking the image")
        cluster.bash("node1", UNPACK, tree, root=True)
        submit = partial(cluster.bash, "ctl", SUBMIT, shared, timeout_s=None)

        def enter(side: str, after: str) -> str:
            port = "61998" if side == AGAIN else "61999"
            return cluster.on(
                "node1",
                "unshare",
                "--mount",
                "bash",
                "-euc",
                ENTER,
                "bash",
                tree,
                shared,
                port,
                side,
                after,
                root=True,
                timeout_s=None,
            )

        sides: dict[str, Callable[[str], str]] = {OUTSIDE: partial(enter, OUTSIDE)}
        sides |= {
            runtime: lambda after, runtime=runtime: submit(runtime, after, cluster.IMAGES[runtime])
            for runtime in cluster.runtimes()
        }  # type: ignore[misc]
        sides["docker"] = partial(by_docker, here)
        sides[AGAIN] = partial(enter, AGAIN)
        outputs = in_a_ring(here / "ring", sides)
    finally:
        cluster.on("node1", "rm", "-rf", shared, tree, root=True)
    for program, number in epochs.items():
        values = {side: epochs_s(program, number, output) for side, output in outputs.items()}
        for runtime in list(sides)[1:-1]:
            yield beside_both(
                f"an epoch of {program} inside {runtime}",
                values[runtime],
                values[OUTSIDE],
                values[AGAIN],
                headline=program == "cifar10",
            )


def beside_both(
    claim: str, inside: list[float], outside: list[float], again: list[float], *, headline: bool
) -> Comparison:
    """Beside the mean of the two outside, with what these differ by from each other."""
    apart = statistics.median(abs(one / other - 1) for one, other in zip(outside, again))
    return Comparison(
        claim,
        "one process with one thread on CPUs, random images; outside: the same Python and torch,"
        " unpacked from the image, by chroot; the mean of two.",
        {KIT: inside, OUTSIDE: [statistics.mean(pair) for pair in zip(outside, again)]},
        goals=[Goal(OUTSIDE, OVERHEAD)],
        tolerance=0.05,
        why=(
            f"The two outside differ from each other by {apart:.1%}, a median over the rounds: less"
            " than that cannot be told here."
        ),
        headline=headline,
    )


def by_docker(folder: Path, after: str) -> str:
    options = [
        "--image",
        DOCKER_IMAGE,
        "--runtime",
        "docker",
        "--mount",
        f"{folder}/ring:/ring",
        "--output",
        str(folder / "docker"),
    ]
    return said(
        sys.executable,
        "-m",
        "kit",
        "run",
        "job.yaml",
        *options,
        "--",
        "docker",
        after,
        folder=folder / "code",
    )


def in_a_ring(ring: Path, sides: dict[str, Callable[[str], str]]) -> dict[str, str]:
    """What each side printed. All run at the same time, and take turns in this order; each is told
    who follows it."""
    names = list(sides)
    ring.mkdir()
    ring.chmod(0o777)
    for name in names:
        os.mkfifo(ring / name)
        (ring / name).chmod(0o666)
    with ThreadPoolExecutor(len(names)) as pool:
        running = {
            name: pool.submit(sides[name], names[(number + 1) % len(names)])
            for number, name in enumerate(names)
        }
        try:
            wait_until_ready(ring, running)
            measure.progress("training in turns")
            os.write(os.open(ring / names[0], os.O_RDWR), b".")
            return {name: side.result() for name, side in running.items()}
        except CannotMeasure:
            cluster.on(
                "ctl", "scancel", "--me", "--name", "bench-training"
            )  # for which nobody waits any more
            raise


def wait_until_ready(ring: Path, running: dict[str, Future[str]]) -> None:
    until = time.monotonic() + 400
    while not all((ring / f"{name}.ready").exists() for name in running):
        if time.monotonic() > until:
            raise CannotMeasure("not all sides were ready to train after 400 s")
        for name, side in running.items():
            if side.done():
                raise CannotMeasure(
                    f"{name} ended before the others were there:\n{side.result()[-2000:]}"
                )
        time.sleep(0.2)


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
    return images_per_s(
        said(
            sys.executable,
            "-m",
            "kit",
            "run",
            "cifar10.py",
            "-j",
            f"1x{ranks}",
            "--env",
            "OMP_NUM_THREADS=1",  # else one rank has a thread for each CPU
            "--output",
            run,
            "--",
            *options,
            folder=folder,
        )
    )


def scaling(rounds: int) -> Iterator[Comparison | Lines]:
    one, apart = "1 rank", "2 runs of 1 rank at a time"
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        folder = Path(name)
        put_data(folder, 2000, 100)
        for part in CIFAR10:
            shutil.copy(ROOT / "train" / f"{part}.py", folder)
        # Seconds of a core that 1,000 images take: the same for any number of ranks, were nothing
        # lost.
        sides: dict[str, Callable[[], float]] = {
            KIT: lambda: 2 * 1000 / of_ranks(folder, 2),
            one: lambda: 1000 / of_ranks(folder, 1),
            apart: lambda: 2 * 1000 / sum(pool.map(partial(of_ranks, folder), (1, 1))),
        }
        values = measure.take_turns(sides, rounds, warm_up=0)
    comparison = Comparison(
        "1,000 images of cifar10 on 2 ranks",
        f"core-seconds on {os.cpu_count()} CPU cores, no GPU, the same global batch of 64; 1 over a"
        " ratio is the efficiency.",
        values,
        unit="core-s",
        tolerance=0.15,
    )
    rates = {
        side: 1000 * (1 if side == one else 2) / comparison.spread(side).median for side in values
    }
    start = (1.0, rates[one])
    points = {
        "2 ranks": [start, (2.0, rates[KIT])],
        apart: [start, (2.0, rates[apart])],
        "nothing lost": [start, (2.0, 2 * rates[one])],
    }
    yield comparison
    yield Lines(
        f"cifar10, width 8, a global batch of 64, on {os.cpu_count()} CPU cores",
        "processes",
        "images/s",
        points,
        log=False,
    )


# --- the original --------------------------------------------------------------------------


def beside_the_original(rounds: int) -> Iterator[Comparison]:
    import torch

    gpu = torch.cuda.is_available()
    options = (
        "--data . --batch-size 256".split()
        + ("--epochs 4" if gpu else "--width 8 --limit-steps 5 --epochs 2").split()
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        put_data(folder, EPOCH_IMAGES if gpu else 5 * 256, 10_000 if gpu else 100)

        def epoch_s(program: str) -> float:
            return EPOCH_IMAGES / images_per_s(
                said(sys.executable, ROOT / "train" / program, *options, folder=folder, gpu=gpu)
            )

        values = measure.take_turns(
            {
                KIT: lambda: epoch_s("cifar10.py"),
                "the original": lambda: epoch_s("cifar10_original.py"),
            },
            rounds,
            warm_up=0,
        )
    device = (
        torch.cuda.get_device_name()
        if gpu
        else "a CPU, width 8, one thread, at the pace of 5 steps"
    )
    differs = "bf16, channels_last, torch.compile, " if gpu else ""
    yield Comparison(
        "an epoch of cifar10",
        f"50,000 random images in batches of 256 through the same network on {device}. cifar10.py"
        f" has {differs}images on the device and augmented there as a batch, Nesterov, label"
        " smoothing and one cycle; the original a DataLoader with two processes, float32, and a"
        " loss read in every step.",
        values | ({PUBLISHED: [PUBLISHED_S] * rounds} if gpu else {}),
        goals=[Goal(PUBLISHED, 1)] if gpu else [],
        headline=gpu,
        tolerance=0.15,
    )


def run(rounds: int) -> Iterator[Comparison | Lines]:
    try:
        version("torch")
    except PackageNotFoundError:
        raise CannotMeasure("this Python has no torch: pip install -e '.[train]'") from None
    cluster.install_kit()
    yield from overheads(rounds)
    yield from scaling(rounds)
    yield from beside_the_original(rounds)


def versions() -> dict[str, str]:
    in_image = said(
        "docker",
        "run",
        "--rm",
        "--network",
        "none",
        DOCKER_IMAGE.removeprefix("docker://"),
        "python3",
        "-c",
        "import torch; print(torch.__version__)",
    )
    return {
        "torch": version("torch"),
        "torch in the image": in_image.strip(),
        "Apptainer": cluster.on("node1", "apptainer", "--version").split()[-1],
    }


if __name__ == "__main__":
    measure.main(run, rounds=5, versions=versions)
