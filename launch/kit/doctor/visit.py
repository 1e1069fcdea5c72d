"""kit doctor: looks into the login node and the compute nodes, or into this machine where there is no Slurm."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Optional

from kit import assets, choice, program, render, rundir, slurm
from kit import cluster as clusters
from kit import job as jobs
from kit import plan as plans
from kit.doctor import ask, checks, facts, here, login, report
from kit.doctor.facts import Asked, Cluster, Node
from kit.doctor.judges import CHECKS, is_unwell
from kit.errors import KitError, Problems, UsageError
from kit.given import Given
from kit.plan import Plan
from kit.remote import errand

PLACES = ("partition", "account", "qos", "reservation", "constraint", "clusters", "wckey")  # options that decide where a job runs


@dataclass(frozen=True)
class Wanted:
    """The command's own options."""

    job: Optional[str] = None
    nodes: Optional[int] = None
    nodelist: Optional[str] = None
    wait_s: int = 60
    as_json: bool = False
    options: dict[str, Optional[str]] = field(default_factory=dict)  # cluster, runtime, image as a job has them
    slurm: dict[str, Optional[str]] = field(default_factory=dict)  # partition, account


def visit(wanted: Wanted) -> int:
    """Prints what was found; 0 where a job would start, else 1."""
    start_s = time.monotonic()
    asked, plan = _asked(wanted)
    on_slurm = any(shutil.which(name) for name in login.COMMANDS)
    login_node = login.look(asked)
    if on_slurm:
        cluster, said = _slurm(wanted, asked, plan, login_node)
        result = checks.judge(cluster, login_node, CHECKS, _that_apply(login_node))
    else:
        cluster, said = here.look(asked, command(asked, [], "", "")), "this machine, for kit run: there is no Slurm here"
        result = checks.judge(cluster, login_node, here.CHECKS, [check for check in login.LOGIN if check.name in ("home", "history", "here", "py-spy", "kit")])
    answered = f"{said}, {time.monotonic() - start_s:.1f} s; runtime {cluster.runtime()}"
    if wanted.as_json:
        report.print_json(cluster, result)
    else:
        report.show(cluster, result, answered, on_slurm=on_slurm)
    return 0 if result.starts else 1


def _that_apply(node: Node) -> list[checks.Check]:
    """Of the login node, those for which something was asked."""
    facts_of = {"commands": "command", "options": "would-start", "asking": "no-nodes"}
    return [check for check in login.LOGIN if node.has(facts_of.get(check.name, check.name)) or (check.name == "options" and node.has("refused"))]


# ---------------------------------------------------------------- what is wanted


def _asked(wanted: Wanted) -> tuple[Asked, Optional[Plan]]:
    """Of the job, where one is named, else of the profile. Raises UsageError with the job's own mistakes."""
    problems = Problems()
    given = {name: Given(value, f"--{name}") for name, value in wanted.options.items() if value}
    places = {name: Given(value, f"--{name}") for name, value in wanted.slurm.items() if value}
    if places:
        given["slurm"] = Given(places, "--partition")
    if wanted.job:
        job = jobs.load(wanted.job, given, [], problems)
        errand.go_with(job, "doctor", wanted.job, None, problems)
        plan = plans.resolve(job, str(rundir.choose(job.name or "job")), problems, "live")
        return _of_plan(plan), plan
    cluster = clusters.load(wanted.options.get("cluster"), "--cluster", problems)
    runtime = wanted.options.get("runtime") or cluster.runtime or ""
    choice.plugin("runtimes", runtime or "none", "--runtime", problems)
    problems.raise_if_any()
    options = {name: str(item.value) for name, item in {**cluster.slurm, **places}.items() if name in PLACES}
    interfaces = cluster.env.get("NCCL_SOCKET_IFNAME", "")
    return Asked(runtime=runtime, scratch=cluster.scratch, folder=os.getcwd(), slurm=options, interfaces=interfaces), None


def _of_plan(plan: Plan) -> Asked:
    header = {name: value or "" for name, value in plan.header}
    image_mib = os.stat(plan.image).st_size >> 20 if plan.image and os.path.isfile(plan.image) else 0
    return Asked(
        runtime=plan.runtime,
        image=plan.image,
        image_mib=image_mib,
        fingerprint=plan.fingerprint,
        mounts=tuple(mount.source for mount in plan.mounts if not mount.source.startswith(plan.run_dir)),  # which is not there yet
        scratch=plan.scratch,
        folder=_existing(plan.run_dir),
        remap_root=plan.remap_root,
        unpacks=plan.stage != "none",
        nodes=plan.nodes,
        gpus=plan.gpus_per_node,
        interfaces=dict(plan.env).get("NCCL_SOCKET_IFNAME", ""),
        job=plan.name,
        slurm={name: header[name] for name in PLACES if name in header},
        program=_program(plan),
        needs_python=_needs_python(plan),
        module="torch" if plan.launcher == "torchrun" else program.imported(plan.command, plan.workdir, plan.mounts, contained=plan.runtime != "none"),
        path=dict(plan.env).get("PATH", ""),
    )


def _needs_python(plan: Plan) -> bool:
    return plan.launcher == "torchrun" or plan.command[0] in program.PYTHONS or plan.command[0].endswith(".py")


def _program(plan: Plan) -> str:
    """What the command starts, unless that is Python, or a file that was seen on this machine already."""
    first = plan.command[0]
    if first in program.PYTHONS or first.endswith(".py") or plan.sweep:
        return ""
    if "/" not in first:
        return first
    path = os.path.normpath(os.path.join(plan.workdir, first))
    return path if plan.runtime != "none" and program.on_this_side(path, plan.mounts, contained=True) is None else ""


