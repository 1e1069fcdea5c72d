"""A command line that is being typed, as a shell would read it; its last word is not finished."""

from __future__ import annotations

import os
import re
import shlex
from typing import NamedTuple

_END = "x"  # stands at the cursor, so that the word there has at least one character


class Line(NamedTuple):
    words: list[str]  # between the command's name and the cursor's word
    current: str  # what there is of the cursor's word
    quoted: bool  # whether the cursor is behind an open quote


def read(typed: str) -> Line:
    lexer = shlex.shlex(typed + _END, posix=True)
    lexer.whitespace_split, lexer.commenters, lexer.quotes = True, "", "'\""
    words: list[str] = []
    open_quote = False
    try:
        words.extend(lexer)
    except ValueError:  # no closing quote
        words.append(lexer.token)
        open_quote = True
    start = next((index for index, word in enumerate(words[:-1]) if os.path.basename(word) == "kit"), 0)  # behind sudo, NAME=VALUE ...
    return Line(words[start + 1 : -1], words[-1][: -len(_END)], open_quote)


def quoted(word: str) -> str:
    """For bash and zsh, so that what is behind a ~ at the start can still be found."""
    return re.sub(r"([^\w@%+=:,./~\[\]{}-]|(?<!\A)~)", r"\\\1", word)
