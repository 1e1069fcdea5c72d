"""Find in the flight recorder's dumps the call that did not end, and is the first cause.

NCCL's watchdog writes one for each rank when a collective takes too long; where, the scripts say:
container.sh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Optional

from kit.diagnose.flight.dumps import ALL_RANKS, Call, Dump, Transfer, listed, read
from kit.diagnose.flight.stuck import Collective, Scene, Shorten, Stuck, Transfers
from kit.files import safe_read

MOST_DUMPS = 2048  # to read; a full one takes about 50 ms


class StuckGroup(NamedTuple):
    """A process group, and the first of its collectives that did not end.

    NCCL's calls return at once, so a rank may have called many more after the one that hangs.
    """

    name: str
    called: dict[int, Call]  # {rank: its call of that collective}
    missing: list[int]  # the ranks that have not called it


def find(dumps: Mapping[int, Path], ranks: int, short: Shorten = str) -> Optional[Stuck]:
    """Return what did not end, of {rank: its dump}; None where nothing tells.

    ranks: how many the run has.
    """
    read_ranks = sorted(dumps)[:MOST_DUMPS]
    found = read({rank: dumps[rank] for rank in read_ranks})
    unread = frozenset(dumps.keys() - read_ranks)
    groups = list(_stuck_groups(found, ranks, unread))
    waits = _waits(found, groups)
    if not waits:
        return None
    wanted = {rank: _wanted(rank, call, found) for rank, call in waits.items() if call.transfers}
    at_s = max(map(safe_read.changed_ns, dumps.values())) / 1e9
    scene = Scene(found, waits, wanted, at_s, unread, short)
    stuck: list[Stuck] = [_collective(group, scene) for group in groups]
    stuck += [_transfers(rank, scene) for rank in wanted]
    return min(stuck, key=lambda each: each.order)


def _waits(dumps: Mapping[int, Dump], groups: Iterable[StuckGroup]) -> dict[int, Call]:
    """Return {rank: the call made first} of the calls that did not end."""
    first: dict[int, Call] = {}
    of_groups = [item for group in groups for item in group.called.items()]
    of_pairs = [(rank, call) for rank, dump in dumps.items() for call in _unended(dump)]
    for rank, call in (*of_groups, *of_pairs):
        if not call.is_over and call.position <= first.get(rank, call).position:
            first[rank] = call
    return dict(sorted(first.items()))


def _unended(dump: Dump) -> Iterator[Call]:
    """Yield the sends and receives that did not end; before one that is over, its like is, too."""
    found: dict[tuple[str, tuple[str, ...]], Call] = {}
    for call in dump.calls:
        key = (call.group, tuple(f"{each.sender}->{each.receiver}" for each in call.transfers))
        if call.transfers and call.is_over:
            found.pop(key, None)
        elif call.transfers:
            found.setdefault(key, call)
    yield from found.values()


def _wanted(
    rank: int, call: Call, dumps: Mapping[int, Dump]
) -> tuple[list[Transfer], Optional[bool]]:
    """Return what does not end of sends and receives, and whether the other ranks called it.

    Those that the others have not called are told by counting, if nothing is lost of either dump.
    Otherwise it may be any that could not be counted: None.
    """
    found: dict[Optional[bool], list[Transfer]] = {False: [], None: [], True: []}
    for transfer in call.transfers:
        peer = dumps.get(transfer.peer(rank))
        is_counted = peer and call.group in peer.whole and call.group in dumps[rank].whole
        if peer and is_counted:
            found[any(transfer in each.transfers for each in peer.calls)].append(transfer)
        else:
            found[None].append(transfer)
    return next((transfers, has_come) for has_come, transfers in found.items() if transfers)


def _collective(group: StuckGroup, scene: Scene) -> Stuck:
    called = group.called
    waiting = sorted(rank for rank, call in called.items() if not call.is_over)
    names = Counter(call.name for call in called.values())
    first = max(waiting, key=lambda rank: names[called[rank].name])
    return Collective(called[first], group.name, waiting, group.missing, scene, called)


def _transfers(rank: int, scene: Scene) -> Stuck:
    call, (wanted, has_come) = scene.waits[rank], scene.wanted[rank]
    peers = sorted({each.peer(rank) for each in wanted})
    missing = [peer for peer in peers if has_come is False or scene.has_no_dump(peer)]
    name = listed([each.name(rank) for each in wanted])
    group = scene.dumps[rank].names[call.group]
    call = replace(call, name=name, number=0)
    return Transfers(call, group, [rank], missing, scene, rank, wanted, has_come)


def _stuck_groups(
    dumps: Mapping[int, Dump], ranks: int, unread: frozenset[int]
) -> Iterator[StuckGroup]:
    """Yield the process groups that are stuck; a rank whose dump is `unread` is not missing."""
    calls: dict[str, dict[int, dict[int, Call]]] = {}
    names: dict[str, str] = {}
    members: dict[str, set[int]] = {}
    for rank, dump in dumps.items():
        names |= dump.names
        for call in dump.calls:
            if not call.transfers:
                calls.setdefault(call.group, {}).setdefault(rank, {})[call.number] = call
        for key, its_ranks in dump.members.items():
            members.setdefault(key, set()).update(its_ranks)
    for key, found in calls.items():
        of_group = {rank: _from_the_last_over(of_rank) for rank, of_rank in found.items()}
        of_all = [call for of_rank in of_group.values() for call in of_rank.values()]
        first = min((call.number for call in of_all if not call.is_over), default=None)
        if first is not None:
            called = {rank: own[first] for rank, own in of_group.items() if first in own}
            came = {rank for rank, own in of_group.items() if max(own) >= first}
            known = members.get(key, set(range(ranks)) if names[key] == ALL_RANKS else set())
            missing = sorted((known | set(of_group)) - unread - came)
            yield StuckGroup(names[key], called, missing)


def _from_the_last_over(calls: Mapping[int, Call]) -> dict[int, Call]:
    """Return a rank's last call that is over, and those after it: all before it are over, too."""
    over = max((number for number, call in calls.items() if call.is_over), default=None)
    return {number: call for number, call in calls.items() if over is None or number >= over}
