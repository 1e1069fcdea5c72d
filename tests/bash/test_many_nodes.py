"""The batch part of a run of 10,000 nodes. scontrol, getent and srun are stand-ins: no machine has so many."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
from pathlib import Path

import pytest
from kit.diagnose.timeline import moments
from running import SCRIPTS, bash, busybox, environment, stub
from test_run_script import answered, time_from

import event_lines

NODES = 10000


def made(kit, folder: Path, nodes: int, *options: str, ready_timeout_s: int = 60) -> Path:
    """A run directory with what its ranks will have noted, and the stand-ins beside it."""
    folder.mkdir()
    (folder / "train.py").touch()
    kit("render", "train.py", "-j", f"{nodes}x2", "--output", "run", "--ready-timeout-s", str(ready_timeout_s), *options, cwd=folder)
    (folder / "hosts").write_text("".join(f"node{number:04}\n" for number in range(nodes)))
    stub(folder / "bin", "scontrol", f'[[ "$1" != show || "$2" != hostnames ]] || exec cat "{folder}/hosts"\n')
    stub(folder / "bin", "getent", f'echo "{own_address()} STREAM $2"\n')
    notes = folder / "run/log/4711/events"
    notes.mkdir(parents=True)
    for number in range(nodes):
        own = {"node": f"node{number:04}", "rank": number}
        begun = event_lines.line("rank_started", 1, **own, begun=1, entered=1, log=0)
        ended = event_lines.line("rank_ended", 1, **own, local_rank=0, code=0, stopped=False)
        (notes / f"node{number:04}.jsonl").write_text(begun + ended)
    return folder / "run"


@pytest.fixture
def run(kit, tmp_path: Path) -> Path:
    return made(kit, tmp_path / "many", NODES)


def own_address() -> str:
    """An address of this machine that is not loopback; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


def answer(node: str, begun: str, staged: str, ready: str) -> str:
    return f'{{"t": {ready}, "attempt": 1, "event": "node_ready", "node": "{node}", "begun": {begun}, "staged": {staged}}}\n'


def ready(*times: str) -> str:
    """The command that makes of nodes' names what they answer when they are ready."""
    return f"sed 's/.*/{answer('&', *times).strip()}/'"


def start(run: Path, answers: str, nodes: int = NODES) -> subprocess.CompletedProcess[str]:
    """The batch script, with an srun whose prepare step prints what `answers`, some bash, does."""
    stub(run.parent / "bin", "srun", f'if [[ "$*" == *prepare* ]]; then {answers}; fi\n')
    job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_JOB_NODELIST": f"node[0000-{nodes - 1:04}]", "SLURMD_NODENAME": "node0000"}
    return subprocess.run(["bash", "run_script.sh"], cwd=run, env=environment(run.parent / "bin", **job), capture_output=True, text=True, timeout=120)


def test_what_all_nodes_answer_arrives_whole_and_with_the_time_by_which_it_came(run: Path) -> None:
    # In pieces that end in the middle of a line, the second when the script has looked after the first.
    looked = """until grep -q '"heard".*"bytes": 70001}' log/4711/events/batch.jsonl; do sleep 0.02; done"""
    done = start(run, f"{ready('1.25', '2.5', '3.75')} '{run.parent}/hosts' | {{ head -c 70001; {looked}; cat; }}")
    assert done.returncode == 0, done.stderr
    found = moments.read(run / "log/4711")
    assert list(found.nodes) == [f"node{number:04}" for number in range(NODES)]
    answers = [node.prepared for node in found.nodes.values() if node.prepared]
    assert [(answer.begun, answer.staged, answer.ready) for answer in answers] == [(1.25, 2.5, 3.75)] * NODES
    first, *_, second = sorted({answer.arrived for answer in answers})  # a look may have come in the midst of the first piece
    assert sum(answer.arrived < second for answer in answers) == 70001 // len(answer("node0000", "1.25", "2.5", "3.75"))
    assert found.batch["preparing"] < first < second == found.batch["nodes_ready"]


