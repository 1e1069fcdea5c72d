"""Messages of a run's start and end: what a web hook and a command get, and that nothing else gets the hook's address."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kit.config.notify import Notify
from kit.config.secrets import Secret
from running import SCRIPTS, TAG, patient_srun, processes, stub, until
from test_run_script import JOB_ID, run_dir, slurm, start

import event_lines
from samples import ROOT

TOKEN = "T0/B0/my-own-token"
REAL = SCRIPTS / "local/scontrol"
BOTH = ("start", "end")
ENDED = f"kit: test ({JOB_ID})"


def in_seconds(text: str) -> str:
    """A message in which the time that the run took, of some seconds, does not matter."""
    return re.sub(r" after \d+ s\b", " after N s", text)


class Hook:
    """A real server on this machine; `gets` has what was posted to it."""

    def __init__(self) -> None:
        self.gets: list[tuple[str, str, Any]] = []
        self.code, self.held = 200, threading.Event()
        self.held.set()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.gets.append((self.path, self.headers["Content-Type"], json.loads(body)))
                hook.held.wait(60)
                self.send_response(hook.code)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/services/{TOKEN}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def texts(self) -> list[str]:
        assert {(path, kind) for path, kind, _ in self.gets} <= {(f"/services/{TOKEN}", "application/json")}
        assert all(body.keys() == {"text"} for _, _, body in self.gets)
        return [in_seconds(body["text"]) for _, _, body in self.gets]


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    yield hook
    hook.held.set()
    hook.server.shutdown()
    hook.server.server_close()


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port that refuses connections, and that no other test can get meanwhile: bound, but nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def telling(folder: Path, program: str, address: str, on: tuple[str, ...] = BOTH, **other: Any) -> Path:
    """A run directory of a job that tells a web hook of this address."""
    notify = Notify(on, "HOOK", other.pop("tell", ()), "")
    run = run_dir(folder, program, notify=notify, secrets=(Secret("HOOK", "env", "HOOK", ""),), **other)
    (run / ".secrets").mkdir(mode=0o700)
    (run / ".secrets/values").write_bytes(b"A=HOOK=no\0HOOK=" + address.encode() + b"\0")
    return run


def test_a_web_hook_is_told_of_the_start_and_the_end(hook: Hook, tmp_path: Path) -> None:
    run = telling(tmp_path, "sleep 1", hook.address)
    done = start(run)
    assert done.returncode == 0, done.stderr
    assert hook.texts() == [f"{ENDED} started on local0", f"{ENDED} COMPLETED after N s"]


def test_a_failure_is_told_with_its_code_and_its_cause(hook: Hook, tmp_path: Path) -> None:
    run = telling(tmp_path, "((RANK == 0)) || exit 7; exec sleep 60", hook.address, ("end",), processes=2)
    assert start(run).returncode == 7
    cause = "local0: rank 1 (local rank 1) exited with code 7"
    assert hook.texts() == [f"{ENDED} FAILED after N s, exit code 7: {cause}. See: kit why {JOB_ID}"]


def test_ranks_that_stand_still_are_told_of_once_and_go_on(hook: Hook, tmp_path: Path) -> None:
    """They end when kit has seen twice that they stand still."""
    program = 'until [[ "$(grep -c stalled "${KIT_LOG_DIR}/events/batch.jsonl")" == 2 ]]; do sleep 2; done'
    tell = ("bash", "-c", 'printf "%s|" "${KIT_STATE}" "${KIT_EXIT_CODE}" "${KIT_CAUSE}" >>told; cat >>told')
    run = telling(tmp_path, program, hook.address, ("stall",), tell=tell, stall_s=3, on_stall="report")
    done = start(run)
    assert done.returncode == 0, done.stderr
    cause = re.search(r"the ranks stand still: (for \d+ s no rank has said or saved anything, or worked)\n", done.stderr)[1]
    assert hook.texts() == [f"{ENDED} stands still: {cause}. See: kit hang {JOB_ID}"]
    assert (tmp_path / "told").read_text() == f"STALLED||{cause}|{hook.texts()[0]}\n"


def test_ranks_that_stand_still_once_more_after_some_progress_are_told_of_once_more(hook: Hook, tmp_path: Path) -> None:
    wait = 'until [[ "$(grep -c stalled "${KIT_LOG_DIR}/events/batch.jsonl")" == %d ]]; do sleep 1; done'
    program = f"{wait % 1}; sleep 1; echo step 2; {wait % 3}"
    done = start(telling(tmp_path, program, hook.address, ("stall",), stall_s=3, on_stall="report"))
    assert done.returncode == 0, done.stderr
    assert len(hook.texts()) == 2 and all(text.startswith(f"{ENDED} stands still: for ") for text in hook.texts())


def test_ranks_that_are_ended_because_they_stand_still_are_told_of_in_each_attempt(hook: Hook, tmp_path: Path) -> None:
    run = telling(tmp_path, "exec sleep 300", hook.address, ("end", "stall"), stall_s=3, max_restarts=1)
    assert start(run).returncode == 1
    first, second, last = hook.texts()
    assert all(text.startswith(f"{ENDED} stands still: for ") for text in (first, second))
    assert last.startswith(f"{ENDED} FAILED after N s, exit code 1")


HOSTILE = "a \"b\" 'c' \\n \\u0022 $(touch X) `touch Y` ${HOME} %s & <!channel>\nsecond line\té"


def test_any_text_arrives_as_it_is_and_runs_nothing(hook: Hook, tmp_path: Path) -> None:
    """A mention of Slack's is none: it takes <, > and & for marks."""
    shown = HOSTILE.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    seen = 'printf "%s\\0" "${KIT_RUN}" "${KIT_NAME}" "${KIT_STATE}" "${KIT_EXIT_CODE}" "${KIT_CAUSE}" >told; cat >text; printf "%s" "$1" >word'
    folder = tmp_path / "a 'b' \"c\" $(touch X)"
    folder.mkdir()
    run = telling(folder, "true", hook.address, ("end",), name=HOSTILE, tell=("bash", "-c", seen, "bash", HOSTILE), image=f"/{HOSTILE}", runtime="apptainer")
    stub(tmp_path / "bin", "apptainer", "exit 1")
    assert start(run, env=slurm(folders=(tmp_path / "bin",))).returncode == 1
    (text,) = hook.texts()
    code, name, state, exit_code, cause, _ = (folder / "told").read_text().split("\0")
    assert (code, name, state, exit_code) == (str(JOB_ID), HOSTILE, "FAILED", "1")
    assert HOSTILE in cause and "local0: " in cause
    assert text.startswith(f"kit: {shown} ({JOB_ID}) FAILED after N s, exit code 1: local0: ") and text.count(shown) == 2
    assert in_seconds((folder / "text").read_text()) == text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") + "\n"
    assert (folder / "word").read_text() == HOSTILE
    assert not list(tmp_path.rglob("[XY]"))


