"""Ask programs that may not be there, and that may not answer."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Optional


def ask(
    command: list[str],
    within_s: float,
    given: bytes = b"",
    env: Optional[Mapping[str, str]] = None,
) -> Optional[subprocess.CompletedProcess[bytes]]:
    """Run a program with `given` as its input. Return None if it does not start or end in time."""
    try:
        return subprocess.run(
            command, capture_output=True, input=given, env=env, timeout=within_s, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        if error.errno is None:
            raise  # a TimeoutError by a signal handler of the program that imports kit
        return None
