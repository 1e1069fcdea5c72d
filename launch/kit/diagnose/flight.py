"""Read the dumps of PyTorch's flight recorder: which collective did not end, and who is missing.

NCCL's watchdog writes one for each rank when a collective takes too long; where, the scripts say:
container.sh. Their form is that of torch/csrc/distributed/c10d/FlightRecorder.hpp, version 2.
"""

from __future__ import annotations

import io
import os
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Callable, Optional

from kit.base import formats
from kit.files import safe_read
from kit.runs import log_files

ALL_RANKS = "default_pg"  # the group of init_process_group
MOST_RANKS = 1024  # whose dumps are read
Shorten = Callable[[str], str]
# Into these each rank may put in another amount: torch 2.13's, and the older names of them.
_UNEVEN = re.compile(r"all_?to_?all.*|scatter|.*_v(_.*)?")
_OF_TORCH = ("/torch/", "/accelerate/", "/deepspeed/", "/lightning/", "/transformers/")


@dataclass(frozen=True)
class Call:
    """A collective that a rank has called in a process group."""

    number: int  # of the collective in its group, from 1
    name: str  # such as all_reduce
    sizes: str  # of what goes in
    position: int  # in the rank's dump, which has the calls in all groups in their order
    place: str  # file:line of the program; empty where only torch is on the stack
    is_over: bool


@dataclass(frozen=True)
class Group:
    """A process group as the ranks' dumps show it.

    NCCL's calls return at once, so a rank may have called many more after the one that hangs.
    """

    name: str
    ranks: frozenset[int]
    calls: Mapping[int, Mapping[int, Call]]  # {rank: {number: call}}, from the last that is over

    @cached_property
    def number(self) -> int:
        """Return the number of the first collective that did not end; 0 where there is none."""
        calls = (call for of_rank in self.calls.values() for call in of_rank.values())
        return min((call.number for call in calls if not call.is_over), default=0)

    @cached_property
    def called(self) -> dict[int, Call]:
        """Return {rank: its call} of that collective."""
        number, found = self.number, self.calls.items()
        return {rank: of_rank[number] for rank, of_rank in found if number in of_rank}

    @property
    def waiting(self) -> list[int]:
        """Return the ranks that are in it."""
        return sorted(rank for rank, call in self.called.items() if not call.is_over)

    @property
    def missing(self) -> list[int]:
        """Return the ranks that have not called it."""
        number = self.number
        came = {rank for rank, of_rank in self.calls.items() if max(of_rank) >= number}
        return sorted(self.ranks - came)


@dataclass(frozen=True)
class Stuck:
    """A collective that did not end."""

    group: Group
    have_dumps: frozenset[int]  # the ranks
    at_s: float  # when the last dump was written, in seconds since 1970

    @property
    def call(self) -> Call:
        """Return the collective, as the first rank that waits in it called it."""
        return self.group.called[self.group.waiting[0]]

    @property
    def what(self) -> str:
        """Return the collective's name, its number and its group."""
        return f"{self.call.name} {self.call.number} of {self.group.name}"

    def sentence(self, short: Shorten = str) -> str:
        """Return who waits in what, and why; `short` makes a place, file:line, shorter."""
        place = f", at {short(self.call.place)}" if self.call.place else ""
        waiting = formats.ranks_do(self.group.waiting, "waits", "wait")
        return f"{waiting} in {self.what}{place}{self.why(short)}"

    def why(self, short: Shorten = str) -> str:
        """Return who is missing, or by what the calls differ, as the end of a sentence."""
        group, missing = self.group, self.group.missing
        if not missing:
            called = group.called.values()
            names, sizes = {call.name for call in called}, {call.sizes for call in called}
            if len(names) > 1 or (len(sizes) > 1 and not any(map(_UNEVEN.fullmatch, names))):
                return f", where the ranks differ: {', '.join(sorted(names | sizes))}"
            fault = "a link or a GPU may be at fault"
            return f"; all have called it, and it does not end: {fault}"
        late = [rank for rank in missing if rank in self.have_dumps]
        if not late:
            return f"; {formats.ranks_do(missing, 'has', 'have')} left no dump"
        said = f"; {formats.ranks_do(late, 'has', 'have')} not called it"
        calls = group.calls.get(late[0])
        if not calls:
            return said
        last = calls[max(calls)]
        who = f"rank {late[0]} " if len(late) > 1 else ""
        return f"{said}, and {who}was last at {last.name} {last.number}, {short(last.place)}"


