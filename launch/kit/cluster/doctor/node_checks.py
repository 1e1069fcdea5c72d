"""Checks of a compute node itself, and all checks of one in the order of checks.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kit.cluster.doctor import container_checks, network
from kit.cluster.doctor.checks import Found, check, in_order
from kit.cluster.doctor.inquiry import Inquiry, Node
from kit.slurm import gpu_request

OLDEST_BASH = (4, 4)
CLOCK_S, CLOCK_WRONG_S = 1.0, 60.0
UNWELL = re.compile(r"DOWN|DRAIN|FAIL|ERROR|UNKNOWN|FUTURE|NOT_RESPONDING|INVAL|\*")
# Words of these that do no harm: of nodes that Slurm switches off and on, or added while it ran.
_WELL = re.compile("POWER(ED|ING)?_DOWN|NOT_RESPONDING(?=.*POWERING)|DYNAMIC_FUTURE")
SHM_LITTLE_MIB, SHM_SOME_MIB = 64, 1024  # an engine's default; NCCL and DataLoader want more
ENOUGH = {"nofile": (1024, 4096), "nproc": (1024, 4096)}  # {limit: (few, some)}
PINNED_KIB = 64 * 1024  # KIT_LEAST_LOCKED of lib/fabric.sh


def is_unwell(state: str) -> bool:
    """Return True if Slurm starts no job on a node of this state; saving power is well."""
    return bool(UNWELL.search(_WELL.sub("", state)))


@check("state")
def state(node: Node, cluster: Inquiry) -> Iterator[Found]:
    if is_unwell(node.state):
        well = sum(not is_unwell(other.state) for other in cluster.nodes) + cluster.unlisted
        problem = "too-few" if well < cluster.asked.nodes else "unwell"
        if cluster.asked.named:
            problem = "named"
        evidence = f"{node.state}: {node.reason}" if node.reason else node.state
        yield Found(problem, evidence, {"left": str(well), "needed": str(cluster.asked.nodes)})
    elif not node.asked:
        yield Found("busy", node.state)


@check("answers")
def answers(node: Node, _: Inquiry) -> Iterator[Found]:
    if node.asked and not node.answered:
        yield Found("silent", node.problem)


@check("bash", seen=lambda node, _: node.one("bash")[0])
def bash(node: Node, _: Inquiry) -> Iterator[Found]:
    version = node.one("bash")[0]
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_BASH:
        yield Found("old", f"bash {version}")


@check("cgroups", seen=lambda node, _: node.one("cgroups")[0])
def cgroups(node: Node, cluster: Inquiry) -> Iterator[Found]:
    version, inside = node.one("cgroups", 2)
    usual = cluster.usual("cgroups", lambda other: other.one("cgroups")[0])
    if version != usual:
        yield Found("differ", f"{version}, others have {usual}")
    elif cluster.asked.config.get("ProctrackType") == "proctrack/cgroup" and inside in ("", "0"):
        setting = "slurm.conf says ProctrackType=proctrack/cgroup"
        yield Found("outside", f"its processes are in no cgroup of Slurm's, though {setting}")


@check("clock")
def clock(node: Node, _: Inquiry) -> Iterator[Found]:
    if abs(node.skew_s) > CLOCK_S:
        direction = "ahead of" if node.skew_s > 0 else "behind"
        problem = "wrong" if abs(node.skew_s) > CLOCK_WRONG_S else "skewed"
        yield Found(problem, f"{abs(node.skew_s):.0f} s {direction} this machine's")


def _asked_for_the_folder(cluster: Inquiry) -> bool:
    return any(node.has("folder") for node in cluster.answered)


@check("folder", seen=lambda node, _: node.one("folder", 2)[1], matters=_asked_for_the_folder)
def folder(node: Node, cluster: Inquiry) -> Iterator[Found]:
    found, said = node.one("folder", 2)[:2]
    path = cluster.asked.folder
    mark = f"a file that kit made there is not there: {said}" if said else path
    evidence = {"missing": path, "other": mark, "read-only": said}
    if found in evidence:
        yield Found(found, evidence[found], {"folder": path})


@check("mounts", matters=lambda cluster: bool(cluster.asked.mounts))
def mounts(node: Node, _: Inquiry) -> Iterator[Found]:
    for problem, evidence in node.all("mount"):
        yield Found(problem, evidence)


@check("shm", seen=lambda node, _: f"{node.number('shm') / 1024:.1f} GiB")
def shm(node: Node, _: Inquiry) -> Iterator[Found]:
    size_mib, problem = node.number("shm"), node.one("shm", 3)[2]
    if problem:
        yield Found("unusable", problem)
    elif size_mib < SHM_SOME_MIB:
        yield Found("tiny" if size_mib <= SHM_LITTLE_MIB else "small", f"{size_mib} MiB")


def _seen_limits(node: Node, _: Inquiry) -> str:
    return ", ".join(f"{name} {soft}" for name, soft, *_ in node.all("limit"))


@check("limits", seen=_seen_limits)
def limits(node: Node, cluster: Inquiry) -> Iterator[Found]:
    known = {name: soft for name, soft, *_ in node.all("limit")}
    for name, (few, some) in ENOUGH.items():
        limit = known.get(name, "")
        if limit.isdecimal() and int(limit) < some:
            yield Found(f"{name}-{'few' if int(limit) < few else 'some'}", limit)
    asked, pinned = cluster.asked, known.get("memlock", "")
    is_little = pinned.isdecimal() and int(pinned) < PINNED_KIB
    uses_tcp = asked.uses_tcp(node.one("fabric")[0])
    if is_little and network.active_rdma(node) and not uses_tcp:
        if asked.nodes > 1 and asked.gpus:
            yield Found("memlock", f"{pinned} KiB")
        elif asked.nodes > 1 or not asked.job:
            yield Found("memlock-some", f"{pinned} KiB")


def _wants_gpus(cluster: Inquiry) -> bool:
    return bool(cluster.asked.gpus or any(node.gpus for node in cluster.nodes))


@check("gpus", seen=lambda node, _: str(node.gpus or ""), matters=_wants_gpus)
def gpus(node: Node, _: Inquiry) -> Iterator[Found]:
    shown, driven, problem = node.one("gpus", 3)
    # A job that asks for no GPU may see none, while the driver knows them all.
    # Slurm may count the parts of a GPU that is cut (MIG); the driver counts no parts.
    if gpu_request.has_parts(node.gres) and int(shown or 0) < int(driven or 0):
        return
    present = max(int(shown or 0), int(driven or 0), node.number("gpus-of-slurm"))
    if present < node.gpus:
        yield Found("fewer", f"{present} of {node.gpus}{f'; {problem}' if problem else ''}")


_OWN = (state, answers, bash, cgroups, clock, folder, mounts, shm, limits, gpus)
CHECKS = in_order([*_OWN, *container_checks.CHECKS, *network.CHECKS])
