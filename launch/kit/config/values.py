"""Parse single values of job files and profiles, one parser per kind.

Each returns the typed value, or None after noting a problem.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Optional, Union

from kit.base.errors import Problems
from kit.config import paths, token_check
from kit.config.yaml_source import Joined, Located, is_option
from kit.slurm import numbers, task_numbers

# --time of sbatch: M, M:S, H:M:S, and D-H[:M[:S]]
_N = "[0-9]{1,9}"  # \\d would match the digits of all scripts, which Slurm cannot read
TIME = re.compile(
    rf"({_N}-{_N}(:{_N}){{0,2}}|{_N}(:{_N}){{0,2}}|UNLIMITED|INFINITE)\Z", re.IGNORECASE
)
_RANGE = re.compile(rf"({_N})-({_N})")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# At most 10^9 seconds: kit reads no larger number back from run.json.
DURATION = re.compile("([1-9][0-9]{0,5}(?=[smSM])|[1-9][0-9]{0,4})([smhSMH])")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_MOST_BYTES = 32 * 4096 - 1  # MAX_ARG_STRLEN of execve(2), without the zero at the end
QUICK = "quick"  # kit's own look at a node


@dataclass(frozen=True)
class Words:
    """The parser of a key that has only these values; the fix says what each means."""

    words: tuple[str, ...]
    fix: str

    def __call__(self, given: Located, problems: Problems) -> Optional[str]:
        if given.value in self.words:
            return str(given.value)
        *others, last = self.words
        expected = f"{', '.join(others)} or {last}" if others else last
        problems.add(given.where, f"expected {expected}, not {kind(given)}", self.fix)
        return None


@dataclass(frozen=True)
class Pattern:
    """The parser of a line of text in which a pattern is found; tests try the examples.

    Editors search for it, too: it means the same in JavaScript.
    """

    pattern: str
    problem: str  # with {} for the text in quotes
    fix: str
    good: tuple[str, ...]  # as they stand in a file
    bad: tuple[str, ...]
    may_be_number: bool = True  # or a boolean: kit takes YAML's 5 and false as text

    def __call__(self, given: Located, problems: Problems) -> Optional[str]:
        found = line(given, problems)
        if found is None or re.search(self.pattern, found):
            return found
        problems.add(given.where, self.problem.format(f"'{found}'"), self.fix)
        return None


def text(given: Located, problems: Problems) -> Optional[str]:
    if isinstance(given.value, str) and given.value:
        return given.value
    problems.add(given.where, f"expected text, not {kind(given)}", "write text on the same line")
    return None


def line(given: Located, problems: Problems) -> Optional[str]:
    """Return text without control characters, as the header of a script needs it."""
    value = text(given, problems)
    if value is not None and (found := CONTROL.search(value)):
        problem = f"contains the control character {found.group()!r}"
        problems.add(given.where, problem, "Slurm reads it from one line of text: remove it")
        return None
    return value


def lines(given: Located, problems: Problems) -> Optional[str]:
    """Return lines of bash, each with a newline at its end."""
    fix = "write | after the key, and the lines of bash below it, indented"
    if one := next((each for each in given.joined if not _is_one_command(each)), None):
        joins = f"YAML joins lines {one.number} and {one.number + 1} to one"
        problem = f"expected lines of bash, and {joins}"
        problems.add(given.where, problem, f"{fix}: it keeps them apart, unlike > and quotes")
        return None
    if not isinstance(given.value, str) or not given.value.strip():
        problems.add(given.where, f"expected lines of bash, not {kind(given)}", fix)
        return None
    value = no_nul(given.value, given.where, problems)
    token_check.refuse_lines(value, given.where, problems)
    return value.replace("\r\n", "\n").rstrip("\n") + "\n"


def _is_one_command(joined: Joined) -> bool:
    """Return whether bash reads two lines that YAML has joined as it would read them apart."""
    is_open = joined.upper.endswith(("&&", "|", ";")) or joined.lower.startswith(("-", "&&", "|"))
    return is_open and not re.search(r"(^|\s)#", joined.upper)


def count(given: Located, problems: Problems, least: int = 1) -> Optional[int]:
    value = given.value
    if isinstance(value, str) and re.fullmatch(_N, value) and int(value) >= least:
        return int(value)
    fix = "write a plain number"
    if isinstance(value, str) and (typed := re.fullmatch(rf"([A-Za-z]\w*):({_N})", value)):
        fix = f'write {typed[2]}; a type of GPU goes into `slurm: {{gres: "gpu:{value}"}}`'
    problem = f"expected a whole number of at least {least}, not {kind(given)}"
    problems.add(given.where, problem, fix)
    return None


class Nodes(NamedTuple):
    """A number of nodes: both fields are the same unless the job accepts any number between."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least}-{self.most}"


def nodes(given: Located, problems: Problems) -> Optional[Nodes]:
    """Return the number of nodes, or a range such as 2-4, as sbatch --nodes accepts them."""
    text = given.value if isinstance(given.value, str) else ""
    found = _RANGE.fullmatch(text)
    if found and 0 < int(found[1]) <= int(found[2]):
        return Nodes(int(found[1]), int(found[2]))
    if "-" in text[1:]:
        expected, fix = "a range of nodes", "write the least first: 2-4"
    elif isinstance(given.value, list):
        expected = "a number of nodes"
        fix = (
            "write how many; which ones is for Slurm to choose, "
            'or: `slurm: {nodelist: "node1,node2"}`'
        )
    elif dotted := re.fullmatch(rf"({_N})\s*(?:\.\.|to|:)\s*({_N})", text):
        expected, fix = "a number of nodes, or a range", f"write {dotted[1]}-{dotted[2]}"
    else:
        number = count(given, problems)
        return Nodes(number, number) if number else None
    problems.add(given.where, f"expected {expected}, not {kind(given)}", fix)
    return None


