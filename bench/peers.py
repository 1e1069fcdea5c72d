"""What a user would take instead of kit: each in a virtual environment of its own, made once, of
the versions in peers/NAME.txt.

They are kept in ${XDG_CACHE_HOME:-~/.cache}/kit-bench/; removing that folder costs minutes at the
next measurement, and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from measure import HERE, CannotMeasure, progress

PEERS = HERE / "peers"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "kit-bench"


def tool(name: str, program: str = "python") -> Path:
    """A program of a peer's environment, such as its own command."""
    return environment(name) / "bin" / program


def environment(name: str) -> Path:
    """The folder of a peer's virtual environment, of the Python that runs this. Raises
    CannotMeasure where pip fails."""
    requirements = PEERS / f"{name}.txt"
    digest = hashlib.sha256(
        requirements.read_bytes() + platform.python_version().encode()
    ).hexdigest()[:12]
    folder = CACHE / f"{name}-{digest}"
    complete = folder / "complete"
    if not complete.exists():
        progress(f"installing {name} into {folder}")
        shutil.rmtree(folder, ignore_errors=True)  # of an installation that was interrupted
        asked = [
            folder / "bin/python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--requirement",
            requirements,
        ]
        for command in ([sys.executable, "-m", "venv", folder], asked):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise CannotMeasure(
                    f"{name} cannot be installed: it needs pip and a package"
                    f" index.\n{done.stderr.strip()[-2000:]}"
                )
        complete.touch()
    return folder


def versions(*names: str) -> dict[str, str]:
    """Of the peers themselves, as their requirements have them."""
    found = {}
    for name in names:
        pinned = dict(line.split("==") for line in (PEERS / f"{name}.txt").read_text().splitlines())
        found[name] = {key.lower().replace("_", "-"): value for key, value in pinned.items()}[name]
    return found
