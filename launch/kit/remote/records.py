"""On the laptop: records the runs of each cluster, and commands whose end is not known here."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Any, Optional

from kit.base.errors import UsageError
from kit.config import paths
from kit.config.secrets import Secret
from kit.files import json_lines, locks, notes, safe_read, typed_json

# Then a command that nobody asked about is forgotten, and a cluster is not asked for its runs.
OLD_S = 30 * 86400


@dataclass(frozen=True)
class Record:
    """One run, or a project that was brought (then without `folder`)."""

    cluster: str  # its profile, by name or file
    here: str  # the folder that it was started from
    folder: str = ""  # its run directory on the cluster
    id: str = ""
    name: str = ""
    created_s: float = 0.0
    array: str = ""
    secrets: tuple[Secret, ...] = ()  # of its submission, without their values

    def is_called(self, word: str) -> bool:
        """Return whether a user may mean this run by a word."""
        number, _, task = word.partition("_")
        if word in (self.id or None, self.name, os.path.basename(self.folder), self.folder):
            return bool(self.folder)
        if number == self.id and task.isdecimal():
            return bool(self.array)
        # A path as it would be in the project.
        place = os.path.normpath(os.path.join(self.here, word))
        inside = os.path.relpath(place, self.here)
        is_path = "/" in word and not paths.leads_out(inside)
        return bool(self.folder) and is_path and self.folder.endswith(f"/{inside}")

    def is_of(self, here: str) -> bool:
        """Return whether it was started from a folder, or from one above or below that."""
        place, own = Path(here), Path(os.path.realpath(self.here))
        return place.is_relative_to(own) or own.is_relative_to(place)


def _open_own(file: Path, mode: str) -> IO[bytes]:
    """Open a file that its owner alone can read; what is written to it is one piece."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return open(file, mode, 0, opener=lambda path, flags: os.open(path, flags, 0o600))


def origin(root: str) -> str:
    """Return 16 hex digits that identify a folder of this machine."""
    file = notes.folder() / "origin"
    with _open_own(file, "a+b") as own:
        locks.take(own.fileno())  # another first command may just be writing it
        if not os.fstat(own.fileno()).st_size:
            own.write(secrets.token_hex(16).encode())
    token = safe_read.read(file, 64).decode("ascii").strip()
    return hashlib.sha256(f"{token}\0{root}".encode("utf-8", "surrogateescape")).hexdigest()[:16]


# ---------------------------------------------------------------- runs


def add(record: Record) -> None:
    """Record what is known of a run: the last line about its directory holds."""
    json_lines.append(notes.folder() / "elsewhere.jsonl", typed_json.plain(record))


def add_run(run: dict[str, Any], about: Record, *calls: str) -> None:
    """Record what a line of a cluster's history says of a run that is known, or `calls` made.

    A follower sees the lines of all runs: those of other terminals are about other projects.
    """
    place = (about.cluster, run.get("folder"))
    known = [record for record in records() if (record.cluster, record.folder) == place]
    is_own = run.get("call") in calls
    if known or is_own:
        names = {item.name for item in fields(Record)} - {"cluster", "here", "secrets"}
        facts = {name: value for name, value in run.items() if name in names}
        # A directory that was removed may be used again, with other secrets.
        add(replace(about if is_own else known[0], **facts))


def clusters() -> list[str]:
    """Return the clusters that have recent runs of this machine, or may have one."""
    recent = [record for record in records() if time.time() - record.created_s < OLD_S]
    of_runs = {record.cluster for record in recent if record.folder}
    return sorted(of_runs | {call.cluster for _, call in _calls()})


def records() -> list[Record]:
    """Return all records, the oldest first."""
    lines = json_lines.read(notes.folder() / "elsewhere.jsonl")
    found: dict[tuple[str, str], Record] = {}
    for record in filter(None, map(_record, lines)):
        found[record.cluster, record.folder or f"\0{record.here}"] = record
    return list(found.values())


def _record(facts: dict[str, Any]) -> Optional[Record]:
    if not typed_json.required(Record) <= facts.keys():
        return None
    faults: list[str] = []
    record = typed_json.read(Record, facts, faults)
    return None if {*faults} - {"secrets"} else record  # which another version may write otherwise


def find(word: Optional[str], here: str) -> Optional[Record]:
    """Return the newest run that a word means.

    Without a word, or with an unknown one, returns the last that was started from here.
    """
    known = records()
    if found := _named(known, word, here):
        return found[-1]
    of_here = [record for record in known if record.is_of(here)]
    return max(of_here, key=lambda record: record.created_s, default=None)


def raise_if_unclear(word: Optional[str], here: str) -> None:
    """Raise UsageError where it is anybody's guess which run of other folders a word means."""
    found = _named(records(), word, here)
    places = {(record.cluster, record.here) for record in found}
    if len(places) > 1 and not found[-1].is_of(here):
        each = [f"{run.id or 'not submitted'} in {run.folder} ({run.cluster})" for run in found]
        problem = f"this folder has no run {word}, and several of other folders are called so"
        raise UsageError(problem, f"name its job id or its directory: {', '.join(each)}")


def _named(known: list[Record], word: Optional[str], here: str) -> list[Record]:
    """Return the runs that a word may mean, in their order: those of a folder, if it has any."""
    found = [record for record in known if word is not None and record.is_called(word)]
    return [record for record in found if record.is_of(here)] or found


# ---------------------------------------------------------------- commands without a known end


@dataclass(frozen=True)
class SentCall:
    """A command that was sent to a cluster, with its id there."""

    id: str
    cluster: str
    here: str
    words: list[str] = field(hash=False)
    begun_s: float = 0.0

    @property
    def file(self) -> Path:
        """Return where the call is recorded."""
        return notes.folder() / "calls" / f"{self.id}.json"


@contextmanager
def under_way(call: SentCall) -> Iterator[None]:
    """Record a command until its end is known: after a broken connection the record stays.

    Several terminals may follow one command.
    """
    with _open_own(call.file, "a+b") as note:
        with suppress(OSError):
            fcntl.flock(note, fcntl.LOCK_SH)
        if not os.fstat(note.fileno()).st_size:
            note.write(json.dumps(asdict(call)).encode())
        yield
        forget(call)


def unheard(new: SentCall, *, also_live: bool) -> Optional[SentCall]:
    """Return the earlier call of the same command whose end is not known.

    `also_live` includes one that another terminal follows.
    """
    same = (new.cluster, new.here, new.words)
    for file, call in _calls():
        if (call.cluster, call.here, call.words) == same and (also_live or not _is_followed(file)):
            return call
    return None


def _calls() -> Iterator[tuple[Path, SentCall]]:
    for file in sorted((notes.folder() / "calls").glob("*.json")):
        with suppress(OSError, ValueError, TypeError):
            if time.time() - file.stat().st_mtime > OLD_S:
                file.unlink()
            else:
                yield file, SentCall(**safe_read.mapping(file))


def _is_followed(file: Path) -> bool:
    with suppress(OSError):  # its end may just have become known
        return locks.is_held(file) is True
    return False


def forget(call: SentCall) -> None:
    """Forget a command whose end is known, or that the cluster knows nothing of."""
    call.file.unlink(missing_ok=True)
