"""`share: group` with three real users: the owner of a run, a member of its group, and a stranger."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from running import SCRIPTS, bash, environment, until

from kit_forks import Forks
from samples import ROOT

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="only root can become several users"),
    pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap makes the users"),
]

TEAM = 100_000 + os.getpid() % 100_000 * 10  # no other run of the tests has processes of these numbers
USERS = {"ada": TEAM + 1, "bob": TEAM + 2, "eve": TEAM + 3}  # ada and bob are of the team
COUNTS = """\
trap 'asked=yes' USR1
asked='' step=0
[[ ! -e place ]] || read -r step <place
umask >umask
echo "begins at ${step}"
printf '\033]0;title\a\n'
while [[ -z "${asked}" ]]; do
  step=$((step + 1))
  sleep 0.1
done
echo "${step}" >place && echo "step ${step}" >"${KIT_PROGRESS}"
exit 75
"""
JOB = """\
name: counts
command: [bash, counts.sh]
launcher: srun
on_preempt: checkpoint
share: group
env: {COLOUR: green}
secrets: {TOKEN: env}
"""


class Team:
    """Users of this machine, in a namespace: their names are in an /etc/passwd of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.project = folder, folder / "project"
        users = "".join(f"{name}:x:{uid}:{uid}::{folder}/{name}:/bin/bash\n" for name, uid in USERS.items())
        groups = "".join(f"{name}:x:{uid}:\n" for name, uid in USERS.items())
        (folder / "passwd").write_text(f"root:x:0:0::/root:/bin/bash\n{users}")
        (folder / "group").write_text(f"root:x:0:\nteam:x:{TEAM}:ada,bob\n{groups}")
        for name, uid in USERS.items():
            (folder / name).mkdir(mode=0o700)
            os.chown(folder / name, uid, uid)
        self.project.mkdir()
        os.chown(self.project, USERS["ada"], TEAM)
        self.project.chmod(0o2750)
        for name, text in (("counts.sh", COUNTS), ("job.yaml", JOB)):
            (self.project / name).write_text(text)

    def command(self, user: str, *words: str | Path, umask: str = "022") -> list[str]:
        # What runs kit may lie in root's own home, which no other user can enter.
        needed = {str(Path(path).resolve()) for path in (sys.base_prefix, sys.prefix, ROOT)}
        hidden = [Path(path) for path in sorted(needed) if path.startswith("/root/")]
        home = ["--perms", "0755", "--tmpfs", "/root"] if hidden else []
        for path in hidden:
            above = (str(parent) for parent in reversed(path.parents) if "/root/" in str(parent))
            home += [*(word for parent in above for word in ("--perms", "0755", "--dir", parent)), "--ro-bind", str(path), str(path)]
        own = ["--ro-bind", str(self.folder / "passwd"), "/etc/passwd", "--ro-bind", str(self.folder / "group"), "/etc/group"]
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--inh-caps=-all", "--bounding-set=-all"]
        jail = ["bwrap", "--die-with-parent", "--dev-bind", "/", "/", *home, *own, "--cap-add", "ALL", "--chdir", str(self.project), "--"]
        variables = [f"{name}={value}" for name, value in self.variables(user).items()]
        shell = ["bash", "-c", 'umask "$1" && shift && exec "$@"', "bash", umask]
        return [*jail, *become, "env", "-i", *variables, *shell, *map(str, words)]

    def variables(self, user: str) -> dict[str, str]:
        own = {"HOME": f"{self.folder}/{user}", "USER": user, "TOKEN": "not-for-the-team", "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]}
        return {**own, "PYTHONPATH": str(ROOT / "launch")}  # whatever checkout is installed

    def run(self, user: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(user, *words), capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)

    def kit(self, user: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return self.run(user, sys.executable, "-m", "kit", *words)

    def begun(self) -> int:
        return sum(path.read_text().count("begins at ") for path in self.project.glob("run/log/**/rank0.out"))

    @property
    def logs(self) -> Path:
        (found,) = self.project.glob("run/log/[0-9]*/")
        return found


@pytest.fixture
def team(open_folder: Path) -> Team:
    return Team(open_folder)


@pytest.fixture(params=["022", "002", "077"])
def running(team: Team, request: pytest.FixtureRequest) -> Iterator[Team]:
    """A run of ada's, whose umask is a usual one, that of a group of friends, or that of a careful site."""
    with started(team, request.param):
        yield team


@contextmanager
def started(team: Team, umask: str) -> Iterator[None]:
    command = team.command("ada", sys.executable, "-m", "kit", "run", "job.yaml", "--output", team.project / "run", umask=umask)
    with (team.folder / "said").open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
        try:
            until(lambda: team.begun() == 1 or process.poll() is not None)
            assert process.poll() is None, (team.folder / "said").read_text()
            team.process, team.umask = process, umask
            yield
        finally:
            if process.poll() is None:  # bubblewrap would leave it behind
                os.kill(json.loads((team.project / "run/run.json").read_text())["pid"], signal.SIGTERM)
            process.wait(60)


def modes(run: Path) -> dict[str, str]:
    """{path: its mode} of all that the group, or anybody else, may use in some way."""
    found = {}
    for path in [run, *run.rglob("*")]:
        facts = path.lstat()
        if facts.st_mode & 0o077 and all(parent.lstat().st_mode & 0o011 for parent in path.parents if parent == run or run in parent.parents):
            name = re.sub(r"\b\d{9,10}\b", "ID", str(path.relative_to(run)))
            found[name] = f"{stat.S_IMODE(facts.st_mode):o} {facts.st_gid}"
    return found


@pytest.fixture
def bob(running: Team) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Calls kit as bob, a dozen times: in forks."""
    variables = running.variables("bob")
    with closing(Forks(running.command("bob"), variables)) as forks:
        yield lambda *words: forks.run([str(word) for word in words], running.project, variables, timeout_s=120)


def test_a_member_reads_the_run_has_it_save_and_stop_and_can_do_no_more(running: Team, bob: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    run, said = running.project / "run", (running.folder / "said").read_text
    assert "kit: the group team may read its logs and run.json, and have it save and stop\n" in said()
    # What is opened, whatever the umask. Of the program's own files its umask decides, but for its progress, which is closed at the end.
    until(lambda: (running.logs / "events/local0.jsonl").exists())
    files = dict.fromkeys(("run.json", "log/slurm-ID.out", "log/ID/local0.out", "log/ID/rank0.out", "log/ID/attempts"), f"640 {TEAM}")
    files |= {f"log/ID/events/{name}.jsonl": f"640 {TEAM}" for name in ("batch", "local0", "ready")}
    folders = {".": f"2710 {TEAM}", **dict.fromkeys(("log", "log/ID", "log/ID/events"), f"2750 {TEAM}")}
    assert modes(run) == {**files, **folders, "log/ID/requests": f"3730 {TEAM}"}
    assert (running.project / "umask").read_text() == f"0{running.umask}\n"

    for name in ("env.sh", "run_script.sh", "lib/share.sh", ".secrets/values", "lib", ".secrets", "."):
        done = running.run("bob", "ls" if (run / name).is_dir() else "cat", run / name)
        assert done.returncode != 0 and done.stdout == "" and "Permission denied" in done.stderr, name
    for command in (f"echo x >>{running.logs}/rank0.out", f"rm {running.logs}/rank0.out", f"echo stop >{running.logs}/request", f"ls {running.logs}/requests"):
        assert running.run("bob", "bash", "-c", command).returncode != 0, command
    assert running.run("bob", "cat", run / "run.json").returncode == 0
    assert re.search(r"^\d+ +counts +RUNNING ", bob("status", run).stdout, re.MULTILINE)
    # What a program writes may act on its own user's terminal alone.
    assert "begins at 0\n\x1b]0;title\a\n" in running.kit("ada", "logs", run, "--rank", "0").stdout
    assert "begins at 0\n?]0;title?\n" in bob("logs", run, "--rank", "0").stdout
    # A record of somebody else's may name any job: nothing is done to a job for it, and no later command finds it by a name.
    for words in (("cancel", run), ("hang", run), ("exec", run, "--", "true")):
        refused = bob(*words)
        assert refused.returncode == 1 and f"kit: {run} belongs to ada, and only they can " in refused.stderr, refused.stderr
    assert "there is no run counts" in bob("status", "counts").stderr
    assert running.process.poll() is None

    for word, times in (("checkpoint", 2), ("checkpoint", 3), ("stop", 3)):
        done = bob(word, run)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        if word == "checkpoint":
            until(lambda: running.begun() == times)
    assert running.process.wait(60) == 0
    place = (running.project / "place").read_text().strip()
    for shown in (running.kit("ada", "status", run).stdout, bob("status", run).stdout):
        assert re.search(rf" COMPLETED .* by kit stop, as bob asked, at step {place}$", shown, re.MULTILINE), shown
    assert "asked all ranks for a checkpoint, as bob asked\n" in said()
    assert "it COMPLETED" in bob("why", run).stdout
    opened = {name: mode for name, mode in modes(run).items() if re.search("progress|rank0|attempt[23]$", name)}
    folders = dict.fromkeys(("log/ID/attempt2", "log/ID/attempt3"), f"2750 {TEAM}")
    files = dict.fromkeys(("log/ID/progress", *(f"log/ID/{part}rank0.out" for part in ("", "attempt2/", "attempt3/"))), f"640 {TEAM}")
    assert opened == {**files, **folders}
    until(lambda: not running.run("root", "pgrep", "-u", str(USERS["ada"])).stdout)


@pytest.mark.parametrize("running", ["022"], indirect=True)
def test_a_stranger_can_do_nothing_and_is_told_so(running: Team) -> None:
    run = running.project / "run"
    copy = "of a run that has ended, ask for a copy: mkdir PLACE; cp -r RUN/log RUN/run.json PLACE; chmod -R go+rX PLACE"
    for word in ("stop", "status", "logs", "why"):
        done = running.kit("eve", word, run)
        fix = f"if the run is shared (`share: group`), ask for chmod o+x {running.project}; else, {copy}"
        assert (done.returncode, done.stderr) == (2, f"kit: {run} cannot be read: {running.project} is ada's, and closed to you\n  fix: {fix}\n")
    running.project.chmod(0o2755)
    done = running.kit("eve", "stop", run)
    fix = f"let the job say `share: group`, in a folder whose group you are a member of; {copy}"
    assert (done.returncode, done.stderr) == (2, f"kit: {run} cannot be read: it is ada's, and not shared with you\n  fix: {fix}\n")
    assert running.run("eve", "touch", running.logs / "requests/stop.12345678").returncode != 0
    assert running.process.poll() is None


@pytest.mark.parametrize("running", ["022"], indirect=True)
def test_what_only_looks_like_a_request_is_not_followed(running: Team) -> None:
    """Links, devices and folders are left alone; files that are not empty, or not of a member, are removed, and the log says so."""
    place, folder = running.logs / "requests", running.folder
    (folder / "eves").touch()
    os.chown(folder / "eves", USERS["eve"], USERS["eve"])
    running.run(
        "bob",
        "bash",
        "-c",
        f"cd {place}; ln -s /dev/zero stop.link; ln -s {running.project}/run/env.sh stop.own; mkdir stop.folder; mkfifo stop.fifo; touch stopped",
    )
    os.mknod(place / "stop.device", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    large = running.run("bob", "truncate", "--size=1T", place / "stop.large")
    assert large.returncode == 0, large.stderr
    os.link(folder / "eves", place / "stop.linked")
    for number, name in ((USERS["eve"], "stop.eves"), (4242, "stop.nobodys")):
        (place / name).touch()
        os.chown(place / name, number, TEAM)
    log = folder / "said"
    until(lambda: log.read_text().count("is not followed: it is not an empty file of a member") == 4)
    assert sorted(path.name for path in place.iterdir()) == ["stop.device", "stop.fifo", "stop.folder", "stop.link", "stop.own", "stopped"]
    assert re.findall(r"\((\w+), as this node knows its users\)", log.read_text()) == ["eve", "bob", "eve", "UNKNOWN"]
    assert running.process.poll() is None and running.begun() == 1
    assert running.kit("bob", "stop", running.project / "run").returncode == 0
    assert running.process.wait(60) == 0


def test_a_file_that_is_no_request_changes_nothing_while_the_ranks_save(team: Team) -> None:
    (team.project / "counts.sh").write_text(COUNTS.replace("exit 75", "sleep 15; exit 75"))
    log = team.folder / "said"
    with started(team, "022"):
        assert team.kit("bob", "checkpoint", team.project / "run").returncode == 0
        until(lambda: "asked all ranks for a checkpoint, as bob asked" in log.read_text())
        assert team.run("bob", "truncate", "--size=1", team.logs / "requests/stop.large").returncode == 0
        until(lambda: "is not followed" in log.read_text())
        until(lambda: team.begun() == 2)
        assert team.process.poll() is None


@pytest.mark.parametrize("umask", ["002", "077"])
def test_what_is_kept_of_rays_logs_the_group_can_read_and_nobody_else_can_write(umask: str, tmp_path: Path) -> None:
    script = """
    umask "$1" && cd -- "$2" && mkdir -p ray-1-2/session_latest/logs log && echo said >ray-1-2/session_latest/logs/raylet.out
    for name in messages ray; do source "${KIT_RUN_DIR}/lib/${name}.sh"; done
    KIT_RAY_DIR="$2/ray-1-2" KIT_LOG_DIR="$2/log" NODE_RANK=1
    set -m
    sleep 60 &
    KIT_RAY=$!
    ray::end 1
    """
    bash(script, umask, tmp_path, env=environment(KIT_RUN_DIR=str(SCRIPTS), KIT_SHARE="group"), check=True)
    kept = [tmp_path / "log/ray1", tmp_path / "log/ray1/raylet.out"]
    assert [f"{stat.S_IMODE(path.stat().st_mode):o}" for path in kept] == ["750", "640"]
    assert kept[1].read_text() == "said\n"


def test_the_dumps_of_very_many_ranks_the_group_can_read(tmp_path: Path) -> None:
    """Linux gives a command's words a quarter of the stack's limit: here as much for 3,000 files as by default for 24,000."""
    made = [tmp_path / name for name in ("progress", *(f"flight.1.{rank}" for rank in range(3000)))]
    for path in made:
        path.touch(0o600)
    script = 'ulimit -Ss 1024; source "${KIT_RUN_DIR}/lib/share.sh"; share::end'
    done = bash(script, env=environment(KIT_RUN_DIR=str(SCRIPTS), KIT_LOG_DIR=f"{tmp_path}{'/.' * 64}"))
    assert (done.returncode, done.stderr) == (0, "")
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o640}


def test_what_cannot_be_shared_is_refused_or_warned_of(team: Team) -> None:
    (team.project / "job.yaml").write_text("command: [bash, counts.sh]\nlauncher: srun\nshare: group\n")
    os.chown(team.project, USERS["ada"], USERS["eve"])
    team.project.chmod(0o2755)
    refused = team.kit("ada", "render", "job.yaml", "--output", "run")
    problem = f"`share: group` would share this run with eve, the group of {team.project}, but you are not a member"
    fix = "start in a folder of your group: chgrp GROUP DIR; chmod g+s DIR"
    assert (refused.returncode, refused.stderr) == (1, f"kit: {problem}\n  fix: {fix}\n")
    assert list(team.project.glob("run*")) + list(team.project.glob(".kit*")) == []
    os.chown(team.project, USERS["ada"], USERS["ada"])
    alone = team.kit("ada", "render", "job.yaml", "--output", "alone").stderr
    assert alone.startswith(
        "kit: this run is shared with the group ada, which is yours alone\n  fix: start in a folder of your team's group: chgrp GROUP DIR; chmod g+s DIR\n"
    )
    os.chown(team.project, USERS["ada"], TEAM)
    team.project.chmod(0o2700)
    warned = team.kit("ada", "render", "job.yaml", "--output", "run")
    who = f"members of team, with whom this run is shared, may not be able to enter {team.project}"
    assert warned.stderr.startswith(f"kit: {who}\n  fix: chmod g+x {team.project}; or start in a folder that the group can enter\n")
    assert warned.returncode == 0 and stat.S_IMODE((team.project / "run/run.json").stat().st_mode) == 0o640


def test_a_run_that_is_not_shared_is_closed_to_the_group(team: Team) -> None:
    (team.project / "job.yaml").write_text("command: [bash, counts.sh]\nlauncher: srun\non_preempt: checkpoint\n")
    assert team.kit("ada", "render", "job.yaml", "--output", "run").returncode == 0
    run = team.project / "run"
    assert stat.S_IMODE(run.stat().st_mode) & 0o777 == 0o700
    assert "is ada's, and not shared with you" in team.kit("bob", "stop", run).stderr
    run.chmod(0o755)
    for path in [run / "run.json", *run.rglob("log")]:
        path.chmod(0o755)
    assert "is not running" in team.kit("bob", "stop", run).stderr
