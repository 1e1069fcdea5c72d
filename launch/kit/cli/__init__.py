"""The command line: options in, tables out. A process begins in entry.py."""

from kit.cli.entry import main

__all__ = ["main"]
