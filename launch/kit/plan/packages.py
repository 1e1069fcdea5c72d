"""The Python packages of a job, which come beside its image: what it asks for, and its lock."""

from __future__ import annotations

import codecs
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Optional

from kit.base.errors import Problems
from kit.config import requirements, suggest
from kit.config.job import Job
from kit.config.mount_list import Mount
from kit.config.paths import absolute, leads_out
from kit.config.plugins import Plugin
from kit.config.requirements import Requirement
from kit.files import safe_read
from kit.plan import mounting

TARGET = "/opt/kit-packages"  # in a container; launch/scripts/lib/packages.sh has it, too
CONSTRAINT = "-c "  # before a line of a file of constraints
_NESTED = re.compile(r"(-r|--requirement|-c|--constraint)(?:=|\s*)(\S.*)")


@dataclass(frozen=True)
class Packages:
    """Nothing but `requirements` is known before kit has resolved them in the image."""

    requirements: tuple[str, ...] = ()  # lines for pip
    lock: tuple[str, ...] = ()  # NAME==VERSION --hash=sha256:...
    file: str = ""
    sha256: str = ""
    # Of its files, once they are unpacked: a framework has more than 1 GB.
    bytes: Annotated[int, lambda value: 0 <= value < 10**15] = 0


def requested(job: Job, runtime: Optional[Plugin], scratch: str, problems: Problems) -> Packages:
    """Return the requirements of the job and of the files that it names."""
    lines: list[str] = []
    done: set[tuple[str, str]] = set()
    for item in job.packages or ():
        lines += _read(item, "", problems, (), done) if item.is_file else [item.text]
    if lines and runtime and runtime.name != "none":
        _check_mounts(job, problems)
        # Without the scratch folder's name: a node may have another one.
        mount = Mount(scratch or "/tmp", TARGET, True, job.where("packages"))  # noqa: S108
        mounting.check_expressible([mount], runtime, problems)
    return Packages(tuple(lines))


def _check_mounts(job: Job, problems: Problems) -> None:
    """Refuse a mount in which a runtime would have to make the packages' folder, on the host."""
    for mount in job.mounts:
        if not leads_out(os.path.relpath(TARGET, mount.target)):
            problem = f"the job's packages cannot be at {TARGET} if {mount.target} is a mount"
            fix = "mount only what you need, such as to /opt/NAME"
            problems.add(mount.where, problem, fix)


def _read(
    item: Requirement,
    prefix: str,
    problems: Problems,
    parents: tuple[str, ...],
    done: set[tuple[str, str]],
) -> list[str]:
    """Return the lines of a file and of the files that it names; constraints with their mark.

    parents: the real paths of the files that have led to it. done: the files that were read, with
    their marks; of these it returns no line again.
    """
    path, real = item.text, os.path.realpath(item.text)
    if real in parents:
        problems.add(item.where, "the files of requirements name one another", "remove the line")
        return []
    if (path, prefix) in done:
        return []
    try:
        content = safe_read.read(path)
        is_utf_16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # PowerShell's
        text = content.decode("utf-16" if is_utf_16 else "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        is_missing = isinstance(error, FileNotFoundError)
        problem = f"no such file: {path}" if is_missing else f"cannot read {path}: {reason}"
        problems.add(item.where, problem, suggest.neighbour(path, "check its path and its mode"))
        return []
    done.add((path, prefix))
    found: list[str] = []
    for number, line in _lines(text):
        own = Requirement(line, f"{path}:{number}")
        nested = _NESTED.fullmatch(line)
        if nested:
            inner = own._replace(text=absolute(nested[2], Path(path).parent))
            mark = CONSTRAINT if nested[1].startswith(("-c", "--c")) else prefix
            found += _read(inner, mark, problems, (*parents, real), done)
        else:
            requirements.check(own, problems, is_line=True)
            found.append(prefix + _anchored(line, Path(path).parent))
    return found


def _lines(text: str) -> list[tuple[int, str]]:
    """Return the lines with their numbers, joined and without comments as pip reads them."""
    found, begun, start = [], "", 0
    for number, line in enumerate([*text.splitlines(), ""], 1):  # the last one may go on, too
        start = start if begun else number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            begun += line[:-1]
            continue
        whole = re.sub(r"(^|\s+)#.*$", "", begun + line).strip().replace("\t", " ")
        begun = ""
        if whole:
            found.append((start, whole))
    return found


def _anchored(line: str, base: Path) -> str:
    """Return a line with the folder of --find-links as an absolute path."""
    found = re.fullmatch(r"(?:-f|--find-links)(?:=|\s+)(\S+)", line)
    if not found or "://" in found[1]:
        return line
    return f"--find-links {absolute(found[1], base)}"
