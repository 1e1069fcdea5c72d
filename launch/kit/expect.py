"""What a cluster's profile expects of its network, for `kit bench` to compare with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from kit.errors import Problems, did_you_mean
from kit.given import Given

SHARE = 0.8  # of it; less is too little
KEYS = ("allreduce_busbw_GBps", "share")


@dataclass(frozen=True)
class Expectation:
    busbw: Optional[float] = None  # GB/s, of the size that does best; None where nothing is expected
    share: float = SHARE


def parse(given: Given, problems: Problems) -> Optional[Expectation]:
    """A profile's `expect: {allreduce_busbw_GBps: 180, share: 0.8}`."""
    if not isinstance(given.value, dict):
        problems.add(given.where, "expected NAME: VALUE lines", "write `expect: {allreduce_busbw_GBps: 180}`")
        return None
    for name, item in given.value.items():
        if name not in KEYS:
            problems.add(item.where, f"unknown key '{name}' in expect", did_you_mean(name, list(KEYS), f"the keys are {', '.join(KEYS)}"))
    busbw, share = (number(given.value[name], problems) if name in given.value else None for name in KEYS)
    return Expectation(busbw, _share(share, given.value["share"].where, problems) if share is not None else SHARE)


def number(given: Given, problems: Problems) -> Optional[float]:
    try:
        found = float(given.value)  # type: ignore[arg-type]  # what is no text is a TypeError
    except (TypeError, ValueError):
        found = 0.0
    if not 0 < found < float("inf"):
        problems.add(given.where, f"expected a number above 0, not '{given.value}'", "write GB/s, as in `kit bench`'s table: 180; or a share of it: 0.8")
        return None
    return found


def _share(found: float, where: str, problems: Problems) -> float:
    if found > 1:
        problems.add(where, f"a share of {found:g} is more than all", "write a share of what is expected: 0.8")
    return found


def over(expectation: Expectation, busbw: Optional[str], share: Optional[str], problems: Problems) -> Expectation:
    """The same with what the command line says."""
    if busbw is not None:
        expectation = Expectation(number(Given(busbw, "--expect"), problems), expectation.share)
    if share is not None and (found := number(Given(share, "--share"), problems)) is not None:
        expectation = Expectation(expectation.busbw, _share(found, "--share", problems))
    return expectation
