"""What kit makes of Slurm's answers. The commands here are stand-ins: a real Slurm does not fail on demand."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest
from kit import slurm
from kit.base.errors import KitError
from kit.slurm import client

pytestmark = pytest.mark.tame


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a shell script under a Slurm command's name first on PATH."""
    folder = tmp_path / "stubs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    (tmp_path / "train.py").touch()

    def put(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return put


@pytest.mark.parametrize("answer", ["77", "77;cluster", "Welcome to the site\n77"])
def test_the_job_id_is_found_in_sbatchs_answer(answer: str, stub, kit, tmp_path: Path) -> None:
    stub("sbatch", f"printf '%s\\n' '{answer}'")
    done = kit("submit", "train.py", "--output", "run")
    size = (tmp_path / "stubs/sbatch").stat().st_size
    expected = [
        "kit: submitted job 77",
        "  run directory: run",
        f"  code:          2 files, {size} bytes, as now",
        "  follow it:     kit logs -f 77",
    ]
    assert done.stdout.splitlines() == expected
    assert json.loads((tmp_path / "run/run.json").read_text())["job_id"] == "77"


@pytest.mark.parametrize(
    "message",
    [
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "sbatch: error: Unable to contact slurm controller (connect failure)",
    ],
)
def test_the_scripts_of_a_job_that_may_have_been_accepted_are_kept(message: str, stub, kit, tmp_path: Path) -> None:
    stub("sbatch", f"echo '{message}' >&2; exit 1")
    done = kit("submit", "train.py", "--output", "run", check=False)
    assert done.returncode == 1
    assert done.stderr == (
        f"kit: sbatch ended with code 1: {message}; whether Slurm has the job is not known yet\n"
        "  fix: type the same command again: it asks first, and submits nothing twice; or see: kit status\n"
    )
    assert (tmp_path / "run/run_script.sh").exists()


def test_what_a_site_says_of_a_job_that_it_takes_is_shown(stub, kit) -> None:
    said = "sbatch: your job goes to the partition short"
    stub("sbatch", f"echo '{said}' >&2; echo 77")
    done = kit("submit", "train.py")
    assert said in done.stderr.splitlines() and done.stdout.startswith("kit: submitted job 77\n")


def test_the_scripts_of_a_refused_job_are_not_kept(stub, kit, tmp_path: Path) -> None:
    stub("sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    done = kit("submit", "train.py", "--output", "run", check=False)
    assert done.stderr.startswith("kit: sbatch refuses: invalid partition specified: x\n  fix: ")
    assert not (tmp_path / "run").exists()


def test_of_an_option_that_slurm_refuses_the_fix_has_the_line(stub, kit, tmp_path: Path) -> None:
    stub("sbatch", "echo 'sbatch: error: Invalid --gres specification' >&2; exit 1")
    for options, fix in (
        (("--slurm", "gres=gpu:x"), "Slurm read `--gres=gpu:x`: correct it in the job, or in the cluster's profile"),
        ((), "see the #SBATCH lines: kit submit JOB --dry-run; partitions and limits: sinfo"),
    ):
        done = kit("submit", "train.py", *options, check=False)
        assert done.stderr == f"kit: sbatch refuses: Invalid --gres specification\n  fix: {fix}\n"


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        (
            "QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy"
            " (job submit limit, user's size and/or time limits)",
            "no more jobs can be submitted now, and each task of an array counts as one; the limits: sacctmgr show qos",
        ),
        (
            "AssocMaxWallDurationPerJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy",
            "it alone asks for more than your account allows; ask for less; the limits: sacctmgr show assoc user=$USER",
        ),
        (  # of a quality of service with DenyOnLimit: no job of the user's runs
            "QOSMaxGRESPerUser\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy",
            "it alone asks for more than its quality of service allows; ask for less; the limits: sacctmgr show qos",
        ),
        (
            "QOSMinGRES\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy",
            "it asks for less than its quality of service demands; ask for more; the limits: sacctmgr show qos",
        ),
        (
            "Batch job submission failed: Invalid account or account/partition combination specified",
            "yours: sacctmgr show assoc user=$USER format=account,partition; in the job: `slurm: {account: NAME}`",
        ),
        (
            "Batch job submission failed: Invalid qos specification",
            "yours: sacctmgr show assoc user=$USER format=account,partition,qos; in the job: `slurm: {qos: NAME}`",
        ),
        (
            "Batch job submission failed: Pathname of a file, directory or other parameter too long",
            "Slurm takes at most 4,096 characters of an array's task numbers: start fewer tasks at a time; "
            "if there is no array, another #SBATCH line is too long: kit submit JOB --dry-run shows them",
        ),
    ],
)
def test_of_a_limit_or_an_account_that_slurm_refuses_the_fix_says_where_to_look(said: str, fix: str, stub, kit) -> None:
    stub("sbatch", f"cat >&2 <<'END'\nsbatch: error: {said}\nEND\nexit 1")
    assert kit("submit", "train.py", check=False).stderr.endswith(f"\n  fix: {fix}\n")


