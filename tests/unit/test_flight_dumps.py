"""What the flight recorder's dumps mean: those of NCCL's ranks, others made up in their form, and dumps that a stranger made."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from kit.diagnose.flight import dumps, flight
from kit.plan.run_paths import RunPaths

ALL = ("0", "default_pg")
PAIR = ("1", "tensor parallel")


def entry(number: int, name: str = "all_reduce", group: tuple[str, str] = ALL, *, over: bool = False, p2p: bool = False, sizes: int = 8) -> dict[str, Any]:
    frames = [
        {"name": name, "filename": "/venv/torch/distributed/distributed_c10d.py", "line": 9},
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
    return sentence(RunPaths(folder).job("7").flights(2), ranks)


def sentence(dumps: dict[int, Path], ranks: int) -> str:
    found = flight.find(dumps, ranks)
    return found.sentence if found else ""


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
            "ranks 0-2 wait in all_reduce 2 of default_pg, at /work/train.py:42; rank 3 called broadcast instead, at /work/train.py:42",
        ),
        (
            {rank: [DONE, entry(2, sizes=8 + (rank == 1))] for rank in range(4)},
            "ranks 0-3 wait in all_reduce 2 of default_pg, at /work/train.py:42; ranks 0,2-3 called it with [[8]], rank 1 with [[9]]",
        ),
        (
            {rank: [DONE, entry(2, "all_to_all_single", sizes=8 + rank)] for rank in range(4)},
            "ranks 0-3 wait in all_to_all_single 2 of default_pg, at /work/train.py:42; all have called it, and it does not end: a link or a GPU may be at fault",
        ),
        # Rank 3 is missing in the first group, since it waits in the second, to which rank 2 does not come.
        (
            {0: [entry(5)], 1: [entry(5)], 2: [entry(4, over=True)], 3: [entry(4, over=True), entry(7, group=PAIR)]},
            "rank 3 waits in all_reduce 7 of tensor parallel, at /work/train.py:47; rank 2 has not called it, and was last at all_reduce 4 of default_pg, /work/train.py:44",
        ),
        # The CPU runs ahead of a collective that does not end, and on each rank by as much as its program lets it.
        (
            {0: calls(1201, 1205), 1: calls(1201, 1250), 2: calls(1201, 1250), 3: [entry(1200, over=True)]},
            "ranks 0-2 wait in all_reduce 1201 of default_pg, at /work/train.py:1241; rank 3 has not called it, and was last at all_reduce 1200, /work/train.py:1240",
        ),
        (
            {rank: [entry(1201, "broadcast" if rank == 3 else "all_reduce"), *calls(1202, 1205 + rank)] for rank in range(4)},
            "ranks 0-2 wait in all_reduce 1201 of default_pg, at /work/train.py:1241; rank 3 called broadcast instead, at /work/train.py:1241",
        ),
        # Who has sent its part of a broadcast is through with it.
        (
            {rank: [entry(2, "broadcast" if rank == 0 else "all_reduce", over=rank == 0), entry(3)] for rank in range(4)},
            "ranks 1-3 wait in all_reduce 2 of default_pg, at /work/train.py:42; rank 0 called broadcast instead, at /work/train.py:42",
        ),
        # Two ranks differ in the second group, and have then called the next collective of the first.
        (
            {rank: [*([entry(7, "broadcast" if rank == 3 else "all_reduce", group=PAIR)] if rank > 1 else []), entry(5)] for rank in range(4)},
            "rank 2 waits in all_reduce 7 of tensor parallel, at /work/train.py:47; rank 3 called broadcast instead, at /work/train.py:47",
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
        # A send whose ranks are not told says nothing.
        ({rank: [DONE, entry(9, "send", p2p=True)] for rank in range(4)}, ""),
        # The launch waits for rank 3, to connect with it: torch then writes "completed", and retires nothing.
        (
            {rank: [DONE, *([] if rank == 3 else [{**entry(2), "state": "completed"}])] for rank in range(4)},
            "ranks 0-2 wait in all_reduce 2 of default_pg, at /work/train.py:42; rank 3 has not called it, and was last at all_reduce 1, /work/train.py:41",
        ),
        # One rank called it from another line, with another size.
        (
            {rank: [DONE, {**entry(2 + 5 * (rank == 1), sizes=8 + (rank == 1)), "collective_seq_id": 2}] for rank in range(4)},
            "ranks 0-3 wait in all_reduce 2 of default_pg, at /work/train.py:42; ranks 0,2-3 called it with [[8]], rank 1 with [[9]], at /work/train.py:47",
        ),
    ],
)
def test_what_did_not_end_is_told_with_who_is_missing(traces: dict[int, list[dict[str, Any]]], said: str, tmp_path: Path) -> None:
    assert explained(tmp_path, traces) == said


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("skip", "ranks 0-2 wait in all_reduce 5 of default_pg, at hang.py:27; rank 3 has not called it, and was last at all_reduce 4, hang.py:27"),
        (
            "uneven",
            "ranks 0-3 wait in all_to_all 4 of default_pg, at hang.py:52; all have called it, and it does not end: a link or a GPU may be at fault",
        ),
        (
            "slow_gpu",
            "ranks 0-3 wait in all_reduce 3 of default_pg, at hang.py:27; all have called it, and it does not end: a link or a GPU may be at fault",
        ),
        (
            "object_gather",
            "ranks 0-1,3 wait in all_gather 3 of default_pg, at hang.py:148; rank 2 has not called it, and was last at all_reduce 2, hang.py:27",
        ),
        ("differ", "ranks 2-3 wait in _all_gather_base 4 of default_pg, at hang.py:63; rank 1 called broadcast instead, at hang.py:61"),
        ("fsdp", "ranks 1-3 wait in all_reduce_barrier 28 of default_pg, at hang.py:83; rank 0 called _all_gather_base instead, at hang.py:81"),
        ("out_of_data", "rank 0 waits in all_reduce 11 of default_pg; rank 1 called all_reduce_barrier instead, at hang.py:95"),
        (
            "p2p",
            "rank 0 waits in recv 0<-1 of default_pg, at hang.py:105; rank 1 has not called send 1->0, and was last at recv 1<-0, hang.py:107: each waits for the other",
        ),
        (
            "pipeline",
            "rank 2 waits in recv 2<-1 of default_pg, at hang.py:122; rank 1 has not called send 1->2, and was last at all_reduce 1, hang.py:27",
        ),
        (
            "coalesced",
            "ranks 0,2-3 wait in all_gather_into_tensor_coalesced 4 of default_pg, at hang.py:136; rank 1 has not called it, and was last at all_gather_into_tensor_coalesced 3, hang.py:136",
        ),
    ],
)
def test_what_the_dumps_of_nccls_ranks_say(case: str, said: str, tmp_path: Path) -> None:
    dumps = recorded(case, tmp_path)
    found = flight.find(dumps, len(dumps), lambda place: place.removeprefix("/project/"))
    assert found and found.sentence == said


RECORDED = Path(__file__).with_name("flight")


def recorded(case: str, folder: Path) -> dict[int, Path]:
    """Copies of dumps as PyTorch wrote them: flight/hang.py says how they were made. Another user's are not read."""
    copies = shutil.copytree(RECORDED / case, folder / case)
    return {int(path.suffix[1:]): path for path in copies.iterdir()}


