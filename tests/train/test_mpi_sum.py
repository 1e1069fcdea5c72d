import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "train" / "mpi_sum.py"
# Root in a container may start ranks, and more of them than there are cores.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
# What an outer launcher may have left would be believed.
FOREIGN = re.compile(r"(OMPI_|PMIX?_|SLURM_|MASTER_)|(RANK|WORLD_SIZE|LOCAL_RANK)$")

# Runs a program as it is, but for a clock that raises in rank 1.
BREAK_RANK_1 = """
import os, runpy, sys, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    def perf_counter():
        raise RuntimeError("rank 1 is broken")
    time.perf_counter = perf_counter
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

missing = [name for name in ("mpi4py", "numpy") if importlib.util.find_spec(name) is None]
if shutil.which("mpirun") is None:
    missing.append("mpirun")
pytestmark = pytest.mark.skipif(bool(missing), reason=f"not here: {', '.join(missing)}")


def run(*command):
    env = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
    env |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run([str(word) for word in command], env=env, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def two_ranks(note_run):
    done = run(*MPIRUN, "-n", 2, sys.executable, SCRIPT, "--mib", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    note_run(SCRIPT)
    return done.stdout.splitlines()


def test_every_rank_says_who_it_is(two_ranks):
    said = [re.fullmatch(r"mpi rank (\d)/2  host (\S+)  pid (\d+)  \S.*", line) for line in two_ranks if line.startswith("mpi rank ")]
    assert sorted(match[1] for match in said) == ["0", "1"]
    assert {match[2] for match in said} == {socket.gethostname()}
    assert len({match[3] for match in said}) == 2


def test_the_ranks_agree_on_the_sum_and_rank_0_times_it(two_ranks):
    (line,) = [line for line in two_ranks if line.startswith("MPI: ")]
    assert re.fullmatch(r"MPI: all 2 ranks agree  1 MiB in \d+\.\d ms  bus bandwidth \d+\.\d\d GB/s", line)


def test_torch_joins_the_same_ranks_where_it_is_installed(two_ranks):
    installed = importlib.util.find_spec("torch") is not None
    (line,) = [line for line in two_ranks if line.startswith("torch: ")]
    assert line == ("torch: all 2 ranks agree with MPI" if installed else "torch: not installed, not checked")
    assert sum("  launcher mpi  " in line for line in two_ranks) == (2 if installed else 0)


def test_one_process_needs_no_mpirun():
    done = run(sys.executable, SCRIPT, "--mib", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MPI: all 1 ranks agree" in done.stdout


def test_a_rank_that_fails_ends_the_others(tmp_path):
    program = tmp_path / "break_rank_1.py"
    program.write_text(BREAK_RANK_1)
    done = run(*MPIRUN, "-n", 3, sys.executable, program, SCRIPT)
    assert done.returncode == 1
    assert "RuntimeError: rank 1 is broken" in done.stderr


def test_kit_run_starts_the_ranks_of_two_nodes_by_the_job_file(kit):
    done = kit("run", str(SCRIPT.with_suffix(".yaml")), "-j", "2x1", "--output", "run", "--", "--mib", "1")
    assert "[rank0] MPI: all 2 ranks agree  1 MiB in " in done.stdout
    assert sorted(re.findall(r"^\[rank\d\] mpi rank (\d)/2", done.stdout, re.M)) == ["0", "1"]
    assert "all ranks ended well" in done.stdout
