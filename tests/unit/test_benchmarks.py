"""What all benchmarks share, and that what the documents quote is what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import measure
import pytest
import table
from measure import Comparison, Goal, Tally

from samples import ROOT


def test_the_table_and_the_readme_are_what_was_measured() -> None:
    assert (ROOT / "bench/RESULTS.md").read_text() == table.text(), "make bench writes it"
    assert table.quoted((ROOT / "README.md").read_text()) == table.sentences()


def test_every_result_is_of_a_benchmark_that_is_there_and_run_by_make_bench() -> None:
    import all as every

    assert set(table.measured()) <= set(every.BENCHMARKS)
    assert all((ROOT / f"bench/{name}.py").exists() for name in every.BENCHMARKS)


def test_a_ratio_is_of_the_same_round_so_that_a_slow_moment_meets_both() -> None:
    compared = Comparison("x", "", {"kit": [1.0, 10.0, 1.0], "peer": [2.0, 20.0, 2.0]})
    assert compared.ratio("peer") == (0.5, 0.5, 0.5)
    assert compared.over("peer").median == -1


def test_who_begins_changes_from_round_to_round(capsys: pytest.CaptureFixture[str]) -> None:
    called: list[str] = []

    def side(name: str) -> float:
        called.append(name)
        return float(len(called))

    values = measure.take_turns({name: lambda name=name: side(name) for name in ("kit", "peer")}, rounds=3, warm_up=1)
    assert called == ["peer", "kit", "kit", "peer", "peer", "kit", "kit", "peer"]
    assert values == {"kit": [3.0, 6.0, 7.0], "peer": [4.0, 5.0, 8.0]}
    assert capsys.readouterr().err == ""  # progress is for terminals


def test_a_missed_goal_is_told() -> None:
    compared = Comparison("x", "", {"kit": [1.1], "peer": [1.0]}, goals=[Goal("peer", 1.05), Goal("peer", 0.2, over=True)])
    assert compared.missed() == [Goal("peer", 1.05)]
    assert measure.told(compared).endswith("goal missed: at most 1.05 of peer: 1.1")


def test_a_goal_may_leave_out_what_no_side_goes_below() -> None:
    values = {"kit": [1.5, 9.0, 1.5], "peer": [2.0, 2.0, 2.0], "bare": [1.0, 1.0, 1.0]}
    goals = [Goal("peer", 0.4, floor="bare"), Goal("peer", 0.5, floor="bare")]
    compared = Comparison("x", "", values, goals=goals)
    assert compared.missed() == goals[:1] and compared.reached(goals[0]) == 0.5
    assert measure.told(compared).endswith("goal missed: at most 0.4 of peer, both over bare: 0.5")


def test_what_is_counted_is_shown_with_its_spread_and_a_missed_goal_is_told(kept: Path) -> None:
    counted = Tally("x", "It is so.", {"a": [True, False], "b": [True]}, {"a": [1.0, 3.0], "b": [2.0]}, "its time", 0.9, "One was slow.")
    assert counted.counted() == (2, 3) and counted.is_missed()
    record = {"measured": "2026-01-01", "rounds": 3, "machine": {"cpu": "2 x A"}, "versions": {}, "comparisons": [], "lines": [], "tallies": [vars(counted)]}
    (kept / "some.json").write_text(json.dumps(record))
    assert measure.tallies("some") == [counted]
    assert table.section("some").splitlines()[4:] == [
        "| x | right | its time: median (quartiles) | longest |",
        "|---|---|---|---|",
        "| a | 1 of 2 | 2.0 s (1.5-2.5) | 3.0 s |",
        "| b | 1 of 1 | 2.0 s (2.0-2.0) | 2.0 s |",
        "| **all** | 2 of 3 | 2.0 s (1.5-2.5) | 3.0 s |",
        "",
        "It is so. One was slow.",
    ]
    assert table.counted_goal(counted) == "| x | 2 of 3 | | | **missed:** at least 2.7 | 3 |"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results with one comparison, whose ratio is 0.5."""
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    compared = {"claim": "x", "does": "", "values": {"kit": [1.0], "peer": [2.0]}, "unit": "s", "goals": [], "tolerance": 0.25, "why": ""}
    (tmp_path / "some.json").write_text(json.dumps({"comparisons": [compared], "lines": []}))
    return tmp_path


def test_slower_than_what_is_kept_is_told_beyond_the_tolerance(kept: Path) -> None:
    def worse(kit: float) -> list[str]:
        return measure.slower_than_before("some", [Comparison("x", "", {"kit": [kit], "peer": [2.0]})])

    assert worse(1.2) == []
    assert worse(1.3) == ["x: 0.650 of peer; it was 0.500, and 25% more is tolerated"]


def test_what_is_no_longer_compared_is_told(kept: Path) -> None:
    assert measure.slower_than_before("some", []) == ["x: no longer compared with peer"]
