"""kit from outside of the cluster: this machine is the laptop, the controller's sshd the login node."""

from __future__ import annotations

import os
import re
import subprocess
import time

import login_node
import pytest
from login_node import Laptop
from slurm_cluster import until

pytestmark = pytest.mark.cluster
CUT = 69
HOSTILE = 'it\'s "a" $(run) `x` ; & *'


def state(laptop: Laptop) -> str:
    return re.findall(r"^(?:\d+)? +job +([A-Z]+) ", laptop.kit("status", "job", code=None).stdout, re.MULTILINE)[0]


def jobs_of(laptop: Laptop) -> list[str]:
    """The jobs of this test's project."""
    return [folder for folder in laptop.jobs() if folder.startswith(f"{laptop.work}/runs/")]


def test_a_job_is_submitted_followed_seen_explained_and_cancelled_from_outside(laptop: Laptop) -> None:
    done = laptop.kit("submit", "job.yaml", "--follow", "--", "0", "3")
    for rank in (0, 1):
        assert [line for line in done.stdout.splitlines() if f"of rank {rank}" in line] == [f"[rank{rank}] line {line} of rank {rank}" for line in (1, 2, 3)]
    assert "COMPLETED" in laptop.kit("status").stdout
    failed = laptop.kit("submit", "job.yaml", "--name", "failing", "--follow", "--", "7", code=7)
    assert "FAILED with exit code 7" in failed.stderr
    assert "exit code 7" in laptop.kit("why", "failing").stdout
    assert "line 1 of rank 1\n" in laptop.kit("logs", "failing", "--rank", "1").stdout
    assert "container" in laptop.kit("timeline", "failing").stdout

    laptop.kit("submit", "job.yaml", "--name", "long", "--", "0", "1", "300")
    until(lambda: "RUNNING" in laptop.kit("status", "long").stdout, 120, "the job does not start")
    until(lambda: "line 1 of rank 1" in laptop.kit("status", "long").stdout, 120, "no last line of a rank")
    assert "2 of 2 ranks seen on 2 nodes" in laptop.kit("hang", "long").stdout
    assert "is being cancelled" in laptop.kit("cancel", "long").stdout
    until(lambda: "CANCELLED" in laptop.kit("status", "long").stdout, 120, "the job is not cancelled")
    # What the far side has is its owner's alone, by the folders that all of it is in, and so is the way to it.
    assert set(laptop.there("bash", "-c", f"find {login_node.SSH_DIR_QUOTED} -maxdepth 1 -perm /077").splitlines()) == set()
    assert laptop.sockets.stat().st_mode & 0o777 == 0o700
    calls = re.split(r"\n(?=-a )", (laptop.home / "calls").read_text())  # a command may be of several lines
    assert all("ForwardAgent=no" in call and "ForwardX11=no" in call and "program.sh" not in call for call in calls if " -O check " not in call)


def test_a_connection_that_breaks_while_sbatch_works_is_opened_again_and_there_is_one_job(laptop: Laptop) -> None:
    for when in ("before", "after"):
        laptop.hold(when)
        submitting = laptop.start("submit", "job.yaml", "--name", when, "--", "0")
        laptop.wait_held(when)
        laptop.cut()
        time.sleep(0.5)
        laptop.release()
        out, errors = submitting.communicate(timeout=180)
        assert submitting.returncode == 0, errors
        assert "kit: connection to login lost (" in errors and errors.endswith("kit: login answers again\n") and "kit: submitted job " in out
    assert len(jobs_of(laptop)) == 2


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_job_whose_answer_was_lost_is_found_again(when: str, laptop: Laptop) -> None:
    laptop.hold(when)
    submitting = laptop.start("submit", "job.yaml", "--", "0")
    laptop.wait_held(when)
    laptop.stop_sshd()
    submitting.kill()  # the laptop's battery is empty
    submitting.communicate()
    shown = laptop.kit("status", code=CUT)
    assert "(" in shown.stderr and "its runs are not shown" in shown.stderr
    laptop.release()
    laptop.start_sshd()
    again = laptop.kit("submit", "job.yaml", "--", "0")
    assert re.search(r"kit: the same command of \w+ ago (goes on there|has ended there meanwhile), and is not started again; its output:", again.stderr)
    assert "kit: submitted job " in again.stdout
    until(lambda: state(laptop) == "COMPLETED", 120, "the job is not found")
    assert len(jobs_of(laptop)) == 1


