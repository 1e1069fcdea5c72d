"""Examine the login node and the compute nodes, or this machine where there is no Slurm."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Optional

from kit import slurm
from kit.base import formats
from kit.base.errors import KitError, Problems, UsageError
from kit.cluster.doctor import ask, checks, local_checks, login, node_choice
from kit.cluster.doctor.inquiry import Inquiry, Needs, Node
from kit.cluster.doctor.node_checks import CHECKS
from kit.config import image_files, job_file, paths, profiles
from kit.config.yaml_source import Located
from kit.plan import program, resolve, runtimes, this_machine
from kit.plan.plan import Plan
from kit.runs import run_dir, submit
from kit.slurm import gpu_request, hostlist, sbatch_variables


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
    result = checks.judge(cluster, login_node, of_nodes, login.CHECKS)
    took = f"{time.monotonic() - start_s:.1f} s; runtime {cluster.runtime}"
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
            job = this_machine.ask_no_slurm(this_machine.fit(job, Problems()))
        plan = resolve.resolve(job, str(run_dir.choose(job.name)), problems, "live")
        return _of_plan(plan), plan
    site = profiles.load(wanted.options.get("cluster"), "--cluster", problems)
    runtime = wanted.options.get("runtime") or site.runtime or ""
    runtimes.plugin("runtimes", runtime or "none", "--runtime", problems)
    problems.raise_if_any()
    options = {**site.slurm, **places}
    asked = Needs(runtime=runtime, scratch=site.scratch, folder=os.getcwd())
    texts = {name: str(item.value) for name, item in options.items()}
    asked.slurm = sbatch_variables.places(texts)
    asked.nodelist, asked.exclude = _whole_list(texts), texts.get("exclude", "")
    asked.interfaces = site.env.get("NCCL_SOCKET_IFNAME", "")
    return asked, None


def _of_plan(plan: Plan) -> Needs:
    """Return what a job needs of the cluster."""
    header = {name: value or "" for name, value in plan.header}
    layout, container, env = plan.layout, plan.container, dict(plan.program.env)
    image, is_torchrun = container.image, plan.program.launcher == "torchrun"
    path = program.python_path(plan)
    # The run directory is not there yet.
    mounts = [m.source for m in container.mounts if not m.source.startswith(layout.run_dir)]
    return Needs(
        runtime=container.runtime,
        image=image,
        image_mib=os.stat(image).st_size >> 20 if image and os.path.isfile(image) else 0,
        image_machine=str(image_files.origin(Path(image or "")).get("architecture") or ""),
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
        nccl={name: value for name, value in env.items() if name.startswith("NCCL_")},
        job=layout.name,
        slurm=sbatch_variables.places(dict(plan.header)),
        nodelist=_whole_list(header),
        exclude=header.get("exclude", ""),
        program=_program(plan),
        needs_python=is_torchrun or _is_python(plan.program.command[0]),
        module="torch" if is_torchrun else _imported(plan),
        path=path,
        pythonpath=env.get("PYTHONPATH", ""),
        has_host_setup=bool(plan.program.host_setup),
        is_set_up=_is_set_up(plan, path),
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
        addresses = node_choice.choose(cluster, wanted.nodelist, wanted.nodes)
        if not addresses:
            problem = "no node is free to be asked"
            fix = "to see their states: sinfo; for others: kit doctor --partition NAME"
            if any("POWERED_DOWN" in node.state for node in cluster.nodes):
                fix = "to switch some on, submit a short job to them; then: kit doctor again"
            login_node.said["asking"] = [[problem, fix]]
            return cluster, problem
        ask.ask(cluster, addresses, wanted.wait_s)
        more = formats.number(cluster.beyond, "free node")
        beyond = f"; {more} not asked (MaxNodes)" if cluster.beyond else ""
        return cluster, f"{len(cluster.answered)} of {len(addresses)} nodes answered{beyond}"
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
            _estimate({"nodes": "1", "time": "1", **asked.slurm})
    except KitError as error:
        login_node.said["options"] = [[error.problem]]


def _estimate(options: dict[str, Optional[str]]) -> None:
    """Raise KitError if Slurm refuses a small job, also with a GPU, which some sites want."""
    try:
        slurm.estimate(options)
    except KitError:
        with suppress(KitError):
            kinds = (gpu_request.one_of_each([node.gres]) for node in slurm.all_nodes())
            for gres in dict.fromkeys(["gpu:1", *filter(None, kinds)]):
                with suppress(KitError):
                    slurm.estimate({**options, "gres": gres})
                    return
        raise
