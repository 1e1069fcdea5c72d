"""kit itself on a login node: one copy of it with the packages it needs, for the commands that have to run over there."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import kit
from kit import assets, keys
from kit.cluster import Cluster
from kit.errors import KitError
from kit.remote.host import Host

ASSETS = ("containers", "Dockerfile", "env", "launch/scripts", "train")  # as pyproject.toml puts them into a wheel
_LEFT_OUT = {"__pycache__", "_assets"}
_OF_A_CHECKOUT = {"runs", "images"}  # what was tried out in it
# Python starts a folder that has this: no variable is needed, which a job would inherit.
_MAIN = "from kit.cli import main\n\nmain()\n"
# What these two import is what travels. typing_extensions: another Python may need it where this one does not.
_IMPORTED = """\
import sys
before = set(sys.modules)
import typer, yaml
try:
    import typing_extensions
except ImportError:
    pass
for name in {name.partition(".")[0] for name in set(sys.modules) - before}:
    print(name, getattr(sys.modules.get(name), "__file__", None) or "")
"""


class Copy(NamedTuple):
    """Of kit, over there."""

    host: Host
    folder: str  # kit's own over there
    place: str  # the copy, in it
    python: str


def put(site: Cluster, doing: str) -> Copy:
    """Copies kit there, unless it is there. Raises KitError where no Python there runs it."""
    host, files = Host(site.ssh), _files()
    name = f"kit-{kit.__version__}-{_digest(files)}"
    done = host.call("whole::look", site.ssh_dir, name, doing=doing)
    facts = _facts(done.stdout)
    host.refuse_foreign(facts.get("foreign"))
    if "folder" not in facts:
        why = " ".join(done.stderr.split())
        raise KitError(f"cannot make kit's folder on {host.name}: {why}", "name one that you may write to: the profile's key `ssh_dir`")
    folder = facts["folder"]
    if "python" in facts and "whole" not in facts:
        facts = {**facts, **_send(host, folder, name, files, doing)}
    if "python" not in facts:
        what = f"{host.name} has no Python that runs this kit (python3 there: {facts.get('version') or 'none'})"
        own = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        fix = f"have a newer one on PATH there, such as {own}, which runs it here (kit needs 3.9; its packages here may need more)"
        raise KitError(f"{what}: {doing}", f"{fix}; submit, status, logs, why and cancel need none there")
    return Copy(host, folder, f"{folder}/{name}", facts["python"])


def _facts(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition(" ") for line in text.splitlines())}


def _send(host: Host, folder: str, name: str, files: dict[str, Path], doing: str) -> dict[str, str]:
    print(f"kit: copying kit to {host.name}, once", file=sys.stderr, flush=True)
    part = f"{folder}/.{name}.{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(prefix="kit-") as place:
        for inside, path in files.items():
            copy = Path(place, inside)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
        Path(place, "__main__.py").write_text(_MAIN, encoding="utf-8")
        host.call("login::make_marked", part, doing=doing)
        host.send(Path(place), part, doing=doing)
    return _facts(host.call("whole::settle", part, f"{folder}/{name}", doing=doing).stdout)


def _files() -> dict[str, Path]:
    """{path in the copy: path here}, as in a wheel: kit, its assets, and the packages of others without what is compiled."""
    package, root = Path(kit.__file__).resolve().parent, assets.folder("containers").parent
    found = {f"kit/{name}": path for name, path in _below(package)}
    for asset in ASSETS:
        inside = [(name, path) for name, path in _below(root / asset, _OF_A_CHECKOUT) if not keys.is_key(name)]
        found |= {f"kit/_assets/{asset}/{name}".rstrip("/"): path for name, path in inside}
    for name, place in packages().items():
        found |= {f"{name}/{inside}" if inside else place.name: path for inside, path in _below(place)}
    return found


def _below(place: Path, but: Collection[str] = ()) -> list[tuple[str, Path]]:
    if place.is_file():
        return [("", place)]
    found = []
    for folder, folders, names in os.walk(place):
        folders[:] = sorted(set(folders) - _LEFT_OUT - set(but))
        found += [(os.path.relpath(os.path.join(folder, name), place), Path(folder, name)) for name in sorted(names)]
    return [(name, path) for name, path in found if path.suffix not in (".so", ".pyd", ".pyc")]


def packages() -> dict[str, Path]:
    """{name: folder or file} of all that Typer and PyYAML import and Python does not have itself."""
    import sysconfig

    # A process of its own: in this one, much else may have been imported.
    done = subprocess.run([sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True, cwd="/")
    standard = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    found = {}
    for line in sorted(done.stdout.splitlines()):
        name, _, file = line.partition(" ")
        origin = Path(file)
        place = origin.parent if origin.name == "__init__.py" else origin
        # What is compiled stays here: yaml does without that part.
        if origin.suffix == ".py" and os.path.realpath(place.parent) not in standard:
            found[name] = place
    return found


def _digest(files: dict[str, Path]) -> str:
    digest = hashlib.sha256(_MAIN.encode())
    for name, path in sorted(files.items()):
        content = path.read_bytes()
        digest.update(f"{name}\0{path.stat().st_mode & 0o111}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
    return digest.hexdigest()[:16]
