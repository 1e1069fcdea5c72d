"""Examine the login node and the compute nodes, or this machine where there is no Slurm."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Optional

from kit import slurm
from kit.base.errors import KitError, Problems, UsageError
from kit.cluster import shapes
from kit.cluster.doctor import ask, checks, local_checks, login
from kit.cluster.doctor.facts import Inquiry, Needs, Node
from kit.cluster.doctor.node_checks import CHECKS, is_unwell
from kit.config import job_file, paths, profiles
from kit.config.yaml_source import Located
from kit.plan import program, resolve, runtimes, this_machine
from kit.plan.plan import Plan
from kit.runs import run_dir, submit
from kit.slurm import hostlist

# The options that decide where a job runs, and which limits of this machine it has there.
PLACES = "partition account qos reservation constraint clusters wckey propagate".split()
# A constraint that is more than a list of features joined with & or with |: [rack1|rack2], a&b|c.
_NOT_OF_ONE_NODE = re.compile(r"[][()*]|&.*\||\|.*&")


@dataclass(frozen=True)
class Wanted:
    """What to examine."""

    job: Optional[str] = None
    nodes: Optional[int] = None
    nodelist: Optional[str] = None
    wait_s: int = 60
    # cluster, runtime and image, as a job has them
    options: dict[str, Optional[str]] = field(default_factory=dict)
    slurm: dict[str, Optional[str]] = field(default_factory=dict)  # partition, account


@dataclass(frozen=True)
class Examination:
    """What the nodes said, and what the checks found."""

    cluster: Inquiry
    result: checks.Result
    summary: str  # how many nodes answered, in how many seconds
    on_slurm: bool


def examine(wanted: Wanted) -> Examination:
    """Examine the login node and the compute nodes, or this machine where there is no Slurm."""
    start_s = time.monotonic()
    on_slurm = any(shutil.which(name) for name in login.COMMANDS)
    if on_slurm:
        slurm.check_one_cluster()
    asked, plan = _asked(wanted, on_slurm=on_slurm)
    login_node = login.examine(asked)
    if on_slurm:
        cluster, summary = _slurm(wanted, asked, plan, login_node)
    else:
        summary = "this machine, for kit run: there is no Slurm here"
        cluster = local_checks.examine(asked)
    of_nodes = CHECKS if on_slurm else local_checks.CHECKS
    of_login = [check for check in login.CHECKS if login_node.has(check.name)]
    result = checks.judge(cluster, login_node, of_nodes, of_login)
    took = f"{time.monotonic() - start_s:.1f} s; runtime {cluster.runtime()}"
    return Examination(cluster, result, f"{summary}, {took}", on_slurm)


def _asked(wanted: Wanted, *, on_slurm: bool) -> tuple[Needs, Optional[Plan]]:
    """Return what the job needs, else what the profile does. Raise UsageError for mistakes."""
    problems = Problems()
    given = {name: Located(value, f"--{name}") for name, value in wanted.options.items() if value}
    places = {name: Located(value, f"--{name}") for name, value in wanted.slurm.items() if value}
    if places:
        given["slurm"] = Located(places, "--partition")
    if wanted.job:
        job = job_file.load(wanted.job, given, [], problems)
        if not on_slurm:  # as kit run does; what is missing here, the checks say
            job = this_machine.fit(job, Problems())
        plan = resolve.resolve(job, str(run_dir.choose(job.name or "job")), problems, "live")
        return _of_plan(plan), plan
    site = profiles.load(wanted.options.get("cluster"), "--cluster", problems)
    runtime = wanted.options.get("runtime") or site.runtime or ""
    runtimes.plugin("runtimes", runtime or "none", "--runtime", problems)
    problems.raise_if_any()
    options = {**site.slurm, **places}
    asked = Needs(runtime=runtime, scratch=site.scratch, folder=os.getcwd())
    texts = {name: str(item.value) for name, item in options.items()}
    asked.slurm = {name: text for name, text in texts.items() if name in PLACES}
    asked.nodelist, asked.exclude = _whole_list(texts), texts.get("exclude", "")
    asked.interfaces = site.env.get("NCCL_SOCKET_IFNAME", "")
    return asked, None


def _of_plan(plan: Plan) -> Needs:
    """Return what a job needs of the cluster."""
    header = {name: value or "" for name, value in plan.header}
    layout, container, env = plan.layout, plan.container, dict(plan.program.env)
    image, is_torchrun = container.image, plan.program.launcher == "torchrun"
    # The run directory is not there yet.
    mounts = [m.source for m in container.mounts if not m.source.startswith(layout.run_dir)]
    return Needs(
        runtime=container.runtime,
        image=image,
        image_mib=os.stat(image).st_size >> 20 if image and os.path.isfile(image) else 0,
        fingerprint=container.fingerprint,
        mounts=tuple(mounts),
        has_data_images=any(mount.is_data for mount in container.mounts),
        scratch=plan.profile.scratch,
        folder=str(paths.existing(Path(layout.run_dir))),
        remap_root=container.remap_root,
        unpacks=container.stage != "none",
        nodes=layout.nodes,
        gpus=layout.gpus_per_node,
        interfaces=env.get("NCCL_SOCKET_IFNAME", ""),
        uses_tcp=env.get("NCCL_NET", "").lower() == "socket" or env.get("NCCL_IB_DISABLE") == "1",
        job=layout.name,
        slurm={name: header[name] for name in PLACES if name in header},
        nodelist=_whole_list(header),
        exclude=header.get("exclude", ""),
        program=_program(plan),
        needs_python=is_torchrun or _is_python(plan.program.command[0]),
        module="torch" if is_torchrun else _imported(plan),
        path=env.get("PATH", ""),
        is_set_up=_is_set_up(plan, env.get("PATH", "")),
    )


def _whole_list(options: Mapping[str, str]) -> str:
    """Return the nodelist of a job that gets no other nodes; empty where it may get more."""
    most = int(options.get("nodes", "1").rpartition("-")[2])
    listed = options.get("nodelist", "")
    return listed if len(hostlist.expand(listed)) >= most else ""


def _is_set_up(plan: Plan, path: str) -> bool:
    """Return True if lines of the job, or what it mounts, may bring what the program needs."""
    entries = [PurePosixPath(entry) for entry in path.split(":")]
    targets = [mount.target for mount in plan.container.mounts]
    is_mounted = any(entry.is_relative_to(target) for entry in entries for target in targets)
    return bool(plan.program.setup or plan.program.host_setup or is_mounted)


def _is_python(first: str) -> bool:
    return first in program.PYTHONS or first.endswith(".py")


def _imported(plan: Plan) -> str:
    """Return the package that a program needs of the nodes' own Python; empty where it has one."""
    command = plan.program.command
    return program.imported(command, plan.view) if _is_python(command[0]) else ""


