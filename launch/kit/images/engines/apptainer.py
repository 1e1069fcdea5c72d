"""Build images with Apptainer: a definition into a folder, without root and without Docker."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.base.errors import KitError
from kit.images.definition import VARIABLE
from kit.images.engines import tree
from kit.images.engines.build_steps import Steps
from kit.images.engines.rootless import Rootless
from kit.images.recipe import Recipe
from kit.images.recipe_parts import PROXIES
from kit.images.sources.source import Source
from kit.registry import client
from kit.registry.oci import Config

# Variables that Apptainer sets itself, or takes from the host.
_NAMES = ("PWD", "OLDPWD", "SHLVL", "HOME", "USER", "PS1", "PROMPT_COMMAND", "TERM", "_")
NOT_THE_IMAGES = ("APPTAINER_", "SINGULARITY_", *(f"{name}=" for name in _NAMES))
LIBRARIES = "/.singularity.d/libs"  # Apptainer adds it to LD_LIBRARY_PATH
# Not the host's folders, which a RUN could change; what the user has set for jobs does not count.
NO_MOUNTS = "home,cwd,tmp,hostfs,bind-paths"
UNSET = ("BIND", "BINDPATH", "MOUNT", "NV", "ROCM", "CONTAIN", "OVERLAY", "WORKDIR")


class Apptainer(Rootless):
    name, recipe_files = "apptainer", ("image.def", "Dockerfile")
    # With ids of /etc/subuid, a chown gives files to users that this one is not: it could neither
    # read nor remove them. In the image, all files are root's.
    afterwards = (
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin "
        "find / -xdev '(' ! -user 0 -o ! -group 0 ')' -exec chown -h 0:0 '{}' + 2>/dev/null"
    )

    def start(self, root: Path) -> tuple[list[str], dict[str, str]]:
        words = ["apptainer", "--silent", "exec", "--fakeroot", "--writable", "--cleanenv"]
        words += ["--no-home", "--no-mount", NO_MOUNTS, "--bind", "/etc/hosts", str(root)]
        tools = ("APPTAINER", "SINGULARITY")
        return words, {f"{tool}_{name}": "" for tool in tools for name in UNSET}

    @contextmanager
    def build_own(self, file: Path, recipe: Recipe, steps: Steps) -> Iterator[Source]:
        # Ask the registry first: without its answer, the build would be in vain. An image on a base
        # of no registry starts in /, with the command that it is given.
        base = Config()
        if recipe.parts.last:
            base = client.open_image(recipe.value(recipe.parts.last), steps.note).config
        with tree.workplace() as temporary:
            place = Path(temporary, "tree")
            values = Path(temporary, "arguments")  # process lists show the command line
            given = _arguments(recipe)
            values.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
            definition = file.name if file.parent == steps.folder else str(file)
            command = ["apptainer", "build", "--fix-perms", "--sandbox"]
            if given:  # the option came with Apptainer 1.2
                command += ["--build-arg-file", str(values)]
            command += [str(place), definition]
            steps.must_run(command, {"APPTAINER_TMPDIR": temporary})
            command, variables = self.start(place)
            steps.must_run([*command, "/bin/sh", "-c", f"{self.afterwards}; true"], variables)
            config = base._replace(env=_environment(place, base.env, recipe.text))
            yield tree.source(place, recipe.name, config, self.name)


def _arguments(recipe: Recipe) -> dict[str, str]:
    """Return the arguments without those that only a base names, whose digest replaces them.

    Apptainer refuses an argument that the definition does not use.
    """
    wanted = {*VARIABLE.findall(recipe.text), *PROXIES}
    return {name: value for name, value in recipe.arguments.items() if name in wanted}


def _environment(place: Path, base: tuple[str, ...], definition: str) -> tuple[str, ...]:
    """Return the image's variables as its programs see them, %environment included.

    Variables that the definition does not set are returned as the registry's `base` has them:
    Apptainer would add backslashes to their quotes.
    """
    own = {}
    for item in base:
        name = item.partition("=")[0]
        if not re.search(rf"\b{re.escape(name)}=", definition):
            own[name] = item
    found = []
    for item in _variables(place):
        item = item.replace(f":{LIBRARIES}", "")
        if item in ("", f"LD_LIBRARY_PATH={LIBRARIES}") or item.startswith(NOT_THE_IMAGES):
            continue
        if item == "LANG=C" and "LANG" not in own:
            continue  # --cleanenv sets it before the image can
        found.append(own.get(item.partition("=")[0], item))
    return tuple(found)


def _variables(place: Path) -> list[str]:
    """Return what `env` prints in the image. Raise KitError if the image does not start."""
    command = ["apptainer", "--silent", "exec", "--cleanenv", "--no-home", "--no-mount", "cwd"]
    command += [str(place), "env", "-0"]
    nothing = subprocess.DEVNULL
    done = subprocess.run(
        command, capture_output=True, cwd="/", text=True, errors="surrogateescape", stdin=nothing
    )
    if done.returncode:
        problem = f"the image does not start: {done.stderr.strip()}"
        raise KitError(problem, "it needs a shell and env")
    return done.stdout.split("\0")
