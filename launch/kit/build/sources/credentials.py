"""What to log in to a registry with, from where docker login and podman login keep it."""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path
from typing import Any, Optional

from kit import regular

DOCKER_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")


def find(registry: str, repository: str) -> Optional[str]:
    """The user and password as HTTP's Basic scheme writes them, or None. Podman may have them for a part of a registry."""
    scope = f"{registry}/{repository}"
    for path in files():
        logins = {_place(key): entry for key, entry in _logins(path).items()}
        while scope:
            if found := _basic(logins.get(scope)):
                return found
            scope = scope.rpartition("/")[0]
        scope = f"{registry}/{repository}"
    return None


def files() -> list[Path]:
    """Where logins are looked up, in turn."""
    named, docker = os.environ.get("REGISTRY_AUTH_FILE"), os.environ.get("DOCKER_CONFIG")
    podman = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    places = [Path(podman, "containers/auth.json"), (Path(docker) if docker else Path.home() / ".docker") / "config.json"]
    return [Path(named), *places] if named else places


def _logins(path: Path) -> dict[str, Any]:
    try:
        logins = regular.mapping(path).get("auths")
    except (OSError, ValueError):
        return {}  # without a login; the registry says whether it wants one
    return logins if isinstance(logins, dict) else {}


def _place(key: str) -> str:
    """https://index.docker.io/v1/ is docker.io: that is how docker login names it."""
    place = key.partition("://")[2] or key
    for version in ("/v1/", "/v2/", "/v1", "/v2", "/"):
        if place.endswith(version):
            place = place[: -len(version)]
            break
    return "docker.io" if place in DOCKER_HUB else place


def _basic(entry: Any) -> Optional[str]:
    auth = entry.get("auth") if isinstance(entry, dict) else None
    try:
        return auth if auth and b":" in base64.b64decode(auth, validate=True) else None
    except (binascii.Error, ValueError, TypeError):
        return None
