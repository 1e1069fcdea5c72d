"""Calls kit on what strangers left, many times: each call is a forked process with limits, all of them under bubblewrap.

kit removes and ends things, so all of this machine is read-only for it but one scratch folder, and every tool that it may start is
a stand-in that fails. A test starts itself as a script in there (`confined`), and reads what went wrong from its output.
"""

from __future__ import annotations

import io
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

TOOLS = "sbatch squeue sacct scontrol scancel sinfo salloc srun ssh rsync docker podman apptainer enroot mksquashfs unsquashfs bash zstd".split()
UNREACHABLE = 69  # where a login node does not answer
CPU_S = 2.0  # of a command
LIMIT_S = float(os.environ.get("KIT_LIMIT_S", 10))  # by the clock, for a machine that has much else to do; a command takes a twentieth of a second
MEMORY = 4 << 30  # bytes of addresses
WRITTEN = 64 << 20  # bytes of a file
ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")  # on a terminal


def confined(script: str, scratch: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a script of Python that can write below `scratch` alone."""
    command = [sys.executable, script, str(scratch), *words]
    if shutil.which("bwrap"):
        command = ["bwrap", "--die-with-parent", "--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--bind", str(scratch), str(scratch), "--", *command]
    elif not os.environ.get("KIT_TEST_UNCONFINED"):
        import pytest

        pytest.skip("bubblewrap is not installed: apt-get install bubblewrap")
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    return subprocess.run(command, cwd=scratch, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, errors="replace", timeout=3600)


class Place:
    """A home and a project below a scratch folder, and beside them what is not kit's to touch."""

    def __init__(self, scratch: Path) -> None:
        self.scratch, self.case, self.outside = scratch, scratch / "case", scratch / "outside"
        self.home, self.project, self.tools = self.case / "home", self.case / "project", scratch / "tools"
        for folder in (self.home, self.project, self.tools, self.outside / "deep"):
            folder.mkdir(parents=True)
        for name in ("thesis.tex", "deep/data.bin", "run.json", "run_script.sh"):
            (self.outside / name).write_text("the user's own\n")
        for name in TOOLS:
            self.tool(name, f"echo '{name}: error: this stand-in fails' >&2\nexit 1")
        (self.tools / "git").symlink_to(shutil.which("git") or "/nowhere")
        (self.tools / "cat").symlink_to("/bin/cat")
        kept = {name: value for name, value in os.environ.items() if name in ("LANG", "PYTHONPATH", "TMPDIR")}
        os.environ.clear()
        os.environ.update(kept, HOME=str(self.home), PATH=str(self.tools), USER="ada", LOGNAME="ada", TMPDIR=str(self.case), https_proxy="http://127.0.0.1:9")
        os.environ["XDG_RUNTIME_DIR"] = str(self.home)
        os.environ.update({f"XDG_{name.upper()}_HOME": str(self.home / name) for name in ("config", "state", "cache")})
        os.chdir(self.project)

    def tool(self, name: str, text: str) -> None:
        (self.tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.tools / name).chmod(0o755)

    def keep(self) -> None:
        """What is here now is what `restore` brings back."""
        self.kept = _entries(self.case)
        shutil.copytree(self.case, self.scratch / "template", symlinks=True, copy_function=_copy)

    def restore(self) -> None:
        """Most of it is as it was, and stays."""
        os.chdir(self.scratch)
        for name, facts in reversed(_entries(self.case).items()):
            if facts != self.kept.get(name):
                path = self.case / name
                path.rmdir() if stat.S_ISDIR(facts[0]) else path.unlink()
        there = _entries(self.case)
        for name, facts in self.kept.items():
            if name not in there:
                path = self.case / name
                path.mkdir(stat.S_IMODE(facts[0])) if stat.S_ISDIR(facts[0]) else _copy(self.scratch / "template" / name, path)
        os.chdir(self.project)

    def is_changed(self) -> bool:
        """Whether the last call left something in the project."""
        return sorted(os.listdir(self.project)) != sorted(os.listdir(self.scratch / "template/project"))

    def untouched(self) -> object:
        """All that is outside of the case."""
        return _entries(self.outside), _entries(self.tools), sorted(os.listdir(self.scratch))


def _copy(source: str | Path, target: str | Path) -> None:
    if Path(source).is_fifo():
        os.mkfifo(target)
    else:
        shutil.copy2(source, target, follow_symlinks=False)


def _entries(folder: Path) -> dict[str, tuple[int, int, int]]:
    """{path: (mode, size, time)} of all that is in a folder, each folder before what is in it; those of a folder do not count."""
    found = {}
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        is_folder = stat.S_ISDIR(facts.st_mode)
        found[str(path.relative_to(folder))] = (facts.st_mode, 0 if is_folder else facts.st_size, 0 if is_folder else facts.st_mtime_ns)
    return found


class Done(NamedTuple):
    code: int  # negative: the signal that ended it
    out: str
    errors: str
    elapsed_s: float


def load_kit() -> None:
    """All modules at once, so that a call costs no import."""
    import importlib
    import json
    import pkgutil

    import kit
    import yaml

    for module in pkgutil.walk_packages(kit.__path__, "kit."):
        if module.name != "kit.__main__":
            importlib.import_module(module.name)
    json.loads("{}"), yaml.compose("a: 1")


def call(*words: str) -> Done:
    """`kit WORDS` by its own entry, in a process with limits."""
    files = [os.memfd_create(name) for name in ("out", "errors")]
    begun_s = time.monotonic()
    child = os.fork()
    if not child:
        _become_kit(words, files)
    _, status = os.waitpid(child, 0)
    elapsed_s = time.monotonic() - begun_s
    said = []
    for file in files:
        with os.fdopen(file, "rb") as content:
            content.seek(0)
            said.append(content.read().decode("utf-8", "surrogateescape"))
    return Done(os.waitstatus_to_exitcode(status), said[0], said[1], elapsed_s)


def _become_kit(words: tuple[str, ...], files: list[int]) -> None:
    from kit.cli import entry
    from kit.registry import transport
    from kit.runs import execute

    try:
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (WRITTEN, WRITTEN))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, file in enumerate(files, 1):
            os.dup2(file, number)
        sys.stdout, sys.stderr = (io.TextIOWrapper(open(number, "wb", closefd=False), "utf-8") for number in (1, 2))  # noqa: SIM115
        sys.argv = ["kit", *words]
        execute.os.execvpe = _never_started  # the process would be another program's
        transport.BACK_OFF_S = ()  # no registry answers
        entry.main()
    except SystemExit as ended:
        os._exit(ended.code)  # type: ignore[arg-type]  # an int, by entry.py
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode("utf-8", "replace"))
    os._exit(99)


def _never_started(*_: object) -> None:
    raise SystemExit(0)


def wrong(words: tuple[str, ...], done: Done) -> str:
    """What is not as it should be; empty where all is."""
    said = done.out + done.errors
    if done.code not in (0, 1, 2) and not (done.code == UNREACHABLE and "cannot be reached" in said):
        return f"it took {done.elapsed_s:.1f} s" if -done.code in (signal.SIGALRM, signal.SIGPROF) else f"it ended with {done.code}"
    if "Traceback (most" in done.errors or "internal error" in said:
        return "it ended in an internal error"
    is_raw = words[:1] == ("logs",) or "--dry-run" in words  # a program's own words, and scripts byte for byte
    if ACTS.search(done.errors if is_raw else said):
        return "what it prints acts on the terminal"
    return ""
