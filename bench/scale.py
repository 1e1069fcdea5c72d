#!/usr/bin/env python3
"""What grows with the number of nodes: kit on 10,000 of them, or on what 1,000 x 8 ranks have left,
beside kit on two.

    python bench/scale.py [--rounds N] [--check]

Both sides of a comparison are the same command of the same kit, on the large case ("kit") and on
the small one ("2 nodes"); so a ratio is what all the other nodes add, and 1 is the best there can
be. Beside them, where there is one, what somebody would do without kit: a plain batch script of the
same two lines for every number of nodes, or cat and grep over the same logs.

No machine has 10,000 nodes: scontrol, srun, sbatch, squeue and getent are stand-ins of one line of
sh, the same on both sides. They print what Slurm's would (all host names, an answer of each node),
and their processes are counted; but what Slurm itself needs is not in these figures. Of that, kit
asks for one `scontrol show hostnames`, whose first line it reads, and two srun.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from measure import (
    KIT,
    ROOT,
    CannotMeasure,
    Comparison,
    Goal,
    Lines,
    main,
    progress,
    spread,
    take_turns,
)

MANY, FEW = "10,000 nodes", "2 nodes"
RANKS = 8  # of a node
JOB = "4711"
PYTHON = "the interpreter"
# Of the rounds, for the commands that read what a run left: they take most of a second, and the
# scripts a tenth of it.
SHARE = 0.4
OF_JOBS = ("SLURM", "KIT_", "CUDA_")  # variables of a job that this may run in


class Used(NamedTuple):
    """Of a process and all that it started and waited for."""

    time_s: float
    cpu_s: float
    memory_mb: float  # at most, of the largest one


class Site:
    """A folder with stand-ins for Slurm's commands, for jobs of so many nodes, and a history of its
    own."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder, self.nodes = folder, nodes
        self.names = [f"node{number:05}" for number in range(nodes)]
        (folder / "bin").mkdir(parents=True)
        (folder / "train.py").touch()
        (folder / "hosts").write_text("".join(f"{name}\n" for name in self.names))
        (folder / "answers").write_text(
            "".join(
                f"{name} 1795266353.969723 1795266353.979723 1795266354.009723\n"
                for name in self.names
            )
        )
        self.stand_in("scontrol", f'[ "$1 $2" != "show hostnames" ] || exec cat "{folder}/hosts"')
        self.stand_in("srun", f'case "$*" in *prepare*) exec cat "{folder}/answers" ;; esac')
        self.stand_in("getent", f'echo "{own_address()} STREAM $2"')
        self.stand_in("sbatch", f"echo {JOB}")
        for name in ("squeue", "sacct", "sinfo"):
            self.stand_in(name, "exit 0")
        # torchrun's start is torch's, not kit's: a Python that "has" torch, and does nothing.
        self.stand_in("python3", "exit 0")
        (folder / "lib/python3.11/site-packages/torch").mkdir(parents=True)

    def stand_in(self, name: str, body: str) -> None:
        (self.folder / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.folder / "bin" / name).chmod(0o755)

    def environment(self) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(OF_JOBS) and name != "PYTHONDONTWRITEBYTECODE"
        }
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        return {
            **inherited,
            "PATH": path,
            "XDG_STATE_HOME": str(self.folder / "state"),
            "PYTHONPATH": str(ROOT / "launch"),
        }

    def in_job(self, node: int = 0, **variables: str) -> dict[str, str]:
        shape = {
            "SLURM_JOB_NODELIST": f"node[00000-{self.nodes - 1:05}]",
            "SLURM_JOB_NUM_NODES": str(self.nodes),
            "SLURM_NNODES": str(self.nodes),
        }
        return {
            **self.environment(),
            **shape,
            "SLURM_JOB_ID": JOB,
            "SLURMD_NODENAME": self.names[node],
            **variables,
        }

    def kit(self, *words: str) -> Used:
        return used([sys.executable, "-m", "kit", *words], self.folder, self.environment())

    def render(self, run: str) -> Used:
        return self.kit("render", "train.py", "-j", f"{self.nodes}x{RANKS}", "--output", run)

    def batch(self) -> Used:
        """The batch script, from its start to "all ranks ended well"."""
        return used(["bash", "run_script.sh"], self.folder / "run", self.in_job())

    def plain(self) -> Used:
        return used(["bash", "plain.sh"], self.folder, self.in_job())

    def node(self) -> Used:
        """What the second srun starts on a node, up to torchrun."""
        noted = read(self.folder / f"run/log/{JOB}/events/batch.jsonl").splitlines()
        (told,) = (json.loads(line)["facts"] for line in noted if '"event": "told"' in line)
        facts = [line for line in told.splitlines() if not line.startswith("KIT_HOSTS=")]
        task = self.in_job(1, SLURM_NODEID="1", SLURM_PROCID="1", SLURM_LOCALID="0")
        return used(["bash", "run_script.sh", "start", *facts], self.folder / "run", task)


