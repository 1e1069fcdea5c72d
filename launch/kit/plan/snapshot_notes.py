"""Tell the user which code of a job is no copy, and why."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import accumulate

from kit.config import image_files
from kit.config.job import Job
from kit.files import safe_read, safe_write
from kit.plan import file_words, key_files
from kit.plan.source_files import Sources, copied_behind


def why_not_found(script: str) -> str:
    """Return why kit knows no file of the working directory that the job names."""
    if unread := file_words.unread(script):
        return f"kit finds no files in the script: {unread}"
    if file_words.changes_folder(script):
        way = "for a folder of the project, write `workdir: DIR` in place of `cd DIR`"
        return f"the script changes its folder, and kit freezes no relative name in it; {way}"
    return f"the {'script' if script else 'command'} names no file of the working directory"


def why_not_copied(named: Iterable[str], sources: Sources, made: dict[str, str]) -> str:
    """Return why no file that the job names is copied; made: {file: key of lines that write it}."""
    named = set(named)
    if notes := _made(made):
        return "; ".join(notes)
    if keys := named & set(sources.keys):
        return key_files.NOT_COPIED.format(min(keys))
    if linked := [name for name in named if safe_write.is_behind_link(sources.root, name)]:
        return f"{min(linked)} is in a linked folder, and kit copies only the link"
    may_be_written = named - sources.tracked
    if may_be_written and named <= set(sources.names):
        return f"{min(may_be_written)} may be what the command writes"
    for folder in (image_files.FOLDER, "runs"):
        if inside := [name for name in named if name.startswith(f"{folder}/")]:
            return f"{min(inside)} is in {folder}/, of which kit copies only code that git tracks"
    return "git or .kitignore ignores what the command names"


def of_copy(job: Job, sources: Sources, files: Iterable[str], made: dict[str, str]) -> list[str]:
    """Return what to know of a copy of these files; made: {file: key of lines}, as above."""
    names = set(sources.names) - made.keys()
    started = (note for name in files for note in _started(sources.root, name, names))
    linked = _linked(sources.root, names)
    live = _live_words(job.script)
    return [*sources.notes, *linked, *started, *_made(made), *_unread(job), *live]


def of_live(read: set[str], sources: Sources) -> list[str]:
    """Return a note about files that the command reads, and that git, or kit itself, passes over.

    What submits one job after another may write the same file anew for each. Not of what
    .kitignore names, alone or by its folder: that is the way to have such a file live.
    """
    note = "not in the snapshot of the code, so the job reads what is there when it runs"
    left_out = {*sources.left_out}
    named = [
        name
        for name in read - {*sources.names}
        if left_out.isdisjoint(accumulate(name.split("/"), "{}/{}".format))
        and name.endswith(file_words.ENDINGS)  # and no .venv/bin/python
    ]
    return [f"{note}: {key_files.shown(named)}"] if named else []


def _linked(root: str, names: set[str]) -> list[str]:
    """Return a note about links to code that is not copied: it can change until the job runs."""
    real_root = os.path.realpath(root)
    found = [
        name
        for name in sorted(names)
        if os.path.islink(place := os.path.join(root, name))
        and (name.endswith(file_words.ENDINGS) or os.path.isfile(f"{place}/__init__.py"))
        and not copied_behind(real_root, names, name)
    ]
    note = "links to code that is not in the snapshot stay links, and that code is live"
    return [f"{note}: {key_files.shown(found)}"] if found else []


def _made(made: dict[str, str]) -> list[str]:
    """Return notes about files that lines of the job write, and which are live for that."""
    # In a script, both lines are before the user's eyes.
    return [
        f"{name} is written by {key}: it is live" for name, key in made.items() if key != "script"
    ]


def _unread(job: Job) -> list[str]:
    """Return notes about lines that may write files, and that kit cannot read."""
    why = {key: file_words.unread(getattr(job, key)) for key in ("setup", "host_setup")}
    return [f"kit finds no files that {key} writes: {text}" for key, text in why.items() if text]


def _live_words(script: str) -> list[str]:
    """Return a note about the first file that a script names behind a `cd`: the live one."""
    words = () if file_words.names_copy(script) else file_words.words(script)
    moved = [word for word in words if file_words.is_of_run(word) and not word.is_placed]
    return [
        f"line {word.line} of the script names {word.path}, which is live, since the script changes"
        ' its folder: the snapshot\'s is "${KIT_CODE}"/ and its path from the working directory'
        for word in moved[:1]
    ]


def _started(root: str, name: str, names: set[str]) -> list[str]:
    """Return a note about the first program that a shell script starts: it is the live one."""
    is_script = name.endswith((".sh", ".bash"))
    text = safe_read.text(os.path.join(root, name)) if is_script else ""
    programs = [] if "KIT_CODE" in text else re.findall(r"[\w./-]+\.py\b", text)
    started = [word for word in programs if os.path.normpath(word) in names][:1]
    return [
        f"{name} is a snapshot, but the {word} that it names is live: "
        f'write "${{KIT_CODE:-.}}"/{os.path.normpath(word)} there'
        for word in started
    ]
