"""kit shell and kit exec on the Slurm cluster in Docker: typed into a real terminal, and beside running jobs."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from bash_ranks import tiny_image
from jobs import job_id, not_started, nothing_left, read, submit
from kit.slurm import hostlist
from slurm_cluster import HERE, Cluster, until

import event_lines

pytestmark = pytest.mark.cluster

SAYS = 'echo "[$(. /etc/os-release && echo "${VERSION_CODENAME}") ${SLURMD_NODENAME} ${NODE_RANK}/${NNODES} ${MASTER_ADDR}:${MASTER_PORT} ${A} ${PWD}]"'
# It says so itself: a Ctrl-C between two commands of a line is the shell's, which may lose it.
BEGINS = "sh -c 'echo be$1; exec sleep 200' sh gun"
RELEASE = "tiny"  # the image


def kit(cluster: Cluster, place: Path, *arguments: str, check: bool = True, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """`kit ARGUMENTS` as ada on the controller; `stdin` is a command whose output it reads."""
    line = f'cd "$1" && shift && {f"{stdin} | " if stdin else ""}kit "$@"'
    return cluster.run("ctl", "bash", "-c", line, "bash", cluster.path(place), *arguments, check=check)


def typed(cluster: Cluster, place: Path, steps: list[str], *arguments: str, program: str = "kit") -> subprocess.CompletedProcess[str]:
    """`kit ARGUMENTS`, or another program, in a terminal, on the controller; terminal.py says what steps are."""
    (place / "terminal.py").write_text((HERE / "terminal.py").read_text())
    line = 'cd "$1" && shift && exec python3 terminal.py "$@"'
    return cluster.run("ctl", "bash", "-c", line, "bash", cluster.path(place), *steps, "--", program, *arguments, check=False, timeout=400)


def queued(cluster: Cluster) -> str:
    return cluster.run("ctl", "squeue", "--noheader").stdout


def test_a_shell_is_in_the_container_of_the_node_with_the_jobs_variables_and_ends_with_its_code(kit_cluster: Cluster, folder: Path, tiny: Path) -> None:
    (folder / "ranks.py").write_text("import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], os.environ['A'], flush=True)\n")
    (folder / "job.yaml").write_text("command: ranks.py\nnodes: 2\nprocesses_per_node: 1\nenv: {A: from the job}\n")
    prompt = "Apptainer> "
    steps = [f"{prompt}=>{SAYS}", f"from the job=>{BEGINS}", "begun=>^C", f"{prompt}=>echo code $?", "code 130=>tty && exit 5"]
    done = typed(kit_cluster, folder, steps, "shell", "job.yaml", "--image", tiny_image(kit_cluster, tiny, "apptainer"), "--node", "1", "--output", "run")
    assert done.returncode == 5, done.stdout
    found = re.search(r"\[(\w+) (\S+) 1/2 ([\d.]+):(\d+) from the job (\S+)\]", done.stdout)
    assert found and (found[1], found[5]) == (RELEASE, str(kit_cluster.path(folder))), done.stdout
    job = re.search(r"job (\d+) on (node\S+): 2 x 1 processes, runtime apptainer, master ([\d.]+):(\d+)", done.stdout)
    assert job and (job[3], job[4]) == (found[3], found[4])
    assert f"a shell on {found[2]}; the job ends with it" in done.stdout
    assert f"in another terminal: kit exec {job[1]} --node all -- bash {kit_cluster.path(folder)}/run/torchrun.sh" in done.stdout
    assert "/dev/pts/" in done.stdout.split("code 130")[-1]
    until(lambda: not queued(kit_cluster), 120, "the allocation is not given back")
    assert "FAILED" in kit(kit_cluster, folder, "runs", "--name", folder.name).stdout


def test_what_a_shell_prints_is_enough_to_train_on_all_nodes_from_another_terminal(kit_cluster: Cluster, folder: Path, tiny: Path) -> None:
    (folder / "job.yaml").write_text("command: [bash, -c, 'echo rank ${RANK} of ${WORLD_SIZE}']\n")
    # The shell reads from a pipe here; it stays until the other terminal is done.
    until_done = "echo 'until [[ -e done ]]; do sleep 0.2; done; exit 3'"
    image = tiny_image(kit_cluster, tiny, "apptainer")
    line = f"cd {kit_cluster.path(folder)} && {until_done} | kit shell job.yaml -j 2x1 --image {image} --output run 2>said"
    shell = subprocess.Popen([str(HERE / "cluster.sh"), "exec", "ctl", "bash", "-c", line], stdin=subprocess.DEVNULL)
    try:
        until(lambda: (folder / "said").exists() and "another terminal" in read(folder / "said") and job_id_of_shell(folder), 180, "no shell")
        (told,) = re.findall(r"in another terminal: (kit exec .*)", read(folder / "said"))
        trained = kit_cluster.run("ctl", "bash", "-c", told).stdout
    finally:
        kit_cluster.run("ctl", "touch", kit_cluster.path(folder) / "done")
    assert shell.wait(timeout=180) == 3
    assert len({*re.findall(r"^\[node\d\] \[rank\d\] rank (\d) of 2$", trained, re.MULTILINE)}) == 2, trained


def job_id_of_shell(folder: Path) -> object:
    return json.loads(read(folder / "run/run.json"))["job_id"]


def test_a_closed_terminal_gives_the_allocation_back_and_leaves_no_process(kit_cluster: Cluster, folder: Path, tiny: Path) -> None:
    image = ["--runtime", "pyxis", "--image", tiny_image(kit_cluster, tiny, "pyxis")]
    done = typed(kit_cluster, folder, [f"$ =>A=typed; {SAYS}", "typed /=>HANG-UP"], "shell", "--nodes", "2", *image)
    assert done.returncode == 129, done.stdout
    assert f"[{RELEASE} " in done.stdout
    # A shell ignores Slurm's TERM; the KILL comes after slurm.conf's KillWait.
    until(lambda: not queued(kit_cluster), 120, "the allocation is not given back")
    nothing_left(kit_cluster)


@pytest.mark.parametrize("runtime", ["apptainer", "enroot", "pyxis", "none"])
def test_a_command_runs_in_the_container_of_a_running_job(runtime: str, kit_cluster: Cluster, folder: Path, tiny: Path) -> None:
    image = [] if runtime == "none" else ["--image", tiny_image(kit_cluster, tiny, runtime)]
    (folder / "job.yaml").write_text(f"name: job\ncommand: [bash, -c, 'echo up; sleep 300']\nlauncher: spawn\nruntime: {runtime}\nenv: {{A: 'b, \"c'}}\n")
    submit(kit_cluster, folder, "job.yaml", "--nodes", "2", *image, "--output", "run")
    until(lambda: sum("up" in read(file) for file in (folder / "run/log").glob("*/rank*.out")) == 2, 90, not_started(folder / "run"))
    job = str(job_id(folder))
    release = "trixie" if runtime == "none" else RELEASE
    both = kit(kit_cluster, folder, "exec", job, "--node", "all", "--", "bash", "-c", f"{SAYS}; exit $((NODE_RANK + 6))", check=False)
    shown = sorted(re.findall(rf"^\[(\w+)\] \[{release} (\w+) (\d)/2 \S+:\d+ b, \"c {kit_cluster.path(folder)}\]$", both.stdout, re.MULTILINE))
    assert [(name == there, rank) for name, there, rank in sorted(shown, key=lambda found: found[2])] == [(True, "0"), (True, "1")], both.stdout + both.stderr
    assert both.returncode == 7
    if runtime == "pyxis":  # which asks the nodes first what devices they have
        assert "srun: error" not in kit(kit_cluster, folder, "exec", job, "--", "true").stderr
    if runtime == "apptainer":
        piped = kit(kit_cluster, folder, "exec", job, "--node", "1", "--", "tr", "a-z", "A-Z", stdin="echo through")
        assert piped.stdout == "THROUGH\n"
        wrong_requests_are_explained(kit_cluster, folder, job)
    kit_cluster.run("ctl", "scancel", job)
    kit_cluster.wait(int(job))
    # What was asked left no mark in the job's record.
    assert not event_lines.read(folder / "run/log" / job, "node_refused")


def wrong_requests_are_explained(cluster: Cluster, folder: Path, job: str) -> None:
    def said(*arguments: str) -> tuple[int, str]:
        done = kit(cluster, folder, "exec", *arguments, check=False)
        return done.returncode, done.stderr

    hosts = ", ".join(hostlist.expand(str(event_lines.read(folder / "run/log" / job, "told")[-1]["facts"]).split("KIT_HOSTS=")[1].strip()))
    assert said(job, "--node", "node9", "--", "true") == (
        2,
        f"kit: --node: job ({job}) has no node node9\n  fix: name one of: {hosts}; or its number, from 0; or all\n",
    )
    assert said(job) == (2, f"kit: no command is given\n  fix: write it after --: kit exec {job} -- nvidia-smi; for a shell: -- bash\n")
    assert said("nobody", "--", "true") == (2, "kit: there is no run nobody\n  fix: give a job id, a run directory, or a name; kit runs lists them\n")
    code, words = said(job, "--", "no-such-command")
    assert code == 127 and "there is no no-such-command in the container\n  fix: choose another command, or an image that has it\n" in words
    (folder / "waits.yaml").write_text("command: [bash, -c, 'true']\nlauncher: spawn\nslurm: {hold: true}\n")
    submit(cluster, folder, "waits.yaml", "--output", "waiting")
    waiting = str(job_id(folder, "waiting"))
    code, words = said(waiting, "--", "true")
    assert code == 1 and re.fullmatch(
        rf"kit: waits \({waiting}\) is not running: PENDING \(JobHeldUser: .*\)\n  fix: where it is: kit status {waiting}\n", words
    )
    cluster.run("ctl", "scancel", waiting)


@pytest.mark.parametrize("restarts", ["0", "1"])
def test_ctrl_c_ends_the_ranks_of_a_run_that_a_person_started_in_an_allocation(restarts: str, kit_cluster: Cluster, folder: Path) -> None:
    line = f"render -j 2x1 --max-restarts {restarts} --launcher srun --output run -- bash -c"
    kit(kit_cluster, folder, *line.split(), "echo up; sleep 300")
    # Not in an interactive shell: now and then salloc gives it the terminal too late, and it stops for that before its first prompt.
    script = f"""
    trap : INT
    cd {kit_cluster.path(folder)}
    (until grep -qs up run/log/*/rank0.out && grep -qs up run/log/*/rank1.out; do sleep 0.1; done; echo begun) &
    bash run/run_script.sh || code=$?
    while squeue --noheader --steps --me | grep -qF .; do sleep 0.5; done
    exit "${{code}}"
    """
    done = typed(kit_cluster, folder, ["begun=>^C"], "--nodes", "2", "bash", "-c", script, program="salloc")
    assert done.returncode == 130, done.stdout
    nothing_left(kit_cluster)


def test_who_waits_for_nodes_is_told_why_and_can_give_up(kit_cluster: Cluster, folder: Path) -> None:
    done = typed(kit_cluster, folder, ["Ctrl-C gives up=>^C"], "shell", "--nodes", "2", "--slurm", "begin=now+1hour", "--output", "run")
    assert "waits: BeginTime: its time to begin has not come; expected " in done.stdout and done.returncode == 1
    assert "kit: there is no allocation\n  fix: " in done.stdout and not (folder / "run").exists()
    until(lambda: not queued(kit_cluster), 60, "the allocation is not given back")
    refused = kit(kit_cluster, folder, "shell", "--slurm", "partition=none", check=False)
    assert refused.returncode == 1 and refused.stderr.splitlines()[-2] == "kit: there is no allocation"


# Stands for Jupyter: it listens, knows its token from its environment, and writes it where Jupyter's own log would.
STUB = """\
#!/usr/bin/env python3
# jupyter-lab - a stub, for a test
import http.server, os, sys
ip, port = (next(word.split("=")[1] for word in sys.argv if word.startswith(f"--{name}=")) for name in ("ip", "port"))
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        right = self.path.endswith("token=" + os.environ["JUPYTER_TOKEN"])
        self.send_response(200 if right else 403)
        self.end_headers()
