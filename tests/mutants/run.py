#!/usr/bin/env python3
"""Make the changes of tests/mutants/*.yaml one at a time, and say which of them no test notices.

    make mutants                                         all of them
    .venv/bin/python tests/mutants/run.py run_script.sh  those with this word in file, reason or place
    .venv/bin/python tests/mutants/run.py --jobs 4 --all-tests

Each file is a list of such entries:

    - file: launch/kit/cli/app.py
      old: "raise error"        # is in the file once
      new: "pass"
      why: KIT_TRACEBACK shows no traceback
      tests: tests/unit/test_command_line.py -k traceback   # pytest's words, or a list of them
      equivalent: no user can see the difference            # only where that is so; true where `why` says it

Every change is made in a copy of the checkout, and its tests run there until the first that fails. With --all-tests a
change that its own tests do not notice meets all tests that need no cluster. Exit status: 0 where every change was
noticed or is marked as equivalent.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import yaml

CHECKOUT = Path(__file__).resolve().parent.parent.parent
NOT_COPIED = (".git", ".venv", "runs", "dist", "build", "images")  # of the checkout's own folder
NEVER_COPIED = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis")
ALL_TESTS = ("tests", "--ignore=tests/cluster", "--ignore=tests/unit/test_package.py")  # which wants git and a network
KEYS = {"file", "old", "new", "why", "tests"}
MARK = "KIT_TESTS_MUTANT"  # in the environment of all that a test starts: the folder of the copy


@dataclass(frozen=True)
class Mutant:
    place: str  # of the entry: tests/mutants/bash.yaml:12
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]
    equivalent: str = ""

    def line(self, checkout: Path) -> int:
        """Return the number of the first changed line; raise ValueError where the change is not possible."""
        path = checkout / self.file
        if not path.is_file():
            raise ValueError(f"{self.place}: there is no {self.file}\n  fix: give the file's new place, or remove the entry")
        text = path.read_text()
        if self.old == self.new:
            raise ValueError(f"{self.place}: `old` and `new` are the same\n  fix: write what is to be changed")
        if (found := text.count(self.old)) != 1:
            fix = "give more of the line, or the lines around it" if found else "write the line as it is now, or remove the entry"
            raise ValueError(f"{self.place}: {self.file} has `old` {found} times instead of once: {self.old!r}\n  fix: {fix}")
        same = next((place for place, pair in enumerate(zip(self.old, self.new)) if pair[0] != pair[1]), 0)
        return text[: text.index(self.old) + same].count("\n") + 1

    def apply(self, checkout: Path) -> None:
        path = checkout / self.file
        self.line(checkout)
        text, mode = path.read_text().replace(self.old, self.new), path.stat().st_mode
        path.unlink()  # whatever else has this file keeps its own
        path.write_text(text)
        path.chmod(mode)


@dataclass(frozen=True)
class Outcome:
    kind: str  # killed, survived, stale: does not apply, broken: its tests fail anyway
    text: str
    seconds: float = 0.0


def load(folder: Path) -> list[Mutant]:
    """Return the entries of all files; raise ValueError for one that is not as described above."""
    found = []
    for path in sorted(folder.glob("*.yaml")):
        text = path.read_text()
        nodes = yaml.compose(text, Loader=yaml.SafeLoader)
        for entry, node in zip(yaml.safe_load(text) or [], nodes.value if nodes else []):
            place = f"{path.parent.parent.name}/{path.parent.name}/{path.name}:{node.start_mark.line + 1}"
            if not isinstance(entry, dict) or not KEYS <= set(entry) <= KEYS | {"equivalent"}:
                raise ValueError(f"{place}: an entry has the keys {', '.join(sorted(KEYS))}, and `equivalent` where it is\n  fix: write those")
            words = entry.pop("tests")
            if entry.get("equivalent") is True:
                entry["equivalent"] = entry["why"]
            tests = tuple(word for text in ([words] if isinstance(words, str) else words) for word in shlex.split(text))
            if not tests or not all(isinstance(value, str) for value in entry.values()):
                raise ValueError(f"{place}: `tests` is empty, or another value is no text\n  fix: name a test file; put the text in quotes")
            found.append(Mutant(place=place, tests=tests, **entry))
    return found


def copy(checkout: Path, to: Path) -> Path:
    def left_out(folder: str, names: list[str]) -> set[str]:
        return set(names) & {*NEVER_COPIED, *(NOT_COPIED if Path(folder) == checkout else ())}

    shutil.copytree(checkout, to, symlinks=True, ignore=left_out)
    return to


@contextlib.contextmanager
def changed(base: Path, mutant: Optional[Mutant]) -> Iterator[Path]:
    """A copy of the checkout with the change in it, and a folder for temporary files beside it."""
    folder = Path(tempfile.mkdtemp(dir=base.parent))
    folder.chmod(0o755)  # some tests are of several users
    try:
        place = folder / "kit"
        subprocess.run(["cp", "-a", "--reflink=auto", base, place], check=True)  # a quarter of the time of shutil's
        if mutant:
            mutant.apply(place)
            for stale in (place / mutant.file).parent.glob(f"__pycache__/{Path(mutant.file).stem}.*"):
                stale.unlink()
        (folder / "tmp").mkdir()
        yield place
    finally:
        _end_all(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _end_all(folder: Path) -> None:
    """End what the tests of a copy left running; a changed program may never end by itself."""
    word = os.fsencode(f"{MARK}={folder}\0")
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if word in environ.read_bytes():
                os.kill(int(environ.parent.name), signal.SIGKILL)


def run_tests(place: Path, tests: tuple[str, ...], limit_s: float) -> tuple[Optional[int], str]:
    """Return pytest's exit code, None where its time was up, and what it printed."""
    env = {name: value for name, value in os.environ.items() if name != "KIT_UPDATE_GOLDEN"}
    env |= {"PYTHONPATH": str(place / "launch"), "TMPDIR": str(place.parent / "tmp"), MARK: str(place.parent)}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "-rfE", *tests]
    with (place.parent / "output").open("w+b") as output:
        process = subprocess.Popen(command, cwd=place, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        try:
            code: Optional[int] = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return code, output.read().decode(errors="replace")


def first_failure(code: Optional[int], output: str) -> str:
    if code is None:
        return "its time limit"
    found = re.search(r"(?m)^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output)
    return found[1] if found else f"pytest's exit status {code}: {output.strip().splitlines()[-1:]}"


def try_unchanged(base: Path, tests: tuple[str, ...], limit_s: float) -> Outcome:
    start = time.monotonic()
    with changed(base, None) as place:
        code, output = run_tests(place, tests, limit_s)
    seconds = time.monotonic() - start
    return Outcome("passed", "", seconds) if code == 0 else Outcome("broken", first_failure(code, output), seconds)


def try_mutant(base: Path, mutant: Mutant, unchanged: Outcome, all_unchanged: Optional[Outcome], limit_s: float) -> Outcome:
    """Try the mutant's own tests, and where they do not notice it all tests, if it is known how these end without it."""
    try:
        mutant.line(base)
    except ValueError as error:
        return Outcome("stale", str(error))
    for known in (unchanged, all_unchanged):
        if known and known.kind == "broken":
            return Outcome("broken", f"its tests fail without the change, too: {known.text}")
    start = time.monotonic()
    # The unchanged tests may have had the machine for themselves.
    with changed(base, mutant) as place:
        code, output = run_tests(place, mutant.tests, min(limit_s, 60 + 5 * unchanged.seconds))
    if code == 0 and all_unchanged:
        with changed(base, mutant) as place:
            code, output = run_tests(place, ALL_TESTS, limit_s)
    seconds = time.monotonic() - start
    return Outcome("survived", "", seconds) if code == 0 else Outcome("killed", first_failure(code, output), seconds)


def describe(mutant: Mutant, base: Path) -> str:
    minus, plus = ("".join(f"\n    {sign} {line}" for line in text.splitlines()) for sign, text in (("-", mutant.old), ("+", mutant.new)))
    tests = shlex.join(mutant.tests)
    return f"{mutant.file}:{mutant.line(base)} ({mutant.place}): {mutant.why}{minus}{plus}\n    not noticed by {tests}"


def report(outcomes: dict[Mutant, Outcome], base: Path) -> int:
    """Print what is left to do, and return the exit status."""
    kinds = {kind: [mutant for mutant, outcome in outcomes.items() if outcome.kind == kind] for kind in ("killed", "survived", "stale", "broken")}
    survivors = [mutant for mutant in kinds["survived"] if not mutant.equivalent]
    for mutant in survivors:
        print(f"\n{describe(mutant, base)}")
    for mutant in kinds["killed"]:
        if mutant.equivalent:
            print(f"\n{mutant.place} is marked as equivalent, but {outcomes[mutant].text} notices it: remove the mark")
    tried = len(kinds["killed"]) + len(survivors)
    share = f"{100 * len(kinds['killed']) / tried:.1f} %" if tried else "none"
    print(
        f"\n{len(kinds['killed'])} of {tried} changes killed ({share}); {len(kinds['survived']) - len(survivors)} equivalent,"
        f" {len(kinds['stale'])} that no longer apply, {len(kinds['broken'])} whose tests fail anyway"
    )
    return 1 if survivors or kinds["stale"] or kinds["broken"] else 0


def main(words: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("filter", nargs="?", default="", help="only entries with this in file, reason or place")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="changes at the same time (as many as the machine has cores)")
    parser.add_argument("--all-tests", action="store_true", help="try survivors on all tests that need no cluster")
    parser.add_argument("--limit-s", type=float, default=1800, help="the longest that the tests of a change may take")
    parser.add_argument("--checkout", type=Path, default=CHECKOUT, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    checkout = given.checkout.resolve()
    try:
        mutants = [each for each in load(checkout / "tests" / "mutants") if given.filter in f"{each.file}\n{each.why}\n{each.place}"]
    except ValueError as error:
        print(f"kit: {error}", file=sys.stderr)
        return 2
    if not mutants:
        print(f"kit: no change has '{given.filter}' in its file, reason or place\n  fix: see tests/mutants/*.yaml", file=sys.stderr)
        return 2
    # A short name, for the tests make sockets below it.
    with tempfile.TemporaryDirectory(prefix="mut.") as folder, ThreadPoolExecutor(given.jobs) as pool:
        Path(folder).chmod(0o755)
        base = copy(checkout, Path(folder) / "base")
        compileall.compile_dir(base / "launch", quiet=2)
        all_tests = [ALL_TESTS] if given.all_tests else []
        distinct = {pool.submit(try_unchanged, base, tests, given.limit_s): tests for tests in {*all_tests, *(each.tests for each in mutants)}}
        unchanged: dict[tuple[str, ...], Outcome] = {}
        for future in as_completed(distinct):
            outcome = unchanged[distinct[future]] = future.result()
            print(f"{outcome.seconds:6.1f} s  unchanged: {shlex.join(distinct[future])}: {outcome.kind} {outcome.text}", flush=True)
        every_test = unchanged.get(ALL_TESTS)
        tries = {pool.submit(try_mutant, base, each, unchanged[each.tests], every_test, given.limit_s): each for each in mutants}
        outcomes: dict[Mutant, Outcome] = {}
        for number, future in enumerate(as_completed(tries), 1):
            mutant, outcome = tries[future], future.result()
            outcomes[mutant] = outcome
            said = {"killed": "killed by ", "survived": "equivalent" if mutant.equivalent else "SURVIVED"}.get(outcome.kind, "not tried: ")
            print(f"{outcome.seconds:6.1f} s  {number}/{len(mutants)} {mutant.place} {mutant.file}: {said}{outcome.text}", flush=True)
        return report({each: outcomes[each] for each in mutants}, base)


if __name__ == "__main__":
    sys.exit(main())