def test_the_address_is_in_no_file_no_log_and_no_process(hook: Hook, tmp_path: Path, tag: str) -> None:
    """While the hook is being told, and after it; only in the file of the secrets, until the run's end."""
    hook.held.clear()
    run = telling(tmp_path, "exit 3", hook.address)
    # As a trace would show it: each bash of the job is traced.
    env = slurm(**{TAG: tag, "SHELLOPTS": "allexport:xtrace:verbose", "KIT_HOOK": "of the submitting shell"})
    job = subprocess.Popen(["bash", "-xv", "run_script.sh"], cwd=run, env=env, stdout=(tmp_path / "out").open("w"), stderr=subprocess.STDOUT)
    until(lambda: len(hook.gets) == 2)
    shown = b"".join(arguments_and_environments(tag))
    assert b"curl" in shown and b"--max-time" in shown and b"my-own" not in shown
    hook.held.set()
    assert job.wait(60) == 3
    assert len(hook.texts()) == 2 and "+ notify::post" not in (tmp_path / "out").read_text()
    assert "+ notify::begin" in (tmp_path / "out").read_text()
    holders = [path for path in tmp_path.rglob("*") if path.is_file() and b"my-own" in path.read_bytes()]
    assert holders == []


def arguments_and_environments(tag: str) -> Iterator[bytes]:
    for pid in processes(tag):
        for file in ("cmdline", "environ"):
            try:
                data = Path(f"/proc/{pid}/{file}").read_bytes()
            except OSError:
                continue
            if b"\0RANK=" not in data:  # the program itself gets the job's secrets
                yield data


@pytest.mark.parametrize(
    ("code", "said"), [(404, "curl: (22) The requested URL returned error: 404"), (0, "curl: (28) Operation timed out"), (-1, "curl: (7) Failed to connect")]
)
def test_a_hook_that_does_not_take_it_changes_nothing_but_the_log(code: int, said: str, hook: Hook, taken_port: int, tmp_path: Path) -> None:
    hook.code = code
    if code == 0:
        hook.held.clear()
    address = hook.address if code >= 0 else f"http://127.0.0.1:{taken_port}/services/{TOKEN}"
    run = telling(tmp_path, "exit 5", address, ("end",))
    done = start(run)
    assert done.returncode == 5
    assert f"kit: local0: the web hook was not told of the job's end: {said}" in done.stderr and "my-own" not in done.stderr


