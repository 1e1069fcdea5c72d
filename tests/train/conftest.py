"""Starts the programs in train/ as users do: real processes, real torchrun, 127.0.0.1, no GPU."""

import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

# What an outer torchrun or Slurm job may have left; a GPU would be too few for several NCCL ranks.
FOREIGN = re.compile(r"(PET_|SLURM_|TORCHELASTIC_|NCCL_|MASTER_)|(RANK|WORLD_SIZE|LOCAL_RANK|GROUP_RANK)$")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
ENVIRONMENT |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


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


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Started:
    """Processes that are running, one per node; their output goes to files, so no pipe can fill."""

    def __init__(self, commands, folder, envs):
        self.files = [(folder / f"node{i}.stdout", folder / f"node{i}.stderr") for i in range(len(commands))]
        self.processes = [
            subprocess.Popen(command, stdout=out.open("w"), stderr=err.open("w"), env=ENVIRONMENT | env)
            for command, (out, err), env in zip(commands, self.files, envs, strict=True)
        ]

    def wait_for(self, text, timeout_s):
        deadline = time.monotonic() + timeout_s
        while text not in self.files[0][0].read_text():
            assert self.processes[0].poll() is None and time.monotonic() < deadline, f"{text!r} never came"
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
        return Result(self.codes(), *self.outputs())

    def codes(self):
        return [process.poll() for process in self.processes]

    def outputs(self):
        return ["".join(file.read_text() for file in files) for files in zip(*self.files, strict=True)]

    def stop(self):
        for process in self.processes:
            if process.poll() is None:
                process.terminate()  # torchrun then ends its ranks; SIGKILL would orphan them
        for process in self.processes:
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:  # it waits for the other node, deaf to signals
                process.kill()
                process.wait()


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """Starts a script: ranks=None without torchrun, else by one torchrun per node. env: of all nodes, or a list of theirs."""

    def start(script, *args, ranks=None, nodes=1, env=None):
        folder = tmp_path_factory.mktemp(Path(script).stem)
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes",
            nodes,
            "--nproc-per-node",
            ranks,
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            free_port(),
            "--log-dir",
            folder,
        ]
        commands = [[*([*torchrun, "--node-rank", node] if ranks else [sys.executable]), script, *args] for node in range(nodes)]
        envs = env if isinstance(env, list) else [env or {}] * nodes
        return Started([[str(word) for word in command] for command in commands], folder, envs)

    return start


@pytest.fixture(scope="session")
def cifar_folder():
    folder, reason = os.environ.get("KIT_TEST_DATA"), None
    if not folder:
        reason = "KIT_TEST_DATA is not set: the folder that contains cifar-10-batches-py"
    elif not Path(folder, "cifar-10-batches-py").is_dir():
        pytest.fail(f"KIT_TEST_DATA={folder} contains no cifar-10-batches-py")
    if reason and (os.environ.get("CI") == "true" or os.environ.get("KIT_REQUIRE_DATA") == "1"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    return folder
