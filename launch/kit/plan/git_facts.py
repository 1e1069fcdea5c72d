"""Ask git, which starts no program that the checkout's own configuration names, but for filters."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from itertools import accumulate
from typing import Optional

from kit.base import program_output
from kit.base.errors import warn
from kit.plan import file_list, key_files, run_paths
from kit.plan.file_list import GitRecord

# A git hook that calls kit sets these for its own repository.
_OF_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
# No program that the checkout's configuration names is started, and each file has its own part. The
# text of a file that was removed is in the revision, and may have been a keyring.
_DIFF = (
    "-c diff.relative=false diff HEAD --no-color --no-ext-diff --no-textconv --no-renames"
    " --irreversible-delete"
).split()
# Programs alone: what an earlier run has written there says nothing of the code.
_NEW = (
    "ls-files --others --exclude-standard --full-name -z -- :(top)*.py :(top)*.sh :(top)*.bash"
).split()
MOST_NEW = 1000  # names
MOST = 8 << 20  # characters of a difference: every command reads the record that holds it
TOO_LARGE = "(too large for the run's record: {} characters of changes)"


def output(root: str, *arguments: str, timeout_s: float = 120) -> Optional[bytes]:
    """Return what git prints about a folder; None where it fails."""
    env = {name: value for name, value in os.environ.items() if name not in _OF_HOOKS}
    # To fetch an object that is missing, git would start the remote's own program.
    env["GIT_ALLOW_PROTOCOL"] = ""
    command = ["git", "-C", root, "-c", "core.fsmonitor=false", "--no-optional-locks", *arguments]
    done = program_output.ask(command, timeout_s, env=env)
    return done.stdout if done and done.returncode == 0 else None


def find(folder: str, keyrings: Iterable[str]) -> Optional[GitRecord]:
    """Return what a run's record says of a folder: revision, difference without keys, new files.

    None where there is no checkout; the difference is missing where git cannot tell it.
    """
    if listed := file_list.read(folder):
        return listed.git
    revision = _git(folder, "rev-parse", "HEAD", "--show-toplevel")
    if revision is None:
        return None
    head, _, top = revision.rstrip("\n").partition("\n")
    names = output(folder, *_DIFF, "--name-only", "-z", timeout_s=10)
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
    known: GitRecord = {"revision": head, "diff": _shortened(key_files.cut(patch))}
    if (new := output(folder, *_NEW, timeout_s=10)) is not None:
        known["untracked"] = _without_runs(os.fsdecode(new).split("\0")[:-1])
    return known


def _without_runs(names: list[str]) -> tuple[str, ...]:
    """Return the first names without those in runs and hidden folders, such as .venv."""
    end = f"/{run_paths.SCRIPT}"
    runs = tuple(name[: -len(run_paths.SCRIPT)] for name in names if name.endswith(end))
    kept = [name for name in names if "/." not in f"/{name}" and not name.startswith(runs)]
    return tuple(kept[:MOST_NEW])


def _shortened(diff: str) -> str:
    """Return a diff of git without the largest changes, as those of data, if it is too large."""
    sections = key_files.sections(diff)
    sizes = sorted(map(len, sections))
    too_large = (size for size, total in zip(sizes, accumulate(sizes)) if total > MOST)
    limit = next(too_large, math.inf)
    return "".join(each if len(each) < limit else _named(each) for each in sections)


def _named(section: str) -> str:
    header = section.partition("\n")[0]
    return f"{header}\n{TOO_LARGE.format(f'{len(section):,}')}\n"


def _git(folder: str, *arguments: str) -> Optional[str]:
    said = output(folder, *arguments, timeout_s=10)
    return None if said is None else said.decode("utf-8", "replace")
