"""Whether nodes mount an image or unpack it: what kit decides before the submission, and says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.tame


@pytest.fixture
def shown(kit, tmp_path: Path):
    """What kit says of it, and what env.sh has, of a dry run with these arguments."""
    for name in ("train.py", "image.sqsh", "image.sif"):
        (tmp_path / name).touch()

    def show(*arguments: str) -> tuple[str, str]:
        done = kit("submit", "train.py", *arguments, "--dry-run", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        said = "".join(line.removeprefix("kit: unpack ") for line in done.stderr.splitlines() if line.startswith("kit: unpack"))
        return said, next((line.split()[0].removeprefix("KIT_UNPACK=") for line in done.stdout.splitlines() if line.startswith("KIT_UNPACK=")), "")

    return show


EACH = "auto: each node mounts its copy of the image if it can; its log says why if it cannot"
ENROOT, PYXIS = ("--image image.sqsh --runtime enroot", "--image image.sqsh --runtime pyxis")


@pytest.mark.parametrize(
    ("arguments", "said", "unpack"),
    [
        (f"{ENROOT} --stage local", EACH, "auto"),
        (f"{PYXIS} --stage sbcast --unpack auto", EACH, "auto"),
        (ENROOT, "", "yes"),
        (f"{ENROOT} --unpack auto", "yes: the image is not staged, and a file server may not answer in time for a mount", "yes"),
        (f"{ENROOT} --unpack no", "", "no"),
        (f"{ENROOT} --stage local --unpack yes", "", "yes"),
        (f"{PYXIS} --stage local --setup pwd", "yes: the lines of `setup` may write to the image, which takes memory in a mounted one", "yes"),
        (f"{PYXIS} --stage local --remap-root", "yes: root may write to the image, which takes memory in a mounted one", "yes"),
        (
            f"{ENROOT} --stage local --launcher srun --processes-per-node 4",
            "yes: each of the 4 tasks of a node would mount it, with its own pages",
            "yes",
        ),
        (f"{ENROOT} --stage local --launcher torchrun --processes-per-node 4", EACH, "auto"),
        (f"{PYXIS} --stage local --launcher srun --processes-per-node 4", EACH, "auto"),
        ("--image image.sif --runtime apptainer --stage local --unpack auto", "", ""),
        ("--runtime none", "", ""),
    ],
)
def test_a_staged_image_may_be_mounted_unless_the_job_speaks_against_it(arguments: str, said: str, unpack: str, shown) -> None:
    assert shown(*arguments.split()) == (said, unpack)
