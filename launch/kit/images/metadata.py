"""Write an image's configuration as files that Enroot and Apptainer read.

    etc/environment, etc/rc, etc/fstab      Enroot: doc/image-format.md in its repository
    .singularity.d/                         Apptainer: "Container metadata" in its user guide

Both get Docker's meaning: the image's variables win over the host's; a command runs in WORKDIR,
through ENTRYPOINT, and without a command CMD runs.
"""

from __future__ import annotations

import json
import re
import shlex

from kit.images import tarstream
from kit.images.tarstream import Entry
from kit.registry.oci import Config

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
QUOTED = re.compile(r"[\"'](.*)[\"']\s*")

# Pyxis puts `exec "$@"` there to leave the entrypoint out, which is its default.
RC_LOCAL = "[ ! -s /etc/rc.local ] || . /etc/rc.local\n"

# If the source has these, they are another runtime's, or of another image.
REPLACED = (
    "etc/environment etc/rc etc/rc.local etc/fstab singularity .dockerenv .exec .run .shell .test"
    " environment"
).split()
# Docker exports its own files at these places, and every runtime mounts the host's. So that each
# source of an image gives the same tree, they are as Docker leaves them, and the folders that it
# writes to have no time.
MOUNTED = ("etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/mtab")
WRITTEN_BY_ENGINES = ("etc", "dev", "proc", "sys")
MOUNT_POINTS = ("dev", "proc", "sys", "tmp", "run", "var/tmp", "root", "home", "etc")


def entries(config: Config) -> list[Entry]:
    """Return the files and folders to add to an image."""
    pairs = (item.partition("=")[::2] for item in config.env)
    env = [(name, value) for name, value in pairs if NAME.fullmatch(name)]
    for_enroot = "".join(_enroot_line(*pair) for pair in env)
    for_apptainer = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env)
    labels = json.dumps(config.labels, indent=1, sort_keys=True)
    return [
        *(tarstream.made(name) for name in MOUNTED[:-1]),
        tarstream.made("etc/mtab", mode=0o777, kind=tarstream.SYMBOLIC_LINK, target="/proc/mounts"),
        tarstream.made("etc/environment", for_enroot),
        tarstream.made("etc/fstab"),
        tarstream.made("etc/rc", _script(config, RC_LOCAL), 0o755),
        tarstream.made(".singularity.d", mode=0o755, kind=tarstream.FOLDER),
        tarstream.made(".singularity.d/env", mode=0o755, kind=tarstream.FOLDER),
        tarstream.made(".singularity.d/env/10-image.sh", for_apptainer, 0o755),
        # After a file of this name, Apptainer reads the user's --env and APPTAINERENV_NAME.
        tarstream.made(".singularity.d/env/99-base.sh", mode=0o755),
        tarstream.made(".singularity.d/labels.json", labels),
        tarstream.made(".singularity.d/runscript", "#!/bin/sh\n" + _script(config), 0o755),
    ]


def is_replaced(name: str, is_folder: bool) -> bool:
    """Return whether kit replaces this entry. A folder of such a name is the image's own."""
    if name == ".singularity.d" or name.startswith(".singularity.d/"):
        return True
    return name in (*REPLACED, *MOUNTED) and not is_folder


def lost(config: Config) -> list[str]:
    """Return the variables that a runtime cannot read.

    Enroot has one line for each, and replaces ${NAME} in it.
    """
    broken = re.compile(r"\n|\$\{[A-Za-z_]")
    variables = [(item.partition("=")[0], item) for item in config.env]
    return [name for name, item in variables if broken.search(item) or not NAME.fullmatch(name)]


def _enroot_line(name: str, value: str) -> str:
    if "\n" in value:
        return ""
    return f'{name}=""{value}""\n' if QUOTED.fullmatch(value) else f"{name}={value}\n"


def as_enroot_reads(line: str) -> str:
    """Return the line as Enroot understands it: it removes quotes around the value, twice."""
    name, _, value = line.partition("=")
    for _ in range(2):
        if found := QUOTED.fullmatch(value):
            value = found[1]
    return f"{name}={value}"


def _script(config: Config, between: str = "") -> str:
    workdir = shlex.quote(config.workdir or "/")
    labels = [f"# {key} {value}".replace("\n", " ") for key, value in sorted(config.labels.items())]
    default = config.cmd or (() if config.entrypoint else ("/bin/sh",))
    return (
        "".join(f"{line}\n" for line in labels)
        + f"cd {workdir} || exit 1\n{between}"
        + f'[ "$#" -gt 0 ] || set -- {" ".join(map(shlex.quote, default))}\n'
        + " ".join(["exec", *map(shlex.quote, config.entrypoint), '"$@"\n'])
    )