def test_of_options_that_contradict_each_other_the_fix_has_the_line(stub, kit, tmp_path: Path) -> None:
    said = "--gpus-per-task is mutually exclusive with --ntasks-per-gpu and SLURM_NTASKS_PER_GPU"
    stub("sbatch", f"echo 'sbatch: fatal: {said}' >&2; exit 1")
    done = kit("submit", "train.py", "--slurm", "gpus-per-task=1", "--output", "run", check=False)
    fix = "Slurm read `--gpus-per-task=1`: correct it in the job, or in the cluster's profile"
    assert done.stderr == f"kit: sbatch refuses: {said}\n  fix: {fix}\n"
    assert not (tmp_path / "run").exists()


def test_what_a_site_says_in_several_lines_stays_in_lines(stub, kit) -> None:
    said = ["A job for GPUs needs:", "  * --gres=gpu:TYPE:N", "  * an account: https://docs.site.org", "Batch job submission failed: Unspecified error"]
    stub("sbatch", "cat >&2 <<'END'\n" + "".join(f"sbatch: error: {line}\n" for line in said) + "END\nexit 1")
    lines = "".join(f"\n  | {line}" for line in said)
    assert kit("submit", "train.py", check=False).stderr.startswith(f"kit: sbatch refuses:{lines}\n  fix: ")


def test_what_a_warning_says_of_a_refusal_is_one_line(stub, kit) -> None:
    """Without its configuration, each of Slurm's commands says so in four lines."""
    stub("sinfo", "printf 'sinfo: error: %s\n' 'no DNS SRV record' 'no configuration' 'no source' >&2; exit 1")
    said = "Slurm does not answer (sinfo refuses: sinfo: error: no DNS SRV record sinfo: error: no configuration sinfo: error: no source)"
    assert kit("submit", "train.py", "--dry-run").stderr == f"kit: warning: {said}, so the job is not checked against the cluster\n"


def test_of_a_node_that_slurm_does_not_know_the_fix_has_the_list_that_names_it(stub, kit, tmp_path: Path) -> None:
    """It may be one that could not work, of another cluster under the same profile."""
    stub("sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid node name specified' >&2; exit 1")
    (tmp_path / "state/kit/bad-nodes").mkdir(parents=True)
    (tmp_path / "state/kit/bad-nodes/generic").write_text(f"{int(time.time())} gone7 its disk is full\n")
    done = kit("submit", "train.py", check=False, XDG_STATE_HOME=str(tmp_path / "state"))
    fix = (
        "Slurm read `--exclude=gone7`: correct it in the job, or in the cluster's profile; nodes that kit itself leaves out: kit nodes, kit nodes --forget NODE"
    )
    assert done.stderr.endswith(f"kit: sbatch refuses: Batch job submission failed: Invalid node name specified\n  fix: {fix}\n")


def test_of_an_array_that_slurm_refuses_the_fix_says_which_numbers_it_takes(stub, kit, tmp_path: Path) -> None:
    said = "Batch job submission failed: Invalid job array specification"
    stub("sbatch", f"echo 'sbatch: error: {said}' >&2; exit 1")
    done = kit("submit", "train.py", "--array", "0-4999%8", check=False)
    fix = "Slurm read `--array=0-4999%8`: correct it in the job, or in the cluster's profile; its numbers end below MaxArraySize: scontrol show config"
    assert done.stderr == f"kit: sbatch refuses: {said}\n  fix: {fix}\n"


