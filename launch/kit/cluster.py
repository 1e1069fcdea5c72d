"""Cluster profiles: what a site is, as a YAML file in env/ or in the user's own folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from kit import assets, given, values
from kit.errors import Problems, UsageError, did_you_mean
from kit.given import Given

if TYPE_CHECKING:
    from kit import secret_values
    from kit.expect import Expectation

HOST = re.compile(r"[A-Za-z0-9_.%+][A-Za-z0-9_.@%+-]*")  # never an option of ssh
GPU_DIRECTIVES = ("gpus-per-node", "gres", "none")


class Cluster(NamedTuple):
    """A profile's keys; a job's own values go over them."""

    name: str
    runtime: Optional[str] = None
    gpu_directive: str = "gpus-per-node"  # how this site's Slurm wants GPUs asked for
    scratch: str = ""  # node-local, writable: containers are created below it
    env: Mapping[str, str] = MappingProxyType({})
    secrets: Mapping[str, secret_values.Secret] = MappingProxyType({})
    slurm: Mapping[str, Given] = MappingProxyType({})
    expect: Optional[Expectation] = None
    ssh: str = ""  # the login node, as ssh takes it; empty where kit runs on it
    ssh_dir: str = "kit"  # a folder over there that every node sees; a relative one is in the home
    text: str = ""  # of the profile's file, for the run's record


_PARSERS = {
    "description": values.text,
    "runtime": values.line,
    "gpu_directive": values.line,
    "scratch": values.line,
    "env": values.environment,
    "secrets": values.secrets,
    "slurm": values.options,
    "expect": values.expectation,
    "ssh": values.line,
    "ssh_dir": values.line,
}
MEANINGS = {
    "description": "for who reads it: which site this is",
    "runtime": "what runs containers there, where a job does not say [auto]",
    "gpu_directive": f"how its Slurm wants GPUs asked for: {', '.join(GPU_DIRECTIVES)} [{GPU_DIRECTIVES[0]}]",
    "scratch": "a folder on each node's own disk, with variables such as $USER: containers and copies of images go below it [/tmp]",
    "env": "variables for every job; the job's own go over them",
    "secrets": "secrets of every job, with where their values are; the job's own go over them",
    "slurm": "sbatch options for every job, by their long names; the job's own go over them",
    "expect": "what kit bench is to reach there: allreduce_busbw_GBps, and share, below which it fails [0.8]",
    "ssh": "its login node as ssh takes it, user@login, where kit is not on it: docs/laptop.md [kit is on it]",
    "ssh_dir": "kit's folder over there, which every node sees; a relative one is in the home there [kit]",
}


def parsers() -> dict[str, Callable[[Given, Problems], Any]]:
    """Of each key of a profile."""
    return dict(_PARSERS)


def load(name: Optional[str], where: str, problems: Problems) -> Cluster:
    """The profile of this name or file; with no name, the user's own `generic`. Raises UsageError where there is none."""
    if name is None and not os.path.isfile(folders()[0] / "generic.yaml"):
        return Cluster(name="generic")  # what env/generic.yaml says, without reading it at every start
    path = _find(name or "generic", where)
    keys = given.read(path, problems)
    parsed: dict[str, Any] = {}
    for key, item in keys.items():
        if key not in _PARSERS:
            problems.add(item.where, f"unknown key '{key}' in a cluster profile", did_you_mean(key, list(_PARSERS), f"the keys are {', '.join(_PARSERS)}"))
        elif (value := _PARSERS[key](item, problems)) is not None:
            parsed[key] = value
    parsed.pop("description", None)
    if "secrets" in parsed:
        from kit import secret_values

        parsed["secrets"] = secret_values.anchored(parsed["secrets"], path.absolute().parent)
    if parsed.get("gpu_directive", "none") not in GPU_DIRECTIVES:
        problems.add(keys["gpu_directive"].where, f"'{parsed['gpu_directive']}' is no way to ask for GPUs", f"choose one of {', '.join(GPU_DIRECTIVES)}")
    if not parsed.get("ssh"):
        parsed["scratch"] = os.path.expandvars(parsed.get("scratch", ""))
    elif not HOST.fullmatch(parsed["ssh"]):
        fix = "write `ssh: user@login`, or the alias of a Host in ~/.ssh/config, where ports and jump hosts belong"
        problems.add(keys["ssh"].where, f"'{parsed.pop('ssh')}' is no host for ssh", fix)
    folder = parsed.get("ssh_dir")
    if folder is not None and (os.path.normpath(folder).lstrip("/") in ("", ".", "~") or ".." in folder.split("/")):
        problems.add(keys["ssh_dir"].where, f"'{folder}' cannot be kit's folder there", "name a folder for kit alone: `ssh_dir: /shared/ada/kit`")
        parsed.pop("ssh", None)  # nobody is asked before that is mended
    if parsed.get("scratch") and not os.path.isabs(parsed["scratch"]):
        problems.add(keys["scratch"].where, "scratch must be an absolute path", "name a node-local folder: `scratch: /local`")
    return Cluster(name=path.stem, text=path.read_text(encoding="utf-8"), **parsed)


def folders() -> list[Path]:
    """Where profiles are looked for: the user's own first, then those that came with the kit."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return [Path(config, "kit", "clusters"), assets.folder("env")]


def names() -> list[str]:
    """Of all profiles."""
    return sorted({path.stem for folder in folders() for path in folder.glob("*.yaml")})


def is_file_name(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or os.sep in name


def _find(name: str, where: str) -> Path:
    if is_file_name(name):
        if not os.path.isfile(name):
            raise UsageError(f"no such cluster profile: {name}", "check the path", where=where)
        return Path(name)
    for folder in folders():
        path = folder / f"{name}.yaml"
        if os.path.isfile(path):
            return path
    known = names()
    otherwise = f"the profiles are {', '.join(known)}; yours belong into {folders()[0]}"
    raise UsageError(f"unknown cluster '{name}'", did_you_mean(name, known, otherwise), where=where)
