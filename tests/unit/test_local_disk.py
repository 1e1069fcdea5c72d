"""A warning before a run directory is submitted that only this machine sees, and none where its nodes may see it."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import kit
import pytest
from kit.runs import history, local_disk

WARNING = "is on a disk of this machine (ext4), and a node that does not see it cannot even write the job's log\n  fix: start from a folder"


@pytest.fixture
def submit(kit_here, fake_slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What `kit submit` warns of, on this file system and with these nodes."""
    (tmp_path / "train.py").touch()

    def call(kind: str = "ext4", nodes: str = "node1\\nnode2\\n") -> str:
        for name, text in (("df", f"Type\\n{kind}\\n"), ("sinfo", nodes)):
            (tmp_path / "bin" / name).unlink(missing_ok=True)
            (tmp_path / "bin" / name).write_text(f"#!/bin/sh\nprintf '{text}'\n")
            (tmp_path / "bin" / name).chmod(0o755)
        done = kit_here("submit", "train.py", "--name", f"run{kind}{len(nodes)}{len(history.runs())}")
        assert done.code == 0, done.err
        return done.err

    monkeypatch.setattr(local_disk, "EXPORTS", (f"{tmp_path}/exports*",))
    return call


def test_where_warnings_are_errors_no_run_directory_is_left(submit, tmp_path: Path) -> None:
    assert WARNING in submit()  # with what it needs
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(kit.KitWarning, match="is on a disk of this machine"):
            kit.submit("train.py", output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_directory_on_a_disk_of_this_machine_is_warned_of(submit, tmp_path: Path) -> None:
    assert f"kit: warning: {tmp_path}/runs/run" in (said := submit()) and WARNING in said


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.ceph", "gfs2"])
def test_a_file_system_that_nodes_may_share_is_not(kind: str, submit) -> None:
    assert "warning" not in submit(kind)


def test_a_cluster_of_this_machine_alone_has_no_other_nodes(submit) -> None:
    assert "warning" not in submit(nodes=f"{os.uname().nodename}\\n")


@pytest.mark.parametrize(("line", "warned"), [('"{}" 10.0.0.0/8(rw)', False), ("{}\t*(rw)", False), ("# {}", True), ("{}/other *", True), ("/srv *", True)])
def test_a_disk_that_this_machine_exports_is_the_nodes_too(line: str, warned: bool, submit, tmp_path: Path) -> None:
    path = str(tmp_path) if '"' in line else str(tmp_path).replace(" ", "\\040")
    (tmp_path / "exports.d").write_text(f"{line.format(path)}\n")
    assert (WARNING in submit()) == warned


def test_nodes_that_wrote_the_log_of_an_earlier_job_see_the_folder(submit) -> None:
    assert WARNING in submit()
    assert WARNING in submit()
    (run,) = history.runs()[-1:]
    Path(run.folder, "log", run.id).mkdir()  # by `kit shell`, whose script begins on this machine
    assert WARNING in submit()
    Path(run.folder, "log", f"slurm-{run.id}.out").touch()
    assert "warning" not in submit()
