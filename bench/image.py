#!/usr/bin/env python3
"""From an image to a started container: how long the file takes to make, how large it is, what a
cold start reads of it.

    make cluster && python bench/image.py [--rounds N] [--check]

Making the file. `kit build`, `enroot import` and `apptainer build` make their file from the same
image of Docker, in turn, in one container with the tools of the test cluster's nodes. kit and
Enroot take the image from Docker, Apptainer from an archive of it, which saves it a copy and is not
in its time. Each has its usual settings and all cores. Extra disk is the most that its folder held
at a time beside the file, temporary files and caches included. Twice: of the Debian that the
cluster's Python image is made of, in every round; of the training image with torch for CPUs once.

Asked again. `kit build` and `docker build` of a Dockerfile of which nothing has changed: both look,
and make nothing. `enroot import` and `apptainer build` refuse then, since there is a file of that
name, whatever is in it; with --force Apptainer begins anew. That compares with nothing.

A cold start. The files of the training image, dropped from memory; then, until a program has
imported torch and ended an all-reduce of one rank, how much was read. Under Apptainer: kit's file
and Apptainer's own, both through squashfuse. Under Enroot: kit's file and Enroot's own, both
unpacked and started. bench/cold_start.py counts. The lines: the same files in squashfs with other
sizes of a block, started in the same way. How much is read depends on how far the kernel reads
ahead where the file lies, which is named beside the versions.

Enroot is measured where the cluster's nodes have it: its package goes into tests/cluster/debs, or
the folder that KIT_CLUSTER_DEBS names. KIT_BENCH_TOOLS names another image with the tools than
kit-test/controller.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import measure
from measure import HERE, KIT, ROOT, CannotMeasure, Comparison, Goal, Lines

TOOLS = os.environ.get("KIT_BENCH_TOOLS", "kit-test/controller")
SMALL, LARGE = "debian:bookworm", "kit-test/train:latest"
ENROOT, APPTAINER, DOCKER = "enroot import", "apptainer build", "docker build"
FILES = "the image's files"
MB = 1e6
LEAST_MB = 1.0  # below which extra disk is not told apart from none
BLOCKS_KIB = (128, 256, 1024)
# What Apptainer, squashfuse and Enroot need of a container; the cluster's nodes have the same.
CAPABILITIES = [
    word
    for name in (
        "SYS_ADMIN",
        "SYS_PTRACE",
        "SYS_NICE",
        "NET_ADMIN",
        "IPC_LOCK",
        "DAC_READ_SEARCH",
        "SYSLOG",
    )
    for word in ("--cap-add", name)
]
UNCONFINED = [
    word
    for name in ("seccomp", "apparmor", "systempaths")
    for word in ("--security-opt", f"{name}=unconfined")
]
VARIABLES = {
    "PYTHONPATH": "/kit:/site",
    "PYTHONPYCACHEPREFIX": "/work/cache",  # written as in any installation
    "DOCKER_BUILDKIT": "0",  # the client there has no other builder
    "ENROOT_LOGIN_SHELL": "no",
}
COMMANDS = {
    KIT: ["python3", "-m", "kit", "build", "dockerd://IMAGE", "--name", "bench"],
    ENROOT: ["enroot", "import", "--output", "image.sqsh", "dockerd://IMAGE"],
    APPTAINER: ["apptainer", "build", "image.sif", "docker-archive:ARCHIVE"],
}
# $1 is the folder; prints microseconds.
TIMED = (
    'cd -- "$1"; from="${EPOCHREALTIME/./}"; "${@:2}" >/dev/null; echo "$((${EPOCHREALTIME/./} -'
    ' from))"'
)
DOCKERFILE = 'FROM IMAGE\nCOPY notes.txt /notes.txt\nCMD ["/bin/sh"]\n'
PROGRAM = """\
import os
import torch
import torch.distributed as dist

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="61999", RANK="0", WORLD_SIZE="1")
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print("ready", flush=True)
input_ended = os.read(0, 1)
dist.destroy_process_group()
"""
UNPACK = (
    'enroot create --force --name bench "$1" >&2; exec enroot start --mount'
    " /work/program:/work/program bench python3 /work/program/program.py"
)


class Built(NamedTuple):
    seconds: float
    bytes: int
    extra_bytes: int


class Peak(threading.Thread):
    """The most bytes that a folder held on disk. Looking takes at most a twentieth of the time, for
    what it watches needs the cores."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.bytes, self.done = folder, 0, threading.Event()

    def look(self) -> float:
        """How long it took, in seconds."""
        start = time.monotonic()
        du = subprocess.run(
            ["du", "--summarize", "--block-size=1", str(self.folder)],
            capture_output=True,
            text=True,
        )
        self.bytes = max(self.bytes, int(du.stdout.split()[0]) if du.stdout else 0)
        return time.monotonic() - start

    def run(self) -> None:
        while not self.done.wait(20 * self.look()):
            pass

    def __enter__(self) -> Peak:
        self.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.done.set()
        self.join()
        self.look()


