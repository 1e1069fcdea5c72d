"""On the laptop: runs a command on the login node that it is about, as if it was typed there.

Brings kit, the project and what else the command needs, and returns the command's exit code.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any, Union

from kit.base import formats
from kit.base.errors import KitError, Problems
from kit.config import profiles
from kit.config.profiles import Cluster
from kit.plan import resolve
from kit.remote import calls, context, image_copy, install, packing, project, records
from kit.remote.calls import Request
from kit.remote.install import Copy
from kit.remote.records import Record, SentCall
from kit.remote.where import Typed

LASTING = ("submit", "rerun", "build", "bench")  # these go on when the connection breaks
MAKING_RUNS = ("shell", "exec")
SUBMITTING = ("submit", "rerun")
STARTING = ("submit", "shell", "bench")  # they make runs, and read the values of secrets


def run(typed: Typed, about: Union[Cluster, Record]) -> int:
    """Run a command on the login node that it is about, and return its exit code."""
    if isinstance(about, Record):
        return _of_run(typed, about)
    if typed.has_job:
        return _with_job(typed, about)
    return _build(typed, about) if typed.name == "build" else _of_cluster(typed, about)


def show_runs(typed: Typed, cluster: str) -> int:
    """Show the runs of a cluster, which may no longer be elsewhere; return the exit code."""
    site = profiles.load_valid(cluster, elsewhere=True)
    if not site.ssh:
        return 0
    typed.say(f"runs of {cluster}, on {site.ssh}:")
    copy = install.put(site, "/", "its runs are not shown", typed.say)
    words = packing.with_options(typed.words, "--all")  # its folders are others than those here
    return calls.attach(copy, packing.request(site, words, copy.folder))


def _with_job(typed: Typed, site: Cluster) -> int:
    problems = Problems()
    job = typed.load(problems)
    image, root = image_copy.of_job(job, problems), project.root_of(job)
    problems.raise_if_any()
    secrets = tuple({**site.secrets, **job.secrets}.values())
    here = root or os.getcwd()
    environment = resolve.take_variables(job, site, Problems()).inherited
    is_rehearsal = typed.value("dry_run") or typed.value("test_only")
    starts = typed.name in STARTING and not is_rehearsal
    if starts:
        environment |= packing.values_of(secrets, here)
    keyrings = [secret.at for secret in secrets if secret.source == "file"]
    found = project.read(root, job, typed.job_file, keyrings, problems) if root else None
    copy = install.put(site, here, _not_begun(typed), typed.say)
    if found:
        if typed.value("dry_run"):
            what = f"the project is copied to {copy.host.name}, where the scripts are made"
            typed.say(f"{what}; nothing is submitted")
        project.bring(copy, found, keyrings, is_run=typed.name == "submit")
    options = []
    if typed.name != "doctor":  # it has no option of a job that starts
        options += [word for secret in secrets for word in ("--secret", secret.name)]
    if job.cluster and profiles.is_file_name(job.cluster):
        options += ["--cluster", site.name]
    if image:
        options += ["--image", image_copy.send(copy, image)]
    parts = packing.of_job(typed, job, root, copy, options)
    name = packing.profile_name(job.cluster)
    record = Record(name, here, created_s=time.time(), secrets=secrets)
    if starts:  # else the folder's last run is still the one before
        records.add(record)
    return _run(typed, copy, packing.request(site, environment=environment, **parts), record)


def _not_begun(typed: Typed) -> str:
    return f"kit {typed.name} has not begun"


def _of_cluster(typed: Typed, site: Cluster) -> int:
    cluster, here = typed.value("cluster"), os.getcwd()
    copy = install.put(site, here, _not_begun(typed), typed.say)
    option = ("--cluster", site.name) if profiles.is_file_name(str(cluster)) else ()
    request = packing.request(site, packing.with_options(typed.words, *option), copy.folder)
    return _run(typed, copy, request, Record(packing.profile_name(cluster), here))


def _build(typed: Typed, site: Cluster) -> int:
    context.check(typed)
    here = os.getcwd()
    with context.read(typed) as found:
        copy = install.put(site, here, "nothing is built yet", typed.say)
        words, variables = context.words(typed, found, copy.folder)
        folder = context.send(copy, found)
    request = packing.request(site, words, folder, environment=variables, stays=True)
    return _run(typed, copy, request, Record(packing.profile_name(typed.value("cluster")), here))


def _of_run(typed: Typed, record: Record) -> int:
    site = profiles.load_valid(record.cluster, elsewhere=True)
    if not site.ssh:
        problem = f"the profile {record.cluster} names no login node any more"
        raise KitError(problem, "put back its key `ssh`")
    copy = install.put(site, record.here, _not_begun(typed), typed.say)
    starts = typed.name == "rerun" and not typed.value("dry_run")
    secrets = record.secrets if starts else ()
    environment = packing.values_of(secrets, record.here)
    folder = packing.inside(copy.work, record.here, os.getcwd())  # or the nearest above
    request = packing.request(site, typed.words, folder, environment=environment)
    return _run(typed, copy, request, record)


def _run(typed: Typed, copy: Copy, request: Request, about: Record) -> int:
    """Run a command on the login node, and record the runs that it makes."""
    copy.host.progress = _not_begun(typed)
    if typed.name in LASTING or (typed.name == "logs" and typed.value("follow")):
        return _run_lasting(typed, copy, request, about)
    runs_program = typed.name in MAKING_RUNS
    code = calls.attach(copy, request, runs_program=runs_program)
    if runs_program:
        copy.host.progress = "the command has ended"
        for run in copy.ask("runs", history=copy.history)["runs"]:
            records.add_run(run, about, request.call)
    return code


def _run_lasting(typed: Typed, copy: Copy, request: Request, about: Record) -> int:
    """Run a command that outlives the connection.

    Where the end of the same earlier command is not known here, show that one instead.
    """
    words = [request.workdir, *(word for word in request.words if word != "--follow")]
    if typed.name in STARTING:
        words.append(packing.of_shell(request, about.secrets))
    call = SentCall(request.call, about.cluster, about.here, words, time.time())
    earlier = records.unheard(call, also_live=typed.name == "build")
    if earlier:
        answer = copy.ask("state", folder=copy.folder, call=earlier.id)
        state = answer["state"]
        if typed.name in LASTING and state in ("running", "ended"):
            what = "goes on there" if state == "running" else "has ended there meanwhile"
            same = f"the same command of {formats.ago(earlier.begun_s)}"
            typed.say(f"{same} {what}, and is not started again; its output:")
            call, request = earlier, replace(request, call=earlier.id)
        else:
            records.forget(earlier)
            if typed.name in SUBMITTING:
                _raise_if_submitted(earlier, answer["runs"], about)
    # The earlier one may have made the run that this one goes on with.
    own = (call.id, earlier.id) if earlier else (call.id,)
    with records.under_way(call):
        if call is not earlier:
            calls.begin(copy, request)
        return calls.attend(
            copy, request, typed.show, lambda run: records.add_run(run, about, *own)
        )


def _raise_if_submitted(call: SentCall, runs: list[dict[str, Any]], about: Record) -> None:
    """Raise KitError if a command that was killed, or ended days ago, has submitted jobs."""
    for run in runs:
        records.add_run(run, about, call.id)
    if jobs := ", ".join(dict.fromkeys(run["id"] for run in runs if run.get("id"))):
        same = f"the same command of {formats.ago(call.begun_s)} submitted {jobs}"
        fix = "see them by: kit status; to submit once more, type the same command again"
        raise KitError(f"{same}, and how it ended is not known here", fix)
