"""Weighs what the evidence shows: which known causes, the likeliest first, and how the run ended."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any, Optional

from kit import secret, snapshot
from kit.why import cluster, distributed, ends, programs
from kit.why.cause import BATCH, NOTE, RANK, Cause, Weight
from kit.why.ends import End, Grade, Raised
from kit.why.evidence import Evidence, Failed, Log

CAUSES: tuple[Cause, ...] = (
    *cluster.VERDICTS,
    *cluster.REFUSALS,
    cluster.NO_LOG,
    *programs.MEMORY,
    *distributed.GPUS,
    *distributed.RANKS,
    *programs.FILES,
    *programs.CODE,
    *programs.ENDS,
    *cluster.MACHINE,
    *programs.SIGNALS,
)


# Where only Slurm's accounts, which `kit status` asks, know how a job ended: the first node, which has the batch script, is gone.
OF_STATE = {"TIMEOUT": "time-limit", "PREEMPTED": "preempted", "NODE_FAIL": "node-failed", "CANCELLED": "cancelled", "OUT_OF_MEMORY": "host-out-of-memory"}
LONGEST = 110  # characters of an exception's line in the words for it
LAST_WORDS = 10  # lines at the end of a log
SEARCHED = 65536  # characters at the end of a log in which words are looked for
UNFINISHED = "UNFINISHED"  # ranks failed, and nothing says that the run has ended
ENDED = "ENDED"  # by Slurm, in a way that has no name here


@dataclass(frozen=True)
class Finding:
    cause: Cause
    log: Log
    index: int  # of the line in the log that shows it
    groups: dict[str, str]  # of the pattern
    raised: Optional[Raised] = None  # the exception that ended the rank, where one did

    @property
    def line(self) -> str:
        return self.log.lines[self.index] if self.index < len(self.log.lines) else ""

    @property
    def weight(self) -> Weight:
        return self.cause.weight


@dataclass(frozen=True)
class Verdict:
    first: Optional[Failed]  # the rank that failed first, if one did
    causes: list[Finding]  # the likeliest first; empty where no known cause shows in what it said
    others: list[Finding]  # what else was found


def weigh(evidence: Evidence) -> Verdict:
    """Slurm, kit and the machine have the first word; then how the first rank ended. Words that only stand in a log are hints."""
    first = evidence.first
    found: list[Finding] = []
    hints: list[Finding] = []
    blames_others = first is None or first.how != "failed"
    for log in evidence.logs:
        stem = log.path.stem
        if log.kind not in (RANK, NOTE):
            words = _in(log)
        elif first is None:
            words, more = _of_rank(log, None)
            hints += more
        elif stem == f"rank{first.rank}" and log.kind == RANK:
            of_first, more = _of_first(evidence, log, first)
            blames_others = blames_others or any(finding.weight == Weight.PEER for finding in of_first)
            found += of_first
            hints += more
            continue
        elif stem == f"rank{first.rank}":
            words = [] if any(finding.raised for finding in found) else _in(log)
            found += words
            continue
        else:
            words, more = _of_rank(log, None)
            hints += [*words, *more]
            continue
        # What stands in other logs than the first rank's explains its end only where it has no reason of its own.
        elsewhere = first is not None and log.kind != BATCH and stem != first.node
        for finding in words:
            (found if finding.weight <= Weight.KERNEL or (blames_others and not elsewhere) or first is None else hints).append(finding)
    places = {id(log): place for place, log in enumerate(evidence.logs)}

    def order(finding: Finding) -> tuple[int, ...]:
        # Within one log the later line wins: it is nearer to the end.
        place = -1 if finding.weight == Weight.VERDICT and finding.log.kind == BATCH else places[id(finding.log)]
        return finding.weight, place, -finding.index, CAUSES.index(finding.cause)

    causes = _once(sorted(found, key=order), [])
    return Verdict(first, causes, _once(sorted(hints, key=order), causes))


def _of_first(evidence: Evidence, log: Log, first: Failed) -> tuple[list[Finding], list[Finding]]:
    """How the rank at fault ended; and what else stands in its log."""
    end = ends.read(log.text.split("\n"))
    if first.how != "failed":
        name = "left-early" if first.how == "left" else "rank-missing"
        said = evidence.batch.text.split("\n")
        blamed = (f": rank {first.rank} (local rank ", f": the program of node {first.rank} ")
        line = next(index for index in range(len(said) - 1, -1, -1) if any(words in said[index] for words in blamed))
        return [Finding(_named(name), evidence.batch, line, {})], _words(log, end)
    if end.is_cause(first.code, evidence.pause_s(first)):
        return [_meaning(log, end)], _words(log, end)
    words = _words(log, end)
    is_abort = first.code == 134
    final = [finding for finding in words if _is_final(log, finding) and (finding.cause.is_final or is_abort)]
    rest = [finding for finding in words if finding not in final]
    if final or not first.code or first.code >= 126:
        return final, rest
    if end.chain:
        raised = end.chain[-1]
        return [Finding(programs.LOGGED, log, raised.index, {"exception": shown(raised, evidence)})], rest
    return [Finding(programs.EXIT, evidence.log(NOTE, log.path.stem) or log, 0, {})], rest


def _of_rank(log: Log, code: Optional[int]) -> tuple[list[Finding], list[Finding]]:
    """What another rank says, or one whose end nobody noted."""
    end = ends.read(log.text.split("\n")) if log.kind == RANK else End()
    if log.kind == RANK and end.is_last and end.is_cause(code):
        return [_meaning(log, end)], _words(log, end)
    return (_in(log), []) if log.kind == NOTE else (_words(log, end), [])


def _meaning(log: Log, end: End) -> Finding:
    """The exception that ended a rank, with the cause that knows its type and message: of a chain the weightiest, else the last."""
    # What clean-up met on the way, after the rank's own failure or after others were gone, is neither.
    chain = end.chain[:1] if end.grade == Grade.GONE else tuple(raised for raised in end.chain if raised.grade < Grade.GONE)
    known = [finding for raised in reversed(chain) if (finding := _known(log, raised))]
    last = chain[-1]
    return min(known, key=lambda finding: finding.weight, default=Finding(programs.EXCEPTION, log, last.index, {}, last))


def _known(log: Log, raised: Raised) -> Optional[Finding]:
    causes = [cause for cause in CAUSES if RANK in cause.where and cause.takes(raised.type) and (cause.own_words or not raised.is_raised_by_user)]
    if raised.grade == Grade.GONE:  # whatever else the network says of it
        causes.sort(key=lambda cause: cause.weight != Weight.PEER and cause.name != "rendezvous-timeout")
    return next((found for cause in causes if (found := _in_exception(cause, log, raised))), None)


def _in_exception(cause: Cause, log: Log, raised: Raised) -> Optional[Finding]:
    """A pattern may need the lines before the exception's own."""
    begin = max(raised.begin, raised.index - 3)
    before = "".join(f"{line}\n" for line in log.text.split("\n")[begin : raised.index])
    text = before + raised.text
    for pattern in cause.compiled:
        for match in pattern.finditer(text):
            if match.end() > len(before):
                groups = {name: value for name, value in match.groupdict().items() if value}
                at = max(len(before), match.start("shown") if "shown" in groups else match.start())
                return Finding(cause, log, begin + text.count("\n", 0, at), groups, raised)
    return None


