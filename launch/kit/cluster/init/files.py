"""Write several files together and whole, and replace none unless the user agrees."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Callable, Optional

from kit.base.errors import KitError, UsageError
from kit.config.paths import short
from kit.files import full_disk, safe_write


class Files:
    """Files that get ready beside their places, and then their names."""

    def __init__(self, agrees: Optional[Callable[[str], bool]]) -> None:
        self.agrees = agrees  # to a file's being replaced; None where nobody can be asked
        self.outcomes: list[str] = []  # a sentence on what happened to each file
        self._texts: dict[Path, str] = {}

    def add(self, path: Path, text: str, *, keep: bool = False) -> None:
        """Note a file to be written, unless the user keeps one that says something else.

        If nobody can be asked, such a file stays with `keep`, and is an error without it.
        """
        try:
            if not self._stays(path, text, keep):
                self._texts[path] = text
        except OSError as error:
            raise _failure(path, error) from None

    def write(self, check: Callable[[dict[Path, Path]], None]) -> None:
        """Write all files, unless the check raises an error: it gets {file: where its text is}."""
        beside: dict[Path, Path] = {}
        new: list[Path] = []
        path = Path()
        try:
            for path, text in self._texts.items():
                beside[path] = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
                path.parent.mkdir(parents=True, exist_ok=True)
                with safe_write.anew(beside[path]) as file:
                    file.write(text.encode())
                if path.suffix == ".py" and not os.path.lexists(path):
                    os.replace(beside.pop(path), path)  # the check of a job looks for its program
                    new.append(path)
            check(beside)
            for path, unfinished in beside.items():
                os.replace(unfinished, path)
        except BaseException as error:
            for made in (*new, *beside.values()):
                with contextlib.suppress(OSError):
                    made.unlink()
            if isinstance(error, OSError):
                raise _failure(path, error) from None
            raise
        self.outcomes += [f"wrote {_short(path)}" for path in self._texts]

    def _stays(self, path: Path, text: str, keep: bool) -> bool:
        if not os.path.lexists(path):
            return False
        if path.is_file() and path.read_bytes() == text.encode():
            self.outcomes.append(f"{_short(path)} is up to date")
            return True
        problem = f"{_short(path)} exists already, with other contents"
        if self.agrees and self.agrees(problem):
            return False
        if not self.agrees and not keep:
            raise UsageError(problem, "to replace it: kit init --force; or move it away")
        fix = "" if self.agrees else "; to replace it: kit init --force"
        self.outcomes.append(f"kept {_short(path)}, whose contents differ{fix}")
        return True


def _failure(path: Path, error: OSError) -> KitError:
    fix = full_disk.fix(error, f"make {path.parent} writable, or start from another folder")
    return KitError(f"cannot write {_short(path)}: {error.strerror}", fix)


def _short(path: Path) -> str:
    """Return the path as the user would type it."""
    relative, home = short(path), os.path.expanduser("~")
    is_at_home = relative.startswith(home + os.sep)
    return f"~{relative[len(home) :]}" if is_at_home else relative
