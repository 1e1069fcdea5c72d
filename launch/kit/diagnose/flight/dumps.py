"""Read the dumps of PyTorch's flight recorder: what each rank has called, in its order.

Their form is that of torch/csrc/distributed/c10d/FlightRecorder.hpp, version 2.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Optional

from kit.diagnose.hang import stacks
from kit.files import safe_read

ALL_RANKS = "default_pg"  # the group of init_process_group
_OF_TORCH = ("/torch/", "/accelerate/", "/deepspeed/", "/lightning/", "/transformers/", "<frozen ")
_TRANSFER = re.compile(r"(send|recv) (\d{1,6})(?:->|<-)(\d{1,6})")
_COALESCED = "coalesced"


class Transfer(NamedTuple):
    """What one rank sends to another, in a process group."""

    sender: int
    receiver: int
    nth: int  # in the dump, of what the two send this way, from 1

    def peer(self, rank: int) -> int:
        return self.sender if rank == self.receiver else self.receiver

    def name(self, rank: int) -> str:
        """Return what this rank calls for it."""
        if rank == self.sender:
            return f"send {rank}->{self.receiver}"
        return f"recv {rank}<-{self.sender}"


@dataclass(frozen=True)
class Call:
    """What a rank has called in a process group: a collective, or a batch of sends and receives."""

    group: str  # its key in the dumps
    number: int  # of the collective in its group, from 1; sends and receives count by themselves
    name: str  # such as all_reduce
    sizes: str  # of what goes in
    position: int  # in the rank's dump, which has the calls in all groups in their order
    place: str  # file:line of the program; empty where only torch is on the stack
    is_over: bool
    transfers: tuple[Transfer, ...] = ()  # none of a collective

    @property
    def what(self) -> str:
        return self.name if self.transfers else f"{self.name} {self.number}"


@dataclass(frozen=True)
class Dump:
    """What a rank has called, as far as the recorder goes back."""

    calls: list[Call]  # in their order
    names: dict[str, str]  # {key of a group: its name}
    members: dict[str, list[int]]  # {key of a group: its ranks, in the group's order}
    whole: set[str]  # the groups whose calls it has from the first one on


@dataclass(frozen=True)
class _Entry:
    """An entry of a dump."""

    position: int
    group: str
    group_name: str
    numbers: tuple[int, int]  # of the last collective, and of the last send or receive
    is_first: bool  # of its group
    name: str
    sizes: str
    place: str
    is_p2p: bool
    is_over: bool


def read(dumps: Mapping[int, Path]) -> dict[int, Dump]:
    """Return {rank: what it has called}, of those whose dump can be read."""
    loaded = ((rank, _load(path)) for rank, path in dumps.items())
    return {rank: _dump(rank, trace) for rank, trace in loaded if trace}


def _dump(rank: int, trace: Mapping[str, Any]) -> Dump:
    entries = list(_entries(trace["entries"]))
    names = {entry.group: entry.group_name for entry in entries}
    whole = {entry.group for entry in entries if entry.is_first}
    members = dict(_configured(trace))
    calls = []
    collectives: Counter[str] = Counter()  # the last one's number in each group
    sent: Counter[tuple[str, int, int]] = Counter()
    for parts, end in _batches(entries):
        number, called = end.numbers[0], parts or [end]
        transfers: tuple[Transfer, ...] = ()
        if any(part.is_p2p for part in called):
            transfers = tuple(_transfers(rank, called, members, sent))
            name = listed([transfer.name(rank) for transfer in transfers])
        elif number > collectives[end.group]:
            collectives[end.group] = number
            name = listed(list(dict.fromkeys(part.name for part in called)))
        else:
            continue  # of sends and receives, whose parts are no longer in the dump
        sizes = ", ".join(part.sizes for part in called)[:80]
        if name:
            at = (end.position, end.place, end.is_over)
            calls.append(Call(end.group, number, name, sizes, *at, transfers))
    return Dump(sorted(calls, key=lambda call: call.position), names, members, whole)


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{' and '.join(names[:3])}{more}"


def _batches(entries: Iterable[_Entry]) -> Iterator[tuple[list[_Entry], _Entry]]:
    """Yield the parts of each call, and the entry that tells whether it is over.

    For a coalescing manager, such as that of batch_isend_irecv, torch writes an entry for each
    part, if any, and then "coalesced", which is never P2P, with the same numbers. Only that one
    tells of the end: torch retires the parts at once, or, if they are P2P, never.
    """
    waiting: dict[str, list[_Entry]] = {}
    for entry in entries:
        parts = waiting.setdefault(entry.group, [])
        if parts and parts[0].numbers != entry.numbers:
            yield from (([], part) for part in parts)
            parts.clear()
        if entry.name == _COALESCED:
            yield list(parts), entry
            parts.clear()
        else:
            parts.append(entry)
    yield from (([], part) for parts in waiting.values() for part in parts)


def _transfers(
    rank: int,
    parts: Iterable[_Entry],
    members: Mapping[str, Sequence[int]],
    sent: Counter[tuple[str, int, int]],
) -> Iterator[Transfer]:
    """Yield what is sent, and count it; in the names are the ranks' numbers in the group."""
    for part in parts:
        ranks = members.get(part.group) or range(1 << 20 if part.group_name == ALL_RANKS else 0)
        found = _TRANSFER.fullmatch(part.name)
        if found and max(int(found[2]), int(found[3])) < len(ranks):
            own, peer = ranks[int(found[2])], ranks[int(found[3])]
            pair = (own, peer) if found[1] == "send" else (peer, own)
            if own == rank:
                sent[(part.group, *pair)] += 1
                yield Transfer(*pair, sent[(part.group, *pair)])


