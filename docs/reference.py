#!/usr/bin/env python3
"""Makes docs/reference.md: every command, every option, every key of a job file and of a profile,
as the code has them.

python docs/reference.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kit.cli import entry, job_options
from kit.config import job as jobs
from kit.config import profiles, sbatch_options

PAGE = Path(__file__).with_name("reference.md")
HEAD = """\
# Reference

<!-- Made by docs/reference.py; a test compares it with the code. -->

This page lists all keys, commands and options. The [README](../README.md) and the other pages
explain them. With [editors.md](editors.md), your editor completes and checks the keys, and your
shell the commands.
"""


def page() -> str:
    root = entry.tree()
    parts = [
        HEAD,
        _keys(),
        _profile(),
        _choices(),
        _slurm(),
        "## Commands\n",
        _command("kit", root),
    ]
    for name in entry.FILE_OF:  # whichever of these files were imported first
        command = root.commands[name]
        if not command.hidden:
            parts.append(_command(f"kit {name}", command))
            parts += [
                _command(f"kit {name} {inner}", item)
                for inner, item in getattr(command, "commands", {}).items()
            ]
    return "\n".join(parts)


def _keys() -> str:
    rows = [(f"`{key}`", _option(key), facts.meaning) for key, facts in jobs.KEYS.items()]
    more = (
        "\nThe commands that take a job have these options; an option wins over the file, and over"
        " the file's keys that belong to it: `--on-preempt none` leaves `checkpoints` out, and"
        " `--runtime apptainer` an `unpack` that it cannot do. Brackets hold the default.\n"
    )
    return "## Keys of a job file\n\n" + _table(("key", "option", "meaning"), rows) + more


def _option(key: str) -> str:
    if key == "command":
        return "`JOB`"
    name, facts = jobs.option_name(key), jobs.KEYS[key]
    names = [name, *facts.as_sbatch.split(), *([] if facts.metavar else [f"--no-{name[2:]}"])]
    return ", ".join(f"`{spelling}`" for spelling in names)


def _profile() -> str:
    rows = [(f"`{key}`", facts.meaning) for key, facts in profiles.KEYS.items()]
    return "## Keys of a cluster profile\n\n" + _table(("key", "meaning"), rows)


def _choices() -> str:
    rows = [
        (f"`{key}`", ", ".join(f"`{name}`" for name in _only_values(facts)))
        for key, facts in jobs.KEYS.items()
        if _only_values(facts)
    ]
    return "## Keys with a fixed set of values\n\n" + _table(("key", "one of"), rows)


def _only_values(facts: Any) -> list[str]:
    """Return the values of a key that has a few, each of which its metavar may name."""
    offered = (facts.choices or facts.examples or list)()
    return offered if facts.choices or facts.metavar == "|".join(offered) else []


def _slurm() -> str:
    own = [
        (f"`{name}`", f"the key `{key}`" if key else "the generated scripts")
        for name, key in sorted(sbatch_options.refused().items())
    ]
    known = ", ".join(f"`{name}`" for name in sbatch_options.KNOWN)
    said = (
        "Any option of sbatch by its long name, also an option of a Slurm plug-in. kit knows these,"
        f" and notices if one is misspelt: {known}.\n\nkit sets these options in another way:\n\n"
    )
    letters = {name: letter for letter, name in sbatch_options.SHORT.items()}
    short = ", ".join(f"`-{letters[name]}`, `--{name}`" for name in sbatch_options.COMMON)
    more = f"\nCommands that take a job for Slurm also take these without `--slurm`: {short}.\n"
    return "## Options under `slurm`\n\n" + said + _table(("option", "set by"), own) + more


def _command(name: str, command: Any) -> str:
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    names = {item.name for item in command.params}
    takes_a_job = set(jobs.KEYS) - {"command"} <= names
    common = {job_options.sbatch_parameter(name) for name in sbatch_options.COMMON}
    said_above = {*jobs.KEYS, *common} if takes_a_job else set()
    options = [
        item
        for item in command.params
        if item.param_type_name == "option" and not item.hidden and item.name not in said_above
    ]
    words = " ".join([name, *(item.metavar or item.name.upper() for item in arguments)])
    help_text = " ".join((command.help or "").split())
    if takes_a_job:
        more = ", and sbatch's common options" if common & names else ""
        help_text += f" It also has an option for every key of a job file{more}."
    rows = [(f"`{item.metavar or item.name.upper()}`", _meaning(item)) for item in arguments]
    rows += [
        (", ".join(f"`{spelling}`" for spelling in _spellings(item)), _meaning(item))
        for item in options
    ]
    table = "\n" + _table(("argument or option", "meaning"), rows) if rows else ""
    return f"### `{words}`\n\n{help_text}\n{table}"


def _spellings(option: Any) -> list[str]:
    value = "" if getattr(option, "is_flag", False) else f" {option.metavar or 'TEXT'}"
    return [f"{spelling}{value}" for spelling in [*option.opts, *option.secondary_opts]]


def _meaning(parameter: Any) -> str:
    meaning = " ".join((parameter.help or "").split())
    shown = (
        parameter.show_default
        and (parameter.default is not None or isinstance(parameter.show_default, str))
        and not getattr(parameter, "is_flag", False)
    )
    known = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    return f"{meaning.rstrip('.')} [{known}]." if shown else meaning


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
