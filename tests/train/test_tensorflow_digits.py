import importlib.util
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

SCRIPT = Path(__file__).parents[2] / "train" / "tensorflow_digits.py"
EPOCHS = 4
TIMEOUT_S = 600  # TensorFlow takes 6 s of CPU to import, and many more seconds on busy cores

# Without importing them: this process has no use for TensorFlow's threads and log lines.
missing = [name for name in ("tensorflow", "tf_keras", "sklearn") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"this Python lacks {', '.join(missing)}")


def free_ports(count):
    """Bound at the same time, so that no two are the same."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def run(folder, workers, *args):
    """Runs the program in one process for each worker; alone has no TF_CONFIG. Returns each one's (exit code, output lines)."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
    command = [sys.executable, str(SCRIPT), "--epochs", str(EPOCHS), "--lr", "0.01", *args]
    processes, files = [], [folder / f"worker{index}" for index in range(workers)]
    for index, file in enumerate(files):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"} | {"CUDA_VISIBLE_DEVICES": ""}
        if workers > 1:
            env["TF_CONFIG"] = json.dumps(config)
        with file.open("w") as output:  # a file, so no pipe can fill
            processes.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=env))
    deadline = time.monotonic() + TIMEOUT_S
    try:
        # Once one fails, the others might wait for it.
        while None in (codes := [process.poll() for process in processes]) and not any(codes):
            assert time.monotonic() < deadline, "\n".join(file.read_text() for file in files)
            time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(code, file.read_text().splitlines()) for code, file in zip(codes, files, strict=True)]


def said(result):
    """The lines that are the program's own, of a worker that went well."""
    code, lines = result
    assert code == 0, "\n".join(lines)
    return [line for line in lines if line.startswith(("worker ", "tensorflow ", "epoch ", "trained ", "test accuracy "))]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    (result,) = run(tmp_path_factory.mktemp("alone"), 1)
    return said(result)


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory, note_run):
    """As kit run starts them by the job file: it tells each who the others are."""
    folder = tmp_path_factory.mktemp("two")
    command = [sys.executable, "-m", "kit", "run", str(SCRIPT.with_suffix(".yaml")), "--output", "run", "--"]
    command += ["--epochs", str(EPOCHS), "--lr", "0.01"]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "XDG_STATE_HOME": str(folder / "state")}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    lines = done.stdout.splitlines()
    results = [(done.returncode, [line[8:] for line in lines if line.startswith(f"[rank{worker}] ")]) for worker in (0, 1)]
    assert "all ranks ended well" in done.stdout, done.stdout + done.stderr
    note_run(SCRIPT)
    return [said(result) for result in results]


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
    first, second = two_workers
    assert first[0].startswith(f"worker 0/2  host {socket.gethostname()}  task 0  cluster [127.0.0.1:")
    assert second == [first[0].replace("worker 0", "worker 1").replace("task 0", "task 1")]
    assert first[1].endswith("  workers 2  replicas 2")


def test_the_number_of_workers_changes_neither_the_losses_nor_the_accuracy(alone, two_workers):
    assert losses(two_workers[0]) == pytest.approx(losses(alone), abs=0.002)
    assert accuracy(two_workers[0]) == pytest.approx(accuracy(alone), abs=0.003)


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
    ports = re.findall(r"^\[rank0\] worker 0/2 .* cluster \[127\.0\.0\.1:(\d+), ", text, re.MULTILINE)
    assert len(set(ports)) == 2
    assert accuracy([line[8:] for line in text.splitlines() if line.startswith("[rank0] ")]) >= 0.93


def test_a_batch_that_does_not_divide_among_the_workers_is_refused(tmp_path):
    results = run(tmp_path, 2, "--batch-size", "191")
    failed = [lines for code, lines in results if code == 1]
    assert failed, results
    assert failed[0][-2:] == ["tensorflow_digits.py: --batch-size 191 does not divide among 2 replicas", "  fix: give a multiple of 2"]
