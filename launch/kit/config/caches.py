"""Where a job's compilers keep what they have compiled."""

from __future__ import annotations

from typing import Optional

from kit.config import values
from kit.config.yaml_source import Located
from kit.errors import Problems

CACHE = ("node", "keep", "off")


def parse(given: Located, problems: Problems) -> Optional[str]:
    fix = "node: on each node's disk; keep: also in a file beside the image; off: as the image says"
    return values.one_of(CACHE, given, fix, problems)
