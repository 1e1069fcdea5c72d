"""The suite's own promise: tests/run.sh runs every test there is, or it is red."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from samples import ROOT

PASSES = "def test_it():\n    assert True\n"
FAILS = "def test_it():\n    assert False\n"
# Stands in for a plug-in that swallows a test: it is neither run nor reported.
SWALLOWS = "def pytest_runtest_protocol(item):\n    return True if 'swallowed' in item.nodeid else None\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the real tests/run.sh and one test, which passes."""
    for name in ("pyproject.toml", "tests/run.sh", "tests/conftest.py", "tests/whole_run.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    write(tmp_path, "tests/cluster/images.sh", "#!/bin/bash\n: >started\n")
    (tmp_path / "tests/cluster/images.sh").chmod(0o755)
    write(tmp_path, "tests/unit/test_old.py", PASSES)
    return tmp_path


def write(checkout: Path, name: str, text: str) -> None:
    (checkout / name).parent.mkdir(parents=True, exist_ok=True)
    (checkout / name).write_text(text)


def run(checkout: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith(("PYTEST_", "COVERAGE_"))}
    environment = {**clean, "KIT_TEST_WORKERS": "1", **variables}
    return subprocess.run([checkout / "tests/run.sh", *arguments], capture_output=True, text=True, env=environment)


SKIPS = """\
import pytest


@pytest.mark.parametrize("reason", ["fish is not installed", "the stub of Enroot builds nothing"])
def test_it(reason):
    pytest.skip(reason)
"""
SKIPS_ITSELF = f"import pytest\n\npytest.importorskip('nothing_of_this_name')\n{PASSES}"


def test_a_whole_run_makes_the_images_meanwhile_and_counts_its_tests(checkout: Path) -> None:
    write(checkout, "tests/new/deep/test_new.py", PASSES)
    write(checkout, "tests/unit/test_skips.py", SKIPS)
    write(checkout, "tests/unit/test_skips_itself.py", SKIPS_ITSELF)
    done = run(checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 tests collected, 4 reported\n" in done.stdout
    assert (checkout / "started").exists()


def test_in_ci_a_skip_is_red_where_an_installation_would_prevent_it(checkout: Path) -> None:
    write(checkout, "tests/unit/test_skips.py", SKIPS)
    done = run(checkout, CI="true")
    assert done.returncode == 1
    assert "1 failed, 1 passed, 1 skipped" in done.stdout
    assert "skipped, but in CI all that can be installed has to be there: Skipped: fish is not installed" in done.stdout
    write(checkout, "tests/unit/test_skips.py", SKIPS_ITSELF)
    done = run(checkout, "tests/unit/test_skips.py", CI="true")
    assert done.returncode not in (0, 5)


def test_a_test_that_fails_is_red_wherever_it_is(checkout: Path) -> None:
    names = ("tests/new/test_new.py", "tests/test_top.py", "tests/unit/test_newer.py")
    for name in names:
        write(checkout, name, FAILS)
    done = run(checkout)
    assert done.returncode == 1
    assert [name for name in names if f"FAILED {name}::test_it" in done.stdout] == list(names)


def test_a_file_whose_tests_would_not_be_collected_is_an_error(checkout: Path) -> None:
    write(checkout, "tests/unit/check_new.py", FAILS)
    done = run(checkout)
    assert done.returncode not in (0, 5)
    assert "tests/unit/check_new.py: has tests, but pytest collects only test_*.py\n  fix: rename the file" in done.stderr


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_test_that_is_collected_but_never_reported_is_an_error(checkout: Path, workers: str) -> None:
    write(checkout, "tests/unit/test_swallowed.py", PASSES)
    write(checkout, "tests/unit/conftest.py", SWALLOWS)
    done = run(checkout, "tests/unit", KIT_TEST_WORKERS=workers)
    assert done.returncode == 1
    assert "2 tests collected, 1 reported\nLOST tests/unit/test_swallowed.py::test_it: collected, but never reported" in done.stdout
    assert not (checkout / "started").exists()  # no test was asked for that needs the images