def test_a_node_without_curl_says_so(hook: Hook, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in ("/usr/bin", "/bin"):
        for tool in Path(place).iterdir():
            if tool.name != "curl" and not (folder / tool.name).exists():
                (folder / tool.name).symlink_to(tool)
    run = telling(tmp_path, "true", hook.address)
    env = slurm()
    path = os.pathsep.join([env["PATH"].split(os.pathsep)[0], str(folder)])
    done = start(run, env={**env, "PATH": path})
    assert done.returncode == 0, done.stderr
    assert "kit: local0: the web hook was not told of the job's end: there is no curl on this node" in done.stderr


def test_a_command_finds_the_variables_that_its_page_names_and_no_others_of_kit(tmp_path: Path) -> None:
    named = re.findall(r"^\| `(KIT_\w+)` \|", (ROOT / "docs/notify.md").read_text(), re.MULTILINE)
    tell = "compgen -e KIT_ >>told"
    run = run_dir(tmp_path, "true", notify=Notify(("start", "end"), "", ("bash", "-c", tell), ""))
    assert start(run, env=slurm(KIT_STRANGE="of the submitting shell")).returncode == 0
    assert sorted((tmp_path / "told").read_text().split()) == sorted(2 * named)


@pytest.mark.parametrize(("seconds", "said"), [(55, "55 s"), (60, "1 min"), (3599, "59 min"), (3600, "1 h 00 min"), (11520, "3 h 12 min")])
def test_how_long_a_run_took_is_said_in_the_unit_that_fits(seconds: int, said: str) -> None:
    script = f"source {ROOT}/launch/scripts/lib/notify.sh; notify::duration {seconds}"
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout == said


def test_a_command_is_told_and_its_failure_and_its_slowness_change_nothing(tmp_path: Path) -> None:
    """It works in the job's folder, and finds the text on its input, as mail does."""
    for number, (tell, said) in enumerate({"cat >told; exit 9": "code 9", "cat >told; exec sleep 300": "code 124"}.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = run_dir(folder, "exit 4", notify=Notify(("end",), "", ("bash", "-c", tell), ""))
        done = start(run)
        assert done.returncode == 4
        assert f"kit: local0: the command of `notify` ended with {said}: it was to tell of the job's end" in done.stderr
        assert in_seconds((folder / "told").read_text()) == (
            f"{ENDED} FAILED after N s, exit code 4: local0: rank 0 (local rank 0) exited with code 4. See: kit why {JOB_ID}\n"
        )


def test_a_job_that_is_ended_tells_so_once_before_its_ranks_are_gone(hook: Hook, tmp_path: Path, tag: str) -> None:
    """Slurm kills the script, too, when the ranks take too long."""
    run = telling(tmp_path, "trap '' TERM; touch up; sleep 300 & wait; wait", hook.address, ("end",))
    env = slurm(folders=(patient_srun(tmp_path / "patient").parent,), **{TAG: tag})
    job = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    until((tmp_path / "up").exists)
    job.terminate()
    until(hook.texts)
    assert job.poll() is None and hook.texts() == [f"{ENDED} CANCELLED after N s. See: kit why {JOB_ID}"]
    job.send_signal(signal.SIGKILL)
    job.wait()


@pytest.mark.parametrize(
    ("lines", "is_ended", "state", "cause"),
    [
        ("true\nfalse\n", False, "FAILED after N s, exit code 1", "local0: line 2 of host_setup ended with code 1: false"),
        ("exit 0\n", False, "FAILED after N s, exit code 1", "local0: line 1 of host_setup ended with code 0: exit 0"),
        (
            "printf exit | tee x; source ./x\n",
            False,
            "FAILED after N s, exit code 1",
            "local0: line 1 of host_setup ended with code 0: printf exit | tee x; source ./x",
        ),
        (
            "export PATH=/nowhere\nmodule load cuda\n",
            False,
            "FAILED after N s, exit code 1",
            "local0: line 2 of host_setup ended with code 127: module load cuda",
        ),
        ("bash -c 'touch up; exec sleep 300'\n", True, "CANCELLED after N s", ""),
        ("bash -c 'touch up; exec sleep 300' || exit 1\n", True, "CANCELLED after N s", ""),
    ],
)
def test_a_job_that_ends_in_host_setup_ends_as_any_other(lines: str, is_ended: bool, state: str, cause: str, hook: Hook, tmp_path: Path, tag: str) -> None:
    run = telling(tmp_path, "true", hook.address, ("end",), host_setup=lines)
    job = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=slurm(**{TAG: tag}), stderr=subprocess.PIPE, text=True, start_new_session=True)
    if is_ended:
        until((tmp_path / "up").exists)
        os.killpg(job.pid, signal.SIGTERM)
    said = job.communicate(timeout=60)[1]
    assert job.returncode == (143 if is_ended else 1), said
    assert hook.texts() == [f"{ENDED} {state}{cause and ': '}{cause}. See: kit why {JOB_ID}"]
    assert not (run / ".secrets").exists()
    noted = [(event["event"], event.get("cause")) for event in event_lines.read(run / f"log/{JOB_ID}")]
    assert noted == [("start", None), ("stopped_by", None) if is_ended else ("node_refused", "setup-failed"), ("ends", None)]


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("slurmstepd-n1: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-21T13:34:23 ***", "CANCELLED"),
        ("slurmstepd-n1: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-21T13:34:23 DUE TO TIME LIMIT ***", "TIMEOUT"),
        ("", "ENDED"),
    ],
)
def test_what_slurm_only_calls_completing_is_told_by_its_daemons_line(line: str, state: str, hook: Hook, tmp_path: Path, tag: str) -> None:
    run = telling(tmp_path, "touch up; exec sleep 300", hook.address, ("end",))
    stub(tmp_path / "bin", "scontrol", f'[[ "$1 $2" != "show job" ]] || {{ echo "JobId=1 JobState=COMPLETING Restarts=0 "; exit; }}\nexec {REAL} "$@"\n')
    with (run / f"log/slurm-{JOB_ID}.out").open("w") as log:
        env = slurm(folders=(tmp_path / "bin",), **{TAG: tag})
        job = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=env, stdout=log, stderr=log, start_new_session=True)
        until((tmp_path / "up").exists)
        os.write(log.fileno(), f"{line}\n".encode())
        os.killpg(job.pid, signal.SIGTERM)
        job.wait(60)
    assert hook.texts() == [f"{ENDED} {state} after N s. See: kit why {JOB_ID}"]


