"""A command that is kept alive on a login node: what it says is there in order, once, whoever follows it and from where."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from kit.files import notes
from kit.remote import keeper, records, service, session
from kit.remote.landing import MARK

ID = "0123456789abcdef"
OLD = time.time() - 30 * 86400


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def begin(folder: Path, script: str, **more: object) -> Path:
    made = session.make(str(folder), ID)
    assert made
    request = {"command": [sys.executable, "-c", script], "workdir": str(folder), "environment": {}, "history": 0, "stays": False, "umask": 0o022, **more}
    keeper.start(made, request)
    return made


def spool(call: Path) -> list[dict[str, object]]:
    """What was kept, when the command has ended; after a minute, without its end."""
    end_s = time.monotonic() + 60
    while session.state(str(call.parent.parent), ID) == "running" and time.monotonic() < end_s:
        time.sleep(0.02)
    found: list[dict[str, object]] = []
    for line in map(json.loads, (call / "spool").read_bytes().splitlines()):
        (name,) = line
        if found and list(found[-1]) == [name] and name in ("out", "err"):
            line = {name: found.pop()[name] + line[name]}  # two of one stream are one
        found.append(line)
    return found


def test_what_it_says_is_kept_by_stream_with_its_code_and_without_its_silence(tmp_path: Path) -> None:
    kept = f"while not os.path.getsize({str(session.place(str(tmp_path), ID) / 'spool')!r}): time.sleep(0.02)"
    call = begin(tmp_path, f"import os, sys, time\nprint('a', flush=True)\n{kept}\ntime.sleep(0.5)\nprint('b', file=sys.stderr, flush=True)\nsys.exit(7)")
    assert spool(call) == [{"out": "a\n"}, {"err": "b\n"}, {"exit": 7}]
    assert session.state(str(tmp_path), ID) == "ended"


def test_a_signal_reaches_it_and_its_code_is_that_of_the_signal(tmp_path: Path) -> None:
    call = begin(tmp_path, "import time; print('a', flush=True); time.sleep(60)")
    while not (call / "spool").stat().st_size:
        time.sleep(0.02)
    session.tell(str(tmp_path), ID, 15)
    assert spool(call)[-1] == {"exit": 143}


def test_one_that_nobody_follows_is_ended_unless_it_is_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "UNFOLLOWED_S", -1.0)
    call = begin(tmp_path, "import time; time.sleep(60)")
    assert spool(call) == [{"exit": 143}]
    session.forget(str(tmp_path), ID)
    call = begin(tmp_path, "import time; time.sleep(0.5)", stays=True)
    assert spool(call) == [{"exit": 0}]


def test_runs_that_it_notes_are_told(tmp_path: Path) -> None:
    history = tmp_path / "state/kit/runs.jsonl"
    history.parent.mkdir(parents=True)
    history.write_text('{"id": "1"}\n')
    script = f"open({str(history)!r}, 'a').write('{{\"id\": \"2\"}}\\n')"
    call = begin(tmp_path, script, history=history.stat().st_size)
    assert spool(call) == [{"run": {"id": "2"}}, {"exit": 0}]


def test_a_number_is_begun_once(tmp_path: Path) -> None:
    assert session.make(str(tmp_path), ID) and session.make(str(tmp_path), ID) is None
    assert session.state(str(tmp_path), ID) == "nothing" == session.state(str(tmp_path), "f" * 16)


def test_bytes_that_are_no_text_are_kept(tmp_path: Path) -> None:
    call = begin(tmp_path, "import os; os.write(1, bytes(range(256)))")
    said, _ = spool(call)
    assert str(said["out"]).encode("utf-8", "surrogateescape") == bytes(range(256))


def test_it_asks_the_homes_file_server_about_once_a_second_and_its_follower_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touched, asked = set(), []
    is_alive = session.is_alive
    call = begin(tmp_path, "import time; time.sleep(3)")
    monkeypatch.setattr(session, "is_alive", lambda place: asked.append(place) or is_alive(place))
    follower = threading.Thread(target=service.follow, args=(str(tmp_path), ID, 0, "MARK"))
    follower.start()
    while follower.is_alive():
        touched.add((call / "lock").stat().st_mtime_ns)
        time.sleep(0.02)
    assert len(touched) < 15 and len(asked) < 6, (len(touched), len(asked))


# Begins a command that says 1 MB, and prints the spool when it has ended.
ON_A_FULL_DISK = """\
import sys, time
from pathlib import Path
from kit.remote import keeper, session
made = session.make(sys.argv[1], sys.argv[2])
script = "import os; [os.write(1, b'x' * 10000) for _ in range(100)]; raise SystemExit(7)"
command = [sys.executable, "-c", script]
keeper.start(made, {"command": command, "workdir": "/", "environment": {}, "history": 0, "stays": False, "umask": 0o022})
while session.state(sys.argv[1], sys.argv[2]) == "running":
    time.sleep(0.02)
