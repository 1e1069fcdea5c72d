"""The command line: options in, tables out. A process goes on in entry.py."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command that was typed. Ctrl-C ends it without a traceback while kit loads, too."""
    if sys.platform == "win32":
        fix = "install kit in its Linux, WSL: wsl --install"
        sys.exit(f"kit: it runs on Linux and macOS, and not on Windows itself\n  fix: {fix}")
    if sys.getfilesystemencoding() != "utf-8" and "shown_in" not in sys._xoptions:
        _start_in_utf_8()
    try:
        from kit.cli import entry  # it takes seconds from a file server
    except KeyboardInterrupt:
        sys.exit(130)
    entry.main()


def _start_in_utf_8() -> NoReturn:
    """Start again where the locale has another encoding: kit writes names to files in UTF-8.

    The bytes of a name then stay what they are. The terminal goes on in its own encoding.
    """
    shown_in = getattr(sys.stdout, "encoding", "utf-8")
    with open("/proc/self/cmdline", "rb") as file:  # sys.orig_argv is new in Python 3.10
        words = file.read().split(b"\0")[1:-1]
    options = ["-X", "utf8", "-X", f"shown_in={shown_in}"]
    os.execv(sys.executable, [sys.executable, *options, *map(os.fsdecode, words)])  # noqa: S606
