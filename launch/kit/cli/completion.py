"""Values that the Tab key offers. What cannot be found out is no error: there is nothing to offer.

Names of files are not here: where these functions return nothing, the shell completes files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Callable, Union

from kit import slurm
from kit.base import assets
from kit.config import image_files
from kit.config import sbatch_options as known_options
from kit.config.job import KEYS
from kit.runs import history

Values = Sequence[Union[str, tuple[str, str]]]  # a value, or a value and its meaning

SLURM_S = 1.0  # how long Slurm may take to name its partitions
NEWEST = 200  # runs; a longer list helps nobody
STATES = (
    "PENDING",
    "RUNNING",
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
)


def one_of(*values: str) -> Callable[[], Values]:
    """Return the completion of an option that takes one of a few words."""
    return lambda: values


def _runs(*, ended: bool) -> list[tuple[str, str]]:
    """Return ids and names, the newest first."""
    known = [run for run in reversed(history.newest(NEWEST)) if ended or not run.state]
    ids = [(run.id, " ".join(filter(None, [run.name, run.shape, run.state]))) for run in known]
    names: dict[str, str] = {}
    for run in known:
        names.setdefault(run.name, f"the newest: {run.id}")
    return [*ids, *names.items()]


def runs() -> Values:
    return _runs(ended=True)


def active_runs() -> Values:
    return _runs(ended=False)


def runs_to_wait_for(incomplete: str) -> Values:
    """Return runs behind the condition that is typed: any:RUN, notok:RUN."""
    kind, colon, _ = incomplete.rpartition(":")
    return [(f"{kind}{colon}{value}", meaning) for value, meaning in _runs(ended=True)]


def partitions() -> Values:
    return slurm.partitions(SLURM_S)


def sbatch_options(incomplete: str) -> Values:
    name, equals, _ = incomplete.partition("=")
    is_partition = "partition".startswith(name)
    values = [f"partition={value}" for value in partitions()] if is_partition else []
    if equals:
        return values if name == "partition" else []
    known = [
        option if option in known_options.FLAGS else f"{option}=" for option in known_options.KNOWN
    ]
    return [*known, *(values if incomplete else [])]


def images() -> Values:
    return image_files.given_names(Path())


def recipes() -> Values:
    from kit.images.choose import USUAL  # loads for long, and few keys want it

    found = set()
    for place in (Path("containers"), assets.folder("containers")):
        for name in USUAL:
            found |= {path.parent.name for path in place.glob(f"*/{name}")}
            found |= {path.name[: -len(name) - 1] for path in place.glob(f"*.{name}")}
    return sorted(found)


# The keys of a job whose values can be named.
OF_KEY: dict[str, Callable[..., Values]] = {
    **{name: offer for name, key in KEYS.items() if (offer := key.choices or key.examples)},
    "slurm": sbatch_options,
    "image": images,
}
engines = one_of("docker", "podman", "apptainer", "enroot")
