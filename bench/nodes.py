#!/usr/bin/env python3
"""A job of 64 nodes through kit, beside the shortest batch script for the same program.

    python bench/nodes.py [--rounds 5] [--check]

64 slurmds on this machine (many_slurmds.sh) with one slurmctld; the program is a line of bash that
prints its rank, so what is measured is the way to it. All sides are submitted with `sbatch`, ask
for the same nodes with one task on each, and run without a container; which of them begins changes
from round to round. Moments are slurmctld's own, from its log.

    kit                 `kit render` with `launcher: srun` and `runtime: none`: two steps of srun.
                        The first checks every node and waits until all are ready; the second starts
                        the ranks, each with a log of its own and its exit code noted
    plain srun          `srun bash rank.sh`: one step, no checks, all output in one file
    two plain sruns     `srun true`, then `srun bash rank.sh`: what of the difference is a second
                        step of Slurm's, whatever it does

All nodes share this machine's cores, so what 64 nodes do at the same time elsewhere is done one
after the other here: the seconds for each node are an upper limit, and CPU seconds say what the
work is. Sending a file is compared in the same way: `sbcast`, as `stage: sbcast` calls it, beside
`cp` on every node, as `stage: local` does; here all copies go to one disk. docs/distribution.md has
what other networks and file systems make of that.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import NamedTuple

import cluster
import measure
from measure import HERE, KIT, CannotMeasure, Comparison, Goal, Lines

SIZES = (1, 4, 16, 64)
SENT_TO = (1, 2, 4, 8)
SENT_MB = 32
PLAIN, TWICE, COPY = "plain srun", "two plain sruns", "cp on every node"
MANY = str(HERE / "many_slurmds.sh")

PROGRAM = (
    'printf "rank %s of %s on %s, master %s\\n" "${RANK:-${SLURM_PROCID}}"'
    ' "${WORLD_SIZE:-${SLURM_NTASKS}}" "${SLURMD_NODENAME}" "${MASTER_ADDR:-none}"\n'
)
HEADER = (
    "#!/bin/bash\n#SBATCH --nodes={nodes}\n#SBATCH --ntasks-per-node=1\n#SBATCH"
    " --output={name}-%j.out\n"
)
SCRIPTS = {PLAIN: "srun bash rank.sh\n", TWICE: "srun true\nsrun bash rank.sh\n"}
SEND = {
    KIT: "sbcast --force blob /tmp/sent.${SLURM_JOB_ID}\n",
    # A slurmd has no disk of its own here, so the copies have names of their own.
    COPY: "srun bash -c 'cp blob /tmp/sent.${SLURM_JOB_ID}.${SLURM_PROCID}'\n",
}
# Submits a script, waits until nothing of it is left, and prints its id, the CPU time of all in the
# container before and after it, and what slurmctld's log says of it.
JOB = r"""
cpu() {
  cat /sys/fs/cgroup/cpuacct/cpuacct.usage 2>/dev/null ||
    sed -n 's/^usage_usec \(.*\)/\1000/p' /sys/fs/cgroup/cpu.stat
}
before="$(cpu)"
job="$(runuser -u ada -- sbatch --parsable "$1")"
while squeue --noheader --jobs="${job}" 2>/dev/null | grep -q .; do sleep 0.1; done
echo "cpu $(($(cpu) - before))"
rm -f /tmp/sent.*
grep -h "JobId=${job} " /var/log/slurm/slurmctld.log
"""
MOMENT = re.compile(r"^\[([^\]]+)\] (.*)$", re.MULTILINE)
BY_ONE_MACHINE = "All nodes share this machine's cores and its disk."
STEPS = "kit runs 2 steps of srun, plain srun 1, and two plain sruns 2."


class Ended(NamedTuple):
    """A job, in seconds."""

    from_submission: float  # to the batch script's end
    script: float  # from the allocation to the batch script's end
    cpu: float  # of all nodes and Slurm's daemons


def run(rounds: int) -> Iterator[Comparison | Lines]:
    with slurmds(max(SIZES)):
        prepare()
        check(max(SIZES))
        taken = {nodes: turns(nodes, rounds) for nodes in SIZES}
        for nodes in SIZES:
            what = f"{nodes} node{'s' if nodes > 1 else ''}, one rank each"
            does = f"From the allocation to the end of the batch script. {STEPS}"
            yield Comparison(
                f"{what}: the batch script", does, values(taken[nodes], "script"), tolerance=0.5
            )
        yield from of_all(max(SIZES), taken)
        yield picture("The batch script, from its start to its end", "script", taken)
        yield picture("CPU time of all nodes and of Slurm", "cpu", taken)
        yield from sent(rounds)


@contextlib.contextmanager
def slurmds(count: int) -> Iterator[None]:
    """They are taken down however this ends."""
    signal.signal(signal.SIGTERM, lambda *_: exit(143))
    try:
        up = subprocess.run(
            [MANY, "up", str(count)], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if up.returncode != 0:
            raise CannotMeasure(f"{count} slurmds do not start: {up.stderr.strip()[-1000:]}")
        yield
    finally:
        subprocess.run([MANY, "down"], check=False)


def there(*command: str, user: str = "exec", stdin: str = "") -> str:
    """What a command in the container prints; as the user ada, or with "root"."""
    done = subprocess.run(
        [MANY, user, *command], input=stdin or None, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise CannotMeasure(
            f"{' '.join(command)} ended with"
            f" {done.returncode}:\n{(done.stdout + done.stderr).strip()[-2000:]}"
        )
    return done.stdout


def prepare() -> None:
    """This checkout's kit on the controller, and all scripts."""
    cluster.install_kit(f"{os.environ.get('KIT_CLUSTER_NAME', 'kit')}-many")
    write("rank.sh", PROGRAM)
    for nodes in SIZES:
        write(
            f"job{nodes}.yaml",
            f"command: [bash, rank.sh]\nlauncher: srun\nruntime: none\nnodes: {nodes}\n",
        )
        there("kit", "render", f"job{nodes}.yaml", "--output", f"run{nodes}")
        for side, text in SCRIPTS.items():
            write(plain(side, nodes), HEADER.format(nodes=nodes, name="plain") + text)


