"""Compare two runs by their run directories: plan, variables, image, versions, code."""

from __future__ import annotations

import difflib
import filecmp
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from kit.base import redact
from kit.files import safe_read, typed_json
from kit.plan import key_files, run_paths
from kit.plan.run_paths import RunPaths
from kit.runs import events, run_dir, run_record, sums
from kit.slurm import task_numbers

MOST_LINES = 200  # of one file
MOST_BYTES = 1 << 20
# Not the run's own doing, or compared elsewhere.
_ELSEWHERE = {
    *("run_dir", "env", "mounts", "image", "fingerprint", "sha256", "packages"),
    *("text", "bad_nodes", "why_runtime", "left_out"),
}


def between(first: Path, second: Path) -> dict[str, list[str]]:
    """Return {what: lines} of what differs, without the values of secrets."""
    one, two = Side(first), Side(second)
    sections = {
        "plan": _changes(one.decisions(), two.decisions()),
        "variables": _changes(one.variables(), two.variables(), hides=True),
        "image": _changes(one.image(), two.image()),
        "packages": _changes(one.packages(), two.packages()),
        "versions": _changes(one.versions(), two.versions()),
        "cluster profile": _lines(one.plan.profile.text, two.plan.profile.text),
        "machines": _machines(one, two),
        "code": _code(one, two),
        "edited by hand": _edited(one, two),
    }
    return {
        title: lines if title == "variables" else [redact.hide_value(line) for line in lines]
        for title, lines in sections.items()
        if lines
    }  # variables are hidden one by one


def not_compared(first: Path, second: Path) -> str:
    """Return what nobody can compare of two runs, as a line; empty where all was compared."""
    one, two = Side(first), Side(second)
    found = []
    if names := [side.name for side in (one, two) if side.is_live]:
        who = "both" if len(names) == 2 else names[0]
        found = [f"code: {who} ran live, which is not compared (keep a copy: --code snapshot)"]
    elif names := [side.name for side in (one, two) if not side.has_code]:
        found = [f"code: the copy of {' and '.join(names)} is gone, or you cannot read it"]
    containers = (side.plan.container for side in (one, two))
    images = {str(each.image) for each in containers if each.is_known_by_name}
    found += [f"image: {image} is known by its name alone" for image in sorted(images)]
    return "; ".join(found)


class Side:
    """What a run directory says, with its own path taken out of every value."""

    def __init__(self, folder: Path) -> None:
        self.paths = RunPaths(folder)
        self.record = run_dir.load(folder)
        self.plan = run_record.plan_of(self.record)
        self.is_live = self.record.get("code", {}).get("live", True)
        self.name = self.paths.folder.name

    @property
    def has_code(self) -> bool:
        """Return whether its copy of the code is there, for this user: an archive may lack it."""
        return os.access(self.paths.code, os.R_OK | os.X_OK)

    def text(self, name: str) -> str:
        """Return what a script says, or env.sh; nothing where it cannot be read."""
        text = safe_read.source(self.paths.folder / name)
        return text.replace(self.plan.layout.run_dir or "\0", "RUN")

    def edited(self) -> list[str]:
        """Return its scripts that were edited or removed; of a rerun, before that, too."""
        folder, code = self.paths.folder, f"{run_paths.CODE}/"  # which is compared
        written = {name: n for name, n in sums.read(folder).items() if not name.startswith(code)}
        changed = sums.changed(written, sums.find(folder, written))
        names = dict.fromkeys((*self.record.get("edited", ()), *changed))
        return [name for name in names if not name.startswith(code)]

    def _show(self, value: Any) -> str:
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self._show, value))}]"
        own, text = self.plan.layout.run_dir, str(value)
        return "RUN" if text == own else text.replace(f"{own}/", "RUN/")

    def decisions(self) -> dict[str, str]:
        plan, container = self.plan, self.plan.container
        parts = typed_json.plain(plan)
        every = (item for name in parts if name != "header" for item in parts[name].items())
        values = {name: value for name, value in every if name not in _ELSEWHERE}
        values |= {f"sbatch --{option}": value for option, value in plan.header}
        values["secrets"] = [secret[:3] for secret in plan.program.secrets]
        values["notify"] = plan.policy.notify[:3]
        own = plan.layout.run_dir
        values["mounts"] = [mount[:3] for mount in container.mounts if mount.target != own]
        values["code"] = "live" if self.is_live else "snapshot"
        return {name: self._show(value) for name, value in values.items()}

    def variables(self) -> dict[str, str]:
        """Return the variables of the ranks.

        Without a container those of the shell by which they find programs are among them.
        """
        shell = self.record.get("shell", {}).items()
        values = [
            *self.plan.program.env,
            *((f"{name} of the shell", item) for name, item in shell),
            *self._task(),
        ]
        return {name: self._show(value) for name, value in values}

    def _task(self) -> Iterator[tuple[str, str]]:
        """Yield the number and the values of a task that `kit run` or `kit rerun` started alone."""
        array = self.plan.layout.array or ""
        number = (self.record.get("job_id") or "").partition("_")[2] or array
        if not number.isdecimal() or int(number) not in task_numbers.numbers(array):
            return
        yield "SLURM_ARRAY_TASK_ID", number
        place = int(number)
        for name, column in self.plan.program.sweep:
            yield name, column[place] if place < len(column) else ""

    def image(self) -> dict[str, str]:
        container = self.plan.container
        return {
            "image": str(container.image),
            "fingerprint": str(container.fingerprint),
            "image_sha256": str(container.sha256),
        }

    def packages(self) -> dict[str, str]:
        """Return {name: its version and the start of its sha256} of packages beside the image's."""
        found = {}
        for line in self.plan.container.packages.lock:
            package, _, sha256 = line.partition(" --hash=sha256:")
            name, _, version = package.partition("==")
            found[name] = f"{version} ({sha256[:8]})"
        return found

    def versions(self) -> dict[str, str]:
        git = self.record.get("git") or {}
        return {
            "kit": str(self.record.get("kit")),
            "kit's python": str(self.record.get("python")),
            "git": str(git.get("revision")),
        }

    def machines(self) -> str:
        """Return the kernels, drivers and GPUs of the nodes of its jobs; empty if nobody knows."""
        answers = self.paths.log.glob(f"*/{run_paths.EVENTS}/{events.ANSWERS}")
        found = {each.text("machine") for path in answers for each in events.read_file(path)}
        return "; ".join(sorted(found - {""}))

    def patch(self) -> str:
        """Return what differed from git's revision."""
        git = self.record.get("git") or {}
        new = "".join(f"untracked: {name}\n" for name in git.get("untracked", ()))
        return key_files.cut(git.get("diff", "")) + new  # the record may be older than a rule

    def keyrings(self) -> set[str]:
        """Return the files that its secrets name, by their paths in the code."""
        program = self.plan.program
        return {
            os.path.relpath(secret.at, program.workdir or "/")
            for secret in program.secrets
            if secret.source == "file" and secret.at
        }

    def files(self) -> dict[str, Path]:
        found = {}
        for folder, folders, names in os.walk(self.paths.code):
            folders[:] = [name for name in folders if name != "__pycache__"]
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            for name in [*names, *links]:
                path = Path(folder, name)
                found[str(path.relative_to(self.paths.code))] = path
        return found


