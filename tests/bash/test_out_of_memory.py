"""A rank that the kernel ends since the memory of its control group is full: real control groups, of the first version or the second."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import until

GROUPS = Path("/sys/fs/cgroup")
IS_SECOND = (GROUPS / "cgroup.controllers").exists()
PARENT = GROUPS if IS_SECOND else GROUPS / "memory"
PROGRAM = """\
import os, sys, time
time.sleep(1)
if os.environ["RANK"] == "1":
    if sys.argv[1] == "fills":
        open(f"{sys.argv[2]}/cgroup.procs", "w").write(str(os.getpid()))
        filled = bytearray(b"x") * (1 << 30)
    os.kill(os.getpid(), 9)
time.sleep(60)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    made = PARENT / f"kit-test-{os.getpid()}"
    try:
        made.mkdir()
        (made / ("memory.max" if IS_SECOND else "memory.limit_in_bytes")).write_text(str(64 << 20))
    except OSError as problem:
        pytest.skip(f"not here: a control group that limits memory: {problem}")
    yield made
    until(lambda: not (made / "cgroup.procs").read_text())
    made.rmdir()


@pytest.mark.parametrize(("how", "cause"), [("fills", "host-out-of-memory"), ("is killed", "killed")])
def test_a_rank_that_ran_out_of_memory_is_told_from_one_that_somebody_killed(how: str, cause: str, kit, group: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = kit("run", "program.py", "-j", "1x2", "--launcher", "srun", "--output", "run", "--", how, str(group), check=False)
    assert done.returncode == 137, done.stdout + done.stderr
    found = json.loads(kit("why", "--json").stdout)
    assert [found[name] for name in ("rank", "node", "outcome", "cause")] == [1, "local0", "killed by SIGKILL", cause]
