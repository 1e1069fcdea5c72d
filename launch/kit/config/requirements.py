"""Parse `packages`: Python packages, as pip's requirements name them, and files of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple, Optional

from kit.base import redact
from kit.base.errors import Problems
from kit.config import paths, values
from kit.config.yaml_source import Located

FILE = ".txt"  # the end of the name of a file of requirements
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION = r"(?:===|==|~=|!=|<=|>=|<|>) *[A-Za-z0-9.*+!_-]+"
_VERSIONS = rf"{_VERSION}(?: *, *{_VERSION})*"
_ARCHIVE = r"\.(?:whl|zip|tar\.gz)"
_REQUIREMENT = (
    # A number or a truth value is no text in YAML.
    rf"(?!.*(?:://|{_ARCHIVE}$)|[Tt]rue$|[Ff]alse$|[0-9.eE]+$){_NAME} *(?:\[[A-Za-z0-9._, -]*\])?"
    rf" *(?:\( *{_VERSIONS} *\)|{_VERSIONS})? *(?:;[^$@\x00-\x1f\x7f]+)?"
)
# The lines of a file that say where packages come from, and which releases count.
_OPTION = re.compile(
    r"(?:(?:-i|--index-url|--extra-index-url|-f|--find-links|--trusted-host)(?:=|\s+)\S+"
    r"|--no-index|--pre|--prefer-binary)"
)
_LOGIN = re.compile(r"://[^/\s]*@")  # a token may stand in the place of a user
# Files of other tools. pip would take a name for that of a package; an index has some of them.
_OTHER_FILE = re.compile(
    r"[\w.-]+\.(?:cfg|in|lock|toml|txt|yml)|(?:conda|environment)\.yaml|setup\.py|Pipfile"
)
_SOURCE = re.compile(rf"{_NAME}\s*(?:\[[^\]]*\])?\s*@|.*://|[./~]|.*{_ARCHIVE}$")


class Requirement(NamedTuple):
    text: str  # for pip, or the name of a file of such lines
    where: str

    @property
    def is_file(self) -> bool:
        return self.text.endswith(FILE) and not self.text.startswith("-")


def parse(given: Located, problems: Problems) -> Optional[tuple[Requirement, ...]]:
    """Return the requirements of a list, or of one line of text."""
    found = []
    for item in given.items():
        text = values.line(item, problems)
        if text is not None:
            requirement = Requirement(text, item.where)
            found.append(requirement)
            if not requirement.is_file:
                check(requirement, problems)
    return tuple(found)


def anchored(found: tuple[Requirement, ...], base: Path) -> tuple[Requirement, ...]:
    return tuple(
        item._replace(text=paths.absolute(item.text, base)) if item.is_file else item
        for item in found
    )


def check(item: Requirement, problems: Problems, *, is_line: bool = False) -> None:
    """Note a problem with a requirement that kit does not give to pip; `is_line`: of a file."""
    text, fix = item.text, ""
    if redact.kind(text) or (text.startswith("-") and _LOGIN.search(text)):
        problem = "the line holds a password or a token, which the run's record would show"
        fix = "set PIP_INDEX_URL or PIP_EXTRA_INDEX_URL, or write the address into pip.conf"
    elif "${" in text:
        fix = "write the value itself; an index's address can be in PIP_INDEX_URL"
        problem = f"kit does not replace variables in '{text}'"
    elif "--hash" in text:
        fix = "remove the hashes: kit locks every package by its sha256, see docs/packages.md"
        problem = f"'{text.split()[0]}' is given with a hash"
    elif is_line and _OPTION.fullmatch(text):
        return
    elif text.startswith("-"):
        fix = "name the packages; docs/packages.md lists the options that a file can have"
        problem = f"kit does not know the line '{text}'"
        if text.startswith(("-r", "--requirement")):
            fix = "write the file's name alone"
        if re.match(r"(-e|--editable)\b", text):
            problem = f"'{text}' is a folder, and no package of an index"
            fix = "put the folder on PYTHONPATH under `env`, or build it into an image: kit build"
    elif _OTHER_FILE.fullmatch(text):
        problem = f"'{text}' is not the name of a package"
        of_uv = "uv export --no-hashes --no-emit-project -o FILE.txt"
        fix = f"name a file that ends in .txt, inside another by -r FILE; of a uv.lock: {of_uv}"
    elif _SOURCE.match(text):
        problem = f"'{text}' is not the name of a package"
        fix = "write NAME==VERSION; a wheel of your own is found by a line --find-links FOLDER"
    elif not re.fullmatch(_REQUIREMENT, text):
        problem, fix = f"cannot read the requirement '{text}'", "write it as for pip: NAME==VERSION"
    if fix:
        problems.add(item.where, problem, fix)
