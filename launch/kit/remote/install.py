"""Install kit on a login node: one copy with the packages it needs, in a folder of kit's own."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable

import kit
from kit.base import assets
from kit.base.errors import KitError
from kit.base.quote import bash
from kit.config.profiles import Cluster
from kit.plan import key_files
from kit.remote import landing, records, rsync
from kit.remote.ssh import ANSWER_S, Host

# As pyproject.toml puts them into a wheel.
ASSETS = ("containers", "Dockerfile", "env", "launch/scripts", "train")
_LEFT_OUT = {"__pycache__", "_assets"}
_OF_A_CHECKOUT = {"runs", "images", "data", "checkpoints"}  # what was tried out in it
# Python runs a folder that has the first: a job would inherit a variable in its place.
_PROGRAMS = {
    "__main__.py": "from kit.cli import main\n\nmain()\n",
    "service.py": """\
import os

umask = os.umask(0o077)  # before Python makes folders for what it compiles
from kit.remote.service import main

main(umask)
""",
}
# All that these two import travels, and typing_extensions, which another Python may need.
_IMPORTED = """\
import json, os, sys, sysconfig
before = set(sys.modules)
import typer, yaml, rich.console, rich.text
try:
    import typing_extensions
except ImportError:
    pass
standard = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
found = {}
for name in {name.partition(".")[0] for name in set(sys.modules) - before}:
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    place = os.path.dirname(file) if os.path.basename(file) == "__init__.py" else file
    if file.endswith(".py") and os.path.realpath(os.path.dirname(place)) not in standard:
        found[name] = place
print(json.dumps(found))
"""
_PYTHONS = "python3 python3.{15..9}"
# At some sites only the start-up file of login shells, which this is not, puts Slurm on PATH.
_PROFILE = "source /etc/profile </dev/null >/dev/null 2>&1"
# Starts the first Python that is new enough, with the program behind this script; else tells the
# version of python3 and the modules.
_LANDING = """\
for python in {pythons}; do
  if python="$(type -P "$python")" &&
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' </dev/null 2>/dev/null; then
    "$python" - "$1"
    exit
  fi
done
tidy() {{ tr -cd '[:alnum:]/._ \\n-' | tail -n 5 | tr '\\n' ' '; }}
version="$(python3 --version </dev/null 2>&1 | head -n 1 | tidy)"
modules="$(bash -lc 'module -t avail python' </dev/null 2>&1 | sed 's/ *(.*//' |
  grep -iE '^([^ ]*[^a-z])?python3?[/-]?3[.](9|[1-9][0-9])[^ :]*$' | sort -uV | tidy)"
