"""What --json prints of all but runs; docs/json.md says what the fields mean."""

from __future__ import annotations

from typing import Any

from kit.cli import run_views
from kit.cluster.when import Estimates
from kit.diagnose.why.report import Report
from kit.images.inventory import ImageFile
from kit.plan.bad_nodes import Bad

_OF_REPORT = ("state", "rank", "node", "outcome", "cause", "title", "fix", "shown_by", "line")


def of_report(found: Report) -> dict[str, Any]:
    return {**run_views.run_json(found.run), **{name: getattr(found, name) for name in _OF_REPORT}}


def of_estimates(found: Estimates) -> dict[str, Any]:
    return {
        "starts": [
            {
                "start_s": start.at_s,
                "partition": start.variant.partition,
                "nodes": start.variant.nodes,
                "processes_per_node": start.variant.processes,
                "gpus_per_node": start.variant.gpus,
                "time": start.variant.time,
                "where": start.nodes,
                "options": list(start.variant.options),
            }
            for start in found.starts
        ],
        "not_possible": [
            {"reason": reason, "places": list(dict.fromkeys(places))}
            for reason, places in found.refused.items()
        ],
        "not_asked": found.not_asked,
    }


def of_image(kept: ImageFile) -> dict[str, Any]:
    return {
        "name": kept.name,
        "file": str(kept.file),
        "current": kept.is_current,
        "bytes": kept.bytes,
        "built_s": kept.built_s,
        "used_s": kept.used_s,
        "runs": list(kept.runs),
    }


def of_node(bad: Bad) -> dict[str, Any]:
    return {"node": bad.name, "why": bad.why, "until_s": bad.until_s}
