"""The notes of nodes that could not work, which jobs of a cluster elsewhere write there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kit.cluster import Cluster
from kit.errors import KitError
from kit.remote.host import Host


@contextlib.contextmanager
def file(site: Cluster) -> Iterator[str]:
    """A copy of them; what is changed in it is changed there."""
    host, doing = Host(site.ssh), "reading its notes of bad nodes"
    done = host.call("login::own", site.ssh_dir, doing=doing)
    word, _, own = done.stdout.rstrip("\n").partition(" ")
    host.refuse_foreign(own if word == "foreign" else None)
    if word != "folder":
        why = " ".join(done.stderr.split())
        raise KitError(f"cannot make kit's folder on {host.name}: {why}", "name one that you may write to: the profile's key `ssh_dir`")
    folder = f"{own}/bad-nodes"
    with tempfile.TemporaryDirectory(prefix="kit-") as place:
        host.call("login::make", folder, doing=doing)
        host.fetch(folder, Path(place), names=[os.path.basename(site.name)], doing=doing)
        copy = Path(place, os.path.basename(site.name))
        before = copy.read_bytes() if copy.exists() else None
        yield str(copy)
        if before is not None and copy.read_bytes() != before:
            host.send(copy, folder, to=copy.name, doing="its notes of bad nodes are as they were")
