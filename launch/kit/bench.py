"""kit bench: train/bandwidth.py as a run of its own, with the image, the shape and the cluster of a job."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from kit import assets, expect, snapshot
from kit import job as jobs
from kit.errors import KitError, Problems, UsageError
from kit.given import Given
from kit.plan import Plan
from kit.runs import bandwidth, history
from kit.runs.bandwidth import Measured
from kit.sources import Sources

PROGRAM = "bandwidth.py"
FILES = (PROGRAM, "collectives.py", "ranks.py")  # of train/: the program, and what it imports
LAUNCHERS = ("torchrun", "srun", "mpi")  # those under which ranks.py knows who it is
TIME = "00:30:00"  # a job's own limit is for training
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
MOST_BYTES = 64 << 30
NAME = "bench"


@dataclass(frozen=True)
class Request:
    """What the command line asks for, beside a job's own options."""

    sizes: Optional[str] = None
    repeats: Optional[int] = None
    pairs: bool = False
    local: bool = False
    busbw: Optional[str] = None  # GB/s that are expected, over what the profile says
    share: Optional[str] = None
    dry_run: bool = False


@dataclass(frozen=True)
class Shown:
    """How the result is shown."""

    svg: Optional[str] = None
    as_json: bool = False


def load(target: Optional[str], overrides: dict[str, Given], arguments: list[str], problems: Problems) -> jobs.Job:
    """The job without what is its training's alone: its command, and what repeats, resumes or limits it."""
    if target and not target.lower().endswith((".yaml", ".yml")):
        raise UsageError(f"'{target}' is no job file", f"kit bench starts a program of its own; to see what a run of it measured: kit bench --show {target}")
    if "launcher" in overrides and overrides["launcher"].value not in LAUNCHERS:
        problems.add("--launcher", f"kit bench does not run under {overrides['launcher'].value}", f"choose one of {', '.join(LAUNCHERS)}, or leave it out")
    program = str(assets.folder("train") / PROGRAM)
    command = {"command": Given([Given(program, "kit bench")], "kit bench")}
    job = jobs.load(target or program, {**overrides, **command}, arguments, problems)
    name = job.name if "name" in overrides else f"{job.name}-{NAME}" if target else NAME
    launcher = job.launcher if job.launcher in LAUNCHERS or "launcher" in overrides else None
    training: dict[str, Any] = dict.fromkeys(("sweep", "array", "on_preempt", "checkpoint_s", "max_requeues", "max_restarts"))
    time = job.time if "time" in overrides else TIME
    return job._replace(**training, name=name, launcher=launcher, time=time, code="live")


def run(plan: Plan, request: Request, shown: Shown) -> int:
    """Runs it here or by Slurm, waits for its end, shows what it measured; kit's exit code."""
    from kit import commands

    plan = _with_program(plan, request)
    is_local = not request.dry_run and (request.local or _is_without_slurm())
    try:
        # Whoever reads the JSON wants nothing else on stdout.
        with contextlib.redirect_stdout(sys.stderr) if shown.as_json and not request.dry_run else contextlib.nullcontext():
            if is_local:
                commands.run(plan)
            else:
                commands.submit(plan, dry_run=request.dry_run, test_only=False, follow=True, after=[])
    except (KitError, SystemExit) as error:
        _show_what_there_is(plan, shown, error)
        raise
    return 0 if request.dry_run else show(_of(plan), shown)


def show(found: Measured, shown: Shown) -> int:
    """Prints and draws; kit's exit code."""
    if shown.as_json:
        print(bandwidth.as_json(found))
    else:
        from kit.runs import curve

        curve.show(found)
    if shown.svg:
        from kit.runs import curve_drawing

        Path(shown.svg).write_text(curve_drawing.draw(found), encoding="utf-8")
        print(f"kit: wrote {shown.svg}", file=sys.stderr if shown.as_json else sys.stdout)
    return found.code


def _show_what_there_is(plan: Plan, shown: Shown, error: BaseException) -> None:
    """Of a run that failed, or that the user no longer waits for."""
    if isinstance(error, SystemExit) and error.code == 130 and not (run := _run(plan)).local:
        print(f"kit: to see what it measures: kit bench --show {run.id}", file=sys.stderr, flush=True)
        return
    with contextlib.suppress(KitError):
        show(_of(plan), shown)


def _run(plan: Plan) -> history.Run:
    return history.find(plan.run_dir)


def _of(plan: Plan) -> Measured:
    return bandwidth.read(_run(plan))


def _is_without_slurm() -> bool:
    if shutil.which("sbatch"):
        return False
    print("kit: no Slurm here (no sbatch on PATH), so on this machine alone, as with --local", file=sys.stderr, flush=True)
    return True


def _with_program(plan: Plan, request: Request) -> Plan:
    """The same plan with the program in its run directory, where every node and every container sees it."""
    problems = Problems()
    arguments = [f"{plan.run_dir}/{snapshot.FOLDER}/{PROGRAM}"]
    if request.sizes is not None:
        arguments += ["--sizes", *map(str, sizes(request.sizes, problems))]
    if request.repeats is not None:
        if request.repeats < 1:
            problems.add("--repeats", f"{request.repeats} repetitions are none", "give 1 or more, or leave it out")
        arguments += ["--repeats", str(request.repeats)]
    if request.pairs:
        if plan.nodes == 1:
            problems.add("--pairs", "one node has nobody to be paired with", "ask for more: --nodes 4")
        arguments += ["--pairs"]
    if plan.nodes * plan.processes_per_node == 1:
        problems.add("", "one process alone has nothing to send", "ask for more: -j 2x1, nodes x processes per node")
    wanted = expect.over(plan.expect or expect.Expectation(), request.busbw, request.share, problems)
    if wanted.busbw:
        arguments += ["--expect", f"{wanted.busbw:g}", f"{wanted.share:g}"]
    problems.raise_if_any()
    folder = assets.folder("train")
    count = sum((folder / name).stat().st_size for name in FILES)
    sources = Sources(str(folder), FILES, count, by_git=False, left_out=(), notes=())
    return plan._replace(command=tuple(arguments), code=snapshot.Snapshot(sources, str(folder), (PROGRAM,), is_module=False), why_live="")


def sizes(text: str, problems: Problems) -> list[int]:
    """Bytes, of "1K-256M,300M": what lies between two sizes is taken in steps of a factor of 2."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = [_size(end, problems) for end in ([first, last] if dash else [first])]
        if None in ends:
            continue
        low, high = ends[0] or 0, ends[-1] or 0
        if low > high:
            problems.add("--sizes", f"'{part}' goes from the larger to the smaller", f"write {last}-{first}")
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
        known = "4 bytes, one number, to 64G"
        problems.add("--sizes", f"'{text}' is no size" if not match else f"'{text}' is none of the sizes from {known}", "write 64K, 1K-256M, or 1M,8M,64M")
        return None
    return count
