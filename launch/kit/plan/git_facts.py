"""Tell the revision of a checkout, and what differs from it, for the record of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Optional

from kit.base.errors import warn
from kit.plan import file_list, git, key_files
from kit.plan.file_list import GitRecord

# No program that the checkout's configuration names is started, and each file has its own part.
_DIFF = (
    "-c diff.relative=false diff HEAD --no-color --no-ext-diff --no-textconv --no-renames"
).split()


def find(folder: str, keyrings: Iterable[str]) -> Optional[GitRecord]:
    """Return the revision and the difference, without keys; None where there is no checkout.

    The difference is missing where git cannot tell it.
    """
    if listed := file_list.read(folder):
        return listed.git
    revision = _git(folder, "rev-parse", "HEAD", "--show-toplevel")
    if revision is None:
        return None
    head, _, top = revision.rstrip("\n").partition("\n")
    names = git.output(folder, *_DIFF, "--name-only", "-z", timeout_s=10)
    changed = os.fsdecode(names or b"").split("\0")[:-1]
    left_out = [f":(top,exclude,literal){name}" for name in key_files.among(top, changed, keyrings)]
    words = ["--src-prefix=a/", "--dst-prefix=b/", "--", ":/", *left_out]
    patch = _git(folder, *_DIFF, *words) if changed else ""
    if names is None or patch is None:
        warn(
            f"kit: git cannot tell what differs from its revision in {folder}, and run.json does "
            "not say it: `git diff HEAD` there tells why, and fetches what a partial clone lacks"
        )
        return {"revision": head}
    return {"revision": head, "diff": key_files.cut(patch)}


def _git(folder: str, *arguments: str) -> Optional[str]:
    output = git.output(folder, *arguments, timeout_s=10)
    return None if output is None else output.decode("utf-8", "replace")