@pytest.mark.slow
def test_following_outlives_a_controller_that_does_not_answer(stub, kit, tmp_path: Path) -> None:
    stub("sbatch", "echo 5")
    stub(
        "scontrol",
        f'[ "$2" = job ] || exit 1\necho x >>"{tmp_path}/asked"\n'
        f'case $(wc -l <"{tmp_path}/asked") in\n'
        "1) echo 'JobId=5 JobState=RUNNING Reason=None ExitCode=0:0 NodeList=n1' ;;\n"
        "2) echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1 ;;\n"
        "*) echo 'JobId=5 JobState=FAILED Reason=NonZeroExitCode ExitCode=7:0 NodeList=n1 Comment=x JobState=COMPLETED' ;;\n"
        "esac",
    )
    done = kit("submit", "train.py", "--output", "run", "--follow", check=False)
    assert done.returncode == 7
    assert "kit: job 5 RUNNING\nkit: job 5 FAILED\n" in done.stdout


def test_the_variables_of_a_job_around_it_do_not_reach_sbatch(stub, kit, tmp_path: Path) -> None:
    stub("sbatch", f'env >"{tmp_path}/environment"; echo 5')
    kit("submit", "train.py", SLURM_MEM_PER_CPU="100", SLURM_HET_SIZE="2", SLURM_CONF="/etc/slurm.conf", SBATCH_ACCOUNT="mine")
    names = {line.split("=")[0] for line in (tmp_path / "environment").read_text().splitlines()}
    assert not {"SLURM_MEM_PER_CPU", "SLURM_HET_SIZE"} & names
    assert {"SLURM_CONF", "SBATCH_ACCOUNT"} <= names


