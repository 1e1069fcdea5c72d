"""What `kit bench` measured: read from the run's log folder, compared with what is expected, and said in words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Optional

from kit import regular
from kit.errors import KitError
from kit.expect import Expectation
from kit.progress import size
from kit.runs import follow, tasks
from kit.runs.history import Run
from kit.runs.links import Link, Slow, Verdict, judge

FILE = "bench.json"  # as train/bandwidth.py writes it
FORMAT = 1
_MOST = 1e18  # bytes, seconds and GB/s


@dataclass(frozen=True)
class Size:
    bytes: int
    repetitions: int
    calls: int  # in each of them
    median_s: float  # of one call
    min_s: float
    algbw_GBps: float
    busbw_GBps: float
    right: bool  # whether the sums were


@dataclass(frozen=True)
class Measured:
    title: str
    facts: dict[str, Any]  # the file
    sizes: tuple[Size, ...]
    links: Optional[tuple[Link, ...]]  # None where only the whole was measured
    expectation: Expectation

    @cached_property
    def best(self) -> Size:
        return max(self.sizes, key=lambda item: item.busbw_GBps)

    @cached_property
    def share(self) -> Optional[float]:
        """Of what is expected; None where nothing is."""
        return self.best.busbw_GBps / self.expectation.busbw if self.expectation.busbw else None

    @cached_property
    def is_too_little(self) -> bool:
        return self.share is not None and self.share < self.expectation.share

    @cached_property
    def verdict(self) -> Optional[Verdict]:
        """None where there is nothing to compare: one link alone is as fast as it is."""
        return judge(self.links) if self.links and len(self.links) > 1 else None

    @cached_property
    def wrong(self) -> list[str]:
        """Where a sum was not what it must be."""
        pairs = [" - ".join(item["nodes"]) for item in self.facts["pairs"] or [] if not item["right"]]
        return [*(size(item.bytes) for item in self.sizes if not item.right), *pairs]

    @property
    def code(self) -> int:
        """kit's exit code."""
        return int(bool(self.wrong or self.is_too_little or (self.verdict and (self.verdict.nodes or self.verdict.links))))


def of(word: Optional[str]) -> Measured:
    """Of a run by job id, run directory or name."""
    return read(tasks.single(word))


def read(run: Run) -> Measured:
    path = follow.folder(Path(run.folder), run.id) / FILE
    try:
        facts = regular.mapping(path)
    except FileNotFoundError:
        raise KitError(f"{run} has measured nothing", f"whether it is one of kit bench, and how it went: kit logs {run.id}") from None
    except (OSError, ValueError) as error:
        raise KitError(f"{path} cannot be read: {error}", "measure again: kit bench") from None
    return make(str(run), facts, path)


def make(title: str, facts: dict[str, Any], path: Path) -> Measured:
    try:
        if facts["format"] != FORMAT:
            raise KitError(f"{path} is of another version of kit", "show it with that one, or measure again: kit bench")
        sizes = tuple(Size(**item) for item in facts["sizes"])
        pairs, wanted = facts["pairs"], facts["expect"]
        links = None if pairs is None else tuple(Link((item["nodes"][0], item["nodes"][1]), item["busbw_GBps"]) for item in pairs)
        expectation = Expectation(wanted["busbw_GBps"], wanted["share"]) if wanted else Expectation()
        measured = [number for item in sizes for number in (item.bytes, item.median_s, item.min_s, item.algbw_GBps, item.busbw_GBps)]
        measured += [link.busbw for link in links or ()] + [item["bytes"] for item in pairs or ()] + [expectation.busbw or 1, expectation.share]
        names = {node["name"] for node in facts["nodes"]}
        assert sizes and names and facts["ranks"] and facts["backend"]
        assert all(type(number) in (int, float) and 0 < number < _MOST for number in measured)
        assert all(isinstance(right, bool) for right in [item.right for item in sizes] + [item["right"] for item in pairs or ()])
        assert all(isinstance(name, str) for name in names) and all(names.issuperset(link.nodes) for link in links or ())
    except (KeyError, TypeError, ValueError, IndexError, AssertionError):
        raise KitError(f"{path} is not what kit bench writes", "it may have been cut off or edited; measure again: kit bench") from None
    return Measured(title, facts, sizes, links, expectation)


def heading(found: Measured) -> str:
    """What was measured, and on what."""
    facts = found.facts
    nodes, ranks = len(facts["nodes"]), facts["ranks"]
    library = f"nccl {facts['nccl']}" if facts.get("nccl") else facts["backend"]
    where = f"{nodes} node{'s' * (nodes > 1)}, {ranks} ranks"
    return f"{found.title}: all-reduce over {where}; {library} on {facts.get('device')}, torch {facts.get('torch')}"


def remarks(found: Measured) -> list[str]:
    """The verdict, a line for each thing that there is to say."""
    best = found.best
    compared = ""
    if found.share is not None and found.expectation.busbw:
        # Rounded down: 79.6 % are less than 80 %, and are to look so.
        compared = f", {int(found.share * 100 + 1e-9)} % of the {number(found.expectation.busbw)} GB/s expected"
        compared += f": less than {found.expectation.share * 100:g} %" if found.is_too_little else ""
    lines = [f"best: {number(best.busbw_GBps)} GB/s at {size(best.bytes)}{compared}"]
    if found.is_too_little and found.links is None and len(found.facts["nodes"]) > 2:
        lines.append("whether one node or link is slow: kit bench --pairs")
    lines += [f"WRONG: the sums of {where} are not what they must be: kit logs has the ranks and values" for where in found.wrong]
    return lines + _of_links(found)


def _of_links(found: Measured) -> list[str]:
    if found.links is None:
        return []
    verdict = found.verdict
    if verdict is None:
        return ["pairs: fewer than three nodes have no second link to compare with"]
    lines = [f"slow node: {item.name}: {_less(item, 'the usual')}" for item in verdict.nodes]
    lines += [f"slow link: {item.name}: {_less(item, 'what both reach with others,')}" for item in verdict.links]
    if not lines:
        worst = min(found.links, key=lambda link: link.busbw)
        part = f"{worst.busbw / verdict.usual * 100:.0f} % of the usual {number(verdict.usual)} GB/s"
        lines = [f"no node and no link is slow: the slowest link, {worst}, has {part}"]
    return lines


def _less(item: Slow, usual: str) -> str:
    return f"{number(item.busbw)} GB/s, {item.busbw / item.usual * 100:.0f} % of {usual} {number(item.usual)}"


def number(value: float) -> str:
    """Three digits, as far as they say something."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f}"


def as_json(found: Measured) -> str:
    """The file, with what kit makes of it."""
    verdict = found.verdict
    judged = {
        "run": found.title,
        "best_busbw_GBps": found.best.busbw_GBps,
        "expected_busbw_GBps": found.expectation.busbw,
        "share": found.share,
        "least_share": found.expectation.share,
        "slow_nodes": [item._asdict() for item in verdict.nodes] if verdict else None,
        "slow_links": [item._asdict() for item in verdict.links] if verdict else None,
        "ok": found.code == 0,
    }
    return json.dumps({**found.facts, **judged}, indent=2)