def count_or_zero(given: Located, problems: Problems) -> Optional[int]:
    return count(given, problems, least=0)


def flag(given: Located, problems: Problems) -> Optional[bool]:
    if isinstance(given.value, str) and given.value.lower() in FLAGS:
        return FLAGS[given.value.lower()]
    problems.add(given.where, f"expected true or false, not {kind(given)}", "write true or false")
    return None


def unpack(given: Located, problems: Problems) -> Optional[str]:
    if given.value == "auto":
        return "auto"
    if isinstance(given.value, str) and given.value.lower() in FLAGS:
        return "yes" if FLAGS[given.value.lower()] else "no"
    fix = "no: each node mounts the image; yes: it unpacks it first; auto: kit chooses"
    problems.add(given.where, f"expected auto, yes or no, not {kind(given)}", fix)
    return None


def time_limit(given: Located, problems: Problems) -> Optional[str]:
    value = given.value
    if isinstance(value, str) and TIME.match(value):
        return value
    fix = _time_in_words(value, given.where) if isinstance(value, str) else ""
    fix = fix or "write it as sbatch does: HH:MM:SS, D-HH:MM:SS or minutes"
    problems.add(given.where, f"expected a time limit, not {kind(given)}", fix)
    return None


def _time_in_words(text: str, where: str) -> str:
    """Return the fix for a time such as 2h, `90 min` or `1 day 12 h`; "" for any other text.

    It is written as what stands there: a key of a job file, or an option.
    """
    parts = re.findall(rf"({_N})\s*([dhms])[a-z]*", text.lower())
    if not parts or re.sub(rf"{_N}\s*[dhms][a-z]*|\s|,", "", text.lower()):
        return ""
    time = numbers.time_limit(sum(int(count) * _SECONDS[unit] for count, unit in parts))
    return f"write {where} {time}" if is_option(where) else f'write `time: "{time}"`'


def duration(given: Located, problems: Problems) -> Optional[int]:
    """Return the seconds of a time with its unit: 90s, 10m, 2h."""
    found = DURATION.fullmatch(given.value) if isinstance(given.value, str) else None
    if found:
        return int(found[1]) * _SECONDS[found[2].lower()]
    problem = f"expected a time with its unit, not {kind(given)}"
    problems.add(given.where, problem, "write 90s, 10m or 2h")
    return None


def array(given: Located, problems: Problems) -> Optional[str]:
    """Return the numbers of a job array's tasks, as sbatch takes them.

    `%2` alone is for a sweep, which numbers its tasks itself.
    """
    text = given.value
    if not isinstance(text, str) or not text or not task_numbers.SYNTAX.fullmatch(text):
        problem = f"expected the numbers of an array, not {kind(given)}"
        problems.add(given.where, problem, task_numbers.HOW)
        return None
    if fault := task_numbers.fault(text):
        predicate, fix = fault
        problems.add(given.where, f"the array '{text}' {predicate}", fix)
        return None
    return text


def no_nul(value: str, where: str, problems: Problems) -> str:
    """Return the value; note a problem if it contains a NUL byte."""
    if "\0" in value:
        problems.add(where, "contains a NUL byte, which no program can receive", "remove it")
    return value


def refuse_long(word: str, has: str, where: str, problems: Problems) -> None:
    """Note a problem if Linux hands no program a word that long; `has` is its name, and a verb."""
    size = len(word.encode(errors="surrogatepass"))
    if size > _MOST_BYTES:
        problem = f"{has} {size} bytes, and Linux takes {_MOST_BYTES}"
        problems.add(where, problem, "write it to a file, and name that")


health = Pattern(
    f"^{QUICK}$|/",
    f"expected {QUICK}, or the path of a program, not {{}}",
    f"write `health: {QUICK}`, or a path such as ./check.sh",
    good=(QUICK, "./check.sh", "/opt/site/node health"),
    bad=("slow",),
    may_be_number=False,
)


def anchored_health(found: str, base: Path) -> str:
    return found if found == QUICK else paths.absolute(found, base)


def options(given: Located, problems: Problems) -> Optional[dict[str, Located]]:
    """Return sbatch options by their long names, with their places: sbatch.py judges the values."""
    if not isinstance(given.value, dict):
        fix = "use sbatch's long names, without dashes: `partition: gpu`"
        if given.value is None:
            fix = "indent the options in the lines below it: `  partition: gpu`"
        problems.add(given.where, f"expected OPTION: value lines, not {kind(given)}", fix)
        return None
    found = {}
    for name, item in given.value.items():
        if isinstance(item.value, (list, dict)):
            fix = f"write it as on sbatch's command line{_as_one_text(name, item.value)}"
            problems.add(item.where, f"the option {name} has {kind(item)} for a value", fix)
        else:
            token_check.refuse_text(f"the option {name}", item.value or "", item.where, problems)
            found[name.removeprefix("--")] = item
    return found


def _as_one_text(name: str, value: Union[list[Located], dict[str, Located]]) -> str:
    parts = [item.value for item in value] if isinstance(value, list) else [None]
    words = [part for part in parts if isinstance(part, str)]
    return f': `{name}: "{",".join(words)}"`' if words == parts else ", commas included"


def kind(given: Located) -> str:
    """Return words for a value in a message: 'text' in quotes, "a list", "a mapping", "nothing"."""
    if given.value is None:
        return "nothing"
    if isinstance(given.value, list):
        return "a list"
    if isinstance(given.value, dict):
        return "a mapping"
    return f"'{given.value}'"
