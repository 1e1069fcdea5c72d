"""bash 4.4 is the oldest that kit supports: RHEL 8, SLES 15 and Cray have it. CONTRIBUTING.md says how the tests run in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from running import SCRIPTS

LATER = {
    "EPOCHREALTIME without a value for bash 4.4": r"EPOCH(REALTIME|SECONDS)(?!:-)\b(?!:-)",
    "SRANDOM": r"\bSRANDOM\b",
    "BASH_ARGV0": r"\bBASH_ARGV0\b",
    "wait -p and wait -f": r"\bwait (-\w+ )*-\w*[pf]",
    "wait -n with process ids": r"\bwait -n +[\"$\d]",
    "an expansion @U, @u, @L, @K or @k": r"\$\{[^}]*@[UuLKk]\}",
    "${ command; }": r"\$\{[ |]",
    "local -I and declare -I": r"\b(local|declare) -\w*I",
    "an option of shopt": r"\bshopt .*(localvar_inherit|localvar_unset|assoc_expand_once|array_expand_once|patsub_replacement|varredir_close|noexpand_translation)",
    "read -E": r"\bread (-\w+ )*-\w*E",
}
# A process substitution, and what becomes the name of its process id.
SUBSTITUTION = re.compile(r"[<>]\(")
PROCESS_ID = re.compile(r"\b(\w+)=\"?\$!")


def later(text: str) -> list[str]:
    """What the script has that bash 4.4 lacks."""
    code = re.sub(r"(?m)(^|\s)#.*", "", text)
    found = [name for name, pattern in LATER.items() if re.search(pattern, code)]
    for function in code.split("\n}\n"):
        for name in substitutions(function):
            if re.search(rf"\bwait \"?\$\{{?{name}\b", function) and len(SUBSTITUTION.findall(function)) > 1:
                found.append(f"wait for the process substitution {name}")
    return found


def substitutions(code: str) -> list[str]:
    """Names of the process ids of process substitutions: bash 4.4 waits for the one that was started last alone."""
    names = []
    for match in PROCESS_ID.finditer(code):
        before = code[: match.start()].rstrip()
        before = before[: before.rfind("\n")].rstrip() if re.search(r"\blocal [^\n]*$", before) else before
        if before.endswith(")") or before.endswith("2>&1"):
            names.append(match[1])
    return names


@pytest.mark.parametrize("script", sorted(path for path in SCRIPTS.rglob("*") if path.is_file() and path.suffix != ".py"), ids=lambda path: str(path.name))
def test_no_script_needs_a_later_bash(script) -> None:
    assert later(script.read_text()) == []


FILES = sorted(path for path in SCRIPTS.rglob("*") if path.is_file() and path.suffix not in (".py", ".awk"))
WITH_TEMPORARY_FILES = ("probe.sh", "contents.sh", "reach.sh")  # of kit doctor


@pytest.mark.parametrize("script", [path for path in FILES if path.name not in WITH_TEMPORARY_FILES], ids=lambda path: path.name)
def test_no_run_needs_a_temporary_file(script: Path) -> None:
    """Before 5.1, bash writes every here-document and `<<<` to /tmp, which may be full."""
    code = re.sub(r"(?m)(^|\s)#.*", "", script.read_text())
    assert [line for line in code.splitlines() if "<<" in line] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('now="${EPOCHREALTIME}"', ["EPOCHREALTIME without a value for bash 4.4"]),
        ('now="${EPOCHREALTIME:-}"', []),
        ("# SRANDOM is for later", []),
        ("wait -n -p ended", ["wait -p and wait -f"]),
        ('wait -n "${pids[@]}"', ["wait -n with process ids"]),
        ('echo "${name@U}"', ["an expansion @U, @u, @L, @K or @k"]),
        ('exec {a}< <(one)\nlocal -r pid=$!\nexec {b}< <(two)\nwait "${pid}"', ["wait for the process substitution pid"]),
        ('one &\nlocal -r pid=$!\nexec {b}< <(two)\nwait "${pid}"', []),
    ],
)
def test_what_came_later_is_found(text: str, found: list[str]) -> None:
    assert later(text) == found
