#!/usr/bin/env python3
"""Faults and hangs of ten kinds at random moments, and what kit has kept of each when its job is
over: the right rank, the right node and the right cause, and how soon.

    KIT_CLUSTER_TIMES=default make cluster && python bench/faults.py [--rounds 5] [--check]

A sample is a job of its own: a small training on CPUs (faults_program.py, torch with gloo) with
`stall_timeout: 15s` and no restarts. A random time after its first step something happens to a
random rank, or to a random node other than the first, with which Slurm itself ends a job. Nobody
types a command while the job runs. When it has ended, `kit why --json` has to name

  the rank and its node, or the node that was lost
  the cause, by its name in docs/causes.md; of ranks that stand still also the place where the rank
  at fault stands

and that was to be on disk within 60 s of the last step that any rank has said. What tells counts:
the events `blamed` and `node_lost`, and of a hang the stacks that the event `stalled` announces.

Ranks are on this machine, under `kit run`, on two nodes of two ranks, started by torchrun or by
srun's stand-in as chance has it, four jobs at a time. Nodes are lost on the Slurm cluster in
Docker of tests/cluster, in jobs of three nodes of one rank in Apptainer, on Slurm's own time-outs,
at the same time as the other faults. A watchdog gives ranks that work more time where others use
their CPUs, too; so each job of this machine gets twelve times the share of the CPUs that anything
else here has, as a cluster's node does nothing else. "By the kernel" means a control group with too
little memory. So this wants root and the first version of control groups.

KIT_FAULTS_SEED is another seed; a sample that is not as it should be stays in the folder that its
line names.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import cluster
import fault_kinds
import measure
from fault_kinds import KINDS, LOST, NODES, RANKS, Fault
from measure import HERE, CannotMeasure, Tally

STALL_S = 15
KEPT_S = 60  # the goal, from the last step
AT_ONCE = 4
KIT = Path(sys.executable).with_name("kit")
PROGRAM = HERE / "faults_program.py"
CPU, MEMORY = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/memory")
SHARE = 12_288  # of the CPUs, for a job; what nobody has set has 1,024
SEED = int(os.environ.get("KIT_FAULTS_SEED") or random.SystemRandom().randrange(100_000))

LOSE: dict[str, Callable[[str], None]] = {
    "killed": cluster.kill,
    "frozen": cluster.freeze,
    "cut off": cluster.cut_off,
}


@dataclass(frozen=True)
class Kept:
    """What is known of a fault afterwards."""

    fault: Fault
    rank: object
    node: str
    cause: str
    said: str  # by kit why
    took_s: float  # from the last step until it was on disk

    def wrong(self) -> str:
        causes, words = KINDS[self.fault.kind][self.fault.how]
        problems = []
        if self.fault.kind != LOST and self.rank != self.fault.rank:
            problems.append(f"rank {self.rank}")
        if self.node != self.fault.node:
            problems.append(f"node '{self.node}'")
        if self.cause not in causes or words not in self.said:
            problems.append(f"cause '{self.cause}'")
        if self.took_s > KEPT_S:
            problems.append(f"after {self.took_s:.0f} s")
        return ", ".join(problems)


def steps(logs: Path) -> dict[int, list[float]]:
    """{rank: when it said its steps}"""
    said = {int(path.stem[len("rank") :]): path for path in logs.glob("rank*.out")}
    pattern = re.compile(r"^step \d+ at ([\d.]+) ", re.M)
    return {
        rank: [float(at) for at in pattern.findall(path.read_text(errors="replace"))]
        for rank, path in said.items()
    }


def events(logs: Path) -> list[dict[str, object]]:
    file = logs / "events/batch.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def until(is_so: Callable[[], object], within_s: float) -> bool:
    end_s = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.1)
    return True


def kept(fault: Fault, logs: Path, report: str, said: str) -> Kept:
    last_s = max((at_s for of_rank in steps(logs).values() for at_s in of_rank), default=0)
    at_s = float("inf")
    for event in events(logs):
        if event["event"] in ("blamed", "node_lost", "stalled"):
            at_s = float(str(event["t"]))
            stacks = logs / "stacks.1"
            if event["event"] == "stalled":
                at_s = max(at_s, stacks.stat().st_mtime) if stacks.exists() else float("inf")
            break
    found = json.loads(report)
    return Kept(fault, found["rank"], found["node"], found["cause"], said, at_s - last_s)


def of_rank(fault: Fault, folder: Path) -> Kept:
    """A job of this machine in which a rank goes wrong."""
    folder.mkdir()
    shutil.copy(PROGRAM, folder / "program.py")
    env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "OMP_NUM_THREADS": "1"}
    shape = ["-j", f"{NODES}x{RANKS // NODES}", "--launcher", fault.launcher, "--output", "run"]
    options = ["--runtime", "none", "--stall-timeout", f"{STALL_S}s"]
    arguments = ["--", str(folder), fault.how, str(fault.rank)]

    def kit(*words: str, **more: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [KIT, *words], cwd=folder, env=env, text=True, stdin=subprocess.DEVNULL, **more
        )

    with (
        (folder / "said").open("w") as output,
        control_group(fault, folder),
        cpu_group(fault) as group,
    ):
        job = kit(
            *("run", "program.py", *shape, *options, *arguments),
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
            stdout=output,
            stderr=output,
        )
        logs = Path()

        def all_step() -> bool:
            nonlocal logs
            logs = next(iter(folder.glob("run/log/*/")), Path())
            return job.poll() is not None or len([r for r in steps(logs).values() if r]) == RANKS

        until(all_step, 300)
        time.sleep(fault.after_s)
        (folder / "now").touch()
        if fault.how in ("SIGKILL", "SIGSTOP"):
            with contextlib.suppress(OSError):  # it has ended before: a false alarm
                pid = int((folder / f"pid-{fault.rank}").read_text())
                os.kill(pid, getattr(signal, fault.how))
        try:
            job.wait(240)
        except subprocess.TimeoutExpired:
            job.terminate()
            job.wait()
    report, said = (
        kit("why", *words, stdout=subprocess.PIPE).communicate()[0] for words in (["--json"], [])
    )
    return kept(fault, logs, report, said)


@contextlib.contextmanager
def cpu_group(fault: Fault) -> Iterator[Path]:
    """A control group for a job, with a large share of the CPUs."""
    group = CPU / f"kit-faults-{os.getpid()}-{fault.number}"
    group.mkdir()
    try:
        (group / "cpu.shares").write_text(str(SHARE))
        yield group
    finally:
        if until(lambda: not (group / "cgroup.procs").read_text(), 30):
            group.rmdir()


@contextlib.contextmanager
def control_group(fault: Fault, folder: Path) -> Iterator[None]:
    """One with little memory, where the kernel is to end a rank for that."""
    if fault.how != "by the kernel":
        yield
        return
    group = MEMORY / f"kit-faults-{os.getpid()}-{fault.number}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(256 << 20))
        (folder / "memory-group").symlink_to(group)
        yield
    finally:
        until(lambda: not (group / "cgroup.procs").read_text(), 30)
        group.rmdir()


SUBMIT = """
mkdir "$1"; cd "$1"; cp ../program.py .
kit submit program.py -j 3x1 --runtime apptainer --image "$2" --stall-timeout "$3" \\
  --output run -- "$1" >/dev/null
