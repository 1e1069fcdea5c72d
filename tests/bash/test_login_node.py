"""launch/scripts/remote/login.sh with stand-ins for Slurm: whoever calls it, and how often, a run is submitted once."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from kit.quote import bash_array
from kit.remote import host
from samples import ROOT

SCRIPT = (ROOT / "launch/scripts/remote/login.sh").read_text()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with a hostile name; beside it, bin/ with a Slurm that knows what was submitted to it."""
    folder = tmp_path / "it's a $(run)"
    (folder / "log").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    tool(tmp_path, "sbatch", 'cat "$1.wait" 2>/dev/null; echo "12|$PWD" >>QUEUE; echo "set ${SLURM_JOB_ID-not set}" >>CALLS; echo 12')
    tool(tmp_path, "squeue", "cat QUEUE 2>/dev/null; true")
    return folder


def tool(place: Path, name: str, text: str) -> None:
    text = text.replace("QUEUE", f"'{place}/queue'").replace("CALLS", f"'{place}/calls'")
    (place / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
    (place / "bin" / name).chmod(0o755)


def start(run: Path, *words: str, script: str = SCRIPT) -> subprocess.Popen[str]:
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
    processes = [start(run, "login::submit", str(run)) for _ in range(5)]
    assert [process.communicate(timeout=120)[0] for process in processes] == ["MARK\njob 12\n\nMARK 0\n"] * 5
    assert calls(run) == ["x"]


def test_what_surrounds_the_call_is_none_of_the_jobs_business(run: Path) -> None:
    assert call(run, "login::submit", str(run)) == "job 12\n"
    assert calls(run) == ["set not set"]


@pytest.mark.parametrize("answer", ["12;cluster", "Submitted batch job 3 by this wrapper\n12"])
def test_the_job_is_read_out_of_what_sites_print(answer: str, run: Path) -> None:
    tool(run.parent, "sbatch", f"echo '{answer}'")
    assert call(run, "login::submit", str(run)) == "job 12\n"


def test_a_refusal_leaves_nothing_and_is_said_again(run: Path) -> None:
    tool(run.parent, "sbatch", "echo 'sbatch: error: no' >&2; exit 1")
    (run / "code").mkdir()
    assert call(run, "login::submit", str(run)) == "refused\n"
    assert sorted(path.name for path in run.iterdir()) == [".lock", "given-up"]
    assert call(run, "login::submit", str(run)) == "given-up\n"


def test_a_job_whose_answer_was_lost_is_found_in_the_queue(run: Path) -> None:
    tool(run.parent, "sbatch", 'echo x >>CALLS; echo "13|/elsewhere" >>QUEUE; echo "12|$PWD" >>QUEUE; echo "sbatch: error: Socket timed out" >&2; exit 1')
    assert call(run, "login::submit", str(run)) == "unsure\n"
    for function in ("login::find", "login::submit"):
        assert call(run, function, str(run)) == "job 12\n"
    assert calls(run) == ["x"]


@pytest.mark.parametrize("evidence", ["accounts", "log"])
def test_a_job_that_slurm_has_forgotten_is_found_all_the_same(evidence: str, run: Path) -> None:
    tool(run.parent, "sbatch", "exit 137")
    assert call(run, "login::submit", str(run)) == "unsure\n"
    if evidence == "log":
        for name in ("slurm-12_1.out", "slurm-100.out"):  # the second went on for the first
            (run / "log" / name).touch()
    else:
        tool(run.parent, "sacct", f"printf '%s\\n' '11|/elsewhere' {bash_array([f'12|{run}'])[1:-1]}")
    assert call(run, "login::submit", str(run)) == "job 12\n"


def test_while_slurm_does_not_answer_nothing_is_submitted_a_second_time(run: Path) -> None:
    tool(run.parent, "sbatch", "echo x >>CALLS; exit 137")
    tool(run.parent, "squeue", "exit 1")
    assert [call(run, "login::submit", str(run)) for _ in range(3)] == ["unsure\n"] * 3
    assert calls(run) == ["x"]


def test_what_another_login_node_may_still_be_submitting_is_waited_for(run: Path) -> None:
    (run / "submitting").write_text(f"another-host {int(time.time())}\n")
    assert call(run, "login::submit", str(run)) == call(run, "login::find", str(run), "give-up") == "busy\n"
    (run / "submitting").write_text(f"another-host {int(time.time()) - 1000}\n")
    assert call(run, "login::submit", str(run)) == "job 12\n"


def test_what_is_given_up_is_never_submitted(run: Path) -> None:
    assert call(run, "login::find", str(run)) == "nothing\n"
    assert call(run, "login::find", str(run), "give-up") == "nothing\n"
    assert call(run, "login::submit", str(run)) == "given-up\n"
    assert calls(run) == []
    assert call(run, "login::find", str(run.parent / "never made")) == "nothing\n"


@pytest.mark.parametrize("missing", [2, 3, 20, 60, 200, 2000])
def test_a_call_that_is_cut_off_on_its_way_does_nothing(missing: int, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = {}

    def ssh(command: list[str], **more: Any) -> None:
        sent["text"] = more["input"]
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(host.Host, "connect", lambda self, doing: None)
    monkeypatch.setattr(host.subprocess, "run", ssh)
    with pytest.raises(host.Unreachable):
        host.Host("login").call("login::submit", str(run), doing="")
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
    start(run, "login::submit", str(run)).communicate(timeout=120)
    assert (run / "job_id").read_text() == "12\n"
    assert call(run, "login::submit", str(run)) == "job 12\n"
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
