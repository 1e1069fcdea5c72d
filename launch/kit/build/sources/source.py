"""An image's files and what it says beside them, wherever they come from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

from kit.build.sources.oci import Config
from kit.build.tarstream import Entry

Count = Callable[[int], None]  # called with the bytes read since it was last called


@dataclass(frozen=True)
class Source:
    name: str  # what a job would call it
    identity: str  # a digest of all that it holds, "" where it has none
    size: int  # what reading it counts up to, bytes
    needs: int  # bytes that its file may take
    config: Config
    origin: dict[str, Any]
    files: Optional[Callable[[str, Count], AbstractContextManager[Iterator[Entry]]]]  # (label of this build, count)
    squashfs: Optional[Path] = None  # instead of files: a file to copy
