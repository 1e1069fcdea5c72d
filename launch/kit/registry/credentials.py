"""Find the login for a registry: in Docker's, Podman's and Enroot's files, and credential helpers.

A secret goes to the registry alone, never into a message or a command's arguments.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple, Optional

from kit.files import safe_read

# The names that Docker, Podman and Enroot have for Docker Hub.
DOCKER_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io", "auth.docker.io")
HUB_OF_HELPERS = "https://index.docker.io/v1/"  # docker login's name for docker.io
HELPER_TIMEOUT_S = 30.0
NO_LOGIN = b"credentials not found"  # printed by helpers on stdout; not a failure
_ENTRY = re.compile(  # of netrc: on one line, as Enroot's manual has it, or on several
    r"^[ \t]*machine\s+(\S+)\s+login\s+(\S+)\s+password[ \t]+(\S.*)$", re.MULTILINE
)


class LoginSearch(NamedTuple):
    """What the search for a login found."""

    login: Optional[str] = None  # user and password as HTTP's Basic scheme writes them
    failures: tuple[str, ...] = ()  # why a place that may have a login gave none


def find(registry: str, repository: str) -> LoginSearch:
    """Return the first login found. Podman may have one for a part of a registry."""
    failures: list[str] = []
    for path in files():
        try:
            settings = safe_read.mapping(path)
        except (OSError, ValueError):
            continue  # no login there; the registry says whether it wants one
        login = _ask_helper(settings, registry, path, failures)
        login = login or _find_auth(settings, f"{registry}/{repository}", path, failures)
        if login:
            return LoginSearch(login)
    return LoginSearch(_find_in_enroot(registry, failures), tuple(failures))


def files() -> list[Path]:
    """Return the files that may hold Docker's and Podman's logins, in the order of their search."""
    named, docker = os.environ.get("REGISTRY_AUTH_FILE"), os.environ.get("DOCKER_CONFIG")
    runtime, user = os.environ.get("XDG_RUNTIME_DIR"), os.getuid()
    # Podman's order, containers-auth.json(5): without XDG_RUNTIME_DIR it has a folder by the user.
    podman = [f"/run/user/{user}/containers", f"/run/containers/{user}"]
    if runtime:
        podman = [f"{runtime}/containers"]
    places = [
        *(Path(folder, "auth.json") for folder in (*podman, f"{_settings()}/containers")),
        (Path(docker) if docker else Path.home() / ".docker") / "config.json",
    ]
    return [Path(named), *places] if named else places


def enroots() -> Path:
    """Return Enroot's file of logins."""
    return Path(os.environ.get("ENROOT_CONFIG_PATH") or f"{_settings()}/enroot", ".credentials")


def _settings() -> str:
    return os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")


def places(found: LoginSearch) -> str:
    """Return where kit looks for logins, and what failed there."""
    names = ", ".join(map(str, files()))
    searched = (
        f"kit reads {names}, asks the credential helpers that they name, and reads {enroots()}"
    )
    return "; ".join([searched, *found.failures])


def _find_auth(
    settings: dict[str, Any], scope: str, path: Path, failures: list[str]
) -> Optional[str]:
    """Return the login in the file itself, for the whole scope or the longest part of it."""
    logins = {_registry(key): entry for key, entry in _mapping(settings, "auths").items()}
    while scope:
        entry = logins.get(scope)
        if isinstance(entry, dict) and entry.get("identitytoken"):  # its password is empty then
            failures.append(
                f"{path} has a token for {scope} that only docker can log in with: "
                f"write a name and a password to {enroots()}"
            )
        elif found := _basic(entry):
            return found
        scope = scope.rpartition("/")[0]
    return None


def _ask_helper(
    settings: dict[str, Any], registry: str, path: Path, failures: list[str]
) -> Optional[str]:
    """Return the login from the helper that the file names for this registry, or for all."""
    helpers = {_registry(key): name for key, name in _mapping(settings, "credHelpers").items()}
    name = helpers.get(registry) or settings.get("credsStore")
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
        return None
    tool = f"docker-credential-{name}"
    login, failure = _run_helper(tool, HUB_OF_HELPERS if registry == "docker.io" else registry)
    if failure:
        failures.append(f"{tool}, which {path} names, {failure}")
    return login


def _run_helper(tool: str, server: str) -> tuple[Optional[str], str]:
    """Return the helper's login, or None if it has none, and why it failed, "" if it did not."""
    if not shutil.which(tool):
        return None, "is not installed here"
    try:
        done = subprocess.run(
            [tool, "get"], input=server.encode(), capture_output=True, timeout=HELPER_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return None, f"did not answer within {HELPER_TIMEOUT_S:.0f} s"
    except OSError as error:
        return None, f"cannot be started: {error.strerror}"
    if done.returncode and NO_LOGIN in done.stdout:
        return None, ""
    if done.returncode:
        return None, f"failed with code {done.returncode}: see what docker pull says of it"
    try:
        answer = json.loads(done.stdout)
        user, password = answer["Username"], answer["Secret"]
        login = _encoded(user, password) if user and password else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, "answered with something else than a login"
    if user == "<token>":
        fix = "log in with a name and a password"
        return None, f"has a token that only docker can log in with: {fix}"
    return login, ""


def _find_in_enroot(registry: str, failures: list[str]) -> Optional[str]:
    """Return the login in Enroot's file: entries as in netrc, for hosts without their port."""
    path = enroots()
    try:
        text = safe_read.read(path, 1 << 20).decode("utf-8", "surrogateescape")
    except OSError:
        return None
    hosts = (_registry(registry), re.sub(r":[0-9]+$", "", registry))
    for machine, user, rest in _ENTRY.findall(text):
        if _registry(machine) not in hosts:
            continue
        password = rest.strip()
        variable = re.fullmatch(r"\$\{?(\w+)\}?", password)
        if not password.startswith("$"):
            return _encoded(user, password)
        if variable and os.environ.get(variable[1]):
            return _encoded(user, os.environ[variable[1]])
        reason = f"{variable[1]} is not set" if variable else "kit runs no commands of that file"
        failures.append(f"the password of {machine} in {path} is not known: {reason}")
    return None


def _mapping(settings: dict[str, Any], key: str) -> dict[str, Any]:
    found = settings.get(key)
    return found if isinstance(found, dict) else {}


def _registry(key: str) -> str:
    """Return the registry that a key names: docker login calls docker.io HUB_OF_HELPERS."""
    place = re.sub(r"(?:/v[12])?/?\Z", "", key.partition("://")[2] or key)
    return "docker.io" if place in DOCKER_HUB else place


def _encoded(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode("utf-8", "surrogateescape")).decode()


def _basic(entry: Any) -> Optional[str]:
    try:
        auth = "".join(entry["auth"].split())  # Docker, too, ignores line ends
        return auth if b":" in base64.b64decode(auth, validate=True) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
