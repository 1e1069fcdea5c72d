"""The events that the scripts note: what is noted, what it costs, and that it never fails a run."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest
from kit.config.mount_list import Mount
from kit.diagnose.why import verdict
from kit.runs import events
from running import SCRIPTS, bash, environment
from test_run_script import JOB_ID, logs, run_dir, slurm, start, told

import event_lines
from samples import HOSTILE_NAME


@pytest.fixture
def quick(kit, tmp_path: Path):
    """Makes a run directory whose ranks are `bash -c PROGRAM`, without torchrun, whose start takes longest."""

    def make(program: str, nodes: int) -> Path:
        (tmp_path / "program.sh").write_text(program)
        (tmp_path / "job.yaml").write_text(f"command: [bash, program.sh]\nlauncher: srun\nnodes: {nodes}\nruntime: none\n")
        kit("render", "job.yaml", "--output", "run")
        return tmp_path / "run"

    return make


def noted(run: Path, attempt: int = 1) -> dict[str, list[dict[str, object]]]:
    """{file: its events of an attempt}."""
    folder = run / f"log/{JOB_ID}/events"
    found = {path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in sorted(folder.iterdir())}
    return {name: [event for event in each if event.get("attempt", 1) == attempt] for name, each in found.items()}


def test_every_event_is_noted_once_and_in_order(tmp_path: Path) -> None:
    mark = """printf '{"t": %s, "event": "first_step", "rank": %d}\\n' "${EPOCHREALTIME}" "${RANK}" >>"${KIT_EVENTS}\""""
    run = run_dir(tmp_path, mark, nodes=2, processes=2)
    before = time.time()
    assert start(run, env=slurm(nodes=2)).returncode == 0
    after = time.time()
    found = noted(run)
    assert list(found) == ["batch", "local0", "local1", "ready"]
    batch = {str(event["event"]): event for event in found["batch"]}
    order = ["start", "nodes_chosen", "preparing", "nodes_ready", "told", "ranks_started", "ranks_ended", "ends"]
    assert [name for name in batch if name != "heard"] == order
    assert len(found["batch"]) == len(order) + [event["event"] for event in found["batch"]].count("heard")
    assert (batch["start"]["nodes"], batch["ends"]["code"], batch["ends"]["outcome"]) == ("local0,local1", 0, "COMPLETED")
    for node in (0, 1):
        # The clock is one here, so all is in order: the batch script's, the node's, the ranks'.
        (answer,) = [event for event in found["ready"] if event["node"] == f"local{node}"]
        of_ranks = [event for event in found[f"local{node}"] if event["event"] != "met"]  # see test_peers
        expected = [(name, rank) for name in ("first_step", "rank_ended", "rank_started") for rank in (2 * node, 2 * node + 1)]
        assert sorted((str(event["event"]), event["rank"]) for event in of_ranks) == expected
        for rank in (0, 1):
            began, step, ended = (
                next(event for event in of_ranks if event["rank"] == 2 * node + rank and event["event"] == name)
                for name in ("rank_started", "first_step", "rank_ended")
            )
            assert (ended["code"], ended["local_rank"], ended["stopped"]) == (0, rank, False)
            moments = [before, answer["begun"], answer["staged"], answer["t"], batch["nodes_ready"]["t"], batch["ranks_started"]["t"]]
            moments += [began["begun"], began["entered"], began["t"], step["t"], ended["t"], after]
            assert moments == sorted(moments)


@pytest.mark.parametrize("broken", ["no folder", "no file"])
def test_a_run_goes_on_without_events(broken: str, quick) -> None:
    run = quick('echo "rank ${RANK}"', nodes=2)
    folder = run / f"log/{JOB_ID}/events"
    folder.parent.mkdir()
    if broken == "no folder":  # a file is in its place
        folder.touch()
    else:
        folder.mkdir()
        for name in ("batch", "ready", "local0", "local1"):
            (folder / f"{name}.jsonl").mkdir()  # nothing can be written there, as on a full disk
    done = start(run, env=slurm(nodes=2))
    assert (done.returncode, told(done)) == (0, ["kit: local0: all ranks ended well"])
    assert {name: text for name, text in logs(run).items() if name != "events"} == {
        "local0.out": "[rank0] rank 0\n",
        "local1.out": "[rank1] rank 1\n",
        "rank0.out": "rank 0\n",
        "rank1.out": "rank 1\n",
    }