def _is_final(log: Log, finding: Finding) -> bool:
    lines = [index for index, line in enumerate(log.text.split("\n")) if line.strip()][-LAST_WORDS:]
    return bool(lines) and finding.index >= lines[0]


def _words(log: Log, end: End) -> list[Finding]:
    """Known words anywhere in a rank's log, outside of the exception that ended it."""
    inside = {index for begin, last in end.blocks[-len(end.chain) :] for index in range(begin, last + 1)} if end.chain else set()
    return [finding for finding in _in(log) if finding.index not in inside]


def _named(name: str) -> Cause:
    return next(cause for cause in CAUSES if cause.name == name)


def shown(raised: Raised, evidence: Evidence) -> str:
    """ValueError: the message, at train.py:41"""
    line = raised.text.partition("\n")[0].strip()
    copy = evidence.folder / snapshot.FOLDER
    place = raised.place(str(copy if copy.is_dir() else evidence.plan.get("workdir") or evidence.folder))
    line = line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
    return f"{line}, at {place}" if place else line


def _in(log: Log) -> list[Finding]:
    """Every known cause whose words stand in a log."""
    found = (_find(cause, log) for cause in CAUSES if log.text)
    return [finding for finding in found if finding]


def _find(cause: Cause, log: Log) -> Optional[Finding]:
    begin_at = max(0, len(log.text) - SEARCHED)
    for pattern in cause.patterns_for(log.kind):
        if last := max(pattern.finditer(log.text, begin_at), key=lambda match: match.start(), default=None):
            groups = {name: value for name, value in last.groupdict().items() if value}
            begin = last.start("shown") if "shown" in groups else last.start()  # a pattern may need the line before
            return Finding(cause, log, log.text.count("\n", 0, begin), groups)
    return None


