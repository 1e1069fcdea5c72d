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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from kit.files import safe_read

# The names that Docker, Podman and Enroot have for Docker Hub.
DOCKER_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io", "auth.docker.io")
HUB_OF_HELPERS = "https://index.docker.io/v1/"  # docker login's name for docker.io
HELPER_TIMEOUT_S = 30.0
NO_LOGIN = b"credentials not found"  # printed by helpers on stdout; not a failure
_ENTRY = re.compile(  # of netrc: on one line, as Enroot's manual has it, or on several
    r"^[ \t]*machine\s+(\S+)\s+login\s+(\S+)\s+password[ \t]+(\S.*)$", re.MULTILINE
)
# A parameter of a challenge in WWW-Authenticate, or the scheme that begins a challenge.
_WORD = re.compile(r'([\w-]+)=(?:"([^"]*)"|([^\s,]+))|([\w-]+)')


@dataclass
class LoginSearch:
    """What the search for a login found."""

    login: Optional[str] = None  # user and password as HTTP's Basic scheme writes them
    token: str = ""  # an identity token, in place of a password, as `az acr login` gets one
    failures: list[str] = field(default_factory=list)  # why a place that may have one gave none


def find(registry: str, repository: str) -> LoginSearch:
    """Return the first login found. Podman may have one for a part of a registry."""
    found = LoginSearch()
    for path in files():
        try:
            settings = safe_read.mapping(path)
        except (OSError, ValueError):
            continue  # no login there; the registry says whether it wants one
        found.login = _ask_helper(settings, registry, path, found)
        found.login = found.login or _find_auth(settings, f"{registry}/{repository}", found)
        if found.login:
            return found
    found.login = _find_in_enroot(registry, found.failures)
    return found


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


def challenges(headers: list[str]) -> dict[str, dict[str, str]]:
    """Return the parameters of each scheme; one header may have several, RFC 9110, 11.6.1."""
    schemes: dict[str, dict[str, str]] = {}
    for header in headers:
        parameters: dict[str, str] = {}
        for key, quoted, bare, scheme in _WORD.findall(header):
            if scheme:
                parameters = schemes.setdefault(scheme.lower(), {})
            else:
                parameters.setdefault(key.lower(), quoted or bare)
    return schemes


def _find_auth(settings: dict[str, Any], scope: str, found: LoginSearch) -> Optional[str]:
    """Return the login in the file itself, for the whole scope or the longest part of it."""
    logins = {_registry(key): entry for key, entry in _mapping(settings, "auths").items()}
    while scope:
        entry = logins.get(scope)
        if isinstance(entry, dict) and entry.get("identitytoken"):  # its password is empty then
            found.token = found.token or str(entry["identitytoken"])
        elif login := _basic(entry):
            return login
        scope = scope.rpartition("/")[0]
    return None


def _ask_helper(
    settings: dict[str, Any], registry: str, path: Path, found: LoginSearch
) -> Optional[str]:
    """Return the login from the helper that the file names for this registry, or for all."""
    helpers = {_registry(key): name for key, name in _mapping(settings, "credHelpers").items()}
    name = helpers.get(registry) or settings.get("credsStore")
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
        return None
    tool = f"docker-credential-{name}"
    server = HUB_OF_HELPERS if registry == "docker.io" else registry
    user, secret, failure = _run_helper(tool, server)
    if failure:
        found.failures.append(f"{tool}, which {path} names, {failure}")
    if user == "<token>":
        found.token = found.token or secret
        return None
    return _encoded(user, secret) if user and secret else None


def _run_helper(tool: str, server: str) -> tuple[str, str, str]:
    """Return the helper's user and secret, "" if it has none, and why it failed, or ""."""
    if not shutil.which(tool):
        return "", "", "is not installed here"
    try:
        done = subprocess.run(
            [tool, "get"], input=server.encode(), capture_output=True, timeout=HELPER_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return "", "", f"did not answer within {HELPER_TIMEOUT_S:.0f} s"
    except OSError as error:
        return "", "", f"cannot be started: {error.strerror}"
    if done.returncode and NO_LOGIN in done.stdout:
        return "", "", ""
    if done.returncode:
        return "", "", f"failed with code {done.returncode}: see what docker pull says of it"
    try:
        answer = json.loads(done.stdout)
        return f"{answer['Username'] or ''}", f"{answer['Secret'] or ''}", ""
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "", "", "answered with something else than a login"


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
