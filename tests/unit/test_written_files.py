"""The names of files as commands show them."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.config import paths


def test_a_file_is_named_as_the_user_would_type_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert paths.short(tmp_path / "job.yaml") == "job.yaml"
    assert paths.short(tmp_path / "..data") == "..data"
    assert paths.short(tmp_path.parent / "x") == str(tmp_path.parent / "x")
