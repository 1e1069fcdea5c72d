"""Show an examination: the checks as a table, then each problem with its evidence and fix."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kit.base import formats, table
from kit.base.table import printable
from kit.cluster.doctor import inquiry
from kit.cluster.doctor.checks import FAIL, NOTE, OK, ORDER, WARN, NodeFinding, Result
from kit.cluster.doctor.rounds import Examination
from kit.slurm import hostlist

SIGNS = {OK: "✓", NOTE: "·", WARN: "!", FAIL: "✗"}
WORDS = {OK: "ok", NOTE: "note", WARN: "warn", FAIL: "FAIL"}
MOST_NODES = 3  # whose evidence is shown, where it differs


def lines(found: Examination, marks: dict[str, str], width: int) -> list[str]:
    return [
        f"kit: {found.summary}",
        *_checks(found.result, marks, width),
        "",
        *problems(found.result.findings, marks),
        conclusion(found),
    ]


def marks() -> dict[str, str]:
    """Return signs for a terminal that can show them, words for any other output."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return SIGNS if sys.stdout.isatty() and encoding == "utf8" else WORDS


def _checks(result: Result, marks: dict[str, str], width: int) -> list[str]:
    """Return a row for each check, and a column for the nodes whose verdicts are the same.

    Where that is too wide, each row names the nodes that differ.
    """
    checks = list(dict.fromkeys(check for found in result.verdicts.values() for check in found))
    columns = formats.by_value(
        {node: tuple(verdicts.items()) for node, verdicts in result.verdicts.items()}
    )
    signs = {**marks, "": ""}
    rows = [("", *(hostlist.fold(names) for names in columns.values()))]
    for check in checks:
        rows.append((check, *(signs[dict(verdicts).get(check, "")] for verdicts in columns)))
    if max(map(len, table.lines(rows))) + 2 > width:
        return [_one_row(check, result, marks) for check in checks]
    remarks = ["", *(_common(result, check) for check in checks)]
    whole = table.lines([(*row, remark) for row, remark in zip(rows, remarks)])
    return [line if len(line) <= width else f"{line[: width - 3]}..." for line in whole]


def _one_row(check: str, result: Result, marks: dict[str, str]) -> str:
    """Return the verdicts of one check with the nodes that have them, all well ones counted."""
    nodes = formats.by_value(
        {node: found[check] for node, found in result.verdicts.items() if check in found}
    )
    parts = []
    for verdict in reversed(ORDER):
        if verdict in nodes:
            which = len(nodes[verdict]) if verdict == OK else hostlist.fold(nodes[verdict])
            parts.append(f"{marks[verdict]} {which}")
    return f"{check:<12}{'  '.join(parts)}"


def _common(result: Result, check: str) -> str:
    """Return what a check saw, if it saw the same on all nodes where it found nothing wrong."""
    seen = {of_node[check] for of_node in result.seen.values() if of_node.get(check)}
    return seen.pop() if len(seen) == 1 else ""


def problems(findings: Iterable[NodeFinding], marks: dict[str, str]) -> list[str]:
    """Return two lines for each problem, one with its nodes and evidence, one with the fix.

    Failures come first.
    """
    groups: dict[NodeFinding, list[NodeFinding]] = {}
    for finding in findings:
        groups.setdefault(replace(finding, node="", evidence=""), []).append(finding)
    lines = []
    for one, group in sorted(groups.items(), key=lambda item: -ORDER.index(item[0].verdict)):
        nodes = hostlist.fold(finding.node for finding in group)
        what = f"{one.check}: {one.what}{_evidence(group)}"
        lines.append(printable(f"{marks[one.verdict]} {nodes}: {what}"))
        lines.append(printable(f"  fix: {one.fix.replace('{nodes}', nodes)}"))
    return lines


def _evidence(group: list[NodeFinding]) -> str:
    """Return the evidence in brackets, of a few nodes where it differs."""
    evidence = list(dict.fromkeys(finding.evidence for finding in group))
    if len(evidence) > 1:
        evidence = [f"{finding.node}: {finding.evidence}" for finding in group[:MOST_NODES]]
        evidence += [f"and {len(group) - MOST_NODES} more"] if len(group) > MOST_NODES else []
    return f" ({'; '.join(evidence)})" if evidence[0] else ""


def conclusion(found: Examination) -> str:
    """Return the last line: whether a job would start."""
    result, job = found.result, found.cluster.asked.job
    what = "a job" if found.on_slurm else "a run here"
    if job:
        what = f"the job {job}"
    if not result.starts:
        bad = dict.fromkeys(item.node for item in result.findings if item.verdict == FAIL)
        return f"kit: {what} would fail, or not start: {hostlist.fold(bad)}"
    warnings = {(item.check, item.what) for item in result.findings if item.verdict == WARN}
    remark = formats.number(len(warnings), "warning") if warnings else "all is well"
    return f"kit: {what} would start; {remark}"


def as_json(found: Examination) -> dict[str, Any]:
    cluster, result = found.cluster, found.result
    nodes = {
        node.name: {
            "state": node.state,
            "reason": node.reason,
            "asked": node.asked,
            "answered": node.answered,
            "clock_ahead_s": round(node.skew_s, 3),
            "checks": result.verdicts.get(node.name, {}),
            "said": node.said,
        }
        for node in cluster.nodes
    }
    findings = [
        {**vars(item), "fix": item.fix.replace("{nodes}", item.node)} for item in result.findings
    ]
    return {
        "starts": result.starts,
        "job": cluster.asked.job,
        "runtime": cluster.runtime,
        "login": result.verdicts.get(inquiry.LOGIN, {}),
        "nodes": nodes,
        "findings": findings,
    }
