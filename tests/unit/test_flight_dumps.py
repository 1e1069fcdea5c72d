"""What the flight recorder's dumps mean, made up in the form of NCCL's, and dumps that a stranger made."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from kit.diagnose import flight
from kit.plan.run_paths import RunPaths

ALL = ("0", "default_pg")
PAIR = ("1", "tensor parallel")


def entry(number: int, name: str = "all_reduce", group: tuple[str, str] = ALL, *, over: bool = False, p2p: bool = False, sizes: int = 8) -> dict[str, Any]:
    frames = [
        {"name": name, "filename": "/opt/torch/distributed/distributed_c10d.py", "line": 9},
        {"name": "step", "filename": "/work/train.py", "line": 40 + number},
    ]
    state = "completed" if over else "started"
    facts = {"collective_seq_id": number, "profiling_name": f"nccl:{name}", "process_group": group, "is_p2p": p2p}
    return {**facts, "state": state, "retired": over, "frames": frames, "input_sizes": [[sizes]]}


def calls(first: int, last: int) -> list[dict[str, Any]]:
    return [entry(number) for number in range(first, last + 1)]


def explained(folder: Path, traces: dict[int, list[dict[str, Any]]], ranks: int = 4) -> str:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}, "1": {"name": "1", "desc": "tp", "ranks": "[2, 3]"}}
    logs = folder / "log/7"
    logs.mkdir(parents=True)
    for rank, entries in traces.items():
        (logs / f"flight.2.{rank}").write_bytes(pickle.dumps({"version": "2.10", "pg_config": config, "entries": entries}))
    (logs / "flight.1.0").write_bytes(b"of another attempt")
    return flight.explain(RunPaths(folder).flights("7", 2), ranks)


DONE = entry(1, over=True)


@pytest.mark.parametrize(
    ("traces", "said"),
    [
        ({rank: [DONE] for rank in range(4)}, ""),
        ({}, ""),
        (
            {0: [DONE, entry(2)], 1: [DONE, entry(2)], 2: [DONE, entry(2)], 3: [DONE]},
            "ranks 0-2 wait in all_reduce 2 of default_pg, at /work/train.py:42; rank 3 has not called it, and was last at all_reduce 1, /work/train.py:41",
        ),
        ({0: [entry(1)]}, "rank 0 waits in all_reduce 1 of default_pg, at /work/train.py:41; ranks 1-3 have left no dump"),
        (
            {rank: [DONE, entry(2)] for rank in range(4)},
            "ranks 0-3 wait in all_reduce 2 of default_pg, at /work/train.py:42; all have called it, and it does not end: a link or a GPU may be at fault",
        ),
        (
            {rank: [DONE, entry(2, "broadcast" if rank == 3 else "all_reduce")] for rank in range(4)},
            "ranks 0-3 wait in all_reduce 2 of default_pg, at /work/train.py:42, where the ranks differ: [[8]], all_reduce, broadcast",
        ),
        (
            {rank: [DONE, entry(2, sizes=8 + (rank == 1))] for rank in range(4)},
            "ranks 0-3 wait in all_reduce 2 of default_pg, at /work/train.py:42, where the ranks differ: [[8]], [[9]], all_reduce",
        ),
        (
            {rank: [DONE, entry(2, "all_to_all_single", sizes=8 + rank)] for rank in range(4)},
            "ranks 0-3 wait in all_to_all_single 2 of default_pg, at /work/train.py:42; all have called it, and it does not end: a link or a GPU may be at fault",
        ),
        # Rank 3 is missing in the first group, since it waits in the second, to which rank 2 does not come.
        (
            {0: [entry(5)], 1: [entry(5)], 2: [entry(4, over=True)], 3: [entry(4, over=True), entry(7, group=PAIR)]},
            "rank 3 waits in all_reduce 7 of tensor parallel, at /work/train.py:47; rank 2 has not called it",
        ),
        # The CPU runs ahead of a collective that does not end, and on each rank by as much as its program lets it.
        (
            {0: calls(1201, 1205), 1: calls(1201, 1250), 2: calls(1201, 1250), 3: [entry(1200, over=True)]},
            "ranks 0-2 wait in all_reduce 1201 of default_pg, at /work/train.py:1241; rank 3 has not called it, and was last at all_reduce 1200, /work/train.py:1240",
        ),
        (
            {rank: [entry(1201, "broadcast" if rank == 3 else "all_reduce"), *calls(1202, 1205 + rank)] for rank in range(4)},
            "ranks 0-3 wait in all_reduce 1201 of default_pg, at /work/train.py:1241, where the ranks differ: [[8]], all_reduce, broadcast",
        ),
        # Who has sent its part of a broadcast is through with it.
        (
            {rank: [entry(2, "broadcast" if rank == 0 else "all_reduce", over=rank == 0), entry(3)] for rank in range(4)},
            "ranks 1-3 wait in all_reduce 2 of default_pg, at /work/train.py:42, where the ranks differ: [[8]], all_reduce, broadcast",
        ),
        # Two ranks differ in the second group, and have then called the next collective of the first.
        (
            {rank: [*([entry(7, "broadcast" if rank == 3 else "all_reduce", group=PAIR)] if rank > 1 else []), entry(5)] for rank in range(4)},
            "ranks 2-3 wait in all_reduce 7 of tensor parallel, at /work/train.py:47, where the ranks differ: [[8]], all_reduce, broadcast",
        ),
        # Rank 3 comes to neither group; rank 2 waits for it in the second one first.
        (
            {0: [entry(5)], 1: [entry(5)], 2: [entry(7, group=PAIR), entry(5)], 3: [entry(4, over=True), entry(6, over=True, group=PAIR)]},
            "rank 2 waits in all_reduce 7 of tensor parallel, at /work/train.py:47; rank 3 has not called it, and was last at all_reduce 6, /work/train.py:46",
        ),
        # What came before a call that is over is over, too, whatever was noted: torch notes no end of what is in a coalesced call.
        (
            {rank: [entry(1), entry(2), entry(3, over=True), *([] if rank == 3 else calls(4, 5))] for rank in range(4)},
            "ranks 0-2 wait in all_reduce 4 of default_pg, at /work/train.py:44; rank 3 has not called it, and was last at all_reduce 3, /work/train.py:43",
        ),
        # What pairs send has numbers of its own.
        ({rank: [DONE, entry(9, "send", p2p=True)] for rank in range(4)}, ""),
    ],
)
def test_what_did_not_end_is_told_with_who_is_missing(traces: dict[int, list[dict[str, Any]]], said: str, tmp_path: Path) -> None:
    assert explained(tmp_path, traces) == said


class Bomb:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("bomb"),))


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Bomb()),
        pickle.dumps({"entries": [Bomb()]}),
        pickle.dumps({"entries": "many"}),
        pickle.dumps([1, 2]),
        pickle.dumps({"entries": [1, {}, {"process_group": 5}, {**DONE, "frames": 3}, {**DONE, "collective_seq_id": "x"}, {**DONE, "process_group": ("a",)}]}),
        pickle.dumps({"entries": [DONE], "pg_config": {"0": {"ranks": "[one, two]"}, "1": 7}}),
        pickle.dumps({"entries": [DONE]})[:-20],
        b"\x80\x04" + b"(" * 5000,
        b"",
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f",
    ],
)
def test_what_a_stranger_wrote_runs_nothing_and_says_nothing(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dump").write_bytes(content)
    assert flight.explain({0: tmp_path / "dump", 1: tmp_path / "none"}, 2) == ""
    assert not (tmp_path / "bomb").exists()
