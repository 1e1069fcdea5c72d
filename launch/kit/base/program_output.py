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
    """Return what came of a program that reads only `given`; None if it gave no answer in time."""
    try:
        return subprocess.run(
            command, capture_output=True, input=given, env=env, timeout=within_s, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        if error.errno is None:
            raise  # a TimeoutError of the calling program's own
        return None
