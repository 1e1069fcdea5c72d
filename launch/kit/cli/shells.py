"""The Tab key: Typer's completion, with what bash, zsh and fish need for words that hold = or :."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from typer._completion_classes import BashComplete, FishComplete, ZshComplete
from typer._completion_shared import get_completion_script

from kit.base.errors import UsageError, did_you_mean

VARIABLE = "_KIT_COMPLETE"  # set by the shell's script: complete_bash
LIMIT_S = 2  # a file system that does not answer must not take the prompt away for longer
_PLAIN = re.compile(
    r"[\w@%+=:,./ ~\[\]{}-]+"
)  # what every shell can be handed; other values are not offered
_BREAKS = "=:"  # of COMP_WORDBREAKS, those that are parts of kit's values
_ZSH_HEAD = "#compdef kit\n"  # compinit reads only the first line of a file in fpath
# Where nobody has loaded zsh's completion yet.
_ZSH_LOAD = "(( ${+functions[compdef]} )) || { autoload -Uz compinit && compinit }\n"
# A file in fpath is the body of a function, which zsh calls at the first Tab.
_ZSH_AS_A_FILE = '[[ "${funcstack[1]}" != _kit ]] || _kit_completion "$@"\n'


class _Whole:
    """Offer `--name=value` as one word, and nothing that a shell would split."""

    def get_completions(self, args: list[str], incomplete: str) -> list[Any]:
        found = super().get_completions(args, incomplete)  # type: ignore[misc]
        name, equals, _ = incomplete.partition("=")
        for item in found:
            if equals and name.startswith("-"):
                item.value = f"{name}={item.value}"
            item.help = re.sub(r"[\\$`\n]", " ", item.help or "") or None
        return [item for item in found if _PLAIN.fullmatch(item.value)]


class Bash(_Whole, BashComplete):
    """bash ends words at = and :, too, and replaces what is behind the last one."""

    cut = 0  # how much of the cursor's word bash keeps
    quoted = False

    def get_completion_args(self) -> tuple[list[str], str]:
        typed = os.environ["COMP_WORDS"].split("\n")[1 : int(os.environ["COMP_CWORD"]) + 1]
        words: list[str] = []
        is_open = False
        for word in typed:
            is_break = word != "" and not word.strip(_BREAKS)
            if words and word and (is_open or is_break):
                words[-1] += word
            else:
                words.append(word)
            is_open = is_break
        self.cut = len(words[-1]) - (0 if is_open else len(typed[-1]))
        self.quoted = typed[-1][:1] in ("'", '"') and typed[-1] != ""
        *before, current = [re.sub(r"\\(.)|['\"]", r"\1", word) for word in words]
        return before, current

    def format_completion(self, item: Any) -> str:
        value = item.value[self.cut :]
        return value if self.quoted else re.sub(r"([^\w@%+=:,./~\[\]{}-])", r"\\\1", value)


class Zsh(_Whole, ZshComplete):
    pass


class Fish(_Whole, FishComplete):
    pass


SHELLS: dict[str, Any] = {"bash": Bash, "zsh": Zsh, "fish": Fish}


def script(shell: str) -> str:
    """Return what a shell reads once, so that its Tab key asks kit."""
    if shell not in SHELLS:
        fix = did_you_mean(shell, SHELLS, f"there is one for {', '.join(SHELLS)}")
        raise UsageError(f"no completion for '{shell}'", fix)
    text = get_completion_script(prog_name="kit", complete_var=VARIABLE, shell=shell) + "\n"
    if shell == "zsh":
        text = text.replace(_ZSH_HEAD, _ZSH_HEAD + _ZSH_LOAD, 1) + _ZSH_AS_A_FILE
    if shell == "bash":
        text += Path(__file__).with_name("completion.bash").read_text(encoding="utf-8")
    return text


def command_before_the_cursor() -> str:
    """Return the word behind `kit` if the cursor is behind it, too: no other command is needed."""
    if os.environ.get("COMP_CWORD") == "1":  # of bash; the others send what is before the cursor
        return ""
    typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    found = re.match(r"\S+\s+(\S+)\s", typed)
    return found[1] if found else ""


def complete(command: Any, instruction: str) -> int:
    """Print what may stand at the cursor, for the script of a shell, and nothing of an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
    signal.alarm(LIMIT_S)
    shell = SHELLS.get(instruction.partition("_")[2])
    if shell is None:
        return 1
    with suppress(Exception):
        if found := shell(command, {}, "kit", VARIABLE).complete():
            print(found)
    return 0
