"""A secret is in the training processes and nowhere else, on the Slurm cluster in Docker: searched for as root, everywhere.

Every search is shown to find things, too: a variable that is exported as usual, and copies that the test plants.
"""

from __future__ import annotations

import base64
import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bash_ranks import tiny_image
from jobs import RUNTIMES, job_id, nothing_left, read
from slurm_cluster import Cluster, until

pytestmark = pytest.mark.cluster

# Waits without a child of its own, for a file of the name that it is given, and ends with the code.
PROGRAM = """\
exec 9<> <(:)
wait "$!"
echo "up ${RANK} ${#TOKEN} ${#RING} ${#MADE}"
while [[ ! -e "$1" ]]; do read -r -t 0.3 -u 9; done
exit "$2"
"""

# Prints a line for everything that holds one of the words: of a process its arguments, of a file its path. As root. The words come
# encoded, and are in a file that has no name, or this would find itself.
SEARCH = r"""
words="$(mktemp)"
exec 8>"${words}" 9<"${words}"
rm "${words}"
for word in ${1//,/ }; do base64 -d <<<"${word}" >&8; echo >&8; done
since="$2"
shift 2
matching() { grep -lasF -f /proc/$$/fd/9 -- "$@" || true; }
for process in $(matching /proc/[0-9]*/cmdline); do printf 'arguments\t%s\n' "$(tr '\0' ' ' <"${process}")"; done
for process in $(matching /proc/[0-9]*/environ); do printf 'environment\t%s\n' "$(tr '\0' ' ' <"${process%environ}cmdline")"; done
ps -efww | grep -aF -f /proc/$$/fd/9 | sed 's/^/ps\t/'
find "$@" -type f -newerct "@${since}" -print0 2>/dev/null | xargs -0 -r grep -lasF -f /proc/$$/fd/9 -- | sed 's/^/files\t/'
true
"""
OF_EACH = ("/tmp", "/scratch", "/var", "/run", "/dev/shm", "/etc", "/root", "/opt", "/usr/local")
KEYRING = "/home/ada/.config/kit/secrets.yaml"