def test_a_job_that_slurm_starts_again_has_not_ended(hook: Hook, tmp_path: Path) -> None:
    program = '[[ -z "${SLURM_RESTART_COUNT:-}" ]] || exit 0; echo "${RANDOM}" >"${KIT_PROGRESS}"; exit 75'
    run = telling(tmp_path, program, hook.address, on_preempt="checkpoint")
    answer = 'case "$1 $2" in "show job") echo "JobId=1 JobState=RUNNING Requeue=1 Restarts=0 PreemptTime=None " ;; requeue*) ;;'
    stub(tmp_path / "bin", "scontrol", f'{answer} *) exec {REAL} "$@" ;; esac\n')
    env = {name: value for name, value in slurm(folders=(tmp_path / "bin",)).items() if name != "KIT_LOOPBACK"}
    assert start(run, env=env).returncode == 75
    until(lambda: len(hook.gets) == 1)
    assert start(run, env=slurm(SLURM_RESTART_COUNT="1")).returncode == 0
    assert sorted(hook.texts()) == [f"{ENDED} {text}" for text in ("COMPLETED after N s", "started on local0", "started on local0, attempt 2")]


def test_a_proxy_that_the_job_names_is_used(hook: Hook, tmp_path: Path) -> None:
    proxy = hook.address.partition("/services")[0]
    run = telling(tmp_path, "true", "http://hook.invalid/x", ("end",), env=(("http_proxy", proxy),))
    assert start(run).returncode == 0
    assert [path for path, _, _ in hook.gets] == ["http://hook.invalid/x"]


def test_kit_run_reads_the_address_from_the_environment_and_tells_it(hook: Hook, kit, tmp_path: Path) -> None:
    job = {"command": "train.py", "launcher": "srun", "secrets": ["HOOK"], "notify": {"webhook": "HOOK", "command": "cp /dev/stdin told"}}
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    done = kit("run", "job.yaml", "--output", "run", HOOK=hook.address)
    (text,) = hook.texts()
    assert re.match(r"kit: test_kit_run\w+ \(\d+\) ", text) and text.endswith("COMPLETED after N s")
    assert in_seconds((tmp_path / "told").read_text()) == f"{text}\n"
    assert "my-own" not in done.stdout + done.stderr
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file() and b"my-own" in path.read_bytes()]
    wrong = kit("run", "job.yaml", "--output", "second", HOOK="hooks.example.org/my-own", check=False)
    assert (wrong.returncode, wrong.stderr.splitlines()[0]) == (2, "kit: job.yaml:1: the value of HOOK is not the address of a web hook")
    assert "my-own" not in wrong.stderr and not (tmp_path / "second").exists()
