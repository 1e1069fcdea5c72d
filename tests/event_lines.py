"""Events as the scripts of a run write them, for run directories that tests make."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path


def line(event: str, at_s: float, attempt: int = 1, **values: object) -> str:
    return json.dumps({"t": at_s, "attempt": attempt, "event": event, **values}) + "\n"


def add(logs: Path, file: str, event: str, at_s: float = 1_700_000_000.0, attempt: int = 1, **values: object) -> None:
    """Appends an event to a file of the log folder: `batch`, `ready` or a node's name."""
    path = logs / "events" / f"{file}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lines:
        lines.write(line(event, at_s, attempt, **values))


def read(logs: Path, *names: str) -> list[dict[str, object]]:
    """The events of these names, or all, file by file."""
    texts = [path.read_text() for path in sorted((logs / "events").glob("*.jsonl"))]
    found = [json.loads(text) for part in texts for text in part.splitlines()]
    return [event for event in found if not names or event["event"] in names]


def failed_ranks(logs: Path) -> dict[int, int]:
    """{rank: its code} of those that failed without being told to stop."""
    ended = read(logs, "rank_ended")
    return {event["rank"]: event["code"] for event in ended if event["code"] and not event["stopped"]}  # type: ignore[misc]


def of_batch(logs: Path, text: str, at_s: float = 1_700_000_100.0) -> None:
    """Adds what a batch script notes that says `text` in its log: its start, and how it ended."""
    attempt, node = 1, "node1"
    add(logs, "batch", "start", at_s, node=node, job="7", nodes="node[1-2]", log=0)
    for begin, said, fix in _lines(text):
        if re.match(r"kit: \S+: job \S+ on ", said) and begin:
            attempt += 1
            add(logs, "batch", "start", at_s, attempt, node=said.split(": ")[1], job="7", nodes="node[3-4]", log=begin)
        elif said.endswith("all ranks ended well"):
            add(logs, "batch", "ends", at_s, attempt, node=node, code=0)
        elif re.search("Slurm starts this job again|Slurm takes this job back", said):
            add(logs, "batch", "requeued", at_s, attempt, node=node)
        elif found := re.match(r"kit: error: (\S+): (.*?)(?:; the end of .*)?$", said):
            _add_error(logs, at_s, attempt, node=found[1], problem=found[2], fix=fix)


def _lines(text: str) -> Iterator[tuple[int, str, str]]:
    """(where it begins, a line, the fix in the next one)."""
    begin = 0
    lines = text.splitlines(keepends=True)
    for each, after in zip(lines, [*lines[1:], ""]):
        yield begin, each.rstrip("\n"), after.strip().removeprefix("fix: ") if after.startswith("  fix: ") else ""
        begin += len(each.encode())


def _add_error(logs: Path, at_s: float, attempt: int, **values: object) -> None:
    problem = str(values["problem"])
    if state := re.match(r"this job is being ended \((\w+)\)", problem):
        add(logs, "batch", "stopped_by", at_s, attempt, state=state[1], **values)
    elif rank := re.match(r"(?:rank|the program of node) (\d+)(?: \(local rank (\d+)\))? (exited with code (\d+)|left|was not|was killed)", problem):
        how = {"left": "left", "was not": "missing"}.get(rank[3], "failed")
        own = {"rank": int(rank[1]), "local_rank": int(rank[2] or 0), "code": int(rank[4] or 1), "how": how}
        add(logs, "batch", "blamed", at_s, attempt, **own, **values)
    else:
        add(logs, "batch", "node_refused", at_s, attempt, cause="refused", **values)


def of_rank(logs: Path, rank: int, note: str, at_s: float = 1_700_000_000.0, attempt: int = 1) -> None:
    """Adds that a rank began, and with a note "CODE NODE LOCAL_RANK" that it failed."""
    code, node, local_rank = note.split() or ("0", "node1", "0")
    add(logs, node, "rank_started", at_s - 50, attempt, node=node, rank=rank, begun=at_s - 52, entered=at_s - 51)
    if note:
        add(logs, node, "rank_ended", at_s, attempt, node=node, rank=rank, local_rank=int(local_rank), code=int(code), stopped=False)
