"""launch/scripts/remote/whole.sh: kit as a whole on a login node. Its Python is a stub where kit itself does not matter."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from kit import assets
from kit.quote import bash_array
from running import TAG, commands, environment, stub, until
from samples import HOSTILE_NAME

MARK = ".made-by-kit"
DIGEST = "0123456789abcdef"
SCRIPT = assets.script("remote/login.sh") + assets.script("remote/whole.sh")


def whole(*words: object, said: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """One function, as kit calls it over ssh."""
    script = f"{SCRIPT}\n{bash_array([str(word) for word in words])[1:-1]}\n"
    # What the function reads comes in a file: bash reads the script from its input.
    line = f"{script.rstrip()} <<<{bash_array([said])[1:-1]}\n" if said else script
    return subprocess.run(["bash", "-s"], input=line, env=environment(**variables), capture_output=True, text=True, timeout=60)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A call's folder with a hostile name, which kit made, beside one of another call; kit is a stub that says where it is and what it was given."""
    place = tmp_path / "calls" / f"one {HOSTILE_NAME}"
    for folder in (tmp_path / "calls/another", tmp_path / "work"):
        folder.mkdir(parents=True)
    whole("whole::write", place / "profile.yaml", said="{}")
    stub(tmp_path / "bin", "python", 'printf "%s\\n" "${PWD}" "$@"; [[ -e "${PLACE}/profile.yaml" ]] || echo gone; eval "${STUB_DOES:-}"\n')
    return place


def call(place: Path, function: str, *words: str, **variables: str) -> subprocess.Popen[str]:
    folder = place.parent.parent
    arguments = [str(place), str(folder / "bin/python"), "/kit", str(folder / "work"), *words]
    (place / "call.sh").write_text(f"{SCRIPT}{function} {bash_array(arguments)[1:-1]}\n")
    env = environment(PLACE=str(place), **variables)
    return subprocess.Popen(["bash", str(place / "call.sh")], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.parametrize(("does", "code"), [("", 0), ("exit 7", 7), ("kill -KILL $$", 137)])
def test_nothing_of_a_call_is_left_however_it_ends(does: str, code: int, place: Path) -> None:
    process = call(place, "whole::call", "status", "a b", STUB_DOES=does)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out.splitlines()) == (code, [f"{place.parent.parent}/work", "/kit", "status", "a b"]), errors
    assert os.listdir(place.parent) == ["another"]


def test_nothing_of_a_call_is_left_when_the_connection_is_cut(place: Path, tag: str) -> None:
    process = call(place, "whole::call", "logs", STUB_DOES="touch up; sleep 60", **{TAG: tag})
    until((place.parent.parent / "work/up").exists, 60)
    os.killpg(process.pid, signal.SIGHUP)
    process.communicate(timeout=60)
    assert os.listdir(place.parent) == ["another"]
    assert commands(tag) == []


def state(place: Path) -> str:
    return whole("whole::state", place).stdout.strip()


def begun(place: Path, **variables: str) -> None:
    folder = place.parent.parent
    arguments = [str(place), str(folder / "bin/python"), "/kit", str(folder / "work"), "build"]
    (place / "call.sh").write_text(f"{SCRIPT}whole::build {bash_array(arguments)[1:-1]}\n")
    assert whole("whole::begin", place, PLACE=str(place), **variables).stderr == ""


@pytest.mark.parametrize("code", [0, 7])
def test_a_build_outlives_its_connection_and_its_end_is_kept_until_it_is_known(code: int, place: Path, tag: str) -> None:
    assert state(place) == "nothing"
    begun(place, STUB_DOES=f"until [[ -e go ]]; do sleep 0.02; done; echo built; exit {code}", **{TAG: tag})
    until(lambda: "build" in (place / "output").read_text(), 60)
    assert state(place) == "running"
    begun(place, STUB_DOES="echo a second one", **{TAG: tag})  # what runs already is left alone
    (place.parent.parent / "work/go").touch()
    until(lambda: state(place) == f"ended {code}", 60)
    said = whole("whole::follow", place, 0).stdout.splitlines()
    assert said == [f"ended {code}", f"{place.parent.parent}/work", "/kit", "build", "built"]
    already = len("\n".join(said[1:4])) + 1
    assert whole("whole::follow", place, already).stdout == f"ended {code}\nbuilt\n"
    assert whole("whole::finish", place, code).returncode == 0
    assert place.exists() == (code != 0)
    if code:  # what it read stays for another try
        assert sorted(os.listdir(place)) == [".lock", MARK, "profile.yaml"] and state(place) == "nothing"


