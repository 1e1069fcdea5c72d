"""Files that appear all together and whole, and replace nothing unless the user says so."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Callable, NamedTuple

from kit.errors import KitError, UsageError


class _File(NamedTuple):
    path: Path
    unfinished: Path


class Files:
    def __init__(self, force: bool) -> None:
        self.force = force
        self.said: list[str] = []  # what became of each
        self._files: list[_File] = []

    def add(self, path: Path, text: str, *, keep: bool = False) -> None:
        """Gets a file ready beside its place. One that says something else stays where the user wants it so.

        Where nobody can be asked, it is an error; or with `keep`, it stays, too.
        """
        try:
            if self._stays(path, text, keep):
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=path.suffix, dir=path.parent)
            self._files.append(_File(path, Path(name)))
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                os.fchmod(file.fileno(), 0o666 & ~_umask())
        except OSError as error:
            self._forget()
            raise _cannot(path, error) from None
        except BaseException:
            self._forget()
            raise

    def now_at(self, path: Path) -> Path:
        """Where the content of a file is before it is written."""
        return next((file.unfinished for file in self._files if file.path == path), path)

    def write(self, check: Callable[[], None]) -> None:
        """Gives all of them their names, if the check raises nothing."""
        new: list[Path] = []
        try:
            for file in self._files:
                if file.path.suffix == ".py" and not os.path.lexists(file.path):  # the check of a job looks for its program
                    os.replace(file.unfinished, file.path)
                    new.append(file.path)
            check()
            for file in self._files:
                if file.path not in new:
                    os.replace(file.unfinished, file.path)
        except BaseException as error:
            for path in new:
                path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise _cannot(self._files[-1].path, error) from None
            raise
        else:
            self.said += [f"wrote {_short(file.path)}" for file in self._files]
        finally:
            self._forget()

    def _stays(self, path: Path, text: str, keep: bool) -> bool:
        if not os.path.lexists(path):
            return False
        if path.is_file() and path.read_bytes() == text.encode():
            self.said.append(f"{_short(path)} says this already")
            return True
        if self.force:
            return False
        if sys.stdin.isatty():
            if _agreed(path):
                return False
        elif not keep:
            raise UsageError(f"{_short(path)} is there already, and says something else", "to replace it: kit init --force; or move it away")
        self.said.append(f"kept {_short(path)}, which says something else" + ("" if sys.stdin.isatty() else "; to replace it: kit init --force"))
        return True

    def _forget(self) -> None:
        for file in self._files:
            file.unfinished.unlink(missing_ok=True)
        self._files = []


def _agreed(path: Path) -> bool:
    try:
        return input(f"kit: {_short(path)} is there already, and says something else; replace it? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D
        return False


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _cannot(path: Path, error: OSError) -> KitError:
    return KitError(f"cannot write {_short(path)}: {error.strerror}", f"make {path.parent} writable, or start from another folder; free space: df -h")


def _short(path: Path) -> str:
    """As the user would type it."""
    relative, home = os.path.relpath(path), os.path.expanduser("~")
    if not relative.startswith(".."):
        return relative
    return "~" + str(path)[len(home) :] if str(path).startswith(home + os.sep) else str(path)
