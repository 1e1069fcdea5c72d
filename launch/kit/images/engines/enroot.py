"""Build images with Enroot: run a script in a container of the base, without root or Docker."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.base.errors import KitError
from kit.images import pack
from kit.images.engines import tree
from kit.images.engines.build_steps import Steps, hidden
from kit.images.engines.rootless import Rootless
from kit.images.recipe import Recipe
from kit.images.sources import find
from kit.images.sources.source import Source
from kit.registry import client

CONTAINER = "image"
# What a command of a Dockerfile gets from the host. A site's hooks write into the image: the
# user's name and home, the host's time zone; and its /tmp would last for one command alone.
MOUNTS = """\
/proc /proc none x-create=dir,rbind,rw,nosuid,nodev,noexec,rslave 0 -1
/sys /sys none x-create=dir,rbind,ro,nosuid,nodev,noexec,rslave 0 -1
/dev /dev none x-create=dir,rbind,rw,nosuid,noexec,rslave 0 -1
/etc/hosts /etc/hosts none x-create=file,bind,ro,nosuid,nodev,noexec,private 0 -1
/etc/resolv.conf /etc/resolv.conf none x-create=file,bind,ro,nosuid,nodev,noexec,private 0 -1
"""


class Enroot(Rootless):
    name, recipe_files = "enroot", ("image.enroot.sh", "Dockerfile")
    left = (".lock",)

    def start(self, root: Path) -> tuple[list[str], dict[str, str]]:
        env = _folders(str(root.parent.parent)) | {"ENROOT_DATA_PATH": str(root.parent)}
        mounts = Path(env["ENROOT_CONFIG_PATH"], "mounts.d")
        mounts.mkdir(exist_ok=True)
        (mounts / "10-build.fstab").write_text(MOUNTS)
        # Enroot reads the site's enroot.conf in any case, and takes these from the environment.
        env |= {"ENROOT_SYSCONF_PATH": env["ENROOT_CACHE_PATH"], "ENROOT_LOGIN_SHELL": "no"}
        env |= {"ENROOT_MOUNT_HOME": "no", "ENROOT_RESTRICT_DEV": "no"}
        return ["enroot", "start", "--root", "--rw", root.name], env

    @contextmanager
    def build_own(self, file: Path, recipe: Recipe, steps: Steps) -> Iterator[Source]:
        if len(recipe.bases) != 1:
            fix = "name it in one line at its head: # base: IMAGE"
            raise KitError("the recipe has one base image, in which it runs", fix, where=str(file))
        (base,) = recipe.bases
        with tree.workplace() as temporary, _plain_link(steps.folder) as context:
            env = _folders(temporary)
            squashfs = Path(temporary, "base.sqsh")
            image = client.open_image(base, steps.note)
            with find.merged(image) as files:
                pack.squash(files, image.config._replace(entrypoint=()), squashfs, steps.log)
            create = ["enroot", "create", "--name", CONTAINER, str(squashfs)]
            steps.must_run(create, env, unpacks=True)
            squashfs.unlink()
            # Read-only: the files in the folder may be links to the user's own.
            mount = f"{context}:/context:none:x-create=dir,bind,ro"
            arguments, variables = hidden("--env", recipe.arguments)
            start = ["enroot", "start", "--root", "--rw", "--mount", mount, *arguments, CONTAINER]
            name = shlex.quote(str(file.relative_to(steps.folder)))
            script = f"cd /context && exec sh {name}"
            steps.must_run([*start, "sh", "-c", script], {**env, **variables})
            place = Path(env["ENROOT_DATA_PATH"], CONTAINER)
            yield tree.source(place, recipe.name, image.config, self.name)


@contextmanager
def _plain_link(folder: Path) -> Iterator[Path]:
    """Yield a link to a folder whose path a mount of Enroot's can name: without blank or colon."""
    usual = tempfile.gettempdir()
    place = "/tmp" if re.search(r"[\s:\\]", usual) else usual  # noqa: S108 - a folder made in it
    with tempfile.TemporaryDirectory(prefix=tree.TEMPORARY, dir=place) as temporary:
        link = Path(temporary, "context")
        link.symlink_to(folder)
        yield link


def _folders(temporary: str) -> dict[str, str]:
    """Return Enroot's own folders below a temporary one, which are made where they are missing."""
    words = ("DATA", "RUNTIME", "CACHE", "TEMP", "CONFIG")
    found = {f"ENROOT_{word}_PATH": os.path.join(temporary, word.lower()) for word in words}
    for path in found.values():
        os.makedirs(path, 0o700, exist_ok=True)
    return found