def _once(sorted_findings: list[Finding], before: list[Finding]) -> list[Finding]:
    """Each cause once, and of two that one line shows the one that the tables have first."""
    names = {finding.cause.name for finding in before}
    lines: set[tuple[int, int]] = set()
    kept = []
    for finding in sorted_findings:
        line = (id(finding.log), finding.index)
        if finding.cause.name not in names and line not in lines:
            kept.append(finding)
        names.add(finding.cause.name)
        lines.add(line)
    return kept


class _Again:
    """The command that started the run, with options put in, in place of those that it had: `{again:--time 1:00:00}`."""

    MANY = ("--env", "--slurm", "--mount")  # may be given again, with another name

    def __init__(self, words: list[str]) -> None:
        at = words.index("--") if "--" in words else len(words)
        self.words, self.arguments = words[:at], words[at:]

    def __format__(self, options: str) -> str:
        new = options.split(" ")
        replaced = {self._key(name, value) for name, value in zip(new, new[1:])}
        kept = []
        skip = False
        for word, following in zip(self.words, [*self.words[1:], ""]):
            name, equals, value = word.partition("=")
            found = not skip and self._key(name, value if equals else following) in replaced
            if not found and not skip:
                kept.append(word)
            skip = found and not equals
        after = self.arguments if len(self.arguments) > 1 else []
        return " ".join(part for part in (shlex.join(kept), options, shlex.join(after)) if part)

    def _key(self, name: str, value: str) -> tuple[str, str]:
        return name, value.partition("=")[0].partition(":")[0] if name in self.MANY else ""


def _invocation(record: Mapping[str, Any]) -> list[str]:
    """What the user typed, without a run directory, which exists by now."""
    given = record.get("invocation")
    words = [str(word) for word in given[1:]] if isinstance(given, list) else []
    if not words or words[0] not in ("submit", "run", "render"):
        return ["kit", "submit", "JOB"]
    words = [words[0], *(_shown(word, before) for before, word in zip(words, words[1:]))]
    kept = ["kit"]
    skip = False
    for index, word in enumerate(words):
        if word == "--":
            return [*kept, *words[index:]]
        if not skip and word != "--follow" and not word.startswith("--output"):
            kept.append(word)
        skip = word == "--output"
    return kept


def _shown(word: str, before: str) -> str:
    """A word of a command, without the value of a secret variable."""
    name, equals, _ = word.removeprefix("--env=").partition("=")
    is_env = before == "--env" or word.startswith("--env=")
    return f"{word[: word.index(name)]}{name}=..." if is_env and equals and secret.is_secret(name) else word


class _Facts(dict[str, Any]):
    """Facts for the templates; what is not known stays a word in capitals."""

    def __missing__(self, name: str) -> str:
        return name.upper()


