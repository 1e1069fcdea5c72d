"""Run train/bandwidth.py with the image, the shape and the cluster of a job: `kit bench`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from kit.base import assets
from kit.base.errors import Problems, UsageError
from kit.config import bandwidth_target, job_file
from kit.config.job import Job
from kit.config.yaml_source import Located, is_option
from kit.plan import preemption
from kit.plan.plan import Plan, Snapshot
from kit.plan.run_paths import RunPaths
from kit.plan.source_files import Sources

PROGRAM = "bandwidth.py"
FILES = (PROGRAM, "collectives.py", "ranks.py")  # the program in train/, and its imports
LAUNCHERS = ("torchrun", "srun", "mpi")  # ranks.py knows the variables of these
TIME = "00:30:00"  # a job's own limit is for training
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
MOST_BYTES = 64 << 30
NAME = "bench"


@dataclass(frozen=True)
class BenchRequest:
    """What the command line asks for, beside a job's own options."""

    sizes: Optional[str] = None
    repeats: Optional[int] = None
    pairs: bool = False
    local: bool = False
    busbw: Optional[str] = None  # the expected GB/s, in the place of the profile's
    share: Optional[str] = None
    dry_run: bool = False


def load(
    target: Optional[str], overrides: dict[str, Located], arguments: list[str], problems: Problems
) -> Job:
    """Return the job without its command, and without what is for its training alone."""
    if target and not job_file.is_yaml(Path(target)):
        show = f"to see what a run of it measured: kit bench --show {target}"
        fix = f"kit bench starts a program of its own; {show}"
        raise UsageError(f"'{target}' is not a job file", fix)
    if "launcher" in overrides and overrides["launcher"].value not in LAUNCHERS:
        problem = f"kit bench does not run under {overrides['launcher'].value}"
        fix = f"choose one of {', '.join(LAUNCHERS)}, or leave it out"
        problems.add("--launcher", problem, fix)
    if "script" in overrides:
        job_file.refuse_typed([overrides["script"].where], "bench", problems)
        overrides = {name: item for name, item in overrides.items() if name != "script"}
    program = str(assets.folder("train") / PROGRAM)
    command = {"command": Located([Located(program, "kit bench")], "kit bench")}
    job = job_file.load(target or program, {**overrides, **command}, arguments, problems)
    name = job.name if "name" in overrides else f"{job.name}-{NAME}" if target else NAME
    launcher = job.launcher if job.launcher in LAUNCHERS or "launcher" in overrides else None
    left_out = ("code", "sweep", "array", *preemption.NEVER)
    job = job_file.without(job, left_out, "bench", problems)
    time = job.time if "time" in overrides else TIME
    slurm = dict(job.slurm)
    if not is_option(slurm.get("time-min", Located("", "")).where):
        slurm["time-min"] = Located("no", "")  # it is for the training, and longer
    return replace(job, name=name, launcher=launcher, time=time, slurm=slurm, code="live")


def with_program(plan: Plan, request: BenchRequest) -> Plan:
    """Return the plan with the program in its run directory, where every node sees it."""
    problems = Problems()
    arguments = [str(RunPaths(plan.layout.run_dir).code / PROGRAM)]
    if request.sizes is not None:
        arguments += ["--sizes", *map(str, sizes(request.sizes, problems))]
    if request.repeats is not None:
        if request.repeats < 1:
            problem = f"{request.repeats} is not a number of repetitions"
            problems.add("--repeats", problem, "give 1 or more, or leave it out")
        arguments += ["--repeats", str(request.repeats)]
    if request.pairs:
        if plan.layout.nodes == 1:
            problem = "pairs need at least two nodes"
            problems.add("--pairs", problem, "ask for more: --nodes 4")
        arguments += ["--pairs"]
    if plan.layout.ranks == 1:
        fix = "ask for more: -j 2x1, nodes x processes per node"
        problems.add("", "a single process has no other to send to", fix)
    expected = plan.profile.expect or bandwidth_target.Expectation()
    busbw = None if request.busbw is None else Located(request.busbw, "--expect")
    share = None if request.share is None else Located(request.share, "--share")
    wanted = bandwidth_target.override(expected, busbw, share, problems)
    if share and not wanted.busbw:
        problems.add("--share", "nothing says what it is a share of", "add --expect GBPS")
    if wanted.busbw:
        arguments += ["--expect", f"{wanted.busbw:g}", f"{wanted.share:g}"]
    problems.raise_if_any()
    folder = assets.folder("train")
    count = sum((folder / name).stat().st_size for name in FILES)
    sources = Sources(str(folder), FILES, count, by_git=False, left_out=(), notes=())
    code = Snapshot(sources, str(folder), (PROGRAM,), is_module=False)
    return replace(
        plan,
        program=replace(plan.program, command=tuple(arguments), code=code),
        reasons=replace(plan.reasons, why_live=""),
    )


def sizes(text: str, problems: Problems) -> list[int]:
    """Return the bytes of "1K-256M,300M"; a range goes in steps of a factor of 2."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = [_size(end, problems) for end in ([first, last] if dash else [first])]
        if None in ends:
            continue
        low, high = ends[0] or 0, ends[-1] or 0
        if low > high:
            problem = f"'{part}' begins with the larger size"
            problems.add("--sizes", problem, f"write {last}-{first}")
            continue
        while low < high:
            found.add(low)
            low *= 2
        found.add(high)
    return sorted(found)


def _size(text: str, problems: Problems) -> Optional[int]:
    match = re.fullmatch(r"(\d+)([KMG]?)(?:I?B)?", text.strip().upper())
    count = int(match[1]) * UNITS[match[2]] if match else 0
    if not 4 <= count <= MOST_BYTES:
        problem = f"'{text}' is not a size"
        if match:
            problem = f"'{text}' is not a size from 4 bytes (one number) to 64G"
        problems.add("--sizes", problem, "write 64K, 1K-256M, or 1M,8M,64M")
        return None
    return count
