"""Fill the templates of a cause with the facts of a run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Any, Optional

from kit.base import quote, redact
from kit.config import command_line, other_tools
from kit.diagnose.why import collectives
from kit.diagnose.why.cause import NODE, NOTE, RANK
from kit.diagnose.why.evidence import Evidence
from kit.diagnose.why.findings import Finding
from kit.runs import events
from kit.runs.events import Failed
from kit.runs.run_record import RunRecord


class Again:
    """The command that started the run; `{again:--time 1:00:00}` replaces or adds options.

    A node to leave out joins the `excluded` ones.
    """

    def __init__(self, words: list[str], excluded: str = "") -> None:
        self.words, self.arguments = command_line.split(words)
        self.excluded = excluded

    def __format__(self, options: str) -> str:
        if self.excluded and options.startswith("--slurm exclude="):
            options = options.replace("exclude=", f"exclude={self.excluded},")
        kept = command_line.without(self.words, options.split(" "))
        after = self.arguments if len(self.arguments) > 1 else []
        return " ".join(part for part in (_line(kept), options, _line(after)) if part)


def _line(words: list[str]) -> str:
    """Return words as one line for a shell, also those with line breaks in them."""
    return " ".join(shlex.quote(word) if word.isprintable() else quote.bash(word) for word in words)


def typed(record: RunRecord) -> list[str]:
    """Return the command that the user typed, without its run directory, which exists by now."""
    words = list(record.get("invocation", ())[1:])
    if not words or words[0] not in ("submit", "run", "render"):
        return ["kit", "submit", "JOB"]
    words = [words[0], *(_without_secret(word, before) for before, word in zip(words, words[1:]))]
    own, arguments = command_line.split(words)
    kept = command_line.without(own, ["--output", "DIR"])
    return ["kit", *(word for word in kept if word != "--follow"), *arguments]


def _without_secret(word: str, before: str) -> str:
    """Return a word of a command without the value of a secret variable."""
    name, equals, _ = word.removeprefix("--env=").partition("=")
    is_env = before == "--env" or word.startswith("--env=")
    if is_env and equals and redact.is_secret(name):
        return f"{word[: word.index(name)]}{name}=..."
    return word


class Facts(dict[str, Any]):
    """The facts for a template; an unknown one stays its name in capitals."""

    def __missing__(self, name: str) -> str:
        return name.upper()


def collect(evidence: Evidence, finding: Optional[Finding]) -> Mapping[str, Any]:
    """Return the facts of the run and the groups that the finding's pattern found."""
    plan, first = evidence.plan, evidence.first
    header = dict(plan.header)
    start = events.last(evidence.events, "start")
    again = Again(typed(evidence.record), header.get("exclude") or "")
    is_local = bool(evidence.record.get("local"))
    known: dict[str, Any] = {
        "again": again,
        "job": evidence.job_id or None,
        "image": plan.container.image,
        "inside": "the host's Python" if plan.container.runtime == "none" else "the image",
        "time": header.get("time") or "no limit of its own",
        "workdir": plan.program.workdir or None,
        "folder": str(evidence.folder),
        "node": (start and start.node) or None,
        "processes": plan.layout.processes_per_node or None,
        "elsewhere": _elsewhere(again, plan.container.runtime),
        "more_memory": _more_memory(again, is_local),
        "sender": _sender(header, plan.policy.on_preempt),
        "program": _program(plan.program.command),
    }
    if evidence.recorded:
        known["suspects"] = evidence.recorded.suspects or None
    if first:
        known |= {"rank": first.rank, "code": first.code, "who": who(first, evidence)}
    if finding:
        known |= {"node": _node(evidence, finding) or known["node"], **finding.groups}
        if "said" in known:
            known["said"] = str(known["said"]).strip()
        if finding.cause.retells:
            of_ranks = (log.text for log in evidence.logs if log.kind == RANK)
            known["difference"] = collectives.difference(of_ranks)
    known["without_node"] = _without_node(again, known["node"] or "NODE", is_local)
    return Facts({name: value for name, value in known.items() if value is not None})


def _program(command: tuple[str, ...]) -> Optional[str]:
    """Return the program of a command, with the interpreter that runs it."""
    is_python = bool(command) and os.path.basename(command[0]).startswith("python")
    return shlex.join(command[: 2 if is_python else 1]) or None


def who(failed: Failed, evidence: Evidence) -> str:
    """Return what a user calls the rank.

    Under these launchers one process on each node starts ranks that nobody else knows.
    """
    is_node = evidence.plan.program.launcher in other_tools.STARTED_ONCE
    return f"the program of node {failed.rank}" if is_node else f"rank {failed.rank}"


def _elsewhere(again: Again, runtime: str) -> str:
    """Return what to do about a file that is not where the program looks for it."""
    if runtime == "none":
        return "correct the path, or put it there"
    return f"if it is on the host, mount its folder: {again:--mount SOURCE:TARGET:ro}"


def _more_memory(again: Again, is_local: bool) -> str:
    """Return what to do where a node's memory, or the job's share of it, is too small."""
    if is_local:
        return "see what else uses this machine's memory (free -h; dmesg | grep -i oom)"
    return f"ask for more memory ({again:--slurm mem=0} takes all of each node)"


def _without_node(again: Again, node: str, is_local: bool) -> str:
    """Return how a fix for a node goes on: others may run the job. `kit run` has no others."""
    if is_local:
        return ""
    command = f"{again:--slurm exclude={node}}"
    return f"; tell the administrators, and submit without the node: {command}"


def _sender(header: Mapping[str, Any], on_preempt: str) -> str:
    """Return what to do about the sender of a signal for users."""
    if on_preempt == "checkpoint":
        return "or leave out `on_preempt: checkpoint`, which asks for a checkpoint by it"
    if "signal" in header:
        return "or leave out `slurm: {signal: ...}`, which sends it"
    return "the job names nothing that sends it: a person did, or the site"


def _node(evidence: Evidence, finding: Finding) -> Optional[str]:
    """Return the node of the log in which the finding is."""
    log = finding.log
    if log.kind in (RANK, NOTE):
        known = [*([evidence.first] if evidence.first else []), *evidence.failed]
        own = (each.node for each in known if log.rank == each.rank)
        return next(filter(None, own), None)
    return log.path.stem if log.kind == NODE and log.path.suffix == ".out" else None