printf '\\n%s {{"version": "%s", "modules": "%s"}}\\n' "$1" "$version" "$modules"
"""


@dataclass(frozen=True)
class Copy:
    """kit on a login node."""

    host: Host
    place: str  # the copy, in kit's folder
    setup: str  # bash before Python
    folder: str  # kit's own
    python: str
    work: str  # the project's folder
    history: int  # bytes of the history of runs

    def ask(self, what: str, timeout_s: float = ANSWER_S, **values: Any) -> dict[str, Any]:
        """Return the answer of `service`. Raise Unreachable, or KitError with its problem."""
        text = json.dumps({"what": what, **values})
        return self.host.ask(f'{self.setup}{self._service()} "$1"', text, timeout_s)

    def line(self, what: str, mark: str = "-", **values: Any) -> str:
        """Return the command for ssh that has `service` answer a request with the connection."""
        text = json.dumps({"what": what, **values})
        request = base64.urlsafe_b64encode(text.encode()).decode()
        script = f"{self.setup}exec {self._service()} {mark} {request}"
        quoted = script.replace("'", "'\\''")  # for any shell that a user may have
        return f"bash -c '{quoted}'"

    def _service(self) -> str:
        return f"{bash(self.python)} {bash(f'{self.place}/service.py')}"


def put(site: Cluster, here: str, progress: str, say: Callable[[str], None]) -> Copy:
    """Return the copy of kit, made unless it exists, for a project that is `here`."""
    host, files = Host(site.ssh, say, progress), _files()
    setup, pythons = _python(site)
    name = f"kit-{kit.__version__}-{_digest(files)}"
    request = {"folder": site.ssh_dir, "kit": name, "origin": records.origin(here)}
    request |= {"name": os.path.basename(here) or "root", "ssh_python": site.ssh_python}
    source = Path(landing.__file__).read_text(encoding="utf-8")
    program = f"{source}\nmain(sys.argv[1], **{request!a})\n"
    found = host.ask(f"{setup}{_LANDING.format(pythons=pythons)}", program)
    refusal, folder = found.get("refusal"), found.get("folder")
    if refusal == "foreign":
        what = "it has other files, and kit did not make it"
        fix = "name another folder, only for kit, in the profile: `ssh_dir: kit-jobs`"
        raise KitError(f"{folder} on {host.name} is not kit's: {what}", fix)
    if refusal == "open":
        what = "it is not yours, or others can write to it"
        own = f"if it is yours: chmod go-w {bash(str(folder))}"
        fix = f"{own}; else name another: `ssh_dir: kit-jobs`"
        raise KitError(f"{folder} on {host.name} is not for you alone: {what}", fix)
    if refusal:
        fix = "name one that you can write to: the profile's key `ssh_dir`"
        raise KitError(f"cannot make kit's folder {folder} on {host.name}: {refusal}", fix)
    if "python" not in found:
        raise _no_python(site, found, progress)
    facts = {fact: found[fact] for fact in ("folder", "python", "work", "history")}
    copy = Copy(host, f"{folder}/{name}", setup, **facts)
    if not found["has_copy"]:
        _send(copy, files)
    return copy


def _python(site: Cluster) -> tuple[str, str]:
    """Return the lines of bash before Python, and the names to look for Python by."""
    wanted = site.ssh_python
    if wanted.startswith("module "):
        return f"{_PROFILE}; {wanted} </dev/null >/dev/null 2>&1; ", _PYTHONS
    pythons = bash(wanted) if wanted else _PYTHONS
    return f"type -P sbatch >/dev/null || {_PROFILE}; ", pythons


def _no_python(site: Cluster, found: dict[str, Any], progress: str) -> KitError:
    version = str(found.get("version", "")).strip()
    what = f"`ssh_python: {site.ssh_python}`" if site.ssh_python else "python3"
    has = version if re.match(r"Python \d", version) else "none"
    problem = f"{site.ssh} has no Python 3.9 or later on PATH ({what} there: {has}): {progress}"
    modules = str(found.get("modules", "")).split()
    if modules:
        key = f"`ssh_python: module load {modules[-1]}`"
        fix = f"name it in the profile, by a path or one of its modules, such as {key}"
        fix += f"; it has {', '.join(modules)}" if modules[1:] else ""
    else:
        keys = "`ssh_python: /path/to/python3`, or `ssh_python: module load NAME`"
        fix = f"name one in the profile: {keys}; look: ssh {site.ssh} module avail python"
    return KitError(problem, fix)


def _send(copy: Copy, files: dict[str, Path]) -> None:
    """Copy kit to a folder of its own, and have it give that its name."""
    copy.host.say(f"copying kit to {copy.host.name}, once")
    folder, name = os.path.split(copy.place)
    part = f"{folder}/.{name}.{secrets.token_hex(4)}"
    make = f"umask 077; mkdir {bash(part)} && : >{bash(f'{part}/{landing.MARK}')}"
    with tempfile.TemporaryDirectory(prefix="kit-") as place:
        for inside, path in files.items():
            target = Path(place, inside)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)  # with a new date, which landing.renew_dates renews
        for program, text in _PROGRAMS.items():
            Path(place, program).write_text(text, encoding="utf-8")
        copy.host.ask(f"{make}; printf '\\n%s {{}}\\n' \"$1\"")
        rsync.send(copy.host, Path(place), part, [rsync.PRIVATE])
    unnamed = replace(copy, place=part)
    try:
        unnamed.ask("place kit", part=part, place=copy.place, python=copy.python)
    except KitError as error:
        if _is_named(copy):
            return  # the answer was lost, and where the request came again, no service was there
        own = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        key = f"`ssh_python: /path/to/{own}`"
        fix = f"name one in the profile that does, such as {own}, which runs it here: {key}"
        why = f"does not run kit: {error.problem}"
        raise KitError(f"{copy.python} on {copy.host.name} {why}", fix) from None


def _is_named(copy: Copy) -> bool:
    """Return whether the copy of kit has its name. Raise Unreachable."""
    copy.host.forget_connection()
    mark = bash(f"{copy.place}/{landing.MARK}")
    is_there = f"[[ -f {mark} ]] && is_there=true || is_there=false"
    answer = """printf '\\n%s {"is_there": %s}\\n' "$1" "${is_there}\""""
    return bool(copy.host.ask(f"{is_there}; {answer}")["is_there"])


# ---------------------------------------------------------------- what travels


def _files() -> dict[str, Path]:
    """Return {path in the copy: path here}, as in a wheel.

    These are kit, its assets, and the packages of others without compiled modules.
    """
    package, root = Path(kit.__file__).resolve().parent, assets.folder("containers").parent
    found = {f"kit/{name}": path for name, path in _below(package)}
    for asset in ASSETS:
        for name, path in _below(root / asset, _OF_A_CHECKOUT):
            if not key_files.is_key(name):
                found[f"kit/_assets/{asset}/{name}".rstrip("/")] = path
    for package_name, place in packages().items():
        for name, path in _below(place):
            found[f"{package_name}/{name}" if name else place.name] = path
    return found


def _below(place: Path, but: Collection[str] = ()) -> list[tuple[str, Path]]:
    if place.is_file():
        return [("", place)]
    found = []
    for folder, folders, names in os.walk(place):
        folders[:] = sorted(set(folders) - _LEFT_OUT - set(but))
        for name in sorted(names):
            found.append((os.path.relpath(os.path.join(folder, name), place), Path(folder, name)))
    return [
        (name, path) for name, path in found if path.suffix not in (".so", ".pyd", ".pyc", ".pt")
    ]


def packages() -> dict[str, Path]:
    """Return {name: folder or file} of all packages that Typer and PyYAML import."""
    # A new process: this one may have imported much else. PyYAML does without compiled modules.
    line = [sys.executable, "-c", _IMPORTED]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd="/")
    return {name: Path(place) for name, place in sorted(json.loads(done.stdout).items())}


def _digest(files: dict[str, Path]) -> str:
    digest = hashlib.sha256(json.dumps(_PROGRAMS).encode())
    for name, path in sorted(files.items()):
        content = path.read_bytes()
        facts = f"{name}\0{path.stat().st_mode & 0o111}\0{len(content)}\0"
        digest.update(facts.encode("utf-8", "surrogateescape") + content)
    return digest.hexdigest()[:16]