def write(name: str, text: str) -> None:
    there("bash", "-c", 'printf "%s" "$2" >"$1"', "bash", name, text)


def plain(side: str, nodes: int) -> str:
    return f"{side.replace(' ', '-')}.{nodes}.sh"


def script(side: str, nodes: int) -> str:
    return f"run{nodes}/run_script.sh" if side == KIT else plain(side, nodes)


def check(nodes: int) -> None:
    """Through `kit submit`: every rank once and in order, the first node's address, and that kit's
    own commands see all of it."""
    there(
        "bash", "-c", f"kit submit job{nodes}.yaml --output checked && kit logs -f checked", "bash"
    )
    found = there("bash", "-c", "cat checked/log/*/rank*.out").splitlines()
    address = there("getent", "ahostsv4", "n1").split()[0]
    expected = {f"rank {rank} of {nodes} on n{rank + 1}, master {address}" for rank in range(nodes)}
    if len(found) != nodes or set(found) != expected:
        raise CannotMeasure(
            f"the ranks of {nodes} nodes are not what they should be:\n" + "\n".join(found)
        )
    for command, wanted in (
        ("status", "COMPLETED"),
        ("timeline", "n1"),
        ("logs", f"rank{nodes - 1}"),
    ):
        if wanted not in (said := there("kit", command, "checked")):
            raise CannotMeasure(f"kit {command} does not say {wanted} of {nodes} nodes:\n{said}")


def job(name: str) -> Ended:
    said = there("bash", "-c", JOB, "bash", name, user="root")
    moments = {
        what.split(": ")[0].split(":")[0]: datetime.fromisoformat(when)
        for when, what in MOMENT.findall(said)
    }
    submitted, ended = moments["_slurm_rpc_submit_batch_job"], moments["_job_complete"]
    started = next(
        moment for what, moment in moments.items() if what in ("sched", "sched/backfill")
    )
    if "WEXITSTATUS 0" not in said:
        raise CannotMeasure(f"the job {name} did not end well:\n{said}")
    cpu_ns = int(re.findall(r"^cpu (\d+)$", said, re.MULTILINE)[0])
    return Ended(
        (ended - submitted).total_seconds(), (ended - started).total_seconds(), cpu_ns / 1e9
    )