def _changes(one: dict[str, str], two: dict[str, str], *, hides: bool = False) -> list[str]:
    lines = []
    for name in dict.fromkeys([*one, *two]):
        before, after = one.get(name), two.get(name)
        if before == after:
            continue
        if hides and redact.is_secret(name):
            before, after = (None if value is None else redact.HIDDEN for value in (before, after))
        then, now = ("(not there)" if value is None else value for value in (before, after))
        lines.append(f"{name}: {then} -> {now}")
    return lines


def _machines(one: Side, two: Side) -> list[str]:
    then, now = one.machines(), two.machines()
    return [f"{then} -> {now}"] if then and now and then != now else []


def _code(one: Side, two: Side) -> list[str]:
    if one.is_live or two.is_live:
        lines = _lines(one.patch(), two.patch())
        which = " and ".join(side.name for side in (one, two) if side.is_live)
        known = "so only what git said of it is known; the changes to its revision"
        return [f"live in {which}, {known}:", *lines] if lines else []
    if not (one.has_code and two.has_code):
        return []
    ours, theirs, keyrings = one.files(), two.files(), one.keyrings() | two.keyrings()
    lines = []
    for name in sorted(ours.keys() | theirs.keys()):
        lines += _of_file(name, ours.get(name), theirs.get(name), name in keyrings)
    return lines


def _edited(one: Side, two: Side) -> list[str]:
    """Return which scripts run.json does not know as they are, by which runs are compared."""
    return [
        f"{side.name}: {name} was edited or removed; kit compared run.json, which was not"
        for side in (one, two)
        for name in side.edited()
        if one.text(name) != two.text(name)
    ]


def _of_file(name: str, one: Optional[Path], two: Optional[Path], is_keyring: bool) -> list[str]:
    if one is None or two is None:
        return [f"{name}: only in the {'second' if one is None else 'first'}"]
    if one.is_symlink() or two.is_symlink():
        targets = [os.readlink(path) if path.is_symlink() else "a file" for path in (one, two)]
        return [] if targets[0] == targets[1] else [f"{name}: {targets[0]} -> {targets[1]}"]
    modes = [os.access(path, os.X_OK) for path in (one, two)]
    changed = f"{name}: {'not ' if modes[0] else ''}executable in the second"
    lines = [] if modes[0] == modes[1] else [changed]
    try:
        contents = [safe_read.start(path, MOST_BYTES + 1) for path in (one, two)]
        sizes = [path.stat().st_size for path in (one, two)]
        if filecmp.cmp(one, two, shallow=False):
            return lines
    except OSError as error:
        return [*lines, f"{name}: cannot be compared: {error.strerror}"]
    if is_keyring or any(key_files.among(str(path)[: -len(name)], [name]) for path in (one, two)):
        return [*lines, f"{name}: differs, and looks like a key"]
    if any(b"\0" in content or len(content) > MOST_BYTES for content in contents):
        return [*lines, f"{name}: {sizes[0]} bytes, then {sizes[1]}"]
    one_text, two_text = (content.decode("utf-8", "surrogateescape") for content in contents)
    return [*lines, *_lines(one_text, two_text, name)]


def _lines(one: str, two: str, name: str = "") -> list[str]:
    """Return the unified difference of two texts; its size alone where that is long."""
    before, after = one.splitlines(), two.splitlines()
    lines = list(difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", lineterm=""))
    if not lines and one != two:
        return [f"{name}: the ends of its lines differ".lstrip(": ")]
    if len(lines) > MOST_LINES:
        changed = sum(line[:1] in ("+", "-") for line in lines) - 2
        return [f"{name}: {changed} lines differ".lstrip(": ")]
    return lines if name else lines[2:]
