"""Decide all that a job leaves open: a job and its site become a plan."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable, Optional

from kit.base.errors import KitError, Problems
from kit.config import image_files, inherit, mount_list, notify, profiles, secrets, values
from kit.config.job import KEYS, Job
from kit.config.plugins import Plugin
from kit.config.profiles import Cluster
from kit.config.yaml_source import Located
from kit.plan import (
    bad_nodes,
    mounting,
    own_lines,
    packages,
    preemption,
    program,
    ranks,
    run_paths,
    runtimes,
    sbatch,
    snapshot,
    staging,
    sweep_table,
)
from kit.plan.mounting import FileView
from kit.plan.plan import Container, Header, Plan, Policy, Profile, RankProgram, Reasons

READY_TIMEOUT_S = 1200

# Judges the #SBATCH lines by what the cluster has, with the options' places, and notes problems;
# returns the lines that suit it.
Judge = Callable[[Header, dict[str, Located], Optional[Plugin], Optional[Plugin]], Header]


@dataclass(frozen=True)
class ChosenPlugins:
    """What runs the job; None where there is no such plug-in, which is a problem."""

    runtime: Optional[Plugin]
    launcher: Optional[Plugin]
    stage: str
    unpack: str
    reasons: Reasons


@dataclass(frozen=True)
class Variables:
    """What the ranks find in their environment, and where it is from."""

    own: dict[str, str]  # the job's and the profile's
    inherited: dict[str, str]  # the submitting shell's, which the others replace
    keyrings: tuple[str, ...]  # the files that secrets name


def resolve(
    job: Job,
    run_dir: str,
    problems: Problems,
    code: str = "snapshot",
    judge: Optional[Judge] = None,
) -> Plan:
    """Return the plan. `code` is for a job that does not say.

    Raises UsageError with every problem found, those of reading the job included.
    """
    cluster = _load_cluster(job, problems)
    chosen = _choose_plugins(job, cluster, problems)
    launcher_name = chosen.launcher.name if chosen.launcher else ""
    array, sweep = sweep_table.resolve(job, problems)
    options = {**cluster.slurm, **job.slurm}
    layout = ranks.layout(job, run_dir, chosen.launcher, options, array)
    ranks.check(job, chosen.launcher, layout, options, problems)
    preemption.check_time(job, options, problems)
    if chosen.runtime and chosen.runtime.name != "none":
        job = replace(job, mounts=mount_list.add(cluster.mounts, job.mounts))
    view = mounting.complete(job, run_dir, chosen.runtime, problems)
    check_line(run_dir, problems)
    if chosen.runtime:
        program.check(job, launcher_name, view, problems)
        own_lines.check(job, launcher_name, view, problems)
    variables = take_variables(job, cluster, problems, chosen.launcher)
    rank_program, why_live = _live_program(job, run_dir, launcher_name, variables), ""
    is_live = (job.code or code) == "live" or not chosen.runtime
    if not is_live and job.command and os.path.isdir(job.workdir):
        rank_program, why_live = snapshot.freeze(
            rank_program, job, run_dir, view, variables.keyrings, problems
        )
    left_out = _left_out(options, cluster)
    header = sbatch.header(job, cluster, layout, chosen.launcher, left_out, problems)
    if judge:
        header = judge(header, options, chosen.runtime, chosen.launcher)
    sources = secrets.resolve({**cluster.secrets, **job.secrets}, variables.own, problems)
    policy = _policy(job, run_dir, view, sources, problems)
    container = _container(job, chosen, view, cluster.scratch, problems)
    problems.raise_if_any()
    return Plan(
        layout=layout,
        container=container,
        program=replace(rank_program, secrets=sources, sweep=sweep),
        policy=policy,
        profile=_profile(cluster),
        header=header,
        reasons=replace(chosen.reasons, left_out=left_out, why_live=why_live),
    )


def _left_out(options: dict[str, Located], cluster: Cluster) -> tuple[bad_nodes.Bad, ...]:
    """Return the bad nodes that the job is to avoid.

    Who names nodes wants those, and Slurm refuses a job that names one and excludes it; another
    cluster has other nodes.
    """
    given = (str(options[name].value) for name in ("nodelist", "clusters") if name in options)
    is_elsewhere = os.environ.get("SBATCH_CLUSTERS")  # which sinfo does not read
    if is_elsewhere or any(value.lower() not in values.FLAGS for value in given):
        return ()
    return bad_nodes.left_out(bad_nodes.file(cluster.name))


def _load_cluster(job: Job, problems: Problems) -> Cluster:
    try:
        return profiles.load(job.cluster, job.where("cluster"), problems)
    except KitError as error:
        problems.found += error.problems
        return Cluster(name="unknown")


def _choose_plugins(job: Job, cluster: Cluster, problems: Problems) -> ChosenPlugins:
    runtime, why_runtime = runtimes.runtime(job, cluster, problems)
    # A script is for a program that has a launcher of its own.
    name = job.launcher or ("spawn" if job.script else "torchrun")
    launcher = runtimes.plugin("launchers", name, job.where("launcher"), problems)
    ranks.check_launcher(job, launcher, problems)
    _check_alone(job, problems)
    stage, why_stage = runtimes.stage(job, runtime, problems)
    unpack, why_unpack = staging.choose_unpack(job, runtime, launcher, stage, problems)
    preemption.check(job, problems)
    runtimes.check_spares(job, stage, problems)
    runtimes.check_remap_root(job, runtime, problems)
    reasons = Reasons(why_runtime=why_runtime, why_stage=why_stage, why_unpack=why_unpack)
    return ChosenPlugins(runtime, launcher, stage, unpack, reasons)


def _check_alone(job: Job, problems: Problems) -> None:
    """Refuse keys that say nothing, since all is off to which they belong."""
    for name, key in KEYS.items():
        if key.asks_for and getattr(job, name) and job.is_alone(name):
            problem = f"{name} says nothing without {key.asks_for.partition(':')[0]}"
            problems.add(job.where(name), problem, f"add `{key.asks_for}`, or leave it out")


def check_line(run_dir: str, problems: Problems) -> None:
    """Refuse a run directory whose path has a character that no line of text can hold."""
    if found := values.CONTROL.search(run_dir):
        problem = f"its path contains the control character {found.group()!r}"
        fix = "Slurm reads it from one line of text: start from another folder"
        problems.add("the run directory", problem, fix)


def take_variables(
    job: Job, cluster: Cluster, problems: Problems, launcher: Optional[Plugin] = None
) -> Variables:
    """Return the variables of a job: its own, its profile's, and what it inherits of this shell."""
    of_launcher = launcher.words("sets") if launcher else []
    of_others = {*inherit.by_name(job.inherit), *of_launcher}
    of_profile = {name: value for name, value in cluster.env.items() if name not in of_others}
    own = {**of_profile, **job.env}
    named = [*cluster.secrets.values(), *job.secrets.values()]
    for name in job.env.keys() & of_launcher:
        problem = f"{name} is set by the launcher, which a value of the job would lead astray"
        problems.add(job.where("env"), problem, "remove it")
    known = {*own, *of_launcher, *(secret.name for secret in named)}
    inherited = inherit.take(job.inherit, job.where("inherit"), known, problems)
    return Variables(own, inherited, tuple(item.at for item in named if item.source == "file"))


