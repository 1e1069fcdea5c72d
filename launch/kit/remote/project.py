"""On the laptop: brings a project's files to the login node, by the rules of the code snapshot.

It copies no key, and nothing that git ignores.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from kit.base.errors import Problems, UsageError
from kit.base.quote import bash
from kit.config import image_files, paths
from kit.config.job import Job
from kit.files import safe_write
from kit.plan import git_facts, key_files, source_files
from kit.plan.source_files import Sources
from kit.remote import arrival, landing, records, rsync
from kit.remote.install import Copy


def root_of(job: Job) -> str:
    """Return the job's working directory; "" where this machine has none of that name."""
    return job.workdir if os.path.isdir(job.workdir) else ""


def own_name(root: str, file: str) -> str:
    """Return a file's name in the project; "" where it is elsewhere, as behind a link."""
    name = os.path.relpath(file, root) if root and file else ""
    return "" if paths.leads_out(name) or safe_write.is_behind_link(root, name) else name


def read(
    root: str, job: Job, job_file: str, keyrings: Collection[str], problems: Problems
) -> Sources:
    """Return the files of a job's project; its job file travels even if git ignores it."""
    found = source_files.find(root, job.where("workdir"), problems, keyrings)
    own = own_name(root, job_file)
    for name in sorted({*job.command, own} & set(found.keys)):
        fix = "take the key out, and name it under `secrets:`"
        fix = f"{fix}; or have git track the file, if it is not a key"
        problems.add("", key_files.NOT_COPIED.format(name), fix)
    problems.raise_if_any()
    names = dict.fromkeys([*found.names, *filter(None, [own])])
    return found._replace(names=tuple(names))


def bring(copy: Copy, sources: Sources, keyrings: Collection[str], *, is_run: bool) -> None:
    """Copy what is new of the project. Files that were changed there stay.

    Raises UsageError where those would be the code of a run.
    """
    host, root = copy.host, sources.root
    if sources.tracked_keys:
        host.say(key_files.COPIED.format(key_files.shown(sources.tracked_keys)))
    if sources.keys:
        shown = key_files.shown(sources.keys)
        host.say(f"keys stay here, and {host.name} has none of them: {shown}")
    files = {
        name: {"tracked": name in sources.tracked, "state": state}
        for name in sources.names
        if (state := arrival.file_state(f"{root}/{name}"))
    }
    if is_run and (missing := _not_copied(sources)):
        host.say(f"not copied to {host.name}: {key_files.shown(missing)}")
    answer = copy.ask(
        "receive",
        work=copy.work,
        folder=copy.folder,
        origin=records.origin(root),
        here=f"{os.uname().nodename}:{root}",
        git=git_facts.find(root, keyrings),
        files=files,
    )
    if other := answer["other"]:
        _say_whose_folder(copy, records.origin(root), other)
    if kept := answer["kept"]:
        shown = key_files.shown(kept)
        what = f"what {host.name} has in {copy.work} under these names"
        if is_run:
            fix = "move them away there, or copy what you changed there to here"
            fix = f"{fix}; or leave them out by {source_files.IGNORE}"
            raise UsageError(f"{what} is not the project's: {shown}", fix)
        host.say(f"{what} stays as it is: {shown}")
    if answer["needed"]:
        rsync.send_listed(host, Path(root), copy.work, answer["needed"])


def _not_copied(sources: Sources) -> list[str]:
    """Return what a program finds here and not there, besides keys and what git ignores."""
    root = sources.root
    missing = [name for name in sources.left_out if os.path.lexists(f"{root}/{name}")]
    if image_files.given_names(Path(root)):
        missing = [name for name in missing if name != image_files.FOLDER]  # a job's image travels
    for name in sources.names:
        path = f"{root}/{name}"
        if os.path.islink(path) and os.path.exists(path):
            target = os.readlink(path)
            place = os.path.join(os.path.dirname(name), target)
            if os.path.isabs(target) or paths.leads_out(place):
                missing.append(f"{name} -> {target}")
    return sorted(set(missing) - set(sources.keys))


def _say_whose_folder(copy: Copy, origin: str, other: dict[str, Any]) -> None:
    """Say that a project begins in an empty folder, and how it gets one that it had before."""
    host, folder = copy.host, other["folder"]
    whose = other["here"] or "another project"
    what = f"{folder} on {host.name} belongs to {whose}"
    host.say(f"{what}; this project gets a new folder, {copy.work}")
    line = f"sed -i s/{other['origin']}/{origin}/ {bash(f'{folder}/{landing.BROUGHT}')}"
    host.say(f"if it is the same project, give it the first folder: ssh {host.name} {bash(line)}")