def test_what_never_reached_slurm_is_submitted_once_or_given_up_as_the_user_says(laptop: Laptop) -> None:
    laptop.hold("before")
    words = {name: ["submit", "job.yaml", "--name", name, "--", "0"] for name in ("one", "two", "three")}
    submitting = [laptop.start(*line) for line in words.values()]
    laptop.wait_held("before", 3)
    laptop.stop_sshd()
    for process in submitting:
        process.kill()
        process.communicate()
    laptop.kill_all_there()
    laptop.release()
    laptop.start_sshd()
    assert "whether Slurm has the job" in laptop.kit(*words["one"], code=1).stderr
    laptop.age_history()
    shown = laptop.kit("status").stdout
    for name in laptop.runs():
        assert re.search(rf"UNSUBMITTED .* Slurm has no job of it; to start it: kit rerun {name}$", shown, re.MULTILINE)
    assert "kit: submitted job " in laptop.kit(*words["one"]).stdout
    assert "kit: submitted job " in laptop.kit("rerun", "two").stdout
    assert laptop.kit("cancel", "three").stdout == "kit: three was never submitted, and will not be\n"
    assert len(jobs_of(laptop)) == 2 and len(laptop.runs()) == 2


def test_a_job_of_which_sbatch_was_killed_after_slurm_had_it_is_found_by_its_folder(laptop: Laptop) -> None:
    laptop.hold("after")
    submitting = laptop.start("submit", "job.yaml", "--", "0", "1", "300")
    laptop.wait_held("after")
    laptop.stop_sshd()
    submitting.kill()
    submitting.communicate()
    laptop.kill_all_there()
    laptop.release()
    laptop.start_sshd()
    assert "did submit job" in laptop.kit("submit", "job.yaml", "--", "0", "1", "300").stdout
    assert "is being cancelled" in laptop.kit("cancel", "job").stdout
    assert len(jobs_of(laptop)) == 1


def test_logs_that_are_followed_lose_and_repeat_nothing_when_the_connection_breaks(laptop: Laptop) -> None:
    following = laptop.start("submit", "job.yaml", "--follow", "--", "5", "60")
    until(lambda: "rank0.out" in laptop.there("bash", "-c", 'ls -R "$1/runs"; true', "bash", laptop.work), 120, "no log arrives")
    laptop.stop_sshd()
    tried = laptop.asked()
    until(lambda: laptop.asked() >= tried + 2, 60, "kit does not try again")
    laptop.start_sshd()
    out, errors = following.communicate(timeout=180)
    assert following.returncode == 5, errors
    assert errors.count("kit: connection to login lost (") == 1 and errors.count("kit: login answers again") == 1
    for rank in (0, 1):
        assert [line for line in out.splitlines() if f"of rank {rank}" in line and "  | " not in line] == [
            f"[rank{rank}] line {line} of rank {rank}" for line in range(1, 61)
        ]


def test_a_host_that_does_not_answer_is_named_with_an_exit_code_of_its_own(laptop: Laptop) -> None:
    laptop.kit("submit", "job.yaml", "--", "0", "1", "300")
    until(lambda: state(laptop) == "RUNNING", 120, "the job does not start")
    laptop.stop_sshd()
    shown = laptop.kit("status", code=CUT)
    assert re.search(r"^kit: .*login.* \(.*Connection refused\): its runs are not shown$", shown.stderr, re.MULTILINE)
    refused = laptop.kit("cancel", "job", code=CUT)
    assert refused.stderr.endswith("kit cancel has not begun\n  fix: see whether this works: ssh login; then type the same command again\n")
    assert refused.stdout == ""
    laptop.start_sshd()
    laptop.kit("cancel", "job")


def test_an_explanation_whose_connection_breaks_is_given_by_the_next_one(laptop: Laptop) -> None:
    laptop.kit("submit", "job.yaml", "--", "7")
    until(lambda: state(laptop) == "FAILED", 120, "the job does not end")
    assert "exit code 7" in laptop.kit("why", "job").stdout
    laptop.stop_sshd()
    assert laptop.kit("why", "job", code=CUT).stdout == ""
    laptop.start_sshd()
    assert "exit code 7" in laptop.kit("why", "job").stdout


def test_an_image_is_copied_once_goes_on_where_it_was_cut_off_and_is_checked(laptop: Laptop) -> None:
    (laptop.project / "big.sif").write_bytes(os.urandom(12 << 20))
    image = ["--image", "big.sif", "--runtime", "apptainer", "--slurm", "hold"]
    (laptop.home / "cut").write_text(str(5 << 20))
    first = laptop.kit("submit", "job.yaml", *image, "--", "0")
    assert "kit: copying big.sif to login, 12 MiB, once" in first.stderr and "the connection to login broke" in first.stderr
    folder = f"{laptop.ssh_dir}/images"
    (name,) = (name for name in laptop.there("ls", folder).splitlines() if name.startswith("big-"))
    there = laptop.cluster.shared / folder.removeprefix("/shared/") / name
    assert there.read_bytes() == (laptop.project / "big.sif").read_bytes()
    before = there.stat()
    second = laptop.kit("submit", "job.yaml", *image, "--name", "second", "--", "0")
    assert "copying" not in second.stderr and there.stat() == before
    assert laptop.there("ls", "-A", folder).split() == [name]
    for run in laptop.runs():
        assert f"/images/{name}" in laptop.there("cat", f"{laptop.work}/runs/{run}/env.sh")
    for name in ("job", "second"):
        laptop.kit("cancel", name)


