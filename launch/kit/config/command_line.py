"""A command line of kit, with some of its options replaced by others."""

from __future__ import annotations

from collections.abc import Sequence

from kit.config import sbatch_options
from kit.slurm import sbatch_variables

_REPEATABLE = ("--env", "--slurm", "--mount", "--secret")  # stand once for each name
_SHAPE = ("-j", "--nodes", "--processes-per-node", "--gpus-per-node")  # the first two replace all


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return kit's own words, and those from -- on, which are for the program."""
    end = list(words).index("--") if "--" in words else len(words)
    return list(words[:end]), list(words[end:])


def without(words: list[str], new: list[str]) -> list[str]:
    """Return kit's own words without the options, and their values, that `new` replaces."""
    replaced = {_key(name, value) for name, value in zip(new, new[1:]) if name.startswith("-")}
    if "--image" in new:  # with the runtime `none` it would be used for nothing
        replaced.add(("--runtime", "none"))
    if "-j" in new or "--nodes" in new:
        replaced |= {(name, "") for name in _SHAPE}
    words = sbatch_options.long(words)
    kept = []
    is_value = False  # of an option that is left out
    for word, following in zip(words, [*words[1:], ""]):
        name, equals, value = word.partition("=")
        has_value = bool(equals)
        if word.startswith("-j"):
            name, has_value = "-j", word != "-j"
        found = not is_value and _key(name, value if has_value else following) in replaced
        if not found and not is_value:
            kept.append(word)
        is_value = found and not has_value
    return kept


def _key(name: str, value: str) -> tuple[str, str]:
    """Return by what two options are the same one."""
    if name[2:] in sbatch_options.COMMON:
        name, value = "--slurm", name[2:]
    if name == "--slurm" and value.partition("=")[0] in sbatch_variables.MEMORY:
        value = "mem"
    if name == "--runtime" and value == "none":
        return name, value
    return name, value.partition("=")[0].partition(":")[0] if name in _REPEATABLE else ""
