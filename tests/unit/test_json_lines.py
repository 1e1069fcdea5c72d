"""Files of lines to which kit appends what it must not forget."""

from __future__ import annotations

import fcntl
import os
import pwd
import threading
from pathlib import Path

import pytest
from kit.base.errors import KitError, KitWarning
from kit.files import json_lines, notes
from kit.files.digests import Digests
from kit.remote import records
from kit.remote.records import Record


def test_what_a_full_disk_has_cut_off_costs_no_later_line(tmp_path: Path) -> None:
    file = tmp_path / "folder/lines"
    json_lines.append(file, {"number": 1})
    with file.open("ab") as out:
        out.write(b'\0\0{"number": 2}\n[3]\n{"number": 4, "te')
    json_lines.append(file, {"number": 5})
    assert list(json_lines.read(file)) == [{"number": 1}, {"number": 2}, {"number": 5}]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_line_waits_for_another_that_is_being_appended(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    with file.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        late = threading.Thread(target=json_lines.append, args=(file, {"number": 2}))
        late.start()
        late.join(0.5)
        assert late.is_alive()
        other.write('{"number": 1}\n')  # at the place where the file ended, as NFS does
    late.join()
    assert list(json_lines.read(file)) == [{"number": 1}, {"number": 2}]


def test_a_lock_that_nobody_releases_costs_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a machine that went down, which a file server keeps: each command would wait for ever."""
    monkeypatch.setattr(json_lines, "LOCKED_S", 0.2)
    file = tmp_path / "lines"
    with file.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        json_lines.append(file, {"number": 1})
    assert list(json_lines.read(file)) == [{"number": 1}]


def test_a_run_of_a_cluster_is_found_behind_a_line_that_was_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = tmp_path / "kit/elsewhere.jsonl"
    records.add(Record("far", "/project", "/runs/1", "1"))
    os.truncate(file, file.stat().st_size - 1)  # without its end
    records.add(Record("far", "/project", "/runs/2", "2"))
    assert [record.id for record in records.records()] == ["1", "2"]


def test_a_run_of_a_cluster_is_found_whose_secrets_another_version_wrote_in_another_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    facts = {"cluster": "far", "here": "/project", "folder": "/runs/1", "id": "1", "secrets": [["WANDB_API_KEY", "env", "WANDB_API_KEY"]]}
    for changed in ({}, {"folder": "/runs/2", "cluster": 5}, {"folder": "/runs/3", "here": None}):
        json_lines.append(tmp_path / "kit/elsewhere.jsonl", {**facts, **changed})
    assert records.records() == [Record("far", "/project", "/runs/1", "1")]


def test_nothing_is_noted_in_a_folder_called_tilde_where_nobody_knows_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user has a number alone."""

    def nobody(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KitError, match="HOME is not set"):
        records.add(Record("far", "/project", "/runs/1", "1"))
    with pytest.raises(KitError, match="HOME is not set"):
        Digests("images", 10)
    assert not any(tmp_path.iterdir())


def test_a_tilde_that_a_quote_has_kept_from_the_shell_is_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "~/state")  # export XDG_STATE_HOME="~/state"
    assert notes.folder() == tmp_path / "state/kit"


def test_of_a_file_that_has_grown_for_years_the_last_lines_are_read(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    json_lines.append(file, {"number": 1})
    os.truncate(file, 65 << 20)
    json_lines.append(file, {"number": 2})
    json_lines.append(file, {"number": 3})
    assert list(json_lines.read(file)) == [{"number": 2}, {"number": 3}]


def test_a_pipe_in_the_place_of_the_file_is_refused_and_said_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lines")
    with pytest.warns(KitWarning, match="lines cannot be read .it is not a regular file., so kit does not know") as said:
        assert [*json_lines.read(tmp_path / "lines"), *json_lines.read(tmp_path / "lines")] == []
    assert len(said) == 1
    with pytest.warns(KitWarning) as said:
        assert list(json_lines.read(tmp_path)) == []
    assert len(said) == 1
    assert list(json_lines.read(tmp_path / "none")) == []
    with pytest.raises(OSError, match="it is not a regular file"):
        json_lines.append(tmp_path / "lines", {})
