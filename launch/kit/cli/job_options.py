"""What a command line says of a job: JOB, ARGS, -j, and an option for every key, from `KEYS`."""

import functools
import inspect
import re
from dataclasses import replace
from typing import Annotated, Any, Callable, Optional

import typer

from kit.api.job_request import JobRequest
from kit.base.errors import Problems
from kit.cli import completion
from kit.cli.options import argument, option
from kit.config import sbatch_options
from kit.config.job import KEYS, option_name
from kit.config.yaml_source import Located

JOB = Annotated[
    Optional[str], argument("[JOB]", "A job file (.yaml), or a program: train.py", "job.yaml")
]
SHAPED = Annotated[Optional[str], argument("[JOB]", "A job file (.yaml) of the same shape.")]
_ARGS = Annotated[Optional[list[str]], argument("[-- ARGS...]", "Arguments for the program.")]
_SHAPE = Annotated[
    Optional[str],
    option("-j", "NxP", "Nodes x processes per node: -j 2x8", rich_help_panel="Nodes"),
]


def _overrides(values: dict[str, Any], problems: Problems) -> dict[str, Located]:
    """Return the keys that are set on the command line, as a job file would have them."""
    found: dict[str, Located] = {}
    for key, facts in KEYS.items():
        if (value := values.get(key)) not in (None, []):
            own, parse = option_name(key), facts.from_words
            given = parse(own, value, problems) if parse else Located(str(value), own)
            found.update({key: given} if given is not None else {})
    _add_common(values, found, problems)
    if (shape := values.get("shape")) is not None:
        _add_shape(shape, found, problems)
    return found


def _add_common(values: dict[str, Any], found: dict[str, Located], problems: Problems) -> None:
    """Add sbatch's common options to those of --slurm."""
    given = found["slurm"].value if "slurm" in found else {}
    options = dict(given) if isinstance(given, dict) else {}
    for name in sbatch_options.COMMON:
        if (value := values.get(sbatch_parameter(name))) is None:
            continue
        if name in options:
            problems.add(f"--{name}", f"--slurm {name} says the same thing", "give one of them")
        options[name] = Located(value, f"--{name}")
    if options:
        found["slurm"] = Located(options, "--slurm")


def sbatch_parameter(name: str) -> str:
    return "sbatch_" + name.replace("-", "_")


def _add_shape(shape: str, found: dict[str, Located], problems: Problems) -> None:
    parts = re.fullmatch(r"(\d+(?:-\d+)?)x(\d+)", shape, re.ASCII)
    if not parts:
        fix = "write -j 2x8 for 2 nodes of 8 processes, -j 2-4x8 for 2 to 4"
        problems.add("-j", f"'{shape}' is not NODESxPROCESSES", fix)
    for key, value in zip(("nodes", "processes_per_node"), parts.groups() if parts else "11"):
        if key in found:
            said = f"-j and {option_name(key)} say the same thing"
            problems.add("-j", said, "give one of them")
        found[key] = Located(value, "-j")


def request(values: dict[str, Any], problems: Optional[Problems] = None) -> JobRequest:
    """Return the job that a command's values ask for, as Typer read them."""
    problems = problems or Problems()
    target, arguments = values.get("target") or values.get("job"), values.get("arguments") or []
    return JobRequest(target, arguments, _overrides(values, problems), problems)


def takes_job(
    command: Callable[..., None], target: Any = JOB, *, for_slurm: bool = True
) -> Callable[..., None]:
    """Return the command with an option for every key of a job in the place of its parameter `job`.

    One `for_slurm` takes sbatch's common options, too. Typer reads them from the signature.
    """
    _, *own = inspect.signature(command).parameters.values()
    arguments = [_parameter("target", target)]
    if target is JOB:
        arguments.append(_parameter("arguments", _ARGS))
    own = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own]
    taken = {sbatch_parameter(item.name) for item in own}
    common = [item for item in _common_parameters() if for_slurm and item.name not in taken]
    keys = [_parameter("shape", _SHAPE), *_key_parameters(), *common]
    parameters = [*arguments, *own, *keys]

    @functools.wraps(command)
    def with_job(**values: Any) -> None:
        mine = {item.name: values.pop(item.name) for item in own}
        command(replace(request(values), command=command.__name__), **mine)

    with_job.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_job.__annotations__ = {item.name: item.annotation for item in parameters}
    return with_job


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


@functools.cache
def _common_parameters() -> tuple[inspect.Parameter, ...]:
    """Return an option for each of sbatch's that need no --slurm."""
    letters = {name: f"-{letter}" for letter, name in sbatch_options.SHORT.items()}
    found = []
    for name, metavar in sbatch_options.COMMON.items():
        made = option(
            f"{letters[name]} --{name}",
            metavar,
            f"The same as --slurm {name}={metavar}.",
            rich_help_panel="Nodes",
            autocompletion=completion.partitions if name == "partition" else None,
        )
        found.append(_parameter(sbatch_parameter(name), Annotated[Optional[str], made]))
    return tuple(found)


@functools.cache
def _key_parameters() -> tuple[inspect.Parameter, ...]:
    """Return an option for every key but the command, which is an argument."""
    found = []
    for key, facts in KEYS.items():
        if key == "command":
            continue
        name = option_name(key)
        kind: Any = list[str] if facts.from_words else str if facts.metavar else bool
        made = typer.Option(
            name if facts.metavar else f"{name}/--no-{name[2:]}",
            *facts.as_sbatch.split(),
            help=facts.meaning + (". May be given again." if facts.from_words else "."),
            metavar=facts.metavar or None,
            show_default=False,
            rich_help_panel=facts.panel,
            autocompletion=completion.OF_KEY.get(key),
        )
        found.append(_parameter(key, Annotated[Optional[kind], made]))
    return tuple(found)
