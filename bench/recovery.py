#!/usr/bin/env python3
"""From a fault to the first all-reduce behind it, in the same job: 3 nodes x 1 rank and a spare,
gloo, started by torchrun under Apptainer, on Slurm's own time-outs.

    export KIT_CLUSTER_NODES=4 KIT_CLUSTER_TIMES=default
    make cluster && python bench/recovery.py [--rounds 10] [--check]

On the Slurm cluster in Docker of tests/cluster, whose machines share one clock. A sample is a job
of its own. When it has written a checkpoint, one thing happens to its second node:

  a rank dies       its process is killed by SIGKILL
  a node dies       its container is killed, and with it slurmd and the ranks
  a node freezes    its container is stopped
  a node is cut off iptables drops all that it sends and receives

A sample counts only where the job ends well, under its id and without having been requeued, and
where each loss, behind the checkpoint too, is bit by bit that of a run which nothing happened to.
One that does not ends the benchmark.

  kit               `max_restarts: 1`, and `spares: 1` where a node is lost
  torch import alone    `import torch, torch.distributed` in that image, on three nodes at once:
                        what no restart can do without
  torchrun          kit's job with `elastic: true`: torchrun's own restarts, by its c10d rendezvous
  requeue           `scontrol requeue` in the moment of the fault; Slurm lets the nodes idle for two
                        minutes, so a few samples are enough
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import cluster
import measure
from measure import KIT, Comparison, Goal

FLOOR, TORCHRUN, REQUEUE = "torch import alone", "torchrun's own restarts", "scontrol requeue"
OF_RANK_S, OF_NODE_S = 3.0, 15.0  # goals, over the floor
HIT = "node2"
STEPS_BEFORE, STEPS_BEHIND = 25, 20

PROGRAM = f"""\
import os
import sys
import time
import torch
import torch.distributed as dist

folder = sys.argv[1]
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
dist.all_reduce(torch.ones(1))
dist.barrier()
now = time.time_ns()
step, place = 0, f"{{folder}}/checkpoint"
again = os.path.exists(place)
if again and rank == 0:
    with open(f"{{folder}}/begun-again", "x") as file:
        file.write(str(now))
with open(f"{{folder}}/pid-{{os.environ['SLURMD_NODENAME']}}", "w") as file:
    file.write(str(os.getpid()))
torch.manual_seed(0)
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
if again:
    state = torch.load(place)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
last = step + {STEPS_BEHIND} if again else 1000
while step < last:
    step += 1
    torch.manual_seed(step * ranks + rank)
    x = torch.randn(32, 64)
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= ranks
    optimizer.step()
    dist.all_reduce(loss := loss.detach())
    if rank == 0:
        print(f"step {{step}} {{loss.item().hex()}}", flush=True)
        if step % 10 == 0:
            states = {{"model": model.state_dict(), "optimizer": optimizer.state_dict()}}
            torch.save({{"step": step, **states}}, place + ".part")
            os.replace(place + ".part", place)
    time.sleep(0.1)
dist.destroy_process_group()
"""

SUBMIT = """
mkdir "$1/$2"
cd "$1"
kit submit program.py -j 3x1 --runtime apptainer --image "$3" --output "$2/run" "${@:4}" \\
  -- "$1/$2" >/dev/null
