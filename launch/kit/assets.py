"""Finds the folders that travel with the package: scripts, profiles, recipes and training programs."""

from __future__ import annotations

from pathlib import Path


def folder(name: str) -> Path:
    """`launch/scripts`, `env`, `containers` or `train`: in the installed package, or in the checkout it runs from."""
    package = Path(__file__).resolve().parent
    installed = package / "_assets" / name
    return installed if installed.is_dir() else package.parent.parent / name
