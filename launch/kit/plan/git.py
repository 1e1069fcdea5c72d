"""Ask git, which starts no program that the checkout's own configuration names, but for filters."""

from __future__ import annotations

import os
import subprocess
from typing import Optional

# A git hook that calls kit sets these for its own repository.
_OF_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


def output(root: str, *arguments: str, timeout_s: float = 120) -> Optional[bytes]:
    """Return what git prints about a folder; None where it fails."""
    env = {name: value for name, value in os.environ.items() if name not in _OF_HOOKS}
    # To fetch an object that is missing, git would start the remote's own program.
    env["GIT_ALLOW_PROTOCOL"] = ""
    command = ["git", "-C", root, "-c", "core.fsmonitor=false", "--no-optional-locks", *arguments]
    nothing = subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=nothing, env=env, timeout=timeout_s
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
