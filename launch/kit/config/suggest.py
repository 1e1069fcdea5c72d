"""Suggest what a user probably meant by a key or a file that is wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from kit.base.errors import closest, did_you_mean
from kit.config import image_files, plugins, sbatch_options
from kit.config.keys import Key
from kit.config.yaml_source import is_typed, the_keys
from kit.files import safe_read


def key(word: str, keys: Mapping[str, Key]) -> tuple[str, str]:
    """Return the intended key, "" if none can be told, and the fix."""
    plain = word.lower().replace("-", "_")
    intended = plain if plain in keys else by_other_name(plain, keys) or closest(plain, keys, 0.75)
    if intended:
        return intended, f"did you mean '{intended}'?"
    if (option := word.lower().replace("_", "-")) in sbatch_options.KNOWN:
        return "", f"an option of sbatch goes under slurm: `slurm: {{{option}: ...}}`"
    return "", the_keys(keys)


def by_other_name(word: str, keys: Mapping[str, Key]) -> str:
    """Return the key that another tool calls by this word, or ""."""
    return next((key for key, facts in keys.items() if word in facts.other_names.split()), "")


def neighbour(path: str, otherwise: str, *, may_be_folder: bool = False) -> str:
    """Return the fix for a missing file: one in the same folder with nearly the same name."""
    folder, name = os.path.split(path)
    if name != name.strip("“”„‘’«»"):
        return "these are typographic quotes, which are part of the name: type plain ones, \" or '"
    if os.path.islink(path) and not os.path.exists(path):
        return f"it is a link, and what it leads to is not here: {os.readlink(path)}"
    names = [other for other in safe_read.names(folder or ".") if other != name]
    if not may_be_folder:
        names = [other for other in names if not os.path.isdir(os.path.join(folder, other))]
    return did_you_mean(name, names, otherwise, cutoff=0.75)


OF_A_REGISTRY = re.compile(
    r"(?P<host>[\w.-]+(?::[0-9]+)?/)?(?:[\w.-]+/)*(?P<name>[\w.-]+?)(?P<tag>:[\w.-]+)?"
)


BUILT = re.compile("[a-z0-9]([a-z0-9._-]*[a-z0-9])?")  # the names that kit build takes


def image(path: str, where: str) -> tuple[bool, str, str]:
    """Return whether a missing image was given as a path, the problem, and the fix.

    `where` is the place that names the image: job.yaml:2 or --image.
    """
    base = os.getcwd()
    if not is_typed(where):
        base = os.path.dirname(os.path.abspath(where.rpartition(":")[0]))
    word = os.path.relpath(path, base)
    first = os.path.join(base, word.partition("/")[0])
    ending = os.path.splitext(word)[1]
    is_of_runtime = ending != "" and plugins.runtimes(ending) != []
    is_file = word.endswith(image_files.FILES) or is_of_runtime or os.path.exists(first)
    found = None if is_file else OF_A_REGISTRY.fullmatch(word)
    if found and (found["tag"] or "." in (found["host"] or "")):
        name = found["name"].lower()
        build = f"kit build docker://{word} --name {name}"
        problem = f"'{word}' looks like an image of a registry, and a job runs files"
        return False, problem, f"make a file of it once: {build}; then `image: {name}`"
    if "/" not in word and not is_file:
        folder = os.path.join(base, image_files.FOLDER)
        built = [
            name[: -len(".json")] for name in safe_read.names(folder) if name.endswith(".json")
        ]
        if word in built or (os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK)):
            place = f"{folder}/{word}.json" if built else folder
            fix = "if it is a colleague's, ask for read permission; else build it again: "
            fix += f"kit build --name {word}"
            return False, f"there is no image {word}: its record cannot be read: {place}", fix
        fix = f"write the path of its file; or build it: kit build --name {word}; see kit images"
        if not BUILT.fullmatch(word):
            name = "a name of a-z, 0-9, dot, dash and underscore"
            fix = f"write the path of its file; or build it under {name}: kit build --name NAME"
        problem = f"no file has that name, and kit build has made none in {folder}"
        fix = did_you_mean(word, built, fix, cutoff=0.75)
        return False, f"there is no image {word}: {problem}", fix
    fix = "check the path"
    if word.endswith(image_files.FILES) or not is_of_runtime:  # which kit build makes
        made = "a recipe, kit build docker://NAME of an image of a registry"
        fix = f"{fix}; kit build makes one of {made}"
    return True, f"no such image: {path}", neighbour(path, fix, may_be_folder=True)
