"""What a Docker or OCI image says beside its files."""

from __future__ import annotations

from typing import Any, NamedTuple


class Config(NamedTuple):
    env: tuple[str, ...] = ()  # NAME=VALUE
    workdir: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    labels: dict[str, str] = {}  # noqa: RUF012 - never changed

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Config:
        """Of the part "config" of an image's document; any key may be missing or null."""
        return cls(
            tuple(document.get("Env") or ()),
            document.get("WorkingDir") or "",
            tuple(document.get("Entrypoint") or ()),
            tuple(document.get("Cmd") or ()),
            dict(document.get("Labels") or {}),
        )