def later(case: str, folder: Path, last: int, without: int = -1) -> dict[int, Path]:
    """Recorded dumps of which only the last entries are left, as after a long run, or all but those of a rank."""
    dumps = folder / "later"
    dumps.mkdir()
    for rank, path in recorded(case, folder).items():
        trace = pickle.loads(path.read_bytes())
        trace["entries"] = trace["entries"][-last:]
        if rank != without:
            (dumps / f"{rank}").write_bytes(pickle.dumps(trace))
    return {int(path.name): path for path in dumps.iterdir()}


def test_what_a_batch_waits_for_is_not_guessed_where_the_dumps_do_not_go_back_to_its_first(tmp_path: Path) -> None:
    assert sentence(later("pipeline", tmp_path, 4), 4) == (
        "rank 2 waits in recv 2<-1 and send 2->3 of default_pg, at /project/hang.py:122; "
        "rank 1 was last at all_reduce 1, /project/hang.py:27; rank 3 was last at all_reduce 1, /project/hang.py:27"
    )


def test_whoever_should_send_and_left_no_dump_is_named(tmp_path: Path) -> None:
    said = sentence(later("p2p", tmp_path, 99, without=1), 4)
    assert said == "rank 0 waits in recv 0<-1 of default_pg, at /project/hang.py:105; rank 1 has left no dump"


def send(name: str, nth: int = 1, group: tuple[str, str] = ALL, *, over: bool = False) -> dict[str, Any]:
    """A send or receive that is the nth call of its rank."""
    return {**entry(0, name, group, over=over, p2p=True), "p2p_seq_id": nth, "op_id": nth}


