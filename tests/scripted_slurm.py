"""A Slurm of shell scripts on PATH, with its jobs in a file; a test scripts how each command misbehaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# A job is a line of ID|STATE|SUBMITTED|FOLDER. A file of a command's name beside it is sourced in the command's place.
COMMON = """\
cd 'PLACE'
name="${0##*/}" args="$*"
echo "${name} $*" >>calls
sourced() { [[ ! -e "script.$1" ]] || { source "./script.$1"; exit; }; }
"""
SBATCH = """\
folder="$(cd "${OLDPWD}" && cd "$(dirname "${@: -1}")" && pwd)"
take() { id="$(($(cat next) + 0))"; echo "$((id + 1))" >next; echo "${id}|PENDING|$(date +%s)|${folder}" >>jobs; }
sourced sbatch
take
echo "${id}"
"""
SQUEUE = """\
list() {
  case "${args}" in
    *%F*%V*%Z*) echo 'ARRAY_JOB_ID|SUBMIT_TIME|WORK_DIR'; awk -F'|' -v OFS='|' '{print $1, $3, $4}' jobs ;;
    *) awk -F'|' -v OFS='|' '{print $1, $2, "N/A", "0:00", "1:00", "n1", "None", $4}' jobs ;;
  esac
}
sourced squeue
list
"""
SCANCEL = """\
sourced scancel
sed -i "s/^${@: -1}|[A-Z_]*|/${@: -1}|CANCELLED|/" jobs
"""
SCONTROL = """\
sourced scontrol
[[ "$*" != *config* ]] || { echo "ClusterName             = $(cat cluster)"; exit; }
awk -F'|' -v id="${@: -1}" '$1 == id {print "JobId=" id " JobState=" $2 " Reason=None ExitCode=0:0 NodeList=n1 WorkDir=" $4 " StdErr=x"; found=1} END {exit !found}' jobs ||
  { echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1; }
"""


class ScriptedSlurm:
    def __init__(self, place: Path, bin_folder: Path) -> None:
        self.place = place
        place.mkdir()
        bin_folder.mkdir(exist_ok=True)
        for name, text in (("next", "1001\n"), ("jobs", ""), ("calls", ""), ("cluster", "a\n")):
            (place / name).write_text(text)
        for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE), ("scancel", SCANCEL), ("scontrol", SCONTROL)):
            (bin_folder / name).write_text(f"#!/bin/bash\n{COMMON}{text}".replace("PLACE", str(place)))
            (bin_folder / name).chmod(0o755)
        self.path = f"{bin_folder}:{os.environ['PATH']}"

    def script(self, name: str, text: str) -> None:
        """What a command does instead; without a text, what it does by itself again."""
        file = self.place / f"script.{name}"
        if text:
            file.write_text(f"{text}\n")
        else:
            file.unlink()

    def jobs(self) -> dict[str, tuple[str, str]]:
        """{id: (state, folder)}"""
        rows = [line.split("|") for line in (self.place / "jobs").read_text().splitlines()]
        return {row[0]: (row[1], row[3]) for row in rows}

    def put(self, job_id: str, state: str, folder: object) -> None:
        with (self.place / "jobs").open("a") as file:
            file.write(f"{job_id}|{state}|9999999999|{folder}\n")

    def calls(self, name: str) -> list[str]:
        return [line for line in (self.place / "calls").read_text().splitlines() if line.startswith(f"{name} ")]


def around(place: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedSlurm:
    """Such a Slurm for a program, train.py, in a folder that becomes the current one; kit's own notes are in it, too."""
    found = ScriptedSlurm(place / "slurm", place / "bin")
    monkeypatch.setenv("PATH", found.path)
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
    monkeypatch.chdir(place)
    (place / "train.py").write_text("pass\n")
    return found