@dataclass(frozen=True)
class Place:
    """A folder of this machine that is /work in a container with the tools."""

    work: Path
    container: str
    real_enroot: bool

    def run(self, *command: str, user: str = "root") -> str:
        variables = [word for pair in VARIABLES.items() for word in ("--env", "=".join(pair))]
        exact = ["docker", "exec", "--user", user, *variables, self.container, *command]
        done = subprocess.run(exact, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise CannotMeasure(
                f"{' '.join(command)} ended with {done.returncode} in"
                f" {TOOLS}:\n{(done.stdout + done.stderr).strip()[-2000:]}"
            )
        return done.stdout

    def seconds(self, folder: str, command: Sequence[str]) -> float:
        """Of one command in a folder below /work, with its temporary files and caches there."""
        own = [
            f"{name}=/work/{folder}/temporary"
            for name in ("TMPDIR", "ENROOT_TEMP_PATH", "APPTAINER_TMPDIR")
        ]
        self.run("mkdir", "-p", f"/work/{folder}/temporary", f"/work/{folder}/home")
        took = self.run(
            "env",
            *own,
            f"HOME=/work/{folder}/home",
            "bash",
            "-euc",
            TIMED,
            "bash",
            f"/work/{folder}",
            *command,
        )
        return int(took) / 1e6


@contextmanager
def place() -> Iterator[Place]:
    if not shutil.which("docker"):
        raise CannotMeasure("docker is not installed here: install it, and run make cluster")
    for image in (TOOLS, SMALL, LARGE):
        if not has(image):
            raise CannotMeasure(f"Docker has no image {image}: make cluster")
    with tempfile.TemporaryDirectory(prefix="kit-bench.", dir=Path.home()) as name:
        work = Path(name)
        work.chmod(0o755)
        (work / "program").mkdir()
        (work / "program/program.py").write_text(PROGRAM)
        container = docker(
            "run",
            "--detach",
            "--rm",
            "--network",
            "none",
            *CAPABILITIES,
            *UNCONFINED,
            "--device",
            "/dev/fuse",
            *mounts(work),
            *SLEEP,
        )
        try:
            yield Place(work, container, real_enroot(container))
        finally:
            # What root wrote there, an ordinary user here could not remove.
            docker("exec", container, "bash", "-c", "rm -rf /work/*")
            docker("rm", "--force", container)


SLEEP = ["--entrypoint", "bash", TOOLS, "-c", "chmod 666 /dev/fuse; exec sleep infinity"]


def mounts(work: Path) -> list[str]:
    site = next((Path(sys.prefix) / "lib").glob("python3*/site-packages"))
    found = [
        f"{work}:/work",
        f"{HERE}:/bench:ro",
        f"{ROOT}/launch:/kit:ro",
        f"{site}:/site:ro",
        f"{shutil.which('docker')}:/usr/bin/docker:ro",
        "/var/run/docker.sock:/var/run/docker.sock",
    ]
    return [word for mount in found for word in ("--volume", mount)]


def docker(*command: str, text: str = "") -> str:
    done = subprocess.run(
        ["docker", *command],
        capture_output=True,
        text=True,
        input=text,
        env={**os.environ, "DOCKER_BUILDKIT": "0"},
    )
    if done.returncode:
        raise CannotMeasure(f"docker {' '.join(command)}: {done.stderr.strip()[-2000:]}")
    return done.stdout.strip()


def has(image: str) -> bool:
    return (
        subprocess.run(["docker", "image", "inspect", image], capture_output=True).returncode == 0
    )


def real_enroot(container: str) -> bool:
    """The cluster has a stand-in where it has no package of Enroot."""
    return "stub" not in docker("exec", container, "bash", "-c", 'head -n 2 "$(command -v enroot)"')


@contextmanager
def with_command(image: str) -> Iterator[str]:
    """The same image under another name, with a CMD, without which Enroot takes none."""
    tag = "kit-bench/" + image.partition(":")[0].rpartition("/")[2]
    docker("build", "--quiet", "--tag", tag, "-", text=f'FROM {image}\nCMD ["/bin/sh"]\n')
    try:
        yield tag
    finally:
        docker("image", "rm", tag)


# ---------------------------------------------------------------- making the file


def make(at: Place, side: str, image: str) -> Built:
    """The file stays where it was made until the next one is."""
    folder = side.partition(" ")[0]
    at.run("rm", "-rf", f"/work/{folder}")
    (at.work / folder).mkdir()
    words = {"IMAGE": image, "ARCHIVE": "/work/image.tar"}
    command = [
        word.replace("IMAGE", words["IMAGE"]).replace("ARCHIVE", words["ARCHIVE"])
        for word in COMMANDS[side]
    ]
    with Peak(at.work / folder) as peak:
        seconds = at.seconds(folder, command)
    size = made(at, side).stat().st_size
    return Built(seconds, size, max(0, peak.bytes - size))


def made(at: Place, side: str) -> Path:
    folder = at.work / side.partition(" ")[0]
    return {
        KIT: next((folder / "images").glob("*.sqsh"), folder),
        ENROOT: folder / "image.sqsh",
        APPTAINER: folder / "image.sif",
    }[side]


def making(at: Place, image: str, rounds: int) -> Iterator[Comparison]:
    whole = int(docker("image", "inspect", "--format", "{{.Size}}", image)) / MB
    label = image.partition(":")[0].rpartition("/")[2]
    with with_command(image) as tag:
        docker("save", "--output", str(at.work / "image.tar"), tag)
        sides = [side for side in COMMANDS if side != ENROOT or at.real_enroot]
        results = measure.take_turns(
            {side: partial(make, at, side, tag) for side in sides}, rounds, warm_up=0
        )
        (at.work / "image.tar").unlink()
    yield Comparison(
        f"make one file ({label})",
        "from the start of the command to its end; the file is not there before."
        + ("" if at.real_enroot else " Enroot is not installed, so left out."),
        {side: [one.seconds for one in results[side]] for side in sides},
        goals=goals({ENROOT: 0.35, APPTAINER: 0.15}, sides),
        headline=image == LARGE,
    )
    yield Comparison(
        f"size of the file ({label})",
        "the file that was made, with each one's usual compression.",
        {side: [one.bytes / MB for one in results[side]] for side in sides},
        unit="MB",
        goals=goals({APPTAINER: 1.15}, sides),
        tolerance=0.02,
        headline=image == LARGE,
    )
    yield Comparison(
        f"extra disk at its peak ({label})",
        f"beside the file itself, {LEAST_MB:g} MB at least; {FILES} as Docker counts them.",
        {
            **{
                side: [max(LEAST_MB, one.extra_bytes / MB) for one in results[side]]
                for side in sides
            },
            FILES: [whole] * rounds,
        },
        unit="MB",
        goals=[Goal(FILES, 0.05)],
        headline=image == LARGE,
    )


def goals(wanted: dict[str, float], sides: Sequence[str]) -> list[Goal]:
    return [Goal(side, at_most) for side, at_most in wanted.items() if side in sides]


def asked_again(at: Place, rounds: int) -> Comparison:
    project = at.work / "kit-bench-project"
    project.mkdir()
    (project / "Dockerfile").write_text(DOCKERFILE.replace("IMAGE", SMALL))
    (project / "notes.txt").write_text("nothing that changes\n")
    commands = {
        KIT: ["python3", "-m", "kit", "build", "--engine", "docker"],
        DOCKER: ["docker", "build", "--tag", "kit-bench/project", "."],
    }
    try:
        for command in commands.values():
            at.seconds(project.name, command)
        values = measure.take_turns(
            {
                side: partial(at.seconds, project.name, command)
                for side, command in commands.items()
            },
            max(rounds, 7),
        )
    finally:
        for tag in (
            "kit-bench/project",
            *docker(
                "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", f"kit/{project.name}"
            ).split(),
        ):
            docker("image", "rm", tag)
    return Comparison(
        "build again, nothing changed",
        "the whole command; kit asks no engine and reads no file that it knows.",
        values,
    )


# ---------------------------------------------------------------- a cold start


def cold(at: Place, file: Path, *command: str) -> dict[str, float]:
    inside = f"/work/{file.relative_to(at.work)}"
    at.run("chmod", "-R", "a+rX", os.path.dirname(inside))
    found: dict[str, float] = json.loads(
        at.run(
            "python3",
            "/bench/cold_start.py",
            inside,
            *(word.replace("FILE", inside) for word in command),
        )
    )
    return found


def by_apptainer(at: Place, file: Path) -> dict[str, float]:
    options = ["--quiet", "exec", "--no-home", "--pwd", "/", "--bind", "/work/program"]
    return cold(
        at,
        file,
        "runuser",
        "-u",
        "ada",
        "--",
        "apptainer",
        *options,
        "FILE",
        "python3",
        "/work/program/program.py",
    )


def by_enroot(at: Place, file: Path) -> dict[str, float]:
    """Into a folder on the disk, which is removed."""
    data = "/work/unpacked"
    at.run("install", "-d", "-o", "ada", data, f"{data}/run")
    paths = [f"ENROOT_{name}_PATH={data}" for name in ("DATA", "CACHE", "TEMP")] + [
        f"ENROOT_RUNTIME_PATH={data}/run"
    ]
    try:
        return cold(
            at,
            file,
            "runuser",
            "-u",
            "ada",
            "--",
            "env",
            *paths,
            "bash",
            "-euc",
            UNPACK,
            "bash",
            "FILE",
        )
    finally:
        at.run("rm", "-rf", data)


def starts(
    at: Place,
    start: Callable[[Place, Path], dict[str, float]],
    files: dict[str, Path],
    rounds: int,
    warm_up: int,
) -> dict[str, list[dict[str, float]]]:
    return measure.take_turns(
        {name: partial(start, at, file) for name, file in files.items()}, rounds, warm_up
    )


def of(
    found: dict[str, list[dict[str, float]]], name: str, scale: float = 1
) -> dict[str, list[float]]:
    return {side: [one[name] / scale for one in ones] for side, ones in found.items()}


def cold_starts(at: Place, rounds: int) -> Iterator[Comparison]:
    found = starts(
        at, by_apptainer, {KIT: made(at, KIT), "its own .sif": made(at, APPTAINER)}, rounds, 1
    )
    does = (
        "under Apptainer, from its start to the end of the first all-reduce; the file is not in"
        " memory before. "
    )
    yield Comparison("cold start under Apptainer", does, of(found, "seconds"))
    yield Comparison(
        "read from the disk under Apptainer",
        does + "What is in memory of the file then, readahead included.",
        of(found, "bytes", MB),
        unit="MB",
    )
    yield Comparison(
        "asked for under Apptainer",
        does + "What squashfuse read, readahead not included.",
        of(found, "asked", MB),
        unit="MB",
    )
    yield Comparison(
        "reads under Apptainer",
        does + "How often squashfuse read: the file, and a request of the kernel.",
        of(found, "calls"),
        unit="reads",
    )
    yield Comparison(
        "CPU of reading under Apptainer",
        does + "That of squashfuse, which unpacks.",
        of(found, "cpu"),
        unit="s",
    )
    if at.real_enroot:
        found = starts(at, by_enroot, {KIT: made(at, KIT), "its own file": made(at, ENROOT)}, 1, 0)
        does = (
            "under Enroot, which unpacks it first, to the end of the first all-reduce; the file is"
            " not in memory before. "
        )
        yield Comparison("cold start under Enroot", does, of(found, "seconds"), tolerance=0.5)
        yield Comparison("read from the disk under Enroot", does, of(found, "bytes", MB), unit="MB")


def block_sizes(at: Place, rounds: int) -> Iterator[Lines]:
    folder = at.work / "blocks"
    folder.mkdir()
    at.run(
        "unsquashfs",
        "-quiet",
        "-no-progress",
        "-dest",
        "/work/blocks/tree",
        f"/work/{made(at, KIT).relative_to(at.work)}",
    )
    squash = [
        "mksquashfs",
        "tree",
        "FILE",
        "-noappend",
        "-quiet",
        "-no-progress",
        "-comp",
        "zstd",
        "-Xcompression-level",
        "1",
        "-b",
    ]
    files, packing, sizes = {}, [], []
    for kib in BLOCKS_KIB:
        file = folder / f"{kib}.sqsh"
        packing.append(
            (
                float(kib),
                at.seconds(
                    folder.name, [*(word.replace("FILE", file.name) for word in squash), f"{kib}K"]
                ),
            )
        )
        sizes.append((float(kib), file.stat().st_size / MB))
        files[str(kib)] = file
    at.run("rm", "-rf", "/work/blocks/tree")
    found = starts(at, by_apptainer, files, rounds, 0)

    def line(values: dict[str, list[float]]) -> list[tuple[float, float]]:
        return [(float(kib), measure.spread(ones).median) for kib, ones in values.items()]

    x, kits = (
        "KiB of a block; kit's has 128",
        "a cold start under Apptainer, by the size of a block",
    )
    yield Lines(
        f"MB of {kits}",
        x,
        "MB",
        {
            "read from the disk": line(of(found, "bytes", MB)),
            "asked for": line(of(found, "asked", MB)),
            "the whole file": sizes,
        },
    )
    yield Lines(
        f"seconds of {kits}",
        x,
        "s",
        {
            "to the first all-reduce": line(of(found, "seconds")),
            "squashfuse's CPU": line(of(found, "cpu")),
            "packing the image": packing,
        },
    )


def run(rounds: int) -> Iterator[Comparison | Lines]:
    with place() as at:
        yield asked_again(at, rounds)  # first: it warms up what kit needs to start
        yield from making(at, SMALL, rounds)
        yield from making(at, LARGE, 1)
        yield from cold_starts(at, rounds)
        yield from block_sizes(at, rounds)


def readahead(folder: Path) -> str:
    """How far the kernel reads ahead in a file there; a partition's is that of its disk."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    disk = Path(f"/sys/dev/block/{number}").resolve()
    for place in (Path(f"/sys/class/bdi/{number}"), disk / "queue", disk.parent / "queue"):
        with suppress(OSError):
            return f"{int((place / 'read_ahead_kb').read_text())} KiB"
    return "unknown"


def versions() -> dict[str, str]:
    script = (
        "apptainer --version; enroot version 2>&1; mksquashfs -version | head -n 1; squashfuse"
        " --help 2>&1 | head -n 1"
    )
    said = docker("run", "--rm", "--entrypoint", "bash", TOOLS, "-c", script).splitlines()
    last = [next(iter(word for word in line.split() if word[:1].isdigit()), line) for line in said]
    return {
        **dict(zip(("Apptainer", "Enroot", "squashfs-tools", "squashfuse"), last)),
        "Docker": docker("version", "--format", "{{.Server.Version}}"),
        "readahead": readahead(Path.home()),
    }


if __name__ == "__main__":
    measure.main(run, rounds=3, versions=versions)