@pytest.mark.parametrize(
    ("traces", "said"),
    [
        # In a group of some ranks, torch writes the numbers that these have in it.
        (
            {0: [DONE], 1: [DONE], 2: [send("recv 0<-1", group=PAIR)], 3: [{**entry(1, over=True, group=PAIR), "op_id": 1}]},
            "rank 2 waits in recv 2<-3 of tensor parallel, at /work/train.py:40; rank 3 has not called send 3->2, and was last at all_reduce 1, /work/train.py:41",
        ),
        # Whoever waits for one that waits is not the first.
        (
            {0: [send("send 0->1", over=True)], 1: [send("recv 1<-0", over=True)], 2: [send("recv 2<-1")], 3: [send("recv 3<-2")]},
            "rank 2 waits in recv 2<-1 of default_pg, at /work/train.py:40; rank 1 has not called send 1->2, and was last at recv 1<-0, /work/train.py:40",
        ),
        # A send waits for a rank that waits in a collective, to which another does not come.
        (
            {0: [send("send 0->1"), entry(1)], 1: [{**entry(1), "op_id": 1}], 2: [{**entry(1), "op_id": 1}], 3: []},
            "ranks 0-2 wait in all_reduce 1 of default_pg, at /work/train.py:41; rank 3 has not called it",
        ),
        (
            {0: [send("send 0->1")], 1: [send("recv 1<-0")]},
            "rank 0 waits in send 0->1 of default_pg, at /work/train.py:40; rank 1 has called recv 1<-0, and it does not end: a link or a GPU may be at fault",
        ),
        # Both send first, and what they receive comes after it.
        (
            {0: [send("send 0->1"), send("recv 0<-1", 2)], 1: [send("send 1->0"), send("recv 1<-0", 2)]},
            "rank 0 waits in send 0->1 of default_pg, at /work/train.py:40; rank 1 waits in send 1->0, at /work/train.py:40: each waits for the other",
        ),
        # Rank 1 has called what rank 2 waits for, in a batch that waits for rank 0, which waits in a collective.
        (
            {
                0: [{**entry(1), "op_id": 1}],
                1: [send("recv 1<-0"), send("send 1->2"), {**entry(0, "coalesced"), "p2p_seq_id": 1}],
                2: [send("recv 2<-1")],
                3: [entry(1)],
            },
            "rank 1 waits in recv 1<-0 of default_pg, at /work/train.py:40; rank 0 has not called send 0->1, and was last at all_reduce 1, /work/train.py:41",
        ),
        # Of a batch whose parts are no longer in the dump, nothing is known but that it is no collective.
        ({rank: [DONE, {**entry(1, "coalesced"), "p2p_seq_id": 1}, entry(0, "coalesced", PAIR)] for rank in range(4)}, ""),
    ],
)
def test_who_waits_for_whom_is_told_of_sends_and_receives(traces: dict[int, list[dict[str, Any]]], said: str, tmp_path: Path) -> None:
    assert explained(tmp_path, traces) == said


def test_the_ranks_of_a_group_are_kept_once_for_all_dumps(tmp_path: Path) -> None:
    """Each of 32,000 dumps names them all."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str([*range(30000)])}}
    for rank in range(4):
        (tmp_path / f"flight.1.{rank}").write_bytes(pickle.dumps({"version": "2.10", "pg_config": config, "entries": [DONE]}))
    found = dumps.read({rank: tmp_path / f"flight.1.{rank}" for rank in range(4)})
    assert found[3].members["0"] == [*range(30000)]
    assert len({id(dump.members["0"]) for dump in found.values()}) == 1


@pytest.mark.parametrize(
    ("traces", "said"),
    [
        (
            {rank: [DONE, entry(2, "broadcast" if rank == 1 else "all_reduce")] for rank in range(4)},
            "ranks 0,2 wait in all_reduce 2 of default_pg, at /work/train.py:42; rank 1 called broadcast instead, at /work/train.py:42; 3 of 4 dumps were read",
        ),
        (
            {rank: [DONE, *([] if rank == 3 else [entry(2)])] for rank in range(4)},
            "ranks 0-2 wait in all_reduce 2 of default_pg, at /work/train.py:42; all whose dumps were read have called it, and it does not end: a link or a GPU may be at fault; 3 of 4 dumps were read",
        ),
        ({3: [DONE]}, ""),
        # Rank 2's transfer with rank 3, of which nothing is known, does not come before the rank that is known to be late.
        (
            {0: [entry(5)], 1: [entry(4, over=True)], 2: [send("recv 2<-3"), entry(5)], 3: [DONE]},
            "ranks 0,2 wait in all_reduce 5 of default_pg, at /work/train.py:45; rank 1 has not called it, and was last at all_reduce 4, /work/train.py:44; 3 of 4 dumps were read",
        ),
    ],
)
def test_ranks_whose_dumps_are_too_many_to_read_are_not_called_missing(
    traces: dict[int, list[dict[str, Any]]], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight, "MOST_DUMPS", 3)
    assert explained(tmp_path, traces) == said
    found = flight.find(RunPaths(tmp_path).job("7").flights(2), 4)
    assert not found or found.without_dump == []


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
    assert flight.find({0: tmp_path / "dump", 1: tmp_path / "none"}, 2) is None
    assert not (tmp_path / "bomb").exists()
