"""Write no file of another place: a symbolic link in the way is not followed."""

from __future__ import annotations

import os


def is_behind_link(root: str | os.PathLike[str], name: str) -> bool:
    """Return whether one of the folders in `name`, which is relative to `root`, is a link."""
    ends = (end for end, character in enumerate(name) if character == "/")
    return any(os.path.islink(os.path.join(root, name[:end])) for end in ends)
