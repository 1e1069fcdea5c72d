"""Runs one step of a build, with all that it says in the log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import IO, Callable, Optional

from kit.errors import KitError

TOOLS_OWN = re.compile(r"(HOME|PATH|TMPDIR)$|(LD|DOCKER|BUILDKIT|BUILDX|CONTAINERS|ENROOT|XDG)_")
SHOWN = 12  # lines of a failure
COLOUR = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]")  # and what else a terminal would act on: ECMA-48, 5.4


def run(
    command: list[str], log: IO[bytes], cwd: Path, env: Optional[dict[str, str]] = None, see: Callable[[str], None] = lambda line: None
) -> tuple[int, list[str]]:
    """(exit code, lines). see: called with each line as it comes. The end of a failure is shown at once."""
    said = []
    environment = {**os.environ, **(env or {})}
    with subprocess.Popen(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL) as process:
        assert process.stdout
        try:
            for raw in process.stdout:
                log.write(raw)
                said.append(COLOUR.sub("", raw.decode("utf-8", "replace")).rstrip())
                see(said[-1])
        except BaseException:
            process.terminate()  # a signal to kit alone, such as a batch system's, would leave it building
            raise
    log.flush()
    if process.returncode:
        for line in [line for line in said if line][-SHOWN:]:
            print(f"  | {line}", file=sys.stderr)
    return process.returncode, said


def hidden(option: str, arguments: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """(words, variables) that give a tool these arguments: their values stay out of process lists.

    But those that the tool itself would read from its environment are words: HOME, PATH and its own.
    """
    words, variables = [], {}
    for name, value in arguments.items():
        if TOOLS_OWN.match(name):
            words += [option, f"{name}={value}"]
        else:
            words += [option, name]
            variables[name] = value
    return words, variables


def must_run(command: list[str], log: IO[bytes], cwd: Path, env: Optional[dict[str, str]] = None) -> None:
    """KitError, with the log's name, where it fails."""
    code, said = run(command, log, cwd, env)
    if "No space left on device" in "\n".join(said):
        raise KitError(f"{command[0]} has no space left", f"free some, or give it another place: TMPDIR=/local kit build; the log: {log.name}")
    if code:
        raise KitError(f"{' '.join(command[:2])} ended with code {code}", f"see the lines above; the log: {log.name}")
