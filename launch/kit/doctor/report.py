"""Shows what was found: a table of checks and nodes, then each problem with its evidence and fix."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable
from typing import NamedTuple

from kit.doctor import facts
from kit.doctor.checks import FAIL, NOTE, OK, ORDER, WARN, Finding, Result
from kit.doctor.facts import Cluster
from kit.table import printable

SIGNS = {OK: "✓", NOTE: "·", WARN: "!", FAIL: "✗"}
WORDS = {OK: "ok", NOTE: "note", WARN: "warn", FAIL: "FAIL"}
MOST_NODES = 3  # whose evidence is shown, where it differs


def show(cluster: Cluster, result: Result, said: str, *, on_slurm: bool) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 120
    print(f"kit: {said}")
    for line in [*table(result, marks(), width), "", *problems(result.findings, marks()), conclusion(cluster, result, on_slurm)]:
        print(line)


def marks() -> dict[str, str]:
    """Signs for a terminal that can show them, words for all others."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return SIGNS if sys.stdout.isatty() and encoding == "utf8" else WORDS


def table(result: Result, marks: dict[str, str], width: int) -> list[str]:
    """A row for each check, a column for the nodes that are alike in all of them; where that is too wide, the nodes that differ."""
    checks = list(dict.fromkeys(check for verdicts in result.verdicts.values() for check in verdicts))
    columns = _alike(result)
    titles = ["", *(facts.folded(names) for names in columns.values())]
    rows = [[check, *(marks[dict(verdicts)[check]] if check in dict(verdicts) else "" for verdicts in columns)] for check in checks]
    widths = [max(len(row[index]) for row in [titles, *rows]) for index in range(len(titles))]
    if sum(widths) + 2 * len(widths) > width:
        return [_one_row(check, result, marks) for check in checks]
    remarks = ["", *(_common(result, check) for check in checks)]
    lines = ("  ".join([*(cell.ljust(size) for cell, size in zip(row, widths)), remark]) for row, remark in zip([titles, *rows], remarks))
    return [_cut(line, width) for line in lines]


def _alike(result: Result) -> dict[tuple[tuple[str, str], ...], list[str]]:
    """{verdicts: the nodes that have them}; the login node on its own."""
    columns: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for node, verdicts in result.verdicts.items():
        columns.setdefault(tuple(verdicts.items()), []).append(node)
    return columns


def _one_row(check: str, result: Result, marks: dict[str, str]) -> str:
    nodes: dict[str, list[str]] = {}
    for node, verdicts in result.verdicts.items():
        if check in verdicts:
            nodes.setdefault(verdicts[check], []).append(node)
    parts = []
    for verdict in reversed(ORDER):
        if verdict in nodes:
            parts.append(f"{marks[verdict]} {len(nodes[verdict]) if verdict == OK else facts.folded(nodes[verdict])}")
    return f"{check:<12}{'  '.join(parts)}"


def _common(result: Result, check: str) -> str:
    """What was seen, where it is the same wherever all is well."""
    seen = {said[check] for said in result.seen.values() if said.get(check)}
    return printable(seen.pop()) if len(seen) == 1 else ""


def _cut(line: str, width: int) -> str:
    line = line.rstrip()
    return line if len(line) <= width else line[: width - 3] + "..."


class _Kind(NamedTuple):
    """What findings of several nodes have in common."""

    check: str
    verdict: str
    what: str
    fix: str


def problems(findings: Iterable[Finding], marks: dict[str, str]) -> list[str]:
    """Two lines for each problem: the nodes, what, the evidence; and the fix. What fails comes first."""
    groups: dict[_Kind, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(_Kind(finding.check, finding.verdict, finding.what, finding.fix), []).append(finding)
    lines = []
    for kind, group in sorted(groups.items(), key=lambda item: -ORDER.index(item[0].verdict)):
        nodes = facts.folded(finding.node for finding in group)
        lines.append(printable(f"{marks[kind.verdict]} {nodes}: {kind.check}: {kind.what}{_evidence(group)}"))
        lines.append(printable(f"  fix: {kind.fix.replace('{nodes}', nodes)}"))
    return lines


def _evidence(group: list[Finding]) -> str:
    said = list(dict.fromkeys(finding.evidence for finding in group))
    if len(said) > 1:
        said = [f"{finding.node}: {finding.evidence}" for finding in group[:MOST_NODES]]
        said += [f"and {len(group) - MOST_NODES} more"] if len(group) > MOST_NODES else []
    return f" ({'; '.join(said)})" if said[0] else ""


def conclusion(cluster: Cluster, result: Result, on_slurm: bool) -> str:
    what = f"the job {cluster.asked.job}" if cluster.asked.job else "a job" if on_slurm else "a run here"
    bad = facts.folded(dict.fromkeys(finding.node for finding in result.findings if finding.verdict == FAIL))
    if not result.starts:
        return f"kit: {what} would fail, or not start: {bad}"
    warnings = len({(finding.check, finding.what) for finding in result.findings if finding.verdict == WARN})
    return f"kit: {what} would start" + (f"; {warnings} warning{'s' * (warnings > 1)}" if warnings else "; all is well")


def print_json(cluster: Cluster, result: Result) -> None:
    nodes = {}
    for node in cluster.nodes:
        own = {"state": node.state, "reason": node.reason, "asked": node.asked, "answered": node.answered, "clock_ahead_s": round(node.skew_s, 3)}
        nodes[node.name] = {**own, "checks": result.verdicts.get(node.name, {}), "said": node.said}
    findings = [{**vars(finding), "fix": finding.fix.replace("{nodes}", finding.node)} for finding in result.findings]
    own_checks = result.verdicts.get(facts.LOGIN, {})
    whole = {"starts": result.starts, "job": cluster.asked.job, "runtime": cluster.runtime(), "login": own_checks, "nodes": nodes, "findings": findings}
    print(json.dumps(whole, indent=2))
