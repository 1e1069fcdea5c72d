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

# What init decides: its title, and the word for a decision without a value.
DECISIONS = {
    "folder": ("folder", ""),
    "program": ("program", ""),
    "partition": ("partition", ""),
    "shape": ("ranks", ""),
    "account": ("account", "Slurm's own choice"),
    "runtime": ("container", "none"),
    "image": ("image", "none yet"),
    "gpu_directive": ("GPUs asked by", "not at all"),
    "scratch": ("node's disk", TEMPORARY),
    "fabric": ("network", "Ethernet"),
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

    def agrees(problem: str) -> bool:
        return force or messages.confirm(f"kit: {problem}; replace it?")

    for line in init.write(start, agrees if force or sys.stdin.isatty() else None):
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
    rows = []
    for key, (title, otherwise) in DECISIONS.items():
        if found := start.chosen.decisions.get(key):
            rows.append((f"  {title}", found.value or otherwise, f"{found.how}: {found.why}"))
    tables.show(rows)


def _say_asked(node: str) -> None:
    doing = f"asking {node} what it has, with a job of a few seconds"
    messages.note(f"{doing}; to skip it: kit init --no-look")
