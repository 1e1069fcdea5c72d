"""What to log in to a registry with: from where docker login and podman login keep it, from their credential helpers, and from Enroot's file.

A secret goes from there to the registry alone: into no message, and no command's arguments.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple, Optional

from kit import regular

DOCKER_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")
HUB_OF_HELPERS = "https://index.docker.io/v1/"  # what docker login calls it
HUB_OF_ENROOT = ("auth.docker.io", "registry-1.docker.io", "docker.io")
HELPER_TIMEOUT_S = 30.0
NO_LOGIN = b"credentials not found"  # what helpers say then, on stdout, and is no failure


class Found(NamedTuple):
    login: Optional[str] = None  # user and password as HTTP's Basic scheme writes them
    failures: tuple[str, ...] = ()  # places that may have one, and why they gave none


def find(registry: str, repository: str) -> Found:
    """Return the first login that one of the places has. Podman may have them for a part of a registry."""
    failures: list[str] = []
    for path in files():
        settings = _settings(path)
        login = _of_helper(settings, registry, path, failures) or _written(settings, f"{registry}/{repository}")
        if login:
            return Found(login)
    return Found(_of_enroot(registry, failures), tuple(failures))


def files() -> list[Path]:
    """Where docker's and podman's logins are looked up, in turn."""
    named, docker = os.environ.get("REGISTRY_AUTH_FILE"), os.environ.get("DOCKER_CONFIG")
    podman = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    places = [Path(podman, "containers/auth.json"), (Path(docker) if docker else Path.home() / ".docker") / "config.json"]
    return [Path(named), *places] if named else places


def enroots() -> Path:
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(os.environ.get("ENROOT_CONFIG_PATH") or f"{config}/enroot", ".credentials")


def places(found: Found) -> str:
    """Where logins are looked for, and what failed there."""
    return "; ".join([f"kit reads {', '.join(map(str, files()))}, asks the credential helpers that they name, and reads {enroots()}", *found.failures])


def _settings(path: Path) -> dict[str, Any]:
    try:
        return regular.mapping(path)
    except (OSError, ValueError):
        return {}  # without a login; the registry says whether it wants one


def _written(settings: dict[str, Any], scope: str) -> Optional[str]:
    logins = {_place(key): entry for key, entry in _mapping(settings, "auths").items()}
    while scope:
        if found := _basic(logins.get(scope)):
            return found
        scope = scope.rpartition("/")[0]
    return None


def _of_helper(settings: dict[str, Any], registry: str, path: Path, failures: list[str]) -> Optional[str]:
    """Return what the helper has that the file names for this registry, or for all."""
    helpers = {_place(key): name for key, name in _mapping(settings, "credHelpers").items()}
    name = helpers.get(registry) or settings.get("credsStore")
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
        return None
    tool = f"docker-credential-{name}"
    if not shutil.which(tool):
        failures.append(f"{tool}, which {path} names, is not installed here")
        return None
    try:
        server = HUB_OF_HELPERS if registry == "docker.io" else registry
        done = subprocess.run([tool, "get"], input=server.encode(), capture_output=True, timeout=HELPER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        failures.append(f"{tool}, which {path} names, did not answer within {HELPER_TIMEOUT_S:.0f} s")
        return None
    except OSError as error:
        failures.append(f"{tool}, which {path} names, cannot be started: {error.strerror}")
        return None
    if done.returncode:
        if NO_LOGIN not in done.stdout:
            failures.append(f"{tool}, which {path} names, failed with code {done.returncode}: see what docker pull says of it")
        return None
    try:
        answer = json.loads(done.stdout)
        user, password = answer["Username"], answer["Secret"]
        if user == "<token>":
            failures.append(f"{tool}, which {path} names, has a token that only docker can log in with: log in with a name and a password")
        elif user and password:
            return _encoded(user, password)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        failures.append(f"{tool}, which {path} names, answered with something else than a login")
    return None


def _of_enroot(registry: str, failures: list[str]) -> Optional[str]:
    """Return what Enroot's file has, in the form of netrc: one line for each machine, which is a host without a port."""
    path = enroots()
    try:
        lines = regular.read(path, 1 << 20).decode("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    machines = HUB_OF_ENROOT if registry == "docker.io" else (registry, re.sub(r":[0-9]+$", "", registry))
    for line in lines:
        found = re.fullmatch(r"\s*machine\s+(\S+)\s+login\s+(\S+)\s+password\s+(.+?)\s*", line)
        if not found or found[1] not in machines:
            continue
        variable = re.fullmatch(r"\$\{?(\w+)\}?", found[3])
        if not found[3].startswith("$"):
            return _encoded(found[2], found[3])
        if variable and os.environ.get(variable[1]):
            return _encoded(found[2], os.environ[variable[1]])
        reason = f"{variable[1]} is not set" if variable else "kit runs no commands of that file"
        failures.append(f"the password of {found[1]} in {path} is not known: {reason}")
    return None


def _mapping(settings: dict[str, Any], key: str) -> dict[str, Any]:
    found = settings.get(key)
    return found if isinstance(found, dict) else {}


def _place(key: str) -> str:
    """https://index.docker.io/v1/ is docker.io: that is how docker login names it."""
    place = key.partition("://")[2] or key
    for version in ("/v1/", "/v2/", "/v1", "/v2", "/"):
        if place.endswith(version):
            place = place[: -len(version)]
            break
    return "docker.io" if place in DOCKER_HUB else place


def _encoded(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode("utf-8", "surrogateescape")).decode()


def _basic(entry: Any) -> Optional[str]:
    auth = entry.get("auth") if isinstance(entry, dict) else None
    try:
        return auth if auth and b":" in base64.b64decode(auth, validate=True) else None
    except (binascii.Error, ValueError, TypeError):
        return None
