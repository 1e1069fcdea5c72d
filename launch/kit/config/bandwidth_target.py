"""Read the bandwidth that a cluster's profile expects of its network, for `kit bench`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Optional

from kit.base.errors import Problems
from kit.config import values
from kit.config.yaml_source import Located, refuse_unknown

KEYS = ("allreduce_busbw_GBps", "share")


@dataclass(frozen=True)
class Expectation:
    busbw: Optional[float] = None  # GB/s at the best message size; None: nothing is expected
    share: float = 0.8  # a smaller share of that fails


def parse(given: Located, problems: Problems) -> Optional[Expectation]:
    """Return the expectation of a profile's `expect: {allreduce_busbw_GBps: 180, share: 0.8}`."""
    if not isinstance(given.value, dict):
        fix = "write `expect: {allreduce_busbw_GBps: 180}`"
        problems.add(given.where, "expected NAME: VALUE lines", fix)
        return None
    refuse_unknown(given.value, KEYS, "expect", problems)
    busbw, share = map(given.value.get, KEYS)
    return override(Expectation(), busbw, share, problems)


def override(
    expectation: Expectation,
    busbw: Optional[Located],
    share: Optional[Located],
    problems: Problems,
) -> Expectation:
    """Return the expectation with the values that are given in the place of its own."""
    if busbw:
        expectation = replace(expectation, busbw=_number(busbw, problems))
    if share and (found := _number(share, problems)):
        expectation = replace(expectation, share=found)
        if found > 1:
            fix = "write a share of what is expected: 0.8"
            problems.add(share.where, f"a share of {found:g} is more than all", fix)
    return expectation


def _number(given: Located, problems: Problems) -> Optional[float]:
    """Return a number above 0, or None after noting a problem."""
    try:
        found = float(given.value)  # type: ignore[arg-type]  # a list or a mapping: TypeError
    except (TypeError, ValueError):
        found = 0.0
    if 0 < found < float("inf"):
        return found
    fix = "write GB/s, as in `kit bench`'s table: 180; or a share of it: 0.8"
    problems.add(given.where, f"expected a number above 0, not {values.kind(given)}", fix)
    return None
