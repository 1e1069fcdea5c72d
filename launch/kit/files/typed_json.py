"""Write dataclasses as JSON, and read them back by the names of their fields.

What is read may be damaged, a stranger's or another version's: unknown names are passed over, and
a value of another type is noted by its name and left empty. Named tuples and typed dictionaries
are read in the same way; the latter keep unknown names and lack what is missing.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Annotated, Any, Callable, TypeVar, Union, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")

NOT_WRITTEN = {"is_written": False}  # the metadata of a field that is no part of the JSON
# No path and no argument can hold NUL or half of a surrogate pair; those from DC80 on stand for
# bytes that are not UTF-8.
_NO_TEXT = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
# What a value must be beside its type; Annotated[type, check] has a check of its own.
_CHECKS: dict[type, Callable[[Any], bool]] = {
    str: lambda value: not _NO_TEXT.search(value),
    int: lambda value: 0 <= value <= 10**9,
    float: lambda value: abs(value) < 1e11,  # seconds since 1970
    bool: lambda value: True,
}


def plain(value: Any) -> Any:
    """Return a value as JSON writes it: dataclasses and named tuples by the names of fields."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    kind: Any = type(value)
    if _has_fields(kind):
        return {name: plain(getattr(value, name)) for name in _kinds(kind)}
    return [plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def read(kind: type[Kind], given: Mapping[str, Any], faults: list[str], place: str = "") -> Kind:
    """Return the object of this kind that a mapping describes; add the wrong names to `faults`."""
    kinds: dict[str, Any] = _kinds(kind)  # type: ignore[arg-type] # a class is hashable
    found = {}
    for name in filter(given.__contains__, kinds):
        try:
            found[name] = _value(kinds[name], given[name], faults, f"{place}{name}")
        except ValueError:
            faults.append(f"{place}{name}")
    if _is_typed_dict(kind):
        unknown = {name: item for name, item in given.items() if name not in kinds}
        return kind(**found, **unknown)
    missing = {name: empty(kinds[name]) for name in required(kind) if name not in found}
    return kind(**missing, **found)


def empty(kind: Any) -> Any:
    """Return the value that stands for an unknown one: no text, 0, None."""
    origin = get_origin(kind)
    if origin is Annotated:
        return empty(get_args(kind)[0])
    if origin is Union:
        return None
    return read(kind, {}, []) if _has_fields(kind) else (origin or kind)()


def required(kind: Any) -> set[str]:
    """Return the names of the fields without a default."""
    if not dataclasses.is_dataclass(kind):
        return set(_kinds(kind)) - set(kind._field_defaults)
    unset = dataclasses.MISSING
    return {
        item.name
        for item in dataclasses.fields(kind)
        if item.default is unset and item.default_factory is unset
    }


def _value(kind: Any, value: Any, faults: list[str], place: str) -> Any:
    """Return a value of this kind. Raise ValueError where it is of another."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _scalar(arguments[0], value, arguments[1])
    if origin is Union:
        return None if value is None else _value(arguments[0], value, faults, place)
    if origin is tuple:
        return _row(arguments, value)
    if origin is dict:
        items = _mapping(value).items()
        return {_item(str, name): _item(arguments[1], item) for name, item in items}
    if _has_fields(kind):
        return read(kind, _mapping(value), faults, f"{place}.")
    return _scalar(kind, value, _CHECKS[kind])


def _scalar(kind: Any, value: Any, check: Callable[[Any], bool]) -> Any:
    if type(value) not in ((int, float) if kind is float else (kind,)) or not check(value):
        raise ValueError
    return value


def _mapping(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ValueError
    return value


def _row(kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        raise ValueError
    return tuple(map(_item, kinds, value))


def _item(kind: Any, value: Any) -> Any:
    """Return a value within another one, of which no part may be wrong or missing."""
    faults: list[str] = []
    found = _value(kind, value, faults, "")
    if faults or (_has_fields(kind) and required(kind) - value.keys()):
        raise ValueError
    return found


def _has_fields(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) or hasattr(kind, "_fields") or _is_typed_dict(kind)


def _is_typed_dict(kind: Any) -> bool:
    return hasattr(kind, "__total__")


@functools.cache
def _kinds(kind: Any) -> dict[str, Any]:
    """Return {name: type} of the fields that are written."""
    hints = get_type_hints(kind, include_extras=True)
    if not dataclasses.is_dataclass(kind):
        return hints
    written = (f for f in dataclasses.fields(kind) if f.metadata.get("is_written", True))
    return {item.name: hints[item.name] for item in written}
