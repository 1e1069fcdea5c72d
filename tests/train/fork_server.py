"""
Fork rank processes from one Python that has torch loaded, or other modules: the import takes 3 s of CPU in each process otherwise.

    python -c 'import fork_server; fork_server.main()' MODULE...

It prints the address of its socket, in hexadecimal. Each connection brings the request of one node as a line of JSON (see
Request), and gets the node's exit code as a line when it has ended: that of its process, or, of several ranks, 1 if any
failed, as torchrun's. A byte on the connection asks the node to end, and a closed connection kills it. The server itself
never computes: a fork copies no threads, so it refuses to fork when it has more than one. It ends with its standard input.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

# torch.optim imports torch._dynamo in the first step, if nobody has; which is half of the time.
TORCH = """
numpy torch torch._dynamo torch.distributed.checkpoint.state_dict torch.distributed.elastic.multiprocessing.errors
torch.distributed.fsdp torch.distributed.pipelining torch.distributed.run torch.nn.parallel torch.utils.checkpoint
torch.utils.data
""".split()
GRACE_S = 30  # as torchrun's, between asking ranks to end and ending them
PAUSE_S = 0.02


@dataclass
class Request:
    argv: list[str]  # a script, or a module if `module` says so, and its arguments
    environments: list[dict[str, str]]  # one for each process
    stdout: str
    stderr: str
    cwd: str
    module: bool = False
    ranks: bool = False  # whether the processes are ranks, so that a failure of one ends the others

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def main() -> None:
    for name in sys.argv[1:]:
        importlib.import_module(name)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [path for path in sys.path[1:] if path not in paths]
    request, environment = serve()
    # Only a forked process comes here; it ends as any Python does: with this function.
    become(request, environment)


def reap(number: int, frame: object) -> None:
    """Wait for nodes that have ended, so that their CPU time counts as this process's."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def serve() -> tuple[Request, dict[str, str]]:
    """Return in each forked process; the server ends here."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")  # Linux chooses an abstract address: no file, and no path that may be too long
    listener.listen(64)
    signal.signal(signal.SIGCHLD, reap)
    gc.collect()
    gc.freeze()  # a collection in a child would otherwise copy the pages of all modules
    print(listener.getsockname().hex(), flush=True)
    while True:
        readable, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in readable:
            os._exit(0)
        connection, _ = listener.accept()
        with connection.makefile("rb") as lines:
            request = Request(**json.loads(lines.readline()))
        assert threads() == 1, f"the server has {threads()} threads, which a fork would lose"
        if os.fork() == 0:
            listener.close()
            return node(request, connection)
        connection.close()


def node(request: Request, connection: socket.socket) -> tuple[Request, dict[str, str]]:
    """Return in each of the node's processes; the node itself waits for them and ends here."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(os.devnull) as nothing, open(request.stdout, "w") as out, open(request.stderr, "w") as err:
        for number, file in enumerate((nothing, out, err)):
            os.dup2(file.fileno(), number)
    running = set()
    for environment in request.environments:
        pid = os.fork()
        if pid == 0:
            connection.close()
            return request, environment
        running.add(pid)
    code = wait(running, connection, ranks=request.ranks)
    try:
        connection.sendall(f"{code}\n".encode())
    except OSError:  # nobody is there any more
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def wait(running: set[int], connection: socket.socket, *, ranks: bool) -> int:
    """Return the exit code of a node whose processes have all ended; -N after the signal N."""
    worst, deadline = 0, None
    watched = [connection]

    def end_all() -> float:
        for pid in running:
            os.kill(pid, signal.SIGTERM)
        return time.monotonic() + GRACE_S

    while running:
        readable, _, _ = select.select(watched, [], [], PAUSE_S)
        if readable:
            if not connection.recv(1):
                watched.clear()
            deadline = end_all()
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                running.remove(pid)
                code = os.waitstatus_to_exitcode(status)
                worst = worst or (1 if ranks and code else code)
                if code and ranks and deadline is None:
                    deadline = end_all()
        if deadline and time.monotonic() > deadline:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
    return worst


def become(request: Request, environment: dict[str, str]) -> None:
    """Run the program as `python SCRIPT` or `python -m MODULE` would."""
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(environment)
    if request.ranks:  # torchrun's Pythons are unbuffered. The ranks of a node share a file here: a line and its end go in one write
        sys.stdout = sys.__stdout__ = io.TextIOWrapper(open(1, "wb", 0, closefd=False), line_buffering=True)  # noqa: SIM115
    script = request.argv[0]
    sys.argv[:] = request.argv
    own = [request.cwd if request.module else str(Path(script).parent)]
    sys.path[:0] = own + [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if request.module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    code = compile(Path(script).read_bytes(), script, "exec", dont_inherit=True)
    names = vars(sys.modules["__main__"])  # it itself, so that what is left at the end goes as it would
    names.clear()
    names.update({"__name__": "__main__", "__file__": script, "__builtins__": __builtins__, "__spec__": None})
    exec(code, names)
