"""What kit init writes: the names of files, as the user would type them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kit.cluster.init import files


def test_a_file_is_named_as_the_user_would_type_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home/project").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "home/project")
    assert files._short(Path("job.yaml").absolute()) == "job.yaml"
    assert files._short(tmp_path / "home/.config/kit/x.yaml") == f"~{os.sep}.config/kit/x.yaml"
    assert files._short(tmp_path / "homes/x") == str(tmp_path / "homes/x")