def find(dumps: Mapping[int, Path], ranks: int) -> Optional[Stuck]:
    """Return what did not end, of {rank: its dump}; None where nothing tells.

    ranks: how many the run has.
    """
    traces = {rank: found for rank in sorted(dumps)[:MOST_RANKS] if (found := _load(dumps[rank]))}
    stuck = [group for group in _groups(traces, ranks) if group.waiting]
    if not stuck:
        return None
    first = _first_waits(stuck)
    # A rank that a group needs may itself wait in another group: that one comes first.
    stuck.sort(key=lambda group: (_waits_elsewhere(group, first), not group.missing))
    at_s = max(map(log_files.changed_ns, dumps.values())) / 1e9
    return Stuck(stuck[0], frozenset(traces), at_s)


def explain(dumps: Mapping[int, Path], ranks: int) -> str:
    """Return in a sentence what did not end; empty where nothing tells."""
    stuck = find(dumps, ranks)
    return stuck.sentence() if stuck else ""


def _first_waits(stuck: Iterable[Group]) -> dict[int, Call]:
    """Return {rank: the one that it called first} of the collectives that did not end."""
    first: dict[int, Call] = {}
    for group in stuck:
        for rank, call in group.called.items():
            if not call.is_over and call.position <= first.get(rank, call).position:
                first[rank] = call
    return first


def _waits_elsewhere(group: Group, first: Mapping[int, Call]) -> bool:
    """Return True if a rank of the collective waits in that of another group, called before."""
    called = group.called
    needed = [*group.waiting, *group.missing]
    return any(rank in first and called.get(rank) is not first[rank] for rank in needed)


def _groups(traces: Mapping[int, dict[str, Any]], ranks: int) -> Iterator[Group]:
    """Yield the process groups that the dumps know, where all is as torch writes it."""
    calls: dict[str, dict[int, dict[int, Call]]] = {}
    names: dict[str, str] = {}
    members: dict[str, set[int]] = {}
    for rank, trace in traces.items():
        found: dict[str, dict[int, Call]] = {}
        for position, entry in enumerate(trace["entries"]):
            try:
                key, name = map(str, entry["process_group"])
                call = _call(entry, position)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                continue
            names[key] = name or key
            if call:
                found.setdefault(key, {})[call.number] = call
        for key, of_rank in found.items():
            calls.setdefault(key, {})[rank] = _from_the_last_over(of_rank)
        for key, listed in _configured(trace):
            members.setdefault(key, set()).update(listed)
    for key, of_group in calls.items():
        known = members.get(key, set(range(ranks)) if names[key] == ALL_RANKS else set())
        yield Group(names[key], frozenset(known | set(of_group)), of_group)


def _from_the_last_over(calls: Mapping[int, Call]) -> dict[int, Call]:
    """Return a rank's last call that is over, and those after it.

    All before it are over, too: torch notes no end of the parts of a coalesced call.
    """
    over = max((number for number, call in calls.items() if call.is_over), default=None)
    return {number: call for number, call in calls.items() if over is None or number >= over}


def _call(entry: Mapping[str, Any], position: int) -> Optional[Call]:
    """Return the call of an entry; None of a send or a receive, which pairs of ranks count."""
    if entry["is_p2p"]:
        return None
    name = str(entry["profiling_name"]).rpartition(":")[2]
    frames = [f"{frame['filename']}:{int(frame['line'])}" for frame in entry["frames"]]
    own = next((frame for frame in frames if not any(part in frame for part in _OF_TORCH)), "")
    is_over = bool(entry["retired"]) or entry["state"] == "completed"
    number = int(entry["collective_seq_id"])
    sizes = str(entry.get("input_sizes", ""))[:80]
    return Call(number, name, sizes, position, own, is_over)


def _configured(trace: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """Yield each process group of a dump, and its ranks."""
    groups = trace.get("pg_config")
    for key, group in groups.items() if isinstance(groups, dict) else ():
        text = str(group.get("ranks", "")) if isinstance(group, dict) else ""
        ranks = [int(word) for word in text.strip("[] ").split(",") if word.strip().isdigit()]
        yield str(key), ranks[: 1 << 16]


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
