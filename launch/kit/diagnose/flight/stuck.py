"""Say of a call that did not end who waits in it, and who is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Callable, Optional

from kit.base import formats
from kit.diagnose.flight.dumps import Call, Dump, Transfer

Shorten = Callable[[str], str]  # makes a place, file:line, shorter
# Into these each rank may put in another amount: torch 2.13's, and the older names of them.
_UNEVEN = re.compile(r"all_?to_?all.*|scatter|.*_v(_.*)?")
_FAULT = "it does not end: a link or a GPU may be at fault"
_NAMED = 3  # of those that differ, or are waited for


@dataclass(frozen=True)
class Scene:
    """All that the dumps tell."""

    dumps: Mapping[int, Dump]
    waits: Mapping[int, Call]  # {rank: the first of the calls that it waits in}
    # {rank: (what does not end of the sends and receives that it waits in, whether the others
    # have called their sides of it)}: see _wanted in flight.py
    wanted: Mapping[int, tuple[list[Transfer], Optional[bool]]]
    at_s: float  # when the last dump was written, in seconds since 1970
    unread: frozenset[int]  # ranks whose dumps were too many to read
    short: Shorten

    def has_no_dump(self, rank: int) -> bool:
        return rank not in self.dumps and rank not in self.unread

    def at(self, call: Call, before: str = ", at ") -> str:
        """Return the place of a call, for the end of a sentence; empty where it has none."""
        return f"{before}{self.short(call.place)}" if call.place else ""


@dataclass(frozen=True)
class Stuck:
    """A call that did not end."""

    call: Call  # as most of the ranks called it
    group: str
    waiting: list[int]
    missing: list[int]  # the ranks that have not called it, or have left no dump
    scene: Scene

    @property
    def without_dump(self) -> list[int]:
        return [rank for rank in self.missing if self.scene.has_no_dump(rank)]

    @property
    def what(self) -> str:
        """Return the call and its group."""
        return f"{self.call.what} of {self.group}"

    @property
    def suspects(self) -> str:
        """Return the odd ranks whose places are known; empty without any."""
        known = [rank for rank in self.odd if rank in self.scene.dumps]
        return formats.ranks(known) if known else ""

    @property
    def alike(self) -> list[int]:
        """Return the ranks that wait in this call."""
        return self.waiting

    @property
    def odd(self) -> list[int]:
        """Return the ranks that are not where others wait for them; none where all are."""
        return self.missing

    @property
    def needed(self) -> list[int]:
        """Return the ranks that it takes, and that may wait elsewhere."""
        return [*self.waiting, *self.odd]

    @property
    def sentence(self) -> str:
        """Return who waits in what, and why."""
        waiting = formats.ranks_do(self.alike, "waits", "wait")
        return f"{waiting} in {self.what}{self.scene.at(self.call)}{self.why}"

    @property
    def why(self) -> str:
        """Return who is missing, or by what the calls differ, as the end of a sentence."""
        read, unread = len(self.scene.dumps), len(self.scene.unread)
        counted = f"; {read} of {read + unread} dumps were read" if unread else ""
        return f"{self._differs()}{counted}"

    def _differs(self) -> str:
        raise NotImplementedError

    def is_in(self, rank: int) -> bool:
        """Return whether this is the first call in which the rank waits."""
        raise NotImplementedError

    @property
    def order(self) -> tuple[bool, ...]:
        """Return what puts the first cause first.

        That is the call for which a rank that waits nowhere is missing. Whoever is missing
        elsewhere because it waits here is none.
        """
        waits = self.scene.waits
        is_late = any(rank not in waits for rank in self.odd if rank not in self.scene.unread)
        needed = [rank for rank in self.needed if rank in waits]
        waits_elsewhere = not all(map(self.is_in, needed))
        return not is_late, waits_elsewhere, not self.call.transfers, not self.missing

    def last(self, rank: int) -> str:
        """Return the last call of a rank, of any kind: was last at all_reduce 1, train.py:3."""
        calls = self.scene.dumps[rank].calls
        if not calls:
            return ""
        return f"was last at {self.named(rank, calls[-1])}{self.scene.at(calls[-1], ', ')}"

    def named(self, rank: int, call: Call) -> str:
        """Return a rank's call, with its group where that is another."""
        group = "" if call.group == self.call.group else self.scene.dumps[rank].names[call.group]
        return f"{call.what} of {group}" if group else call.what


