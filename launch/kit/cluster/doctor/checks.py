"""Define a check of `kit doctor`, and judge nodes by checks.

checks.yaml says at what each check looks, what it may find, and the fix; docs/doctor.md shows that.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, NamedTuple

import yaml

from kit.cluster.doctor.inquiry import Inquiry, Node
from kit.config.yaml_source import LOADER

ORDER = OK, NOTE, WARN, FAIL = ("ok", "note", "warn", "fail")  # a note tells of nothing wrong


class KnownProblem(NamedTuple):
    """A problem that a check may find, and its fix."""

    verdict: str
    what: str  # {fields} are filled by what the judge found
    fix: str  # {nodes} are the nodes that have the problem


class Found(NamedTuple):
    """A problem of a check that a node has."""

    problem: str
    evidence: str = ""
    fields: dict[str, str] = {}  # noqa: RUF012 - never changed


Judge = Callable[[Node, Inquiry], Iterator[Found]]


@dataclass(frozen=True)
class Check:
    name: str
    looks: str  # at what it looks
    problems: dict[str, KnownProblem]
    judge: Judge
    seen: Callable[[Node, Inquiry], str]  # what to show where all is well
    matters: Callable[[Inquiry], bool]  # whether it applies to what is asked of the cluster


def check(
    name: str,
    *,
    seen: Callable[[Node, Inquiry], str] = lambda _, __: "",
    matters: Callable[[Inquiry], bool] = lambda _: True,
) -> Callable[[Judge], Check]:
    """Return a decorator that makes a check of its judge, with the texts of this name."""
    texts = _texts()[name]
    problems = {}
    for key, words in texts.get("problems", {}).items():
        verdict = next(word for word in ORDER if word in words)
        problems[key] = KnownProblem(verdict, words[verdict], words["fix"])
    return lambda judge: Check(name, texts["looks"], problems, judge, seen, matters)


@functools.cache
def _texts() -> dict[str, Any]:
    file = Path(__file__).with_name("checks.yaml")
    found: dict[str, Any] = yaml.load(file.read_text(encoding="utf-8"), LOADER)  # noqa: S506 - safe
    return found


def in_order(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Return the checks as checks.yaml orders them."""
    return tuple(sorted(checks, key=lambda item: list(_texts()).index(item.name)))


@dataclass(frozen=True)
class NodeFinding:
    """A problem of one node, in words."""

    node: str
    check: str
    verdict: str
    what: str
    evidence: str
    fix: str


@dataclass
class Result:
    """What the checks found."""

    verdicts: dict[str, dict[str, str]]  # {node: {check: verdict}}
    findings: list[NodeFinding]
    seen: dict[str, dict[str, str]] = field(default_factory=dict)  # {node: {check: what it saw}}

    @property
    def starts(self) -> bool:
        """Return True if a job would start."""
        return all(finding.verdict != FAIL for finding in self.findings)


def judge(
    cluster: Inquiry, login: Node, checks: Sequence[Check], of_login: Sequence[Check]
) -> Result:
    """Return what the checks find on every node that answered, and on the login node."""
    cluster = replace(cluster)  # the original may keep what was found before all had answered
    checks = [item for item in checks if item.matters(cluster)]
    result = Result({}, [], {})
    _judge(login, cluster, [item for item in of_login if login.has(item.name)], result)
    for node in cluster.nodes:
        reached = {"state": bool(node.state), "answers": node.asked}
        possible = [item for item in checks if reached.get(item.name, node.answered)]
        _judge(node, cluster, possible, result)
    return result


def _judge(node: Node, cluster: Inquiry, checks: Sequence[Check], result: Result) -> None:
    """Add to the result what the checks find on one node."""
    verdicts = result.verdicts.setdefault(node.name, {})
    for item in checks:
        verdicts[item.name] = OK
        for found in item.judge(node, cluster):
            problem = item.problems[found.problem]
            fields = {"nodes": "{nodes}", **found.fields}  # the report names all nodes with it
            what, fix = problem.what.format(**fields), problem.fix.format(**fields)
            finding = NodeFinding(node.name, item.name, problem.verdict, what, found.evidence, fix)
            result.findings.append(finding)
            verdicts[item.name] = max(verdicts[item.name], problem.verdict, key=ORDER.index)
        seen = item.seen(node, cluster) if verdicts[item.name] == OK else ""
        result.seen.setdefault(node.name, {})[item.name] = seen
