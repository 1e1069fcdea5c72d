"""The checks of the job's image: whether it is there, can be started, has what the job starts, and suits the driver."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kit.doctor.checks import FAIL, NOTE, Check, Found, Problem
from kit.doctor.facts import Cluster, Node

# Branches of the driver on which a newer CUDA's libraries (cuda-compat) work, and the brands of GPUs for which NVIDIA says so:
# https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html
BRIDGED, DATA_CENTRE = ("535", "550", "570", "575"), ("nvidia", "tesla")
PYTHON = "choose an image that has it: --image, kit build; without one, activate the environment that has it before submitting"


def _image(node: Node, cluster: Cluster) -> Iterator[Found]:
    found = node.one("image")[0]
    compression, said = node.one("unpack", 2)
    if found in ("missing", "other"):
        yield Found(found, str(cluster.asked.image))
    elif node.one("start")[0] not in ("", "ok"):
        yield Found("does-not-start", node.one("start")[0], {"runtime": cluster.runtime()})
    elif compression == "missing":
        yield Found("no-unsquashfs", "unsquashfs is not on PATH there")
    elif compression != "ok" and node.has("unpack"):
        yield Found("compression" if compression else "unreadable", compression or said)


def _program(node: Node, cluster: Cluster) -> Iterator[Found]:
    """What the launcher looks for, and what the command names."""
    asked = cluster.asked
    where = {"there": "in the image" if asked.image else "there"}
    python, module = node.one("python", 2)
    if node.has("python") and asked.needs_python and not python:
        yield Found("no-python", "looked for python3 and python", where)
    elif node.has("python") and asked.module and not module:
        yield Found("no-module", f"looked into {python}" if python else "no Python at all", {**where, "module": asked.module})
    if asked.program and node.has("program") and not node.one("program")[0]:
        yield Found("no-program", asked.program, where)


def _seen_program(node: Node, cluster: Cluster) -> str:
    python, module = node.one("python", 2)
    return ", ".join(filter(None, (node.one("program")[0], f"{python} with {module}" if module else python if cluster.asked.needs_python else "")))


def _bridges(driver: str, brand: str, listed: str, compat: str) -> bool:
    """Whether the image has a libcuda of its own for such an older driver: it names it, or has the library, and NVIDIA says so for the GPU."""
    branch = driver.partition(".")[0]
    return branch in listed.split() or bool(compat and branch in BRIDGED and brand in DATA_CENTRE)


def _driver(node: Node, _: Cluster) -> Iterator[Found]:
    (driver, newest, brand), (wanted, listed), compat = node.one("driver", 3), node.one("image-cuda", 2), node.one("image-compat")[0]
    if newest and wanted:
        have, need = ([int(part) for part in re.findall(r"\d+", text)[:2]] for text in (newest, wanted))
        evidence = f"driver {driver} can do CUDA {newest}, the image has CUDA {'.'.join(map(str, need))}"
        if need[0] > have[0]:
            yield Found("bridged" if _bridges(driver, brand, listed, compat) else "too-old", evidence)
        elif need > have:
            yield Found("older", evidence)


IMAGE = (
    Check(
        "image",
        "the job's image: there, the same, starting under apptainer, and unpacked by unsquashfs for enroot",
        {
            "missing": Problem(FAIL, "the image is not there, or cannot be read", "put it on a file system that every node sees"),
            "other": Problem(FAIL, "the image is another one than here", "copy it again; or it was just replaced, and the node has not noticed"),
            "does-not-start": Problem(
                FAIL,
                "{runtime} cannot start the image",
                "its words are above; a damaged image is built or copied again; one whose compression is not read wants a squashfuse with zstd there",
            ),
            "no-unsquashfs": Problem(FAIL, "nothing there unpacks the image", "install squashfs-tools there"),
            "compression": Problem(
                FAIL, "unsquashfs does not read the image's compression", "install squashfs-tools with zstd there: unsquashfs names what it reads"
            ),
            "unreadable": Problem(FAIL, "unsquashfs cannot read the image", "build or copy it again"),
        },
        _image,
        lambda node, _: "starts" if node.one("start")[0] == "ok" else "can be unpacked" if node.one("unpack")[0] == "ok" else "",
        lambda cluster: bool(cluster.asked.image),
    ),
    Check(
        "program",
        "what the job starts, in its image, or on the node where it has none: Python, the package that its launcher needs, and what `command` names",
        {
            "no-python": Problem(FAIL, "there is no Python {there}", PYTHON),
            "no-module": Problem(FAIL, "no Python {there} has {module}", PYTHON),
            "no-program": Problem(FAIL, "the program that `command` names is not {there}", "correct `command`, or choose an image that has it: --image"),
        },
        _program,
        _seen_program,
        lambda cluster: bool(cluster.asked.job),
    ),
)

DRIVER = Check(
    "driver",
    "whether the driver can do the CUDA of the job's image",
    {
        "too-old": Problem(
            FAIL,
            "its driver is too old for the image",
            "an image with an older CUDA (kit submit JOB --image IMAGE), a newer driver there, or nodes that have one",
        ),
        "bridged": Problem(
            NOTE,
            "its driver is older than the image's CUDA, and the image has the libraries for that (CUDA's forward compatibility)",
            "see that torch finds the GPUs: kit shell JOB, python3 -c 'import torch; torch.zeros(1).cuda()'; a newer driver there",
        ),
        "older": Problem(
            NOTE,
            "its driver is older than the image's CUDA, of the same major version",
            "it works but for code that is compiled at run time (PTX); a newer driver there",
        ),
    },
    _driver,
    lambda node, _: node.one("driver")[0],
    lambda cluster: bool(cluster.asked.image) and any(node.has("driver") for node in cluster.answered),
)
