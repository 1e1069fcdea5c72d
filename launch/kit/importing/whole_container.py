"""Read the container in which sbatch starts a whole script, by Pyxis or the Container Engine."""

from __future__ import annotations

from typing import Optional

from kit.config import sbatch_options
from kit.importing import containers
from kit.importing.draft import Draft
from kit.importing.expansion import Scope
from kit.importing.header import GivenOptions
from kit.importing.starters import Starters


def read(given: GivenOptions, draft: Draft, scope: Scope, tasks: Optional[int]) -> None:
    """Give the program that container, unless srun starts it in one of its own."""
    spans = {name: span for name, (_, span) in given.items() if containers.is_option(name)}
    found = containers.of_slurm({name: given[name][0] for name in spans})
    code = "\n".join(line for line in draft.lines if not line.lstrip().startswith("#"))
    if "--container-image" in code or "--environment" in code:
        for span in spans.values():
            draft.left_out(span, "srun starts the program in a container of its own")
    elif found:
        for name, span in spans.items():
            draft.carried(span, sbatch_options.CONTAINERS.get(name, "image"))
        starter = Starters(draft, scope, tasks, min(spans.values()))
        starter.contain(found)
        if draft.nodes > 1 or (tasks or 1) > 1:
            starter.decide("the script ran once in this container: `setup` runs in each task")
