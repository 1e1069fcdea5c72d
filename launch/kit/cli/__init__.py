"""The command line: options in, tables out. A process goes on in entry.py."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command that was typed. Ctrl-C ends it without a traceback while kit loads, too."""
    try:
        from kit.cli import entry  # it takes seconds from a file server
    except KeyboardInterrupt:
        sys.exit(130)
    entry.main()
