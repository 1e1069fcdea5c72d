"""A run whose folder is on a disk with room for so many pages more: its exit code counts, and its words are true."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from running import bash
from test_run_script import JOB_ID, run_dir, slurm, start

pytestmark = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed: apt-get install bubblewrap")

# In the jail: the run directory comes to the small disk, which a file fills but for so many pages; what the job says goes elsewhere.
FILLED = """
cp -a "$1.kept/." "$1/"
read -r free < <(stat -f -c %a "$1")
dd if=/dev/zero of="$1/filler" bs=4096 count="$((free - $2))" 2>/dev/null
cd "$1"
exec bash run_script.sh
"""
FOUR = 'echo "rank ${RANK}"; ((RANK != 3)) || { sleep 0.5; echo why; exit 9; }; sleep 20'
LOST = "what it said is lost, since RUN/log/JOB takes nothing more: No space left on device (df -h, df -i, quota -s)"


def on_disk(run: Path, pages: int, nodes: int = 1) -> tuple[int, list[str]]:
    """The exit code, and the lines about the end."""
    run.rename(f"{run}.kept")
    run.mkdir()
    jail = ["bwrap", "--dev-bind", "/", "/", "--size", str(4 << 20), "--tmpfs", str(run), "--"]
    done = subprocess.run([*jail, "bash", "-c", FILLED, "bash", run, str(pages)], env=slurm(nodes), capture_output=True, text=True, timeout=120)
    said = done.stderr.replace(str(run), "RUN").replace(str(JOB_ID), "JOB")
    lines = [line for line in said.splitlines() if not re.match("kit: local[0-9]: (job JOB on|a task ended)", line)]
    return done.returncode, lines


@pytest.mark.parametrize("pages", [0, 2])
def test_a_rank_that_could_not_note_its_end_is_not_taken_for_one_that_was_told_to_end(pages: int, tmp_path: Path) -> None:
    run = run_dir(tmp_path, FOUR, nodes=2, processes=2)
    assert on_disk(run, pages, nodes=2) == (1, [f"kit: error: no rank could say why it ended, or none started (srun: code 143); {LOST}"])


def test_a_rank_whose_words_found_no_room_for_a_while_has_its_log_again_when_there_is_some(tmp_path: Path) -> None:
    fill = 'head -c 40000 /dev/zero | tr "\\0" x; rm -f -- "${KIT_RUN_DIR}/filler"; printf "\\nafter\\n"'
    look = 'for i in {1..100}; do ! grep -qx after "${KIT_ATTEMPT_DIR}/rank0.out" || exit 0; sleep 0.1; done; exit 5'
    code, lines = on_disk(run_dir(tmp_path, f"{fill}; {look}"), 4)
    assert (code, lines[-1]) == (0, "kit: local0: all ranks ended well")


def test_words_that_found_no_room_are_not_said_to_be_none(tmp_path: Path) -> None:
    assert on_disk(run_dir(tmp_path, "echo why; exit 7"), 3) == (7, [f"kit: error: local0: rank 0 (local rank 0) exited with code 7; {LOST}"])


def test_a_second_attempt_has_its_number_where_the_first_could_not_be_noted(tmp_path: Path) -> None:
    code, lines = on_disk(run_dir(tmp_path, "exit $((KIT_ATTEMPT < 2 ? 3 : 0))", max_restarts=1), 0)
    assert (code, lines[-1]) == (0, "kit: local0: all ranks ended well")


def test_a_folder_of_logs_that_cannot_be_made_is_named_with_what_to_do(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true")
    (run / "log").rmdir()
    (run / "log").touch()
    done = start(run)
    again = bash('printf "%q" "$1"', run, env=slurm()).stdout
    assert (done.returncode, done.stderr.splitlines()[1:]) == (
        1,
        [
            f"kit: error: local0: cannot make {run}/log/{JOB_ID}",
            f"  fix: see the line above; free space and files there: df -h, df -i, quota -s; then start it again: kit rerun {again}",
        ],
    )