class Searched:
    """A word for each source, and where they are found."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.ring, self.made, self.seen, self.first, self.last = (f"{name}-{uuid.uuid4().hex}" for name in ("ring", "made", "seen", "first", "last"))
        self.token = f"{self.first} '\"$(id)`id`\\ é\n{self.last}"  # any text may be a secret
        self.since = float(cluster.run("ctl", "date", "+%s").stdout) - 1

    def words(self) -> list[str]:
        return [self.ring, self.made, self.first, self.last]

    def everywhere(self, words: list[str], *nodes: str) -> dict[str, dict[str, list[str]]]:
        """On these nodes, or on all, the controller first."""
        chosen = nodes or (self.cluster.controller, *self.cluster.nodes)
        with ThreadPoolExecutor() as pool:
            return dict(zip(chosen, pool.map(lambda node: self._on(node, words), chosen)))

    def _on(self, node: str, words: list[str]) -> dict[str, list[str]]:
        places = [*OF_EACH, "/home", str(self.cluster.path(self.folder))] if node == self.cluster.controller else OF_EACH
        argv = ["bash", "-c", SEARCH, "bash", ",".join(map(encoded, words)), str(self.since), *places]
        found: dict[str, list[str]] = {"arguments": [], "environment": [], "ps": [], "files": []}
        for line in self.cluster.run(node, *argv, root=True).stdout.splitlines():
            kind, _, what = line.partition("\t")
            found[kind].append(what.strip())
        return found

    def submit(self, run: str, *options: str) -> None:
        """`kit submit` with the variables in its environment."""
        line = 'cd "$1" && export TOKEN="$(base64 -d <<<"$2")" SEEN="$3" && shift 3 && exec kit submit job.yaml --output "$@"'
        self.cluster.run("ctl", "bash", "-c", line, "bash", self.cluster.path(self.folder), encoded(self.token), self.seen, run, *options)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def searched(kit_cluster: Cluster, folder: Path):
    found = Searched(kit_cluster, folder)
    line = 'mkdir -p "${1%/*}" && (umask 077 && base64 -d <<<"$2" >"$1")'
    kit_cluster.run("ctl", "bash", "-c", line, "bash", KEYRING, encoded(f"OTHER: x\nRING: {found.ring}\n"))
    (folder / "program.sh").write_text(PROGRAM)
    job = {
        "command": ["bash", "program.sh"],
        "nodes": "2",
        "secrets": {"TOKEN": "env", "RING": {"file": "~/.config/kit/secrets.yaml"}, "MADE": {"command": f"base64 -d <<<{encoded(found.made)}"}},
    }
    (folder / "job.yaml").write_text(json.dumps(job))
    yield found
    kit_cluster.run("ctl", "rm", "-f", KEYRING)
    kit_cluster.run("ctl", "scancel", "--me")  # where an assertion failed, the programs would wait for ever


def test_a_secret_is_in_the_training_processes_and_nowhere_else(searched: Searched, tiny: Path) -> None:
    cluster, folder, inside = searched.cluster, searched.folder, str(searched.cluster.path(searched.folder))
    searched.submit("none", "--launcher", "srun", "--slurm", "requeue", "--", "go-none", "0")
    for runtime, code in zip(RUNTIMES, (0, 0, 7)):
        image = cluster.path(tiny / ("image.sif" if runtime == "apptainer" else "image.sqsh"))
        searched.submit(runtime, "--runtime", runtime, "--image", str(image), "--", f"go-{runtime}", str(code))
    searched.submit("held", "--slurm", "hold", "--launcher", "srun", "--", "go-held", "0")
    runs = {run: job_id(folder, run) for run in ("none", *RUNTIMES)}
    for run in runs:
        until_up(folder, run, attempt=1)

    during = searched.everywhere(searched.words())
    values = [f"{inside}/{run}/.secrets/values" for run in (*runs, "held")]
    assert {node: sorted(found.pop("files")) for node, found in during.items()} == {"ctl": sorted([KEYRING, *values]), **{node: [] for node in cluster.nodes}}
    assert {mode(cluster, value) for value in values} == {"600"}
    # Not the container's runtime, not torchrun, not the shells above the program: the program alone.
    programs = sorted(f"bash {inside}/{run}/code/program.sh go-{run} {7 if run == 'pyxis' else 0}" for run in runs)
    assert [sorted(found.pop("environment")) for found in during.values()] == [[], programs, programs, []]
    assert list(during.values()) == [{"arguments": [], "ps": []}] * 4
    assert environments(cluster, "node1", "TOKEN") == {searched.token}
    check_the_search_itself(searched)

    cluster.run("ctl", "scontrol", "requeue", str(runs["none"]))
    cluster.run("ctl", "scancel", str(runs["enroot"]))
    for name in ("go-apptainer", "go-pyxis"):
        (folder / name).touch()
    assert "is being cancelled" in kit(cluster, folder, "cancel", "./held")
    ended = {run: cluster.wait(runs[run]) for run in RUNTIMES}
    assert {run: (how.state, how.exit_code) for run, how in ended.items() if run != "enroot"} == {"apptainer": ("COMPLETED", 0), "pyxis": ("FAILED", 7)}
    assert ended["enroot"].state == "CANCELLED"
    until_up(folder, "none", attempt=2)
    left = sorted(str(path.relative_to(folder)) for path in folder.glob("*/.secrets/*"))
    assert left == ["none/.secrets/.gitignore", "none/.secrets/values"]
    (folder / "go-none").touch()
    assert cluster.wait(runs["none"]).state == "COMPLETED"
    nothing_left(cluster)

    after = searched.everywhere(searched.words())
    assert after.pop("ctl") == {"arguments": [], "environment": [], "ps": [], "files": [KEYRING]}
    assert list(after.values()) == [{"arguments": [], "environment": [], "ps": [], "files": []}] * 3
    said = [kit(cluster, folder, *words) for words in (["status"], ["why", "pyxis"], ["timeline", "none"], ["diff", "pyxis", "none"], ["logs", "pyxis"])]
    said += [cluster.run("ctl", *words, root=True).stdout for job in runs.values() for words in (["scontrol", "show", "job", str(job)], script_of(job))]
    assert all(said) and [word for word in searched.words() if word in "".join(said)] == []
    assert not list(folder.glob("*/.secrets"))


def test_slurms_own_token_is_in_no_process_list(kit_cluster: Cluster, folder: Path, tiny: Path) -> None:
    # A site whose users talk to Slurm with tokens: here the task's prolog sets one, beside another variable of Slurm's.
    (folder / "prolog.sh").write_text("#!/bin/bash\necho export SLURM_JWT=the-token\necho export SLURM_OTHER=not-a-secret\necho export NCCL_IB_HCA=mlx5\n")
    (folder / "prolog.sh").chmod(0o755)
    (folder / "program.sh").write_text('echo "up ${SLURM_OTHER} ${SLURM_JWT:-no token} ${NCCL_IB_HCA} ${OF_THE_SHELL:-not there}"\nsleep 300\n')
    (folder / "job.yaml").write_text("command: [bash, program.sh]\nlauncher: srun\n")
    inside = kit_cluster.path(folder)
    image = f"--image {tiny_image(kit_cluster, tiny, 'apptainer')} --runtime apptainer"
    kit_cluster.run("ctl", "bash", "-c", f"cd {inside} && kit render job.yaml {image} --output run")
    job = kit_cluster.sbatch(folder / "run/run_script.sh", f"--export=ALL,OF_THE_SHELL=1,SLURM_TASK_PROLOG={inside}/prolog.sh")
    log = folder / f"run/log/{job}/rank0.out"
    until(lambda: log.exists() and "up" in read(log), 120, "the rank does not start")
    listed = [process.args for process in kit_cluster.processes("node1")]
    kit_cluster.run("ctl", "scancel", str(job))
    kit_cluster.wait(job)
    assert any("SLURM_OTHER=not-a-secret" in args for args in listed), listed
    assert [args for args in listed if "the-token" in args] == []
    assert read(log) == "up not-a-secret no token mlx5 not there\n"
    nothing_left(kit_cluster)


PLANT = """\
base64 -d <<<"$1" >/tmp/planted
(exec -a "planted-$(base64 -d <<<"$1")" sleep 600) >/dev/null 2>&1 &
echo "$!"
"""


def check_the_search_itself(searched: Searched) -> None:
    """What is exported as usual is found where Slurm keeps it, and with the batch script; and so is what is planted."""
    cluster = searched.cluster
    usual = searched.everywhere([searched.seen], "ctl", "node1")
    assert any(path.startswith("/var/spool/slurmctld/") for path in usual["ctl"]["files"])
    # The ranks get none of it: docs/environment.md.
    assert any("slurm_script" in line for line in usual["node1"]["environment"])
    assert [line for line in usual["node1"]["environment"] if "torchrun.sh" in line or "run_script.sh" in line] == []
    process = cluster.run("node2", "bash", "-c", PLANT, "bash", encoded(searched.last)).stdout.strip()
    try:
        until(lambda: any(searched.last in process.args for process in cluster.processes("node2")), 30, "what is planted does not start")
        planted = searched.everywhere([searched.last], "node2")["node2"]
    finally:
        cluster.run("node2", "bash", "-c", 'kill "$1"; rm /tmp/planted', "bash", process)
    assert (planted["files"], planted["arguments"]) == (["/tmp/planted"], [f"planted-{searched.last} 600"]) and len(planted["ps"]) == 1


def until_up(folder: Path, run: str, attempt: int) -> None:
    def up() -> bool:
        logs = list((folder / run / "log").glob("*/rank*.out" if attempt == 1 else f"*/attempt{attempt}/rank*.out"))
        return len(logs) == 2 and all(read(log).count("up ") == 1 for log in logs)

    until(up, 120, f"{run} is not up: {[read(log) for log in (folder / run / 'log').glob('**/*.out')]}")


def mode(cluster: Cluster, path: str) -> str:
    return cluster.run("ctl", "stat", "-c", "%a", path).stdout.strip()


def environments(cluster: Cluster, node: str, name: str) -> set[str]:
    """The values that a variable has in the programs on a node."""
    pids = [str(process.pid) for process in cluster.processes(node) if process.args.startswith("bash /shared/") and "/code/program.sh" in process.args]
    texts = (cluster.run(node, "cat", f"/proc/{pid}/environ", root=True).stdout for pid in pids)
    return {entry.partition("=")[2] for text in texts for entry in text.split("\0") if entry.startswith(f"{name}=")}


def kit(cluster: Cluster, folder: Path, *words: str) -> str:
    done = cluster.run("ctl", "bash", "-c", 'cd "$1" && shift && exec kit "$@"', "bash", cluster.path(folder), *words, check=False)
    return done.stdout + done.stderr


def script_of(job: int) -> list[str]:
    return ["scontrol", "write", "batch_script", str(job), "-"]
