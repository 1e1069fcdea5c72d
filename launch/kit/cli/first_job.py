"""kit init: looking at a site, writing its profile and a first job, and saying what was done."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Optional

from kit.base import assets
from kit.base.errors import KitError, Problems, warn
from kit.cli import messages, tables
from kit.cluster.init import init
from kit.cluster.init.init import Start
from kit.cluster.init.survey import TEMPORARY
from kit.config import profile_files, profiles

TITLES = {
    "folder": "folder",
    "program": "program",
    "partition": "partition",
    "shape": "ranks",
    "account": "account",
    "runtime": "container",
    "image": "image",
    "gpu_directive": "GPUs asked by",
    "scratch": "node's disk",
    "fabric": "network",
}
# Words for decisions without a value.
NO_VALUE = {
    "account": "Slurm's own choice",
    "runtime": "none",
    "image": "none yet",
    "gpu_directive": "not at all",
    "scratch": TEMPORARY,
    "fabric": "Ethernet",
}


def write(
    target: Path,
    image: Optional[str],
    partition: Optional[str],
    *,
    local: bool,
    ask_node: bool,
    force: bool,
) -> None:
    """Write the files for `target`, which is the project's folder or the program in it."""
    start = init.examine(
        target, image, partition, local=local, tell=_say_asked if ask_node else None
    )
    _show(start)
    agrees = _agrees if sys.stdin.isatty() else None
    for line in init.write(start, force=force, agrees=agrees):
        print(f"kit: {line}")
    if start.site.cluster:
        print(f"kit: Slurm would accept it: {init.estimate(start)}")
    print("kit: next")
    for line in init.next_commands(start, target):
        print(f"  {line}")


def list_profiles() -> None:
    """Print each profile, what it says of itself, its file, and the files that this one hides."""
    rows = [("PROFILE", "DESCRIPTION", "FILE")]
    for name, (path, *others) in sorted(profile_files.files().items()):
        rows.append((name, _description(path), f"{path}{_hiding(path, others)}"))
    tables.show(rows)
    for problem in profile_files.unlisted():
        warn(problem._replace(problem=f"warning: {problem.problem}"))


def _hiding(path: Path, others: list[Path]) -> str:
    """Return which files a profile hides, in words: all but kit's own, and links to itself."""
    own = assets.folder("env")
    hidden = [str(other) for other in others if other.parent != own and not path.samefile(other)]
    return f" (hides {', '.join(hidden)})" if hidden else ""


def _description(profile: Path) -> str:
    """Return what a profile says of itself, or why it cannot be used."""
    problems = Problems()
    try:
        description = profiles.load(str(profile), "", problems, elsewhere=True).description
        problems.raise_if_any()
    except KitError as error:
        wrong = [
            f"{it.where}: {it.problem}" for it in error.problems if it not in problems.warnings
        ]
        return f"not to be used: {'; '.join(wrong)}"
    return " ".join(description.split())


def _show(start: Start) -> None:
    where = f", and {start.site.node.name} of it" if start.site.node else ""
    print(f"kit: looked at {start.chosen.title}{where}")
    decisions = start.chosen.decisions
    shown = [
        (f"  {title}", key, decisions[key]) for key, title in TITLES.items() if key in decisions
    ]
    tables.show(
        [(title, it.value or NO_VALUE[key], f"{it.how}: {it.why}") for title, key, it in shown]
    )


def _say_asked(node: str) -> None:
    doing = f"asking {node} what it has, with a job of a few seconds"
    messages.note(f"{doing}; to skip it: kit init --no-look")


def _agrees(problem: str) -> bool:
    return messages.confirm(f"kit: {problem}; replace it?")
