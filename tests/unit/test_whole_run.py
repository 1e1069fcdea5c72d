"""The suite's own promise: tests/run.sh runs every test there is, or it is red."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from samples import ROOT

pytestmark = pytest.mark.slow

PASSES = "def test_it():\n    assert True\n"
FAILS = "def test_it():\n    assert False\n"
# Stands in for a plug-in that swallows a test: it is neither run nor reported.
SWALLOWS = "def pytest_runtest_protocol(item):\n    return True if 'swallowed' in item.nodeid else None\n"
# Plug-ins that no test here needs, and that take longer to load than all else.
QUICK = {"PYTEST_ADDOPTS": "-p no:hypothesispytest -p no:anyio -p no:platformdirs"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the real tests/run.sh and one test, which passes. Whoever calls that, it is told that he is no root."""
    for name in ("pyproject.toml", "tests/run.sh", "tests/conftest.py", "tests/kit_forks.py", "tests/whole_run.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    write(tmp_path, "tests/cluster/images.sh", "#!/bin/bash\n: >started\n")
    write(tmp_path, "tests/unit/test_old.py", PASSES)
    write(tmp_path, "bin/id", "#!/bin/sh\necho 1000\n")
    return tmp_path


def write(checkout: Path, name: str, text: str) -> None:
    """Writes a file; one that begins as a program does is one."""
    (checkout / name).parent.mkdir(parents=True, exist_ok=True)
    (checkout / name).write_text(text)
    (checkout / name).chmod(0o755 if text.startswith("#!") else 0o644)


def run(checkout: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith(("PYTEST_", "COVERAGE_", "KIT_TEST_"))}
    environment = {**clean, **QUICK, "PATH": f"{checkout}/bin:{os.environ['PATH']}", "KIT_TEST_WORKERS": "0", **variables}
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


@pytest.mark.parametrize(("free_gb", "is_said"), [(19, True), (20, False)])
def test_a_disk_that_is_too_full_for_a_whole_run_is_named_before_it_and_where_it_failed(free_gb: int, is_said: bool, checkout: Path) -> None:
    write(checkout, "bin/df", f"#!/bin/sh\nprintf ' Avail\\n   {free_gb}\\n'\n")
    write(checkout, "tests/unit/test_new.py", FAILS)
    done = run(checkout)
    warning = f"warning: /tmp has {free_gb} GB free, and a whole run takes 20: tests may fail for that\n"
    assert (warning in done.stderr, warning in done.stdout) == (is_said, is_said), done.stderr


# Stands in for the one that becomes another user: root alone can.
AS_IF_ANOTHER = """\
#!/usr/bin/env bash
python="$1"
shift 2
AS_IF_ANOTHER=1 "${python}" -m pytest "$@"
"""
SAYS_WHO = 'import os\n\n\ndef test_who():\n    assert 0, f\'run by {os.environ.get("AS_IF_ANOTHER", "root")}\'\n'


def test_where_root_calls_it_an_ordinary_user_runs_what_needs_no_root(checkout: Path) -> None:
    write(checkout, "bin/id", "#!/bin/sh\necho 0\n")
    write(checkout, "tests/ordinary_user.sh", AS_IF_ANOTHER)
    for folder in ("unit", "images", "new", "cluster"):
        write(checkout, f"tests/{folder}/test_{folder}_says.py", SAYS_WHO)
    done = run(checkout, COLUMNS="200")  # else pytest cuts its lines off
    assert done.returncode == 1
    failed = re.findall(r"(?m)^FAILED tests/(\w+)/\S+ - AssertionError: run by (\w+)", done.stdout)
    # Each part once more, since so few failed, and the first one in the report at the end.
    by_another, by_root = [("images", "1"), ("unit", "1")], [("cluster", "root"), ("new", "root")]
    assert sorted(failed) == sorted([*by_another * 4, *by_root * 2])
    assert "3 tests collected, 3 reported\n" in done.stdout and "2 tests collected, 2 reported\n" in done.stdout


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


# Fails where another try of it has not been.
FAILS_ONCE = """\
import pathlib
import pytest


@pytest.mark.parametrize("words", [f"a [b] ::{number}" for number in range(COUNT)])
def test_it(words, request):
    tried = pathlib.Path(__file__).with_name(f"tried {words[-1]}")
    assert tried.exists() or tried.write_text("") is None and False
"""


@pytest.mark.parametrize(("count", "code"), [(3, 0), (4, 1)])
def test_a_few_that_pass_alone_are_named_as_flaky_and_more_are_red(count: int, code: int, checkout: Path) -> None:
    write(checkout, "tests/new/test_new.py", FAILS_ONCE.replace("COUNT", str(count)))
    done = run(checkout)
    assert done.returncode == code, done.stdout + done.stderr
    flaky = [f"FLAKY tests/new/test_new.py::test_it[a [b] ::{number}]: failed beside others, passed alone" for number in range(count)]
    assert [line for line in done.stdout.splitlines() if line.startswith("FLAKY")] == ([] if code else flaky)


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
    done = run(checkout, KIT_TEST_WORKERS=workers)
    assert done.returncode == 1 and "FLAKY" not in done.stdout
