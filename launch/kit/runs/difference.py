"""What differs between two runs, by their run directories alone: the plan, the variables, the image, versions, the code."""

from __future__ import annotations

import filecmp
import os
from pathlib import Path
from typing import Any, Optional

from kit import keys, regular, rundir, secret, snapshot
from kit.runs.rerun import folder_of

MOST_LINES = 200  # of one file
MOST_BYTES = 1 << 20
# Not the run's own doing, or compared elsewhere.
_ELSEWHERE = {"run_dir", "why_runtime", "bad_nodes", "left_out", "env", "header", "mounts", "image", "fingerprint", "image_sha256", "remote"}

Pairs = dict[str, tuple[Optional[str], Optional[str]]]


def show(first: str, second: str) -> int:
    """Prints what differs, as diff does; 1 where something does."""
    folders = (folder_of(first), folder_of(second))
    found = between(*folders)
    if not found:
        print(f"kit: {folders[0].name} and {folders[1].name} do not differ")
        return 0
    print(f"--- {folders[0]}\n+++ {folders[1]}")
    for title, lines in found.items():
        print(f"\n{title}:")
        for line in lines:
            line = line if title == "variables" else secret.hide(line)  # those are hidden one by one
            print(f"  {line}".encode("utf-8", "backslashreplace").decode())
    return 1


def between(first: Path, second: Path) -> dict[str, list[str]]:
    """{what: lines}, of what differs alone."""
    one, two = _Run(first), _Run(second)
    sections = {
        "plan": _changes(one.plan(), two.plan()),
        "variables": _changes(one.variables(), two.variables(), is_secret=secret.is_secret),
        "image": _changes(one.image(), two.image()),
        "versions": _changes(one.versions(), two.versions()),
        "cluster profile": _lines(one.text("profile"), two.text("profile")),
        "code": _code(one, two),
    }
    return {title: lines for title, lines in sections.items() if lines}


class _Run:
    """What a run directory says, with its own path taken out of every value."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts = rundir.load(folder)
        self.given: dict[str, Any] = self.facts.get("plan", {})
        self.live = bool(self.facts.get("code", {}).get("live", True))

    def _plain(self, value: Any) -> str:
        own = str(self.given.get("run_dir"))
        if isinstance(value, list):
            return "[" + ", ".join(self._plain(item) for item in value) + "]"
        text = str(value)
        return "RUN" if text == own else text.replace(f"{own}/", "RUN/")

    def text(self, key: str) -> str:
        return str(self.given.get(key, ""))

    def plan(self) -> dict[str, str]:
        found = {name: self._plain(value) for name, value in self.given.items() if name not in _ELSEWHERE and name != "profile"}
        found |= {f"sbatch --{option}": self._plain(value) for option, value in self.given.get("header", [])}
        mounts = [mount[:3] for mount in self.given.get("mounts", []) if mount[1] != self.given.get("run_dir")]
        secrets = [secret[:3] for secret in self.given.get("secrets", [])]
        return {**found, "secrets": self._plain(secrets), "mounts": self._plain(mounts), "code": "live" if self.live else "snapshot"}

    def variables(self) -> dict[str, str]:
        """The job's own and inherited ones, and those of the shell by which ranks without a container find programs and libraries."""
        shell = {f"{name} of the shell": value for name, value in self.facts.get("shell", {}).items()}
        return {name: self._plain(value) for name, value in [*self.given.get("env", []), *shell.items()]}

    def image(self) -> dict[str, str]:
        return {name: str(self.given.get(name)) for name in ("image", "fingerprint", "image_sha256")}

    def versions(self) -> dict[str, str]:
        return {"kit": str(self.facts.get("kit")), "python": str(self.facts.get("python")), "git": str(self._git().get("revision"))}

    def _git(self) -> dict[str, str]:
        return self.facts.get("git") or {}

    def patch(self) -> str:
        """What differed from git's revision."""
        return keys.cut(self._git().get("diff", ""))  # a record of an older kit has them

    def keyrings(self) -> set[str]:
        """The files that its secrets name, by their paths in the code."""
        return {os.path.relpath(secret[2], self.text("workdir") or "/") for secret in self.given.get("secrets", []) if secret[1] == "file" and secret[2]}

    def files(self) -> dict[str, Path]:
        found = {}
        for folder, folders, names in os.walk(self.folder / snapshot.FOLDER):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in [*names, *(name for name in folders if os.path.islink(os.path.join(folder, name)))]:
                path = Path(folder, name)
                found[str(path.relative_to(self.folder / snapshot.FOLDER))] = path
        return found


