"""A rank that the kernel ends since the memory of its control group is full: real control groups, of the first version or the second."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import until

GROUPS = Path("/sys/fs/cgroup")
KIT = Path(sys.executable).with_name("kit")
IS_SECOND = (GROUPS / "cgroup.controllers").exists()
PARENT = GROUPS if IS_SECOND else GROUPS / "memory"
PROGRAM = """\
import os, sys, time
time.sleep(1)
if os.environ["RANK"] == "1":
    if sys.argv[1] == "fills":
        filled = bytearray(b"x") * (1 << 30)
    open(sys.argv[2], "w").close()
    while not os.path.exists(sys.argv[3]):
        time.sleep(0.1)
    os.kill(os.getpid(), 9)
time.sleep(60)
"""
JOINS = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
FILLS = (sys.executable, "-c", 'filled = bytearray(b"x") * (1 << 30)')
LIMIT_MB = {"job": 256, "other": 64}  # of the job of this test, and of another job on its node


@pytest.fixture
def groups() -> Iterator[dict[str, Path]]:
    made = {name: PARENT / f"kit-test-{name}-{os.getpid()}" for name in LIMIT_MB}
    try:
        for name, group in made.items():
            group.mkdir()
            (group / ("memory.max" if IS_SECOND else "memory.limit_in_bytes")).write_text(str(LIMIT_MB[name] << 20))
    except OSError as problem:
        pytest.skip(f"not here: a control group that limits memory: {problem}")
    yield made
    for group in made.values():
        until(lambda group=group: not (group / "cgroup.procs").read_text())
        group.rmdir()


@pytest.mark.parametrize(("how", "cause"), [("fills", "host-out-of-memory"), ("is killed", "killed"), ("is killed beside one that fills", "killed")])
def test_a_rank_that_ran_out_of_memory_is_told_from_one_that_somebody_killed(how: str, cause: str, kit, groups: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    runs, goes_on = tmp_path / "runs", tmp_path / "goes-on"
    command = [KIT, "run", "program.py", "-j", "1x2", "--launcher", "srun", "--output", "run", "--", how, str(runs), str(goes_on)]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    job = subprocess.Popen(["bash", "-c", JOINS, groups["job"], *command], cwd=tmp_path, env=environment)
    if how != "fills":
        until(runs.exists)
    if "beside" in how:
        assert subprocess.run(["bash", "-c", JOINS, groups["other"], *FILLS]).returncode == -9
    goes_on.touch()
    assert job.wait(60) == 137
    found = json.loads(kit("why", "./run", "--json").stdout)
    assert [found[name] for name in ("rank", "node", "outcome", "cause")] == [1, "local0", "killed by SIGKILL", cause]
