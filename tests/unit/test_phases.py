"""kit timeline, from events that a real job of three nodes left: train/digits.py under Apptainer, with node3 slow to copy the image."""

from __future__ import annotations

import fcntl
import os
import pty
import random
import re
import resource
import shutil
import struct
import subprocess
import sys
import termios
import time
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from kit.base.errors import KitError, UsageError
from kit.diagnose.timeline import chart, moments, timeline
from kit.runs import history, run_dir

import event_lines
from plans import noted_run, plan_of
from samples import HOSTILE_NAME, ROOT, everything

RECORDED = ROOT / "tests/unit/recorded"
START = 1795266353.969723  # of the batch script
SUBMITTED = 1795266353.037251
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A copy of the recorded log folder."""
    shutil.copytree(RECORDED / "events", tmp_path / "logs/events")
    return tmp_path / "logs"


def made(logs: Path, attempt: int | None = None, ended: bool = False) -> timeline.Timeline:
    return timeline.make(moments.read(logs, attempt), "digits (4)", SUBMITTED, ended)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    changed = re.sub(old, new, text, flags=re.MULTILINE)
    assert changed != text
    path.write_text(changed)


def shift(logs: Path, node: str, by: float) -> None:
    """Sets the node's clock forward."""

    def later(line: str) -> str:
        return re.sub(r'("(?:t|begun|staged|entered)": )([\d.]+)', lambda found: f"{found[1]}{float(found[2]) + by:.6f}", line)

    for name in ("ready", node):
        path = logs / f"events/{name}.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(later(line) if name == node or f'"{node}"' in line else line for line in lines))


def test_the_recorded_run_shows_what_each_phase_took_and_who_was_slowest(logs: Path) -> None:
    assert "".join(f"{line.plain}\n" for line in chart.picture(made(logs), 100)) == SHOWN


SHOWN = """\
digits (4): 3 nodes; ended after 60.2 s

node1  qqssssss-------------------------CRRRRRRRRRRRRRRRRRR11111111111111111111111111111111111111111
node2  qqssssss-------------------------CRRRRRRRRRRRRRRRRRR11111111111111111111111111111111111111111
node3  qqsssssssssssssssssssssssssssssssCRRRRRRRRRRRRRRRRRR11111111111111111111111111111111111111111
        |0         |5         |10       |15        |20       |25        |30        |35       |40
seconds since the batch script's start

PHASE         LEAST   MEDIAN  MOST    SLOWEST
q queue       0.93 s  0.93 s  0.93 s  -          submitted, until the batch script starts
. launch      0.23 s  0.33 s  0.36 s  node1      srun, and the batch script's own work
s stage       2.47 s  2.51 s  14.3 s  node3      mounts checked, the image sent or copied
c create      0.01 s  0.02 s  0.05 s  node3      image checked, the container made
- wait        0.01 s  11.8 s  11.8 s  for node3  ready, until all nodes are
C container   0.37 s  0.51 s  0.62 s  node3      its start, until the launcher is inside
R rendezvous  8.11 s  8.30 s  8.57 s  node2      until the node's last rank starts its program
1 step        19.4 s  19.4 s  19.5 s  node3      the program, until its first step is done
"""


def test_the_spans_of_a_node_follow_each_other_and_add_up(logs: Path) -> None:
    rows = made(logs).nodes
    assert len(rows) == 3
    for row in rows:
        assert [span.phase for span in row.spans] == "queue launch stage launch stage create wait launch container rendezvous step".split()
        assert row.spans[0].begin_s == SUBMITTED - START and row.spans[1].begin_s == 0
        assert all(one.end_s == other.begin_s for one, other in zip(row.spans, row.spans[1:]))
        assert row.spans[-1].end_s == pytest.approx(1795266396.9 - START, abs=0.05)
        assert not row.note and row.clock_ahead_s == 0


