"""Ranks that start again in the same job, on the Slurm cluster in Docker, under every runtime."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bash_ranks import tiny_image
from jobs import RUNTIMES, job_id, nothing_left, read, submit
from slurm_cluster import Cluster

import event_lines

pytestmark = pytest.mark.cluster

# One of four is killed in the first attempt. In the second each says when it began, and all end.
KILLED_ONCE = """\
echo "attempt ${KIT_ATTEMPT} at ${EPOCHREALTIME}, port ${MASTER_PORT}"
((KIT_ATTEMPT == 1)) || exit 0
if [[ "${RANK}" == 2 ]]; then
  sleep 2
  echo "killed at ${EPOCHREALTIME}"
  kill -KILL $$
fi
sleep 300
"""
SLOWEST_S = 60  # some 3 s on a quiet machine


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_killed_rank_starts_all_again_in_the_same_job_and_container(runtime: str, kit_cluster: Cluster, folder: Path, tiny: Path) -> None:
    (folder / "killed.sh").write_text(KILLED_ONCE)
    options = ["--image", tiny_image(kit_cluster, tiny, runtime), "--runtime", runtime, "--launcher", "srun", "-j", "2x2"]
    done = submit(kit_cluster, folder, *options, "--max-restarts", "2", "--output", "run", "--follow", "--", "bash", "killed.sh")
    assert done.returncode == 0, done.stdout + done.stderr
    ended = kit_cluster.wait(job_id(folder))
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0)
    logs = folder / f"run/log/{job_id(folder)}"
    assert [event["attempt"] for event in event_lines.read(logs, "start")] == [1, 2]
    first, second = ("".join(read(folder / f"rank{rank}.out") for rank in range(4)) for folder in (logs, logs / "attempt2"))
    begun = [float(time) for time in re.findall(r"^attempt 2 at ([\d.]+)", second, re.MULTILINE)]
    killed = re.findall(r"^killed at ([\d.]+)$", first, re.MULTILINE)
    assert "attempt 2" not in first and "attempt 1" not in second
    assert sorted(re.findall(r"^\[rank(\d)\] attempt 2 ", done.stdout, re.MULTILINE)) == list("0123")
    took_s = max(begun) - float(killed[0])
    assert len(begun) == 4 and len(killed) == 1 and took_s < SLOWEST_S, took_s
    print(f"{runtime}: all ranks began again {took_s:.1f} s after one was killed")
    nothing_left(kit_cluster)


def test_what_always_fails_ends_after_the_second_time_with_its_own_code(kit_cluster: Cluster, folder: Path, tiny: Path) -> None:
    (folder / "fails.sh").write_text('echo "loading step $((RANDOM))"; [[ "${RANK}" != 1 ]] || exit 9; sleep 300\n')
    options = ["--image", tiny_image(kit_cluster, tiny, "apptainer"), "--runtime", "apptainer", "--launcher", "srun", "-j", "2x1"]
    submit(kit_cluster, folder, *options, "--max-restarts", "5", "--output", "run", "--follow", "--", "bash", "fails.sh", check=False)
    ended = kit_cluster.wait(job_id(folder))
    assert (ended.state, ended.exit_code) == ("FAILED", 9)
    logs = folder / f"run/log/{job_id(folder)}"
    assert [event["attempt"] for event in event_lines.read(logs, "start")] == [1, 2]
    assert "two attempts in a row ended at the same place" in event_lines.read(logs, "not_restarted")[0]["problem"]
    nothing_left(kit_cluster)
