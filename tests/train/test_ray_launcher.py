"""`launcher: ray`, with the real Ray: the driver runs on the first node of two, and Ray ends everywhere, however the run ends."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="not here: ray")
PROGRAM = """
import json, os, pathlib, ray, signal, sys, time
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

@ray.remote(num_cpus=1)
def look():
    return {name: os.environ.get(name) for name in ("NODE_RANK", "GREETING", "PASSPHRASE", "NPROC_PER_NODE", "VLLM_HOST_IP")}

ray.init()
nodes = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: node["NodeName"])
found = [ray.get(look.options(scheduling_strategy=On(node["NodeID"], soft=False)).remote()) for node in nodes]
facts = {"names": [node["NodeName"] for node in nodes], "cpus": [node["Resources"]["CPU"] for node in nodes], "found": found}
facts |= {"addresses": [node["NodeManagerAddress"] for node in nodes], "driver": os.environ["VLLM_HOST_IP"]}
facts |= {"port": ray.get_runtime_context().gcs_address.split(":")[1], "ray": os.environ["KIT_LOG_DIR"]}
pathlib.Path("facts.part").write_text(json.dumps(facts))
asked = []
if os.path.exists("drain"):
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
os.rename("facts.part", "facts.json")
while os.path.exists("wait") and not asked:
    time.sleep(0.1)
if asked:  # it needs the other node once more, as for a checkpoint
    time.sleep(2)
    ray.get(look.options(scheduling_strategy=On(nodes[1]["NodeID"], soft=False)).remote())
    pathlib.Path("drained").touch()
sys.exit(int(sys.argv[1]))
"""
JOB = """
command: program.py 0
launcher: ray
runtime: none
nodes: 2
processes_per_node: 3
env: {GREETING: "a b"}
secrets: {PASSPHRASE: env}
"""

gave_up: list[Path] = []  # runs whose Ray had no 30 s of the machine: one is bad luck, and two are a failure


class Run:
    """`kit run` of two local nodes, which waits until it is told to go on."""

    def __init__(self, folder: Path, code: int = 0, job: str = "", **env: str) -> None:
        self.folder, self.said = folder, folder / "said"
        folder.mkdir()
        (folder / "program.py").write_text(PROGRAM)
        (folder / "job.yaml").write_text(JOB.replace("program.py 0", f"program.py {code}") + job)
        (folder / "wait").touch()
        env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PASSPHRASE": "of-this-test", **env}
        with self.said.open("w") as out:
            command = [sys.executable, "-m", "kit", "run", "job.yaml", "--output", "run"]
            self.process = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=out)

    def facts(self) -> dict:
        end = time.monotonic() + 300
        while not (self.folder / "facts.json").exists():
            if self.process.poll() is not None and "The current node timed out during startup" in self.said.read_text() and not gave_up:
                gave_up.append(self.folder)
                pytest.skip("ray, busy with its start, gave up its own raylet")
            assert self.process.poll() is None and time.monotonic() < end, self.said.read_text()
            time.sleep(0.1)
        return json.loads((self.folder / "facts.json").read_text())

    def finish(self) -> int:
        (self.folder / "wait").unlink(missing_ok=True)
        return self.process.wait(300)

    def processes(self, word: str) -> dict[int, str]:
        """The processes of this run with such a command line, and the number of each one's node."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                command, environment = ((path / name).read_text(errors="replace") for name in ("cmdline", "environ"))
            except OSError:
                continue
            ranks = [value.partition("=")[2] for value in environment.split("\0") if value.startswith("NODE_RANK=")]
            if f"KIT_RUN_DIR={self.folder / 'run'}" in environment.split("\0") and ranks and word in command:
                found[int(path.name)] = ranks[0]
        return found

    def folders(self) -> list[Path]:
        """Ray's folders, which have the job's number in their names."""
        return [path for log in self.folder.glob("run/log/[0-9]*/") for path in Path("/tmp").glob(f"ray-{os.getuid()}-{log.name}.*")]

    def left(self) -> list[str]:
        """What is left of Ray: its processes, its folders, its token."""
        return [*map(str, self.processes("").items()), *map(str, self.folders()), *map(str, self.folder.glob("run/log/*/.ray-token*"))]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TMPDIR", raising=False)  # where Ray's folder is looked for
    runs = []

    def start(**options) -> Run:
        runs.append(Run(tmp_path / str(len(runs)), **options))
        return runs[-1]

    yield start
    for run in runs:
        run.process.terminate()
        run.process.wait(60)
        for folder in run.folders():
            shutil.rmtree(folder)