def _program(plan: Plan) -> str:
    """Return what the command starts; empty for Python, and for a file that this machine has."""
    first = plan.program.command[0]
    if _is_python(first) or plan.program.sweep:
        return ""
    if "/" not in first:
        return first
    here = plan.view.on_this_side(first)
    return "" if here and os.path.isfile(here) else plan.view.full(first)


def _slurm(
    wanted: Wanted, asked: Needs, plan: Optional[Plan], login_node: Node
) -> tuple[Inquiry, str]:
    """Return what the nodes said, and in words how many answered."""
    cluster, unasked = Inquiry(asked, []), "the nodes were not asked"
    if not login.ask_slurm(login_node, asked):
        return cluster, unasked
    if shutil.which("sbatch"):
        _would_start(plan, asked, login_node)
    try:
        addresses = _choose(wanted, cluster)
        if not addresses:
            problem = "no node is free to be asked"
            fix = "to see their states: sinfo; for others: kit doctor --partition NAME"
            login_node.said["asking"] = [[problem, fix]]
            return cluster, problem
        ask.ask(cluster, addresses, wanted.wait_s)
        return cluster, f"{len(cluster.answered)} of {len(addresses)} nodes answered"
    except UsageError:
        raise
    except KitError as error:
        for node in cluster.nodes:
            node.asked = node.asked and node.answered  # the fault is not theirs
        login_node.said["asking"] = [[error.problem, error.fix]]
        return cluster, unasked


