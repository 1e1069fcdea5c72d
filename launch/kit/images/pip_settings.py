"""What a user has set for pip, in the environment and in pip.conf, for the pip of an image.

Addresses may hold passwords: the settings reach the image's pip through a pipe, and no file.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kit.base.errors import warn

# Where packages come from. Not what would change what pip does: PIP_TARGET, PIP_USER, ...
_KEYS = (
    "index_url extra_index_url find_links no_index trusted_host cert client_cert proxy timeout "
    "retries pre prefer_binary"
).split()
_PATHS = ("PIP_FIND_LINKS", "PIP_CERT", "PIP_CLIENT_CERT")  # where pip knows ~
_HOME = re.compile(r"(?<!\S)~[^\s/]*")
_OTHERS = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PROXIES = re.compile(r"(?:https?|all|no)_proxy", re.IGNORECASE)
_SECTIONS = ("global", "install")


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings as variables of pip's; the environment wins over the files."""
    found = {f"PIP_{key.upper()}": value for key, value in _of_files(environment).items()}
    for name, value in environment.items():
        is_pips = name.startswith("PIP_") and name[4:].lower() in _KEYS
        if is_pips or name in _OTHERS or _PROXIES.fullmatch(name):
            found[name] = value
    for name in filter(found.__contains__, _PATHS):  # in the image, ~ is another folder
        found[name] = _HOME.sub(lambda home: os.path.expanduser(home[0]), found[name])
    return found


def paths(found: Mapping[str, str], lines: tuple[str, ...]) -> list[str]:
    """Return the files and folders that the settings, and lines of requirements, name."""
    links = (line.split(" ", 1)[1] for line in lines if line.startswith("--find-links "))
    words = [*" ".join(found.values()).split(), *links]
    local = (word[len("file://") :] if word.startswith("file://") else word for word in words)
    return sorted({path for path in local if os.path.isabs(path) and os.path.exists(path)})


def hide(text: str, found: Mapping[str, str]) -> str:
    """Return a text of pip's without the passwords of the settings."""
    for word in " ".join(found.values()).split():
        if "@" not in word:
            continue
        address = word if "://" in word else f"//{word}"  # a proxy needs no scheme
        login = urlsplit(address).netloc.rpartition("@")[0]
        secret = login.partition(":")[2] or login  # a token may stand in the place of a user
        for form in filter(None, {secret, unquote(secret)}):
            text = text.replace(form, "****")
    return text


def _of_files(environment: Mapping[str, str]) -> dict[str, str]:
    """Return {key: value} of pip's files of settings: the site's, the user's, the named one."""
    home = Path(environment.get("HOME") or Path.home())
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    own = environment.get("PIP_CONFIG_FILE", "")
    files = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"), home / ".pip/pip.conf"]
    files += [config / "pip/pip.conf", Path(own or os.devnull)]
    if own == os.devnull:  # pip reads no file then
        return {}
    found: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError, OSError):  # its text may hold a password
            warn(f"kit: {file} is not a valid pip.conf: kit ignores it")
            continue
        for section in filter(parser.has_section, _SECTIONS):
            for key, value in parser.items(section):
                name = key.replace("-", "_").lower()
                if name in _KEYS:
                    found[name] = " ".join(value.split())
    return found
