"""The pages and the help are in plain English: what had to be read twice does not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from samples import ROOT

# docs/reference.md has the help of all commands, options and keys.
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
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
]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_no_sentence_has_to_be_read_twice(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return  # of the past
    found = [
        f"{page.name}:{number}: {match[0]}"
        for number, line in enumerate(page.read_text().splitlines(), 1)
        for match in re.finditer(rf"\b(?:{'|'.join(RIDDLES)})\b", line, re.IGNORECASE)
    ]
    assert found == []
