"""
Start the programs in train/ on 127.0.0.1, without a GPU: real processes, which talk over real sockets.

Most are forked from one Python that has torch loaded, or what else they import (fork_server.py), and told by their environment which rank they are,
as torchrun does. `torchrun=True` starts torchrun itself, and it starts each rank from scratch.
"""

import os
import re
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from fork_server import TORCH, Request
from free_ports import ports

# What an outer torchrun or Slurm job may have left; a GPU would be too few for several NCCL ranks.
FOREIGN = re.compile(r"(PET_|SLURM_|TORCHELASTIC_|NCCL_|MASTER_)|(RANK|WORLD_SIZE|LOCAL_RANK|GROUP_RANK|TF_CONFIG)$")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
ENVIRONMENT |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
STOP_S = 40

finished_well = set()  # the scripts that ended with 0 on all nodes: proof that a test has run them


@dataclass
class Result:
    codes: list[int]  # one per node
    stdout: str
    stderr: str

    def check(self):
        assert not any(self.codes), self.stdout + self.stderr
        return self

    def lines(self, start):
        return [line for line in self.stdout.splitlines() if line.startswith(start)]


class Node:
    """The processes of one node, as the fork server runs them."""

    def __init__(self, server, request):
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(server)
        self.connection.sendall(request.line())
        self.code = None

    def poll(self, timeout_s=0):
        """Return the exit code, or None if it runs after this time."""
        if self.code is None:
            self.connection.settimeout(timeout_s)
            try:
                said = self.connection.recv(100)
            except (BlockingIOError, TimeoutError):
                return None
            assert said, "the node was killed"
            self.code = int(said)
        return self.code

    def terminate(self):
        self.connection.sendall(b"T")

    def kill(self):
        self.connection.close()
        self.code = -9


class Started:
    """Nodes that are running; their output goes to files, so no pipe can fill."""

    def __init__(self, scripts, server, requests):
        self.scripts = scripts
        self.files = [(Path(request.stdout), Path(request.stderr)) for request in requests]
        for file in (file for files in self.files for file in files):
            file.touch()
        self.nodes = [Node(server, request) for request in requests]

    def wait_for(self, text, timeout_s, node=0):
        deadline = time.monotonic() + timeout_s
        while text not in self.files[node][0].read_text():
            assert self.nodes[node].poll() is None and time.monotonic() < deadline, f"{text!r} never came: {''.join(self.outputs())}"
            time.sleep(0.02)

    def finish(self, timeout_s):
        """Once a node fails, the others would wait for it: they are ended, too."""
        deadline = time.monotonic() + timeout_s
        while any(code is None for code in self.codes()) and not any(self.codes()):
            if time.monotonic() > deadline:
                self.stop()
                pytest.fail(f"no end after {timeout_s} s: codes {self.codes()}\n{''.join(self.outputs())}")
            time.sleep(0.02)
        self.stop()
        if not any(self.codes()):
            finished_well.update(self.scripts)
        return Result(self.codes(), *self.outputs())

    def codes(self):
        return [node.poll() for node in self.nodes]

    def outputs(self):
        return ["".join(file.read_text() for file in files) for files in zip(*self.files, strict=True)]

    def stop(self):
        for node in self.nodes:
            if node.poll() is None:
                node.terminate()  # torchrun then ends its ranks; SIGKILL would orphan them
        for node in self.nodes:
            if node.poll(STOP_S) is None:  # it waits for the other node, deaf to signals
                node.kill()


@contextmanager
def fork_server(modules):
    """Run the server as long as the context lasts. Yield the address of its socket."""
    env = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), ENVIRONMENT.get("PYTHONPATH", "")])}
    env["JE_ARROW_MALLOC_CONF"] = "background_thread:false"  # pyarrow, which TensorFlow imports, has a thread, and a fork would lose it
    command = [sys.executable, "-c", "import fork_server; fork_server.main()", *modules]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, start_new_session=True)
    try:
        address = process.stdout.readline()
        assert address, "the fork server did not start: see its error above"
        yield bytes.fromhex(address.decode())
    finally:
        process.stdin.close()
        process.wait(STOP_S)
        process.stdout.close()


def torchrun_options(folder, ranks, node, nodes, port):
    """Return the module and its options; what follows is the program."""
    options = {
        "--nnodes": nodes,
        "--nproc-per-node": ranks,
        "--node-rank": node,
        "--master-addr": "127.0.0.1",
        "--master-port": port,
        "--log-dir": folder,
    }
    return ["torch.distributed.run", *(str(word) for option in options.items() for word in option)]


def rank_environment(rank, local_rank, node, ranks, nodes, port):
    """Return what torchrun tells a rank."""
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": ranks * nodes,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": ranks,
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": nodes,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": ranks * nodes,
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }
    return {name: str(value) for name, value in numbers.items()}


def starter(server, tmp_path_factory):
    """Return what starts a script: without ranks=, one process that is told nothing; else so many ranks on each node.

    env: what all nodes have, too, or a list of what each one has. torchrun: whether it starts the ranks.
    """

    def start(script, *args, ranks=None, nodes=1, env=None, torchrun=False):
        folder, port = tmp_path_factory.mktemp(Path(script).stem), next(ports)
        envs = env if isinstance(env, list) else [env or {}] * nodes
        words = [str(word) for word in (script, *args)]
        requests = []
        for node in range(nodes):
            environments = [ENVIRONMENT | envs[node]]
            if ranks and not torchrun:
                told = (rank_environment(node * ranks + local, local, node, ranks, nodes, port) for local in range(ranks))
                environments = [environments[0] | numbers for numbers in told]
            requests.append(
                Request(
                    argv=[*torchrun_options(folder, ranks, node, nodes, port), *words] if torchrun else words,
                    environments=environments,
                    stdout=str(folder / f"node{node}.stdout"),
                    stderr=str(folder / f"node{node}.stderr"),
                    cwd=os.getcwd(),
                    module=torchrun,
                    ranks=bool(ranks) and not torchrun,
                )
            )
        # A test may start a program by a script of its own, which then is given the program's path.
        return Started({word for word in words if word.endswith(".py")}, server, requests)

    return start


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    with fork_server(TORCH) as server:
        yield starter(server, tmp_path_factory)


@pytest.fixture(scope="module")
def start_loaded(request, tmp_path_factory):
    """As start, from a Python that has loaded what the file's LOADED names."""
    with fork_server(request.module.LOADED) as server:
        yield starter(server, tmp_path_factory)


@pytest.fixture(scope="module", autouse=True)
def the_program_is_run(request):
    """A file whose SCRIPT names a program of train/ has run it to a good end, once all of its tests have run."""
    yield
    module = request.module
    script = getattr(module, "SCRIPT", None)
    chosen = {item.originalname for item in request.session.items if item.module is module}
    if script and chosen == {name for name in vars(module) if name.startswith("test_")} and not request.session.testsfailed:
        assert str(script) in finished_well, f"no test of {Path(module.__file__).name} has run {script.name} to a good end"


@pytest.fixture(scope="session")
def note_run():
    """For tests that start their program otherwise: call it with a script that has ended well."""
    return lambda script: finished_well.add(str(script))
