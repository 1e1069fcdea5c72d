"""Make a job file of a batch script. The script is read, and never run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kit.base import bash_tree, redact
from kit.base.errors import UsageError
from kit.config import yaml_source
from kit.files import safe_read
from kit.importing import choice, containers, header, job_text, slurm_numbers
from kit.importing.draft import Draft, LedgerEntry
from kit.importing.header import GivenOptions
from kit.importing.holes import HOLE
from kit.importing.scope import Scope
from kit.importing.starters import Starters
from kit.importing.statements import Reader

_OTHER_SHELLS = re.compile(r"#!.*\b(t?csh|zsh|fish|python[0-9.]*|perl|Rscript|julia)\b")

_SHELLS_OPTIONS = re.compile(
    r"#!\s*\S*?(?:/env (?:-S )?)?(?:ba|k|da)?sh[ \t]+(-\S.*?)[ \t]*$", re.MULTILINE
)
_COMMENT = (
    "bash ends the command at this comment, and the words behind it are another command: see which"
    " of them the program is to have"
)


class Imported(NamedTuple):
    job: str  # the text of the job file
    entries: list[LedgerEntry]
    kinds: list[str]  # of each line of the script; "" for an empty one and for a comment


def read(path: Path, environment: Mapping[str, str]) -> Imported:
    """Return the job file of a batch script. Paths may have the variables of the environment."""
    return convert(_text(path), path.name, environment)


def convert(text: str, name: str, environment: Mapping[str, str]) -> Imported:
    """Return the job file of a batch script's text."""
    if HOLE.search(text):
        fix = "remove them: they have no meaning that is agreed on"
        raise UsageError("contains characters for private use", fix, where=name)
    text = text.replace("\r\n", "\n")
    draft = Draft(text.split("\n"))
    given = header.read(draft)
    known = {key: environment[key] for key in ("HOME", "USER") if environment.get(key)}
    scope = Scope({**known, **draft.env}, slurm_numbers.of_header(draft, given), environment)
    _read_container(given, draft, scope)
    spans = []
    if options := _SHELLS_OPTIONS.match(text):
        way = "kit's script has options of its own; `source` your profile in `host_setup` for -l"
        draft.left_out((1, 1), f"{options[1]}: {way}")
    other = _OTHER_SHELLS.match(text)
    if other:
        draft.decide(
            (1, 1), f"kit import reads bash and sh, not {other[1]}: write the rest by hand"
        )
    else:
        statements = bash_tree.parse(text, name)
        for line in filter(None, map(bash_tree.comment_inside, bash_tree.descend(statements))):
            draft.decide((line, line), _COMMENT)
        reader = Reader(draft, scope)
        reader.read(statements)
        choice.finish(reader)
        header.leave_requeue(draft)
        spans = [bash_tree.span(node) for node in statements]
    draft.close(spans)
    draft.hide()
    job = redact.hide_tokens(job_text.render(draft, name))
    kinds = [draft.kind_of(number) for number in range(1, len(draft.lines) + 1)]
    entries = sorted(draft.entries, key=lambda entry: entry.first)
    return Imported(job, entries, kinds)


def _text(path: Path) -> str:
    try:
        content = safe_read.start(path, yaml_source.MOST_BYTES + 1)
    except OSError as error:
        fix = "name a batch script: kit import old.sbatch"
        raise UsageError(f"cannot be read: {error.strerror}", fix, where=str(path)) from None
    if len(content) > yaml_source.MOST_BYTES:
        problem = f"is longer than {yaml_source.MOST_BYTES // 10**6} MB"
        raise UsageError(problem, "put data into a file of its own", where=str(path))
    for number, line in enumerate(content.split(b"\n"), 1):
        is_comment = line.lstrip().startswith(b"#") and not line.startswith(b"#SBATCH")
        if line.decode("utf-8", "replace").encode() != line and not is_comment:
            command = f"iconv -f latin1 -t utf-8 {shlex.quote(str(path))} >new.sbatch"
            fix = f"convert the script first: {command}"
            raise UsageError("this line is not UTF-8", fix, where=f"{path}:{number}")
    return content.decode("utf-8-sig", "replace")


def _read_container(given: GivenOptions, draft: Draft, scope: Scope) -> None:
    """Give the program the script's container, unless srun starts it in one of its own."""
    options = {name: value for name, (value, _) in given.items() if containers.is_option(name)}
    found = containers.of_slurm(options)
    code = "\n".join(line for line in draft.lines if not line.lstrip().startswith("#"))
    if "--container-image" in code or "--environment" in code:
        for span in draft.container_lines:
            draft.left_out(span, "srun starts the program in a container of its own")
    elif found:
        for span in draft.container_lines:
            draft.carried(span, "image")
        starter = Starters(draft, scope, min(given[name][1] for name in options))
        starter.write_container(found)
        # Then `setup` runs the script's other lines there as often as it did: once.
        draft.is_in_container = draft.nodes * draft.tasks == 1
        if not draft.is_in_container:
            way = "`host_setup` runs outside of it"
            starter.decide(f"the script's lines ran in this container: {way}")
