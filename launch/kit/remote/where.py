"""On the laptop: finds by the words, the job or the run which machine a command is about."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional, Union

from kit.base.errors import KitError, Problems, UsageError
from kit.config import expansion, profiles, yaml_source
from kit.config.job import Job
from kit.config.job_file import is_yaml
from kit.config.profiles import Cluster
from kit.plan.run_paths import RunPaths
from kit.remote import records
from kit.remote.records import Record
from kit.runs import history, lookup

WITH_A_JOB = ("submit", "when", "shell", "render", "bench", "doctor")
OF_A_RUN = (
    *("status", "logs", "hang", "timeline", "why", "checkpoint", "stop", "cancel"),
    *("exec", "rerun", "diff", "bench"),
)
ON_A_LIVE_RUN = ("hang", "checkpoint", "stop", "cancel", "exec")  # which they change or disturb
OF_A_CLUSTER = ("build", "doctor", "images", "nodes", "gc")
ON_LINUX = ("run", "build")


@dataclass(frozen=True)
class Typed:
    """A command as it was typed, what its words mean, and where its output goes."""

    name: str
    words: list[str]  # all of them, the command's name first
    values: Mapping[str, Any]
    load: Callable[[Problems], Job]  # reads its job
    say: Callable[[str], None]  # shows a line of kit itself
    show: Callable[[str, bytes], None]  # writes to "out" or "err" as it is

    def value(self, *names: str) -> Any:
        """Return the first value that is given."""
        values = (self.values.get(name) for name in names)
        return next((value for value in values if value is not None), None)

    @property
    def has_job(self) -> bool:
        """Return whether the command is about a job, and not about a run or a cluster."""
        is_shown = self.value("show") is not None  # a run that was measured before
        is_job = self.name != "doctor" or self.value("job") is not None
        return self.name in WITH_A_JOB and is_job and not is_shown

    @property
    def job_file(self) -> str:
        """Return the job's file or program as it is typed, or would be; "" where there is none."""
        target = self.value("target", "job")
        if target and not target.startswith("-"):
            return str(target)
        return "job.yaml" if self.name != "bench" and os.path.isfile("job.yaml") else ""


# A cluster elsewhere, a run on it, or the names of the clusters that have runs.
About = Union[Cluster, Record, list[str]]


def about(typed: Typed) -> Optional[About]:
    """Return what the command is about on a cluster elsewhere; None where it is for this machine.

    Raises UsageError for a command that needs Linux, where this machine has another system.
    """
    found = None if typed.value("local") or typed.name == "run" else _about(typed)
    is_needed = typed.name in ON_LINUX or typed.value("local")
    if found is None and is_needed and not sys.platform.startswith("linux"):
        system = {"darwin": "macOS"}.get(sys.platform, sys.platform)
        command = "build" if typed.name == "build" else "submit JOB"
        way = f"kit {command} --cluster NAME"
        fix = f"let a cluster do it, whose profile has `ssh:`: {way}; docs/laptop.md"
        raise UsageError(f"kit {typed.name} needs Linux, and this is {system}", fix)
    return found


def _about(typed: Typed) -> Optional[About]:
    is_one = typed.value("run") is not None or typed.value("task") is not None
    if typed.name in ("status", "runs") and not is_one:
        clusters = records.clusters()
        if clusters and typed.value("watch"):
            problem = f"--watch shows one cluster at a time, and there are runs on {clusters[0]}"
            raise UsageError(problem, "name a run: kit status RUN --watch")
        return clusters or None
    if typed.has_job:
        return _of_job(typed)
    if typed.name in OF_A_CLUSTER:
        site = profiles.load_valid(typed.value("cluster"), elsewhere=True)
        if not site.ssh and typed.name == "build" and typed.value("cluster"):
            problem = f"the profile {typed.value('cluster')} names no login node by `ssh`"
            fix = "leave it out: what is built here is for the nodes here"
            raise UsageError(problem, fix, where="--cluster")
        return site if site.ssh else None
    return _record_of(typed) if typed.name in OF_A_RUN else None


def _of_job(typed: Typed) -> Optional[Cluster]:
    try:
        name = typed.value("cluster") or _cluster_of(typed.job_file)
        site = profiles.load_valid(name, elsewhere=True)
    except KitError:
        return None  # the command itself says it, with what else is wrong
    return site if site.ssh else None


def _cluster_of(job_file: str) -> Optional[str]:
    """Return the profile that a job file names. Nothing else of it is read."""
    path = Path(job_file)
    if not is_yaml(path):
        return None
    return expansion.of_cluster([yaml_source.read(path, Problems())], path.absolute().parent)


# ---------------------------------------------------------------- which run


def _record_of(typed: Typed) -> Optional[Record]:
    """Return the run that a command means; None for a run of this machine."""
    given = typed.value("run", "first", "show")
    words = given if isinstance(given, list) else [given, *filter(None, [typed.value("second")])]
    found = [_record(word, is_live=typed.name in ON_A_LIVE_RUN) for word in words]
    if len({record and record.cluster for record in found}) > 1:
        problem = f"{' and '.join(words)} are on different machines"
        raise UsageError(problem, "name runs of one cluster")
    here = os.getcwd()  # where the command starts, names mean the runs of that folder
    return next((record for record in found if record and record.is_of(here)), found[0])


def _record(word: Optional[str], *, is_live: bool) -> Optional[Record]:
    """Return the run that a word means; None for a run of this machine.

    Raises UsageError where something is about to be done to one of several that it may mean.
    """
    here = os.getcwd()
    found = records.find(word, here)
    if not found or _is_known_here(word, found, here):
        return None
    if is_live:
        records.raise_if_unclear(word, here)
    return found


def _is_known_here(word: Optional[str], other: Record, here: str) -> bool:
    """Return whether a word means a run of this machine: the folder's own, or else the newer."""
    if word is None:
        last = lookup.last_here()
        return last is not None and last.created_s > other.created_s
    if os.path.isfile(RunPaths(word).record):
        return True
    found = [run for run in history.runs() if run.is_called(word)]
    if not found or not other.is_called(word):
        return bool(found)
    own = [run for run in found if lookup.is_of(here, run)]
    if bool(own) != other.is_of(here):
        return bool(own)
    return (own or found)[-1].created_s > other.created_s
