"""Cluster profiles: YAML files that describe a site: the user's own, the site's, kit's in env/."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from kit import assets
from kit.config import bandwidth_target, keys, paths, plugins, values, variables, yaml_source
from kit.config import secrets as secret_sources
from kit.config.bandwidth_target import Expectation
from kit.config.keys import key
from kit.config.secrets import Secret
from kit.config.yaml_source import Located
from kit.errors import Problems, UsageError, did_you_mean

HOST = re.compile(r"[A-Za-z0-9_.%+][A-Za-z0-9_.@%+-]*")  # never an option of ssh
PYTHON = re.compile(r"(module (load|add)( [A-Za-z0-9_./+-]+)+|(?!module )[A-Za-z0-9_./+ -]*)")
SITE = Path("/etc/kit/clusters")  # for all users of a login node
GPU_DIRECTIVES = ("gpus-per-node", "gres", "none")


def gpu_directive(given: Located, problems: Problems) -> Optional[str]:
    found = values.line(given, problems)
    if found in (None, *GPU_DIRECTIVES):
        return found
    fix = f"choose one of {', '.join(GPU_DIRECTIVES)}"
    problems.add(given.where, f"'{found}' is no way to ask for GPUs", fix)
    return None


def scratch(given: Located, problems: Problems) -> Optional[str]:
    found = values.line(given, problems)
    path = os.path.expandvars(found or "")
    if path and not os.path.isabs(path):
        fix = "name a node-local folder: `scratch: /local`"
        problems.add(given.where, "scratch must be an absolute path", fix)
    return path


def host(given: Located, problems: Problems) -> Optional[str]:
    found = values.line(given, problems)
    if found is None or HOST.fullmatch(found):
        return found
    fix = (
        "write `ssh: user@login`, or the alias of a Host in ~/.ssh/config, "
        "where ports and jump hosts belong"
    )
    problems.add(given.where, f"'{found}' is no host for ssh", fix)
    return None


def kits_folder(given: Located, problems: Problems) -> Optional[str]:
    """Return the folder on the login node, which must be for kit alone."""
    found = values.line(given, problems)
    if found is None:
        return None
    is_home_or_root = os.path.normpath(found).lstrip("/") in ("", ".", "~")
    if not is_home_or_root and ".." not in found.split("/"):
        return found
    fix = "name a folder for kit alone: `ssh_dir: /shared/ada/kit`"
    problems.add(given.where, f"'{found}' cannot be kit's folder there", fix)
    return None


def python(given: Located, problems: Problems) -> Optional[str]:
    found = values.line(given, problems)
    if found is None or PYTHON.fullmatch(found):
        return found
    fix = "write `ssh_python: /opt/python/bin/python3`, or `ssh_python: module load python/3.11`"
    problems.add(given.where, f"'{found}' is neither a path nor a module to load", fix)
    return None


@dataclass(frozen=True)
class Cluster:
    """A profile; a job's own values override it."""

    name: str
    description: str = key(values.text, "a few words about the site", default="")
    runtime: Optional[str] = key(
        values.line,
        "container runtime of jobs that name none [auto]",
        choices=lambda: plugins.choices("runtimes"),
    )
    gpu_directive: str = key(
        gpu_directive,
        f"how jobs request GPUs: {', '.join(GPU_DIRECTIVES)} [{GPU_DIRECTIVES[0]}]",
        default=GPU_DIRECTIVES[0],
        choices=lambda: list(GPU_DIRECTIVES),
    )
    scratch: str = key(
        scratch,
        "folder on each node's own disk for containers and copies of images; may hold variables "
        "such as $USER [/tmp]",
        default="",
    )
    env: Mapping[str, str] = key(
        variables.environment, "variables for every job; the job's own win", default={}
    )
    secrets: Mapping[str, Secret] = key(
        secret_sources.parse,
        "secrets of every job, with their sources; the job's own win",
        default={},
        anchor=secret_sources.anchored,
    )
    slurm: Mapping[str, Located] = key(
        values.options,
        "sbatch options for every job, by their long names; the job's own win",
        default={},
    )
    expect: Optional[Expectation] = key(
        bandwidth_target.parse,
        "what kit bench should reach: allreduce_busbw_GBps, and share, below which it fails [0.8]",
    )
    ssh: str = key(
        host,
        "login node as for ssh, user@login, if kit runs on another machine: docs/laptop.md"
        " [kit runs on the login node]",
        default="",
    )
    ssh_dir: str = key(
        kits_folder,
        "kit's folder on the login node; all nodes must see it; relative to the home there [kit]",
        default="kit",
    )
    ssh_python: str = key(
        python,
        "Python of the login node, if the one on PATH is older than 3.9: a path, or"
        " `module load NAME` [python3]",
        default="",
    )
    text: str = ""  # the profile's file, for the run's record


