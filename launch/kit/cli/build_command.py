"""Start: build."""

import os
import shlex
from pathlib import Path
from typing import Annotated, Any, Optional

from kit.base.errors import Problems
from kit.base.formats import size
from kit.cli import completion, messages, options
from kit.cli.app import START, command
from kit.cli.options import argument, flag, option
from kit.images import build_request
from kit.images.build_request import BuilderOptions, BuildRequest

DEVICES, FORMATS = ("gpu", "cpu"), ("sqsh", "sif", "docker")


def _one_of(name: str, words: tuple[str, ...], meaning: str) -> Any:
    return option(name, "|".join(words), meaning, autocompletion=completion.one_of(*words))


Target = Annotated[
    Optional[str],
    argument(
        "[RECIPE|IMAGE]",
        "A name in containers/, a Dockerfile, or an image: docker://NAME, dockerd://NAME,"
        " FILE.tar, FILE.sqsh.",
        "the recipe here, else kit's own",
        autocompletion=completion.recipes,
    ),
]
Words = Annotated[
    Optional[list[str]],
    argument("[-- OPTIONS]", "Options passed on to docker build or podman build."),
]
Name = Annotated[
    Optional[str],
    option(
        "--name",
        "NAME",
        "The name by which jobs use the image.",
        "the recipe's folder, or the image's name",
    ),
]
Device = Annotated[
    str, _one_of("--device", DEVICES, "Build on the recipe's base for GPUs or for CPUs.")
]
Engine = Annotated[
    Optional[str],
    option(
        "--engine",
        "NAME",
        "The engine that builds: docker, podman, apptainer or enroot.",
        "the first one here",
        autocompletion=completion.engines,
    ),
]
Arguments = Annotated[
    Optional[list[str]],
    option(
        "--build-arg",
        "NAME[=VALUE]",
        "Build argument; NAME alone takes its value from the environment. May be given again.",
    ),
]
Secrets = Annotated[
    Optional[list[str]],
    option(
        "--secret",
        "id=ID,src=FILE|env=NAME",
        "Secret for RUN --mount=type=secret; stays out of the layers. May be given again."
        " Docker and Podman only.",
    ),
]
Ssh = Annotated[
    Optional[list[str]],
    option(
        "--ssh",
        "ID[=SOCKET]",
        "SSH agent or key for RUN --mount=type=ssh. May be given again. Docker and Podman only.",
    ),
]
Stage = Annotated[
    Optional[str],
    option("--target", "STAGE", "Stage of the Dockerfile to stop at. Docker and Podman only."),
]
Platform = Annotated[
    Optional[str],
    option("--platform", "OS/ARCH", "Build or take an image for another kind of machine."),
]
NoCache = Annotated[bool, flag("--no-cache", "Run every step again. Docker and Podman only.")]
To = Annotated[
    str,
    _one_of(
        "--to", FORMATS, "Format: sqsh runs everywhere; docker leaves the image in the engine."
    ),
]
Folder = Annotated[str, option("--images", "DIR", "Folder for the file.")]
Update = Annotated[bool, flag("--update", "Ask the registry for the base's digest again.")]
Locked = Annotated[
    Optional[str],
    option(
        "--locked",
        "FILE",
        "Refuse bases and packages that differ from this record of a build: images/NAME.json.",
    ),
]
Wait = Annotated[
    int, option("--wait", "SECONDS", "Time to wait for another build of the same image.")
]
Elsewhere = Annotated[
    Optional[str], options.cluster("Build on the login node of this cluster (a profile with ssh).")
]


@command(
    START,
    "kit build",
    "kit build docker://pytorch/pytorch:2.8.0 --name torch",
    "kit build first --device cpu --build-arg TORCH_INDEX",
)
def build(
    target: Target = None,
    words: Words = None,
    name: Name = None,
    device: Device = "gpu",
    engine: Engine = None,
    arguments: Arguments = None,
    secrets: Secrets = None,
    ssh: Ssh = None,
    stage: Stage = None,
    platform: Platform = None,
    no_cache: NoCache = False,
    to: To = "sqsh",
    folder: Folder = "images",
    update: Update = False,
    locked: Locked = None,
    wait: Wait = 3600,
    cluster: Elsewhere = None,
) -> None:
    """Build one image file for Enroot, Pyxis and Apptainer."""
    problems = Problems()
    given = _build_arguments(arguments or [], problems)
    words = words or []
    if target and target.startswith("-"):  # kit build -- --network host
        words, target = [target, *words], None
    if words and not words[0].startswith("-"):
        fix = "leave it out; options of the engine follow --, and begin with a dash"
        problems.add("", f"kit build takes one recipe or image, and not also {words[0]}", fix)
    _check_word("--device", device, DEVICES, problems)
    _check_word("--to", to, FORMATS, problems)
    problems.raise_if_any()
    of_engine = BuilderOptions(
        tuple(secrets or ()), tuple(ssh or ()), stage, platform, no_cache, tuple(words)
    )
    record = Path(locked) if locked else None
    make(
        BuildRequest(
            target, engine, device, name, to, Path(folder), given, update, wait, of_engine, record
        )
    )


def make(request: BuildRequest) -> None:
    """Build an image, and say what became of it."""
    # Imported here: the help of kit needs no client of registries, which loads for long.
    from kit.images.build import build

    built = build(request, messages.note)
    if built.file is None:
        messages.say(built.name)
    elif built.duration_s is None:
        messages.say(f"{built.file} is up to date")
        if request.options.no_cache:
            file = shlex.quote(str(built.file))
            print(f"  kit replaces no file; to build again, remove it first: rm {file}")
    else:
        messages.say(f"{built.file}: {size(built.bytes)}, in {built.duration_s:.0f} s")
        print(f"  in a job: `image: {built.name}`")


def _check_word(option: str, word: str, known: tuple[str, ...], problems: Problems) -> None:
    if word not in known:
        problem = f"'{word}' is not one of {', '.join(known)}"
        problems.add(option, problem, f"write {option} {known[0]}")


def _build_arguments(items: list[str], problems: Problems) -> dict[str, str]:
    """Return the values of build arguments; note a problem for each that has none."""
    for name in items:
        if "=" not in name and name not in os.environ:
            problem = f"{name} has no value, here or in the environment"
            problems.add("--build-arg", problem, f"write --build-arg {name}=VALUE")
    return build_request.arguments(items)
