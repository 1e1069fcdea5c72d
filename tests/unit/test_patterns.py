"""The patterns of .dockerignore and .kitignore: what they mean, what is none, and that they cost nothing."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

import pytest
from kit import sources
from kit.build import ignore
from kit.errors import Problems, UsageError


def ignores(patterns: str, name: str) -> bool:
    return ignore.matcher(patterns.splitlines(), ".dockerignore")(name)


@pytest.mark.parametrize(
    ("patterns", "ignored", "kept"),
    [
        ("data", ["data", "data/a", "data/a/b"], ["a/data", "data2", "dat"]),
        ("./data/", ["data/a"], ["a/data"]),
        ("*.txt", ["a.txt", "a.txt/b"], ["a/a.txt"]),
        ("**/*.txt", ["a.txt", "a/a.txt", "a/b/c.txt"], ["a.txt2"]),
        ("**.txt", ["a.txt", "a/b/c.txt"], ["a.txt2"]),
        ("a/**", ["a/b", "a/b/c"], ["a"]),
        ("**", ["a", "a/b"], []),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b", "a/b/c"], ["b", "ab"]),
        ("**/a/**/a/b", ["a/a/b", "x/a/a/a/b", "a/x/a/b/c"], ["a/b", "a/x/b"]),
        ("a?[b-d]/[!x]", ["aac/y", "a.d/z"], ["aa/y", "aac/x"]),
        ("[^a]", ["b"], ["a", "ab"]),
        ("*\n!keep", ["a"], ["keep", "keep/a"]),
        ("# all\n\n*\n!a\na/b", ["x", "a/b"], ["a", "a/c"]),
        ("[[]x[]]", ["[x]"], ["x"]),
    ],
)
def test_patterns_are_dockers(patterns: str, ignored: list[str], kept: list[str]) -> None:
    assert [name for name in ignored if not ignores(patterns, name)] == []
    assert [name for name in kept if ignores(patterns, name)] == []


def expression(pattern: str) -> str:
    """The same by an expression that goes back, as long as the text is short."""
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(words.get(part, re.escape(part)) for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern)) + "(?:/.*)?"


def test_every_short_pattern_means_what_its_expression_does() -> None:
    chance = random.Random(1)
    for _ in range(3000):
        parts = ["".join(chance.choice(["a", "b", "*", "?", "a", "b"]) for _ in range(chance.randint(1, 4))) for _ in range(chance.randint(1, 4))]
        pattern = "/".join(chance.choice([re.sub(r"\*+", "*", part), "**"]) if chance.random() < 0.5 else re.sub(r"\*+", "*", part) for part in parts)
        matches, wanted = ignore.matcher([pattern], ""), re.compile(expression(pattern))
        for _ in range(10):
            name = "/".join("".join(chance.choice("ab") for _ in range(chance.randint(1, 3))) for _ in range(chance.randint(1, 5)))
            assert matches(name) == bool(wanted.fullmatch(name)), (pattern, name)


@pytest.mark.parametrize("pattern", ["*a" * 40 + "b", "**/" * 40 + "b", "**/*a" * 20 + "/b", "[a-z]*" * 40 + "b"])
def test_no_pattern_takes_long(pattern: str) -> None:
    start = time.process_time()
    matches = ignore.matcher([pattern], "")
    for name in ("a" * 255, "/".join(["a" * 30] * 100)):
        assert not matches(name)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("data\n[\n", r"kit: \.kitignore:2: the pattern's \[ in '\[' has no \]\n  fix: close it: \[a-z\]"),
        ("x[a/b]\n", r"kit: \.kitignore:1: the pattern's \[ in 'x\[a' has no \]"),
    ],
)
def test_what_is_no_pattern_is_refused_with_its_line(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / ".kitignore").write_text(text)
    with pytest.raises(UsageError, match=problem):
        sources.find(str(tmp_path), "code", Problems())


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "large"])
def test_a_file_of_patterns_that_is_none_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    place = tmp_path / ".kitignore"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "device":
        place.symlink_to("/dev/zero")
    elif kind == "folder":
        place.mkdir()
    else:
        place.write_bytes(b"a\n" * ignore.MOST_BYTES)
    with pytest.raises(UsageError, match=r"\.kitignore (cannot be read: it is no regular file|is longer than 1 MB)\n  fix: "):
        sources.find(str(tmp_path), "code", Problems())
    (tmp_path / ".dockerignore").symlink_to(place)
    with pytest.raises(UsageError, match=r"/\.dockerignore "):
        ignore.read(tmp_path, tmp_path / "Dockerfile")


def test_bytes_that_are_no_utf_8_are_matched_as_they_are(tmp_path: Path) -> None:
    (tmp_path / ".kitignore").write_bytes(b"\xff*\n.kitignore\n")
    for name in (b"\xffx", b"x"):
        (tmp_path / os.fsdecode(name)).touch()
    assert sources.find(str(tmp_path), "code", Problems()).names == ("x",)
