"""KIT_FOLLOW_PERIOD_S, by which tests make `kit submit --follow` ask Slurm more often."""

from __future__ import annotations

import pytest
from kit.base.errors import UsageError
from kit.runs import job_watch


@pytest.mark.parametrize(("text", "expected_s"), [(None, 2), ("", 2), ("0.3", 0.3), ("60", 60), ("1e1", 10)])
def test_slurm_is_asked_every_two_seconds_at_most_but_where_the_environment_says_so(
    text: str | None, expected_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KIT_FOLLOW_PERIOD_S", raising=False)
    if text is not None:
        monkeypatch.setenv("KIT_FOLLOW_PERIOD_S", text)
    assert job_watch.period_s() == expected_s


@pytest.mark.parametrize("text", ["often", "0", "0.05", "-1", "61", "nan", "inf", "1 s"])
def test_what_is_no_period_is_refused_with_its_limits(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_FOLLOW_PERIOD_S", text)
    with pytest.raises(UsageError) as refused:
        job_watch.period_s()
    assert refused.value.problems[0].problem == f"KIT_FOLLOW_PERIOD_S: {text!r} is not a number of seconds from 0.1 to 60"
