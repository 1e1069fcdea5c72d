"""Small wheels for tests that let pip install something."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, version: str, requires: tuple[str, ...] = (), script: str = "") -> None:
    """Write a wheel with one module of the same name."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"VERSION = {version!r}\ndef main():\n    print('said')\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(f"Requires-Dist: {line}\n" for line in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{script} = {name}:main\n"

    def row(path: str) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[path].encode()).digest()).decode().rstrip("=")
        return f"{path},sha256={digest},{len(files[path])}\n"

    files[f"{info}/RECORD"] = "".join(map(row, files)) + f"{info}/RECORD,,\n"
    place = folder / name.replace("_", "-") / f"{name}-{version}-py3-none-any.whl"
    place.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(place, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
