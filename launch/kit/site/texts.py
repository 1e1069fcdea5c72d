"""The two files of `kit init`, as text: every value with the reason for it, every other key as a comment to take away."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import PurePath

from kit.site.choices import Point, Shape
from kit.site.programs import Program

_PLAIN = re.compile(r"[A-Za-z0-9_./@%+=-]*[A-Za-z_/][A-Za-z0-9_./@%+=-]*\Z")
_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


@dataclass(frozen=True)
class Chosen:
    """All that the two files say."""

    profile: str
    title: str  # what the site is, in a few words
    shape: Shape
    program: Program
    points: dict[str, Point]
    can_be_preempted: str = ""  # how, or nothing
    limits_memlock: bool = True  # a login node's limits would come along to jobs

    @property
    def is_local(self) -> bool:
        return "partition" not in self.points


def profile(chosen: Chosen) -> str:
    points, kind = chosen.points, chosen.points["fabric"].value
    variables = {"": _NO_VARIABLES, "infiniband": _INFINIBAND, "efa": _EFA}[kind]
    parts = [
        f"# Profile of {chosen.title}, as kit init found it. Jobs name this file by `cluster: {chosen.profile}`; what they say themselves goes over it.",
        f"description: {scalar(chosen.title)}",
        "",
        "# What runs image files (.sqsh): enroot, pyxis or apptainer. A .sif always runs under apptainer.",
        *_key("runtime", points["runtime"], "enroot"),
        "",
        *(
            []
            if chosen.is_local
            else ["# How Slurm is asked for GPUs: gpus-per-node, gres, or none.", *_key("gpu_directive", points["gpu_directive"], "none"), ""]
        ),
        "# A node's own disk, writable: containers are unpacked below it [enroot.conf's place, or /tmp].",
        *_key("scratch", points["scratch"], "/local"),
        "",
        "# Variables for all training processes. The network between nodes:",
        points["fabric"].comment,
        *variables,
        *([] if chosen.is_local else ["", "# Any sbatch option for every job here, by its long name.", *_options(chosen)]),
    ]
    return "\n".join(parts) + "\n"


def _options(chosen: Chosen) -> list[str]:
    account, lines = chosen.points["account"], []
    if account.value:
        lines += [f"  {account.comment}", f"  account: {scalar(account.value)}"]
    if chosen.points["fabric"].value and chosen.limits_memlock:
        lines += ["  # Network cards need pinned memory, and the login node's limit on it would come along: https://slurm.schedmd.com/faq.html#memlock"]
        lines += ["  propagate: NONE"]
    unset = [] if account.value else [account.comment, "#   account: my-project"]
    return [*(["slurm:", *lines] if lines else ["# slurm:"]), *unset]


def job(chosen: Chosen) -> str:
    points, shape, program = chosen.points, chosen.shape, chosen.program
    start = "kit run" if chosen.is_local else "kit submit"
    command = program.file if scalar(program.file) == program.file else None
    words = f"{command} {program.arguments}".strip() if command else json.dumps([program.file, *program.arguments.split()], ensure_ascii=False)
    parts = [
        f"# A first job for {chosen.title}, written by kit init. The other keys: {start} --help, or kit's README.",
        "#",
        *_how_to_start(start, chosen),
        "",
        f"name: {scalar(PurePath(program.file).stem)}",
        "",
        points["program"].comment,
        f"command: {words}",
        *(["# found: the program starts its ranks itself", "launcher: spawn"] if program.spawns else []),
        "",
        f"# The profile that kit init wrote for {'this machine' if chosen.is_local else 'this cluster'}: what is true of all jobs here.",
        f"cluster: {scalar(chosen.profile)}",
        "",
        *_image(points["image"], chosen),
        "",
        points["shape"].comment,
        f"nodes: {shape.nodes}",
        *([f"gpus_per_node: {shape.gpus}"] if shape.gpus else []),
        f"processes_per_node: {shape.processes}",
        *(_of_slurm(chosen) if not chosen.is_local else []),
        "",
        *_optional(chosen),
    ]
    return "\n".join(parts) + "\n"


def _how_to_start(start: str, chosen: Chosen) -> list[str]:
    lines = [(start, "this very file, job.yaml, from its folder"), (f"{start} -- --lr 0.1", f"what follows -- goes to {chosen.program.file}")]
    if not chosen.is_local:
        lines = [("kit submit --dry-run", "the scripts, and nothing else happens"), (f"{start} --follow", "submits it, and shows its logs"), lines[1]]
    return [f"#   {line:24}{meaning}" for line, meaning in lines]


def _image(image: Point, chosen: Chosen) -> list[str]:
    if image.value:
        return [image.comment, f"image: {scalar(image.value)}"]
    if chosen.is_local and not chosen.points["runtime"].value:
        return [image.comment, "# image: docker://NAME         # one of docker or podman here; kit build --to docker makes one"]
    start = "kit run" if chosen.is_local else "kit submit"
    return [image.comment, f"# image: first                 # kit build --name first makes it; then also without a change here: {start} --image first"]


def _of_slurm(chosen: Chosen) -> list[str]:
    shape, partition = chosen.shape, chosen.points["partition"]
    whole = "CPUs of a node, for all of its ranks together"
    return [
        "",
        "# guessed: long enough for a first run, within the partition's limit - change it if Slurm ends the job (hours:minutes:seconds)",
        f'time: "{shape.time}"',
        "",
        "slurm:",
        f"  {partition.comment}",
        f"  partition: {scalar(partition.value)}",
        f"  cpus-per-task: {shape.cpus}".ljust(30) + f" # {whole}",
        "  # mem: 0".ljust(30) + f" # all of a node's memory, {shape.memory_gib} GiB; without this Slurm's default is what a job gets",
        *([f'  # gres: "{shape.one_type}"'.ljust(30) + " # nodes of this type alone: the slowest of a mixture sets the pace"] if shape.one_type else []),
    ]


def _optional(chosen: Chosen) -> list[str]:
    rows = [
        ('mounts: ["/data:/data:ro"]', "folders that the container sees, SOURCE:TARGET[:ro]; this file's folder it sees anyway"),
        ("env: {NCCL_DEBUG: WARN}", "variables for the training processes"),
    ]
    if not chosen.is_local:
        rows += [("stage: local", "every node copies the image to its own disk, once: for image files on a slow file system")]
        if chosen.can_be_preempted:
            rows += [("on_preempt: checkpoint", f"found: jobs here can be preempted ({chosen.can_be_preempted}); docs/preemption.md")]
        rows += [("spares: 1", "one node more than needed: a bad one is found before the start, and left out")]
    return ["# More keys; take the # away:", *(f"# {key:28} # {meaning}" for key, meaning in rows)]


def _key(key: str, point: Point, example: str) -> list[str]:
    return [point.comment, f"{key}: {scalar(point.value)}" if point.value else f"# {key}: {example}"]


def scalar(text: str) -> str:
    """Text as YAML reads it back: bare where it can mean nothing else. JSON's strings are YAML's."""
    return text if _PLAIN.match(text) and text.lower() not in _WORDS else json.dumps(text, ensure_ascii=False)


_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_NO_VARIABLES = ["# env:", f"#   NCCL_SOCKET_IFNAME: eth0   # only where nodes have several networks: {_NCCL}"]
_INFINIBAND = ["# env:", f'#   NCCL_IB_HCA: "^mlx5_bond_0"   # only where some of the cards are not for training: {_NCCL}#nccl-ib-hca']
_EFA = [
    "env:",
    "  # A data loader that forks would fail to copy huge pages: https://ofiwg.github.io/libfabric/main/man/fi_efa.7.html",
    '  FI_EFA_USE_HUGE_PAGE: "0"',
    f"  # NCCL's own connections go over the instance's Ethernet, whose names begin with en: {_NCCL}#nccl-socket-ifname",
    "  NCCL_SOCKET_IFNAME: en",
]
