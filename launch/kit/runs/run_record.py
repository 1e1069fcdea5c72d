"""What run.json holds: the plan, and what would be needed to repeat the run.

A record may be damaged, edited or written by another version of kit.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Annotated, Optional, TypedDict

import kit
from kit.base import redact
from kit.files import typed_json
from kit.plan import git_facts
from kit.plan.file_list import GitRecord
from kit.plan.plan import Plan
from kit.plan.snapshot import CodeRecord

# Without a container the ranks find programs and libraries as this shell does: Slurm passes these
# variables on, and the record lists them.
FINDING = """
    PATH LD_LIBRARY_PATH LD_PRELOAD PYTHONPATH PYTHONHOME VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV
    LOADEDMODULES LANG LC_ALL TZ TMPDIR
""".split()


class RunRecord(TypedDict, total=False):
    kit: str
    python: str
    created: str
    invocation: tuple[str, ...]
    plan: Plan
    code: CodeRecord
    git: Optional[GitRecord]
    shell: dict[str, str]  # what programs without a container find depends on it
    rerun_of: str
    edited: tuple[str, ...]  # what was edited before a rerun, of which the plan knows nothing
    # Of its submission, or of its start on this machine
    job_id: Optional[str]
    host: str
    cluster: str
    clusters: str  # from which sbatch may choose
    is_member: bool
    sbatch_options: tuple[str, ...]
    submitted: str
    cancelled: tuple[str, ...]  # the ids of jobs that Slurm was told to cancel
    local: bool
    pid: int  # of the kit that started it here, or submits it; 0 when that no longer asks
    # When that process began, in ticks since the boot of its machine: 10^9 of them are 116 days.
    began: Annotated[int, lambda value: 0 <= value < 10**15]
    machine: str  # from one boot to the next: others may have its hostname


def new(plan: Plan, code: CodeRecord) -> RunRecord:
    """Return the record of a run that is about to be submitted or started."""
    keyrings = [secret.at for secret in plan.program.secrets if secret.source == "file"]
    return {
        "kit": kit.__version__,
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "invocation": tuple(sys.argv),
        "job_id": None,
        "plan": plan,
        "shell": shell() if plan.container.runtime == "none" else {},
        "code": code,
        "git": git_facts.find(plan.program.workdir, keyrings),
    }


def plan_of(record: RunRecord) -> Plan:
    """Return the plan of a record; what it lacks is empty."""
    plan: Plan = record.get("plan") or typed_json.empty(Plan)
    return plan


def shell() -> dict[str, str]:
    """Return the variables that Slurm passes on to ranks without a container."""
    return {name: redact.hide_tokens(os.environ[name]) for name in FINDING if name in os.environ}


def changed_in_shell(then: Mapping[str, str]) -> list[str]:
    """Return which of those variables this shell has otherwise than a record."""
    now = shell()
    return [name for name in FINDING if now.get(name) != then.get(name)]
