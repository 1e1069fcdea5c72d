"""Pages, help, messages and comments are in plain English: what had to be read twice does not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from samples import ROOT

# docs/reference.md has the help of all commands, options and keys.
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
CODE = [path for folder in ("launch", "train", "containers") for kind in ("py", "sh") for path in sorted((ROOT / folder).rglob(f"*.{kind}"))]
RIDDLES = [
    "over there",
    "it is one that",
    "is one that",
    "one of them takes",
    "those that are left out",
    r"(?:of|in) (?:these|those)(?: \w+)? alone",
    "go(?:es)? over (?:them|it|the file)",
    "for who reads",
    "of which as many",
    "as ever",
    "where nothing is said",
    "does not say so",
    "word on when",
    "Slurm's own word",
    "what there is to",
    "with what it is called",
    "do(?:es)? not go along",
    "which is for kit to do",
]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_no_sentence_has_to_be_read_twice(page: Path) -> None:
    assert riddles(page) == []


def test_no_message_and_no_comment_has_to_be_read_twice() -> None:
    assert [found for path in CODE for found in riddles(path)] == []


def riddles(path: Path) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in re.finditer(rf"\b(?:{'|'.join(RIDDLES)})\b", line, re.IGNORECASE)
    ]
