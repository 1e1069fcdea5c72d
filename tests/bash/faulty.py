"""Ranks that wait for one another as torch's do, without torch, until one of them fails in the way that is asked for.

faulty.py KIND RANK FOLDER: that rank fails; the sockets, by which the others notice it, are in the folder.
"""

from __future__ import annotations

import argparse
import atexit
import json
import logging
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:50345. This is typically caused by a remote worker"
LATE = "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete"
connections: list[socket.socket] = []


def meet(rank: int, world: int, folder: Path) -> None:
    """A connection between any two ranks."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / f"{rank}.new"))
    server.listen(world)
    os.rename(folder / f"{rank}.new", folder / str(rank))
    for other in range(rank):
        connection = socket.socket(socket.AF_UNIX)
        while True:
            with suppress(FileNotFoundError, ConnectionRefusedError):
                connection.connect(str(folder / str(other)))
                break
            time.sleep(0.02)
        connections.append(connection)
    connections.extend(server.accept()[0] for _ in range(world - rank - 1))


def all_reduce(timeout_s: float = 60) -> None:
    """As one in which a rank is missing."""
    gone = select.select(connections, [], [], timeout_s)[0]
    raise RuntimeError(CLOSED if gone else LATE)


class SaveError(Exception):
    pass


def recurse(depth: int) -> None:
    recurse_again(depth + 1)


def recurse_again(depth: int) -> None:
    recurse(depth)


def chained() -> None:
    try:
        Path("/data/index.json").read_text()
    except OSError as error:
        raise SaveError("no index of the data") from error


def logged_then_exit() -> None:
    try:
        socket.create_connection(("127.0.0.1", 1))
    except OSError:
        logging.exception("the cache does not answer")
    time.sleep(1)
    sys.exit(4)


def slowly() -> None:
    """Closes its connections at once, and takes its time to end."""
    for connection in connections:
        connection.close()
    atexit.register(time.sleep, 3)
    raise KeyError("labels")


def clean_up_misses_the_others() -> None:
    try:
        json.loads("{")
    finally:
        for connection in connections:
            connection.close()
        raise RuntimeError(CLOSED)


def long_end() -> None:
    atexit.register(lambda: print("flushed a buffer\n" * 16000))
    raise IndexError("list index out of range")


def broken_pipe() -> None:
    viewer = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    viewer.wait()
    os.write(viewer.stdin.fileno(), b"image")


def little_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
    print(len(bytearray(1 << 30)))


def warned_before() -> None:
    print("warning: no cache: [Errno 28] No space left on device", flush=True)
    len(5)


def many_lines() -> None:
    raise ValueError("the batch is not whole:\n  images 5\n  labels 4")


def raised(error: BaseException) -> None:
    raise error


def parse() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    parser.parse_args(["--lr", "fast"])


def killed_by(name: str) -> None:
    signal.signal(getattr(signal, name), signal.SIG_DFL) if name not in ("SIGKILL", "SIGSTOP") else None
    os.kill(os.getpid(), getattr(signal, name))
    time.sleep(9)


# {kind: (what the rank does, the name of the cause, the job's exit code, words of the cause)}
FAULTS = {
    "KeyError": (lambda: {}["labels"], "exception", 1, "KeyError: 'labels', at faulty.py:"),
    "exit 7": (lambda: sys.exit(7), "exit-code", 7, "exit code 7"),
    "left early": (lambda: sys.exit(0), "left-early", 1, "left with exit code 0"),
    "hangs": (lambda: time.sleep(90), "rank-missing", 1, "was not where the others waited"),
    "SIGKILL": (lambda: killed_by("SIGKILL"), "killed", 137, "SIGKILL"),
    "ends slowly": (slowly, "exception", 1, "KeyError: 'labels'"),
    "own words": (lambda: raised(ValueError("the text has CUDA out of memory")), "exception", 1, "ValueError: the text has CUDA"),
    "logged, then exit": (logged_then_exit, "exit-code", 4, "after it had logged ConnectionRefusedError"),
    "own broken pipe": (broken_pipe, "exception", 1, "BrokenPipeError"),
    "clean-up": (clean_up_misses_the_others, "exception", 1, "json.decoder.JSONDecodeError"),
    "recursion": (lambda: recurse(0), "exception", 1, "RecursionError: maximum recursion depth"),
    # Below: with KIT_ALL_FAULTS=1.
    "IndexError": (lambda: [][3], "exception", 1, "IndexError: list index"),
    "ValueError": (lambda: int("five"), "exception", 1, "ValueError: invalid literal"),
    "TypeError": (lambda: len(5), "exception", 1, "TypeError: object of type"),
    "AttributeError": (lambda: None.step, "exception", 1, "AttributeError: 'NoneType'"),
    "ZeroDivisionError": (lambda: 1 / 0, "exception", 1, "ZeroDivisionError"),
    "NameError": (lambda: missing_name, "exception", 1, "NameError: name 'missing_name'"),  # noqa: F821
    "RuntimeError": (lambda: raised(RuntimeError("the tokenizer has no pad token")), "exception", 1, "RuntimeError: the tokenizer"),
    "NotImplementedError": (lambda: raised(NotImplementedError()), "exception", 1, "NotImplementedError"),
    "StopIteration": (lambda: next(iter([])), "exception", 1, "StopIteration"),
    "OverflowError": (lambda: 2.0**5000, "exception", 1, "OverflowError"),
    "UnicodeDecodeError": (lambda: b"\xff".decode(), "exception", 1, "UnicodeDecodeError"),
    "JSONDecodeError": (lambda: json.loads("{"), "exception", 1, "json.decoder.JSONDecodeError"),
    "struct.error": (lambda: struct.unpack("i", b"1"), "exception", 1, "struct.error: unpack requires"),
    "CalledProcessError": (lambda: subprocess.run(["false"], check=True), "exception", 1, "subprocess.CalledProcessError"),
    "LookupError": (lambda: "x".encode("no-such"), "exception", 1, "LookupError: unknown encoding"),
    "own class": (lambda: raised(SaveError("checkpoint 7")), "exception", 1, "SaveError: checkpoint 7"),
    "chained": (chained, "file-missing", 1, "FileNotFoundError"),
    "many lines": (many_lines, "exception", 1, "ValueError: the batch is not whole"),
    "own TimeoutError": (lambda: raised(TimeoutError("the loader")), "exception", 1, "TimeoutError: the loader"),
    "own database": (lambda: socket.create_connection(("127.0.0.1", 1)), "exception", 1, "ConnectionRefusedError"),
    "EOFError": (lambda: raised(EOFError()), "exception", 1, "EOFError"),
    "NaN": (lambda: int(float("nan")), "exception", 1, "ValueError: cannot convert float NaN"),
    "a warning before": (warned_before, "exception", 1, "TypeError: object of type"),
    "AssertionError": (lambda: (_ for _ in ()).throw(AssertionError("7 % 4")), "assertion", 1, "AssertionError: 7 % 4"),
    "module": (lambda: __import__("flash_attention_9"), "module-missing", 1, "flash_attention_9"),
    "import": (lambda: exec("from collections import Mapping"), "import-failed", 1, "ImportError: cannot import name"),
    "config file": (lambda: Path("conf/data.yaml").read_text(), "file-missing", 1, "conf/data.yaml"),
    "a folder": (lambda: Path("/tmp").read_text(), "exception", 1, "IsADirectoryError"),
    "memory": (little_memory, "memory-error", 1, "MemoryError"),
    "exit with words": (lambda: sys.exit("no GPU is free"), "exit-code", 1, "exit code 1"),
    "os._exit": (lambda: os._exit(9), "exit-code", 9, "exit code 9"),
    "arguments": (parse, "wrong-arguments", 2, "does not accept its arguments"),
    "long end": (long_end, "exception", 1, "IndexError: list index"),
    "SIGSEGV": (lambda: killed_by("SIGSEGV"), "segfault", 139, "memory that is not its own"),
    "SIGABRT": (os.abort, "aborted", 134, "SIGABRT"),
    "SIGBUS": (lambda: killed_by("SIGBUS"), "bus-error", 135, "mapped file"),
    "SIGILL": (lambda: killed_by("SIGILL"), "illegal-instruction", 132, "instruction"),
    "SIGTERM": (lambda: killed_by("SIGTERM"), "terminated", 143, "SIGTERM"),
    "SIGUSR1": (lambda: killed_by("SIGUSR1"), "unhandled-signal", 138, "SIGUSR1"),
    "SIGXCPU": (lambda: killed_by("SIGXCPU"), "cpu-time", 152, "CPU time"),
    "returns early": (lambda: os._exit(0), "left-early", 1, "left with exit code 0"),
}


def main() -> None:
    kind, chosen, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meet(rank, world, folder)
    print(f"rank {rank} of {world}", flush=True)
    if rank == chosen:
        time.sleep(0.2)
        FAULTS[kind][0]()
    all_reduce(4 if kind == "hangs" else 60)


if __name__ == "__main__":
    main()