def test_a_failure_before_the_ranks_is_noted_with_its_code_and_a_requeued_attempt_has_its_own(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "exit 7", mounts=(Mount(str(tmp_path / "missing"), "/data", True, ""),))
    assert start(run).returncode == 1
    (tmp_path / "missing").touch()
    assert start(run, env=slurm(SLURM_RESTART_COUNT="1")).returncode == 7
    first, second = noted(run, 1), noted(run, 2)
    assert [event["event"] for event in first["batch"] if event["event"] != "heard"] == ["start", "nodes_chosen", "preparing", "node_refused", "ends"]
    assert [(event["event"], event.get("cause")) for event in first["local0"]] == [("node_refused", "mount-missing")]
    assert (first["batch"][-1]["code"], second["batch"][-1]["code"]) == (1, 7)
    assert [event["event"] for event in second["local0"]] == ["rank_started", "rank_ended"]


def test_a_locale_that_a_node_lacks_is_warned_of_by_no_event() -> None:
    done = bash(
        'source "$1"; KIT_ATTEMPT=1; event::line start problem "é"; echo "${KIT_LINE}"', SCRIPTS / "lib/events.sh", env=environment(LC_ALL="xx_XX.UTF-8")
    )
    assert '"problem": "é"' in done.stdout and "events.sh" not in done.stderr, done.stderr


def test_nor_is_it_by_the_secrets_of_each_rank(tmp_path: Path) -> None:
    (tmp_path / "lib").symlink_to(SCRIPTS / "lib")
    (tmp_path / ".secrets").mkdir()
    (tmp_path / ".secrets/values").write_bytes(b"A=1\0B=\xc3\xa9\0")
    env = environment(LC_ALL="xx_XX.UTF-8", KIT_RUN_DIR=str(tmp_path))
    done = bash('source "${KIT_RUN_DIR}/lib/secrets.sh"; secrets::take; echo "${A}${B}"', env=env)
    assert done.stdout == "1é\n" and done.stderr.count("\n") <= 1, done.stderr  # a bash that starts says it once


def test_a_locales_comma_and_a_bash_without_fractions_give_seconds() -> None:
    script = (
        'source "$1"; unset EPOCHREALTIME; EPOCHREALTIME=1700000000,123456; event::now; echo "${KIT_NOW}"; unset EPOCHREALTIME; event::now; echo "${KIT_NOW}"'
    )
    comma, whole = bash(script, SCRIPTS / "lib/events.sh", env=environment()).stdout.split()
    assert comma == "1700000000.123456"
    assert abs(int(whole) - time.time()) < 60


TEXTS = [
    "",
    "two words",
    'a "quote" and a \\ and \\n',
    "lines\nand\ttabs\r",
    "".join(map(chr, range(1, 32))) + "\x7f",
    "é ☃ & \\& $x `y` %s",
    HOSTILE_NAME,
    "5",
    "true",
]


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_arrives_as_it_is_and_printf_makes_it_again(text: str, tmp_path: Path) -> None:
    script = """
    source "${KIT_RUN_DIR}/lib/events.sh"
    KIT_EVENTS="$1/events/n.jsonl"
    event::note node_refused problem "$2" fix "$2"
    problem="$(sed -n 's/.*"problem": "\\([^"]*\\)".*/\\1/p' "${KIT_EVENTS}")"
    printf '%b|' "${problem}"
    """
    (tmp_path / "events").mkdir()
    done = bash(script, tmp_path, text, env=environment(KIT_RUN_DIR=str(SCRIPTS)))
    (event,) = event_lines.read(tmp_path)
    assert (event["problem"], event["fix"]) == (text, text)
    assert done.stdout == text.replace("\r", "\n") + "|"