PLAIN = """\
#!/bin/bash
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) MASTER_PORT=29500
srun bash -c 'torchrun --nnodes "$SLURM_NNODES" --node-rank "$SLURM_NODEID" --nproc-per-node 8 \\
  --master-addr "$MASTER_ADDR" train.py'
"""


# A process begins as a copy of the one that starts it, whose memory would count as its own: so a
# small one starts it, and measures.
STARTER = """
import os, sys, time
devnull = os.devnull
quiet = [(os.POSIX_SPAWN_OPEN, 0, devnull, os.O_RDONLY, 0)]
quiet.append((os.POSIX_SPAWN_OPEN, 1, devnull, os.O_WRONLY, 0))
start = time.perf_counter()
process = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, usage = os.wait4(process, 0)
print(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
sys.exit(os.waitstatus_to_exitcode(status) != 0)
"""


def used(command: list[str], folder: Path, environment: dict[str, str]) -> Used:
    done = subprocess.run(
        [sys.executable, "-ISc", STARTER, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise CannotMeasure(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return Used(*map(float, done.stdout.split()))


def own_address() -> str:
    """An address of this machine that is not loopback, as a first node has one; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
    except OSError:
        raise CannotMeasure(
            "this machine has no address but loopback: connect it to a network"
        ) from None


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def times(values: dict[str, list[Used]]) -> dict[str, list[float]]:
    return {side: [item.time_s for item in items] for side, items in values.items()}


def cpu(values: dict[str, list[Used]]) -> dict[str, list[float]]:
    return {side: [item.cpu_s for item in items] for side, items in values.items()}


def memory(values: dict[str, list[Used]]) -> dict[str, list[float]]:
    return {side: [item.memory_mb for item in items] for side, items in values.items()}


# ---------------------------------------------------------------- the scripts of a job


def scripts(folder: Path, rounds: int) -> Iterator[Comparison]:
    many, few = Site(folder / "many", 10000), Site(folder / "few", 2)
    for site in (many, few):
        site.render("run")
        (site.folder / "plain.sh").write_text(PLAIN)
    naive = f"a plain script, {MANY}"
    values = take_turns({KIT: many.batch, FEW: few.batch, naive: many.plain}, rounds)
    does = (
        f"The batch script of a job of {MANY} or 2, with stand-ins for scontrol, getent and both"
        " srun: kit's asks every node whether it is ready, and keeps their answers; the plain"
        " script has one line for MASTER_ADDR, and one srun, and knows nothing of its nodes."
    )
    yield Comparison(
        f"batch script, {MANY}: CPU", does, cpu(values), goals=[Goal(FEW, 1.2)], headline=True
    )
    yield Comparison(f"batch script, {MANY}: time", does, times(values), goals=[Goal(FEW, 1.2)])
    values = take_turns({KIT: many.node, FEW: few.node}, rounds)
    does = "run_script.sh start on one node, up to the start of torchrun, which is a stand-in."
    yield Comparison(
        f"one node's start, of {MANY}", does, times(values), goals=[Goal(FEW, 1.1)], headline=True
    )
    yield from decisions(many, few, rounds)


def decisions(many: Site, few: Site, rounds: int) -> Iterator[Comparison]:
    number = iter(range(sys.maxsize))
    values = take_turns(
        {KIT: lambda: many.render(f"r{next(number)}"), FEW: lambda: few.render(f"r{next(number)}")},
        rounds,
    )
    yield Comparison(
        f"kit render, {MANY}", "Writes a run directory.", times(values), goals=[Goal(FEW, 1.05)]
    )

    def submit(site: Site) -> Callable[[], Used]:
        return lambda: site.kit(
            "submit", "train.py", "-j", f"{site.nodes}x{RANKS}", "--output", f"s{next(number)}"
        )

    values = take_turns({KIT: submit(many), FEW: submit(few)}, rounds)
    yield Comparison(
        f"kit submit, {MANY}",
        "Writes a run directory, and calls a stand-in for sbatch.",
        times(values),
        goals=[Goal(FEW, 1.05)],
        headline=True,
    )
    sizes = {
        side: [float(size(site.folder / "run")) / 1000] for side, site in ((KIT, many), (FEW, few))
    }
    yield Comparison(
        f"a run directory for {MANY}",
        "All files of it, before the start.",
        sizes,
        "kB",
        [Goal(FEW, 1.01)],
        0.01,
    )


def event(name: str, at_s: float, **values: object) -> str:
    """A line as the scripts write it."""
    return json.dumps({"t": round(at_s, 6), "attempt": 1, "event": name, **values}) + "\n"


def size(run: Path) -> int:
    return sum(path.stat().st_size for path in run.iterdir() if path.is_file())


# ---------------------------------------------------------------- what a run has left


def recorded(folder: Path, nodes: int, ranks: int = RANKS) -> Site:
    """A run of so many nodes of which rank 3 of the middle node ran out of memory, and every other
    rank noted that its peer is gone.

    Most ranks have said a few lines, 2 KB at most; each rank of four nodes some thousand. A node's
    log has all of its ranks', as kit writes it.
    """
    site = Site(folder, nodes)
    site.kit("submit", "train.py", "-j", f"{nodes}x{ranks}", "--output", "run")
    logs = folder / "run/log" / JOB
    (logs / "events").mkdir(parents=True)
    culprit, moment = (nodes // 2) * ranks + min(3, ranks - 1), 1795266353.0
    peer = (
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by"
        " peer [10.0.0.1]:23456\n"
    )
    for node, name in enumerate(site.names):
        lines = []
        for rank in range(node * ranks, (node + 1) * ranks):
            steps = 4000 if node % max(1, nodes // 4) == 0 else 2 + rank % 30
            said = [
                f"step {step}: loss {2.3 / (step + 1):.4f}, 1234 samples/s\n"
                for step in range(steps)
            ]
            error = (
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
                if rank == culprit
                else peer
            )
            said += [
                "Traceback (most recent call last):\n",
                '  File "/work/train.py", line 88, in <module>\n',
                "    loss.backward()\n",
                error,
            ]
            (logs / f"rank{rank}.out").write_text("".join(said))
            lines += [f"[rank{rank}] {line}" for line in said]
        (logs / f"{name}.out").write_text("".join(lines))
        begun = moment + 5 + node % 97 / 100
        noted = []
        for rank in range(node * ranks, (node + 1) * ranks):
            own = {"node": name, "rank": rank}
            noted.append(event("rank_started", begun + 5, **own, begun=begun, entered=begun + 1))
            noted.append(event("first_step", begun + 9, **own))
            ended_s = moment + 99 + (0 if rank == culprit else 1 + rank % 100 / 100)
            code = {"local_rank": rank % ranks, "code": 1, "stopped": False}
            noted.append(event("rank_ended", ended_s, **own, **code))
        (logs / f"events/{name}.jsonl").write_text("".join(noted))
        os.utime(logs / f"events/{name}.jsonl", (ended_s, ended_s))
    begun = {"begun": moment + 1, "staged": moment + 2}
    ready = [event("node_ready", moment + 3, node=name, **begun) for name in site.names]
    (logs / "events/ready.jsonl").write_text("".join(ready))
    ahead = [
        event("start", moment, job=JOB),
        event("nodes_chosen", moment + 0.1, nodes=f"node[00000-{nodes - 1:05}]"),
        event("preparing", moment + 0.2),
        event("nodes_ready", moment + 4),
        event("ranks_started", moment + 4),
        event(
            "blamed",
            moment + 109,
            node=site.names[culprit // ranks],
            rank=culprit,
            code=1,
            how="failed",
        ),
        event("ends", moment + 110, code=1),
    ]
    (logs / "events/batch.jsonl").write_text("".join(ahead))
    place = f"node{culprit // ranks:05}"
    end = (
        f"kit: error: {place}: rank {culprit} (local rank {culprit % ranks}) exited with code 1;"
        f" the end of log/{JOB}/rank{culprit}.out:\n"
    )
    srun = "".join(
        f"srun: error: {name}: tasks {node * ranks}-{(node + 1) * ranks - 1}: Exited with exit"
        " code 1\n"
        for node, name in enumerate(site.names)
    )
    begin = (
        f"kit: node00000: job {JOB} on node[00000-{nodes - 1:05}]: {nodes} x {ranks}"
        " processes, runtime none, master 10.0.0.1:61711\n"
    )
    (folder / f"run/log/slurm-{JOB}.out").write_text(
        f"{begin}{srun}{end}  | torch.OutOfMemoryError: CUDA out of memory.\n"
    )
    return site


COMMANDS = {
    "kit why": ("why", JOB),
    "kit status RUN": ("status", JOB),
    "kit timeline": ("timeline", JOB),
    "kit logs --errors": ("logs", JOB, "--errors"),
    "kit logs": ("logs", JOB),
}
BESIDE = {
    "kit why": ("grep -r Error", f'grep -rn Error "run/log/{JOB}"'),
    "kit status RUN": ("tail of all logs", f'tail -qn 1 "run/log/{JOB}/"*.out'),
    "kit logs --errors": ("cat of the same", f'cat "run/log/{JOB}/"rank*.out'),
    "kit logs": ("cat of the same", f'cat "run/log/slurm-{JOB}.out" "run/log/{JOB}/"node*.out'),
}
LEFT = (
    "What 1,000 nodes of 8 ranks left, each with a log of its own and a note of its end: 27 MB in"
    " 18,000 files, beside 2 nodes of 8 ranks, and beside the interpreter that runs kit. "
)


def commands(folder: Path, rounds: int) -> Iterator[Comparison]:
    progress("writing the logs of 8,000 ranks")
    many, few = recorded(folder / "thousand", 1000), recorded(folder / "two", 2)
    for claim, words in COMMANDS.items():
        sides = {
            KIT: lambda words=words: many.kit(*words),
            FEW: lambda words=words: few.kit(*words),
        }  # type: ignore[misc]
        does = LEFT
        if claim in BESIDE:
            name, line = BESIDE[claim]
            sides[name] = lambda line=line: used(
                ["sh", "-c", line], many.folder, many.environment()
            )  # type: ignore[misc]
            does += f"Beside them, on the 1,000 nodes' logs: {line}."
        sides[PYTHON] = lambda: used(
            [sys.executable, "-c", "pass"], many.folder, many.environment()
        )
        values = take_turns(sides, rounds)
        yield Comparison(
            f"{claim}, 1,000 x 8: time",
            does,
            times(values),
            goals=[Goal(PYTHON, 2.0, over=True)],
            headline=True,
        )
        memories = {side: found for side, found in memory(values).items() if side in (KIT, FEW)}
        yield Comparison(
            f"{claim}, 1,000 x 8: memory",
            "The largest resident set of the same.",
            memories,
            "MB",
            [Goal(FEW, 1.5)],
        )


# ---------------------------------------------------------------- against the number of nodes


def pictures(folder: Path, rounds: int) -> Iterator[Lines]:
    names = {"batch script": Site.batch, "kit render": None, "kit why, one rank a node": None}
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for nodes in (2, 10, 100, 1000, 10000):
        progress(f"{nodes} nodes")
        site = Site(folder / f"of{nodes}", nodes)
        site.render("run")
        left = recorded(folder / f"left{nodes}", nodes, ranks=1)
        number = iter(range(rounds + 1))
        sides: dict[str, Callable[[], Used]] = {
            "batch script": site.batch,
            "kit render": lambda site=site, number=number: site.render(f"r{next(number)}"),  # type: ignore[misc]
            "kit why, one rank a node": lambda left=left: left.kit("why", JOB),  # type: ignore[misc]
        }
        for name, items in times(take_turns(sides, rounds)).items():
            points[name].append((nodes, spread(items).median))
    yield Lines("Time against the number of nodes", "nodes", "s", points)


def run(rounds: int) -> Iterator[Comparison | Lines]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield from scripts(folder, rounds)
        yield from commands(folder, max(1, round(rounds * SHARE)))
        yield from pictures(folder, max(1, round(rounds * SHARE)))


def versions() -> dict[str, str]:
    said = subprocess.run(["bash", "--version"], capture_output=True, text=True, check=True).stdout
    return {"bash": said.split("version ")[1].split("(")[0]}


if __name__ == "__main__":
    main(run, rounds=15, versions=versions)
