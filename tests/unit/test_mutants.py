"""The list of mutations is usable as it stands, and its tool tells a test that notices a change from one that does not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mutants.run import Mutant, load
from samples import ROOT

pytestmark = pytest.mark.slow

TOOL = ROOT / "tests" / "mutants" / "run.py"
MUTANTS = load(TOOL.parent)

PROGRAM = """\
import time


def total(values):
    result = 0
    for value in values:
        result += value
    return result


def pause(seconds):
    time.sleep(seconds)
"""
TESTS = """\
import os, subprocess, sys
from calculate import pause, total


def test_a_total_is_the_sum():
    assert total([1, 2]) == 3


def test_a_pause_is_short():
    pause(0)


def test_a_process_has_the_copy_too():
    subprocess.run([sys.executable, "-c", "import calculate; assert calculate.total([2]) == 2"], check=True)
    assert os.path.samefile(calculate_file(), "launch/calculate.py")


def calculate_file():
    import calculate
    return calculate.__file__
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "check out"
    for name, text in {"launch/calculate.py": PROGRAM, "tests/test_calculate.py": TESTS, "tests/test_red.py": "def test_it():\n    assert False\n"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "tests/mutants").mkdir()
    (folder / ".git").mkdir()
    (folder / ".git" / "large").touch()
    return folder


def entry(old: str, new: str, tests: str = "tests/test_calculate.py", more: str = "") -> str:
    return f'- file: launch/calculate.py\n  old: "{old}"\n  new: "{new}"\n  why: what a user would see\n  tests: {tests}\n{more}'


def run(checkout: Path, entries: str, *words: str) -> tuple[int, list[str]]:
    (checkout / "tests/mutants/few.yaml").write_text(entries)
    done = subprocess.run(
        [sys.executable, TOOL, "--checkout", checkout, "--jobs", "1", *words],
        env={**os.environ, "TMPDIR": str(checkout.parent)},
        capture_output=True,
        text=True,
    )
    assert (checkout / "launch/calculate.py").read_text() == PROGRAM, "the checkout itself was changed"
    assert [path.name for path in checkout.parent.iterdir()] == [checkout.name], "a copy is left"
    return done.returncode, (done.stdout + done.stderr).splitlines()


def told(lines: list[str]) -> list[str]:
    """The lines about changes, without the times."""
    return [line.partition(" s  ")[2] for line in lines if "/few.yaml:" in line and " s  " in line]


def test_a_change_is_killed_or_survives_or_cannot_be_tried(checkout: Path) -> None:
    seconds = f"86399.{os.getpid()}"  # others may run this test, too
    hang = f"import subprocess; subprocess.run(['setsid', 'sleep', '{seconds}'])"
    entries = [
        entry("result += value", "result -= value"),
        entry("result = 0", "result = 0.0"),
        entry("result = 1", "result = 2"),
        entry("result", "other"),
        entry("result = 0", "result = 5", "tests/test_red.py"),
        entry("result = 0", "result = -0", more="  equivalent: it is the same\n"),
        entry("result = 0", "result = 1", more="  equivalent: true\n"),
        entry("time.sleep(seconds)", hang),
    ]
    code, lines = run(checkout, "".join(entries), "--limit-s", "20")
    place = "tests/mutants/few.yaml:{} launch/calculate.py: "
    by_total = "killed by tests/test_calculate.py::test_a_total_is_the_sum"
    assert [line.split(" ", 1)[1] for line in told(lines)] == [
        place.format(1) + by_total,
        place.format(6) + "SURVIVED",
        place.format(11) + "not tried: tests/mutants/few.yaml:11: launch/calculate.py has `old` 0 times instead of once: 'result = 1'",
        place.format(16) + "not tried: tests/mutants/few.yaml:16: launch/calculate.py has `old` 3 times instead of once: 'result'",
        place.format(21) + "not tried: its tests fail without the change, too: tests/test_red.py::test_it",
        place.format(26) + "equivalent",
        place.format(32) + by_total,
        place.format(38) + "killed by its time limit",
    ]
    assert lines[-9:] == [
        "",
        "launch/calculate.py:5 (tests/mutants/few.yaml:6): what a user would see",
        "    - result = 0",
        "    + result = 0.0",
        "    not noticed by tests/test_calculate.py",
        "",
        "tests/mutants/few.yaml:32 is marked as equivalent, but tests/test_calculate.py::test_a_total_is_the_sum notices it: remove the mark",
        "",
        "3 of 4 changes killed (75.0 %); 1 equivalent, 2 that no longer apply, 1 whose tests fail anyway",
    ]
    assert code == 1
    end_s = time.monotonic() + 60  # a process that was killed is shown until it has had a CPU once more
    while seconds in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout:
        assert time.monotonic() < end_s, "what hung still runs"


def test_a_survivor_can_be_tried_on_all_tests_and_only_the_changes_with_a_word_are_tried(checkout: Path) -> None:
    (checkout / "tests/test_red.py").unlink()
    survivor = entry("+= value", "-= value", "tests/test_calculate.py -k pause").replace("what a user", "the wrong sum a user")
    entries = entry("result = 0", "result = 0.0") + survivor
    code, lines = run(checkout, entries, "wrong sum", "--all-tests")
    assert (code, lines[-1]) == (0, "1 of 1 changes killed (100.0 %); 0 equivalent, 0 that no longer apply, 0 whose tests fail anyway")
    code, lines = run(checkout, entries, "no such word")
    assert (code, lines) == (2, ["kit: no change has 'no such word' in its file, reason or place", "  fix: see tests/mutants/*.yaml"])


@pytest.mark.parametrize("wrong", ["- file: x\n", entry("a", "b") + "  equivalant: typo\n", entry("a", "b").replace('"b"', "1"), entry("a", "b", "''")])
def test_an_entry_that_is_not_complete_is_refused_with_its_place(wrong: str, checkout: Path) -> None:
    (checkout / "tests/mutants/few.yaml").write_text(entry("result = 0", "result = 0.0") + wrong)
    with pytest.raises(ValueError, match=r"^tests/mutants/few.yaml:6: .*\n  fix: "):
        load(checkout / "tests/mutants")


def test_every_change_still_applies() -> None:
    stale = [f"{each.place}: {each.file} has its `old` {found} times" for each in MUTANTS if (found := (ROOT / each.file).read_text().count(each.old)) != 1]
    if stale:
        pytest.fail("these entries quote lines that have changed: quote them as they are now\n" + "\n".join(stale), pytrace=False)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.place)
def test_no_change_is_a_mere_error_of_syntax(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text().replace(mutant.old, mutant.new)
    if mutant.file.endswith(".py"):
        compile(text, mutant.file, "exec")
    else:
        # awk has no option that only reads a program; on no input this one does nothing.
        check = ["awk", "-f", "/dev/stdin", "/dev/null"] if mutant.file.endswith(".awk") else ["bash", "-n"]
        done = subprocess.run(check, input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_every_change_names_tests_that_are_there() -> None:
    named = [(each.place, word.partition("::")[0]) for each in MUTANTS for word in each.tests if word.startswith("tests/")]
    assert named
    assert [(place, name) for place, name in named if not (ROOT / name).exists()] == []
    assert {each.place for each in MUTANTS} == {place for place, _ in named}
