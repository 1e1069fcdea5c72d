"""kit import: a job file of a batch script."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

from kit.base import formats
from kit.base.errors import KitError, UsageError
from kit.cli import messages
from kit.cli.app import START, command
from kit.cli.options import Json, argument, flag, option
from kit.files import full_disk, replace
from kit.importing import importer
from kit.importing.draft import CARRIED, DECIDE, LEFT_OUT
from kit.importing.importer import Imported


@command(START, "kit import old.sbatch", "kit import old.sbatch --output job.yaml", name="import")
def import_(
    script: Annotated[str, argument("SCRIPT", "The batch script.")],
    output: Annotated[
        Optional[str], option("--output", "FILE", "The job file to write.", "the screen")
    ] = None,
    force: Annotated[bool, flag("--force", "Replace an existing file.")] = False,
    as_json: Json = False,
) -> None:
    """Turn a batch script into a job file, and list what you have to decide.

    kit reads the script and does not run it. Each of its lines is in the job file: as a key, or in
    a comment with the reason.
    """
    found = importer.read(Path(script), os.environ)
    output = None if output == "-" else output
    if output:
        _write(Path(output), found.job, force=force)
    if as_json:
        print(messages.json_text(_as_json(found, output)))
        return
    if not output:
        print(found.job, end="")
    sys.stdout.flush()
    for line in _report(found, output):
        print(line, file=sys.stderr)


def _write(path: Path, text: str, *, force: bool) -> None:
    """Write the job file whole: a full disk costs neither a half one nor the old one."""
    if os.path.lexists(path) and not force:
        fix = "choose another name, or replace it by --force"
        raise UsageError(f"{path} exists", fix, where="--output")
    try:
        if path.exists() and not path.is_file():  # such as /dev/stdout
            path.write_text(text, encoding="utf-8")
        else:  # of a link, the file that it leads to
            mode = path.stat().st_mode & 0o777 if path.exists() else replace.usual_mode()
            replace.text(Path(os.path.realpath(path)), text, mode)
    except OSError as error:
        fix = full_disk.fix(error, "name another file, in a folder that you can write to")
        problem = f"cannot write {path}: {error.strerror}"
        raise KitError(problem, fix, where="--output") from None


def _counts(found: Imported) -> dict[str, int]:
    """Count the lines that are carried as they are, and what the two lists have."""
    listed = [entry.kind for entry in found.entries]
    counts = {kind: listed.count(kind) for kind in (DECIDE, LEFT_OUT)}
    return {CARRIED: found.kinds.count(CARRIED), **counts}


def _report(found: Imported, output: Optional[str]) -> list[str]:
    counts = _counts(found)
    wrote = f"wrote {output}: " if output else ""
    carried = f"{formats.number(counts[CARRIED], 'line')} carried"
    open_ones = [entry for entry in found.entries if entry.kind == DECIDE]
    return [
        f"kit: {wrote}{carried}, {counts[DECIDE]} to decide, {counts[LEFT_OUT]} not needed",
        *(f"kit: line {entry.first}: {entry.reason}" for entry in open_ones),
    ]


def _as_json(found: Imported, output: Optional[str]) -> dict[str, Any]:
    return {
        "job": found.job,
        "output": output,
        **{kind.replace(" ", "_"): count for kind, count in _counts(found).items()},
        "lines": [entry._asdict() for entry in found.entries],
    }
