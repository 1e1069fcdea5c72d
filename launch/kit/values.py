"""One parser per kind of value. Each takes what was given and returns it typed, or None after noting a problem."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING, NamedTuple, Optional

from kit import foreign, shell_words, tokens
from kit.errors import Problems, did_you_mean
from kit.given import Given

if TYPE_CHECKING:
    from kit import secret_values, sweeps
    from kit.expect import Expectation

ENV_NAME = re.compile(rf"{shell_words.NAME}\Z")
# --time of sbatch: minutes, minutes:seconds, hours:minutes:seconds, and days-hours[:minutes[:seconds]]
_N = "[0-9]{1,9}"  # \\d would match the digits of all scripts, which Slurm cannot read
TIME = re.compile(rf"({_N}-{_N}(:{_N}){{0,2}}|{_N}(:{_N}){{0,2}}|UNLIMITED|INFINITE)\Z", re.IGNORECASE)
_RANGE = re.compile(rf"({_N})-({_N})")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")

# Set by the kit or by torchrun itself; a job's value would be lost or break the rendezvous.
OWNED = {"MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "NNODES", "NPROC_PER_NODE", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"}
# Names that bash computes, resets or forbids to set: a value given to them would not arrive.
BASH = set(
    """
    _ BASHOPTS BASHPID BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_ALIASES BASH_CMDS BASH_COMMAND BASH_COMPAT BASH_ENV
    BASH_EXECUTION_STRING BASH_LINENO BASH_LOADABLES_PATH BASH_REMATCH BASH_SOURCE BASH_SUBSHELL BASH_VERSINFO
    BASH_VERSION BASH_XTRACEFD BASH COMP_CWORD COMP_KEY COMP_LINE COMP_POINT COMP_TYPE COMP_WORDBREAKS
    COMP_WORDS COPROC DIRSTACK ENV EPOCHREALTIME EPOCHSECONDS EUID EXECIGNORE FUNCNAME FUNCNEST GLOBIGNORE
    GROUPS HISTCMD IFS LINENO MAPFILE OLDPWD OPTARG OPTERR OPTIND PIPESTATUS POSIXLY_CORRECT PPID PS4 PWD RANDOM READLINE_LINE
    READLINE_MARK READLINE_POINT REPLY SECONDS SHELLOPTS SHLVL SRANDOM UID
    """.split()
)


class Mount(NamedTuple):
    source: str  # on the host
    target: str  # in the container, absolute
    read_only: bool
    where: str


def text(given: Given, problems: Problems) -> Optional[str]:
    if not isinstance(given.value, str) or not given.value:
        problems.add(given.where, f"expected text, not {kind(given)}", "write text on the same line")
        return None
    return given.value


def line(given: Given, problems: Problems) -> Optional[str]:
    """Text that must fit one line of a script's header or a path in it."""
    value = text(given, problems)
    if value is not None and (found := CONTROL.search(value)):
        problems.add(given.where, f"contains the control character {found.group()!r}", "Slurm reads it from one line of text: remove it")
        return None
    return value


def count(given: Given, problems: Problems, least: int = 1) -> Optional[int]:
    value = given.value
    if isinstance(value, str) and re.fullmatch(_N, value) and int(value) >= least:
        return int(value)
    fix = "write a plain number"
    if isinstance(value, str) and (typed := re.fullmatch(rf"([A-Za-z]\w*):({_N})", value)):
        fix = f'write {typed[2]}; a type of GPU goes into `slurm: {{gres: "gpu:{value}"}}`'
    problems.add(given.where, f"expected a whole number of at least {least}, not {kind(given)}", fix)
    return None


