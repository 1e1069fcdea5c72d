"""A login node: one connection of the system's ssh, which all commands and copies of ten minutes share."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Callable, Optional, TypeVar

from kit import assets
from kit.errors import KitError
from kit.quote import bash_array

T = TypeVar("T")
CONNECT_S = 10  # for the host to answer; the user may then take their time with a password
PERSIST_S = 600  # the connection outlives a command by that
ANSWER_S = 120.0
SOON_S = 60.0  # what broke within that is tried once more
UNREACHABLE = 69  # EX_UNAVAILABLE of sysexits.h
# Whatever the user's own ~/.ssh/config says, these connections carry commands, and nothing else.
_PLAIN = {
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "EscapeChar": "none",
    "LogLevel": "ERROR",
    "ConnectTimeout": str(CONNECT_S),
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
}
# https://download.samba.org/pub/rsync/rsync.1: a socket, a stream or ssh itself broke, or there was no answer.
_RSYNC_CUT = {10, 12, 30, 35, 255}
MARK = ".made-by-kit"  # login_mark in launch/scripts/remote/login.sh
_SSH_FAILED = 255  # which no command of kit ends with
_RSYNC_PARTLY = 23  # not all of the names are there
_RSYNC_VANISHED = 24  # a file was removed while it was looked at


class Unreachable(KitError):
    """The host does not answer, or stopped answering. `begun` is whether what was asked for may have been done."""

    exit_code = UNREACHABLE

    def __init__(self, name: str, why: str, doing: str, *, begun: bool) -> None:
        what = f"the connection to {name} broke" if begun else f"{name} cannot be reached"
        super().__init__(f"{what} ({why}): {doing}", f"see whether this works: ssh {name}; then type the same command again")
        self.name, self.why, self.begun = name, why, begun


# Hosts that did not answer this command, and why: none is waited for twice, and the exit code tells.
missed: dict[str, str] = {}
_open: set[str] = set()  # hosts whose connection this process has seen open


class Host:
    def __init__(self, name: str) -> None:
        self.name = name  # as ssh takes it

    def call(self, function: str, *arguments: str, doing: str, text: str = "", timeout_s: float = ANSWER_S) -> subprocess.CompletedProcess[str]:
        """Calls a function of launch/scripts/remote/login.sh over there, with `text` as its input; once more where the connection broke.

        Every one of them may be called twice: that of a submission finds the job of the first call. Raises Unreachable.
        """
        return self._again(lambda: self._call(function, arguments, doing, text, timeout_s), doing)

    def _again(self, attempt: Callable[[], T], doing: str) -> T:
        begun_s = time.monotonic()
        try:
            return attempt()
        except Unreachable as error:
            if not error.begun or time.monotonic() - begun_s > SOON_S:
                raise
            # A laptop that has slept has a connection which nobody answers any more.
            print(f"kit: the connection to {self.name} broke ({error.why}); trying again", file=sys.stderr, flush=True)
        _open.discard(self.name)
        try:
            return attempt()
        except Unreachable as error:
            missed[self.name] = error.why
            raise Unreachable(self.name, error.why, doing, begun=True) from None

    def _call(self, function: str, arguments: Sequence[str], doing: str, text: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """The values travel as a quoted script on ssh's input: no shell over there, and no list of processes, sees them otherwise."""
        self.connect(doing)
        mark = f"kit-{secrets.token_hex(8)}"
        script = assets.script("remote/login.sh") + (assets.script("remote/whole.sh") if function.startswith("whole::") else "")
        # In braces, so that a line of which the end is missing is no command.
        line = f"{{ login::main {mark} {bash_array([text, function, *arguments])[1:-1]}; exit; }}"
        try:
            done = subprocess.run(
                [*self._ssh(), "--", self.name, "bash -s"],
                input=f"{script}\n{line}\n".encode("utf-8", "surrogateescape"),
                capture_output=True,
                timeout=timeout_s,
                start_new_session=True,  # Ctrl-C ends kit, and not what it has begun over there
            )
        except subprocess.TimeoutExpired:
            raise Unreachable(self.name, f"no answer within {timeout_s:.0f} s", doing, begun=True) from None
        said, errors = done.stdout.decode("utf-8", "surrogateescape"), done.stderr.decode("utf-8", "replace")
        output = said.partition(f"{mark}\n")[2]
        output, end, status = output.rpartition(f"\n{mark} ")
        if not end or not status.strip().isdecimal():
            raise Unreachable(self.name, _last_line(errors) or f"ssh ended with code {done.returncode}", doing, begun=True)
        return subprocess.CompletedProcess([function, *arguments], int(status), output, errors)

    def refuse_foreign(self, folder: Optional[str]) -> None:
        """Raise KitError where kit's folder over there is somebody else's."""
        if folder:
            fix = "name a folder for kit alone by the profile's key `ssh_dir`"
            raise KitError(
                f"{folder} on {self.name} is not kit's: it has other files, and kit did not make it",
                f"{fix}; if an earlier kit made it: ssh {self.name} touch {shlex.quote(f'{folder}/{MARK}')}",
            )

    def run(self, argv: Sequence[str], *, doing: str, text: str = "", timeout_s: float = ANSWER_S) -> subprocess.CompletedProcess[str]:
        """Runs a command over there. Raises FileNotFoundError where there is no such command, as subprocess does."""
        done = self.call("login::slurm", *argv, doing=doing, text=text, timeout_s=timeout_s)
        if done.returncode == 127:
            raise FileNotFoundError(argv[0])
        done.stdout = done.stdout.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # to be printed
        return done

    def attach(self, file: str, *, doing: str) -> int:
        """Runs a script that is over there with the input, the output and the terminal of this process; its exit code. Raises Unreachable."""
        self.connect(doing)
        terminal = sys.stdin.isatty() and sys.stdout.isatty()
        code = subprocess.run([*self._ssh(terminal=terminal), "--", self.name, f"bash {shlex.quote(file)}"]).returncode
        if code == _SSH_FAILED:
            raise Unreachable(self.name, "ssh ended with code 255", doing, begun=True)
        return code

    def send(self, here: Path, there: str, *options: str, doing: str, to: str = "", modes: str = "go=") -> None:
        """Copies a folder's content, or one file under the name `to`, into a folder over there, which exists.

        `modes` is what is changed of the files' modes.
        """
        changed = [f"--chmod={modes}"] if modes else []
        self._rsync([*options, "-rlpt", *changed, f"{here}/" if here.is_dir() else str(here), f"{self.name}:./{to}"], there, doing)

    def send_listed(self, here: Path, there: str, names: Sequence[str], *, doing: str) -> None:
        """Copies these files of a folder into one over there, which exists; none over a newer one, and none in the place of a link.

        A link is not put where something else is. Folders that are there keep their modes.
        """
        pairs = [word for name in names for word in (os.readlink(here / name) if os.path.islink(here / name) else "", name)]
        kept = {names[int(place)] for place in self.call("login::kept", there, *pairs, doing=doing).stdout.split()}
        if kept:
            print(f"kit: what {self.name} has in {there} under these names stays as it is: {', '.join(sorted(kept))}", file=sys.stderr, flush=True)
        listed = "".join(f"{name}\0" for name in names if name not in kept)
        options = ["--from0", "--files-from=-", "--no-implied-dirs", "--update", "-lpt", "--chmod=go="]
        self._rsync([*options, f"{here}/", f"{self.name}:./"], there, doing, listed)

    def fetch(self, there: str, here: Path, *options: str, doing: str, names: Sequence[str] = ()) -> None:
        """Copies the content of a folder over there, or what `names` names in it, into a folder here."""
        listed = "".join(f"{name}\0" for name in names)
        more = ["--from0", "--files-from=-", "-r"] if names else []
        # -K: a folder here that the user moved, and left a link to, is written to where it is now.
        self._rsync([*options, *more, "-rtK", f"{self.name}:./", f"{here}/"], there, doing, listed, {_RSYNC_PARTLY})

    def _rsync(self, arguments: list[str], there: str, doing: str, listed: str = "", also: Collection[int] = ()) -> None:
        self._again(lambda: self._rsync_once(arguments, there, doing, listed, also), doing)

    def _rsync_once(self, arguments: list[str], there: str, doing: str, listed: str, also: Collection[int]) -> None:
        self.connect(doing)
        # Whether rsync quotes a path for the shell over there depends on its version; what it starts there, it never quotes.
        start = f"cd {shlex.quote(there)} && umask 077 && rsync"
        command = ["rsync", "--timeout=60", "-e", shlex.join(self._ssh()), f"--rsync-path={start}", *arguments]
        try:
            done = subprocess.run(command, input=listed.encode("utf-8", "surrogateescape"), capture_output=True, start_new_session=True)
        except FileNotFoundError:
            raise KitError("rsync is not installed here", "install it: apt-get install rsync, or brew install rsync") from None
        errors = done.stderr.decode("utf-8", "replace")
        if "not found" in errors and "rsync" in errors:
            raise KitError(f"rsync is not installed on {self.name}", "ask its administrators for it")
        if "No such file or directory" in errors and "cd: " in errors:
            raise KitError(f"{self.name} has no folder {there}", "was it removed there? submit the job again")
        if done.returncode in _RSYNC_CUT or done.returncode < 0:
            raise Unreachable(self.name, _last_line(errors, but="rsync") or f"rsync ended with code {done.returncode}", doing, begun=True)
        if done.returncode not in (0, _RSYNC_VANISHED, *also):
            raise KitError(f"rsync with {self.name} failed: {_last_line(errors)}", f"{doing}; free space and rights there: df -h {shlex.quote(there)}")

    # ---------------------------------------------------------------- the connection

    def connect(self, doing: str) -> None:
        """Opens the connection where it is not open. Whatever fails here, nothing has been asked for yet."""
        if self.name in missed:
            raise Unreachable(self.name, missed[self.name], doing, begun=False)
        if self.name in _open:
            return
        with self._alone():
            if self._is_open():
                _open.add(self.name)
                return
            with contextlib.suppress(OSError):
                self._socket().unlink()  # of a connection that was killed
            with tempfile.TemporaryFile() as said:
                command = [*self._ssh(master=True), "-N", "-f", "--", self.name]
                try:
                    # Not a pipe: the connection stays behind and would hold it open.
                    status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said).returncode
                except FileNotFoundError:
                    raise KitError("ssh is not installed here", "install it: apt-get install openssh-client") from None
                said.seek(0)
                words = said.read().decode("utf-8", "replace")
        if status:
            missed[self.name] = _last_line(words) or f"ssh ended with code {status}"
            raise Unreachable(self.name, missed[self.name], doing, begun=False)
        _open.add(self.name)

    def _is_open(self) -> bool:
        if not self._socket().exists():
            return False
        nothing = subprocess.DEVNULL
        try:
            return subprocess.run([*self._ssh(), "-O", "check", "--", self.name], stdin=nothing, stdout=nothing, stderr=nothing, timeout=10).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def _ssh(self, *, master: bool = False, terminal: bool = False) -> list[str]:
        options = {**_PLAIN, "RequestTTY": "force" if terminal else "no", "ControlPath": str(self._socket()), "ControlMaster": "yes" if master else "no"}
        if master:
            options["ControlPersist"] = str(PERSIST_S)
        # Without a terminal there is nobody to type a password or the code of a second factor.
        options["BatchMode"] = "no" if sys.stdin.isatty() else "yes"
        return ["ssh", "-a", "-x", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]

    def _socket(self) -> Path:
        import hashlib

        # Short: a socket's path has at most 103 characters, and ssh adds 17 while it makes it.
        return sockets() / hashlib.sha256(self.name.encode("utf-8", "surrogateescape")).hexdigest()[:16]

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Two that open a connection at once would leave one of them behind, for which nobody ever asks."""
        import fcntl

        with open(f"{self._socket()}.lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def sockets() -> Path:
    """The folder of the connections' sockets: whoever can open one of them is this user on the login node."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    place = Path(base, "kit") if base and len(base) < 60 and os.access(base, os.W_OK) else Path("/tmp", f"kit-ssh-{os.getuid()}")  # noqa: S108
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
    facts = place.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise KitError(f"{place} is not a folder of yours alone, and connections are kept there", f"remove it, or: chmod 700 {place}")
    return place


def _last_line(text: str, but: str = "\0") -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith(but)]
    return (own or lines or [""])[-1][:300]
