"""Run a program with the Python of a job's image on this machine, by a runtime that works here."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from kit.base import assets
from kit.base.errors import KitError
from kit.config import image_files, plugins
from kit.config.plugins import Plugin
from kit.files import safe_read
from kit.plan.plan import Plan
from kit.plan.program import named_python, python_path

ANSWER = "answer.json"  # in the program's folder
_STARTED = "started"
_LINES = 12  # of what a runtime says


@dataclass(frozen=True)
class ImagePython:
    """The Python that starts the ranks of a plan."""

    plan: Plan
    hide: Callable[[str], str]  # takes passwords out of a text

    def run(
        self, folder: Path, request: dict[str, Any], mounts: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Return the answer to a request of launch/scripts/packages.py, which works in `folder`.

        `mounts` are further files that it reads. Raise KitError if no runtime starts the image.
        """
        said: list[str] = []
        candidates = _runtimes(self.plan)
        for runtime in candidates:
            text = self._start(runtime, folder, request, mounts)
            if safe_read.is_regular(folder / ANSWER):  # the image may have put a link there
                return safe_read.mapping(folder / ANSWER)
            lines = text.strip().splitlines()[-_LINES:]
            said.append("\n  ".join([f"{runtime}:", *lines]) if lines else f"{runtime}: no answer")
            if (folder / _STARTED).exists():  # the image works, and its Python does not
                break
        raise self._cannot_start(candidates, said)

    def _start(
        self, runtime: str, folder: Path, request: dict[str, Any], mounts: Sequence[str]
    ) -> str:
        """Return what the runtime and the program say, without passwords."""
        scripts = assets.folder("launch/scripts")
        container = self.plan.container
        own = {
            "KIT_RUN_DIR": str(scripts),
            "KIT_RUNTIME": runtime,
            "KIT_IMAGE": container.image or "",
            "KIT_FINGERPRINT": container.fingerprint or "",
            "KIT_SCRATCH": _scratch(self.plan.profile.scratch),
            "KIT_REMAP_ROOT": "",
            "KIT_WORKDIR": str(folder),
        }
        # The program is an argument, and the settings, which may hold passwords, come by a pipe.
        program = assets.part("packages.py")
        words = [program, str(folder), python_path(self.plan), named_python(self.plan), *mounts]
        command = ["bash", str(scripts / "image_python.sh"), *words]
        left_out = ("PIP_", "SLURM_", "KIT_")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**inherited, **own},
            start_new_session=True,
        )
        try:
            assert child.stdin and child.stdout
            with suppress(BrokenPipeError):  # it has ended, and says why
                child.stdin.write(json.dumps(request) + "\n")
                child.stdin.flush()
            text = child.stdout.read()  # the pipe stays open: a killed kit ends the program by it
            with suppress(BrokenPipeError):
                child.stdin.close()
            child.wait()
        except BaseException:
            os.killpg(child.pid, signal.SIGTERM)
            child.wait()
            raise
        return self.hide(text)

    def _cannot_start(self, candidates: Sequence[str], said: Sequence[str]) -> KitError:
        image = self.plan.container.image or "this machine"
        if not candidates:
            tools = " or ".join(_able(self.plan))
            way = "Slurm alone starts it: name an image file (.sqsh, .sif)"
            if tools:
                way = f"install {tools} here, or submit from a machine that has it"
            return KitError(
                f"`packages` needs the Python of {image}, and nothing on this machine runs it",
                f"{way}; or build an image with the packages: kit build",
            )
        words = "\n".join(said)
        return KitError(
            f"`packages` needs the Python of {image}, which does not start here\n{words}",
            "see the lines above; or submit from a machine that starts it; "
            "or build an image with the packages: kit build",
        )


def _runtimes(plan: Plan) -> list[str]:
    """Return the runtimes that are installed here and run the image, the job's own first."""
    own = plan.container.runtime
    if own == "none":
        return [own]
    able = [name for name, item in _able(plan).items() if shutil.which(item.tool)]
    return sorted(able, key=lambda name: name != own)


def _able(plan: Plan) -> dict[str, Plugin]:
    """Return the runtimes that run the image without Slurm."""
    kind = image_files.kind(plan.container.image)
    return {item.name: item for item in plugins.runtimes(kind) if not item.srun_option}


def _scratch(of_nodes: str) -> str:
    """Return the nodes' scratch folder if this machine has it, too; else the scripts take /tmp."""
    return of_nodes if os.path.isdir(of_nodes) and os.access(of_nodes, os.W_OK | os.X_OK) else ""
