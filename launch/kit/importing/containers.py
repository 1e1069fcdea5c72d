"""Read the image and the mounts that a script gives to a container runtime or to srun."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Callable, Optional

from kit.config import image_files, sbatch_options
from kit.importing import getopt
from kit.importing.getopt import Syntax


@dataclass
class GivenContainer:
    """What the words say; the texts may have holes."""

    keys: dict[str, str] = field(default_factory=dict)  # that are one text each
    mounts: list[str] = field(default_factory=list)
    workdir: str = ""
    env: list[str] = field(default_factory=list)  # NAME=VALUE
    runtime: str = ""
    open_questions: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # what is good to know
    not_taken: list[str] = field(default_factory=list)  # options for which kit's own way stands
    program: list[str] = field(default_factory=list)


_APPTAINER = Syntax(
    {"B": "bind", "e": "cleanenv", "c": "contain", "C": "containall", "f": "fakeroot"}
    | {"u": "userns", "w": "writable", "i": "ipc", "p": "pid", "H": "home", "W": "workdir"}
    | {"S": "scratch", "o": "overlay", "q": "quiet", "d": "debug", "s": "silent", "v": "verbose"},
    """
    nv nvccli rocm cleanenv contain containall fakeroot userns writable writable-tmpfs ipc pid
    no-home no-init no-privs keep-privs net uts disable-cache no-eval compat no-umask unsquash
    quiet silent debug verbose
    """.split(),
)
# What kit does without some options.
STAND_FOR = {
    **dict.fromkeys(("nv", "nvccli", "rocm"), "the container has the GPUs without it"),
    "no-home": "kit mounts no home either",
    "cleanenv": "your shell's variables do not reach the container anyway (docs/environment.md)",
}
_APPTAINER_OF_KIT = set(
    "nv nvccli rocm cleanenv no-home userns quiet silent debug verbose ipc pid".split()
)
_INSTEAD = {
    "container-mount-home": "write `mounts: [$HOME]`",
    "overlay": "put what it holds into the image, or into a folder under `mounts`",
    "writable-tmpfs": "have the program write to /tmp, or to a folder under `mounts`",
}
_ABOUT_HOME = {"no-home", "contain", "containall", "home"}
IN_IMAGES_FOLDER = (
    "without --container-workdir Pyxis starts a program in the image's own folder, and kit in the"
    " job's: see where its relative paths lead"
)
WITHOUT_HOME = (
    "the container had your home, and has none with kit: write `mounts: [$HOME]` if the program "
    "reads it (~/.cache, ~/.netrc); packages in ~/.local stay out (docs/images.md)"
)
# Variables by which Apptainer is told what a container has: FOO of APPTAINERENV_FOO, and mounts.
OF_PROGRAM = re.compile(r"(?:APPTAINER|SINGULARITY)ENV_([A-Za-z_]\w*)")
_RELATIVE = re.compile(
    r"(?:--?[\w-]+=)?(?:\.\.?/\S*|[\w@+-][\w.@+-]*(?:/[\w.@+-]+)*"
    r"\.(?:py|sh|ya?ml|json|toml|txt|cfg|csv))"
)
BINDS = re.compile(r"(?:APPTAINER|SINGULARITY)_BIND(?:PATH)?")
_ENROOT = Syntax(
    {"m": "mount", "e": "env", "r": "root", "w": "rw", "c": "conf"}, ("root", "rw", "login")
)
# An image of a registry as Enroot and Pyxis write it: REGISTRY#NAME.
_REGISTRY = re.compile(r"(?:docker://|oras://)?(?:[^/@]*@)?([\w.-]+(?::\d+)?)#(.+)")


def apptainer(words: list[str], runtime: str = "apptainer") -> GivenContainer:
    """Return what `apptainer exec` is to do; its first words may be options of apptainer's own."""
    first, words = getopt.read(words, _APPTAINER)
    found = GivenContainer(runtime=runtime)
    verb, rest = words[0] if words else "", words[1:]
    if verb not in ("exec", "run"):
        found.open_questions.append(f"apptainer {verb}: kit makes and enters containers itself")
        return found
    given, rest = getopt.read(rest, _APPTAINER)
    found.not_taken += [option.name for option in first]
    for name, value in given:
        text = value or ""
        if name == "bind":
            found.mounts += text.split(",")
        elif name == "mount":
            found.open_questions.append("write apptainer's --mount as SOURCE:TARGET under `mounts`")
        elif name in ("pwd", "cwd"):
            found.workdir = text
        elif name == "env":
            found.env += text.split(",")
        elif name == "fakeroot":
            found.keys["remap_root"] = "true"
        elif name in _APPTAINER_OF_KIT:
            found.not_taken.append(name)
        else:
            found.open_questions.append(_none_like("apptainer", name))
    if _ABOUT_HOME.isdisjoint(option.name for option in given):
        found.remarks.append(WITHOUT_HOME)
    found.keys["image"], *found.program = rest or [""]
    if verb == "run":
        if found.program[:1] and found.program[0].startswith("-"):  # arguments of that script
            found.program = []
        way = "put what it sets into `setup`" if found.program else "name the program itself"
        found.open_questions.append(f"the image's own start script ran, as it does not here: {way}")
    return found