def facts(evidence: Evidence, finding: Optional[Finding]) -> Mapping[str, Any]:
    """again, job, node, rank, who, code, image, time, workdir, folder, processes, program, sender, and what the pattern found."""
    plan = evidence.plan
    header = dict(item for item in _listed(plan, "header") if isinstance(item, list) and len(item) == 2)
    command = _listed(plan, "command")
    known: dict[str, Any] = {
        "again": _Again(_invocation(evidence.record)),
        "job": evidence.job_id or None,
        "image": plan.get("image"),
        "inside": "the host's Python" if plan.get("runtime") == "none" else "the image",
        "time": header.get("time") or "no limit of its own",
        "workdir": plan.get("workdir"),
        "folder": str(evidence.folder),
        "node": next(iter(re.findall(r"^kit: (\S+): job [\d_]+ on ", evidence.batch.text, re.MULTILINE)), None),
        "processes": plan.get("processes_per_node"),
        "sender": _sender(header, plan.get("on_preempt")),
        "program": shlex.join(str(word) for word in command[: 2 if command and os.path.basename(str(command[0])).startswith("python") else 1]) or None,
    }
    if evidence.first:
        known |= {"rank": evidence.first.rank, "code": evidence.first.code, "who": who(evidence.first, evidence)}
    if finding:
        known |= {"node": _node(evidence, finding) or known["node"], **finding.groups}
        if "said" in known:
            known["said"] = str(known["said"]).strip()
    return _Facts({name: value for name, value in known.items() if value is not None})


def who(rank: Failed, evidence: Evidence) -> str:
    """What a user calls it: under `launcher: spawn` one program on each node starts ranks that nobody else knows."""
    return f"the program of node {rank.rank}" if evidence.plan.get("launcher") == "spawn" else f"rank {rank.rank}"


def _sender(header: Mapping[str, Any], on_preempt: Any) -> str:
    """What to do about the sender of a signal for users."""
    if on_preempt == "checkpoint":
        return "or leave out `on_preempt: checkpoint`, which asks for a checkpoint by it"
    return "or leave out `slurm: {signal: ...}`, which sends it" if "signal" in header else "the job names nothing that sends it: a person did, or the site"


def _listed(plan: Mapping[str, Any], name: str) -> list[Any]:
    """One of another version of kit may be none."""
    found = plan.get(name)
    return found if isinstance(found, list) else []


def _node(evidence: Evidence, finding: Finding) -> Optional[str]:
    """Where it showed: the log's own node, or the one of its rank."""
    log = finding.log
    if log.kind in (RANK, NOTE):
        return next((note.node for note in evidence.notes if note.node and log.path.stem == f"rank{note.rank}"), None)
    return log.path.stem if log.kind == "node" and log.path.suffix == ".out" else None


def told(template: str, known: Mapping[str, Any]) -> str:
    return Formatter().vformat(template, (), known)


def of_state(state: str, found: list[Finding]) -> Optional[Cause]:
    """The cause that only the state tells: no log has it."""
    name = OF_STATE.get(state)
    told = found and (found[0].weight == Weight.VERDICT or found[0].cause.name == name)
    return None if told else next((cause for cause in CAUSES if cause.name == name), None)


def goes_on(evidence: Evidence) -> bool:
    """Whether the last word of the batch script is that another attempt follows."""
    said = list(re.finditer(r"^kit: \S+: (?:Slurm takes this job back|.*; Slurm starts this job again)", evidence.batch.text, re.MULTILINE))
    return bool(said) and not re.search(r"^kit: error: ", evidence.batch.text[said[-1].end() :], re.MULTILINE)


def state(evidence: Evidence, verdict: Verdict, noted: str) -> str:
    """As Slurm names it; empty where nothing says that the run has ended. `noted` is the history's word."""
    if noted and noted != "COMPLETING":  # which Slurm says of a job in the middle of its end
        return noted
    if goes_on(evidence):
        return ""
    if verdict.causes and verdict.causes[0].weight == Weight.VERDICT:
        # Not what the log's "being ended (STATE)" says: that may be an answer from the middle of it, such as COMPLETING.
        return {name: state for state, name in OF_STATE.items()}.get(verdict.causes[0].cause.name, ENDED)
    said = [line for line in evidence.batch.lines if line.strip()][-1:]
    if said and said[0].endswith("all ranks ended well"):
        return "COMPLETED"
    if re.search(r"^kit: error: ", evidence.batch.text, re.MULTILINE):
        return "FAILED"
    return UNFINISHED if evidence.failed else ""
