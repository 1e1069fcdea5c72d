"""On the laptop: runs a command of kit on the login node, and shows its output here.

`attend` is for commands that outlive the connection: it opens a broken one again, and goes on
where it was. `attach` is for commands that end with it, and gives them this terminal.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Callable, Optional

from kit.base import signals
from kit.base.errors import KitError
from kit.remote import ssh
from kit.remote.install import Copy
from kit.remote.ssh import Unreachable

# For a connection to come back: the command goes on, and a laptop's lid may be closed.
PATIENCE_S = 3600.0
AGAIN_S = 2.0  # until the next try
# These tell the command on the other machine what the terminal is like.
_OF_TERMINAL = ("TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "KIT_TRACEBACK")


@dataclass(frozen=True)
class Request:
    """A command of kit for the login node."""

    words: list[str]
    workdir: str
    # Variables of this shell, and the values of secrets.
    environment: dict[str, str] = field(default_factory=dict)
    # {folder: {file: text}} for files that belong to no project.
    given: dict[str, dict[str, str]] = field(default_factory=dict)
    clusters: str = ""  # the folder in `given` that holds the profile
    work: str = ""  # the project's folder, if its files have just come
    stays: bool = False  # it goes on when nobody follows it
    call: str = field(default_factory=lambda: secrets.token_hex(8))


Show = Callable[[str, bytes], None]  # gets "out" or "err", and what a command printed there
NoteRun = Callable[[dict[str, Any]], None]  # gets a run that a command recorded


def begin(copy: Copy, request: Request) -> None:
    """Start a command, unless the same request has started it before."""
    what = f"kit {request.words[0]} has not begun, or goes on"
    copy.host.progress = f"{what}: type the same command again"
    copy.ask("begin", **_values(copy, request))


def attend(copy: Copy, request: Request, show: Show, note_run: NoteRun) -> int:
    """Show the output of a command that has begun until it ends.

    Passes Ctrl-C on, calls `note_run` with each run, and returns the command's exit code.
    """
    what = f"kit {request.words[0]} continues there"
    copy.host.progress = f"{what}: type the same command again to see it"
    code = _Following(copy, request.call, show, note_run).until_end()
    with suppress(KitError):
        copy.ask("finish", folder=copy.folder, call=request.call)
    return code


def attach(copy: Copy, request: Request, *, runs_program: bool = False) -> int:
    """Run a command with the streams and the terminal of this process; return its exit code."""
    values, held = _values(copy, request), {"folder": copy.folder, "call": request.call}
    if request.environment:  # which no list of processes is to show
        copy.ask("hold", **values)
        line = copy.line("become held", **held)
    else:
        line = copy.line("become", **values)
    copy.host.progress = f"what kit {request.words[0]} did there is not known"
    return copy.host.attach(line, runs_program=runs_program)


def _values(copy: Copy, request: Request) -> dict[str, Any]:
    terminal = {name: os.environ[name] for name in _OF_TERMINAL if name in os.environ}
    if sys.stdout.isatty():
        size = os.get_terminal_size(sys.stdout.fileno())
        terminal = {"COLUMNS": str(size.columns), "LINES": str(size.lines), **terminal}
        if "NO_COLOR" not in terminal:
            terminal.setdefault("FORCE_COLOR", "1")
    environment = {**terminal, **request.environment}
    own = {"environment": environment, "folder": copy.folder, "history": copy.history}
    return {**asdict(request), **own}


class _Following:
    """Shows the output of a command, through connections that break."""

    def __init__(self, copy: Copy, call: str, show: Show, note_run: NoteRun) -> None:
        self.copy, self.call, self.show, self.note_run = copy, call, show, note_run
        self.offset = 0  # in the spool: what came before it is shown
        self.lost_s: Optional[float] = None

    def until_end(self) -> int:
        """Show all of the output, and return the exit code.

        Raises Unreachable where the connection stays broken, KitError where the command was killed.
        """
        with _signals_passed_on(self._tell):
            while True:
                try:
                    return self._follow()
                except Unreachable as error:
                    self._wait(error)

    def _tell(self, number: int) -> None:
        with suppress(KitError):
            self.copy.ask("tell", folder=self.copy.folder, call=self.call, signal=number)

    def _wait(self, error: Unreachable) -> None:
        host = self.copy.host
        host.forget_connection()
        if self.lost_s is None:
            self.lost_s = time.monotonic()
            what = "trying again; what runs there continues meanwhile"
            host.say(f"connection to {host.name} lost ({error.why}); {what}")
        if time.monotonic() - self.lost_s > PATIENCE_S:
            host.raise_broken(error.why)
        time.sleep(AGAIN_S)

    def _follow(self) -> int:
        mark = ssh.new_mark()
        call = {"call": self.call, "folder": self.copy.folder, "offset": self.offset}
        command = self.copy.line("follow", **call, mark=mark)
        with closing(self.copy.host.stream(command)) as lines:
            while next(lines) != mark.encode():
                pass  # a site's start-up files may print some, too
            while "exit" not in (said := json.loads(line := next(lines))):
                self._take(said)
                self.offset += len(line) + 1 if said else 0
            self._take(said)
            return int(said["exit"])

    def _take(self, said: dict[str, Any]) -> None:
        host = self.copy.host
        if self.lost_s is not None:
            self.lost_s = None
            host.say(f"{host.name} answers again")
        if "is_killed" in said:
            limits = "some limit what login nodes may do; then the same command again"
            fix = f"some sites end the processes that users leave behind, and {limits}"
            raise KitError(f"the command on {host.name} was killed there", fix)
        if "is_gone" in said:
            why = "another terminal has shown its end, or it ended days ago"
            problem = f"nothing is left of the output of this command on {host.name}: {why}"
            raise KitError(problem, "see what it made: kit status, kit images")
        if "run" in said:
            self.note_run(said["run"])
        for name in ("out", "err"):
            if name in said:
                self.show(name, said[name].encode("utf-8", "surrogateescape"))


@contextmanager
def _signals_passed_on(tell: Callable[[int], None]) -> Iterator[None]:
    """Pass Ctrl-C and TERM on to the command on the other machine, and wait for its end.

    The third one ends kit here.
    """
    received: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        received.append(number)
        if len(received) > 2:
            raise KeyboardInterrupt
        threading.Thread(target=tell, args=(number,), daemon=True).start()

    with signals.handled(pass_on, signal.SIGINT, signal.SIGTERM):
        yield