def _existing(path: str) -> str:
    while not os.path.isdir(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


# ---------------------------------------------------------------- the cluster


def _slurm(wanted: Wanted, asked: Asked, plan: Optional[Plan], login_node: Node) -> tuple[Cluster, str]:
    """What the nodes said, and that in words."""
    if not login.ask_slurm(login_node, asked):
        return Cluster(asked, []), "the nodes were not asked"
    if shutil.which("sbatch"):
        _would_start(plan, asked, login_node)
    cluster = Cluster(asked, [])
    try:
        addresses = _choose(wanted, cluster)
        said = "no node is free to be asked"
        if any(node.asked for node in cluster.nodes):
            _ask(wanted, cluster, addresses)
            said = f"{len(cluster.answered)} of {sum(node.asked for node in cluster.nodes)} nodes answered"
        else:
            login_node.said["no-nodes"] = [[said, "see which are well: sinfo; more: kit doctor --partition NAME"]]
    except UsageError:
        raise
    except KitError as error:
        for node in cluster.nodes:
            node.asked = node.asked and node.answered  # what is wrong is not theirs
        login_node.said["no-nodes"] = [[error.problems[0].problem, error.problems[0].fix]]
        said = "the nodes were not asked"
    return cluster, said


def _would_start(plan: Optional[Plan], asked: Asked, login_node: Node) -> None:
    try:
        if plan:
            with tempfile.TemporaryDirectory(prefix="kit-") as folder:
                run = rundir.write(plan._replace(run_dir=f"{folder}/run", code=None), render.render(plan))
                login_node.said["would-start"] = [[slurm.test_only(run / "run_script.sh")]]
        else:
            login_node.said["would-start"] = [[slurm.would_start(asked.slurm)]]
    except KitError as error:
        login_node.said["refused"] = [[error.problems[0].problem]]


def _choose(wanted: Wanted, cluster: Cluster) -> dict[str, str]:
    """Puts the nodes into `cluster`, and returns {name: address} of those that are asked."""
    known = slurm.all_nodes()
    partition = cluster.asked.slurm.get("partition") or slurm.default_partition()
    if wanted.nodelist:
        cluster.asked.named = True
        names = slurm.hosts(wanted.nodelist)
        if unknown := [name for name in names if name not in {node.name for node in known}]:
            raise UsageError(f"Slurm knows no node {facts.folded(unknown)}", "what there is: sinfo --Node", where="--nodelist")
        known = [node for node in known if node.name in names]
    elif partition:
        known = [node for node in known if set(node.partitions) & set(partition.split(","))]
    cluster.nodes = [Node(node.name, state=node.state, reason=node.reason, gpus=node.gpus, asked=_is_free(node.state)) for node in known]
    if wanted.nodes:
        # Idle ones first: on the others the job may have to wait.
        free = sorted((node for node in cluster.nodes if node.asked), key=lambda node: not node.state.startswith("IDLE"))
        for node in free[wanted.nodes :]:
            node.asked = False
        cluster.nodes = [node for node in cluster.nodes if node.asked or is_unwell(node.state)]
    chosen = {node.name for node in cluster.nodes if node.asked}
    return {node.name: node.address for node in known if node.name in chosen}


def _is_free(state: str) -> bool:
    """Whether a small job may start there now."""
    base, *flags = state.rstrip("*~#!%$@^-").split("+")
    return base in ("IDLE", "MIXED") and not is_unwell(state) and not {*flags} & {"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "MAINTENANCE", "RESERVED"}


def _ask(wanted: Wanted, cluster: Cluster, addresses: dict[str, str]) -> None:
    nodes = {node.name: node for node in cluster.nodes if node.asked}
    with _mark(cluster.asked.folder) as (mark, text):
        while nodes:
            words = command(cluster.asked, [f"{name}:{addresses[name]}" for name in nodes], mark, text)
            ask.all_at_once(words, nodes, cluster.asked.slurm, wanted.wait_s)
            silent = ask.silent(nodes)
            if not silent or len(silent) == len(nodes):
                break
            # Once more without them, since srun waits for all: the others are to try each other.
            nodes = {name: node for name, node in nodes.items() if name not in silent}
            for node in nodes.values():
                node.said = {}


@contextlib.contextmanager
def _mark(folder: str) -> Iterator[tuple[str, str]]:
    """A file in the shared folder, and what is in it; empty where none can be made."""
    try:
        handle, name = tempfile.mkstemp(prefix=".kit-doctor.", dir=folder)
    except OSError:
        yield "", ""  # which is a finding of the login node's
        return
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text := f"{os.getpid()} {time.time_ns()}")
        yield name, text
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)


def command(asked: Asked, nodes: Sequence[str], mark: str, text: str) -> list[str]:
    """doctor.sh with the libraries that it sources, and what is asked of it."""
    values = {"scratch": asked.scratch, "image": asked.image or "", "fingerprint": asked.fingerprint or ""}
    if mark:
        values |= {"folder": asked.folder, "mark": mark, "text": text}
    if asked.image:
        values["start"] = asked.runtime
    if asked.job:
        values |= {"command": "yes", "program": asked.program, "module": asked.module, "path": asked.path}
    words = [f"{name}={value}" for name, value in values.items() if value]
    return ["bash", "-c", assets.script("doctor.sh"), "doctor.sh", *words, *(f"mount={source}" for source in asked.mounts), *nodes]
