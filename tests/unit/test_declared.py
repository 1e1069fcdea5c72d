"""A command line that needs no explaining is read without Typer, and means what it means to Typer."""

from __future__ import annotations

import functools
import gc
import shlex
from typing import Any, Optional

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import cli, declared, explained

SINGLE = [name for name, command in cli.COMMANDS.items() if not command.commands]


@functools.cache
def tree() -> Any:
    root = explained.everything()
    gc.enable()  # which kit.cli turns off for its own start
    return root


def by_typer(name: str, words: list[str]) -> Optional[dict[str, Any]]:
    """The values that Typer reads; None where it explains something instead."""
    try:
        with tree().commands[name].make_context(name, list(words)) as context:
            return {key: list(value) or None if isinstance(value, (list, tuple)) else value for key, value in context.params.items()}
    except (typer.Exit, typer.TyperException, SystemExit):
        return None


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    name = draw(st.sampled_from(SINGLE))
    spellings = [spelling for item in tree().commands[name].params for spelling in [*item.opts, *item.secondary_opts] if spelling.startswith("-")]
    option = st.sampled_from(["--help", *spellings])
    value = st.sampled_from(["a", "", "-", "--", "3", "-3", "0", "03", "1_0", "+1", "x=y", "-j", "2x2", "--help", "--no", "²"])
    word = st.one_of(value, option, st.builds("{}={}".format, option, value), st.builds("{}{}".format, option, value))
    return name, draw(st.lists(word, max_size=6))


@settings(max_examples=500, deadline=None, derandomize=True)
@given(command_lines())
def test_it_reads_what_typer_reads_or_leaves_it_to_typer(line: tuple[str, list[str]]) -> None:
    name, words = line
    ours = declared.values(cli.COMMANDS[name].function, words)
    assert ours is None or ours == by_typer(name, words)


@pytest.mark.parametrize(
    "line",
    [
        "submit",
        "submit train.py -j 2x8 --dry-run",
        "submit job.yaml --env A=1 --env=B=2 --remap-root --no-remap-root -- --lr 0.1",
        "submit -- --lr 1",
        "status 12 --task 3",
        "exec 12 --node all -- nvidia-smi -L",
        "runs --last 5",
        "init --no-look",
        "doctor --nodes 2 --wait 5",
        "build docker://a --build-arg A --build-arg B=1",
        "complete bash -- 12 'kit status 12'",
    ],
)
def test_usual_lines_are_read_without_typer(line: str) -> None:
    name, *words = shlex.split(line)
    ours = declared.values(cli.COMMANDS[name].function, words)
    assert ours is not None and ours == by_typer(name, words)


@pytest.mark.parametrize(
    "line",
    [
        "submit --help",
        "submit -h",
        "submit --dri",
        "status 1 2",
        "diff 1",
        "runs --last x",
        "doctor --nodes 0",
        "submit --output",
        "init --look=1",
        "submit -j2x2",
    ],
)
def test_what_is_to_be_explained_is_left_to_typer(line: str) -> None:
    name, *words = line.split()
    assert declared.values(cli.COMMANDS[name].function, words) is None


def test_every_parameter_is_declared_in_a_way_that_both_readers_know() -> None:
    for name in SINGLE:
        for item in declared.taken(cli.COMMANDS[name].function):
            assert isinstance(item.declared, declared.Parameter), f"{name}: {item}"
            assert "list" not in item.kind or item.declared.default is None, f"{name}: {item}"
