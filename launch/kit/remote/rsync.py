"""On the laptop: copies files to a login node, by options that Apple's openrsync has, too."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kit.base.errors import KitError
from kit.remote.ssh import Host, last_line, run

# https://download.samba.org/pub/rsync/rsync.1: a socket, a stream or ssh broke, or nobody answered.
_CUT = {10, 12, 30, 35, 255}
_VANISHED = 24  # a file was removed while it was looked at
PRIVATE = "--chmod=go="  # what arrives is its owner's alone


def send(host: Host, source: Path, folder: str, options: Sequence[str], to: str = "") -> None:
    """Copy a folder's content, or one file as `to`, into a folder of the login node."""
    start = f"{source}/" if source.is_dir() else str(source)
    _rsync(host, [*options, "-rlpt", start, f"{host.name}:./{to}"], folder)


def send_listed(host: Host, root: Path, folder: str, names: Sequence[str]) -> None:
    """Copy these files of a folder into a folder of the login node.

    Folders that exist there keep their modes and dates.
    """
    with tempfile.NamedTemporaryFile(prefix="kit-") as listed:
        listed.write(b"".join(os.fsencode(name) + b"\0" for name in names))
        listed.flush()
        which = ["-0", f"--files-from={listed.name}", "--no-implied-dirs", PRIVATE]
        _rsync(host, [*which, "-lpt", f"{root}/", f"{host.name}:./"], folder)


def _rsync(host: Host, arguments: list[str], folder: str) -> None:
    # Some versions of rsync quote a path for the other shell; none quotes what it starts.
    start = f"cd {shlex.quote(folder)} && umask 077 && rsync"
    words = ["rsync", "--timeout=60", "-e", shlex.join(host.ssh()), f"--rsync-path={start}"]

    def attempt() -> None:
        host.connect()
        nothing = subprocess.DEVNULL
        done = run([*words, *arguments], stdin=nothing, capture_output=True, start_new_session=True)
        if done.returncode in (0, _VANISHED):
            return
        lines = done.stderr.splitlines()
        if any(b"rsync" in line and b"not found" in line for line in lines):
            problem = f"rsync is not installed on {host.name}"
            raise KitError(problem, "ask its administrators for it")
        if b"is your shell clean" in done.stderr:
            problem = f"start-up files on {host.name} print something, which rsync cannot read"
            fix = f"have them print only in a terminal: `ssh {host.name} true` must say nothing"
            raise KitError(f"{problem}: {host.progress}", fix)
        # rsync's first line names the file that there was no room for, its last one only the code.
        failures = [line for line in lines if line.startswith(b"rsync: ") and b"failed" in line]
        is_cut = done.returncode in _CUT or done.returncode < 0
        if is_cut and not any(b" write failed " in line for line in failures):
            why = last_line(done.stderr, but="rsync")
            host.raise_broken(why or f"rsync ended with code {done.returncode}")
        fix = f"{host.progress}; free space and rights there: df -h {shlex.quote(folder)}, quota -s"
        what = last_line(failures[0] if failures else done.stderr)
        raise KitError(f"rsync with {host.name} failed: {what}", fix)

    host.retried(attempt)
