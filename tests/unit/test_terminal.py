"""Nothing that others wrote acts on the terminal: the streams of the command line see to it, whichever command prints."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit.base import console
from kit.cli import tables
from kit.runs import history

import event_lines
from samples import everything
from strangers import ACTS

ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m\r\b\x7f\u202e\udc9b"
SHOWN = "?]0;title??[2J?31m?????"
PROGRAM = """
import sys
from kit.base import console
from kit.cli import tables
from kit.cli import entry, tables
entry._open_streams()
console.draw("half \\x1b]0;x\\x07")
console.draw("")
print("a\\x1b[2J", file=sys.stderr)
"""


def test_characters_that_act_are_shown_as_question_marks() -> None:
    written = io.BytesIO()
    stream = console.guarded(before := io.TextIOWrapper(written, "utf-8", line_buffering=True))
    print(f"one\ttwo\n{ESCAPES} é☃ \ud800", file=stream)
    assert written.getvalue().decode() == f"one\ttwo\n{SHOWN} é☃ \\ud800\n"
    assert stream.line_buffering and stream.encoding == before.encoding


def test_kits_own_line_is_drawn_over_and_its_text_does_not_act() -> None:
    ours, theirs = os.openpty()
    subprocess.run([sys.executable, "-c", PROGRAM, "x"], stderr=theirs, check=True)
    os.close(theirs)
    shown = everything(ours).decode()
    assert shown == "\rhalf ?]0;x?\x1b[K\r\x1b[Ka?[2J\r\n"


def test_a_table_has_a_line_for_each_row_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show([("NAME", "STATE"), ("a\nb\x1b[2J", "x")])
    assert capsys.readouterr().out == "NAME     STATE\na?b?[2J  x\n"


ROWS = [("ID", "STATE", "WHY"), ("4711", "FAILED", "[red]" + "a reason of many words " * 9), ("4712", "COMPLETED", "a\x1b[2J")]
TABLE = f"from kit.cli import tables; tables.show({ROWS!r})"


def on_a_terminal(**environment: str) -> str:
    """What the table looks like on a terminal, of 60 columns without another word."""
    ours, theirs = os.openpty()
    table = environment.pop("TABLE", TABLE)
    subprocess.run([sys.executable, "-c", table], stdout=theirs, check=True, env={**os.environ, "COLUMNS": "60", "TERM": "xterm", **environment})
    os.close(theirs)
    return everything(ours).decode()


def test_a_table_fits_the_terminal_with_colours_and_loses_no_word() -> None:
    shown = on_a_terminal(NO_COLOR="")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "\x1b[31mFAILED" in shown and "\x1b[32mCOMPLETED" in shown
    assert "[red]a reason" in plain and "a?[2J" in plain and plain.count("reason") == 9
    assert max(map(len, plain.splitlines())) <= 60


def test_a_terminal_that_is_too_narrow_for_a_table_breaks_its_lines_itself() -> None:
    """Cells of two characters could not be read."""
    shown = on_a_terminal(COLUMNS="20", NO_COLOR="").replace("\r", "")
    assert "\x1b[31mFAILED" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert plain == ["ID    STATE      WHY", f"4711  FAILED     {ROWS[1][2].rstrip()}", "4712  COMPLETED  a?[2J"]


def test_an_id_is_never_folded() -> None:
    rows = [("ID", *"ABCDEFG"), ("1980032344_12", *["some names"] * 7)]
    shown = on_a_terminal(COLUMNS="75", NO_COLOR="1", TABLE=TABLE.replace(repr(ROWS), repr(rows)))
    assert shown.count("\n1980032344_12  ") == 1 and "some names  some names" not in shown


def test_a_terminal_without_utf8_shows_a_table_too() -> None:
    """With the streams as the command line has them."""
    program = 'import sys; from kit.base import console; from kit.cli import tables; sys.stdout = console.guarded(sys.stdout); tables.show([("A",), ("é☃",)])'
    ours, theirs = os.openpty()
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "TERM": "xterm"}
    subprocess.run([sys.executable, "-c", program], stdout=theirs, check=True, env=environment)
    os.close(theirs)
    assert "\\xe9\\u2603" in everything(ours).decode()


def test_no_color_is_heeded_on_a_terminal() -> None:
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", on_a_terminal(NO_COLOR="1"))


@pytest.mark.parametrize("forced", [False, True])
def test_a_pipe_gets_one_whole_line_for_each_row(forced: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR")}
    more = {"COLUMNS": "60", **({"FORCE_COLOR": "1", "TERM": "xterm"} if forced else {})}
    done = subprocess.run([sys.executable, "-c", TABLE], env={**environment, **more}, capture_output=True, text=True, check=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    assert [" ".join(line.split()) for line in plain.splitlines()] == ["ID STATE WHY", " ".join(f"4711 FAILED {ROWS[1][2]}".split()), "4712 COMPLETED a?[2J"]
    assert ("\x1b[31m" in done.stdout) == forced


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose name, record and logs are full of escape sequences."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "one"
    (folder / "log/5").mkdir(parents=True)
    for name in ("slurm-5.out", "5/rank0.out", f"5/{ESCAPES.replace('/', '')}.out"):
        (folder / "log" / name).write_bytes(f"kit: error: {ESCAPES[:-1]}\n".encode())
    event_lines.add(folder / "log/5", "batch", "start", node=ESCAPES, nodes=ESCAPES, job=ESCAPES, log=0)
    event_lines.add(folder / "log/5", "batch", "node_refused", node=ESCAPES, cause="refused", problem=ESCAPES, fix=ESCAPES)
    event_lines.of_rank(folder / "log/5", 0, "1 node1 0")
    (folder / "run.json").write_text(json.dumps({"job_id": "5", "kit": ESCAPES, "plan": {"layout": {"name": ESCAPES}, "container": {"image": ESCAPES}}}))
    history.add(history.Run("5", str(folder), f"a{ESCAPES[:-1]}", "1x1", time.time(), True, "FAILED", ESCAPES[:-1]))
    return folder


@pytest.mark.parametrize("words", [("status", "5"), ("why", "5"), ("exec", "5", "--", "true"), ("logs", ESCAPES)])
def test_no_command_lets_a_run_act_on_the_terminal(words: tuple[str, ...], run: Path) -> None:
    environment = {**os.environ, "XDG_STATE_HOME": str(run.parent / "state")}
    done = subprocess.run([sys.executable, "-m", "kit", *words], cwd=run.parent, env=environment, capture_output=True)
    said = done.stdout + done.stderr
    assert done.returncode in (0, 1, 2) and said and not ACTS.search(said.decode()), said


def test_a_programs_own_words_are_shown_byte_for_byte(run: Path) -> None:
    environment = {**os.environ, "XDG_STATE_HOME": str(run.parent / "state")}
    (run / "log/5/rank0.out").write_bytes(b"\x1b[32mgreen\x1b[0m \xff\r50 %\n")
    done = subprocess.run([sys.executable, "-m", "kit", "logs", "5", "--rank", "0"], env=environment, capture_output=True, check=True)
    assert done.stdout == b"\x1b[32mgreen\x1b[0m \xff\r50 %\n"


LOG = "import os, sys\nfrom kit.cli import entry\nsys.argv = ['kit', 'logs', '6']\nentry.main()\n"
LINES = "[rank0] one\n[rank1] two\nkit: [rank1] is no prefix\n[rank10] \x1b[31mthe program's own\n[node2] of spawn\n[rankx] x\n"


@pytest.fixture
def two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "six/log/6").mkdir(parents=True)
    (tmp_path / "six/log/6/node1.out").write_text(LINES)
    history.add(history.Run("6", str(tmp_path / "six"), "six", "1x2", time.time(), True, "COMPLETED"))


def shown_log(on_tty: bool, **environment: str) -> str:
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    env = {**plain, "TERM": "xterm", **environment}
    if not on_tty:
        return subprocess.run([sys.executable, "-c", LOG], stdout=subprocess.PIPE, check=True, env=env).stdout.decode()
    ours, theirs = os.openpty()
    subprocess.run([sys.executable, "-c", LOG], stdout=theirs, check=True, env=env)
    os.close(theirs)
    return everything(ours).decode().replace("\r\n", "\n")


COLOURED = (
    "\x1b[36m[rank0] \x1b[0mone\n\x1b[33m[rank1] \x1b[0mtwo\nkit: [rank1] is no prefix\n"
    "\x1b[36m[rank10] \x1b[0m\x1b[31mthe program's own\n\x1b[32m[node2] \x1b[0mof spawn\n[rankx] x\n"
)


@pytest.mark.parametrize(
    ("on_tty", "variables", "coloured"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
        (False, {"FORCE_COLOR": "1"}, True),
    ],
)
def test_each_rank_has_a_colour_where_there_are_colours_and_its_words_stay_as_they_are(
    on_tty: bool, variables: dict[str, str], coloured: bool, two_ranks: None
) -> None:
    assert shown_log(on_tty, **variables) == (COLOURED if coloured else LINES)
