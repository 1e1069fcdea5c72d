"""Read the bandwidth that a cluster's profile expects of its network, for `kit bench`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from kit.base.errors import Problems
from kit.config import values
from kit.config.yaml_source import Located, refuse_unknown

SHARE = 0.8  # of the expected bandwidth; a smaller share fails
KEYS = ("allreduce_busbw_GBps", "share")


@dataclass(frozen=True)
class Expectation:
    busbw: Optional[float] = None  # GB/s at the best message size; None: nothing is expected
    share: float = SHARE


def parse(given: Located, problems: Problems) -> Optional[Expectation]:
    """Return the expectation of a profile's `expect: {allreduce_busbw_GBps: 180, share: 0.8}`."""
    keys = given.value
    if not isinstance(keys, dict):
        fix = "write `expect: {allreduce_busbw_GBps: 180}`"
        problems.add(given.where, "expected NAME: VALUE lines", fix)
        return None
    refuse_unknown(keys, KEYS, "expect", problems)
    busbw = (
        number(keys["allreduce_busbw_GBps"], problems) if "allreduce_busbw_GBps" in keys else None
    )
    share = _share(keys["share"], problems) if "share" in keys else None
    return Expectation(busbw, SHARE if share is None else share)


def number(given: Located, problems: Problems) -> Optional[float]:
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


def _share(given: Located, problems: Problems) -> Optional[float]:
    share = number(given, problems)
    if share is not None and share > 1:
        fix = "write a share of what is expected: 0.8"
        problems.add(given.where, f"a share of {share:g} is more than all", fix)
    return share


def override(
    expectation: Expectation, busbw: Optional[str], share: Optional[str], problems: Problems
) -> Expectation:
    """Return the expectation with the command line's values in the place of the profile's."""
    if busbw is not None:
        expectation = Expectation(number(Located(busbw, "--expect"), problems), expectation.share)
    if share is not None and (found := _share(Located(share, "--share"), problems)) is not None:
        expectation = Expectation(expectation.busbw, found)
    return expectation
