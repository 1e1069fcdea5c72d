"""A run of a cluster elsewhere once more: with the paths of over there, and its image where it was copied to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

from kit import images
from kit.errors import UsageError
from kit.plan import Plan
from kit.remote import there
from kit.remote.host import Host


def place(before: Plan, run_dir: str) -> str:
    """Where the new run directory is over there."""
    return f"{os.path.dirname(before.run_dir)}/{there.unique(os.path.basename(run_dir))}"


def prepared(plan: Plan, run_dir: str, image: Optional[str]) -> Plan:
    """With the new directory here, and the image checked; `image` is another than the run had. Raises UsageError where it is gone."""
    assert plan.remote
    remote = plan.remote._replace(run_dir=run_dir, image=None)
    if image and os.path.isfile(image):
        digest = images.check(Path(image)) or images.digest(Path(image))
        remote = remote._replace(image=os.path.abspath(image), image_sha256=digest)
        name = f"{remote.folder}/images/{there.image_name(image, digest)}"
        plan = plan._replace(image=name, image_sha256=digest, fingerprint=images.fingerprint(Path(image)))
    elif image:
        plan = plan._replace(image=image, image_sha256=None, fingerprint=None)
    needed = {"" if remote.image else plan.image: "put it back, or name another: --image FILE", "" if remote.workdir else plan.workdir: "make it again"}
    for path, fix in needed.items():
        if path and Host(remote.ssh).call("login::run", "test", "-e", path, doing="nothing is submitted yet").returncode:
            raise UsageError(f"{remote.ssh} has no {path} any more", fix)
    return plan._replace(remote=remote)
