"""Shared by the tests of images: no login, no layer and no setting of who tests, and no waiting for a registry."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.registry import transport


@pytest.fixture(autouse=True)
def nothing_of_the_users_and_no_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {"DOCKER_CONFIG": "docker", "ENROOT_CONFIG_PATH": "enroot", "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config"}
    for name, folder in folders.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    for name in ("REGISTRY_AUTH_FILE", "KIT_LAYER_CACHE_GB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(transport, "BACK_OFF_S", (0.01,) * len(transport.BACK_OFF_S))
    monkeypatch.setattr(transport, "PAUSE_S", 0.01)
