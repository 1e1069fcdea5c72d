"""Run the tools of a build, and write their output to its log."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import IO, Callable, NamedTuple

from kit.base.errors import KitError
from kit.base.progress import Note
from kit.files import full_disk

TOOLS_OWN = re.compile(r"(HOME|PATH|TMPDIR)$|(LD|DOCKER|BUILDKIT|BUILDX|CONTAINERS|ENROOT|XDG)_")
SHOWN = 12  # lines of a failure
# Colours and other sequences that a terminal would act on: ECMA-48, 5.4.
COLOUR = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]")


class Steps(NamedTuple):
    folder: Path  # the recipe and its files; each step starts there
    log: IO[bytes]
    note: Note

    def run(
        self,
        command: list[str],
        env: dict[str, str],
        see: Callable[[str], None] = lambda line: None,
    ) -> tuple[int, list[str]]:
        """Return the exit code and the lines, each shown to `see` first.

        Note the last lines of a failure.
        """
        lines: list[str] = []
        # Tools without root hand the umask on to the steps: 077 would close an image's files.
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            umask=0o022,
        ) as process:
            assert process.stdout
            try:
                for raw in process.stdout:
                    self.log.write(raw)
                    lines.append(COLOUR.sub("", raw.decode("utf-8", "replace")).rstrip())
                    see(lines[-1])
            except BaseException:
                process.terminate()  # after a signal to kit alone, it would go on building
                raise
        self.log.flush()
        if process.returncode and (last := list(filter(None, lines))[-SHOWN:]):
            self.note("\n  | ".join(["the last lines of its output:", *last]))
        return process.returncode, lines

    def must_run(
        self,
        command: list[str],
        env: dict[str, str],
        called: str = "",
        where: str = "",
        *,
        unpacks: bool = False,
    ) -> None:
        """Run the command. Raise KitError with the log's name if it fails.

        called: what the user calls the command. where: its place in a recipe. unpacks: it runs
        unsquashfs and shows what that prints.
        """
        code, lines = self.run(command, env)
        # unsquashfs may end with 0 and leave files out; a step's own words prove nothing.
        if (code or unpacks) and full_disk.is_told_in("\n".join(lines)):
            fix = f"free some ({full_disk.LOOK}), or give it another place: TMPDIR=/local kit build"
            raise KitError(f"{command[0]} has no space left", f"{fix}; the log: {self.log.name}")
        if code:
            problem = f"{called or ' '.join(command[:2])} ended with code {code}"
            raise KitError(problem, f"see the lines above; the log: {self.log.name}", where=where)


def hidden(option: str, arguments: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return words and variables that give a tool these arguments, hidden from process lists.

    HOME, PATH and the tool's own variables cannot be hidden: the tool itself would read them.
    """
    words, variables = [], {}
    for name, value in arguments.items():
        if TOOLS_OWN.match(name):
            words += [option, f"{name}={value}"]
        else:
            words += [option, name]
            variables[name] = value
    return words, variables