@pytest.mark.parametrize(
    ("value", "found"), [("7", 7), ("0", 0), ("1763797000.123456", 1763797000.123456), ("true", True), ("007", "007"), ("1e5", "1e5"), ("-", "-"), ("", "")]
)
def test_numbers_are_numbers(value: str, found: object, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    bash('source "$1/lib/events.sh"; KIT_EVENTS="$2/events/n.jsonl"; event::note x code "$3"', SCRIPTS, tmp_path, value, env=environment())
    (event,) = event_lines.read(tmp_path)
    assert event["code"] == found and type(event["code"]) is type(found)


def test_an_event_takes_little_time_and_starts_no_process(tmp_path: Path) -> None:
    script = """
    source "${KIT_RUN_DIR}/lib/events.sh"
    KIT_EVENTS="$1"
    read -ra before <"/proc/$$/stat"
    for ((i = 0; i < 200; i++)); do event::note rank_started rank 7 begun 1700000000.123456 entered 1700000000.123456; done
    read -ra after <"/proc/$$/stat"
    echo "$((after[13] + after[14] - before[13] - before[14]))" # CPU time
    echo "${after[10]}" # page faults of its children: none had any, so there was none
    """
    done = [bash(script, tmp_path / "node", env=environment(KIT_RUN_DIR=str(SCRIPTS))).stdout.split() for _ in range(5)]
    assert len((tmp_path / "node").read_text().splitlines()) == 1000
    ticks = min(int(took) for took, *_ in done)
    assert ticks / os.sysconf("SC_CLK_TCK") / 200 < 0.003, "seconds of CPU time: three times what it takes on a slow machine"
    assert {faults for _, faults in done} == {"0"}


def test_every_cause_and_every_event_that_a_script_names_is_known() -> None:
    lines = [line for path in SCRIPTS.rglob("*.sh") for line in path.read_text().splitlines()]
    text = "\n".join(line.partition(" # ")[0] for line in lines if not line.startswith("#"))
    causes = re.findall(r"kit::die .*?\" ([a-z-]+)$|kit::die [^\n]*\\\n.*?\" ([a-z-]+)$|cause=([a-z-]+)|explain_absence ([a-z-]+)", text, re.MULTILINE)
    named = {name for found in causes for name in found if name}
    assert len(named) > 15 and named <= verdict.CAUSE_NAMED.keys()
    documented = set(
        re.findall(
            r"`(\w+)`", "".join(line.split("|")[1] for line in (SCRIPTS.parents[1] / "docs/events.md").read_text().splitlines() if line.startswith("| `"))
        )
    )
    written = set(re.findall(r"event::(?:note|line) (\w+)", text))
    assert written == documented - {"first_step"}
    assert set(events.FAILURES) <= written


def test_a_fifo_or_a_device_among_the_events_and_logs_keeps_nobody_waiting(quick) -> None:
    make = 'cd "${KIT_EVENTS%/*}"; mkfifo a.jsonl ../rank7.out; ln -s /dev/zero b.jsonl; rm -f batch.jsonl; mkfifo batch.jsonl; exit 3'
    run = quick(make, nodes=1)
    done = start(run, env=slurm(nodes=1), timeout_s=120)
    assert done.returncode == 3 and "rank 0 (local rank 0) exited with code 3" in done.stderr
    assert [failed.rank for failed in events.failed_ranks(events.read(run / f"log/{JOB_ID}"))] == [0]


def test_an_event_is_noted_where_another_rank_makes_the_file_at_that_moment(tmp_path: Path) -> None:
    """The file appears between the two questions about it: each use of the variable calls `step`, and the third one makes the file."""
    text = """
    step() { echo >>"$1/uses"; [[ "$(wc -l <"$1/uses")" -lt 3 ]] || touch "$1/node1.jsonl"; echo 0; }
    here="$1" files=("$1/node1.jsonl") KIT_ATTEMPT=1
    source "$2/lib/events.sh"
    declare -n KIT_EVENTS='files[$(step "${here}")]'
    event::note rank_started rank 3
    """
    done = bash(text, tmp_path, SCRIPTS, env=environment())
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "uses").read_text()) >= 3
    assert [event["rank"] for event in map(json.loads, (tmp_path / "node1.jsonl").read_text().splitlines())] == [3]