print((made / "spool").read_text(), end="")
"""


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed: apt-get install bubblewrap")
def test_a_full_disk_costs_its_output_and_not_its_end(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    confined = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--size", str(200 << 10), "--tmpfs", str(disk), "--"]
    done = subprocess.run([*confined, sys.executable, "-c", ON_A_FULL_DISK, str(disk), ID], capture_output=True, text=True, timeout=60)
    *output, said, end = map(json.loads, done.stdout.splitlines())
    assert end == {"exit": 7}, done.stderr
    what = f"kit: the rest of the output is lost: {disk}/calls/{ID}: No space left on device"
    assert said == {"err": f"{what}\n  fix: free space there: df -h, quota -s\n"}
    assert output and all(set(line["out"]) == {"x"} for line in output)


def test_what_it_leaves_in_the_background_keeps_nobody_waiting(tmp_path: Path) -> None:
    left = tmp_path / "left"
    call = begin(tmp_path, f"import subprocess; left = subprocess.Popen(['sleep', '300']); open({str(left)!r}, 'w').write(str(left.pid)); print('a')")
    found = spool(call)
    os.kill(int(left.read_text()), signal.SIGKILL)
    assert found == [{"out": "a\n"}, {"exit": 0}]


@pytest.mark.parametrize("skipped", [0, 1, 2])
def test_who_follows_from_any_line_gets_the_rest(skipped: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    call = begin(tmp_path, "import time; print('a', flush=True); time.sleep(0.3); print('b', flush=True)")
    assert spool(call)
    lines = (call / "spool").read_bytes().splitlines(keepends=True)
    service.follow(str(tmp_path), ID, len(b"".join(lines[:skipped])), "MARK")
    assert capfd.readouterr().out.encode() == b"\nMARK\n" + b"".join(lines[skipped:])


def test_a_second_terminal_follows_a_build_while_the_first_one_does() -> None:
    call = records.SentCall(ID, "far", "/project", ["/project", "build"])

    def follow() -> None:
        with records.under_way(call):
            pass

    with records.under_way(call):
        assert records.unheard(call, also_live=False) is None and records.unheard(call, also_live=True) == call
        second = threading.Thread(target=follow, daemon=True)
        second.start()
        second.join(60)
        assert not second.is_alive(), "it waits for the first one's end"
    assert records.unheard(call, also_live=True) is None


def test_one_that_was_killed_is_said_to_be(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = session.make(str(tmp_path), ID)
    assert made
    (made / "lock").write_text(os.uname().nodename)
    (made / "spool").write_text('{"out": "a"}\n{"exit": 0')  # cut off
    assert session.state(str(tmp_path), ID) == "killed"
    service.follow(str(tmp_path), ID, 0, "MARK")
    assert capfd.readouterr().out.endswith('\n{"out": "a"}\n{"is_killed": true}\n')


def test_one_whose_folder_is_gone_is_said_to_be(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    service.follow(str(tmp_path), ID, 0, "MARK")
    assert capfd.readouterr() == ('\nMARK\n{"is_gone": true}\n', "")


def test_a_token_that_another_first_command_is_writing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    file = notes.folder() / "origin"
    file.parent.mkdir(parents=True)
    found: list[str] = []
    with file.open("wb", buffering=0) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        second = threading.Thread(target=lambda: found.append(records.origin("/project")), daemon=True)
        second.start()
        time.sleep(0.2)
        other.write(b"0123456789abcdef")
    second.join(60)
    assert found == [records.origin("/project")] and file.read_bytes() == b"0123456789abcdef"


@pytest.mark.parametrize(("node", "silent_s", "state"), [("", 0, "killed"), ("another", 0, "running"), ("another", 3600, "killed")])
def test_a_free_lock_tells_only_the_machine_of_the_keeper_that_it_was_killed(node: str, silent_s: int, state: str, tmp_path: Path) -> None:
    """BeeGFS does not show a machine the locks of others, unless its administrators ask for that."""
    call = begin(tmp_path, "pass")
    assert spool(call)
    (call / "spool").write_text("")
    lock = call / "lock"
    assert lock.read_text() == os.uname().nodename
    lock.write_text(node or lock.read_text())
    os.utime(lock, (time.time() - silent_s,) * 2)
    assert session.state(str(tmp_path), ID) == state


def test_a_request_waits_in_memory_and_is_asked_for_once(tmp_path: Path) -> None:
    request = {"folder": str(tmp_path), "call": ID, "environment": {"TOKEN": "s3cret" * 20000}}
    service.hold(**request)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]
    assert service.held(str(tmp_path), ID) == request
    assert not session.place(str(tmp_path), ID).exists()


def test_old_calls_are_removed_and_what_is_not_kits_stays(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    for name, mark in {"a" * 16: True, "b" * 16: False, "mine": True, "c" * 15: True}.items():
        (calls / name).mkdir(parents=True)
        if mark:
            (calls / name / MARK).touch()
        os.utime(calls / name, (OLD, OLD))
    session.make(str(tmp_path), ID)
    assert sorted(path.name for path in calls.iterdir()) == sorted([ID, "b" * 16, "mine", "c" * 15])


def test_a_command_that_cannot_be_started_says_so(tmp_path: Path) -> None:
    made = session.make(str(tmp_path), ID)
    assert made
    keeper.start(made, {"command": ["/no/such"], "workdir": str(tmp_path), "environment": {}, "history": 0, "stays": False, "umask": 0o022})
    said, end = spool(made)
    assert "/no/such" in str(said["err"]) and end == {"exit": 1}
