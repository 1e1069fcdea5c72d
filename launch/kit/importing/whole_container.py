"""Read the container in which sbatch starts a whole script, by Pyxis or the Container Engine."""

from __future__ import annotations

import re
from typing import Optional

from kit.importing import containers
from kit.importing.draft import LEFT_OUT, Draft
from kit.importing.expansion import Scope
from kit.importing.header import GivenOptions
from kit.importing.starters import Starters

_OPTION = re.compile(r"#SBATCH\b.*--(env|(no-)?container-)")


def read(given: GivenOptions, draft: Draft, scope: Scope, tasks: Optional[int]) -> bool:
    """Give the program that container, unless srun starts it in one of its own.

    Return whether `setup` runs the script's other lines there as well, and as often: once.
    """
    options = {name: value for name, (value, _) in given.items() if containers.is_option(name)}
    found = containers.of_slurm(options)
    code = "\n".join(line for line in draft.lines if not line.lstrip().startswith("#"))
    spans = [
        (number, number)
        for number, line in enumerate(draft.lines, 1)
        if _OPTION.match(line) and draft.kind_of(number) != LEFT_OUT  # by sbatch itself
    ]
    if "--container-image" in code or "--environment" in code:
        for span in spans:
            draft.left_out(span, "srun starts the program in a container of its own")
    elif found:
        for span in spans:
            draft.carried(span, "image")
        starter = Starters(draft, scope, tasks, min(given[name][1] for name in options))
        starter.contain(found)
        if draft.nodes * (tasks or 1) == 1:
            return True
        starter.decide("the script's lines ran in this container: `host_setup` runs outside of it")
    return False
