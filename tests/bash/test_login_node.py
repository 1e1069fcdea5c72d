"""launch/scripts/remote/login.sh with stand-ins for Slurm: whoever calls it, and how often, a run is submitted once."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from kit import assets
from kit.quote import bash_array
from kit.remote import host

TOKEN = "0123456789abcdef"
SCRIPT, WHOLE = assets.script("remote/login.sh"), assets.script("remote/whole.sh")
AGES_AGO = time.time() - 30 * 86400


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with a hostile name; beside it, bin/ with a Slurm that knows what was submitted to it."""
    folder = tmp_path / "it's a $(run)"
    (folder / "log").mkdir(parents=True)
    (folder / ".made-by-kit").write_text(f"{TOKEN}\n")
    (tmp_path / "bin").mkdir()
    tool(tmp_path, "sbatch", 'cat "$1.wait" 2>/dev/null; echo "12|$PWD" >>QUEUE; echo "set ${SLURM_JOB_ID-not set}" >>CALLS; echo 12')
    tool(tmp_path, "squeue", "cat QUEUE 2>/dev/null; true")
    return folder


def tool(place: Path, name: str, text: str) -> None:
    text = text.replace("QUEUE", f"'{place}/queue'").replace("CALLS", f"'{place}/calls'")
    (place / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
    (place / "bin" / name).chmod(0o755)


def start(run: Path, *words: str, script: str = SCRIPT + WHOLE) -> subprocess.Popen[str]:
    line = f"login::main MARK '' {bash_array(list(words))[1:-1]}"
    process = subprocess.Popen(
        ["bash", "-s"],
        env={"PATH": f"{run.parent}/bin:/usr/bin:/bin", "HOME": str(run.parent), "SLURM_JOB_ID": "7"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    process.stdin.write(f"{script}\n{line}\n")
    process.stdin.close()
    process.stdin = None
    return process


def call(run: Path, *words: str) -> str:
    """What the function says, between the marks."""
    out, errors = start(run, *words).communicate(timeout=120)
    before, _, said = out.partition("MARK\n")
    said, _, status = said.rpartition("\nMARK ")
    assert before == "" and status == "0\n", (out, errors)
    return said


def calls(run: Path) -> list[str]:
    file = run.parent / "calls"
    return file.read_text().splitlines() if file.exists() else []


def test_five_at_once_submit_one_job_and_all_hear_of_it(run: Path) -> None:
    tool(run.parent, "sbatch", "sleep 0.5; echo x >>CALLS; echo 12")
    processes = [start(run, "login::submit", str(run), TOKEN) for _ in range(5)]
    assert [process.communicate(timeout=120)[0] for process in processes] == ["MARK\njob 12\n\nMARK 0\n"] * 5
    assert calls(run) == ["x"]


def test_what_surrounds_the_call_is_none_of_the_jobs_business(run: Path) -> None:
    assert call(run, "login::submit", str(run), TOKEN) == "job 12\n"
    assert calls(run) == ["set not set"]


@pytest.mark.parametrize(
    ("answer", "job"),
    [
        ("12;gpu2", "12;gpu2"),
        ("Submitted batch job 3 by this wrapper\n12", "12"),
        ("Submitted batch job 12\nthank you", "12"),
        ("Submitted batch job 12 on cluster gpu2", "12;gpu2"),
    ],
)
def test_the_job_is_read_out_of_what_sites_print(answer: str, job: str, run: Path) -> None:
    tool(run.parent, "sbatch", f"echo '{answer}'")
    assert call(run, "login::submit", str(run), TOKEN) == f"job {job}\n"


@pytest.mark.parametrize("end", ["echo 12; exit 1", "echo 'sbatch: error: Zero Bytes were transmitted or received' >&2; exit 1", "echo 12; echo 13"])
def test_a_job_that_was_taken_whatever_sbatch_ended_with_is_found_at_once(end: str, run: Path) -> None:
    tool(run.parent, "sbatch", f'echo "12|$PWD" >>QUEUE; {end}')
    assert call(run, "login::submit", str(run), TOKEN) == "job 12\n"


def test_a_refusal_leaves_nothing_and_is_said_again(run: Path) -> None:
    tool(run.parent, "sbatch", "echo 'sbatch: error: no' >&2; exit 1")
    (run / "code").mkdir()
    assert call(run, "login::submit", str(run), TOKEN) == "refused\n"
    assert sorted(path.name for path in run.iterdir()) == [".lock", ".made-by-kit", "given-up"]
    assert call(run, "login::submit", str(run), TOKEN) == "given-up\n"


def test_a_job_whose_answer_was_lost_is_found_in_the_queue(run: Path) -> None:
    tool(run.parent, "sbatch", 'echo x >>CALLS; echo "13|/elsewhere" >>QUEUE; echo "12|$PWD" >>QUEUE; echo "sbatch: error: Socket timed out" >&2; exit 1')
    assert call(run, "login::submit", str(run), TOKEN) == "job 12\n"
    for function in ("login::find", "login::submit"):
        assert call(run, function, str(run), *([TOKEN] if function == "login::submit" else [])) == "job 12\n"
    assert calls(run) == ["x"]


@pytest.mark.parametrize("evidence", ["accounts", "log"])
def test_a_job_that_slurm_has_forgotten_is_found_all_the_same(evidence: str, run: Path) -> None:
    tool(run.parent, "sbatch", "exit 137")
    assert call(run, "login::submit", str(run), TOKEN) == "unsure\n"
    if evidence == "log":
        for name in ("slurm-12_1.out", "slurm-100.out"):  # the second went on for the first
            (run / "log" / name).touch()
    else:
        tool(run.parent, "sacct", f"printf '%s\\n' '11|/elsewhere' {bash_array([f'12|{run}'])[1:-1]}")
    assert call(run, "login::submit", str(run), TOKEN) == "job 12\n"


def test_while_slurm_does_not_answer_nothing_is_submitted_a_second_time(run: Path) -> None:
    tool(run.parent, "sbatch", "echo x >>CALLS; exit 137")
    tool(run.parent, "squeue", "exit 1")
    assert [call(run, "login::submit", str(run), TOKEN) for _ in range(3)] == ["unsure\n"] * 3
    assert calls(run) == ["x"]


def test_what_another_login_node_may_still_be_submitting_is_waited_for(run: Path) -> None:
    (run / "submitting").write_text(f"another-host {int(time.time())}\n")
    assert call(run, "login::submit", str(run), TOKEN) == call(run, "login::find", str(run), "give-up", TOKEN) == "busy\n"
    (run / "submitting").write_text(f"another-host {int(time.time()) - 1000}\n")
    assert call(run, "login::submit", str(run), TOKEN) == "job 12\n"


def test_what_is_given_up_is_never_submitted(run: Path) -> None:
    assert call(run, "login::find", str(run)) == "nothing\n"
    assert call(run, "login::find", str(run), "give-up", TOKEN) == "nothing\n"
    assert call(run, "login::submit", str(run), TOKEN) == "given-up\n"
    assert calls(run) == []
    assert call(run, "login::find", str(run.parent / "never made"), "give-up", TOKEN) == "nothing\n"


@pytest.mark.parametrize("missing", [2, 3, 20, 60, 200, 2000])
def test_a_call_that_is_cut_off_on_its_way_does_nothing(missing: int, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = {}

    def ssh(command: list[str], **more: Any) -> None:
        sent["text"] = more["input"]
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(host.Host, "connect", lambda self, doing: None)
    monkeypatch.setattr(host.subprocess, "run", ssh)
    with pytest.raises(host.Unreachable):
        host.Host("login").call("login::submit", str(run), TOKEN, doing="")
    monkeypatch.undo()
    environment = {"PATH": f"{run.parent}/bin:/usr/bin:/bin", "HOME": "/"}
    subprocess.run(["bash", "-s"], input=sent["text"][:-missing], env=environment, capture_output=True)
    assert calls(run) == []
    subprocess.run(["bash", "-s"], input=sent["text"], env=environment, capture_output=True)
    assert calls(run) == ["set not set"]


def test_slurm_is_found_where_only_login_shells_have_it_on_path(run: Path) -> None:
    assert "login::profile" in SCRIPT.split("login::main() {")[1].split("}")[0]
    said = call(run, "login::look", "kit", "far", "/", "images/none", str(run))
    assert f"folder {run.parent}/kit\n" in said and "tool sbatch\n" in said
    assert [line for line in said.splitlines() if line.startswith(("folder-at", "file-at"))] == ["folder-at 0", "folder-at 2"]


def test_a_job_is_noted_although_the_connection_is_cut_while_slurm_takes_it(run: Path) -> None:
    tool(run.parent, "sbatch", 'kill -HUP "${PPID}"; sleep 0.5; echo x >>CALLS; echo 12')
    start(run, "login::submit", str(run), TOKEN).communicate(timeout=120)
    assert (run / "job_id").read_text() == "12\n"
    assert call(run, "login::submit", str(run), TOKEN) == "job 12\n"
    assert calls(run) == ["x"]


def test_an_image_that_cannot_get_its_name_is_not_said_to_have_it(run: Path) -> None:
    part, name = run / "part", run / "image.sqsh"
    part.write_bytes(b"abc")
    name.mkdir()
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    out, _ = start(run, "login::place", str(part), str(name), digest).communicate(timeout=120)
    assert out == "MARK\n\nMARK 1\n"
    assert part.exists() and not any(name.iterdir())


def test_an_image_gets_its_name_only_when_it_is_what_was_sent(run: Path) -> None:
    part, name = run / "part", run / "image.sqsh"
    part.write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert call(run, "login::place", str(part), str(name), digest) == "placed\n"
    assert name.read_bytes() == b"abc" and not part.exists()
    part.write_bytes(b"abd")
    assert call(run, "login::place", str(part), str(name), digest) == "different\n"
    assert name.read_bytes() == b"abc" and not part.exists()


# ---------------------------------------------------------------- what is the user's stays


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def aged(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    for place in (path, path.parent):
        os.utime(place, (AGES_AGO, AGES_AGO))
    return path


@pytest.mark.parametrize("folder", ["/", ".", "~/", "kit/..", "there", "link", "has/a-dot-file", "a-file"])
def test_a_folder_that_is_not_kits_is_refused_and_left_alone(folder: str, run: Path) -> None:
    home = run.parent
    aged(home / "there/build/my-results-0123456789abcdef/result.h5")
    aged(home / "has/a-dot-file/.x")
    aged(home / "a-file")
    (home / "link").symlink_to("there")
    (home / "kit").mkdir()
    before = contents(home)
    assert call(run, "whole::look", folder, "kit-0.1.0-0123456789abcdef").splitlines()[0].startswith("foreign /")
    assert call(run, "login::look", folder, "far").startswith("foreign /")
    said = start(run, "login::make_run", folder, f"{home}/{folder}/runs/r", TOKEN).communicate(timeout=60)[0]
    assert "made" not in said
    assert contents(home) == before and not (home / folder / "runs").exists()


def test_a_new_an_empty_and_a_marked_folder_become_kits(run: Path) -> None:
    home = run.parent
    (home / "empty").mkdir()
    aged(home / "marked/work/x")
    (home / "marked/.made-by-kit").touch()
    (home / "link-to-empty").mkdir()
    (home / "link").symlink_to("link-to-empty")
    for folder in ("new/deep", "empty", "marked", "link"):
        assert call(run, "whole::look", folder, "kit-0.1.0-0123456789abcdef").splitlines()[0] == f"folder {home}/{folder}"
        assert (home / folder / ".made-by-kit").is_file()


def test_old_copies_and_builds_of_kits_go_and_what_looks_like_them_stays(run: Path) -> None:
    home = run.parent / "kit"
    (home / "build").mkdir(parents=True)
    digest = "0123456789abcdef"
    ours = [f"kit-0.1.0-{digest}", f".kit-0.1.0-{digest}.01234567", f"build/image-{digest}"]
    theirs = [
        "kit-experiments-2025", ".kit-notes", f"kit-0.2.0-{digest}",  # the last lacks the mark
        "build/my-cmake-results", f"build/other-{digest}", "build/marked", "kit-marked",
    ]  # fmt: skip
    for name in (*ours, *theirs):
        aged(home / name / "result")
    (home / "linked").mkdir()
    aged(home / "linked/thesis")
    (home / f"kit-0.3.0-{digest}").symlink_to(home / "linked")
    for name in (*ours, "build/marked", "kit-marked", "linked"):
        (home / name / ".made-by-kit").touch()
        os.utime(home / name, (AGES_AGO, AGES_AGO))
    for name in ("part", f"build/new-{'f' * 16}"):
        call(run, "login::make_marked", str(home / name))
    (home / f"build/new-{'f' * 16}/call.sh").write_text("true")
    call(run, "whole::settle", str(home / "part"), str(home / f"kit-9.9.9-{digest}"))
    call(run, "whole::begin", str(home / f"build/new-{'f' * 16}"))
    assert [name for name in ours if (home / name).exists()] == []
    assert [name for name in theirs if not (home / name / "result").exists()] == []
    assert (home / "linked/thesis").exists()


def test_a_build_that_still_runs_is_not_old(run: Path) -> None:
    home = run.parent / "kit"
    old, new = (f"{home}/build/{name}-0123456789abcdef" for name in ("old", "new"))
    call(run, "login::make_marked", old)
    call(run, "login::make_marked", new)
    Path(new, "call.sh").write_text("true")
    with open(Path(old, ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.utime(old, (AGES_AGO, AGES_AGO))
        call(run, "whole::begin", new)
        assert Path(old).is_dir()
    os.utime(old, (AGES_AGO, AGES_AGO))
    call(run, "whole::begin", new)
    assert not Path(old).exists()


def test_a_run_directory_that_another_submission_made_is_neither_written_to_nor_removed(run: Path) -> None:
    home = run.parent / "kit"
    taken = home / "runs/taken"
    assert call(run, "login::make_run", str(home), str(taken), TOKEN, f"{home}/images") == "made\n"
    assert call(run, "login::make_run", str(home), str(taken), TOKEN) == "made\n"  # the same submission, after its connection broke
    aged(taken / "env.sh")
    before = contents(taken)
    assert call(run, "login::make_run", str(home), str(taken), "f" * 16) == "taken\n"
    assert contents(taken) == before
    call(run, "login::find", str(taken), "give-up", "f" * 16)
    assert before.items() <= contents(taken).items()
    call(run, "login::find", str(taken), "give-up", TOKEN)
    assert not (taken / "env.sh").exists()
    users = aged(home / "runs/users/sub/user.txt")
    assert call(run, "login::make_run", str(home), str(home / "runs/users"), TOKEN) == "taken\n"
    tool(run.parent, "sbatch", "echo 'sbatch: error: no' >&2; exit 1")
    assert call(run, "login::submit", str(home / "runs/users"), TOKEN) == "refused\n"
    assert users.read_text() == "mine"


def test_what_the_user_put_into_a_run_that_is_given_up_stays(run: Path) -> None:
    (run / "code").mkdir()
    for name, text in {"env.sh": "KIT_LAUNCHER=torchrun\n", "torchrun.sh": "", "run.json": "{}", "code/train.py": "", "submitting.err": ""}.items():
        (run / name).write_text(text)
    for name in ("notes.sh", "log/notes.txt"):
        aged(run / name)
    assert call(run, "login::find", str(run), "give-up", TOKEN) == "nothing\n"
    assert sorted(contents(run)) == [".lock", ".made-by-kit", "given-up", "log/notes.txt", "notes.sh"] and not (run / "code").exists()


def test_a_folder_of_the_users_is_no_build_and_no_copy_of_kit(run: Path) -> None:
    home, digest = run.parent / "kit", "0123456789abcdef"
    for name in (f"build/image-{digest}/output", f"build/image-{digest}/status", f"kit-0.1.0-{digest}/__main__.py"):
        aged(home / name)
    (home / ".made-by-kit").touch()
    before = contents(home)
    assert call(run, "whole::state", f"{home}/build/image-{digest}") == "nothing\n"
    assert call(run, "whole::look", str(home), f"kit-0.1.0-{digest}") == f"folder {home}\nforeign {home}/kit-0.1.0-{digest}\n"
    assert contents(home) == before


@pytest.mark.parametrize("word", ["link", "home", "unmarked", "mark-is-a-link"])
def test_what_lacks_kits_own_mark_is_never_removed(word: str, run: Path) -> None:
    home = run.parent
    for name in ("tree", "unmarked", "mark-is-a-link"):
        aged(home / name / "x")
    (home / "tree/.made-by-kit").touch()
    (home / ".made-by-kit").touch()
    (home / "link").symlink_to(home / "tree")
    (home / "mark-is-a-link/.made-by-kit").symlink_to(home / "tree/.made-by-kit")
    call(run, "login::remove", str(home if word == "home" else home / word))
    assert [name for name in ("tree", "unmarked", "mark-is-a-link") if not (home / name / "x").exists()] == []
    call(run, "login::remove", str(home / "tree"))
    assert not (home / "tree").exists()
