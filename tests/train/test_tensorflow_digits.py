import importlib.util
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from free_ports import ports

SCRIPT = Path(__file__).parents[2] / "train" / "tensorflow_digits.py"
LOADED = ("tensorflow", "tf_keras")
EPOCHS = 4
TIMEOUT_S = 600  # TensorFlow takes 6 s of CPU to import, and many more seconds on busy cores

# Without importing them: this process has no use for TensorFlow's threads and log lines.
missing = [name for name in ("tensorflow", "tf_keras", "sklearn") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"this Python lacks {', '.join(missing)}")


def run(start, workers, *args):
    """Runs the program in one process for each worker; alone has no TF_CONFIG."""
    addresses = [f"127.0.0.1:{port}" for port in itertools.islice(ports, workers)]
    configs = [json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}) for index in range(workers)]
    env = [{"TF_CONFIG": config} for config in configs] if workers > 1 else None
    return start(SCRIPT, "--epochs", EPOCHS, "--lr", 0.01, *args, nodes=workers, env=env).finish(TIMEOUT_S)


def said(result):
    """The lines that are the program's own, worker by worker."""
    return [line for line in result.check().stdout.splitlines() if line.startswith(("worker ", "tensorflow ", "epoch ", "trained ", "test accuracy "))]


@pytest.fixture(scope="module")
def alone(start_loaded):
    return said(run(start_loaded, 1))


@pytest.fixture(scope="module")
def two_workers(start_loaded):
    return said(run(start_loaded, 2))


def losses(lines):
    return [float(line.split()[3]) for line in lines if line.startswith("epoch ")]


def accuracy(lines):
    (line,) = [line for line in lines if line.startswith("test accuracy ")]
    return float(line.removeprefix("test accuracy "))


def test_one_process_without_tf_config_recognises_the_digits(alone):
    assert alone[0] == f"worker 0/1  host {socket.gethostname()}  task 0  cluster []"
    assert len(losses(alone)) == EPOCHS
    assert accuracy(alone) >= 0.93


def test_every_worker_says_who_it_is_and_only_the_first_says_more(two_workers):
    first, versions, *_, second = two_workers
    assert first.startswith(f"worker 0/2  host {socket.gethostname()}  task 0  cluster [127.0.0.1:")
    assert second == first.replace("worker 0", "worker 1").replace("task 0", "task 1")
    assert versions.endswith("  workers 2  replicas 2")


def test_the_number_of_workers_changes_neither_the_losses_nor_the_accuracy(alone, two_workers):
    assert losses(two_workers) == pytest.approx(losses(alone), abs=0.002)
    assert accuracy(two_workers) == pytest.approx(accuracy(alone), abs=0.003)


def worker_with(tag, index):
    """The process id of a worker of the run whose processes have inherited the tag."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment, command = (process / "environ").read_bytes(), (process / "cmdline").read_bytes()
        except OSError:
            continue
        if tag.encode() in environment and b'"index": %d}' % index in environment and SCRIPT.name.encode() in command:
            return int(process.name)
    return None


def test_when_a_worker_is_killed_all_start_again_and_go_on_from_their_checkpoint(tmp_path):
    tag, epochs, output = uuid.uuid4().hex, 12, tmp_path / "output"
    command = [sys.executable, "-m", "kit", "run", str(SCRIPT.with_suffix(".yaml")), "--max-restarts", "1", "--output", "run", "--"]
    command += ["--epochs", str(epochs), "--lr", "0.01", "--checkpoint", str(tmp_path / "saved")]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "XDG_STATE_HOME": str(tmp_path / "state"), "KIT_TEST_TAG": tag}
    with output.open("w") as file:
        kit = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=file, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while f"epoch 2/{epochs} " not in output.read_text():
                assert kit.poll() is None and time.monotonic() < deadline, output.read_text()
                time.sleep(0.02)
            os.kill(worker_with(tag, 1), signal.SIGKILL)
            assert kit.wait(TIMEOUT_S) == 0, output.read_text()
        finally:
            kit.terminate()  # which ends its workers
            kit.wait()
    text = output.read_text()
    assert "rank 1 (local rank 0) was killed by SIGKILL" in text and "starting all ranks again: restart 1 of 1" in text
    first, second = ([int(epoch) for epoch in re.findall(r"^\[rank0\] epoch (\d+)/", part, re.MULTILINE)] for part in text.split("starting all ranks again"))
    assert first == list(range(1, len(first) + 1)) and 2 <= len(first) < epochs
    assert second == list(range(second[0], epochs + 1)) and second[0] in (len(first), len(first) + 1)  # killed before it was saved, or after
    masters = re.findall(r"^\[rank0\] worker 0/2 .* cluster \[127\.0\.0\.1:(\d+), ", text, re.MULTILINE)
    assert len(set(masters)) == 2
    assert accuracy([line[8:] for line in text.splitlines() if line.startswith("[rank0] ")]) >= 0.93


def test_a_batch_that_does_not_divide_among_the_workers_is_refused(start_loaded):
    result = run(start_loaded, 2, "--batch-size", 191)
    assert 1 in result.codes
    assert "tensorflow_digits.py: --batch-size 191 does not divide among 2 replicas\n  fix: give a multiple of 2\n" in result.stderr