def test_a_build_that_was_killed_is_gone(place: Path, tag: str) -> None:
    begun(place, STUB_DOES="kill -KILL ${PPID}; exit 0", **{TAG: tag})
    until(lambda: state(place) == "gone", 60)


def test_a_build_that_is_given_up_is_ended_and_nothing_of_it_stays(place: Path, tag: str) -> None:
    begun(place, STUB_DOES="trap 'touch saved; exit 1' TERM; while :; do sleep 0.05; done", **{TAG: tag})
    until(lambda: "build" in (place / "output").read_text(), 60)
    assert whole("whole::stop", place).returncode == 0
    assert (place.parent.parent / "work/saved").exists() and not place.exists()
    assert commands(tag) == []
    assert whole("whole::stop", place).returncode == 0  # again


def copy_of_kit(folder: Path, name: str, days: float = 0) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    (path / "__main__.py").write_text("")
    (path / MARK).touch()
    used_s = time.time() - days * 86400
    os.utime(path, (used_s, used_s))
    return path


def test_a_copy_of_kit_gets_its_name_once_and_those_that_nobody_uses_go(tmp_path: Path) -> None:
    old, part, recent, new, mine = (name.format(DIGEST) for name in ("kit-0.1-{}", ".kit-0.2-{}.01234567", "kit-0.3-{}", "kit-2-{}", "kit-mine-{}"))
    for name, days in ((old, 9.0), (part, 9.0), (recent, 5.0), (mine, 9.0), ("images", 99.0), ("kit-1", 99.0)):
        copy_of_kit(tmp_path / "kit", name, days)
    (tmp_path / "kit" / mine / MARK).unlink()  # a user's own, whatever it is called
    os.utime(tmp_path / "kit" / mine, (0, 0))
    (tmp_path / "kit/kit-file").touch()
    os.utime(tmp_path / "kit/kit-file", (0, 0))
    place = tmp_path / "kit" / new
    done = whole("whole::settle", copy_of_kit(tmp_path / "kit", f".{new}.00000000", 30), place)
    assert done.returncode == 0 and done.stdout.startswith("python /")
    assert sorted(os.listdir(tmp_path / "kit")) == sorted(["images", "kit-1", "kit-file", recent, new, mine])
    # Another one was quicker: its copy stays.
    (place / "first").touch()
    late = copy_of_kit(tmp_path / "kit", f".{new}.11111111")
    assert whole("whole::settle", late, place).returncode == 0
    assert not late.exists() and (place / "first").exists()


@pytest.mark.parametrize(("version", "good"), [("3.9.2", True), ("3.11.7", True), ("3.8.20", False), ("2.7.18", False)])
def test_a_python_that_is_new_enough_is_found(version: str, good: bool, tmp_path: Path) -> None:
    says = f'[[ "$1" != --version ]] || echo "Python {version}"\n'
    stub(tmp_path / "bin", "python3", says)
    for minor in range(9, 16):
        stub(tmp_path / "bin", f"python3.{minor}", "exit 127\n")
    done = whole("whole::look", tmp_path / "kit", "kit-1", PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    found = [f"python {tmp_path}/bin/python3"] if good else []
    assert done.stdout.splitlines() == [f"folder {tmp_path}/kit", *found, f"version Python {version}"]
    # Where python3 is too old, another name may do.
    stub(tmp_path / "bin", "python3.12", 'echo "Python 3.12.1"\n')
    done = whole("whole::python", PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert done.stdout.splitlines()[0] == f"python {tmp_path}/bin/{'python3' if good else 'python3.12'}"


def test_a_run_is_noted_once_in_the_history_over_there(tmp_path: Path) -> None:
    for run in ("/a/run", "/a/run", "/another"):
        whole("whole::note_run", f'"{run}"', said=f'{{"folder": "{run}"}}', XDG_STATE_HOME=str(tmp_path))
    assert (tmp_path / "kit/runs.jsonl").read_text().splitlines() == ['{"folder": "/a/run"}', '{"folder": "/another"}']


def test_the_values_of_secrets_are_removed_of_one_task_or_of_all(tmp_path: Path) -> None:
    (tmp_path / ".secrets").mkdir()
    for task in ("1", "2"):
        (tmp_path / ".secrets" / task).touch()
    whole("login::forget", tmp_path, "1")
    assert os.listdir(tmp_path / ".secrets") == ["2"]
    whole("login::forget", tmp_path)
    assert os.listdir(tmp_path) == []
