"""
`kit` for tests, forked from one Python that has it loaded: to start Python costs ten times more than what most
commands do.

A command in a fork is a process of its own, with its own arguments, folder, environment, streams and exit code. What a start of
Python alone decides is left to one: a new Python is started where a test sets a variable of it.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

COMMAND = [sys.executable, "-m", "kit"]
READ_AT_START = ("PYTHON", "LC_", "LANG", "COV_", "COVERAGE_", "MALLOC_", "LD_")


def start(arguments: Sequence[str], cwd: Path | str, env: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Call `kit ARGUMENTS` in a Python of its own."""
    return subprocess.run([*COMMAND, *arguments], cwd=cwd, env=dict(env), capture_output=True, timeout=timeout_s, encoding="utf-8", errors="surrogateescape")


class Forks:
    """One server, which forks a process for each command; with the words `before` its own it may be another user's."""

    def __init__(self, before: Sequence[str] = (), environment: Mapping[str, str] = os.environ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            server = [*before, sys.executable, __file__, str(theirs.fileno())]
            self._server = subprocess.Popen(server, pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL)
        self._socket, self._answers = ours, ours.makefile("rb")
        self._environment = decided_at_start(environment)
        self._free = threading.Lock()

    def close(self) -> None:
        self._answers.close()
        self._socket.close()
        self._server.wait()

    def run(self, arguments: Sequence[str], cwd: Path | str, env: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Call `kit ARGUMENTS` as `start` does."""
        if decided_at_start(env) == self._environment and self._free.acquire(blocking=False):
            try:
                return self._forked(arguments, cwd, env, timeout_s)
            finally:
                self._free.release()
        return start(arguments, cwd, env, timeout_s)

    def _forked(self, arguments: Sequence[str], cwd: Path | str, env: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        with contextlib.ExitStack() as ends:
            streams = [Reader(ends) for _ in range(2)]
            self._send({"arguments": list(arguments), "cwd": str(cwd), "env": dict(env)}, [stream.end for stream in streams])
            for stream in streams:
                os.close(stream.end)
            code = self._wait(time.monotonic() + timeout_s)
            out, err = (stream.text() for stream in streams)
        if code is None:
            raise subprocess.TimeoutExpired([*COMMAND, *arguments], timeout_s, out, err)
        return subprocess.CompletedProcess([*COMMAND, *arguments], code, out, err)

    def _send(self, request: dict[str, object], streams: list[int]) -> None:
        text = json.dumps(request).encode() + b"\n"
        self._socket.sendmsg([text[:1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))])
        self._socket.sendall(text[1:])

    def _wait(self, until: float) -> int | None:
        """Return the exit code, or None where the time was up and the command was killed."""
        pid = int(self._answers.readline())
        over = threading.Timer(max(0.0, until - time.monotonic()), os.kill, (pid, signal.SIGKILL))
        over.start()
        code = int(self._answers.readline())
        late = not over.is_alive() and code == -signal.SIGKILL
        over.cancel()
        return None if late else code


class Reader:
    """A pipe, and a thread that reads it to its end."""

    def __init__(self, ends: contextlib.ExitStack) -> None:
        read, self.end = os.pipe()
        self._data = b""
        self._file = ends.enter_context(os.fdopen(read, "rb"))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self._data = self._file.read()

    def text(self) -> str:
        self._thread.join()
        return self._data.decode("utf-8", "surrogateescape")


def decided_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment only a start of Python reads."""
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_START)}


def serve(connection: socket.socket) -> None:
    """Fork for each request, one after another; returns in each fork, and once nobody asks any more."""
    load()
    gc.collect()
    gc.freeze()  # a collection in a fork would otherwise copy the pages of all modules
    while head := receive(connection):
        first, streams = head
        request = json.loads(first + line(connection))
        pid = os.fork()
        if pid == 0:
            connection.close()
            become(request, streams)
            return
        for stream in streams:
            os.close(stream)
        connection.sendall(b"%d\n" % pid)
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    raise SystemExit


def load() -> None:
    import kit

    for module in pkgutil.walk_packages(kit.__path__, "kit."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def receive(connection: socket.socket) -> tuple[bytes, list[int]] | None:
    streams = array.array("i")
    first, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(2 * streams.itemsize))
    for _, _, data in ancillary:
        streams.frombytes(data)
    return (first, list(streams)) if first else None


def line(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as file:  # one request at a time: nothing stands behind its line
        return file.readline()


def become(request: dict[str, object], streams: list[int]) -> None:
    """Make this fork what a new process would be."""
    for stream, (number, name) in zip(streams, ((1, "stdout"), (2, "stderr"))):
        os.dup2(stream, number)
        os.close(stream)
        # The server's has asked its own file already whether it can be sought.
        as_before = getattr(sys, name)
        raw = os.fdopen(number, "wb", closefd=False)
        file = io.TextIOWrapper(raw, as_before.encoding, as_before.errors, line_buffering=name == "stderr")
        setattr(sys, name, file)
    os.chdir(str(request["cwd"]))
    environment = request["env"]
    assert isinstance(environment, dict)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv = ["kit", *request["arguments"]]  # type: ignore[misc]


def main() -> NoReturn:
    serve(socket.socket(fileno=int(sys.argv[1])))
    sys.path[0] = ""  # as of `python -m`
    runpy.run_module("kit", run_name="__main__", alter_sys=True)
    raise SystemExit


if __name__ == "__main__":
    main()
