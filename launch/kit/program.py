"""What can be said of a job's program before it runs: whether it is there, and whether its launcher suits it."""

from __future__ import annotations

import os
import re
from typing import Optional

from kit.errors import Problems
from kit.job import Job
from kit.plugins import Plugin
from kit.values import Mount

# mp.spawn(...), torch.multiprocessing.spawn(...), or `from torch.multiprocessing import spawn`.
SPAWN = re.compile(r"^(?!\s*#).*(\b(mp|multiprocessing)\.spawn\(|from torch\.multiprocessing import .*\bspawn\b)", re.MULTILINE)
KNOWS_TORCHRUN = re.compile(r"LOCAL_RANK|TORCHELASTIC|is_torchelastic_launched")


def check(job: Job, launcher: Optional[Plugin], mounts: tuple[Mount, ...], runtime: Optional[Plugin], problems: Problems) -> None:
    if not job.command or not runtime or not os.path.isdir(job.workdir or ""):
        return
    script = _script(job.command)
    if script is None:
        return
    path = _on_this_side(os.path.normpath(os.path.join(job.workdir or "", script)), mounts, contained=runtime.name != "none")
    if path is None:
        return
    if not os.path.isfile(path):
        problems.add(job.where("command"), f"no such script: {script}", f"looked for {path}; relative paths start at the working directory")
    elif launcher and launcher.name != "spawn" and path.endswith(".py"):
        _check_spawn(job, script, path, launcher.name, problems)


def _on_this_side(path: str, mounts: tuple[Mount, ...], *, contained: bool) -> Optional[str]:
    """The same file outside the container; None where it is the image's own."""
    if not contained:
        return path
    for mount in reversed(mounts):
        if path == mount.target or path.startswith(mount.target.rstrip("/") + "/"):
            return mount.source + path[len(mount.target) :]
    return None


def _check_spawn(job: Job, script: str, path: str, launcher: str, problems: Problems) -> None:
    """A program that starts its own ranks, started once for each rank, would start their square."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(1 << 20)
    except OSError:
        return
    found = SPAWN.search(text)
    if not found or KNOWS_TORCHRUN.search(text):
        return
    line = text.count("\n", 0, found.start(1)) + 1
    problems.add(
        f"{script}:{line}",
        f"the program starts its ranks itself, and {launcher} would start it once for every rank",
        f"use `launcher: spawn`, which starts it once on each node; or remove the spawn and read LOCAL_RANK, which {launcher} sets",
    )


def _script(command: tuple[str, ...]) -> Optional[str]:
    """The file that a command runs, where that can be told."""
    first = command[0]
    if first in ("python", "python3"):
        words = list(command[1:])
        while words and words[0] in ("-u", "-O", "-B", "-s", "-I", "-E"):
            words.pop(0)
        return words[0] if words and words[0].endswith(".py") else None
    return first if first.endswith(".py") or "/" in first else None
