"""The runtime of CSCS's Container Engine. A stub of srun takes its option, and starts the ranks on the host: what the plug-in makes
of the file is not tested."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.config.image_files import fingerprint
from kit.plan.plan import Mount
from running import SCRIPTS, stub
from test_run_script import JOB_ID, logs, run_dir, slurm, start

# Notes what it is asked for with a container, and which variables it would hand on.
SRUN = """\
if [[ "$*" == --help ]]; then
  echo "  --environment=PATH|NAME" && exit
fi
for word; do
  shift
  if [[ "${word}" == --environment=* ]]; then
    printf '%s\\n' "${word}" >>"NOTES/asked"
    env >"NOTES/variables"
  else
    set -- "$@" "${word}"
  fi
done
exec "SCRIPTS/local/srun" "$@"
"""


def launch(folder: Path, image: Path, **other: object):
    own = {"runtime": "container-engine", "image": str(image), "fingerprint": fingerprint(image), **other}
    run = run_dir(folder, "echo rank ${RANK} in ${PWD}", nodes=2, **own)
    stub(folder / "bin", "srun", SRUN.replace("NOTES", str(folder)).replace("SCRIPTS", str(SCRIPTS)))
    done = start(run, env=slurm(nodes=2, folders=(folder / "bin",), SCRATCH="/scratch/ada", EDF_PATH="/site/edf", FOO="bar"))
    return run, done


def test_the_jobs_own_file_stands_on_the_users_and_adds_what_is_of_the_run(tmp_path: Path) -> None:
    image = tmp_path / 'ngc "1" $x\\.toml'
    image.write_text('image = "nvcr.io#nvidia/pytorch:25.01-py3"\n')
    mounts = (Mount("/etc", "/in", True, ""), Mount(str(tmp_path), str(tmp_path), False, ""))
    run, done = launch(tmp_path, image, mounts=mounts)
    assert done.returncode == 0, done.stderr
    assert {logs(run)[f"rank{rank}.out"] for rank in (0, 1)} == {f"rank 0 in {tmp_path}\n", f"rank 1 in {tmp_path}\n"}
    file = run / f"log/{JOB_ID}/edf.toml"
    assert (tmp_path / "asked").read_text() == f"--environment={file}\n"  # not the step that prepares the nodes
    name = str(image).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    assert file.read_text() == (
        f'base_environment = "{name}"\nworkdir = "{run}"\nwritable = true\nentrypoint = false\nmounts = [\n  "/etc:/in:ro",\n  "{tmp_path}:{tmp_path}",\n]\n'
    )


def test_of_the_shell_the_engine_gets_what_it_reads_itself(tmp_path: Path) -> None:
    image = tmp_path / "ngc.toml"
    image.write_text("")
    launch(tmp_path, image)
    variables = (tmp_path / "variables").read_text().splitlines()
    assert {"SCRATCH=/scratch/ada", "EDF_PATH=/site/edf", "ENROOT_LOGIN_SHELL=no"} <= set(variables) and "FOO=bar" not in variables


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda image: image.write_text("image = 'other'\n"), "is not the image that this job was submitted with"),
        (lambda image: image.unlink(), "does not exist here or cannot be read"),
    ],
)
def test_a_file_that_was_changed_or_removed_meanwhile_is_refused(change, problem: str, tmp_path: Path) -> None:
    image = tmp_path / "ngc.toml"
    image.write_text("")
    before = fingerprint(image)
    change(image)
    _, done = launch(tmp_path, image, fingerprint=before)
    assert done.returncode == 1 and problem in done.stderr


def test_an_srun_without_the_engine_starts_nothing_on_the_host(tmp_path: Path) -> None:
    image = tmp_path / "ngc.toml"
    image.write_text("")
    run = run_dir(tmp_path, "echo rank", nodes=2, runtime="container-engine", image=str(image), fingerprint=fingerprint(image))
    done = start(run, env=slurm(nodes=2))
    assert done.returncode == 1 and "srun has no --environment here: the Container Engine is not set up\n  fix: name an image file" in done.stderr
    assert not [name for name in logs(run) if name.startswith("rank")]
