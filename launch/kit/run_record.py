"""The kinds of the values in run.json: what another version, a damage or somebody's editor left there is not believed."""

from __future__ import annotations

import re
from typing import Any, Callable

Kind = Callable[[Any], bool]

# No path and no argument can hold NUL or half of a surrogate pair; those from DC80 on stand for bytes that are no UTF-8.
_NO_TEXT = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
MOST = 1_000_000  # of nodes, and of what else is counted in a plan


def text(value: Any) -> bool:
    return isinstance(value, str) and not _NO_TEXT.search(value)


def array(value: Any) -> bool:
    from kit import arrays

    return text(value) and arrays.is_sound(value)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= 10**9


def _count(value: Any) -> bool:
    return type(value) is int and 0 < value <= MOST


def _mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _or_none(kind: Kind) -> Kind:
    return lambda value: value is None or kind(value)


def _each(kind: Kind) -> Kind:
    return lambda value: isinstance(value, list) and all(map(kind, value))


def _row(*kinds: Kind) -> Kind:
    return lambda value: isinstance(value, list) and len(value) == len(kinds) and all(kind(item) for kind, item in zip(kinds, value))


RECORD: dict[str, Kind] = {
    "kit": text,
    "python": text,
    "created": text,
    "submitted": text,
    "invocation": _each(text),
    "job_id": _or_none(text),
    "plan": _mapping,
    "code": _mapping,
    "git": _or_none(_mapping),
    "shell": _mapping,
    "cluster": text,
    "is_member": _flag,
    "sbatch_options": _each(text),
    "token": text,
    "local": _flag,
    "pid": _number,
    "host": text,
    "edited": _each(text),
    "cancelled": _each(text),
    "rerun_of": text,
}
PLAN: dict[str, Kind] = {
    "name": text,
    "run_dir": text,
    "nodes": _count,
    "spares": _number,
    "bad_nodes": text,
    "left_out": _each(_row(text, text, lambda value: isinstance(value, (int, float)))),
    "processes_per_node": _count,
    "gpus_per_node": _number,
    "tasks_per_node": _count,
    "runtime": text,
    "why_runtime": text,
    "launcher": text,
    "max_restarts": _number,
    "image": _or_none(text),
    "fingerprint": _or_none(text),
    "image_sha256": _or_none(text),
    "workdir": text,
    "mounts": _each(_row(text, text, _flag, text)),
    "command": _each(text),
    "env": _each(_row(text, text)),
    "header": _each(_row(text, _or_none(text))),
    "stage": text,
    "why_stage": text,
    "on_preempt": text,
    "checkpoint_s": _number,
    "max_requeues": _or_none(_number),
    "ready_timeout_s": _number,
    "scratch": text,
    "remap_root": _flag,
    "cluster": text,
    "array": _or_none(array),
    "sweep": _each(_row(text, _each(text))),
    "profile": text,
    "inherited": _each(text),
    "secrets": _each(_row(text, text, text, text)),
    "remote": _or_none(_row(text, text, text, text, _or_none(text), _or_none(text))),
}
CODE: dict[str, Kind] = {"live": _flag, "why": text, "folder": text, "files": _number, "bytes": _number, "used": _each(text), "linked": _number}
GIT: dict[str, Kind] = {"revision": text, "diff": lambda value: isinstance(value, str)}  # NUL is in files, too
_PARTS = {"plan": PLAN, "code": CODE, "git": GIT}


def sound(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record without the values that are of another kind. Keys that are not known stay."""
    kept = _sound(record, RECORD)
    return {**kept, **{name: _sound(kept[name], kinds) for name, kinds in _PARTS.items() if kept.get(name)}}


def faults(record: dict[str, Any]) -> list[str]:
    """Return the names of the values that are of another kind, such as plan.nodes."""
    kept = sound(record)
    inner = [f"{name}.{key}" for name in _PARTS if kept.get(name) is not None for key in record[name] if key not in kept[name]]
    return [*(key for key in record if key not in kept), *inner]


def _sound(values: dict[str, Any], kinds: dict[str, Kind]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in kinds or kinds[name](value)}
