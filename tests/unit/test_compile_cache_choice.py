"""Where kit lets compilers keep what they compile: what it decides before the submission."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def dry_run(kit, tame_path: Path):
    """What a dry run of a job in an image says, on a cluster whose scratch folder Pyxis could not mount."""
    (tame_path / "config/kit/clusters").mkdir(parents=True)
    (tame_path / "config/kit/clusters/comma.yaml").write_text("scratch: /local,disk\n")
    for name in ("train.py", "image.sqsh"):
        (tame_path / name).touch()
    (tame_path / "job.yaml").write_text("command: train.py\nimage: image.sqsh\n")

    def run(arguments: str):
        return kit("submit", *arguments.split(), "--dry-run", cwd=tame_path, check=False, XDG_CONFIG_HOME=str(tame_path / "config"))

    return run


@pytest.mark.parametrize(
    ("arguments", "cache"),
    [
        ("train.py", "node"),
        ("train.py --cache off", ""),
        ("job.yaml --runtime enroot", "node"),
        ("job.yaml --runtime enroot --cache keep", "keep"),
        ("job.yaml --runtime none --cache keep", "node"),  # a rehearsal
        ("job.yaml --runtime pyxis --cluster comma", ""),
        ("job.yaml --runtime apptainer --cluster comma", "node"),
    ],
)
def test_where_the_caches_of_a_job_lie(arguments: str, cache: str, dry_run) -> None:
    done = dry_run(arguments)
    found = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("KIT_CACHE=")]
    assert (done.returncode, found) == (0, [f"KIT_CACHE={cache}"] if cache else []), done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("train.py --cache keep", "there is no image file to keep them beside"),
        ("job.yaml --runtime pyxis --cluster comma --cache node", "pyxis cannot mount '/local,disk', which contains a comma"),
    ],
)
def test_a_cache_that_is_asked_for_and_cannot_be_is_refused(arguments: str, problem: str, dry_run) -> None:
    done = dry_run(arguments)
    assert done.returncode == 2 and problem in done.stderr
