"""On the laptop: prepares the words, variables and files of a command for the login node."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Optional

import yaml

from kit.config import command_line, inherit, profiles
from kit.config.job import Job
from kit.config.profiles import Cluster
from kit.config.secrets import Secret
from kit.remote import project
from kit.remote.arrival import GIVEN
from kit.remote.calls import Request
from kit.remote.install import Copy
from kit.remote.where import Typed
from kit.runs import secret_values

# About the way to the cluster; secrets are read here, and named in the command.
PROFILE_KEYS = ("ssh", "ssh_dir", "ssh_python", "secrets")


def values_of(secrets: Iterable[Secret], workdir: str) -> dict[str, str]:
    """Return the values of secrets by their names."""
    found = secret_values.read(tuple(secrets), workdir)
    return {name: os.fsdecode(value) for name, value in found.items()}


def of_job(typed: Typed, job: Job, root: str, copy: Copy, options: list[str]) -> dict[str, Any]:
    """Return the parts of a request about a job; `root` is its project's folder if that is here."""
    name, *rest = typed.words
    here, file = os.getcwd(), typed.job_file
    base = root if root and not Path(here).is_relative_to(root) else here
    given = {}
    if file and file != typed.value("target", "job"):
        rest.insert(0, file)
    if project.own_name(root, file):
        rest[rest.index(file)] = os.path.relpath(file, base)
    elif file and os.path.isfile(file):
        content, name_there = Path(file).read_bytes(), os.path.basename(file)
        folder = f"job-{_digest(content + os.fsencode(name_there))}"
        given = {folder: {name_there: content.decode("utf-8", "surrogateescape")}}
        rest[rest.index(file)] = f"{copy.folder}/{GIVEN}/{folder}/{name_there}"
    workdir = copy.folder
    if root:
        rest, workdir = _relative(rest, root, base), inside(copy.work, root, base)
    if root and name != "doctor" and (given or job.where("workdir")):
        options = [*options, "--workdir", copy.work]  # it is another folder on the login node
    words = with_options([name, *rest], *options)
    work = copy.work if root else ""
    return {"words": words, "workdir": workdir, "given": given, "work": work}


def request(
    site: Cluster,
    words: list[str],
    workdir: str,
    given: Mapping[str, dict[str, str]] = MappingProxyType({}),
    **more: Any,
) -> Request:
    """Return a request with the profile of the cluster."""
    text = profile_there(site.text)
    folder = f"clusters-{_digest(f'{site.name}{text}'.encode())}"
    files = {folder: {f"{site.name}.yaml": text}, **given}
    return Request(words, workdir, given=files, clusters=folder, **more)


def of_shell(request: Request, secrets: Iterable[Secret]) -> str:
    """Return a digest of what `inherit` took and a loop may tell its jobs apart by."""
    inherited = request.environment.keys() - {secret.name for secret in secrets}
    taken = inherit.telling({name: request.environment[name] for name in inherited})
    return _digest(json.dumps(taken, sort_keys=True).encode()) if taken else ""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def inside(place: str, root: str, folder: str) -> str:
    """Return the folder below `place` that is for a folder below `root`."""
    if not Path(folder).is_relative_to(root):
        return place
    return os.path.normpath(os.path.join(place, os.path.relpath(folder, root)))


# ---------------------------------------------------------------- words


def _relative(words: Sequence[str], root: str, base: str) -> list[str]:
    """Return the words with the project's absolute paths made relative to `base`."""
    own, arguments = command_line.split(words)
    found = []
    for word in own:
        option, equals, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
        is_path = os.path.isabs(value) and Path(os.path.normpath(value)).is_relative_to(root)
        found.append(f"{option}{equals}{os.path.relpath(value, base)}" if is_path else word)
    return [*found, *arguments]


def with_options(words: Sequence[str], *options: str) -> list[str]:
    """Return the words with options, of which the last holds, before the program's arguments."""
    own, arguments = command_line.split(words)
    return [*own, *options, *arguments]


# ---------------------------------------------------------------- profiles


def profile_there(text: str) -> str:
    """Return a profile as the login node itself has it."""
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    node.value = [(key, value) for key, value in node.value if key.value not in PROFILE_KEYS]
    if not node.value:
        return "{}\n"
    return str(yaml.serialize(node, Dumper=yaml.SafeDumper, allow_unicode=True))


def profile_name(cluster: Optional[str]) -> str:
    """Return the name of a profile; of a file the whole path, which is valid in any folder."""
    name = cluster or "generic"
    return os.path.abspath(name) if profiles.is_file_name(name) else name
