"""A pytest plug-in that makes a run of the suite whole.

Every file with tests is collected, every collected test is reported, and in CI nothing is skipped that could be
installed. It also hands out whole files to the workers of pytest-xdist, each of which has a Slurm cluster of its own.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

# What no package brings: GPUs, the real Enroot and Pyxis, another user; and two cases of many minutes or gigabytes. And a Slurm that took a
# healthy node for a failed one, or a Ray that gave itself up while it started, which show nothing of kit.
SKIPPED_IN_CI_TOO = re.compile(r"slurmctld, busy with|ray, busy with|the stub of|a stub that|only root|no GPU|KIT_TEST_(FRAMEWORKS|HOROVOD|VISION|RECIPES)=1")

ENGINE = "tests/cluster/engine/"

# What comes first, in this order. The images of the cluster are made while the first four groups run. Files that take minutes begin early,
# since nothing runs beside the last one. Those of bash/ mostly wait, and those of train/ compute, so they take turns.
ORDER: tuple[str | tuple[str, ...], ...] = (
    "tests/unit",
    "tests/train/test_frameworks.py",
    "tests/images",
    ("tests/bash", "tests/train"),
    tuple(f"tests/cluster/test_{name}.py" for name in ("lost_nodes", "containers", "preemption", "jobs", "laptop")),
)


# What the summary says at its end, beside the results; each worker adds its own.
notes: list[str] = []


class Count:
    """Compares what was collected with what was reported, in the process where all results arrive."""

    def __init__(self) -> None:
        self.collected: set[str] = set()
        self.reported: set[str] = set()
        self.failed: set[str] = set()
        self.lost: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self.collected.update(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.reported.add(report.nodeid)
        if report.failed:
            self.failed.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        notes.extend(getattr(node, "workeroutput", {}).get("notes", []))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        stopped = exitstatus == pytest.ExitCode.INTERRUPTED or session.shouldfail or session.shouldstop
        if stopped or session.config.option.collectonly:
            return
        self.lost = sorted(self.collected - self.reported)
        if self.lost:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif "KIT_TEST_FAILED" in os.environ:  # for tests/run.sh, which gives a few of them a second chance
            Path(os.environ["KIT_TEST_FAILED"]).write_text("".join(f"{nodeid}\n" for nodeid in sorted(self.failed)))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not terminalreporter.config.option.collectonly:
            terminalreporter.write_line(f"{len(self.collected)} tests collected, {len(self.reported)} reported")
        for line in sorted(set(notes)):
            terminalreporter.write_line(line)
        for nodeid in self.lost:
            terminalreporter.write_line(f"LOST {nodeid}: collected, but never reported", red=True)


def pytest_configure(config: pytest.Config) -> None:
    # What a shell's `&` and nohup have us ignore would be handed on to each program that a test then interrupts or hangs up on.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker:
        os.environ["KIT_CLUSTER_NAME"] = f"{os.environ.get('KIT_CLUSTER_NAME', 'kit')}-{worker}"
    else:
        config.pluginmanager.register(Count())


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["notes"] = notes


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Return a scheduler that hands out whole files, in the order of the collection."""
    from xdist.scheduler import LoadFileScheduling  # without -n, pytest-xdist need not be there

    class Scheduler(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            # These share one Docker Engine's images and containers, so they take turns.
            return ENGINE if nodeid.startswith(ENGINE) else super()._split_scope(nodeid)

    config.option.loadscopereorder = False
    return Scheduler(config, log)


def pytest_sessionstart() -> None:
    """Raise UsageError where a file has tests, but a name that pytest does not collect."""
    unseen = [path for path in sorted(TESTS.rglob("*.py")) if not path.name.startswith("test_") and _has_tests(path)]
    if unseen:
        names = ", ".join(str(path.relative_to(TESTS.parent)) for path in unseen)
        raise pytest.UsageError(f"{names}: has tests, but pytest collects only test_*.py\n  fix: rename the file")


def _has_tests(path: Path) -> bool:
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    body = ast.parse(path.read_bytes()).body
    return any(isinstance(node, definitions) and re.match("test_|Test", node.name) for node in body)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((index for index, start in enumerate(ORDER) if item.nodeid.startswith(start)), len(ORDER))

    items.sort(key=lambda item: (place(item), _shares(item.path.parent)[item.path]))  # a stable sort


@functools.cache
def _shares(folder: Path) -> dict[Path, float]:
    """Return which share of a folder's files comes before each, so that those of two folders take turns."""
    files = sorted(folder.glob("test_*.py"))
    return {file: place / len(files) for place, file in enumerate(files)}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip_in_ci(report)
    return report


def _refuse_skip_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure where CI=true, unless nothing that can be installed would prevent it."""
    skipped = report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple)
    if not skipped or os.environ.get("CI") != "true":
        return
    file, line, reason = report.longrepr
    if not SKIPPED_IN_CI_TOO.search(reason):
        report.outcome = "failed"
        report.longrepr = f"{file}:{line}: skipped, but in CI all that can be installed has to be there: {reason}"
