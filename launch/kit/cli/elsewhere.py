"""Commands about a cluster elsewhere: its login node does them, as they were typed."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Callable, Optional

from kit.base.errors import KitError, Problems
from kit.cli import job_options, messages
from kit.config.job import Job
from kit.remote import where
from kit.remote.where import Typed
from kit.runs import history


def run(name: str, values: dict[str, Any], do_here: Callable[[], object]) -> Optional[int]:
    """Run a command where what it is about is. Return its exit code; None if that is here."""

    # Click has a tuple for an option that may be given again, empty where it is not given.
    values = {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
    }

    def load(problems: Problems) -> Job:
        request = replace(job_options.request(values, problems), command=name)
        if name == "bench":
            from kit.cluster.bench import bench

            return bench.load(request.target, request.overrides, request.arguments, problems)
        return request.load_or_none() if name == "shell" else request.load()

    typed = Typed(name, sys.argv[1:], values, load, messages.note, _write)
    about = where.about(typed)
    if about is None:
        return None
    # Imported here: most commands are for this machine, and this part loads longer than a dry run.
    from kit.remote import forward

    if not isinstance(about, list):
        return forward.run(typed, about)
    code = 0
    for cluster in about:
        try:
            code = forward.show_runs(typed, cluster) or code
        except KitError as error:
            print(error, file=sys.stderr, flush=True)
            code = code or error.exit_code
    if history.runs():
        do_here()
    return code


def _write(name: str, content: bytes) -> None:
    """Write what a command printed as it is: kit there has made it safe for a terminal."""
    stream = sys.stdout if name == "out" else sys.stderr
    stream.flush()
    stream.buffer.write(content)
    stream.flush()