def _changes(one: dict[str, str], two: dict[str, str], is_secret: Any = lambda name: False) -> list[str]:
    lines = []
    for name in dict.fromkeys([*one, *two]):
        before, after = one.get(name), two.get(name)
        if before == after:
            continue
        if is_secret(name):
            before, after = (None if value is None else secret.HIDDEN for value in (before, after))
        lines.append(f"{name}: {'(not there)' if before is None else before} -> {'(not there)' if after is None else after}")
    return lines


def _code(one: _Run, two: _Run) -> list[str]:
    if one.live or two.live:
        lines = _lines(one.patch(), two.patch())
        which = " and ".join(run.folder.name for run in (one, two) if run.live)
        return [f"live in {which}, so only what git said of it is known; the changes to its revision:", *lines] if lines else []
    ours, theirs, keyrings = one.files(), two.files(), one.keyrings() | two.keyrings()
    lines = []
    for name in sorted(ours.keys() | theirs.keys()):
        lines += _of_file(name, ours.get(name), theirs.get(name), name in keyrings)
    return lines


def _of_file(name: str, one: Optional[Path], two: Optional[Path], is_keyring: bool) -> list[str]:
    if one is None or two is None:
        return [f"{name}: only in the {'second' if one is None else 'first'}"]
    if one.is_symlink() or two.is_symlink():
        targets = [os.readlink(path) if path.is_symlink() else "a file" for path in (one, two)]
        return [] if targets[0] == targets[1] else [f"{name}: {targets[0]} -> {targets[1]}"]
    modes = [os.access(path, os.X_OK) for path in (one, two)]
    lines = [] if modes[0] == modes[1] else [f"{name}: {'not ' if modes[0] else ''}executable in the second"]
    try:
        contents = [regular.start(path, MOST_BYTES + 1) for path in (one, two)]
        sizes = [path.stat().st_size for path in (one, two)]
        if sizes[0] == sizes[1] and contents[0] == contents[1] and (sizes[0] <= MOST_BYTES or filecmp.cmp(one, two, shallow=False)):
            return lines
    except OSError as error:
        return [*lines, f"{name}: cannot be compared: {error.strerror}"]
    if is_keyring or any(keys.among(str(path)[: -len(name)], [name]) for path in (one, two)):
        return [*lines, f"{name}: differs, and looks like a key"]
    if any(b"\0" in content or len(content) > MOST_BYTES for content in contents):
        return [*lines, f"{name}: {sizes[0]} bytes, then {sizes[1]}"]
    one_text, two_text = (content.decode("utf-8", "surrogateescape") for content in contents)
    return [*lines, *_lines(one_text, two_text, name)]


def _lines(one: str, two: str, name: str = "") -> list[str]:
    """The unified difference of two texts; its size alone where that is long."""
    import difflib

    lines = [line.rstrip("\n") for line in difflib.unified_diff(one.splitlines(), two.splitlines(), f"a/{name}", f"b/{name}", lineterm="")]
    if not lines and one != two:
        return [f"{name}: the ends of its lines differ".lstrip(": ")]
    if len(lines) > MOST_LINES:
        changed = sum(line[:1] in ("+", "-") for line in lines) - 2
        return [f"{name}: {changed} lines differ".lstrip(": ")]
    return lines if name else lines[2:]
