"""Read what `kit bench` measured from a run's log folder, and compare it with the expectation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Optional

from kit.base import formats
from kit.base.errors import KitError
from kit.cluster.bench.links import Link, SlowParts, judge
from kit.config.bandwidth_target import Expectation
from kit.files import safe_read
from kit.runs.history import Run

FORMAT = 1
_MOST = 1e18  # bytes, seconds and GB/s


@dataclass(frozen=True)
class Size:
    bytes: int
    repetitions: int
    calls: int  # in each repetition
    median_s: float  # of one call
    min_s: float
    algbw_GBps: float
    busbw_GBps: float
    right: bool  # the sums were right


@dataclass(frozen=True)
class Measured:
    title: str
    facts: dict[str, Any]  # the file
    sizes: tuple[Size, ...]
    links: Optional[tuple[Link, ...]]  # None if no pairs of nodes were measured
    expectation: Expectation

    @cached_property
    def best(self) -> Size:
        return max(self.sizes, key=lambda item: item.busbw_GBps)

    @cached_property
    def share(self) -> Optional[float]:
        """The best bandwidth as a share of the expected one; None if nothing is expected."""
        return self.best.busbw_GBps / self.expectation.busbw if self.expectation.busbw else None

    @cached_property
    def is_too_little(self) -> bool:
        return self.share is not None and self.share < self.expectation.share

    @cached_property
    def verdict(self) -> Optional[SlowParts]:
        """The slow nodes and links; None without a second link to compare with."""
        return judge(self.links) if self.links and len(self.links) > 1 else None

    @cached_property
    def wrong(self) -> list[str]:
        """The sizes and pairs of nodes with wrong sums."""
        pairs = [item["nodes"] for item in self.facts["pairs"] or [] if not item["right"]]
        sizes = [formats.size(item.bytes) for item in self.sizes if not item.right]
        return [*sizes, *(" - ".join(nodes) for nodes in pairs)]

    @property
    def code(self) -> int:
        """The exit code of kit."""
        is_slow = self.verdict and (self.verdict.nodes or self.verdict.links)
        return 1 if self.wrong or self.is_too_little or is_slow else 0


def read(run: Run) -> Measured:
    path = run.job_paths.bandwidths
    try:
        facts = safe_read.mapping(path)
    except FileNotFoundError:
        fix = f"whether it is one of kit bench, and how it went: kit logs {run.id}"
        raise KitError(f"{run} has measured nothing", fix) from None
    except (OSError, ValueError) as error:
        raise KitError(f"{path} cannot be read: {error}", "measure again: kit bench") from None
    return make(str(run), facts, path)


def make(title: str, facts: dict[str, Any], path: Path) -> Measured:
    try:
        if facts["format"] != FORMAT:
            fix = "show it with that one, or measure again: kit bench"
            raise KitError(f"{path} is of another version of kit", fix)
        sizes = tuple(Size(**item) for item in facts["sizes"])
        pairs, wanted = facts["pairs"] or (), facts["expect"]
        links = tuple(
            Link((item["nodes"][0], item["nodes"][1]), item["busbw_GBps"]) for item in pairs
        )
        expectation = (
            Expectation(wanted["busbw_GBps"], wanted["share"]) if wanted else Expectation()
        )
        measured = [expectation.busbw or 1, expectation.share]
        for item in sizes:
            measured += [item.bytes, item.median_s, item.min_s, item.algbw_GBps, item.busbw_GBps]
        for pair in pairs:
            measured += [pair["busbw_GBps"], pair["bytes"]]
        rights = [*(item.right for item in sizes), *(pair["right"] for pair in pairs)]
        names = {node["name"] for node in facts["nodes"]}
        assert sizes and names and facts["ranks"] and facts["backend"]
        assert all(type(number) in (int, float) and 0 < number < _MOST for number in measured)
        assert all(isinstance(right, bool) for right in rights)
        assert all(isinstance(name, str) for name in names)
        assert all(names.issuperset(link.nodes) for link in links)
    except (KeyError, TypeError, ValueError, IndexError, AssertionError):
        raise KitError(
            f"{path} is not what kit bench writes",
            "it may have been cut off or edited; measure again: kit bench",
        ) from None
    return Measured(title, facts, sizes, None if facts["pairs"] is None else links, expectation)


def as_json(found: Measured) -> dict[str, Any]:
    """Return the file's content with kit's verdict."""
    verdict = found.verdict
    conclusions = {
        "run": found.title,
        "best_busbw_GBps": found.best.busbw_GBps,
        "expected_busbw_GBps": found.expectation.busbw,
        "share": found.share,
        "least_share": found.expectation.share,
        "slow_nodes": [item._asdict() for item in verdict.nodes] if verdict else None,
        "slow_links": [item._asdict() for item in verdict.links] if verdict else None,
        "ok": found.code == 0,
    }
    return {**found.facts, **conclusions}
