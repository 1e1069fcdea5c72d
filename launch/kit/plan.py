"""A job with nothing left to decide: what the scripts need and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Callable, NamedTuple, Optional

from kit import choice, images, inherit, mounting, program, sbatch, snapshot, values
from kit import cluster as clusters
from kit import nodes as noted
from kit.errors import KitError, Problems
from kit.given import Given
from kit.job import Job
from kit.plugins import Plugin

if TYPE_CHECKING:
    from kit import secret_values, sweeps
    from kit.expect import Expectation
    from kit.remote.there import Remote


class Plan(NamedTuple):
    """The same plan renders the same bytes."""

    name: str
    run_dir: str
    nodes: int
    spares: int
    bad_nodes: str  # where nodes that cannot work are noted
    left_out: tuple[noted.Bad, ...]  # those that are left out of this job
    processes_per_node: int
    gpus_per_node: int
    tasks_per_node: int
    runtime: str
    why_runtime: str  # empty where the job names it
    launcher: str
    max_restarts: int
    image: Optional[str]
    fingerprint: Optional[str]  # of the image as it was at submission
    image_sha256: Optional[str]  # of one that `kit build` made
    workdir: str
    mounts: tuple[values.Mount, ...]
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...]  # the job's, the profile's, and what is inherited
    header: sbatch.Header
    stage: str
    on_preempt: str
    checkpoint_s: int
    max_requeues: Optional[int]
    ready_timeout_s: int
    scratch: str
    remap_root: bool
    cluster: str
    why_stage: str = ""  # empty where the job names it
    array: Optional[str] = None  # the tasks' numbers, as sbatch takes them
    sweep: sweeps.Table = ()
    profile: str = ""  # the text of the cluster's, for the record
    inherited: tuple[str, ...] = ()  # the names of those variables that are the submitting shell's
    secrets: secret_values.Secrets = ()  # where their values come from
    code: Optional[snapshot.Snapshot] = None  # None where the job runs live code
    why_live: str = ""  # empty where the job says so
    expect: Optional[Expectation] = None  # what the cluster's profile says of its network
    remote: Optional[Remote] = None  # where the cluster is elsewhere: all paths of the plan are its own


# Judges the #SBATCH lines by what the cluster has, with the options' places, and notes problems; returns the lines that suit it.
Judge = Callable[[sbatch.Header, dict[str, Given], Optional[Plugin], Optional[Plugin]], sbatch.Header]


def resolve(
    job: Job, run_dir: str, problems: Problems, code: str = "snapshot", judge: Optional[Judge] = None, here: bool = False, is_dry: bool = False
) -> Plan:
    """`code` is for a job that does not say; `here`: it runs on this machine, whatever its cluster; `is_dry`: it is only shown.

    Raises UsageError with every problem found, those of reading the job included.
    """
    try:
        cluster = clusters.load(job.cluster, job.where("cluster"), problems)
    except KitError as error:
        problems.found += error.problems
        cluster = clusters.Cluster(name="unknown")
    written, there = job, None
    if cluster.ssh and not here:
        from kit.remote import there as elsewhere

        there = elsewhere.look(job, cluster, run_dir, problems)
        job, run_dir = there.job, there.run_dir
    runtime, why_runtime = choice.runtime(job, cluster, problems, there, is_dry=is_dry)
    launcher = choice.plugin("launchers", job.launcher or "torchrun", job.where("launcher"), problems)
    _check_launcher(job, launcher, problems)
    stage, why_stage = choice.stage(job, runtime, problems, there)
    on_preempt = choice.on_preempt(job, problems)
    choice.check_spares(job, stage, problems)
    shape = _shape(job, launcher)
    _check_ranks(job, shape, problems)
    mounts = mounting.complete(job, run_dir, runtime, problems, there.place if there else mounting.HERE)
    check_line(run_dir, "the run directory", problems)
    mounts_here = there.mounts_here if there else mounts
    program.check(written, launcher, mounts_here, runtime, problems)
    own = {**cluster.env, **(job.env or {})}
    inherited = inherit.take(job.inherit, job.where("inherit"), {*own, *cluster.secrets, *(job.secrets or ())}, problems)
    keyrings = [secret.at for secret in (*cluster.secrets.values(), *(job.secrets or {}).values()) if secret.source == "file"]
    taken = snapshot.take(written, run_dir, {**inherited, **own}, mounts_here, runtime, code, problems, keyrings)
    taken = there.of_code(taken) if there else taken
    bad_nodes = there.bad_nodes if there else noted.file(cluster.name)
    bad = there.left_out if there else noted.bad(bad_nodes)
    left_out = () if "nodelist" in {**cluster.slurm, **(job.slurm or {})} else bad  # who names nodes wants those
    header = sbatch.header(job, cluster, shape, run_dir, [node.name for node in left_out], problems)
    array: Optional[str] = None
    sweep: sweeps.Table = ()
    if job.array or job.sweep:
        from kit import arrays
        from kit import sweeps as its

        array, sweep = its.resolve(job, problems)
        header = arrays.header(header, array or "")
    if judge and there:
        from kit import slurm

        with slurm.at(cluster.ssh):
            header = judge(header, {**cluster.slurm, **(job.slurm or {})}, runtime, launcher)
    elif judge:
        header = judge(header, {**cluster.slurm, **(job.slurm or {})}, runtime, launcher)
    secrets: secret_values.Secrets = ()
    if job.secrets or cluster.secrets:
        from kit import secret_values as named

        secrets = named.resolve({**cluster.secrets, **(job.secrets or {})}, own, problems)
    image = job.image if runtime and runtime.name != "none" else None
    sha256 = there.remote.image_sha256 if there else _check_image(job, image, problems)
    problems.raise_if_any()
    assert job.name and job.workdir and job.command and runtime and launcher
    return Plan(
        name=job.name,
        run_dir=run_dir,
        nodes=shape.nodes.most,
        spares=job.spares or 0,
        bad_nodes=bad_nodes,
        left_out=tuple(left_out),
        processes_per_node=shape.processes,
        gpus_per_node=shape.gpus,
        tasks_per_node=shape.tasks,
        runtime=runtime.name,
        why_runtime=why_runtime,
        launcher=launcher.name,
        max_restarts=job.max_restarts or 0,
        image=image,
        fingerprint=there.fingerprint if there else images.fingerprint(Path(image)) if image and "://" not in image else None,
        image_sha256=sha256,
        workdir=job.workdir,
        mounts=mounts,
        command=taken.command,
        env=tuple(taken.env.items()),
        header=header,
        stage=stage,
        why_stage=why_stage,
        on_preempt=on_preempt,
        checkpoint_s=job.checkpoint_s or sbatch.CHECKPOINT_S,
        max_requeues=job.max_requeues,
        ready_timeout_s=job.ready_timeout_s or 1200,
        scratch=there.scratch if there else cluster.scratch,
        remap_root=bool(job.remap_root),
        cluster=cluster.name,
        array=array,
        sweep=sweep,
        profile=cluster.text,
        inherited=tuple(inherited),
        secrets=secrets,
        code=taken.snapshot,
        why_live=taken.why_live,
        expect=cluster.expect,
        remote=there.remote if there else None,
    )


def _shape(job: Job, launcher: Optional[Plugin]) -> sbatch.Shape:
    gpus = job.gpus_per_node or 0
    own = launcher.words("processes-per-node") if launcher else []
    processes = int(own[0]) if own else job.processes_per_node or gpus or 1
    tasks = processes if launcher and launcher.words("tasks-per-node") == ["processes"] else 1
    signals = bool(launcher and launcher.words("signals"))
    return sbatch.Shape(job.nodes or values.Nodes(1, 1), processes, gpus, tasks, signals)


def _check_launcher(job: Job, launcher: Optional[Plugin], problems: Problems) -> None:
    """What only some launchers can do."""
    if not launcher:
        return
    if job.max_restarts and launcher.words("restarts") != ["yes"]:
        problems.add(job.where("max_restarts"), f"the launcher {launcher.name} starts no rank again", "use `launcher: torchrun`, or leave it out")
    own = launcher.words("processes-per-node")
    if own and job.processes_per_node not in (None, int(own[0])):
        fix = f"remove `processes_per_node`; the program uses all GPUs of its node, `gpus_per_node: {job.processes_per_node}`"
        problems.add(job.where("processes_per_node"), f"the launcher {launcher.name} starts one process on each node", fix)


def _check_ranks(job: Job, shape: sbatch.Shape, problems: Problems) -> None:
    if 0 < shape.gpus < shape.processes:
        problem = f"{shape.processes} ranks on each node share {shape.gpus} GPU{'s' if shape.gpus > 1 else ''}, and NCCL takes no two ranks on one GPU"
        problems.warn(job.where("processes_per_node"), problem, f"write `processes_per_node: {shape.gpus}`, or `gpus_per_node: {shape.processes}`")


def check_line(path: str, what: str, problems: Problems) -> None:
    if found := values.CONTROL.search(path):
        problems.add(what, f"its path contains the control character {found.group()!r}", "Slurm reads it from one line of text: start from another folder")


def _check_image(job: Job, image: Optional[str], problems: Problems) -> Optional[str]:
    """The sha256 of a file that `kit build` made; another file's is nobody's business but the nodes'."""
    if not image or "://" in image:
        return None
    try:
        return images.check(Path(image)) or None
    except KitError as error:
        problems.add(job.where("image"), error.problems[0].problem, error.problems[0].fix)
        return None