def test_a_dry_run_names_the_variables_that_sbatch_will_read(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    shell = {"SBATCH_PARTITION": "gpu", "SBATCH_ACCOUNT": "my own", "SBATCH_QOS": "high", "SBATCH_WAIT": "1"}
    said = kit("submit", "train.py", "-p", "cpu", "--dry-run", **shell).stderr
    assert said.endswith("kit: sbatch also reads SBATCH_ACCOUNT='my own' of this shell\nkit: sbatch also reads SBATCH_QOS=high of this shell\n")
    assert "PARTITION" not in said and "WAIT" not in said


# As sbatch has it for what is typed, where kit writes it into the script.
@pytest.mark.parametrize(
    ("options", "gone", "kept"),
    [
        (("-p", "gpu", "-t", "4:00:00"), "PARTITION TIMELIMIT JOB_NAME OPEN_MODE NO_REQUEUE REQUEUE ARRAY_INX ERROR", "ACCOUNT SIGNAL GPUS GRES MEM_PER_CPU"),
        (("--on-preempt", "checkpoint"), "SIGNAL REQUEUE NO_REQUEUE", "PARTITION TIMELIMIT"),
        (("--slurm", "mem=4G", "--slurm", "switches=1"), "MEM_PER_CPU MEM_PER_NODE MEM_PER_GPU REQ_SWITCH WAIT4SWITCH", "GPUS"),
        (("--gpus-per-node", "1"), "GPUS GPUS_PER_NODE GPUS_PER_TASK", "GRES"),
        (("--array", "0-1"), "ARRAY_INX WAIT", "CLUSTERS"),
        (("--runtime", "none"), "EXPORT", "GET_USER_ENV"),
    ],
)
@pytest.mark.parametrize("test_only", [False, True])
def test_variables_of_sbatch_do_not_undo_what_the_job_says(options: tuple[str, ...], gone: str, kept: str, test_only: bool, stub, kit, tmp_path: Path) -> None:
    stub("sbatch", f'env >"{tmp_path}/environment"; echo 5')
    values = {"GPUS": "2", "GRES": "nvme:1"}
    shell = {f"SBATCH_{name}": values.get(name, "1") for name in f"{gone} {kept}".split()}
    kit("submit", "train.py", *options, *(["--test-only"] if test_only else []), **shell)
    names = {line.split("=")[0] for line in (tmp_path / "environment").read_text().splitlines()}
    assert names & shell.keys() == {f"SBATCH_{name}" for name in kept.split()}


@pytest.mark.parametrize(
    ("line", "state", "code", "active"),
    [
        ("JobState=PENDING Reason=Priority ExitCode=0:0", "PENDING", 0, True),
        ("JobState=COMPLETING Reason=None ExitCode=0:0", "COMPLETING", 0, True),
        ("JobState=COMPLETED Reason=None ExitCode=0:0", "COMPLETED", 0, False),
        ("JobState=TIMEOUT Reason=TimeLimit ExitCode=0:15", "TIMEOUT", 143, False),
        ("JobState=NODE_FAIL Reason=NodeDown ExitCode=0:0", "NODE_FAIL", 0, False),
        ("JobState=OUT_OF_MEMORY Reason=OutOfMemory ExitCode=0:125", "OUT_OF_MEMORY", 253, False),
    ],
)
def test_states_are_read_from_scontrol(line: str, state: str, code: int, active: bool, stub) -> None:
    stub("scontrol", f"echo 'JobId=5 JobName=x {line} NodeList=n[1-2]'")
    found = slurm.state("5")
    assert found is not None
    assert (found.name, found.exit_code, found.active, found.nodes) == (state, code, active, "n[1-2]")


@pytest.mark.parametrize(
    ("gone", "others"),
    [
        (["n1 down", "n2 failing", "n3 mixed*"], ["n4 idle%", "n5 completing!", "n7 idle"]),  # PowerDownOnIdle switches the others off, too
        (["n4 idle%", "n5 completing!", "n6 idle~"], ["n7 idle", "n8 mixed", "n9 allocated#"]),
    ],
)
def test_the_nodes_of_a_failed_job_that_are_gone_are_told_from_the_others(gone: list[str], others: list[str], stub) -> None:
    stub("sinfo", f"printf '%s\\n' {' '.join(map(repr, [*gone, *others]))}")
    assert slurm.down_nodes("n[1-9]") == [line.split()[0] for line in gone]


def test_a_job_that_slurm_has_forgotten_is_none(stub) -> None:
    stub("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert slurm.state("5") is None


def test_a_thread_asks_its_own_cluster_while_another_asks_a_second_one() -> None:
    """As two runs that a program waits for, each in a thread of its own."""
    begun, other_asks, other_ended = threading.Event(), threading.Event(), threading.Event()

    def ask_the_other() -> None:
        begun.wait(60)
        with slurm.at("clusterB"):
            other_asks.set()
            other_ended.wait(60)

    other = threading.Thread(target=ask_the_other)
    other.start()
    with slurm.at("clusterA"):
        begun.set()
        assert other_asks.wait(60)
        found = client.of_cluster("squeue", "--me")
    other_ended.set()
    other.join()
    assert found == ["squeue", "--clusters=clusterA", "--me"]
    assert client.of_cluster("squeue", "--me") == ["squeue", "--me"]


def test_a_command_that_is_no_program_is_said(stub, tmp_path: Path) -> None:
    stub("salloc", "")
    (tmp_path / "stubs/salloc").write_text("")
    for call in (client.run, client.start):
        with pytest.raises(KitError, match="salloc cannot be started: Exec format error\n  fix: see: type -a salloc"):
            call(["salloc"])


def test_a_warning_beside_an_empty_answer_is_no_answer(stub) -> None:
    stub("squeue", "echo 'squeue: warning: the certificate ends soon' >&2")
    assert slurm.why_waiting("kit-probe") == ""


def test_a_step_that_says_only_blank_lines_has_said_nothing(stub) -> None:
    stub("srun", "echo >&2; exit 1")
    assert slurm.in_job("7", ["node1"], ["true"], 60) == ""


@pytest.mark.parametrize("end", ["", "-ib"])
def test_a_step_on_thousands_of_nodes_names_them_in_few_words_that_every_slurm_reads(end: str, stub) -> None:
    """Linux takes no argument of more than 128 KB, and Slurm 22.05 no name[1-2]-ib."""
    stub("srun", 'for word; do case "${word}" in --node*) echo "${word}" ;; esac; done')
    nodes = [f"a-node-of-a-very-long-name-{number:05}{end}" for number in range(2 if end else 4000)]
    names = ",".join(nodes) if end else "a-node-of-a-very-long-name-[00000-03999]"
    asked = [f"--nodelist={names}", f"--nodes={len(nodes)}"]
    assert slurm.in_job("7", nodes, ["true"], 60).split() == asked
    begun = slurm.begin_on_nodes(nodes, ["true"], {})
    assert begun.communicate()[0].decode().split() == asked
