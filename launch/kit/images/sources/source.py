"""Define a source of an image: a registry, an archive, an engine or a file gives one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

from kit.base.progress import Count
from kit.images.tarstream import Entry
from kit.registry.oci import Config


@dataclass(frozen=True)
class Source:
    """An image's files and configuration."""

    name: str  # a job would call the image by it
    identity: str  # a digest of the whole image, "" if it has none
    size: int  # bytes that reading it counts up to
    needs: int  # bytes that its file may take
    config: Config
    origin: dict[str, Any]
    # A function of this build's label and a count.
    files: Optional[Callable[[str, Count], AbstractContextManager[Iterator[Entry]]]]
    squashfs: Optional[Path] = None  # a file to copy, instead of `files`
    architecture: str = ""  # as images name it: arm64; empty for this machine's
