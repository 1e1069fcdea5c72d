"""Read the key `notify`: when a job tells people how it is, and by what."""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Optional

from kit.base.errors import Problems, did_you_mean
from kit.config import command, shell_words, token_check, values, variables
from kit.config.yaml_source import Located, refuse_unknown

EVENTS = ("start", "end", "stall")
KEYS = ("webhook", "command", "on")
_EXAMPLE = "write `notify: {webhook: NAME}`, where NAME is a secret, or `notify: {command: [...]}`"
_FILE = "write lines of bash into a file: `command: bash tell.sh`"
# A line of curl's configuration holds it in quotes.
_ADDRESS = re.compile(rb"https?://[!#-\[\]-~]+")


class Notify(NamedTuple):
    on: tuple[str, ...] = ()  # some of EVENTS
    webhook: str = ""  # the secret whose value is the address
    command: tuple[str, ...] = ()
    where: str = ""


def parse(given: Located, problems: Problems) -> Optional[Notify]:
    """Return what is told, and how. The file and the command line may each say a part of it."""
    if not isinstance(given.value, dict):
        problems.add(given.where, f"expected a mapping, not {values.kind(given)}", _EXAMPLE)
        return None
    refuse_unknown(given.value, KEYS, "notify", problems)
    parsers: dict[str, Any] = {"webhook": _secret, "command": _command, "on": _events}
    before = len(problems.found)
    found = {
        name: parsers[name](given.value[name], problems) for name in KEYS if name in given.value
    }
    return None if len(problems.found) > before else Notify(**{**found, "where": given.where})


def add(of_file: Notify, of_option: Notify) -> Notify:
    said = {name: value for name, value in of_option._asdict().items() if value}
    return of_file._replace(**said)


def _secret(given: Located, problems: Problems) -> str:
    name = given.value
    if isinstance(name, str) and variables.ENV_NAME.match(name):
        return name
    what = values.kind(given)
    if isinstance(name, str) and name:
        # It is not repeated: whoever has the address can post there.
        what = "the address itself" if "/" in name else "another text"
    fix = "write `webhook: NAME` and `secrets: [NAME]`: kit submit reads it from your environment"
    problem = f"expected the name of the secret that has the web hook's address, not {what}"
    problems.add(given.where, problem, f"{fix} (docs/notify.md)")
    return ""


def _command(given: Located, problems: Problems) -> tuple[str, ...]:
    words = command.split(given, problems) or []
    if not words or not words[0]:
        problems.add(given.where, "the command of notify is empty", "name a program that is there")
        return ()
    if isinstance(given.value, str):
        shell_words.refuse_unquoted(given.value, given.where, problems, _FILE)
    token_check.refuse_arguments(words, given.where, problems)
    return tuple(words)


def _events(given: Located, problems: Problems) -> tuple[str, ...]:
    words: list[str] = []
    for item in given.items():
        if isinstance(item.value, (list, dict)):
            problem = f"expected the name of an event, not {values.kind(item)}"
            problems.add(item.where, problem, "write `on: [start, end]`")
        else:
            words += (item.value or "").split(",")
    for word in words:
        if word not in EVENTS:
            fix = did_you_mean(word, EVENTS, "write some of `on: [start, end, stall]`")
            problems.add(given.where, f"notify knows no event '{word}'", fix)
    if not given.items():
        problems.add(given.where, "notify names no event", "write `on: [start, end]`")
    return tuple(event for event in EVENTS if event in words)


def check(
    notify: Optional[Notify], secrets: set[str], problems: Problems, *, sees_stalls: bool
) -> Notify:
    """Return what the job says, or that it tells nobody; it tells the end if it does not say when.

    Note a problem if it has no way to tell, if the web hook's secret is none, or if it is to tell
    of a stall and the job does not see any.
    """
    if not notify:
        return Notify()
    if not notify.webhook and not notify.command:
        problems.add(notify.where, "notify names neither a web hook nor a command", _EXAMPLE)
    if notify.webhook and notify.webhook not in secrets:
        problem = f"the job has no secret {notify.webhook}, which is to hold the web hook's address"
        fix = f"write `secrets: [{notify.webhook}]` as well (docs/notify.md)"
        problems.add(notify.where, problem, fix)
    if "stall" in notify.on and not sees_stalls:
        problem = "notify is to tell when the ranks stand still, but the job does not look for that"
        problems.add(notify.where, problem, "write `stall_timeout: 10m` as well (docs/hang.md)")
    return notify._replace(on=notify.on or ("end",))


def is_address(value: bytes) -> bool:
    """Return whether the value of a secret can be the address of a web hook."""
    return bool(_ADDRESS.fullmatch(value))