@pytest.mark.parametrize("by", [100.0, -100.0])
def test_a_clock_that_differs_is_corrected_and_named(by: float, logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right = made(logs)
    shift(logs, "node2", by)
    wrong = made(logs)
    assert [row.clock_ahead_s for row in wrong.nodes if row.node != "node2"] == [0, 0]
    assert wrong.nodes[1].clock_ahead_s == pytest.approx(by, abs=0.1)
    for phase in ("stage", "create", "container", "rendezvous", "step"):  # which one clock alone measures
        assert wrong.nodes[1].length(phase) == pytest.approx(right.nodes[1].length(phase), abs=1e-5)
    for phase in ("launch", "wait"):
        assert wrong.nodes[1].length(phase) == pytest.approx(right.nodes[1].length(phase), abs=0.2)
    word = "ahead" if by > 0 else "behind"
    assert re.search(
        rf"^clocks {word} of the first node's, at least, and corrected for it here: node2 by (99\.9|100\.0)\d s$", "\n".join(chart.remarks(wrong)), re.M
    )


def test_a_small_difference_that_nothing_contradicts_is_left_alone(logs: Path) -> None:
    shift(logs, "node2", -0.01)
    assert made(logs).nodes[1].clock_ahead_s == 0


def test_what_is_missing_is_said_of_each_node(logs: Path) -> None:
    edit(logs / "events/ready.jsonl", r"^.*node3.*\n", "")
    edit(logs / "events/batch.jsonl", r"^.*(nodes_ready|ranks_started).*\n", "")
    edit(logs / "events/batch.jsonl", r'"code": 0', '"code": 1')
    for path in (logs / "events").glob("node*"):
        path.unlink()
    found = made(logs)
    assert [row.note for row in found.nodes] == ["", "", "not ready"]
    assert found.nodes[2].spans[-1].phase == "unfinished" and found.nodes[2].spans[-1].end_s == pytest.approx(found.end_s)
    assert chart.heading(found) == "digits (4): 3 nodes; ended after 60.2 s with code 1"
    assert chart.remarks(found)[0] == "not ready: node3"
    assert "?" * 50 in "\n".join(line.plain for line in chart.picture(found, 100))


def test_ranks_that_never_started_are_counted(logs: Path) -> None:
    edit(logs / "events/node2.jsonl", r'^.*rank_started.*"rank": 3.*\n', "")
    (logs / "events/node3.jsonl").unlink()
    assert [row.note for row in made(logs).nodes] == ["", "1 of 2 ranks started", "no rank started"]


def test_an_unfinished_run_lasts_until_now_and_one_that_was_killed_until_its_last_event(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(logs / "events/batch.jsonl", r'^.*"ends".*\n', "")
    (logs / "events/node3.jsonl").unlink()
    monkeypatch.setattr(time, "time", lambda: START + 500)
    assert made(logs).span == (SUBMITTED - START, pytest.approx(500))
    assert made(logs, ended=True).span[1] == pytest.approx(42.9, abs=0.1)
    assert made(logs).end_s is None


def test_the_last_attempt_is_shown_or_the_one_that_was_asked_for(logs: Path) -> None:
    first = (logs / "events/batch.jsonl").read_text()
    first = re.sub(r'"t": [\d.]+(, .*"ends".*"code": )0', rf'"t": {START - 3:.6f}\g<1>7', first)
    for path in (logs / "events").iterdir():
        edit(path, r'"attempt": 1', '"attempt": 2')
    batch = logs / "events/batch.jsonl"
    batch.write_text(first + batch.read_text())
    last = made(logs)
    assert last.exit_code == 0 and last.nodes[0].length("queue") == pytest.approx(3)  # since the end of the first
    assert made(logs, attempt=1).exit_code == 7
    with pytest.raises(UsageError, match="--attempt: there is no attempt 3\n  fix: there are: 1, 2"):
        made(logs, attempt=3)


def test_a_job_that_goes_on_for_a_preempted_one_waits_from_the_end_of_that(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for job in ("4", "5"):
        shutil.copytree(logs, tmp_path / "run/log" / job)
    edit(tmp_path / "run/log/4/events/batch.jsonl", r'"t": [\d.]+(, .*"ends")', rf'"t": {START - 3:.6f}\1')
    (tmp_path / "run/log/4/continued-by").write_text("5\n")
    history.add(history.Run("4", str(tmp_path / "run"), "digits", "3x2", START - 100))
    found = timeline.of_run("digits", None, None)
    assert found.title == "digits (5)" and found.nodes[0].length("queue") == pytest.approx(3)


def test_torn_lines_and_what_programs_write_do_no_harm(logs: Path) -> None:
    right = made(logs)
    lines = [
        b'{"t": 1, "event": "first_step", "rank": 0',
        b'{"t": NaN, "event": "first_step", "rank": 1}',
        b'{"t": 1e999, "event": "rank_started", "rank": 1}',
        b'{"t": true, "event": "ends", "code": 7}',
        b'{"t": "5", "event": "ends", "code": 7}',
        b'{"t": 5, "event": ["ends"]}',
        b'{"t": 5, "attempt": -1, "event": "node_ready", "node": {}, "begun": "x"}',
        b'{"t": 5, "event": "rank_started", "rank": 0, "begun": 1e99, "entered": -1}',
        b'{"t": 5, "attempt": 99999999999999999999, "event": "heard", "bytes": 9e9}',
        b"\xff\xfe \x00",
        b"[" * 100000,
        b"9" * 5000,
        b"step 0 1795266396.872966",
        b'{"t": 17952',
    ]
    for path in (logs / "events").iterdir():
        with path.open("ab") as file:
            file.write(b"\n".join(lines))
    assert made(logs).nodes == right.nodes


def test_a_run_without_events_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KitError, match=r"there are no events of a start in .*\n  fix: it may be waiting still"):
        moments.read(tmp_path)


def test_a_long_queue_is_cut_and_said(logs: Path) -> None:
    found = timeline.make(moments.read(logs), "x", START - 7200)
    begin, end = found.span
    assert begin == pytest.approx(-end / 4)
    assert "seconds since the batch script's start (the queue, 2h 0m, is cut)" in [line.plain for line in chart.picture(found, 80)]


def drawn(found: timeline.Timeline, tmp_path: Path) -> str:
    chart.save(found, tmp_path / "x.svg")
    return (tmp_path / "x.svg").read_text()


def texts(picture: str) -> str:
    """All text of an SVG, with plain blanks."""
    return "\n".join(item.text or "" for item in ElementTree.fromstring(picture).iter(f"{SVG}text")).replace("\xa0", " ")


def test_the_picture_shows_what_the_terminal_shows_with_a_colour_for_each_phase(logs: Path, tmp_path: Path) -> None:
    picture = drawn(made(logs), tmp_path)
    said = texts(picture)
    for words in ("digits (4): 3 nodes; ended after 60.2 s", "node1", "node2", "node3", "SLOWEST", "rendezvous"):
        assert words in said, words
    fills = {item.get("fill") for item in ElementTree.fromstring(picture).iter(f"{SVG}rect")}
    letters = set(chart.picture(made(logs), chart.PICTURE_CELLS)[2].plain.split()[1])
    assert len(letters) > 4 and {chart.COLOURS[phase] for phase, sign in chart.SIGNS.items() if sign in letters} <= fills
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "").replace("https://github.com/Textualize/rich", "").replace(
        "https://www.textualize.io", ""
    )


def test_the_picture_in_the_documentation_is_of_the_recorded_run(logs: Path, tmp_path: Path) -> None:
    """After a wanted change: KIT_UPDATE_GOLDEN=1 pytest tests/unit/test_phases.py, and look at it."""
    file = ROOT / "docs/timeline.svg"
    if os.environ.get("KIT_UPDATE_GOLDEN") == "1":
        file.write_text(drawn(made(logs), tmp_path))
    assert file.read_text() == drawn(made(logs), tmp_path)


def test_hostile_names_stay_text(logs: Path, tmp_path: Path) -> None:
    title = f"{HOSTILE_NAME}\x1b[31m</text><script>\udc80 (4)"
    found = timeline.make(moments.read(logs), title, SUBMITTED)
    picture = drawn(found, tmp_path).encode()  # no lone surrogate is left
    assert ElementTree.fromstring(picture).findall(f".//{SVG}script") == []
    assert "\x1b" not in "".join(line.plain for line in chart.picture(found, 100))


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory of 1,000 nodes of 8 ranks: the recorded one, spread by up to a tenth of a second; node0500 slow to copy."""
    run = tmp_path_factory.mktemp("thousand")
    logs = run / "log/4"
    spread = random.Random(0)
    names = [f"node{number:04}" for number in range(1000)]
    ready = []
    for name in names:
        late = spread.random() / 10
        staged = START + 3 + late + (20 if name == "node0500" else 0)
        ready.append((staged + 0.05, {"node": name, "begun": START + late + 0.1, "staged": staged}))
        begun = START + 25 + late
        for rank in range(8):
            rank_begun = {"node": name, "rank": rank, "begun": begun, "entered": begun + 1}
            event_lines.add(logs, name, "rank_started", begun + 5 + spread.random(), **rank_begun)
            event_lines.add(logs, name, "first_step", begun + 9, node=name, rank=rank)
    event_lines.add(logs, "batch", "start", START, nodes="node[0000-0999]")
    event_lines.add(logs, "batch", "preparing", START + 0.05)
    event_lines.add(logs, "batch", "nodes_chosen", START + 0.05, nodes="node[0000-0999]")
    for at_s, values in sorted(ready, key=lambda answer: answer[0]):
        event_lines.add(logs, "ready", "node_ready", at_s, **values)
        event_lines.add(logs, "batch", "heard", at_s + 0.05, bytes=(logs / "events/ready.jsonl").stat().st_size)
    event_lines.add(logs, "batch", "nodes_ready", START + 24)
    event_lines.add(logs, "batch", "ranks_started", START + 24)
    return run


def test_of_a_thousand_nodes_the_slowest_have_a_bar_and_the_others_a_median(thousand: Path) -> None:
    found = timeline.make(moments.read(thousand / "log/4"), "x", SUBMITTED)
    rows = chart.chosen(found.nodes)
    assert len(rows) <= chart.MOST_ROWS and rows[-1].node == "(median)" and "node0500" in [row.node for row in rows]
    assert rows[-1].length("stage") == pytest.approx(2.9, abs=0.01)
    phases = {row[0].split()[1]: row for row in chart.phases(found)}
    assert (phases["stage"][4], phases["wait"][4]) == ("node0500", "for node0500")
    assert (phases["stage"][1], phases["stage"][3]) == ("2.90 s", "22.9 s")


def cpu_s() -> float:
    """Of all child processes that have ended: on a busy machine the clock would tell of the others."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_thousand_nodes_cost_a_few_starts_of_kit(thousand: Path, kit_anew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    noted_run(thousand, "big", 1000, 8, "4", local=False)
    took, bare = [], []
    for _ in range(3):
        start = cpu_s()
        kit_anew("--version")
        bare.append(cpu_s() - start)
        start = cpu_s()
        shown = kit_anew("timeline", "big", "--svg", "x.svg", XDG_STATE_HOME=str(tmp_path / "state")).stdout
        took.append(cpu_s() - start)
    assert "of 1000 nodes, the slowest of each phase" in shown and shown.endswith("kit: wrote x.svg\n")
    assert min(took) < 25 * min(bare), (took, bare)  # what a start of kit costs at this moment, as a measure of the machine


@pytest.mark.parametrize("columns", [40, 160])
def test_bars_are_as_wide_as_the_terminal(columns: int, thousand: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    noted_run(thousand, "big", 1000, 8, "4", local=False)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    done = subprocess.run([sys.executable, "-m", "kit", "timeline", "big"], stdout=theirs, stdin=theirs, env=environment, timeout=60)
    os.close(theirs)
    shown = everything(ours)
    assert done.returncode == 0
    lines = shown.decode().splitlines()
    bar = [line for line in lines if line.startswith("node0500 ")]
    assert len(bar) == 1 and len(bar[0]) == columns
    assert max(len(line) for line in lines if re.match(r"node\d|\(median| +\|", line)) == columns


@pytest.mark.parametrize("job_id", ["4", "5", "6", "6_1"])
def test_the_queue_of_a_job_that_was_submitted_by_hand_later_is_not_known(job_id: str, logs: Path, tmp_path: Path, kit_here) -> None:
    """The job 4 is that of kit submit, and 5 goes on for it."""
    run = tmp_path / "run"
    run_dir.write(plan_of(run_dir=str(run)))
    run_dir.update(run, {"job_id": "4"})
    shutil.copytree(logs, run / "log" / job_id)
    if job_id == "5":
        event_lines.add(run / "log/4", "batch", "ends", SUBMITTED, code=1)
        (run / "log/4/continued-by").write_text("5\n")
    history.add(replace(noted_run(run, "digits", 3, 2, job_id, local=False), created_s=SUBMITTED))
    shown = kit_here("timeline", job_id).out
    assert ("queue" in shown) == (job_id in "45") and "container" in shown


def test_a_run_on_this_machine_has_a_timeline_without_a_queue(kit, tmp_path: Path) -> None:
    (tmp_path / "program.sh").write_text(
        '[ "$1" != mark ] || printf \'{"t": %s, "event": "first_step", "rank": %d}\\n\' "${EPOCHREALTIME}" "${RANK}" >>"${KIT_EVENTS}"\n'
    )
    (tmp_path / "job.yaml").write_text("command: [bash, program.sh]\nlauncher: srun\nnodes: 2\nprocesses_per_node: 2\n")
    for word in ("mark", "nothing"):
        kit("run", "job.yaml", "--output", word, "--", word)
        shown = kit("timeline", word).stdout
        phases = re.findall(r"^\S (\w+) +[\d.]+ s ", shown, re.MULTILINE)
        assert phases == ["launch", "stage", "create", "wait", "container", "rendezvous", *(["step"] if word == "mark" else [])], shown
        assert ("the program marked no first step: docs/timeline.md says how\n" in shown) == (word == "nothing")