def _live_program(job: Job, run_dir: str, launcher: str, variables: Variables) -> RankProgram:
    """Return what runs, with live code, and without its secrets and its sweep."""
    command = job.command
    if job.script:
        command = ("bash", f"{run_dir}/{run_paths.OWN_LINES}", "script", *command[2:])
    return RankProgram(
        launcher=launcher,
        command=command,
        script=job.script,
        setup=job.setup,
        host_setup=job.host_setup,
        workdir=job.workdir,
        env=tuple({**variables.inherited, **variables.own}.items()),
        inherited=tuple(variables.inherited),
        secrets=(),
        sweep=(),
    )


def _container(
    job: Job, chosen: ChosenPlugins, view: FileView, scratch: str, problems: Problems
) -> Container:
    image = job.image if view.has_container else None
    file = Path(image) if image and "://" not in image else None
    return Container(
        runtime=chosen.runtime.name if chosen.runtime else "",
        image=image,
        fingerprint=image_files.fingerprint(file) if file else None,
        sha256=_image_sha256(job, file, problems) if file else None,
        mounts=view.mounts,
        remap_root=bool(job.remap_root),
        stage=chosen.stage,
        cache=staging.choose_cache(job, chosen.runtime, scratch, problems),
        packages=packages.requested(job, chosen.runtime, scratch, problems),
        unpack=chosen.unpack,
    )


def _image_sha256(job: Job, image: Path, problems: Problems) -> Optional[str]:
    """Return the sha256 of a file that `kit build` made; only the nodes check any other file."""
    try:
        return image_files.check(image) or None
    except KitError as error:
        problems.add(job.where("image"), error.problem, error.fix)
        return None


def _policy(
    job: Job, run_dir: str, view: FileView, sources: secrets.Secrets, problems: Problems
) -> Policy:
    return Policy(
        max_restarts=job.max_restarts or 0,
        elastic=bool(job.elastic),
        on_preempt=job.on_preempt or "none",
        checkpoint_s=job.checkpoint_s or sbatch.CHECKPOINT_S,
        max_requeues=job.max_requeues,
        resubmit=bool(job.resubmit),
        checkpoints=preemption.checkpoints(job, run_dir, view, problems),
        health=_health_program(job, problems),
        stall_s=job.stall_timeout or 0,
        on_stall=job.on_stall or "end",
        ready_timeout_s=job.ready_timeout_s or READY_TIMEOUT_S,
        share=job.share or "",
        notify=notify.check(
            job.notify,
            {secret.name for secret in sources},
            problems,
            sees_stalls=bool(job.stall_timeout),
        ),
    )


def _health_program(job: Job, problems: Problems) -> str:
    """Return how the job looks at its nodes first: `quick`, the site's program, or nothing."""
    found = job.health or ""
    if not found or found == values.QUICK:
        return found
    if not os.path.exists(found):
        fix = "correct the path; ignore this if only the nodes have it"
        problems.warn(job.where("health"), f"{found} is not on this machine", fix)
    elif os.path.isdir(found) or not os.access(found, os.X_OK):
        fix = f"make it one: chmod +x {found}"
        problems.add(job.where("health"), f"{found} is not a program", fix)
    return found


def _profile(cluster: Cluster) -> Profile:
    return Profile(
        cluster=cluster.name,
        text=cluster.text,
        scratch=cluster.scratch,
        bad_nodes=bad_nodes.file(cluster.name),
        expect=cluster.expect,
    )