print("token", os.environ["JUPYTER_TOKEN"], flush=True)
http.server.HTTPServer((ip, int(port)), Answer).serve_forever()
"""


def test_jupyter_is_reached_by_the_printed_tunnel_and_its_token_is_in_no_process_list_and_no_readable_file(kit_cluster: Cluster, folder: Path) -> None:
    (folder / "bin").mkdir()
    (folder / "bin/jupyter-lab").write_text(STUB)
    (folder / "bin/jupyter-lab").chmod(0o755)
    there = kit_cluster.path(folder)
    image = f"--image {kit_cluster.sif} --env PATH={there}/bin:/usr/local/bin:/usr/bin:/bin"
    line = f"cd {there} && exec kit shell --jupyter {image} --output run >shown 2>&1"
    session = subprocess.Popen([str(HERE / "cluster.sh"), "exec", "ctl", "bash", "-c", line], stdin=subprocess.DEVNULL)
    until(lambda: session.poll() is not None or ((folder / "shown").exists() and "then open" in read(folder / "shown")), 180, "Jupyter does not start")
    shown = read(folder / "shown")
    tunnel = re.search(r"ssh -N -L (\d+):([\d.]+):\1 ada@ctl", shown)
    assert tunnel, shown
    port, address = tunnel.groups()
    (file,) = (folder / "run/log").glob("*/jupyter.url")
    url = read(file).strip()
    token = url.split("=")[1]
    assert url == f"http://127.0.0.1:{port}/?token={token}" and len(token) == 48
    ask = f"for t in {token} x; do curl -s -o /dev/null -w '%{{http_code}} ' http://{address}:{port}/?token=$t; done"
    assert kit_cluster.run("ctl", "bash", "-c", ask).stdout == "200 403 "
    lists = "".join(process.args + "\n" for node in ("ctl", *kit_cluster.nodes) for process in kit_cluster.processes(node))
    assert "jupyter-lab" in lists and token not in lists and token not in shown
    naming = kit_cluster.run("ctl", "bash", "-c", f"cd {there} && grep -rl {token} . | xargs stat -c '%a %n'").stdout.splitlines()
    assert sorted(re.sub(r"/log/\d+/", "/", name) for name in naming) == ["600 ./run/jupyter.log", "600 ./run/jupyter.url"]
    job = str(job_id(folder))
    kit_cluster.run("ctl", "scancel", job)
    assert session.wait(timeout=180) != 0
    assert f"kit: job {job} was ended by Slurm: CANCELLED\n" in read(folder / "shown")
    until(lambda: not file.exists(), 60, "the file with the token is left")


def test_an_image_without_jupyter_is_named_with_what_to_do(kit_cluster: Cluster, folder: Path) -> None:
    done = kit(kit_cluster, folder, "shell", "--jupyter", "--image", kit_cluster.sif, check=False)
    assert done.returncode == 1
    assert (
        "there is no Jupyter in the container (looked for jupyter-lab, jupyter-notebook, jupyter-server)\n  fix: start it with `--packages jupyterlab`"
        in done.stderr
    )
