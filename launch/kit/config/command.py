"""Read the key `command`: the program and its arguments, as a list or as one line."""

from __future__ import annotations

import os
import shlex
from typing import Optional

from kit.base.errors import Problems
from kit.config import shell_words, token_check, values
from kit.config.yaml_source import Located


def parse(given: Located, problems: Problems) -> Optional[tuple[str, ...]]:
    """Return the words: a list as it is, a text split as a shell splits it, nothing expanded."""
    words = split(given, problems)
    if words is None:
        return None
    if not words or not words[0]:
        fix = "name the training script: `command: train.py`"
        problems.add(given.where, "the command is empty", fix)
        return None
    shell_words.refuse_first(words, given.where, problems)
    if isinstance(given.value, str):
        shell_words.refuse_unquoted(_join_lines(given.value), given.where, problems)
    if os.path.basename(words[0]) not in shell_words.SHELLS:
        shell_words.warn_of_literals(words, "the program", given.where, problems)
    token_check.refuse_arguments(words, given.where, problems)
    for word in words:
        values.refuse_long(word, "a word of the command has", given.where, problems)
    return tuple(words)


def split(given: Located, problems: Problems) -> Optional[list[str]]:
    """Return the words of a list or of a line; None after noting a problem with the line."""
    if isinstance(given.value, list):
        return [_word(item, problems) for item in given.value]
    if given.value is None:
        return []
    text = values.text(given, problems)
    if text is None:
        return None
    try:
        return shlex.split(_join_lines(values.no_nul(text, given.where, problems)))
    except ValueError as error:
        problem = f"the command cannot be split into words: {error}"
        problems.add(given.where, problem, "close the quote, or write the command as a list")
        return None


def _join_lines(text: str) -> str:
    return text.replace("\\\n", " ")


def _word(given: Located, problems: Problems) -> str:
    if isinstance(given.value, str):
        return values.no_nul(given.value, given.where, problems)
    fix = "write all words in one list: [train.py, --lr, 0.1]"
    if given.value is None:
        fix = 'for an empty word write ""'
    problem = f"expected a word of the command, not {values.kind(given)}"
    problems.add(given.where, problem, fix)
    return ""
