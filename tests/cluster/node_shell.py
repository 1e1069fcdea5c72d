"""Long-lived shells on the nodes of the cluster, which run one command after the other: see the program node-shell."""

from __future__ import annotations

import os
import select
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

CLUSTER_SH = Path(__file__).resolve().parent / "cluster.sh"
KILLED = 137  # what `docker exec` ends with when its container is killed


class Gone(Exception):
    """The shell ended; the text is what `docker exec` said to it."""


class Shell:
    """One shell on one node, for one thread at a time."""

    def __init__(self, node: str) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([CLUSTER_SH, "serve", node], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
        self.received = bytearray()

    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        """End the connection; a command that still runs goes on, as after `docker exec`."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()

    def run(self, user: str, argv: Sequence[str], timeout_s: float) -> tuple[int, bytes, bytes]:
        """Return the exit code, stdout and stderr; raise Gone when the shell ends, TimeoutExpired when it takes too long."""
        words = [str(len(argv) + 1), user, *argv]
        request = b"".join(os.fsencode(word) + b"\0" for word in words)
        deadline_s = time.monotonic() + timeout_s
        try:
            assert self.process.stdin
            self.process.stdin.write(request)
            header = self._read_line(deadline_s)
            code, out, err = map(int, header.split())
            return code, self._read(out, deadline_s), self._read(err, deadline_s)
        except BrokenPipeError:
            raise Gone(self._last_words()) from None
        except TimeoutError:
            raise subprocess.TimeoutExpired(list(argv), timeout_s) from None

    def _read_line(self, deadline_s: float) -> bytes:
        while b"\n" not in self.received:
            self._receive(deadline_s)
        return self._take(self.received.index(b"\n") + 1)

    def _read(self, count: int, deadline_s: float) -> bytes:
        while len(self.received) < count:
            self._receive(deadline_s)
        return self._take(count)

    def _take(self, count: int) -> bytes:
        found = bytes(self.received[:count])
        del self.received[:count]
        return found

    def _receive(self, deadline_s: float) -> None:
        assert self.process.stdout
        if not select.select([self.process.stdout], [], [], max(0, deadline_s - time.monotonic()))[0]:
            raise TimeoutError
        data = os.read(self.process.stdout.fileno(), 1 << 20)
        if not data:
            raise Gone(self._last_words())
        self.received += data

    def _last_words(self) -> str:
        assert self.process.stderr
        self.process.wait()
        return self.process.stderr.read().decode(errors="replace")


class Shells:
    """The shells of all nodes. Each is used by one thread at a time, and more are started when more threads ask."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: dict[str, list[Shell]] = {}

    def run(self, node: str, user: str, argv: Sequence[str], timeout_s: float) -> tuple[int, bytes, bytes]:
        """Return exit code, stdout and stderr of a command as `user`: root or ada. A node that does not run: 1 or 137, and why."""
        shell = self._take(node)
        try:
            answer = shell.run(user, argv, timeout_s)
        except Gone as gone:
            code = shell.process.returncode
            shell.close()
            return code if code > 0 else KILLED, b"", str(gone).encode()
        except BaseException:
            shell.close()
            raise
        with self.lock:
            self.idle.setdefault(node, []).append(shell)
        return answer

    def forget(self, node: str) -> None:
        """Close the shells of a node that is about to be killed or started anew."""
        with self.lock:
            shells = self.idle.pop(node, [])
        for shell in shells:
            shell.close()

    def _take(self, node: str) -> Shell:
        with self.lock:
            shells = self.idle.setdefault(node, [])
            while shells:
                if (shell := shells.pop()).alive():
                    return shell
                shell.close()
        return Shell(node)
