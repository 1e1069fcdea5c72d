"""Read the key `env`, and tell which environment variables a job may set."""

from __future__ import annotations

import re
from typing import Optional

from kit.base.errors import Problems
from kit.config import keys, shell_words, token_check, values
from kit.config.yaml_source import Located

ENV_NAME = re.compile(rf"{shell_words.NAME}\Z")
# kit or torchrun sets these; a job's value would be lost or break the rendezvous.
OWNED = set(
    """
    MASTER_ADDR MASTER_PORT NODE_RANK NNODES NPROC_PER_NODE RANK LOCAL_RANK WORLD_SIZE
    LOCAL_WORLD_SIZE GROUP_RANK
    """.split()
)
OF_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE")  # what a node has not
OWN_PREFIXES = ("KIT_", "SLURM_", "SLURMD_", "TORCHELASTIC_")  # in any case of letters
# Bash computes, resets or refuses to set these: a value given to them would not arrive.
BASH = set(
    """
    _ BASHOPTS BASHPID BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_ALIASES BASH_CMDS BASH_COMMAND
    BASH_COMPAT BASH_ENV BASH_EXECUTION_STRING BASH_LINENO BASH_LOADABLES_PATH BASH_REMATCH
    BASH_SOURCE BASH_SUBSHELL BASH_VERSINFO BASH_VERSION BASH_XTRACEFD BASH COMP_CWORD COMP_KEY
    COMP_LINE COMP_POINT COMP_TYPE COMP_WORDBREAKS COMP_WORDS COPROC DIRSTACK ENV EPOCHREALTIME
    EPOCHSECONDS EUID EXECIGNORE FUNCNAME FUNCNEST GLOBIGNORE GROUPS HISTCMD IFS LINENO MAPFILE
    OLDPWD OPTARG OPTERR OPTIND PIPESTATUS POSIXLY_CORRECT PPID PS4 PWD RANDOM READLINE_LINE
    READLINE_MARK READLINE_POINT REPLY SECONDS SHELLOPTS SHLVL SRANDOM UID
    """.split()
)


def environment(given: Located, problems: Problems) -> Optional[dict[str, str]]:
    """Return the variables of `env` that have a sound name and value."""
    if not isinstance(given.value, dict):
        problem = f"expected variables, not {values.kind(given)}"
        fix = "write one NAME: value line each, indented, with a colon and no dash"
        problems.add(given.where, problem, fix)
        return None
    found = {}
    for name, item in given.value.items():
        if not settable(name, item.where, problems):
            continue
        if not isinstance(item.value, str):
            problem = f"the variable {name} has {values.kind(item)} for a value"
            problems.add(item.where, problem, 'write text; an empty value is ""')
            continue
        found[name] = values.no_nul(item.value, item.where, problems)
        pair, has = f"{name}={item.value}", f"{name}, with its name, has"
        values.refuse_long(pair, has, item.where, problems)
        token_check.refuse_value(name, item.value, item.where, problems)
        shell_words.warn_of_literals([item.value], name, item.where, problems)
    return found


def from_words(option: str, words: list[str], problems: Problems) -> Located:
    """Return NAME=VALUE words of the command line as a mapping."""
    for word in words:
        if "=" not in word:
            problems.add(option, f"'{word}' is not NAME=VALUE", f"write {option} {word}=VALUE")
    return keys.as_mapping(option, [word for word in words if "=" in word], problems)


def settable(name: str, where: str, problems: Problems) -> bool:
    """Return True if a job may set the variable; note a problem otherwise."""
    own_name = "use a name of your own"
    if not ENV_NAME.match(name):
        problem = f"'{name}' cannot be a variable's name"
        fix = "use letters, digits and _, not starting with a digit"
    elif name in OWNED or name.upper().startswith(OWN_PREFIXES):
        problem = f"{name} is set by the launch itself and cannot be set by a job"
        fix = f"remove it, or {own_name}"
    elif name in BASH or name.startswith("BASH_FUNC_"):
        problem = f"{name} has a meaning of its own in bash and would not arrive unchanged"
        fix = own_name
    else:
        return True
    problems.add(where, problem, fix)
    return False