def _would_start(plan: Optional[Plan], asked: Needs, login_node: Node) -> None:
    """Add to the login node why Slurm would refuse the job, or the profile's options."""
    login_node.said["options"] = [[""]]
    try:
        if plan:
            submit.estimate(plan)
        else:
            slurm.estimate(shapes.script({"nodes": "1", "time": "1", **asked.slurm}))
    except KitError as error:
        login_node.said["options"] = [[error.problem]]


def _choose(wanted: Wanted, cluster: Inquiry) -> dict[str, str]:
    """Put the nodes into `cluster`, and return {name: address} of those to ask."""
    places, known = cluster.asked.slurm, slurm.all_nodes()
    constraint, names = places.get("constraint", ""), places.get("reservation")
    reservation = slurm.reservation(names) if names else slurm.Reservation("", [], "")
    if wanted.nodelist:
        cluster.asked.named = True
        known = _named(wanted.nodelist, known)
    else:
        if names:  # one job in several reservations would have nodes of one alone
            places["reservation"] = reservation.name
        known = [
            node
            for node in _that_it_may_get(cluster.asked, reservation, known)
            if _may_get(node.features, constraint)
        ]
    cluster.nodes = [
        Node(
            node.name,
            state=node.state,
            reason=node.reason,
            gpus=node.gpus,
            asked=_is_free(node.state, is_reserved=node.name in reservation.nodes),
        )
        for node in known
    ]
    if wanted.nodes:
        free = [node for node in cluster.nodes if node.asked]
        # Idle ones first: on the others the job may have to wait.
        free.sort(key=lambda node: not node.state.startswith("IDLE"))
        for node in free[wanted.nodes :]:
            node.asked = False
        cluster.nodes = [node for node in cluster.nodes if node.asked or is_unwell(node.state)]
    asked = {node.name for node in cluster.nodes if node.asked}
    chosen = [node for node in known if node.name in asked]
    if _NOT_OF_ONE_NODE.search(constraint) or not all(
        _may_get(node.features, constraint) for node in chosen
    ):
        del places["constraint"]  # else Slurm might refuse the nodes, which are named
    return {node.name: node.address for node in chosen}


def _that_it_may_get(
    asked: Needs, reservation: slurm.Reservation, known: list[slurm.NodeFacts]
) -> list[slurm.NodeFacts]:
    """Return the nodes that a job may get by its partition, reservation, nodelist and exclude."""
    partition = asked.slurm.get("partition") or reservation.partition or slurm.default_partition()
    own, not_own = {*hostlist.expand(asked.nodelist)}, {*hostlist.expand(asked.exclude)}
    if not own <= {node.name for node in known}:
        own = set()  # Slurm reads the list from a file
    return [
        node
        for node in known
        if (not partition or set(node.partitions) & set(partition.split(",")))
        and (not reservation.nodes or node.name in reservation.nodes)
        and (not own or node.name in own)
        and node.name not in not_own
    ]


def _named(nodelist: str, known: list[slurm.NodeFacts]) -> list[slurm.NodeFacts]:
    """Return the nodes of a list. Raise UsageError if Slurm does not know one."""
    names = hostlist.expand(nodelist) or [nodelist]
    if unknown := [name for name in names if name not in {node.name for node in known}]:
        raise UsageError(
            f"Slurm knows no node {hostlist.fold(unknown)}",
            "to see the nodes: sinfo --Node",
            where="--nodelist",
        )
    return [node for node in known if node.name in names]


def _may_get(features: list[str], constraint: str) -> bool:
    """Return True if a node with these features may be one of a job's with this constraint."""
    if "*" in constraint:  # [a100*2&h100*4]: each feature is asked of some nodes only
        return True
    wanted = set(re.split(r"[][()&|,]", constraint)) - {""}
    return bool(wanted & {*features}) if "|" in constraint else wanted <= {*features}


def _is_free(state: str, *, is_reserved: bool) -> bool:
    """Return True if a small job may start on a node of this state now.

    `is_reserved` says that the node is of the reservation that the job names.
    """
    base, *flags = state.rstrip("*~#!%$@^-").split("+")
    busy = {"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP"}
    if not is_reserved:
        busy |= {"MAINTENANCE", "RESERVED"}
    return base in ("IDLE", "MIXED") and not is_unwell(state) and not busy & {*flags}
