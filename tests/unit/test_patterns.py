"""The patterns of .dockerignore and .kitignore: what they mean, what is none, and that they cost nothing."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

import pytest
from kit.base.errors import Problems, UsageError
from kit.files import dockerignore
from kit.plan import source_files


def ignores(text: str, name: str) -> bool:
    return dockerignore.matcher(dockerignore.patterns(text), ".dockerignore")(name)


@pytest.mark.parametrize(
    ("text", "ignored", "kept"),
    [
        # a path from the root of the context, tidied up as filepath.Clean does
        ("data", ["data", "data/a", "data/a/b"], ["a/data", "data2", "dat", "Data"]),
        ("data/", ["data", "data/a"], ["a/data"]),
        ("/data", ["data", "data/a"], ["a/data"]),
        ("//data", ["data"], ["a/data"]),
        ("./data/", ["data/a"], ["a/data"]),
        ("a/../b", ["b", "b/c"], ["a/b", "a"]),
        ("a/./b//c", ["a/b/c", "a/b/c/d"], ["a/b"]),
        ("../a", [], ["a", "b/a"]),
        ("/../a", ["a"], ["b/a"]),
        ("a/..", [], ["a", "b"]),
        (".", [], ["a"]),
        ("/", [], ["a"]),
        ("a/**/../b", ["a/b"], ["a/x/b", "b"]),
        # * and ? stop at a /
        ("*", ["a", "a/b", ".a"], []),
        ("*.txt", ["a.txt", ".txt", "a.txt/b"], ["a/a.txt", "a.txt2"]),
        ("a/*.txt", ["a/b.txt"], ["a/b/c.txt", "b.txt"]),
        ("*/*", ["a/b", "a/b/c"], ["a"]),
        ("a*b*c", ["abc", "axbxc", "abcbc"], ["abcb", "a/bc", "ab/c"]),
        ("a?c", ["abc", "a?c", "a\u263ac"], ["ac", "a/c", "abbc"]),
        (".*", [".a", ".git/HEAD"], ["a", "a/.b"]),
        ("a.b|c(d)$+{e}", ["a.b|c(d)$+{e}"], ["axb|c(d)$+{e}"]),
        # ** does not
        ("**", ["a", "a/b", ".a/.b"], []),
        ("**/", ["a", "a/b"], []),
        ("**/**", ["a", "a/b"], []),
        ("**/*.txt", ["a.txt", "a/a.txt", "a/b/c.txt"], ["a.txt2"]),
        ("**/a", ["a", "b/a", "b/c/a", "b/a/c"], ["ba", "b/ca"]),
        ("**/.a", [".a", "b/.a"], ["b.a"]),
        ("**/a/b", ["a/b", "x/a/b", "x/y/a/b"], ["b", "xa/b"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "ab"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b", "a/b/c"], ["b", "ab", "a/xb"]),
        ("**/a/**/a/b", ["a/a/b", "x/a/a/a/b", "a/x/a/b/c"], ["a/b", "a/x/b"]),
        ("**/a/*", ["a/b", "x/a/b", "a/b/c"], ["a", "x/a"]),
        ("**/a/**", ["a/b", "x/a/b/c"], ["a", "x/a"]),
        # ... nor where it is part of a name
        ("**.txt", ["a.txt", "a/b/c.txt", ".txt"], ["a.txt2"]),
        ("**a", ["a", "ba", "b/ca"], ["ab"]),
        ("**a/b", ["a/b", "xa/b", "x/ya/b"], ["a/xb"]),
        ("**a*", ["a", "ab", "x/ab"], ["xab", "x/yab"]),
        ("a**", ["a", "ab", "ab/c", "a/b"], ["b"]),
        ("a**b", ["ab", "a/b", "ax/y/b"], ["axb", "a/xb"]),
        ("a**/*.txt", ["a/b.txt", "a/x/b.txt", "ab/c.txt", "a.txt", "ab.txt"], ["b/a.txt"]),
        ("a/*.txt**", ["a/b.txt", "a/b.txt2", "a/b.txt2/c"], ["a/b.tx"]),
        ("**/a**/b", ["a/ab", "a/b", "x/ay/b"], ["ba/xb"]),
        ("a***c", ["ac", "axc", "a/xc", "ax/c"], ["a/xcd"]),
        # sets of characters
        ("a[b-d]e", ["ace", "abe/x"], ["ae", "aae", "a[b-d]e"]),
        ("[^a]", ["b", "^"], ["a", "ab"]),
        ("a[^b]c", ["axc", "a/c"], ["abc", "ac"]),
        ("[!a]", ["!", "a"], ["b"]),
        ("[a^]", ["a", "^"], ["b"]),
        ("[a-cx-z]", ["b", "y"], ["m", "-"]),
        ("x[a/b]", ["xa", "x/", "xb/c"], ["x"]),
        ("[[]x", ["[x"], ["x"]),
        ("[\\]\\-]", ["]", "-"], ["\\", "a"]),
        ("[\u03b1-\u03c9]", ["\u03b2"], ["a"]),
        ("a]", ["a]"], ["a"]),
        # a backslash takes the meaning away
        ("a\\*b", ["a*b"], ["ab", "axb", "a\\b"]),
        ("\\*", ["*"], ["a", "\\", "\\a"]),
        ("\\?\\[", ["?["], ["a["]),
        ("a\\\\", ["a\\"], ["a"]),
        ("\\!a", ["!a"], ["a"]),
        ("\\#a", ["#a"], ["a"]),
        ("a\\ b", ["a b"], ["a\\ b"]),
        # lines: the last one that matches decides
        ("*\n!keep", ["a"], ["keep", "keep/a"]),
        ("!keep\n*", ["a", "keep"], []),
        ("a\n!a/b\na/b/c", ["a", "a/x", "a/b/c"], ["a/b", "a/b/d", "x"]),
        ("**\n!a/*.py", ["a", "a/b", "x.py", "a/b/c.py"], ["a/b.py"]),
        ("*.md\n!README*.md\nREADME-secret.md", ["x.md", "README-secret.md"], ["README.md", "README-x.md"]),
        ("a\n! /a/", [], ["a", "a/b"]),
        ("*\n!!a", ["a"], ["!a"]),
        ("# all\n\n*\n!a\na/b", ["x", "a/b"], ["a", "a/c"]),
        (" # a", ["# a"], ["a"]),
        ("  a  \r\n\tb\t", ["a", "b"], ["a ", "c"]),
        ("\ufeffa", ["a"], ["b"]),
        ("a\x0bb\x1cc", ["a\x0bb\x1cc"], ["a", "b", "c"]),
        ("", [], ["a"]),
    ],
)
def test_patterns_are_dockers(text: str, ignored: list[str], kept: list[str]) -> None:
    assert [name for name in ignored if not ignores(text, name)] == []
    assert [name for name in kept if ignores(text, name)] == []


WORDS = {"**/": "(?:.*/)?", "**": "(?:.*/)?", "*": "[^/]*", "?": "[^/]", "[^a]": "[^a]", "[a-b]": "[a-b]", "\\*": "\\*"}


def expression(pattern: str) -> str:
    """The same by an expression that goes back, as long as the text is short."""
    parts = [part for part in re.split(r"(\*\*/|\*\*|\\\*|\*|\?|\[.*?\])", pattern) if part]
    found = [WORDS.get(part, re.escape(part)) for part in parts]
    if parts[-1] == "**" or (len(parts) == 2 and parts[0] == "**" and parts[1] not in WORDS):
        found[parts.index("**") if len(parts) == 2 and parts[0] == "**" else -1] = ".*"
    return "".join(found) + "(?:/.*)?"


def test_every_short_pattern_means_what_its_expression_does() -> None:
    chance = random.Random(1)
    choices = ["a", "b", "*", "?", "/", "**", "**/", "[^a]", "[a-b]", "\\*", "a", "b"]
    checked = 0
    while checked < 6000:
        pattern = "".join(chance.choice(choices) for _ in range(chance.randint(1, 7)))
        if re.search(r"^/|/$|//|\*\*\*", pattern):
            continue
        matches, wanted = dockerignore.matcher([pattern], ""), re.compile(expression(pattern))
        for _ in range(10):
            name = "/".join("".join(chance.choice("ab*") for _ in range(chance.randint(1, 3))) for _ in range(chance.randint(1, 5)))
            assert matches(name) == bool(wanted.fullmatch(name)), (pattern, name)
        checked += 1


@pytest.mark.parametrize("pattern", ["*a" * 40 + "b", "**/" * 40 + "b", "**/*a" * 20 + "/b", "[a-z]*" * 40 + "b"])
def test_no_pattern_takes_long(pattern: str) -> None:
    start = time.process_time()
    matches = dockerignore.matcher([pattern], "")
    for name in ("a" * 255, "/".join(["a" * 30] * 100)):
        assert not matches(name)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("data\n[\n", r"kit: \.kitignore:2: the \[ in '\[' begins no set of characters\n  fix: write \[a-z\]; or \\\[ for"),
        *((f"x{bad}\n", r"kit: \.kitignore:1: the \[ in ") for bad in ("[]", "[]a]", "[^]", "[-a]", "[a-]", "[b-a]", "[a", "[a\\", "[a-b-c]")),
        ("a\\\n", r"kit: \.kitignore:1: 'a\\\\' ends with a backslash"),
        *((f"a\n{bad}\n", r"kit: \.kitignore:2: an ! without a pattern\n  fix: ") for bad in ("!", "! ", "!/", "!//..")),
    ],
)
def test_what_is_no_pattern_is_refused_with_its_line(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / ".kitignore").write_text(text)
    with pytest.raises(UsageError, match=problem):
        source_files.find(str(tmp_path), "code", Problems(), ())


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
        place.write_bytes(b"a\n" * dockerignore.MOST_BYTES)
    with pytest.raises(UsageError, match=r"\.kitignore (cannot be read: it is not a regular file|is longer than 1 MB)\n  fix: "):
        source_files.find(str(tmp_path), "code", Problems(), ())
    (tmp_path / ".dockerignore").symlink_to(place)
    with pytest.raises(UsageError, match=r"/\.dockerignore "):
        dockerignore.read(tmp_path / ".dockerignore", f"{tmp_path}/.dockerignore")


def test_bytes_that_are_no_utf_8_are_matched_as_they_are(tmp_path: Path) -> None:
    (tmp_path / ".kitignore").write_bytes(b"\xff*\n.kitignore\n")
    for name in (b"\xffx", b"x"):
        (tmp_path / os.fsdecode(name)).touch()
    assert source_files.find(str(tmp_path), "code", Problems(), ()).names == ("x",)