def turns(nodes: int, rounds: int) -> dict[str, list[Ended]]:
    return measure.take_turns(
        {side: partial(job, script(side, nodes)) for side in (KIT, PLAIN, TWICE)}, rounds
    )


def values(taken: dict[str, list[Ended]], field: str) -> dict[str, list[float]]:
    return {side: [getattr(ended, field) for ended in jobs] for side, jobs in taken.items()}


def of_all(nodes: int, taken: dict[int, dict[str, list[Ended]]]) -> Iterator[Comparison]:
    """What is said of the largest job alone."""
    what = f"{nodes} nodes, one rank each"
    yield Comparison(
        f"{what}: from sbatch to the end",
        f"With the scheduler's wait. {extra(nodes, taken)}",
        values(taken[nodes], "from_submission"),
        tolerance=0.5,
    )
    yield cpu_time(what, nodes, values(taken[nodes], "cpu"))


def cpu_time(what: str, nodes: int, sides: dict[str, list[float]]) -> Comparison:
    more_ms = Comparison("", "", sides).over(TWICE).median / nodes * 1000
    return Comparison(
        f"{what}: CPU time",
        f"Of all nodes, slurmctld and the slurmds, until nothing of the job is left. {STEPS}",
        sides,
        goals=[Goal(TWICE, 1.5)],
        why=(
            f"A node's checks, its logs and the note of its rank's end take {more_ms:.0f} ms of CPU"
            " more than a bare task."
        ),
        headline=True,
    )


def extra(nodes: int, taken: dict[int, dict[str, list[Ended]]]) -> str:
    """What kit adds to a job, and for each of its nodes."""

    def over(side: str, count: int, field: str) -> float:
        return Comparison("", "", values(taken[count], field)).over(side).median

    def told(side: str, field: str) -> str:
        alone = over(side, 1, field)
        return (
            f"{alone:.2f} s with one node and"
            f" {(over(side, nodes, field) - alone) / (nodes - 1) * 1000:.0f} ms for each more"
        )

    return " ".join(
        f"Over {side} the batch script takes {told(side, 'script')}; CPU time, {told(side, 'cpu')}."
        for side in (PLAIN, TWICE)
    )


def picture(title: str, field: str, taken: dict[int, dict[str, list[Ended]]]) -> Lines:
    points = {
        side: [
            (float(nodes), measure.spread(values(taken[nodes], field)[side]).median)
            for nodes in SIZES
        ]
        for side in (KIT, PLAIN, TWICE)
    }
    return Lines(f"{title}. {BY_ONE_MACHINE}", "nodes", "s", points)


def sent(rounds: int) -> Iterator[Comparison | Lines]:
    points: dict[str, list[tuple[float, float]]] = {"sbcast": [], COPY: []}
    there("bash", "-c", f"head -c {SENT_MB}M /dev/urandom >blob")
    for nodes in SENT_TO:
        for side, text in SEND.items():
            write(plain(f"send {side}", nodes), HEADER.format(nodes=nodes, name="send") + text)
        sides = {
            side: partial(lambda name: job(name).script, plain(f"send {side}", nodes))
            for side in (KIT, COPY)
        }
        seconds = measure.take_turns(sides, rounds, warm_up=0)
        points["sbcast"].append((float(nodes), measure.spread(seconds[KIT]).median))
        points[COPY].append((float(nodes), measure.spread(seconds[COPY]).median))
    does = (
        "A job that sends it with sbcast, as `stage: sbcast` does, beside one of which every node"
        f" copies it, as `stage: local` does. {BY_ONE_MACHINE}"
    )
    why = (
        "What sbcast saves is the file server, and here there is none: both read the page cache,"
        " and sbcast sends every byte through a slurmd."
    )
    yield Comparison(f"{SENT_MB} MB to {SENT_TO[-1]} nodes", does, seconds, tolerance=1.0, why=why)
    yield Lines(f"{SENT_MB} MB to N nodes, all on one machine", "nodes", "s", points)


def versions() -> dict[str, str]:
    image = [
        "docker",
        "run",
        "--rm",
        "--network",
        "none",
        "--entrypoint",
        "slurmd",
        "kit-test/controller",
        "-V",
    ]
    return {"slurm": subprocess.run(image, capture_output=True, text=True).stdout.split()[-1]}


if __name__ == "__main__":
    measure.main(run, rounds=5, versions=versions)