def test_paths_there_are_all_checked_before_anything_is_written(laptop: Laptop) -> None:
    (laptop.project / "wrong.yaml").write_text(
        "command: bash program.sh\nlauncher: srun\nruntime: apptainer\ncluster: far\nimage: /shared/no.sif\nmounts:\n  - /shared/none:/data\n  - /shared:/all\n"
    )
    done = laptop.kit("submit", "wrong.yaml", code=2)
    problems = [line for line in done.stderr.splitlines() if line.startswith("kit: wrong.yaml")]
    assert [line.split(": ")[1] for line in problems] == ["wrong.yaml:5", "wrong.yaml:7"], done.stderr
    assert laptop.runs() == []


def test_hostile_names_of_folders_arguments_and_runs_arrive_unchanged(laptop: Laptop) -> None:
    inner = laptop.project / HOSTILE
    inner.mkdir()
    (inner / "tell.sh").write_text('printf "<%s>\\n" "$@" "${TOLD}" "${PWD}" "${#PASSED_ON}"; pwd >"result of ${RANK}"\n')
    (inner / "job.yaml").write_text("command: [bash, tell.sh]\nlauncher: srun\nruntime: none\ncluster: far\nsecrets: [PASSED_ON]\n")
    words = [HOSTILE, "a\nb", "$HOME", "\\", ""]
    laptop.kit("submit", f"{HOSTILE}/job.yaml", "--output", f"out {HOSTILE}", "--name", HOSTILE, "--env", f"TOLD={HOSTILE}", "--follow", "--", *words)
    said = laptop.kit("logs", HOSTILE, "--rank", "0").stdout
    work = f"{laptop.ssh_dir}/work/{HOSTILE}"
    assert said == "".join(f"<{word}>\n" for word in [*words, HOSTILE, work, len(login_node.SECRET)])
    # The value was there while the job ran, and is nowhere now; here it was while it was copied.
    for place in (laptop.home, laptop.cluster.shared):
        # Programs that end on the cluster remove files during the search; grep then fails, so only its output counts.
        assert subprocess.run(["grep", "-rlF", login_node.SECRET, str(place)], stdout=subprocess.PIPE).stdout == b""
    assert laptop.there("cat", f"{work}/result of 0").strip() == work


def test_slurm_refuses_in_two_lines_and_nothing_is_kept(laptop: Laptop) -> None:
    done = laptop.kit("submit", "job.yaml", "--slurm", "nodelist=nowhere", "--", "0", code=1)
    assert re.fullmatch(r"kit: sbatch refuses: .*[Ii]nvalid node name.*\n  fix: .*\n", done.stderr)
    assert laptop.runs() == []
    # The Slurm over there is asked before, too.
    assert "there is no partition 'nowhere' here" in laptop.kit("submit", "job.yaml", "--slurm", "partition=nowhere", "--", "0", code=2).stderr
    assert "cheap" in laptop.kit("when", "job.yaml").stdout
    estimate = laptop.kit("submit", "job.yaml", "--test-only", "--", "0").stdout
    assert re.search(r"Job \d+ to start at ", estimate)
    assert laptop.runs() == []


def test_a_rerun_has_the_code_of_then_and_arrays_are_seen_task_by_task(laptop: Laptop) -> None:
    laptop.kit("submit", "job.yaml", "--follow", "--", "0", "2")
    swept = laptop.kit("submit", "job.yaml", "--name", "swept", "--sweep", "code=0,4", "--follow", "--", "{code}", code=1)
    assert "1 completed, 1 failed" in swept.stdout
    (laptop.project / "program.sh").write_text("exit 9\n")
    (old,) = (name for name in laptop.runs() if name.startswith("job-"))
    again = laptop.kit("rerun", "job", "--output", "again", "--follow")
    assert "[rank1] line 2 of rank 1" in again.stdout
    assert laptop.kit("diff", old, "again", code=None).returncode in (0, 1)


def test_nodes_that_could_not_work_over_there_are_listed_left_out_and_forgotten(laptop: Laptop) -> None:
    laptop.there("bash", "-c", 'mkdir -p "$1" && echo "$(date +%s) node3 has no disk" >"$1/far"', "bash", "/home/ada/.local/state/kit/bad-nodes")
    assert "node3" in laptop.kit("nodes", "--cluster", "far").stdout
    assert "#SBATCH --exclude=node3" in laptop.kit("submit", "job.yaml", "--dry-run").stdout
    laptop.kit("nodes", "--cluster", "far", "--forget", "node3")
    assert laptop.kit("nodes", "--cluster", "far").stdout == "kit: kit knows no bad nodes\n"
