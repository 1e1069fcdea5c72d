"""A terminal with a program in it, and somebody who types: terminal.py STEP... -- COMMAND... A program of its own, for the controller.

A STEP is what is typed when the words before it have been seen: WORDS=>TEXT; ^C is Ctrl-C, and HANG-UP closes the terminal.
Prints what was shown, and ends with the command's exit code; 129 after HANG-UP, when the command is gone.
"""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time

PATIENCE_S = 150


def main() -> int:
    split = sys.argv.index("--")
    steps = [step.split("=>", 1) for step in sys.argv[1:split]]
    process, terminal = pty.fork()
    if process == 0:
        os.execvp(sys.argv[split + 1], sys.argv[split + 1 :])
    signal.alarm(2 * PATIENCE_S)  # this process may hang, too
    seen = 0
    shown = ""
    for words, text in [*steps, ("", "")]:
        shown += wait_for(terminal, shown[seen:], words)
        if words not in shown[seen:]:
            print(f"{shown}\nterminal.py: waited in vain for: {words}")
            os.close(terminal)
            return 1
        if not words:
            break
        seen = shown.index(words, seen) + len(words)
        if text == "HANG-UP":
            os.close(terminal)
            os.waitpid(process, 0)
            print(shown)
            return 129
        os.write(terminal, b"\x03" if text == "^C" else f"{text}\n".encode())
    _, status = os.waitpid(process, 0)
    print(shown)
    return os.waitstatus_to_exitcode(status)


def wait_for(terminal: int, before: str, words: str) -> str:
    """What is shown until those words are there; until the program closes the terminal where there are none."""
    more = ""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s and not (words and words in before + more):
        if not select.select([terminal], [], [], 0.2)[0]:
            continue
        try:
            data = os.read(terminal, 65536)
        except OSError:  # closed on the other side
            break
        if not data:
            break
        more += data.decode("utf-8", "replace")
    return more


sys.exit(main())