@dataclass(frozen=True)
class Collective(Stuck):
    called: Mapping[int, Call]  # {rank: its call of it}

    @cached_property
    def names(self) -> dict[str, list[int]]:
        """Return {what was called: the ranks}."""
        return formats.by_value({rank: call.name for rank, call in sorted(self.called.items())})

    @cached_property
    def sizes(self) -> list[tuple[str, list[int]]]:
        """Return the sizes and the ranks that gave them, the most first; empty if all gave one."""
        if len(self.names) > 1 or _UNEVEN.fullmatch(self.call.name):
            return []
        found = formats.by_value({rank: call.sizes for rank, call in sorted(self.called.items())})
        most_first = sorted(found.items(), key=lambda item: -len(item[1]))
        return most_first if len(found) > 1 else []

    @property
    def alike(self) -> list[int]:
        return [rank for rank in self.waiting if self.called[rank].name == self.call.name]

    @property
    def odd(self) -> list[int]:
        if self.missing:
            return self.missing
        others = [ranks for name, ranks in self.names.items() if name != self.call.name]
        others += [ranks for _, ranks in self.sizes[1:]]
        return sorted(rank for ranks in others for rank in ranks)

    def is_in(self, rank: int) -> bool:
        return self.called.get(rank) is self.scene.waits.get(rank)

    def _differs(self) -> str:
        if self.missing:
            return self._missing()
        others = [
            f"; {formats.ranks(ranks)} called {name} instead{self.scene.at(self.called[ranks[0]])}"
            for name, ranks in self.names.items()
            if name != self.call.name
        ]
        if others:
            return "".join(others[:_NAMED])
        if not self.sizes:
            all_read = "all whose dumps were read" if self.scene.unread else "all"
            return f"; {all_read} have called it, and {_FAULT}"
        place = self.call.place
        said: list[str] = []
        for sizes, ranks in self.sizes[:_NAMED]:
            call = self.called[ranks[0]]
            its_place = self.scene.at(call) if call.place != place else ""
            verb = "" if said else "called it "
            said.append(f"{formats.ranks(ranks)} {verb}with {sizes}{its_place}")
        return f"; {', '.join(said)}"

    def _missing(self) -> str:
        late = [rank for rank in self.missing if rank in self.scene.dumps]
        if not late:
            return f"; {formats.ranks_do(self.missing, 'has', 'have')} left no dump"
        said = f"; {formats.ranks_do(late, 'has', 'have')} not called it"
        last = self.last(late[0])
        who = f"rank {late[0]} " if len(late) > 1 else ""
        return f"{said}, and {who}{last}" if last else said


@dataclass(frozen=True)
class Transfers(Stuck):
    """What a rank sends and receives, of which some did not end."""

    rank: int
    wanted: list[Transfer]  # the transfers that did not end
    has_come: Optional[bool]  # whether the others have called their sides of them

    @property
    def peers(self) -> list[int]:
        return list(dict.fromkeys(transfer.peer(self.rank) for transfer in self.wanted))

    @property
    def odd(self) -> list[int]:
        if self.has_come:
            return []
        return sorted([self.rank, *self.peers] if self._is_mutual else self.peers)

    @property
    def needed(self) -> list[int]:
        return [self.rank, *self.peers]

    def is_in(self, rank: int) -> bool:
        wanted, _ = self.scene.wanted.get(rank, ([], None))
        return rank == self.rank or self.rank in (transfer.peer(rank) for transfer in wanted)

    def _differs(self) -> str:
        said = [f"; rank {peer} {self._peer(peer)}" for peer in self.peers[:_NAMED]]
        each = ": each waits for the other" if self._is_mutual else ""
        return f"{''.join(said)}{each}"

    @property
    def _is_mutual(self) -> bool:
        """Return whether the one other rank waits for this one in something else."""
        peers, wanted = self.peers, self.scene.wanted
        if len(peers) != 1 or peers[0] not in wanted or not self.is_in(peers[0]):
            return False
        theirs, _ = wanted[peers[0]]
        return not {each[:2] for each in self.wanted} & {each[:2] for each in theirs}

    def _peer(self, peer: int) -> str:
        """Return where one is to which the rank sends, or from which it receives."""
        if peer in self.scene.unread:
            return "may be at fault: its dump was not read"
        if peer not in self.scene.dumps:
            return "has left no dump"
        last = self.last(peer)
        if self.has_come is None:
            return last or "has called nothing"
        transfer = next(each for each in self.wanted if each.peer(self.rank) == peer)
        name, wait = transfer.name(peer), self.scene.waits.get(peer)
        if self.has_come and wait and transfer in wait.transfers:
            return f"has called {name}, and {_FAULT}"
        if self.has_come and wait:
            return f"waits in {self.named(peer, wait)}{self.scene.at(wait)}"
        has = "has" if self.has_come else "has not"
        return f"{has} called {name}{f', and {last}' if last else ''}"
