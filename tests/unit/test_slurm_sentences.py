"""What kit reads of Slurm's sentences, in the words of the versions that were tried: tests/unit/recorded/sentences.yaml."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from kit.base.errors import KitError
from kit.diagnose.why import findings
from kit.diagnose.why.cause import BATCH
from kit.slurm import client, sentences

from samples import ROOT

RECORDED: dict[str, dict[str, str]] = yaml.safe_load((Path(__file__).parent / "recorded/sentences.yaml").read_text())
ENDS = {"cancelled": "CANCELLED", "preempted": "PREEMPTED", "time limit": "TIMEOUT", "node failure": "NODE_FAIL"}
CAUSES = {"cancelled": "cancelled", "preempted": "preempted", "time limit": "time-limit", "node failure": "node-failed", "no such program": "step-not-started"}


@pytest.fixture(params=RECORDED)
def said(request: pytest.FixtureRequest) -> dict[str, str]:
    """What one version says."""
    return RECORDED[request.param]


def test_an_estimate_is_read(said: dict[str, str]) -> None:
    found = sentences.estimate(said["estimate"])
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(found.at_s)) if found else ""
    assert found and found.nodes == "node[1-2]" and f"to start at {at} " in said["estimate"]
    assert sentences.estimate(said["refused estimate"]) is None


@pytest.mark.parametrize(("end", "state"), ENDS.items())
def test_the_last_word_on_a_job_tells_its_state(end: str, state: str, said: dict[str, str]) -> None:
    assert sentences.ended_by(said[end]) == state
    assert sentences.ended_by(re.sub("(?m)^.* JOB .*$", "", said[end])) == ""  # a step's end is not the job's


@pytest.mark.parametrize(("end", "cause"), CAUSES.items())
def test_the_last_word_on_a_job_tells_the_cause(end: str, cause: str, said: dict[str, str]) -> None:
    known = [item for item in findings.CAUSES if BATCH in item.where]
    assert [item.name for item in known if any(pattern.search(said[end]) for pattern in item.compiled)][:1] == [cause]


def test_a_refusal_is_told_from_a_broken_connection(said: dict[str, str]) -> None:
    for refusal in ("no such partition", "too many CPUs", "no such feature", "no such reservation"):
        assert sentences.is_refusal(said[refusal]), refusal
    # Slurm 22.05 takes a job that is to wait for one which it does not know.
    if "no such job to wait for" in said:
        with pytest.raises(KitError, match="Slurm has forgotten a job that this one is to wait for"):
            client.check(["sbatch"], subprocess.CompletedProcess([], 1, "", said["no such job to wait for"]))


@pytest.mark.parametrize(("end", "told"), [("exit code", "node2:Exited with exit code 7"), ("killed", "node2:Killed")])
def test_the_batch_script_reads_which_node_failed_first_and_how(end: str, told: str, said: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log/slurm-7.out").write_text(said[end])
    ending = ROOT / "launch/scripts/lib/ending.sh"
    bash = f'set -euo pipefail\nKIT_RUN_DIR="$PWD" KIT_LOG_DIR="$PWD" KIT_ID=7 KIT_LOG_FROM=0 node= words=\nsource "{ending}"; ending::ask_srun; printf %s "$node:${{words# }}"'
    assert subprocess.run(["bash", "-c", bash], cwd=tmp_path, capture_output=True, text=True, check=True).stdout == told