KEYS = keys.declared(Cluster)


def load(name: Optional[str], where: str, problems: Problems) -> Cluster:
    """Return the profile of this name or file; without a name, the user's or site's `generic`.

    Raises UsageError if there is no such profile.
    """
    if name is None and not _existing("generic", folders()[:-1]):
        return Cluster(name="generic")  # as env/generic.yaml says, without reading it each time
    path = _find(name or "generic", where)
    given = yaml_source.read(path, problems)
    for word in [word for word in given if word not in KEYS]:
        fix = did_you_mean(word, list(KEYS), f"the keys are {', '.join(KEYS)}")
        problems.add(given.pop(word).where, f"unknown key '{word}' in a cluster profile", fix)
    parsed = keys.parse(given, KEYS, path.absolute().parent, problems)
    if any(word.startswith("ssh") and word not in parsed for word in given):
        parsed.pop("ssh", None)  # nobody is asked before that is mended
    return Cluster(name=path.stem, text=path.read_text(encoding="utf-8"), **parsed)


def folders() -> list[Path]:
    """Return the folders with profiles: KIT_CLUSTERS, the user's own, the site's, then kit's."""
    named = os.environ.get("KIT_CLUSTERS")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    own = [Path(named)] if named else []
    return [*own, Path(config, "kit", "clusters"), *site_folders(), assets.folder("env")]


def site_folders() -> list[Path]:
    """Return the folders in which a site keeps profiles for all its users."""
    shared = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    return [*(Path(each, "kit", "clusters") for each in shared.split(":") if each), SITE]


def names() -> list[str]:
    """Return the names of all profiles."""
    return sorted(files())


def files() -> dict[str, Path]:
    """Return {name: the file that counts}; a profile of an earlier folder hides its namesakes."""
    found = [path for folder in folders() for path in sorted(folder.glob("*.yaml"))]
    return {path.stem: path for path in reversed(found) if path.is_file()}


def site_file(name: str) -> Optional[Path]:
    """Return the site's profile of this name, if there is one and no user's own hides it."""
    found = _existing(name, folders()[:-1])
    return found if found and found.parent in site_folders() else None


def anchored(name: str, base: Path) -> str:
    return paths.absolute(name, base) if is_file_name(name) else name


def is_file_name(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or os.sep in name


def _find(name: str, where: str) -> Path:
    if is_file_name(name):
        if not os.path.isfile(name):
            raise UsageError(f"no such cluster profile: {name}", "check the path", where=where)
        return Path(name)
    if path := _existing(name, folders()):
        return path
    known = names()
    listing = f"the profiles are {', '.join(known)}; yours belong into {folders()[0]}"
    if where and not where.startswith("--"):  # in a job file, which kit init may have written
        listing = f"run kit init here, or remove the line `cluster: {name}`; {listing}"
    raise UsageError(f"unknown cluster '{name}'", did_you_mean(name, known, listing), where=where)


def _existing(name: str, places: list[Path]) -> Optional[Path]:
    """Return the first profile of this name in these folders."""
    paths_of_it = (folder / f"{name}.yaml" for folder in places)
    return next((path for path in paths_of_it if os.path.isfile(path)), None)
