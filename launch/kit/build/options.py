"""What of a build only Docker and Podman know: secrets, stages, platforms, and words that are handed to them as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Optional

from kit.errors import UsageError


class Options(NamedTuple):
    secrets: tuple[str, ...] = ()  # id=NAME,src=FILE, or id=NAME,env=VARIABLE
    ssh: tuple[str, ...] = ()
    stage: Optional[str] = None  # of a Dockerfile, by its name or number
    platform: Optional[str] = None  # OS/ARCHITECTURE
    no_cache: bool = False
    words: tuple[str, ...] = ()

    def command(self) -> list[str]:
        named = (("--secret", map(_secret, self.secrets)), ("--ssh", self.ssh), ("--target", [self.stage]), ("--platform", [self.platform]))
        return [word for option, values in named for value in values if value for word in (option, value)] + ["--no-cache"] * self.no_cache + [*self.words]

    def facts(self) -> dict[str, Any]:
        """What makes another image: of secrets their names, since a step that prints one differently would be no secret's."""
        ids = sorted(_parts(secret).get("id", "") for secret in self.secrets)
        found = {"secrets": ids, "target": self.stage, "platform": self.platform, "options": list(self.words)}
        return {name: value for name, value in found.items() if value}


def _parts(secret: str) -> dict[str, str]:
    return dict(item.partition("=")[::2] for item in secret.split(","))


def _secret(secret: str) -> str:
    """With its file as the engine finds it, which starts in another folder. Raises UsageError where it is no secret."""
    parts = _parts(secret)
    named = [name for name in ("src", "source", "env") if parts.get(name)]
    if not parts.get("id") or len(named) > 1 or set(parts) - {"id", "src", "source", "env", "type"}:
        raise UsageError(
            "this is no secret of a build", "write id=NAME,src=FILE or id=NAME,env=VARIABLE; the recipe has RUN --mount=type=secret,id=NAME", where="--secret"
        )
    for name in {"src", "source"} & set(named):
        file = Path(parts[name]).expanduser().absolute()
        if not file.is_file():
            raise UsageError(f"there is no file {file}", "name the file that holds the secret's value", where="--secret")
        parts[name] = str(file)
    return ",".join(f"{name}={value}" for name, value in parts.items())
