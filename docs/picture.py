#!/usr/bin/env python3
"""Makes docs/run.svg, the README's picture, from a real run: starts it under a terminal and draws
what it printed.

make picture
"""

from __future__ import annotations

import io
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
COMMAND = "kit run train/digits.yaml"
EPOCHS_SHOWN = ("epoch 1/", "epoch 2/", "epoch 3/")


def run() -> str:
    """What the command prints on a terminal."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "train", Path(folder) / "train")
        main, side = pty.openpty()
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "118",
        }
        process = subprocess.Popen(
            COMMAND.split(), cwd=folder, stdout=side, stderr=side, env=environment
        )
        os.close(side)
        printed = b""
        while True:
            try:
                printed += os.read(main, 65536)
            except OSError:  # the terminal's other end is closed
                break
        if process.wait() != 0:
            sys.exit(printed.decode())
    return printed.decode().replace("\r\n", "\n")


def shorten(printed: str) -> list[str]:
    """The run's lines, with the many epochs in the middle as one line that says so."""
    lines = printed.rstrip().splitlines()
    epochs = [line for line in lines if re.search(r"epoch \d+/", line)]
    hidden = [line for line in epochs[:-1] if not any(shown in line for shown in EPOCHS_SHOWN)]
    if hidden:
        place = lines.index(hidden[0])
        lines = [line for line in lines if line not in hidden]
        lines.insert(place, f"        ({len(hidden)} more epochs)")
    return lines


def main() -> None:
    console = Console(record=True, width=118, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {COMMAND}", style="bold"))
    for line in shorten(run()):
        style = "green" if "accuracy" in line else "cyan" if line.startswith("kit: ") else ""
        console.print(Text(line, style=style), soft_wrap=True)
    # No font from outside: the reader's own monospace one will do.
    svg = re.sub(
        r"@font-face \{.*?\}\s*",
        "",
        console.export_svg(title="kit", unique_id="kit"),
        flags=re.DOTALL,
    )
    (ROOT / "docs" / "run.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
