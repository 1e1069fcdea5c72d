"""Distributed PyTorch in containers on Slurm: a job file becomes plain bash scripts."""

import importlib

__version__ = "0.1.0"

# What `import kit` offers, and where it is: loaded when it is named, so that a command of kit
# does not wait for what it does not use. __init__.pyi has the types.
_PLACES = {
    **dict.fromkeys(("load", "render", "submit", "find"), "kit.api.python"),
    "RunHandle": "kit.api.handle",
    **dict.fromkeys(("KitError", "KitWarning", "TimedOut", "UsageError"), "kit.base.errors"),
}
__all__ = ["KitError", "KitWarning", "RunHandle", "TimedOut", "UsageError"]
__all__ += ["find", "load", "render", "submit"]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'kit' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
