"""Put values in the place of variables in a job's paths: $HOME, $USER, $SCRATCH, the profile's."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from kit.base.errors import KitError, Problems
from kit.config import profiles, shell_words
from kit.config.yaml_source import Located

KEYS = ("image", "mounts", "workdir", "checkpoints")
OF_SHELL = ("HOME", "USER", "SCRATCH")
KNOWN = f"{', '.join(f'${name}' for name in OF_SHELL)} and the variables of the cluster's profile"
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def expand(given: dict[str, Located], cluster: Optional[str]) -> dict[str, Located]:
    """Return the keys with values in the place of known variables; other names stay as they are.

    `cluster` is the profile's name or file.
    """
    texts = {key: item for key, item in given.items() if key in KEYS and "$" in str(item.value)}
    values = _values(cluster) if texts else {}
    return {**given, **{key: _expand(item, values) for key, item in texts.items()}}


def fix(path: str, otherwise: str) -> str:
    """Return the fix for a path that is not there: it may hold a variable without a value."""
    found = shell_words.expansions(path)
    if not found:
        return otherwise
    names = [name or braced for name, braced in _VARIABLE.findall(path)]
    if known := next((name for name in names if name in OF_SHELL and os.environ.get(name)), ""):
        # `expand` has replaced it in what the job says, and replaces nothing in the values.
        return (
            f"write the path out where another variable has ${known} in its value, as under `env` "
            "of the cluster's profile: kit replaces no variables in a variable's value"
        )
    return f"write the path out: {found} is not set in this shell, or none of {KNOWN}"


def of_cluster(items: list[dict[str, Located]], base: Path) -> Optional[str]:
    """Return the profile that the first of the mappings names."""
    found = (item["cluster"].value for item in items if "cluster" in item)
    named = next((value for value in found if isinstance(value, str)), None)
    return named and profiles.anchored(named, base)


def _values(cluster: Optional[str]) -> dict[str, str]:
    shell = {name: os.environ[name] for name in OF_SHELL if os.environ.get(name)}
    try:
        return {**shell, **profiles.load(cluster, "", Problems()).env}
    except KitError:
        return shell  # what is wrong with the profile is said where the job is resolved


def _expand(item: Located, values: Mapping[str, str]) -> Located:
    def fill(text: str, _: str) -> str:
        return _VARIABLE.sub(lambda found: values.get(found[1] or found[2], found[0]), text)

    return item.with_texts(fill)