def _entries(entries: Iterable[Any]) -> Iterator[_Entry]:
    """Yield the entries that are as torch writes them."""
    for position, entry in enumerate(entries):
        try:
            yield _entry(entry, position)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            continue


def _entry(entry: Mapping[str, Any], position: int) -> _Entry:
    group, group_name = map(str, entry["process_group"])
    of_program = (frame for frame in entry["frames"] if _is_of_program(str(frame["filename"])))
    return _Entry(
        position=position,
        group=group,
        group_name=group_name or group,
        numbers=(int(entry["collective_seq_id"]), int(entry.get("p2p_seq_id", 0))),
        is_first=entry.get("op_id") == 1,
        name=str(entry["profiling_name"]).rpartition(":")[2],
        sizes=str(entry.get("input_sizes", ""))[:80],
        place=next((f"{each['filename']}:{int(each['line'])}" for each in of_program), ""),
        is_p2p=bool(entry["is_p2p"]),
        # The watchdog retires what it has seen to end. The state is no sign of that: it is
        # "completed", too, of what has not begun, while NCCL still connects the ranks, since
        # torch then asks an event that was not recorded (CUDAEvent::query). The time at which
        # that was discovered is the dump's own.
        is_over=bool(entry["retired"]),
    )


@functools.cache  # millions of frames are of few files
def _is_of_program(file: str) -> bool:
    """Return False for torch, what wraps it, and Python's own library."""
    return not (stacks.PYTHONS_OWN.match(file) or any(part in file for part in _OF_TORCH))


def _configured(trace: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """Yield each process group of a dump, and its ranks."""
    groups = trace.get("pg_config")
    for key, group in groups.items() if isinstance(groups, dict) else ():
        yield str(key), _ranks(str(group.get("ranks", "")) if isinstance(group, dict) else "")


@functools.cache  # each dump has the same, which take 1 MB where they are 32,000
def _ranks(text: str) -> list[int]:
    ranks = [int(word) for word in text.strip("[] ").split(",") if word.strip().isdigit()]
    return ranks[: 1 << 16]


class _Plain(pickle.Unpickler):
    """Reads a pickle of plain values alone: a stranger's may not import anything."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside")


def _load(path: Path) -> Optional[dict[str, Any]]:
    """Return a dump; None where it cannot be read, or is none.

    Another user's is not read: a small pickle can be made to fill the memory.
    """
    try:
        if path.stat().st_uid != os.geteuid():
            return None
        found = _Plain(io.BytesIO(safe_read.read(path))).load()
    except Exception:  # of a damaged pickle, any
        return None
    is_trace = isinstance(found, dict) and isinstance(found.get("entries"), list)
    return found if is_trace else None
