"""The faults of bench/faults.py: what goes wrong, how, where and when, and what kit is to say."""

from __future__ import annotations

import random
from dataclasses import dataclass

LATEST_S = 12  # from the first step to the fault
NODES, RANKS = 2, 4  # under `kit run`
LOST = "a node is lost"
HANGS, DISAGREES = ("stalled",), ("stalled", "ranks-disagree")
# {kind: {how: (the names of the cause, what kit why says beside it)}}
KINDS: dict[str, dict[str, tuple[tuple[str, ...], str]]] = {
    "killed by SIGKILL": {"SIGKILL": (("killed",), "")},
    "a crash": {
        "a read outside of its memory": (("segfault",), ""),
        "the end of a mapped file": (("bus-error",), ""),
        "abort()": (("aborted",), ""),
    },
    "an exception": {
        "KeyError": (("exception",), "KeyError: 'labels'"),
        "AssertionError": (("assertion",), "the batch does not divide"),
        "a file that is gone": (("file-missing",), "shard-"),
        "in a loader's worker: an exception": (("exception",), "ValueError"),
    },
    "waits for ever": {
        "a sleep": (HANGS, "doze"),
        "a lock taken twice": (HANGS, "lock_twice"),
        "a socket that says nothing": (HANGS, "read_from_nobody"),
        "in a loader's worker: it waits": (HANGS, "DataLoader"),
    },
    "stopped by SIGSTOP": {"SIGSTOP": (HANGS, "stopped")},
    "computes for ever": {"in Python": (HANGS, "spin"), "in torch": (HANGS, "compute")},
    "another collective than the others": {
        "barrier": (DISAGREES, "barrier"),
        "all_gather": (DISAGREES, "all_gather"),
        "broadcast": (DISAGREES, ""),
        "one all_reduce less": (DISAGREES, ""),
    },
    "leaves early with 0": {
        "sys.exit(0)": (("left-early",), ""),
        "os._exit(0)": (("left-early",), ""),
    },
    "out of memory": {
        "a limit, in Python": (("memory-error",), ""),
        "a limit, in torch": (("memory-error",), ""),
        "by the kernel": (("host-out-of-memory",), ""),
    },
    LOST: {
        "killed": (("node-failed",), ""),
        "frozen": (("node-failed",), ""),
        "cut off": (("node-failed",), ""),
    },
}


@dataclass(frozen=True)
class Fault:
    number: int
    kind: str
    how: str
    rank: int
    after_s: float  # the first step
    launcher: str

    @property
    def node(self) -> str:
        if self.kind == LOST:
            return f"node{self.rank + 1}"
        return f"local{self.rank * NODES // RANKS}"


def draw(seed: int, rounds: int) -> list[Fault]:
    """The faults, in a random order; each way of a kind as often as the others."""
    chance = random.Random(seed)  # noqa: S311 - it is to be the same again
    faults = []
    for kind, ways in KINDS.items():
        first = chance.randrange(len(ways))
        for turn in range(rounds):
            how = list(ways)[(first + turn) % len(ways)]
            # With the first node Slurm ends the job by itself.
            rank = chance.choice((1, 2)) if kind == LOST else chance.randrange(RANKS)
            after_s = chance.uniform(0, LATEST_S)
            launcher = chance.choice(("torchrun", "srun"))
            faults.append(Fault(len(faults), kind, how, rank, after_s, launcher))
    chance.shuffle(faults)
    return faults