"""
IMPORT = 'apptainer exec --no-home "$1" python3 -c "import torch, torch.distributed"'


class Sample:
    """A job that something happens to."""

    def __init__(self, folder: str, name: str, *options: str) -> None:
        cluster.bash("ctl", SUBMIT, folder, name, cluster.IMAGES["apptainer"], *options)
        self.folder = cluster.shared() / folder.removeprefix("/shared/") / name
        self.id = str(json.loads((self.folder / "run/run.json").read_text())["job_id"])

    def steps(self) -> list[tuple[int, str]]:
        """The steps that rank 0 took, in order, and their losses."""
        logs = self.folder.glob(f"run/log/{self.id}/**/rank0.out")  # one for each attempt
        said = "".join(log.read_text() for log in sorted(logs, key=lambda log: log.stat().st_mtime))
        return [(int(step), loss) for step, loss in re.findall(r"^step (\d+) (\S+)$", said, re.M)]

    def begun_again_s(self) -> float:
        """When the first all-reduce behind the fault was over; 0 where it is not."""
        file = self.folder / "begun-again"
        return int(file.read_text() or 0) / 1e9 if file.exists() else 0.0

    def until(self, what: str, is_so: Callable[[], object], within_s: float = 300) -> None:
        end_s = time.monotonic() + within_s
        while not is_so():
            if time.monotonic() > end_s:
                log = (self.folder / f"run/log/slurm-{self.id}.out").read_text()
                raise AssertionError(f"job {self.id}: not within {within_s:.0f} s: {what}\n{log}")
            time.sleep(0.1)

    def facts(self) -> dict[str, str]:
        line = cluster.on("ctl", "scontrol", "show", "job", "-o", self.id)
        return dict(re.findall(r"(?:^| )([A-Za-z]+)=(\S*)", line))

    def until_its_end(self) -> None:
        self.until("its end", lambda: self.facts()["JobState"] not in ("RUNNING", "COMPLETING"))

    def check(self, undisturbed: dict[int, str], requeued: bool = False) -> None:
        """Raise AssertionError where it did not end well, or where a loss differs."""
        self.until_its_end()
        facts = self.facts()
        ended = facts["JobState"], facts["Restarts"]
        assert ended == ("COMPLETED", str(int(requeued))), f"job {self.id}: {ended}"
        steps = self.steps()
        assert len(steps) >= STEPS_BEFORE + STEPS_BEHIND
        wrong = [step for step, loss in steps if loss != undisturbed.get(step, loss)]
        assert not wrong, f"job {self.id}: other losses in the steps {wrong}"


def kill_rank(sample: Sample) -> None:
    cluster.on(HIT, "kill", "-KILL", (sample.folder / f"pid-{HIT}").read_text(), root=True)


def recovered(
    folder: str, undisturbed: dict[int, str], cause: Callable[[str], None] | None, *options: str
) -> float:
    """Seconds from a fault to the first all-reduce behind it; without a cause a rank is killed."""
    sample = Sample(folder, f"sample.{time.time_ns()}", *options)
    sample.until("its first steps", lambda: len(sample.steps()) >= STEPS_BEFORE)
    at_s = time.time()
    try:
        if cause:
            cause(HIT)
        else:
            kill_rank(sample)
        sample.until("the first all-reduce behind the fault", sample.begun_again_s)
    finally:
        if cause:
            cluster.heal(HIT)
    sample.check(undisturbed)
    return sample.begun_again_s() - at_s


def requeued(folder: str, undisturbed: dict[int, str]) -> float:
    """The same by Slurm, where somebody sees at once that a rank was killed."""
    sample = Sample(
        folder, f"sample.{time.time_ns()}", "--on-preempt", "requeue", "--max-requeues", "1"
    )
    sample.until("its first steps", lambda: len(sample.steps()) >= STEPS_BEFORE)
    at_s = time.time()
    kill_rank(sample)
    cluster.on("ctl", "scontrol", "requeue", sample.id, root=True)
    sample.until("the first all-reduce behind the fault", sample.begun_again_s)
    sample.check(undisturbed, requeued=True)
    return sample.begun_again_s() - at_s


def imported() -> float:
    """Seconds of three imports, each on a node."""
    begin_s = time.monotonic()
    with futures.ThreadPoolExecutor() as pool:
        image = cluster.IMAGES["apptainer"]
        imports = [pool.submit(cluster.bash, node, IMPORT, image) for node in cluster.NODES]
        for each in imports:
            each.result()
    return time.monotonic() - begin_s


FAULTS = {
    "a rank dies": None,
    "a node dies": cluster.kill,
    "a node freezes": cluster.freeze,
    "a node is cut off": cluster.cut_off,
}


def run(rounds: int) -> Iterator[Comparison]:
    cluster.install_kit()
    cluster.check_times()
    with contextlib.ExitStack() as afterwards:
        folder = cluster.bash("ctl", "mktemp --directory --tmpdir=/shared recovery.XXXXXX")
        afterwards.callback(cluster.bash, "ctl", 'rm -rf -- "$1"', folder)
        (cluster.shared() / Path(folder).name / "program.py").write_text(PROGRAM)
        whole = Sample(folder, "undisturbed")
        whole.until("300 steps", lambda: len(whole.steps()) >= 300)
        undisturbed = dict(whole.steps())
        cluster.on("ctl", "scancel", whole.id)
        whole.until_its_end()  # the samples need its nodes
        own = ["--max-restarts", "1"]
        for claim, cause in FAULTS.items():
            spare = ["--spares", "1"] if cause else []
            sides: dict[str, Callable[[], float]] = {
                KIT: functools.partial(recovered, folder, undisturbed, cause, *own, *spare),
                FLOOR: imported,
            }
            if not cause:
                sides[TORCHRUN] = functools.partial(sides[KIT], "--elastic")
            goal = OF_NODE_S if cause else OF_RANK_S
            yield Comparison(
                claim,
                DOES[cause is None],
                measure.take_turns(sides, rounds, warm_up=0),
                goals=[Goal(FLOOR, goal, over=True)],
                headline=True,
                why="" if cause else WHY,
            )
        rank_killed = functools.partial(recovered, folder, undisturbed, None, *own)
        yield Comparison(
            "a rank of `launcher: srun` dies",
            DOES[True],
            measure.take_turns(
                {KIT: functools.partial(rank_killed, "--launcher", "srun"), FLOOR: imported},
                rounds,
                warm_up=0,
            ),
            goals=[Goal(FLOOR, OF_RANK_S, over=True)],
            headline=True,
        )
        sides = {
            KIT: rank_killed,
            REQUEUE: functools.partial(requeued, folder, undisturbed),
        }
        yield Comparison(
            "a rank dies, beside the queue",
            DOES[True],
            measure.take_turns(sides, min(rounds, 5), warm_up=0),
        )


DOES = {
    True: "from the kill of a rank to the end of the first all-reduce behind it, in the same job.",
    False: "from the fault to the first all-reduce on the spare and the node that is left.",
}
WHY = (
    "1.4 s pass until all ranks have ended, and 0.2 s until all nodes are ready; the rest is two"
    " imports of torch, torchrun's own and the rank's."
)


if __name__ == "__main__":
    measure.main(run, rounds=10, versions=cluster.slurm_versions)
