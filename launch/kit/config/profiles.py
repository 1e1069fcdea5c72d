"""Cluster profiles: YAML files that describe a site: the user's own, the site's, kit's in env/."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from kit.base.errors import Problems, UsageError, did_you_mean
from kit.config import (
    bandwidth_target,
    keys,
    mount_list,
    paths,
    plugins,
    profile_files,
    shell_words,
    values,
    variables,
    yaml_source,
)
from kit.config import secrets as secret_sources
from kit.config.bandwidth_target import Expectation
from kit.config.keys import key
from kit.config.mount_list import Mount
from kit.config.secrets import Secret
from kit.config.yaml_source import Located, is_option

_VARIABLE = re.compile(rf"\$\{{?({shell_words.NAME})")


def scratch(given: Located, problems: Problems) -> Optional[str]:
    """Return the path with the values that its variables have now, at submission."""
    found = values.line(given, problems)
    if found is None:
        return None
    path, names = os.path.expandvars(found), dict.fromkeys(_VARIABLE.findall(found))
    # Where kit is called inside of a job, Slurm's variables are those of that job.
    is_unknown = re.compile("SLURM_.*|TMPDIR|XDG_RUNTIME_DIR").fullmatch
    unset = [f"${name}" for name in names if is_unknown(name) or not os.environ.get(name)]
    if unknown := " and ".join(unset) or shell_words.expansions(path):
        problem = (
            f"the value of {unknown} on the nodes is not known: "
            "the variables of scratch are read at submission, on the login node"
        )
        fix = "write the path that the nodes have: `scratch: /local`; kit makes kit-UID in it"
        problems.add(given.where, problem, fix)
    elif not os.path.isabs(path):
        fix = "name a node-local folder: `scratch: /local`"
        problems.add(given.where, "scratch must be an absolute path", fix)
    return path


def mounts(given: Located, problems: Problems) -> Optional[tuple[Mount, ...]]:
    """Return the mounts, their paths with the values that variables have now, at submission."""
    before = len(problems.found)

    def fill(text: str, where: str) -> str:
        filled = os.path.expandvars(text)
        if unknown := shell_words.expansions(filled):
            problem = f"{unknown} has no value here: the variables of mounts are read at submission"
            problems.add(where, problem, "write the path out")
        return filled

    found = mount_list.parse(given.with_texts(fill), problems)
    return found if len(problems.found) == before else None


def kits_folder(given: Located, problems: Problems) -> Optional[str]:
    """Return the folder on the login node, which must be for kit alone."""
    found = values.line(given, problems)
    if found is None:
        return None
    is_home_or_root = os.path.normpath(found).lstrip("/") in ("", ".", "~")
    is_expanded = _VARIABLE.search(found) or re.match("~[^/]", found)  # by a shell, not by kit
    if not (is_home_or_root or is_expanded or ".." in found.split("/")):
        return found
    fix = "name a folder only for kit, without variables: `ssh_dir: /shared/ada/kit`"
    problems.add(given.where, f"'{found}' cannot be kit's folder there", fix)
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
        values.Words(
            ("gpus-per-node", "gres", "none"),
            "gpus-per-node: --gpus-per-node=N; gres: --gres=gpu:N; "
            "none: a partition gives whole nodes",
        ),
        "how jobs request GPUs: gpus-per-node, gres, none [gpus-per-node]",
        default="gpus-per-node",
    )
    scratch: str = key(
        scratch,
        "folder on each node's own disk for containers and copies of images; may hold variables "
        "such as $USER, whose values are read at submission on the login node [for containers,"
        " the folder that the runtime's configuration names; else /tmp]",
        default="",
    )
    mounts: tuple[Mount, ...] = key(
        mounts,
        "what the container of every job mounts, as `mounts` of a job; may hold variables,"
        " whose values are read at submission; a job's own mounts win by their target",
        anchor=mount_list.anchored,
        default=(),
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
        "what kit bench should reach: allreduce_busbw_GBps; it fails below `share` of it [0.8]",
    )
    ssh: str = key(
        values.Pattern(
            "^[A-Za-z0-9_.%+][A-Za-z0-9_.@%+-]*$",  # never an option of ssh
            "{} is not a host for ssh",
            "write `ssh: user@login`, or the alias of a Host in ~/.ssh/config, "
            "where ports and jump hosts belong",
            good=("ada@login", "5"),
            bad=("-oProxyCommand=x", "login:22"),
        ),
        "the login node, user@login as for ssh, if you use kit on another machine: docs/laptop.md"
        " [kit runs on the login node]",
        default="",
    )
    ssh_dir: str = key(
        kits_folder,
        "kit's folder on the login node, relative to your home there; all nodes must see it [kit]",
        default="kit",
    )
    ssh_python: str = key(
        values.Pattern(
            "^(module (load|add)( [A-Za-z0-9_./+-]+)+|(?!module )[A-Za-z0-9_./+ -]*)$",
            "{} is neither a path nor a module to load",
            "write `ssh_python: /opt/python/bin/python3`, or `ssh_python: module load python/3.11`",
            good=("/opt/python/bin/python3", "module load python/3.11"),
            bad=("module unload python", "python3; id"),
        ),
        "Python of the login node, if the one on PATH is older than 3.9: a path, or"
        " `module load NAME` [python3]",
        default="",
    )
    text: str = ""  # the profile's file, for the run's record


KEYS = keys.declared(Cluster)


def load(
    name: Optional[str], where: str, problems: Problems, *, elsewhere: bool = False
) -> Cluster:
    """Return the profile of this name or file; without a name, the user's or site's `generic`.

    `elsewhere`: a profile with `ssh` is for another machine, whose variables its scratch may hold.
    Raises UsageError if there is no such profile.
    """
    if name is None and not profile_files.first("generic", profile_files.folders()[:-1]):
        return Cluster(name="generic")  # as env/generic.yaml says, without reading it each time
    path = _find(name or "generic", where)
    given = yaml_source.read(path, problems, example="description: our cluster")
    yaml_source.refuse_unknown(given, KEYS, "a cluster profile", problems)
    given = {name: item for name, item in given.items() if name in KEYS}
    if elsewhere and "ssh" in given:
        for word in ("scratch", "mounts"):
            if "$" in str(given.get(word)):
                del given[word]  # kit on the login node judges it
    parsed = keys.parse(given, KEYS, path.absolute().parent, problems)
    if any(word.startswith("ssh") and word not in parsed for word in given):
        parsed.pop("ssh", None)  # nobody is asked before that is mended
    return Cluster(name=path.stem, text=path.read_text(encoding="utf-8"), **parsed)


def load_valid(name: Optional[str], *, elsewhere: bool = False) -> Cluster:
    """Return the profile of `--cluster`. Raises UsageError for its mistakes."""
    problems = Problems()
    found = load(name, "--cluster", problems, elsewhere=elsewhere)
    problems.raise_if_any()
    return found


def anchored(name: str, base: Path) -> str:
    return paths.absolute(name, base) if is_file_name(name) else name


def is_file_name(name: str) -> bool:
    return name.endswith(yaml_source.ENDINGS) or os.sep in name


def _find(name: str, where: str) -> Path:
    if is_file_name(name):
        if not os.path.isfile(name):
            raise UsageError(f"no such cluster profile: {name}", "check the path", where=where)
        return Path(name)
    places = profile_files.folders()
    if path := profile_files.first(name, places):
        return path
    known = profile_files.names()
    listing = f"the profiles are {', '.join(known)}; yours belong in {places[0]}"
    if where and not is_option(where):  # in a job file, which kit init may have written
        listing = f"run kit init here, or remove the line `cluster: {name}`; {listing}"
    raise UsageError(f"unknown cluster '{name}'", did_you_mean(name, known, listing), where=where)