class Nodes(NamedTuple):
    """How many; the same number twice unless the job takes any number between."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least}-{self.most}"


def nodes(given: Given, problems: Problems) -> Optional[Nodes]:
    """A number, or least-most, as sbatch --nodes takes it."""
    text = given.value if isinstance(given.value, str) else ""
    found = _RANGE.fullmatch(text)
    if found and 0 < int(found[1]) <= int(found[2]):
        return Nodes(int(found[1]), int(found[2]))
    if "-" in text[1:]:
        problems.add(given.where, f"expected a range of nodes, not '{given.value}'", "write the least first: 2-4")
        return None
    if isinstance(given.value, list):
        fix = 'write how many; which ones is for Slurm to choose, or: `slurm: {nodelist: "node1,node2"}`'
        problems.add(given.where, "expected a number of nodes, not a list", fix)
        return None
    number = count(given, problems)
    return Nodes(number, number) if number else None


def count_or_zero(given: Given, problems: Problems) -> Optional[int]:
    return count(given, problems, least=0)


def flag(given: Given, problems: Problems) -> Optional[bool]:
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if isinstance(given.value, str) and given.value.lower() in words:
        return words[given.value.lower()]
    problems.add(given.where, f"expected true or false, not {kind(given)}", "write true or false")
    return None


def time_limit(given: Given, problems: Problems) -> Optional[str]:
    value = given.value
    if isinstance(value, str) and TIME.match(value):
        return value
    from kit import mistakes  # imported late, as everywhere

    fix = mistakes.time_in_words(value) if isinstance(value, str) else ""
    problems.add(given.where, f"expected a time limit, not {kind(given)}", fix or "write it as sbatch does: HH:MM:SS, D-HH:MM:SS or minutes")
    return None


def command(given: Given, problems: Problems) -> Optional[tuple[str, ...]]:
    """A list is taken as it is; a string is split as a shell splits words, and nothing in it is expanded."""
    if isinstance(given.value, list):
        words = [_word(item, problems) for item in given.value]
    elif given.value is None:
        words = []
    else:
        line_given = text(given, problems)
        if line_given is None:
            return None
        try:
            line_given = line_given.replace("\\\n", " ")  # a line that goes on in the next
            words = list(shlex.split(line_given))
        except ValueError as error:
            problems.add(given.where, f"the command cannot be split into words: {error}", "close the quote, or write the command as a list")
            return None
    if not words or not words[0]:
        problems.add(given.where, "the command is empty", "name the training script: `command: train.py`")
        return None
    shell_words.refuse_first(words, given.where, problems)
    if isinstance(given.value, str):
        shell_words.refuse_unquoted(given.value.replace("\\\n", " "), given.where, problems)
    if os.path.basename(words[0]) not in shell_words.SHELLS:
        shell_words.warn_of_literals(words, "the program", given.where, problems)
    for word in words:
        tokens.refuse_text("an argument", word, given.where, problems)
    foreign.refuse(words, given.where, problems)
    return tuple(words)


def _word(given: Given, problems: Problems) -> str:
    if isinstance(given.value, str):
        return no_nul(given.value, given.where, problems)
    fix = 'for an empty word write ""' if given.value is None else "write all words in one list: [train.py, --lr, 0.1]"
    problems.add(given.where, f"expected a word of the command, not {kind(given)}", fix)
    return ""


def no_nul(value: str, where: str, problems: Problems) -> str:
    if "\0" in value:
        problems.add(where, "contains a NUL byte, which no program can receive", "remove it")
    return value


def mounts(given: Given, problems: Problems) -> Optional[tuple[Mount, ...]]:
    """A list of SOURCE:TARGET[:ro], or of {source, target, read_only} where a path holds a colon."""
    items = given.value if isinstance(given.value, list) else [given]
    found = [_mount(item, problems) for item in items]
    return tuple(mount for mount in found if mount)


def _mount(given: Given, problems: Problems) -> Optional[Mount]:
    if isinstance(given.value, dict):
        return _mount_from_keys(given, given.value, problems)
    if not isinstance(given.value, str):
        problems.add(given.where, f"expected a mount, not {kind(given)}", "write SOURCE:TARGET[:ro]")
        return None
    if re.match(r"(type|source|src)=", given.value):
        problems.add(given.where, f"cannot read the mount '{given.value}'", "these are Docker's words; write SOURCE:TARGET[:ro]")
        return None
    parts = given.value.split(":")
    read_only = len(parts) == 3 and parts[2] == "ro"
    if len(parts) == 1:
        parts = [given.value, given.value]
    if len(parts) > 3 or (len(parts) == 3 and parts[2] not in ("ro", "rw")):
        problems.add(
            given.where,
            f"cannot read the mount '{given.value}'",
            "write SOURCE:TARGET[:ro]; for a path with a colon use {source: ..., target: ..., read_only: true}",
        )
        return None
    return _checked_mount(Mount(parts[0], parts[1], read_only, given.where), problems)


def _mount_from_keys(given: Given, keys: dict[str, Given], problems: Problems) -> Optional[Mount]:
    known = ["source", "target", "read_only"]
    for key in keys.keys() - set(known):
        problems.add(keys[key].where, f"unknown key '{key}' in a mount", did_you_mean(key, known, f"a mount has {', '.join(known)}"))
    if "source" not in keys:
        problems.add(given.where, "the mount has no source", "add `source: /path/on/the/host`")
        return None
    source = text(keys["source"], problems)
    target = text(keys["target"], problems) if "target" in keys else source
    read_only = flag(keys["read_only"], problems) if "read_only" in keys else False
    if source is None or target is None or read_only is None:
        return None
    return _checked_mount(Mount(source, target, read_only, given.where), problems)


def _checked_mount(mount: Mount, problems: Problems) -> Optional[Mount]:
    if not mount.source:
        problems.add(mount.where, "the mount has no source", "write SOURCE:TARGET[:ro]")
    elif not os.path.isabs(mount.target):
        problems.add(mount.where, f"the mount target '{mount.target}' is not an absolute path", f"write {mount.source}:/{mount.target}")
    elif mount.target == "/":
        problems.add(mount.where, "a mount cannot replace the container's /", "choose a folder, such as /data")
    else:
        for path in (mount.source, mount.target):
            no_nul(path, mount.where, problems)
        return mount
    return None


def environment(given: Given, problems: Problems) -> Optional[dict[str, str]]:
    if not isinstance(given.value, dict):
        problems.add(given.where, f"expected variables, not {kind(given)}", "write one NAME: value line each, indented, with a colon and no dash")
        return None
    values = {}
    for name, item in given.value.items():
        if not settable(name, item.where, problems):
            continue
        if not isinstance(item.value, str):
            problems.add(item.where, f"the variable {name} has {kind(item)} for a value", 'write text; an empty value is ""')
            continue
        values[name] = no_nul(item.value, item.where, problems)
        tokens.refuse_value(name, item.value, item.where, problems)
        shell_words.warn_of_literals([item.value], name, item.where, problems)
    return values


def settable(name: str, where: str, problems: Problems) -> bool:
    if not ENV_NAME.match(name):
        problems.add(where, f"'{name}' cannot be a variable's name", "use letters, digits and _, not starting with a digit")
    elif name in OWNED or name.upper().startswith(("KIT_", "SLURM_", "SLURMD_", "TORCHELASTIC_")):
        problems.add(where, f"{name} is set by the launch itself and cannot be set by a job", "remove it, or use a name of your own")
    elif name in BASH or name.startswith("BASH_FUNC_"):
        problems.add(where, f"{name} has a meaning of its own in bash and would not arrive unchanged", "use a name of your own")
    else:
        return True
    return False


CODE = ("snapshot", "live")


def code(given: Given, problems: Problems) -> Optional[str]:
    if given.value in CODE:
        return str(given.value)
    problems.add(given.where, f"expected {' or '.join(CODE)}, not {kind(given)}", "snapshot: the code as it is now; live: as it is when the job starts")
    return None


def options(given: Given, problems: Problems) -> Optional[dict[str, Given]]:
    """sbatch options by their long names; kept with their places, since sbatch.py judges them."""
    if not isinstance(given.value, dict):
        fix = (
            "indent the options in the lines below it: `  partition: gpu`"
            if given.value is None
            else "use sbatch's long names, without dashes: `partition: gpu`"
        )
        problems.add(given.where, f"expected OPTION: value lines, not {kind(given)}", fix)
        return None
    found = {}
    for name, item in given.value.items():
        if isinstance(item.value, (list, dict)):
            fix = "write it as on sbatch's command line, commas included"
            if isinstance(item.value, list) and all(isinstance(part.value, str) for part in item.value):
                fix = f'write it as on sbatch\'s command line: `{name}: "{",".join(str(part.value) for part in item.value)}"`'
            problems.add(item.where, f"the option {name} has {kind(item)} for a value", fix)
        else:
            tokens.refuse_text(f"the option {name}", item.value or "", item.where, problems)
            found[name[2:] if name.startswith("--") else name] = item
    return found


def secrets(given: Given, problems: Problems) -> Optional[dict[str, secret_values.Secret]]:
    from kit import secret_values  # imported late, as what follows: few jobs need it

    return secret_values.parse(given, problems)


def inherit(given: Given, problems: Problems) -> Optional[tuple[str, ...]]:
    from kit import inherit  # likewise

    return inherit.parse(given, problems)


def array(given: Given, problems: Problems) -> Optional[str]:
    from kit import arrays

    return arrays.parse(given, problems)


def sweep(given: Given, problems: Problems) -> Optional[sweeps.Sweep]:
    from kit import sweeps

    return sweeps.parse(given, problems)


def expectation(given: Given, problems: Problems) -> Optional[Expectation]:
    from kit import expect

    return expect.parse(given, problems)


def kind(given: Given) -> str:
    if given.value is None:
        return "nothing"
    if isinstance(given.value, list):
        return "a list"
    if isinstance(given.value, dict):
        return "a mapping"
    return f"'{given.value}'"
