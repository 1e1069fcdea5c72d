"""The checks: what is looked at, what can be wrong with it, and the fix. docs/doctor.md shows this table; a test compares them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple

from kit.doctor.facts import Cluster, Node

ORDER = OK, NOTE, WARN, FAIL = "ok", "note", "warn", "fail"  # a note is for who reads it, and is nothing wrong


class Problem(NamedTuple):
    verdict: str
    what: str  # {fields} are what the judge found
    fix: str  # with {nodes}: those that have the problem


class Found(NamedTuple):
    """That a node has a problem of a check's table."""

    problem: str
    evidence: str = ""
    fields: dict[str, str] = {}  # noqa: RUF012 - never changed


@dataclass(frozen=True)
class Check:
    name: str
    looks: str  # at what
    problems: dict[str, Problem]
    judge: Callable[[Node, Cluster], Iterator[Found]]
    seen: Callable[[Node, Cluster], str] = lambda _, __: ""  # what to show where all is well
    matters: Callable[[Cluster], bool] = lambda _: True  # whether it says anything about what is asked


@dataclass(frozen=True)
class Finding:
    node: str
    check: str
    verdict: str
    what: str
    evidence: str
    fix: str


@dataclass
class Result:
    """{node: {check: verdict}}, and what was found."""

    verdicts: dict[str, dict[str, str]]
    findings: list[Finding]
    seen: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def starts(self) -> bool:
        return all(finding.verdict != FAIL for finding in self.findings)


def judge(cluster: Cluster, login: Node, checks: Sequence[Check], of_login: Sequence[Check]) -> Result:
    """Every check on every node that answered, and those of the login node on that."""
    result = Result({}, [], {})
    _judge(login, cluster, of_login, result)
    for node in cluster.nodes:
        reached = {"state": bool(node.state), "answers": node.asked}
        _judge(node, cluster, [check for check in checks if reached.get(check.name, node.answered)], result)
    return result


def _judge(node: Node, cluster: Cluster, checks: Sequence[Check], result: Result) -> None:
    verdicts = result.verdicts.setdefault(node.name, {})
    for check in checks:
        if not check.matters(cluster):
            continue
        verdicts[check.name] = OK
        for found in check.judge(node, cluster):
            finding = _finding(node.name, check, found)
            result.findings.append(finding)
            verdicts[check.name] = max(verdicts[check.name], finding.verdict, key=ORDER.index)
        result.seen.setdefault(node.name, {})[check.name] = check.seen(node, cluster) if verdicts[check.name] == OK else ""


def _finding(node: str, check: Check, found: Found) -> Finding:
    problem = check.problems[found.problem]
    fields: dict[str, Any] = {"nodes": "{nodes}", **found.fields}  # the nodes are known when those with the same are together
    return Finding(node, check.name, problem.verdict, problem.what.format(**fields), found.evidence, problem.fix.format(**fields))
