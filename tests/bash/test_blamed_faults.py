"""Real failures of real ranks, each at a rank that chance chose: kit why, status, the batch log and the exit code name the same rank.

KIT_ALL_FAULTS=1 tries every kind of faulty.py, on three nodes, and prints the table; else some, on two.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, Optional

import faulty

from kit_forks import Forks
from samples import ROOT

ALL = os.environ.get("KIT_ALL_FAULTS") == "1"
NODES, PROCESSES = (3, 2) if ALL else (2, 2)
USUAL = 11  # kinds
AT_ONCE = 2
PROGRAM = ROOT / "tests/bash/faulty.py"


class Told(NamedTuple):
    kind: str
    rank: int  # that failed
    by_log: Optional[int]
    by_why: Optional[int]
    by_status: Optional[int]
    code: int
    cause: str
    words: str  # of the cause
    lines: int  # of kit why

    @property
    def wrong(self) -> list[str]:
        """What is not as it should be."""
        _, cause, code, words = faulty.FAULTS[self.kind]
        named = {"log": self.by_log, "why": self.by_why, "status": self.by_status}
        wrong = [f"{name} names rank {rank}" for name, rank in named.items() if rank != self.rank]
        wrong += [f"code {self.code}"] if self.code != code else []
        wrong += [f"cause {self.cause}: {self.words}"] if self.cause != cause or words not in self.words else []
        return wrong + ([f"{self.lines} lines"] if self.lines > 25 else [])


def fail(kind: str, folder: Path, forks: Forks) -> Told:
    """Run the ranks under `kit run`; one of them, chosen by the kind as a seed, fails in that way."""
    rank = random.Random(kind).randrange(NODES * PROCESSES)
    place = folder / re.sub(r"\W", "-", kind)
    place.mkdir()
    (place / "faulty.py").write_text(PROGRAM.read_text())
    env = {**os.environ, "XDG_STATE_HOME": str(place / "state")}

    def kit(*arguments: str) -> subprocess.CompletedProcess[str]:
        return forks.run(arguments, place, env, timeout_s=300)

    with tempfile.TemporaryDirectory(dir="/tmp") as sockets:  # whose names must be short
        options = ["-j", f"{NODES}x{PROCESSES}", "--launcher", "srun", "--runtime", "none", "--output", "run"]
        done = kit("run", "faulty.py", *options, "--", kind, str(rank), sockets)
    why, status = kit("why").stdout, kit("status").stdout
    cause = re.search(r"^cause: (.*) \((\S+)\)$", why, re.MULTILINE)
    of_log = re.findall(r"^kit: error: \S+: rank (\d+) ", done.stdout + done.stderr, re.MULTILINE)
    of_why, of_status = re.search(r"^  first: rank (\d+) ", why, re.MULTILINE), re.search(r": rank (\d+) ", status)
    return Told(
        kind,
        rank,
        int(of_log[0]) if of_log else None,
        int(of_why[1]) if of_why else None,
        int(of_status[1]) if of_status else None,
        done.returncode,
        cause[2] if cause else "",
        cause[1] if cause else why,
        len(why.splitlines()),
    )


def test_every_fault_is_named_with_its_rank_its_cause_and_its_code(tmp_path: Path) -> None:
    kinds = list(faulty.FAULTS)[: None if ALL else USUAL]

    def fail_each(first: int) -> list[Told]:
        with closing(Forks()) as forks:
            return [fail(kind, tmp_path, forks) for kind in kinds[first::AT_ONCE]]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = [told for part in pool.map(fail_each, range(AT_ONCE)) for told in part]
    if ALL:
        for told in found:
            print(f"{told.kind:20} rank {told.rank}  log {told.by_log}  why {told.by_why}  status {told.by_status}  code {told.code:3}  {told.cause}")
        print(f"{len(found)} faults, {sum(not told.wrong for told in found)} as they should be")
    assert {told.kind: told.wrong for told in found if told.wrong} == {}
