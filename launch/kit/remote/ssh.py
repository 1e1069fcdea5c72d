"""On the laptop: talks to a login node by one connection of the system's ssh, which is shared."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import select
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any, Callable, ClassVar, NoReturn, Optional, TypeVar

from kit.base.errors import KitError
from kit.files import locks

T = TypeVar("T")
CONNECT_S = 10  # for the host to answer; the user may then take their time with a password
PERSIST_S = 600  # how long the connection outlives a command
ANSWER_S = 120.0
SILENCE_S = 60.0  # a stream without a sign of life is broken
SOON_S = 60.0  # an attempt that broke within this time is made once more
UNREACHABLE = 69  # EX_UNAVAILABLE of sysexits.h
SSH_FAILED = 255  # which no command of kit ends with, but programs may
# Whatever the user's own ~/.ssh/config says, these connections carry commands, and nothing else.
_PLAIN = {
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "RemoteCommand": "none",
    "EscapeChar": "none",
    "LogLevel": "ERROR",
    "ConnectTimeout": str(CONNECT_S),
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
}
_INSTALL = {
    "ssh": "apt-get install openssh-client",
    "rsync": "apt-get install rsync, or brew install rsync",
}


class Unreachable(KitError):
    """The host does not answer, or stopped. `begun`: the request may have been carried out."""

    exit_code = UNREACHABLE

    def __init__(self, host: Host, why: str, *, begun: bool) -> None:
        name = host.name
        what = f"the connection to {name} broke" if begun else f"{name} cannot be reached"
        fix = f"see whether this works: ssh {name}; then type the same command again"
        super().__init__(f"{what} ({why}): {host.progress}", fix)
        self.why, self.begun = why, begun


class Host:
    """One login node, as ssh takes its name. `say` shows a line to the user.

    `progress` tells how far the user's command has come, for the errors of a connection.
    """

    # By host, what this command knows of its connection: "" where it is open, else why it failed.
    known: ClassVar[dict[str, str]] = {}

    def __init__(self, name: str, say: Callable[[str], None], progress: str) -> None:
        self.name, self.say, self.progress = name, say, progress

    def ask(self, script: str, text: str = "", timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Return the answer of a bash script, which prints `MARK JSON` where $1 is MARK.

        Raises KitError where the answer is a problem. The script travels on ssh's input, so no list
        of processes shows it; `text` comes behind it, and the script's commands can read it. Asks
        again where the connection broke: every script may run twice.
        """
        answer = self.retried(lambda: self._ask(script, text, timeout_s))
        if "problem" in answer:
            raise KitError(str(answer["problem"]), str(answer.get("fix", "")))
        return answer

    def _ask(self, script: str, text: str, timeout_s: float) -> dict[str, Any]:
        self.connect()
        mark = new_mark()
        # In braces, so that a script that was cut off is no command. The text is no here-document,
        # which bash writes to a file: bash reads a pipe no further than the script goes.
        sent = f"{{ set -- {mark}\n{script}\nexit; }}\n{text}\n"
        try:
            done = run(
                self._command("bash -s"),
                input=sent.encode("utf-8", "surrogateescape"),
                capture_output=True,
                timeout=timeout_s,
                start_new_session=True,  # Ctrl-C ends kit alone, and not the script
            )
        except subprocess.TimeoutExpired:
            self.raise_broken(f"no answer within {timeout_s:.0f} s")
        for line in done.stdout.decode("utf-8", "replace").splitlines():
            if line.startswith(f"{mark} "):  # start-up files of a site may print before it
                with contextlib.suppress(ValueError):
                    return dict(json.loads(line[len(mark) :]))
        self._raise_ended(done.stderr, f"ssh ended with code {done.returncode}")

    def _raise_ended(self, said: bytes, otherwise: str) -> NoReturn:
        """Raise the error of a request that ssh, which said this, did not carry out."""
        if b"Session open refused" in said:
            limit = "allows no more commands at once on one connection (MaxSessions of its sshd)"
            fix = (
                "end one that goes on there, such as kit logs -f; then type the same command again"
            )
            raise KitError(f"{self.name} {limit}: {self.progress}", fix)
        self.raise_broken(last_line(said) or otherwise)

    def raise_broken(self, why: str) -> NoReturn:
        """Raise Unreachable after a request."""
        raise Unreachable(self, why, begun=True) from None

    def retried(self, attempt: Callable[[], T]) -> T:
        """Return what an attempt does; make it once more where the connection breaks soon."""
        begun_s = time.monotonic()
        try:
            return attempt()
        except Unreachable as error:
            if not error.begun or time.monotonic() - begun_s > SOON_S:
                raise
            # After a sleep of the laptop, nobody answers on its connection any more.
            self.say(f"the connection to {self.name} broke ({error.why}); trying again")
        self.forget_connection()
        try:
            return attempt()
        except Unreachable as error:
            self.known[self.name] = error.why
            self.raise_broken(error.why)

    def attach(self, line: str, *, runs_program: bool) -> int:
        """Run a command with the streams and the terminal of this process; return its exit code.

        `runs_program`: a program of the user's gets the input, and may end with any code.
        """
        self.connect()
        is_terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
        # ssh reads ahead: `while read -r id; do kit cancel "$id"; done <ids` would cancel one job.
        stdin = None if runs_program or sys.stdin.isatty() else subprocess.DEVNULL
        sys.stdout.flush()
        sys.stderr.flush()
        words = self._command(line, RequestTTY="force" if is_terminal else "no")
        code = run(words, stdin=stdin).returncode
        if code == SSH_FAILED and not (runs_program and self._is_open()):
            self.raise_broken("ssh ended with code 255")
        return code

    def stream(self, line: str) -> Generator[bytes, None, None]:
        """Yield the whole lines that a command prints; raise Unreachable at their end.

        A silent command is ended: after a laptop's sleep nobody answers on its connection.
        """
        self.connect()
        nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
        with subprocess.Popen(
            self._command(line), stdin=nothing, stdout=pipe, stderr=pipe, start_new_session=True
        ) as ssh:
            assert ssh.stdout and ssh.stderr
            rest = b""
            try:
                while select.select([ssh.stdout], [], [], SILENCE_S)[0]:
                    if not (chunk := os.read(ssh.stdout.fileno(), 1 << 16)):
                        break
                    *lines, rest = (rest + chunk).split(b"\n")
                    yield from lines
            finally:
                ssh.kill()
            self._raise_ended(ssh.stderr.read(), "it ended")

    # ---------------------------------------------------------------- the connection

    def connect(self) -> None:
        """Open the connection unless it is open. A failure here is before any request."""
        if self.name not in self.known:
            with locked(self._socket().name):  # else one of two connections would be left over
                self.known[self.name] = "" if self._is_open() else self._open()
        if why := self.known[self.name]:  # nor is such a host asked again
            raise Unreachable(self, why, begun=False)

    def _open(self) -> str:
        """Open the connection. Return "", or why that failed."""
        with contextlib.suppress(OSError):
            self._socket().unlink()  # of a connection that was killed
        with tempfile.TemporaryFile() as said:
            # Not a pipe: the connection stays behind and would hold it open.
            own = {"ControlMaster": "yes", "ControlPersist": str(PERSIST_S)}
            errors: Optional[IO[bytes]] = said
            if sys.stdin.isatty():
                own |= self._for_a_person()
                errors = None if sys.stderr.isatty() else said
            words = [*self.ssh(**own), "-N", "-f", "--", self.name]
            code = run(words, stdin=subprocess.DEVNULL, stdout=said, stderr=errors).returncode
            said.seek(0)
            return (last_line(said.read()) or f"ssh ended with code {code}") if code else ""

    def _for_a_person(self) -> dict[str, str]:
        """Return options of ssh for a login with a password or a second factor."""
        done = run(["ssh", "-G", "--", self.name], stdin=subprocess.DEVNULL, capture_output=True)
        # The limit would include the time in which the user types the code for the jump host.
        is_behind = re.search(rb"^proxy(jump|command) ", done.stdout, re.MULTILINE)
        # What to do for a second factor is said at this level, and only the prompt at a lower one.
        return {"LogLevel": "INFO", **({"ConnectTimeout": "none"} if is_behind else {})}

    def _is_open(self) -> bool:
        if not self._socket().exists():
            return False
        words = [*self.ssh(), "-O", "check", "--", self.name]
        nothing = subprocess.DEVNULL
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = run(words, stdin=nothing, stdout=nothing, stderr=nothing, timeout=10)
            return done.returncode == 0
        return False

    def forget_connection(self) -> None:
        """Open the connection anew when it is needed next."""
        self.known.pop(self.name, None)

    def _command(self, line: str, **options: str) -> list[str]:
        return [*self.ssh(**options), "--", self.name, line]

    def ssh(self, **own: str) -> list[str]:
        """Return ssh with its options, and these."""
        options = {
            **_PLAIN,
            "RequestTTY": "no",
            "ControlPath": str(self._socket()),
            "ControlMaster": "no",
            # Without a terminal there is nobody to type a password or the code of a second factor.
            "BatchMode": "no" if sys.stdin.isatty() else "yes",
            **own,
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return ["ssh", "-a", "-x", *words]

    def _socket(self) -> Path:
        # Short: a socket's path has at most 103 characters, and ssh adds 17 while it makes it.
        digest = hashlib.sha256(self.name.encode("utf-8", "surrogateescape")).hexdigest()
        return sockets() / digest[:16]


def run(words: list[str], **how: Any) -> subprocess.CompletedProcess[bytes]:
    """Run ssh or rsync. Raise KitError where it is not installed."""
    try:
        return subprocess.run(words, **how)
    except FileNotFoundError:
        raise KitError(
            f"{words[0]} is not installed here", f"install it: {_INSTALL[words[0]]}"
        ) from None


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Let one process of this machine at a time do something."""
    with open(sockets() / f"{name}.lock", "a") as file:
        locks.take(file.fileno())
        yield


def sockets() -> Path:
    """Return the folder of the sockets: who can open one of them is this user on the login node."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    place = Path("/tmp", f"kit-ssh-{os.getuid()}")  # noqa: S108
    if base and len(base) < 60 and os.access(base, os.W_OK):
        place = Path(base, "kit")
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
    facts = place.lstat()
    is_own = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
    if not is_own or facts.st_mode & 0o077:
        problem = f"{place} is not a folder that only you can read, and kit keeps connections there"
        raise KitError(problem, f"remove it, or: chmod 700 {place}")
    return place


def new_mark() -> str:
    """Return a word that a login node prints before its answer, and nobody else does."""
    return f"kit-{secrets.token_hex(8)}"


def last_line(output: bytes, but: str = "\0") -> str:
    """Return the last line of an output, if possible one that does not start with `but`."""
    text = output.decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith(but)]
    return (own or lines or [""])[-1][:300]
