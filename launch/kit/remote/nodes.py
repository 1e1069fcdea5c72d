"""The notes of nodes that could not work, which jobs of a cluster elsewhere write there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kit.cluster import Cluster
from kit.remote.host import Host


@contextlib.contextmanager
def file(site: Cluster) -> Iterator[str]:
    """A copy of them; what is changed in it is changed there."""
    host, doing = Host(site.ssh), "reading its notes of bad nodes"
    folder = f"{host.call('login::absolute', site.ssh_dir, doing=doing).stdout}/bad-nodes"
    with tempfile.TemporaryDirectory(prefix="kit-") as place:
        host.call("login::make", folder, doing=doing)
        host.fetch(folder, Path(place), names=[os.path.basename(site.name)], doing=doing)
        copy = Path(place, os.path.basename(site.name))
        before = copy.read_bytes() if copy.exists() else None
        yield str(copy)
        if before is not None and copy.read_bytes() != before:
            host.send(copy, folder, to=copy.name, doing="its notes of bad nodes are as they were")