def enroot(words: list[str]) -> GivenContainer:
    found = GivenContainer(runtime="enroot")
    if words[:1] != ["start"]:
        found.open_questions.append("kit makes and removes Enroot's containers itself")
        return found
    given, rest = getopt.read(words[1:], _ENROOT)
    for name, value in given:
        if name == "mount":
            found.mounts.append(value or "")
        elif name == "env":
            found.env.append(value or "")
        elif name == "root":
            found.keys["remap_root"] = "true"
        else:
            found.not_taken.append(name)
    found.keys["image"], *found.program = rest or [""]
    return found


def other(words: list[str]) -> GivenContainer:
    """Return an open question: other tools name images that are no files."""
    way = "`kit build docker://NAME` makes a file of an image: then write `image` and `command`"
    return GivenContainer(open_questions=[f"a container of another tool: {way}"])


READERS: Mapping[str, Callable[[list[str]], GivenContainer]] = {
    "apptainer": apptainer,
    "singularity": partial(apptainer, runtime="singularity"),
    "enroot": enroot,
    **dict.fromkeys(("docker", "podman", "podman-hpc", "shifter", "ch-run", "sarus"), other),
}

MAKES = re.compile(r"enroot\s+(create|remove)\b")


def is_option(name: str) -> bool:
    """Return whether Pyxis or the Container Engine reads an option of srun or sbatch."""
    return name in sbatch_options.CONTAINERS or name.startswith(("container-", "no-container-"))


def of_slurm(given: Mapping[str, str]) -> Optional[GivenContainer]:
    """Return what options of srun or sbatch ask of Pyxis or the Container Engine, if anything."""
    name = given.get("environment")
    if not name and not any(name.startswith("container-") for name in given):
        return None
    keys = {
        key: "true" if option in sbatch_options.OWNED_FLAGS else given[option]
        for option, key in sbatch_options.CONTAINERS.items()
        if option in given
    }
    mounts, workdir = keys.pop("mounts", "").split(","), keys.pop("workdir", "")
    found = GivenContainer(keys, mounts, workdir, runtime="pyxis")
    if name:
        is_path = "/" in name or name.endswith(".toml")
        keys["image"] = name if is_path else f"~/.edf/{name}.toml"
        found.runtime = "container-engine"
        if given.get("container-image"):
            way = "--environment and --container-image: write the `image` that is meant"
            found.open_questions.append(way)
    if not keys.get("image"):
        found.open_questions.append("the script made this container before: write its `image`")
    for name in ("container-env", "container-save", "container-mount-home"):
        if name in given and name not in sbatch_options.CONTAINERS:
            found.open_questions.append(_none_like("Pyxis", name))
    return found


def _none_like(tool: str, name: str) -> str:
    """Return what to do about an option for which kit has none."""
    whose = f"{tool}'" if tool.endswith("s") else f"{tool}'s"
    return f"{whose} option --{name}: {_INSTEAD.get(name, 'kit has none like it')}"


def is_file(image: str) -> bool:
    """Return whether an image's name is that of a file, or of a folder with one."""
    return image.endswith((*image_files.FILES, ".toml")) or image.startswith(("/", ".", "~"))


def reference(image: str) -> str:
    """Return an image of a registry as `kit build` names it; "" for a file."""
    if found := _REGISTRY.fullmatch(image):
        return f"docker://{found[1]}/{found[2]}"
    if "://" in image:
        return image
    return "" if is_file(image) or ("/" not in image and ":" not in image) else f"docker://{image}"


def on_host(target: str, mounts: list[str]) -> str:
    """Return the folder of the host that mounts show as one of the container; "" for no such."""
    for each in mounts:
        source, _, rest = each.partition(":")
        shown = rest.split(":")[0] or source
        if f"{target}/".startswith(f"{shown}/"):
            return source + target[len(shown) :]
    return ""


def has_relative_path(words: list[str]) -> bool:
    """Return whether words of a program name files from the folder in which it starts."""
    return any(map(_RELATIVE.fullmatch, words))


def in_image(folder: str) -> str:
    """Return what to do about a folder that no mount shows."""
    return f"; or, if only the image has it, begin a `script` with `cd {folder}`"


def mount(text: str) -> str:
    """Return a mount as kit writes it, or "" for one that kit cannot read."""
    parts = text.split(":")
    source, target = parts[0], parts[1] if len(parts) > 1 else parts[0]
    if not source or not target.startswith("/") or len(parts) > 3:
        return ""
    flags = parts[2] if len(parts) > 2 else ""
    is_read_only = "ro" in re.split(r"[+,]", flags)
    plain = target if source == target else f"{source}:{target}"
    return f"{source}:{target}:ro" if is_read_only else plain


def of_nodes_disk(mount: str) -> str:
    """Return what to do about a mount whose folder the running job makes or finds."""
    source, _, target = mount.partition(":")
    target = target.split(":")[0] or source
    above = source.partition("$")[0].rpartition("/")[0]
    disk = "mount the folder above it" + (f" (`mounts: [{above}]`)" if above else "")
    fill = f"fill {source} in `setup` if the job makes it, and give the program that path"
    return f"{disk}, {fill}, not {target} (docs/job-file.md: Data that a program reads many times)"
