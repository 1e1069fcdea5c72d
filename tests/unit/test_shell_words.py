"""A command is read by no shell: what only a shell understands is refused, or warned of where it is meant as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.base.errors import Problems
from kit.config import command
from kit.config.yaml_source import Located

GOOD: list[tuple[Any, list[str]]] = [
    ("train.py --a \\\n  --b\n", ["train.py", "--a", "--b"]),
    ("train.py --tag '#5' \"#6\" a#b", ["train.py", "--tag", "#5", "#6", "a#b"]),
    ("train.py --url 'http://x?a=1&b=2' \"a;b\" \\; '*.py' \"*\" \\*", ["train.py", "--url", "http://x?a=1&b=2", "a;b", ";", "*.py", "*", "*"]),
    ('train.py --price $5 5$ "$ 5" --betas (0.9,0.95) {lr}', ["train.py", "--price", "$5", "5$", "$ 5", "--betas", "(0.9,0.95)", "{lr}"]),
    ("python -c 'import os\nprint(1); print(2)'", ["python", "-c", "import os\nprint(1); print(2)"]),
    ("bash -c 'cd src && exec python t.py --rank $RANK'", ["bash", "-c", "cd src && exec python t.py --rank $RANK"]),
    (["train.py", "a;b", "*", "# c", "d\ne"], ["train.py", "a;b", "*", "# c", "d\ne"]),
    ("conda run -n x python train.py", ["conda", "run", "-n", "x", "python", "train.py"]),
    ("train.py a~/b ~user", ["train.py", "a~/b", "~user"]),
    ("train.py --mot l’eau 5” '“a” = “b”'", ["train.py", "--mot", "l’eau", "5”", "“a” = “b”"]),
]
REFUSED = {
    "train.py\n--epochs 3\n": "has 2 lines",
    "train.py\n\n  echo done": "has 2 lines",
    "train.py 'a\nb'\nc": "has 2 lines",
    "train.py; echo done": "';'",
    "train.py>log": "'>'",
    "train.py a&b": "'&'",
    "train.py `date`": "'`'",
    "export X=4": "starts with export",
    "module load cuda": "starts with module",
    "source env.sh": "starts with source",
    "cd src": "starts with cd",
    "conda activate x": "starts with conda",
    "train.py # a note": "the comment '# a note'",
    "train.py --rank $NODE_RANK": "'$NODE_RANK'",
    'train.py "a ${X:-1} b"': "'${X:-1}'",
    "train.py $(date +%s)": "'$(date +%s)'",
    "train.py 'a' $X 'b'": "'$X'",
    "train.py ~/x": "'~/x'",
    "train.py --glob=*.py": "'--glob=*.py'",
    "train.py “a b”": "'“a' has a typographic quote",
    "train.py --title=‘a’": "'--title=‘a’' has a typographic quote",
}
WARNED = {
    "train.py --rank '$NODE_RANK'": "'$NODE_RANK'",
    "train.py \\$HOME": "'$HOME'",
    "train.py '~/x'": "'~/x'",
}


def parsed(value: Any) -> tuple[Any, Problems]:
    problems = Problems()
    given = Located([Located(word, "job.yaml:1") for word in value] if isinstance(value, list) else value, "job.yaml:1")
    return command.parse(given, problems), problems


@pytest.mark.parametrize(("value", "words"), GOOD)
def test_words_that_are_meant_as_they_stand_are_taken(value: Any, words: list[str]) -> None:
    taken, problems = parsed(value)
    assert (list(taken), problems.found, problems.warnings) == (words, [], [])


@pytest.mark.parametrize("value", REFUSED)
def test_what_only_a_shell_understands_is_refused(value: str) -> None:
    (problem,) = parsed(value)[1].found
    assert REFUSED[value] in problem.problem
    assert problem.fix


@pytest.mark.parametrize("value", WARNED)
def test_a_quoted_word_that_looks_like_a_shells_is_taken_with_a_warning(value: str) -> None:
    problems = parsed(value)[1]
    assert problems.found == []
    (warning,) = problems.warnings
    assert warning.problem.startswith("warning: the program gets ")
    assert WARNED[value] in warning.problem


def test_words_after_two_dashes_and_variables_are_taken_with_a_warning(kit: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text("command: train.py\nenv:\n  DATA: $SCRATCH/x\n  SHELL: $PREFIX/bin/bash\n  PLAIN: cost $5\n")
    done = kit("submit", "job.yaml", "--dry-run", "--", "--rank", "$NODE_RANK", cwd=tmp_path)
    assert done.returncode == 0
    assert "arguments after --: warning: the program gets '$NODE_RANK' as it stands" in done.stderr
    assert "job.yaml:3: warning: DATA gets '$SCRATCH' as it stands" in done.stderr
    assert "job.yaml:4: warning: SHELL gets '$PREFIX' as it stands" in done.stderr  # though it names a shell
    assert done.stderr.count("warning") == 3
