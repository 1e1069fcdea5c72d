"""What an image says beside its files, written as Enroot and Apptainer read it from a file system.

    etc/environment, etc/rc, etc/fstab      Enroot: doc/image-format.md in its repository
    .singularity.d/                         Apptainer: "Container metadata" in its user guide

Both get Docker's meaning: the image's variables hold whatever the host has; a command runs in WORKDIR, through
ENTRYPOINT, and without one CMD runs.
"""

from __future__ import annotations

import json
import re
import shlex

from kit.build import tarstream
from kit.build.sources.oci import Config
from kit.build.tarstream import Entry

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
QUOTED = re.compile(r"[\"'](.*)[\"']\s*")

# Pyxis puts `exec "$@"` there where the entrypoint is not wanted, which is its default.
RC_LOCAL = "[ ! -s /etc/rc.local ] || . /etc/rc.local\n"

# Whatever the source has there is another runtime's, or of another image.
REPLACED = (
    "etc/environment",
    "etc/rc",
    "etc/rc.local",
    "etc/fstab",
    "singularity",
    ".dockerenv",
    ".exec",
    ".run",
    ".shell",
    ".test",
    "environment",
)
# Docker lays its own over these while it hands an image's files out, and every runtime mounts the host's: so that all ways to an image give
# one tree, they are as Docker leaves them, and the folders that it writes to have no time.
MOUNTED = ("etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/mtab")
WRITTEN_BY_ENGINES = ("etc", "dev", "proc", "sys")
MOUNT_POINTS = ("dev", "proc", "sys", "tmp", "run", "var/tmp", "root", "home", "etc")


def entries(config: Config) -> list[Entry]:
    env = [(name, value) for name, _, value in (item.partition("=") for item in config.env) if NAME.fullmatch(name)]
    return [
        *(tarstream.made(name) for name in MOUNTED[:-1]),
        tarstream.made("etc/mtab", mode=0o777, kind=tarstream.SYMBOLIC_LINK, target="/proc/mounts"),
        tarstream.made("etc/environment", "".join(_enroot_line(*pair) for pair in env).encode("utf-8", "surrogateescape")),
        tarstream.made("etc/fstab"),
        tarstream.made("etc/rc", _script(config, RC_LOCAL).encode("utf-8", "surrogateescape"), 0o755),
        tarstream.made(".singularity.d", mode=0o755, kind=tarstream.FOLDER),
        tarstream.made(".singularity.d/env", mode=0o755, kind=tarstream.FOLDER),
        tarstream.made(".singularity.d/env/10-image.sh", "".join(f"export {n}={shlex.quote(v)}\n" for n, v in env).encode("utf-8", "surrogateescape"), 0o755),
        # Where Apptainer finds a file of this name, the user's own --env and APPTAINERENV_NAME follow it, and win.
        tarstream.made(".singularity.d/env/99-base.sh", mode=0o755),
        tarstream.made(".singularity.d/labels.json", json.dumps(config.labels, indent=1, sort_keys=True).encode()),
        tarstream.made(".singularity.d/runscript", ("#!/bin/sh\n" + _script(config)).encode("utf-8", "surrogateescape"), 0o755),
    ]


def is_replaced(name: str, is_folder: bool) -> bool:
    """A folder of such a name is the image's own: runtimes have files there."""
    return ((name in REPLACED or name in MOUNTED) and not is_folder) or name == ".singularity.d" or name.startswith(".singularity.d/")


def lost(config: Config) -> list[str]:
    """Variables that one of the runtimes cannot read: Enroot has a line for each, and replaces ${NAME} in it."""
    broken = [item.partition("=")[0] for item in config.env if "\n" in item or re.search(r"\$\{[A-Za-z_]", item)]
    return broken + [name for name in (item.partition("=")[0] for item in config.env) if not NAME.fullmatch(name)]


def _enroot_line(name: str, value: str) -> str:
    if "\n" in value:
        return ""
    return f'{name}=""{value}""\n' if QUOTED.fullmatch(value) else f"{name}={value}\n"


def as_enroot_reads(line: str) -> str:
    """It takes away a pair of quotes around a value, before its hooks run and again after them."""
    name, _, value = line.partition("=")
    for _ in range(2):
        if found := QUOTED.fullmatch(value):
            value = found[1]
    return f"{name}={value}"


def _script(config: Config, between: str = "") -> str:
    workdir = shlex.quote(config.workdir or "/")
    labels = "".join(f"# {key} {value}".replace("\n", " ") + "\n" for key, value in sorted(config.labels.items()))
    start = " ".join(["exec", *map(shlex.quote, config.entrypoint)])
    alone = config.cmd or (() if config.entrypoint else ("/bin/sh",))
    command = " ".join(map(shlex.quote, alone))
    return f'{labels}cd {workdir} || exit 1\n{between}[ "$#" -gt 0 ] || set -- {command}\n{start} "$@"\n'