def test_the_late_ones_among_many_are_named(kit, tmp_path: Path) -> None:
    run = made(kit, tmp_path / "many", NODES, ready_timeout_s=2)
    time_from(answered(NODES - NODES // 100), run / "lib/ready.sh")
    done = start(run, f"grep -v '00$' '{run.parent}/hosts' | {ready('1', '2', '3')}; exec sleep 60")
    assert done.returncode == 1
    named = " ".join(f"node{number:02}00" for number in range(10))
    assert f"kit: error: node0000: not ready after 2 s: {named} and {NODES // 100 - 10} more\n  fix: " in done.stderr


def test_a_node_that_was_killed_is_named_at_once_where_thousands_of_ranks_missed_it(kit, tmp_path: Path) -> None:
    run = made(kit, tmp_path / "many", 4000)
    for number in range(1, 4000):
        own = {"node": f"node{number:04}", "rank": number, "local_rank": 0}
        event_lines.add(run / "log/4711", f"node{number:04}", "rank_ended", 1_795_266_353.969723, **own, code=1, stopped=False)
    (run / "log/slurm-4711.out").write_text("srun: error: node0000: task 0: Killed\n")
    before_s = cpu_s()
    done = start(run, f"exec {ready('1', '2', '3')} '{run.parent}/hosts'; else exit 137", 4000)
    assert done.returncode == 137
    assert "kit: error: node0000: nothing there could say why its part of the job ended (srun: Killed); " in done.stderr
    assert cpu_s() - before_s < 15  # a pattern of bash took 45 s, and 64 times as long for eight ranks on each node


def test_nodes_are_named_in_their_order_with_the_tools_of_busybox(tmp_path: Path) -> None:
    script = f'source "{SCRIPTS}/lib/messages.sh"; printf "node%d\\n" {{12..1}} | kit::first_ten'
    done = bash(script, env=environment(PATH=str(busybox(tmp_path / "bin"))))
    assert (done.stdout, done.stderr) == (" ".join(f"node{number}" for number in range(1, 11)) + " and 2 more", "")


def test_ten_thousand_nodes_cost_the_batch_script_what_two_do(kit, run: Path, tmp_path: Path) -> None:
    few = made(kit, tmp_path / "few", 2)
    took: dict[Path, list[float]] = {run: [], few: []}
    for _ in range(2):
        for folder, nodes in ((run, NODES), (few, 2)):
            for name in ("batch", "ready"):
                (folder / f"log/4711/events/{name}.jsonl").unlink(missing_ok=True)
            before_s = cpu_s()
            assert start(folder, f"exec {ready('1.25', '2.5', '3.75')} '{folder.parent}/hosts'", nodes).returncode == 0
            took[folder].append(cpu_s() - before_s)
    # Of the least of each, since other work on this machine adds to both. When bash read all names it was 20 times as much.
    assert min(took[run]) < 10 * min(took[few]), took


def cpu_s() -> float:
    """Of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # in microseconds, unlike os.times
    return used.ru_utime + used.ru_stime


def test_the_addresses_of_ten_thousand_nodes_are_asked_for_at_once_and_are_no_argument(kit, tmp_path: Path) -> None:
    run = made(kit, tmp_path / "many", NODES, "--max-restarts", "3", "--elastic")
    # As getent answers: three lines for each host, of which the first has its name. The first host is this machine, and a Debian.
    answer = """awk '{ a = NR == 1 ? "127.0.1.1" : "10.0." int(NR / 256) "." NR % 256; print a " STREAM " $1 "\\n" a " DGRAM \\n" a " RAW " }'"""
    stub(run.parent / "bin", "getent", f'echo x >>"{run.parent}/asked"; [[ "$1" == ahostsv4 ]] && printf "%s\\n" "${{@:2}}" | {answer}\n')
    done = start(run, f"exec {ready('1', '2', '3')} '{run.parent}/hosts'; else printf '%s\\n' \"$@\" >'{run.parent}/argv'")
    assert done.returncode == 0, done.stderr
    assert (run / "log/4711/addresses.1").read_text().split()[::2] == [own_address(), *(f"10.0.{n // 256}.{n % 256}" for n in range(2, NODES + 1))]
    (named,) = [line for line in (run.parent / "argv").read_text().splitlines() if line.startswith("KIT_ADDRESSES=")]
    assert named == f"KIT_ADDRESSES={run}/log/4711/addresses.1"
    assert len((run.parent / "asked").read_text().splitlines()) < 5


@pytest.mark.parametrize(("nodes", "fits"), [(5000, True), (NODES, False)])
def test_more_workers_than_a_variable_can_name_are_refused(nodes: int, fits: bool, kit, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: [bash, -c, 'printf %s \"${TF_CONFIG}\"']\n")
    kit("render", "job.yaml", "-j", f"{nodes}x1", "--launcher", "tensorflow", "--output", "run", cwd=tmp_path)
    (tmp_path / "addresses").write_text("".join(f"10.0.{100 + n // 256}.{n % 256}\n" for n in range(nodes)))
    facts = {"NNODES": nodes, "NODE_RANK": 0, "MASTER_PORT": 61000, "KIT_ADDRESSES": tmp_path / "addresses", "KIT_LOG_DIR": tmp_path}
    words = [f"{name}={value}" for name, value in facts.items()]
    done = subprocess.run(["bash", "run/tensorflow.sh", *words], cwd=tmp_path, env=environment(TF_CONFIG="{}"), capture_output=True, text=True, timeout=60)
    if fits:
        assert done.returncode == 0, done.stderr
        assert len(json.loads((tmp_path / "rank0.out").read_text())["cluster"]["worker"]) == nodes
    else:
        assert done.returncode == 1
        assert f"TF_CONFIG for {nodes} nodes would have " in done.stderr and "\n  fix: " in done.stderr