"""


def of_node(fault: Fault, shared: str, folder: Path) -> Kept:
    """A job of the cluster that loses a node."""
    inside = f"{shared}/{fault.number}"
    cluster.bash("ctl", SUBMIT, inside, cluster.IMAGES["apptainer"], f"{STALL_S}s")
    job = str(json.loads((folder / "run/run.json").read_text())["job_id"])
    logs = folder / f"run/log/{job}"
    begun = until(lambda: len([r for r in steps(logs).values() if r]) == len(cluster.NODES), 900)
    if not begun:
        raise CannotMeasure(f"the ranks of job {job} take no steps: {folder}")
    time.sleep(fault.after_s)
    try:
        LOSE[fault.how](fault.node)
        until(lambda: any(event["event"] == "ends" for event in events(logs)), 240)
    finally:
        cluster.heal(fault.node)
    cluster.bash("ctl", 'scancel "$1" || true', job)
    report, said = (
        cluster.bash("ctl", 'cd "$1"; shift; exec kit why run "$@"', inside, *words)
        for words in (["--json"], [])
    )
    return kept(fault, logs, report, said)


def tried(fault: Fault, folder: Path, shared: str) -> Kept:
    if fault.kind == LOST:
        folder = cluster.shared() / Path(shared).name / str(fault.number)
        found = of_node(fault, shared, folder)
    else:
        found = of_rank(fault, folder)
    wrong = found.wrong()
    how = f"{fault.kind}: {fault.how}, {fault.launcher}"
    print(
        f"{how}: rank {fault.rank} on {fault.node}, {fault.after_s:.1f} s after the first step:"
        f" rank {found.rank} on {found.node}, {found.cause}, kept after {found.took_s:.1f} s"
        + (f"; WRONG: {wrong}; {folder}" if wrong else ""),
        flush=True,
    )
    if not wrong:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def of_all(faults: list[Fault], folder: Path, shared: str) -> list[Kept]:
    with futures.ThreadPoolExecutor(AT_ONCE) as here, futures.ThreadPoolExecutor(1) as nodes:
        pending = [
            (nodes if fault.kind == LOST else here).submit(
                tried, fault, folder / str(fault.number), shared
            )
            for fault in faults
        ]
        return [each.result() for each in futures.as_completed(pending)]


def run(rounds: int) -> Iterator[Tally]:
    if not os.access(MEMORY, os.W_OK) or not os.access(CPU, os.W_OK):
        raise CannotMeasure(f"no control group can be made in {MEMORY} and {CPU}: be root")
    cluster.install_kit()
    cluster.check_times()
    print(f"seed {SEED}", flush=True)
    faults = fault_kinds.draw(SEED, rounds)
    folder = Path(tempfile.mkdtemp(prefix="kit-faults."))
    shared = cluster.bash("ctl", "mktemp --directory --tmpdir=/shared faults.XXXXXX")
    shutil.copy(PROGRAM, cluster.shared() / Path(shared).name / "program.py")
    found = of_all(faults, folder, shared)
    found.sort(key=lambda each: each.fault.number)
    right: dict[str, list[bool]] = {kind: [] for kind in KINDS}
    took_s: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for each in found:
        right[each.fault.kind].append(not each.wrong())
        took_s[each.fault.kind].append(each.took_s)
    yield Tally(CLAIM, DOES, right, took_s, "from the last step until it was kept", 48 / 50)


CLAIM = "rank, node and cause of a fault, kept within 60 s"
DOES = (
    f"A rank or a node goes wrong at a random moment, `stall_timeout: {STALL_S}s`, nobody types a"
    " command; what `kit why` says afterwards is right, and was on disk that long after the last"
    " step."
)


def versions() -> dict[str, str]:
    load = f"{os.getloadavg()[2]:.1f} (mean of the last 15 minutes, this included)"
    own = {"load": load, "seed": str(SEED)}
    return {"torch": version("torch"), **cluster.slurm_versions(), **own}


if __name__ == "__main__":
    measure.main(run, rounds=5, versions=versions)
