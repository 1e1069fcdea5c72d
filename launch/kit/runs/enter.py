"""`kit exec`: a command beside the ranks of a running run, in their container, with their variables."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import NoReturn, Optional

from kit import hostlist, regular
from kit.errors import KitError, UsageError
from kit.runs import follow, status, tasks
from kit.runs.history import Run


def enter(word: str, node: Optional[str], command: list[str], task: Optional[int]) -> NoReturn:
    """Becomes the command: its exit code is this process's."""
    if not command:
        raise UsageError("no command is given", f"write it after --: kit exec {word} -- nvidia-smi; for a shell: -- bash")
    run = _running(word, task)
    if run.ssh:
        from kit.remote import errand

        whole, number = tasks.find(word, task)
        options = [*([] if node is None else ["--node", node]), *([] if number is None else ["--task", str(number)])]
        sys.exit(errand.enter(whole, ["exec", *options, whole.there, "--", *command]))
    facts = _facts(run)
    hosts = hostlist.expand(facts["KIT_HOSTS"])
    facts["KIT_HOSTS"] = ",".join(hosts)
    places = ",".join(_hosts(run, hosts, node))
    given = [f"{name}={value}" for name, value in facts.items()]
    environment = _environment(run, facts["KIT_RENDEZVOUS_ID"].partition(".")[0], hosts)
    if not shutil.which("srun", path=environment["PATH"]):
        raise KitError("srun is not installed here", "start it on a login node of the cluster")
    sys.stdout.flush()
    os.chdir(run.folder)
    os.execvpe("bash", ["bash", "run_script.sh", "attach", places, *given, "--", *command], environment)  # noqa: S606 - the shell is what it starts


def _running(word: str, task: Optional[int]) -> Run:
    run, number = tasks.find(word, task)
    if run.array and number is None:
        raise UsageError(f"{run} is an array", f"name one of its tasks: --task {tasks.number(tasks.all_of(run)[0])}")
    found = status.of([run])[0] if number is None else tasks.one(run, number)
    if found.state != "RUNNING":
        fix = "where it is: kit status" if found.active else "why it ended: kit why"
        raise KitError(f"{found.run} is not running: {found.state}{f' ({found.detail})' if found.detail else ''}", f"{fix} {found.run.id}")
    return found.run


def _facts(run: Run) -> dict[str, str]:
    """What the ranks of the last attempt were told, by name."""
    if not re.search(rb"^  attach\)", regular.start(Path(run.folder, "run_script.sh")), re.MULTILINE):
        raise KitError(f"{run} was started by an older kit, whose scripts cannot do this", "start it again with this one: kit submit")
    attempts = [path for path in follow.folder(Path(run.folder), run.id).glob("stamps/*/facts") if re.fullmatch("[0-9]{1,9}", path.parent.name)]
    text = regular.start(max(attempts, key=lambda path: int(path.parent.name))) if attempts else b""
    facts = dict(line.partition("=")[::2] for line in text.decode("utf-8", "surrogateescape").splitlines())
    if not facts:
        raise KitError(f"{run} has not started its ranks yet: its nodes make their containers ready", f"what they do: kit logs {run.id}")
    if not {"KIT_HOSTS", "KIT_RENDEZVOUS_ID"} <= facts.keys() or b"\0" in text:
        raise KitError(f"{max(attempts)} does not say what the ranks were told", f"the disk may have been full: df -h; what they do: kit logs {run.id}")
    return facts


def _hosts(run: Run, hosts: list[str], node: Optional[str]) -> list[str]:
    if node == "all":
        return hosts
    names = {**{str(number): name for number, name in enumerate(hosts)}, **{name: name for name in hosts}}
    found = names.get(node or "0")
    if not found:
        raise UsageError(f"{run} has no node {node}", f"name one of: {', '.join(hosts)}; or its number, from 0; or all", where="--node")
    return [found]


def _environment(run: Run, job_id: str, hosts: list[str]) -> dict[str, str]:
    """`job_id`: Slurm's own, which for a task of an array is not that of its name."""
    from kit import local, slurm

    array, _, number = run.id.partition("_")
    of_array = {"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": number} if number else {}
    if run.local:
        return {**local.step_environment(job_id, hosts), **of_array}
    return {**slurm.environment(), **of_array, "SLURM_JOB_ID": job_id}