def test_two_runs_on_one_machine_do_not_meet_and_each_ends_with_its_programs_code(start) -> None:
    runs = [start()]
    runs[0].facts()  # Ray gives a raylet 30 s to start, which is little where two start
    runs.append(start(code=3, job="setup: export PATH=/opt/x/bin\n"))  # which leads to nothing
    for run in runs:
        facts = run.facts()
        assert facts["names"] == ["local0", "local1"]
        assert min(facts["cpus"]) >= 3  # as many as the node has workers
        told = {"GREETING": "a b", "PASSPHRASE": "of-this-test", "NPROC_PER_NODE": "3"}
        assert facts["found"] == [{"NODE_RANK": rank, "VLLM_HOST_IP": address, **told} for rank, address in zip("01", facts["addresses"])]
        assert facts["driver"] == facts["addresses"][0]  # where vLLM, the driver, looks for its own node
        (token,) = Path(facts["ray"]).glob(".ray-token.*")
        assert token.stat().st_mode & 0o777 == 0o600 and len(token.read_text()) == 64
    assert len({run.facts()["port"] for run in runs}) == 2
    assert [run.finish() for run in runs] == [0, 3]
    assert [run.left() for run in runs] == [[], []]
    assert "all ranks ended well" in runs[0].said.read_text()
    assert "local0: the program of node 0 exited with code 3" in runs[1].said.read_text()
    # Ray's own logs are kept where something has failed, and only there.
    assert [len([*run.folder.glob("run/log/*/ray0/raylet.out")]) for run in runs] == [0, 1]
    assert not any("of-this-test" in path.read_text(errors="replace") for run in runs for path in run.folder.rglob("run/**/*") if path.is_file())


def test_a_command_beside_the_program_finds_the_runs_ray(start) -> None:
    run = start()
    run.facts()
    env = {**os.environ, "XDG_STATE_HOME": str(run.folder / "state")}
    command = [sys.executable, "-m", "kit", "exec", "run", "--", "ray", "status"]
    done = subprocess.run(command, cwd=run.folder, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "\n 1 node_" in done.stdout, done.stdout + done.stderr  # the second one shows later
    assert run.finish() == 0


def test_when_ray_is_killed_on_a_node_the_run_ends_and_names_it(start) -> None:
    run = start()
    run.facts()
    (raylet,) = {pid for pid, rank in run.processes("/raylet/raylet").items() if rank == "1"}
    os.kill(raylet, signal.SIGKILL)
    assert run.process.wait(200) == 1
    assert run.left() == []
    assert "local1: the program of node 1 exited with code 1" in run.said.read_text()
    assert [*run.folder.glob("run/log/*/ray1/raylet.out")]


def test_a_cancelled_program_has_its_nodes_to_its_end_and_then_nothing_of_ray_is_left(start) -> None:
    run = start(job="setup: touch drain\n")
    run.facts()
    run.process.terminate()
    assert run.process.wait(200) != 0
    assert (run.folder / "drained").exists(), run.said.read_text()
    assert run.left() == []


def test_when_the_first_nodes_launcher_is_killed_nothing_of_ray_runs_on(start) -> None:
    run = start()
    run.facts()
    (shell,) = {pid for pid, rank in run.processes("/run/ray.sh").items() if rank == "0" and leads(pid)}
    os.kill(shell, signal.SIGKILL)
    assert run.process.wait(200) != 0
    # They notice it by themselves. Its folder in /tmp stays: nobody was left to remove it.
    end = time.monotonic() + 100
    while run.processes(""):
        assert time.monotonic() < end, run.processes("")
        time.sleep(0.1)


def leads(pid: int) -> bool:
    """Whether the process leads its session, as the first process of a node does; not its subshells."""
    return os.getsid(pid) == pid


@pytest.mark.parametrize("signal_first", [False, True])
def test_a_node_that_does_not_join_is_named_within_the_time_and_the_wait_can_be_ended(signal_first: bool, start) -> None:
    job = 'setup: |\n  if [[ "${NODE_RANK}" == 1 ]]; then sleep 1000; fi\n'
    run = start(job=job, KIT_JOIN_S="300" if signal_first else "4")
    if signal_first:
        end = time.monotonic() + 60
        while not run.processes("ray_nodes.py"):
            assert time.monotonic() < end, run.said.read_text()
            time.sleep(0.1)
        run.process.terminate()
    assert run.process.wait(200) != 0
    if not signal_first:
        assert re.search(r"error: local0: after 4 s these nodes have not joined Ray: local1\n", run.said.read_text())
        assert len([*run.folder.glob("run/log/*/ray0/raylet.out")]) == 1
    assert run.left() == []
