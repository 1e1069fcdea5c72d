"""Parse the mounts of a job."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple, Optional

from kit.base.errors import Problems
from kit.config import paths, values
from kit.config.yaml_source import Located, refuse_unknown

SQUASHFS = (".sqsh", ".squashfs", ".sqfs")  # of files of data, whose content a mount shows


class Mount(NamedTuple):
    source: str  # on the host
    target: str  # in the container, absolute
    read_only: bool
    where: str
    is_data: bool = False  # a squashfs file, whose content appears at the target
    on_nodes: bool = False  # so that the machine of the submission may lack it


def is_of_data(source: str, target: str) -> bool:
    """Return whether a mount's paths say so: one that names a file is for the file itself."""
    return source.endswith(SQUASHFS) and not target.rstrip("/").endswith(SQUASHFS)


def parse(given: Located, problems: Problems) -> Optional[tuple[Mount, ...]]:
    """Return the mounts of a list of SOURCE:TARGET[:ro], or {source, target, read_only, on_nodes}.

    The mapping is for paths that hold a colon, or that only the nodes have.
    """
    found = [_mount(item, problems) for item in given.items()]
    return tuple(mount for mount in found if mount)


def _mount(given: Located, problems: Problems) -> Optional[Mount]:
    if isinstance(given.value, dict):
        return _mount_from_keys(given, given.value, problems)
    if not isinstance(given.value, str):
        problem = f"expected a mount, not {values.kind(given)}"
        problems.add(given.where, problem, "write SOURCE:TARGET[:ro]")
        return None
    parts = given.value.split(":")
    fix = ""
    if re.match(r"(type|source|src)=", given.value):
        fix = "these are Docker's words; write SOURCE:TARGET[:ro]"
    elif len(parts) > 3 or (len(parts) == 3 and parts[2] not in ("ro", "rw")):
        keys = "{source: ..., target: ..., read_only: true}"
        fix = f"write SOURCE:TARGET[:ro]; for a path with a colon use {keys}"
    if fix:
        problems.add(given.where, f"cannot read the mount '{given.value}'", fix)
        return None
    target = parts[1] if len(parts) > 1 else given.value
    mount = Mount(parts[0], target, parts[2:] == ["ro"], given.where)
    return _check_mount(mount, problems, asks_to_write=parts[2:] == ["rw"])


def _mount_from_keys(
    given: Located, keys: dict[str, Located], problems: Problems
) -> Optional[Mount]:
    if keys and all(re.match("[/~.$]", key) for key in keys):
        for key, value in keys.items():
            _refuse_pair(key, value, problems)
        return None
    refuse_unknown(keys, ("source", "target", "read_only", "on_nodes"), "a mount", problems)
    if "source" not in keys:
        problems.add(given.where, "the mount has no source", "add `source: /path/on/the/host`")
        return None
    source = values.text(keys["source"], problems)
    target = values.text(keys["target"], problems) if "target" in keys else source
    read_only, on_nodes = (
        values.flag(keys[name], problems) if name in keys else False
        for name in ("read_only", "on_nodes")
    )
    if source is None or target is None or read_only is None or on_nodes is None:
        return None
    mount = Mount(source, target, read_only, given.where, on_nodes=on_nodes)
    asks_to_write = "read_only" in keys and not read_only
    return _check_mount(mount, problems, asks_to_write=asks_to_write)


def _refuse_pair(source: str, target: Located, problems: Problems) -> None:
    """Refuse `/data: /target`, which YAML takes for a key and its value."""
    inside = target.value
    if not isinstance(inside, str):
        inside = source if os.path.isabs(source) else f"/{os.path.basename(source)}"
    mount = source if inside == source else f"{source}:{inside}"
    problem = f"the mount of {source} is written as a key with a value"
    problems.add(target.where, problem, f'write it as one text of the list: "{mount}"')


def _check_mount(mount: Mount, problems: Problems, *, asks_to_write: bool) -> Optional[Mount]:
    if os.path.isabs(mount.target):
        mount = mount._replace(target=os.path.normpath("/" + mount.target.lstrip("/")))
    if not mount.source:
        problems.add(mount.where, "the mount has no source", "write SOURCE:TARGET[:ro]")
    elif not os.path.isabs(mount.target):
        problem = f"the mount target '{mount.target}' is not an absolute path"
        name = re.sub("^~[^/]*/*", "", mount.target) or "home"  # a container has no home of yours
        problems.add(mount.where, problem, f"write {mount.source}:/{name}")
    elif mount.target == "/":
        problem = "a mount cannot replace the container's /"
        problems.add(mount.where, problem, "choose a folder, such as /data")
    elif asks_to_write and is_of_data(mount.source, mount.target):
        problem = f"{mount.source} is a squashfs file, whose content cannot be written"
        problems.add(mount.where, problem, "leave `rw` or `read_only: false` out")
    else:
        for path in (mount.source, mount.target):
            values.no_nul(path, mount.where, problems)
        return mount
    return None


def anchored(mounts: tuple[Mount, ...], base: Path) -> tuple[Mount, ...]:
    return tuple(mount._replace(source=paths.absolute(mount.source, base)) for mount in mounts)


def add(of_file: tuple[Mount, ...], of_option: tuple[Mount, ...]) -> tuple[Mount, ...]:
    """Return both; a mount of the command line replaces the file's with the same target."""
    targets = {mount.target for mount in of_option}
    return (*(mount for mount in of_file if mount.target not in targets), *of_option)
