"""Define what a user asks of `kit build`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Optional

from kit.base import redact
from kit.base.errors import UsageError
from kit.config import image_files

BUILD_ARG = "--build-arg"
# Options of Docker and Podman with which kit would record another image, find none, or miss what
# has changed.
REFUSED = ("--build-context", "--file", "-f", "--iidfile", "--output", "-o", "--push")
# The beginning of --label=NAME=VALUE, and of NAME=VALUE, which may follow --label.
PAIR = re.compile(r"(?:--[a-z-]+=)?([A-Za-z_]\w*)=")


class BuilderOptions(NamedTuple):
    """The options that only Docker and Podman know."""

    secrets: tuple[str, ...] = ()  # id=NAME,src=FILE, or id=NAME,env=VARIABLE
    ssh: tuple[str, ...] = ()
    stage: Optional[str] = None  # of a Dockerfile, by its name or number
    platform: Optional[str] = None  # OS/ARCHITECTURE
    no_cache: bool = False
    words: tuple[str, ...] = ()  # handed to the engine as they are

    def command(self) -> list[str]:
        """Return the words for the engine's command line.

        Raise UsageError for a bad secret, and for an option that is not for kit's builds.
        """
        for word in self.words:
            # -fFILE is -f FILE
            option = word.partition("=")[0] if word.startswith("--") else word[:2]
            if option.startswith(BUILD_ARG):
                problem = f"{option} here would hide an argument, which may name the base"
                fix = f"write it before the --: kit build {BUILD_ARG} NAME=VALUE"
                raise UsageError(problem, fix, where="--")
            if option in REFUSED:
                fix = (
                    "leave it out (kit build FILE names a recipe); or build with the engine "
                    "itself, and convert its image: kit build dockerd://NAME"
                )
                raise UsageError(f"{option} is not for a build by kit", fix, where="--")
        pairs = [("--secret", _secret(secret)) for secret in self.secrets]
        pairs += [("--ssh", value) for value in self.ssh]
        pairs += [("--target", self.stage or ""), ("--platform", self.platform or "")]
        words = [word for option, value in pairs if value for word in (option, value)]
        return [*words, *["--no-cache"] * self.no_cache, *self.words]

    def target(self) -> Optional[str]:
        """Return the stage to build, by its name or number. The words may choose it, too."""
        found = self.stage
        for word, following in zip(self.words, (*self.words[1:], "")):
            option, equals, value = word.partition("=")
            if option == "--target":
                found = value if equals else following
        return found

    def given(self) -> str:
        """Return the names of those that are set, as a message begins with them."""
        named: dict[str, object] = {"--secret": self.secrets, "--ssh": self.ssh}
        named |= {"--target": self.stage, "--platform": self.platform}
        named |= {"--no-cache": self.no_cache, "--": self.words}
        return ", ".join(name for name, value in named.items() if value)

    def architecture(self) -> str:
        """Return that of `platform`, "" for None.

        Raise UsageError if it is no platform of Linux.
        """
        if not self.platform:
            return ""
        system, name, *_ = [*self.platform.split("/"), ""]
        if system != "linux" or not name:
            fix = "write linux/amd64, linux/arm64"
            raise UsageError(f"'{self.platform}' is no platform of Linux", fix, where="--platform")
        return name

    def shown(self) -> BuilderOptions:
        """Return them without the values of variables whose names sound like secrets."""
        return self._replace(words=tuple(map(_shown, self.words)))

    def facts(self) -> dict[str, Any]:
        """Return what decides the image's content. Of secrets that is the name, never the value."""
        ids = sorted(_parts(secret).get("id", "") for secret in self.secrets)
        found = {"secrets": ids, "target": self.stage, "platform": self.platform}
        found["options"] = list(self.words)
        return {name: value for name, value in found.items() if value}


@dataclass(frozen=True)
class BuildRequest:
    """A build; its options are those of the command."""

    target: Optional[str] = None
    engine: Optional[str] = None
    device: str = "gpu"
    name: Optional[str] = None
    to: str = "sqsh"
    folder: Path = Path(image_files.FOLDER)
    arguments: dict[str, str] = field(default_factory=dict)
    update: bool = False
    lock_timeout_s: float = 3600
    options: BuilderOptions = BuilderOptions()
    locked: Optional[Path] = None  # a record; a build that differs from it is refused

    def of_recipe(self) -> str:
        """Return the names of the given options that only a recipe can use, as a message begins."""
        own: dict[str, object] = {"--engine": self.engine, "--device": self.device != "gpu"}
        own |= {"--build-arg": self.arguments}
        names = [name for name, value in own.items() if value]
        return ", ".join(filter(None, [*names, self.options._replace(platform=None).given()]))


def arguments(items: Iterable[str]) -> dict[str, str]:
    """Return the values of NAME=VALUE; NAME alone has the environment's, as for Docker."""
    pairs = (item.partition("=") for item in items)
    return {name: value if equals else os.environ.get(name, "") for name, equals, value in pairs}


def _shown(word: str) -> str:
    found = PAIR.match(word)
    return f"{found[0]}(hidden)" if found and redact.is_secret(found[1]) else word


def _parts(secret: str) -> dict[str, str]:
    return dict(item.partition("=")[::2] for item in secret.split(","))


def _secret(secret: str) -> str:
    """Return a secret with its file's absolute path: the engine starts in another folder.

    Raise UsageError if it is no secret.
    """
    parts = _parts(secret)
    named = [name for name in ("src", "source", "env") if parts.get(name)]
    if not parts.get("id") or len(named) > 1 or set(parts) - {"id", "src", "source", "env", "type"}:
        raise UsageError(
            "this is not a build secret",
            "write id=NAME,src=FILE or id=NAME,env=VARIABLE; "
            "the recipe has RUN --mount=type=secret,id=NAME",
            where="--secret",
        )
    for name in {"src", "source"} & set(named):
        file = Path(parts[name]).expanduser().absolute()
        if not file.is_file():
            fix = "name the file that holds the secret's value"
            raise UsageError(f"there is no file {file}", fix, where="--secret")
        parts[name] = str(file)
    return ",".join(f"{name}={value}" for name, value in parts.items())
