"""What the Tab key offers: `kit completion SHELL` prints what a shell reads once, and that calls `kit complete` at every Tab."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from kit.completion import line, words
from kit.errors import UsageError, did_you_mean

SHELLS = ("bash", "zsh", "fish")
LIMIT_S = 2  # a file system that does not answer must not take the prompt away for longer


def script(shell: str) -> str:
    if shell not in SHELLS:
        raise UsageError(f"no completion for '{shell}'", did_you_mean(shell, list(SHELLS), f"there is one for {', '.join(SHELLS)}"))
    return Path(__file__).with_name(f"kit.{shell}").read_text(encoding="utf-8")


def answer(shell: str, piece: str, typed: str, root: Any) -> list[str]:
    """What may stand at the cursor, a line each: VALUE, or VALUE, a tab and what it means.

    `typed` is the command line up to the cursor, and `piece` what bash would replace of it: it takes = and : for the ends of words.
    """
    signal.alarm(LIMIT_S)  # whose signal ends the process without a word
    given = line.read(typed)
    kept = len(given.current) - len(line.read(piece).current) if shell == "bash" else 0
    found = []
    for item in words.candidates(root, given.words, given.current):
        if item.value.isprintable():  # what is not cannot be typed, and would be taken for two lines
            value = item.value[max(kept, 0) :]
            value = value if shell == "fish" or given.quoted else line.quoted(value)
            found.append(f"{value}\t{item.meaning}" if item.meaning and shell != "bash" else value)
    return found
