"""Warn of a run directory on a disk of this machine, which its nodes cannot write to."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import Optional

from kit import slurm
from kit.base.errors import KitError, Problem
from kit.files import safe_read
from kit.plan import staging
from kit.runs import history

LOCAL = "ext2 ext3 ext4 xfs btrfs zfs f2fs tmpfs ramfs overlay".split()  # as df calls them
EXPORTS = ("/etc/exports", "/etc/exports.d/*.exports", "/var/lib/nfs/etab")


def warning(run: Path) -> Optional[Problem]:
    """Return a warning about a run directory that its nodes will not see; None if they may."""
    kind = staging.file_system(str(run))
    if kind not in LOCAL or _is_exported(run) or _nodes_wrote_beside(run) or not _has_other_nodes():
        return None
    problem = f"warning: {run} is on a disk of this machine ({kind})"
    effect = "a node that does not see it cannot even write the job's log"
    fix = "start from a folder that all nodes see; whether they see this one: kit doctor"
    return Problem("", f"{problem}, and {effect}", fix)


def _is_exported(run: Path) -> bool:
    """Return whether this machine is the file server: then nodes may see its disk."""
    files = (file for pattern in EXPORTS for file in glob.glob(pattern))
    lines = (line for file in files for line in safe_read.text(file).splitlines())
    found = (re.match(r'"([^"]+)"|([^\s#"]+)', line) for line in lines)
    exports = [(each[1] or each[2]).replace("\\040", " ") for each in found if each]
    return any((run.resolve() / "x").is_relative_to(export) for export in exports)


def _nodes_wrote_beside(run: Path) -> bool:
    """Return whether an earlier job of the same folder has its log."""
    known = (other.paths for other in history.noted() if not other.local)
    beside = (paths.log for paths in known if paths.folder.parent == run.parent)
    return any(name.startswith("slurm-") for log in beside for name in safe_read.names(log))


def _has_other_nodes() -> bool:
    try:
        hosts = slurm.ask(["sinfo", "--noheader", "--format=%n"]).split()
    except KitError:
        return False
    return bool(
        {host.partition(".")[0] for host in hosts} - {os.uname().nodename.partition(".")[0]}
    )
