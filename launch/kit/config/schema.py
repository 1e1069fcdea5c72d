"""Make the JSON schemas by which editors check and complete job files and cluster profiles.

They are made from the parsers that read these files. Draft 7 is what yaml-language-server, and with
it VS Code, Neovim and others, understand best. A schema sees values where the parsers see text, so
it accepts a number or a boolean wherever its text would do. It never refuses what kit accepts; kit
itself reports what a schema cannot see, such as a missing file.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable

from kit.config import (
    bandwidth_target,
    command,
    inherit,
    job,
    mount_list,
    notify,
    other_tools,
    profiles,
    requirements,
    sbatch_options,
    secrets,
    sweeps,
    values,
    variables,
)
from kit.config.keys import Key
from kit.slurm import task_numbers

Schema = dict[str, Any]

DRAFT = "http://json-schema.org/draft-07/schema#"
_NAME = "^[A-Za-z_][A-Za-z0-9_]*$"
_SCALAR = ["string", "number", "boolean"]
_TEXT: Schema = {"type": _SCALAR, "pattern": "^[^\\u0000]*$"}  # a pattern applies to strings alone
_FULL: Schema = {**_TEXT, "minLength": 1}
_PROSE: Schema = {"type": _SCALAR, "minLength": 1}
_OPTION: Schema = {"type": [*_SCALAR, "null"], "pattern": "^[^\\u0000-\\u001f\\u007f]*$"}
_SIGN = "[^\\u0000-\\u001f\\u007f]"  # what a line may hold
_LINE: Schema = {**_TEXT, "pattern": f"^{_SIGN}+$"}


def text(*, of_cluster: bool) -> str:
    """Return the schema of a cluster profile, or of a job file, as JSON."""
    title = f"A {'cluster profile' if of_cluster else 'job'} of kit"
    keys = _keys(profiles.KEYS if of_cluster else job.KEYS)
    needed: Schema = (
        {} if of_cluster else {"oneOf": [{"required": [key]} for key in ("command", "script")]}
    )
    definitions = {"option": _OPTION}
    schema = {"$schema": DRAFT, "title": title, **keys, **needed, "definitions": definitions}
    return json.dumps(schema, indent=2, ensure_ascii=False)


def shape_of(key: Key) -> Schema:
    """Return the schema of a key's values, or {}; a test finds parsers without a shape."""
    return {"enum": key.choices()} if key.choices else _SHAPES.get(key.parse, {})


def _keys(declared: dict[str, Key]) -> Schema:
    found = {}
    for name, key in declared.items():
        examples = {"examples": key.examples()} if key.examples else {}
        found[name] = {"description": key.meaning, **shape_of(key), **examples}
    return _mapping(found)


def _mapping(keys: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": keys, "additionalProperties": False}


def _any_of(*shapes: Schema) -> Schema:
    return {"anyOf": list(shapes)}


def _count(least: int) -> Schema:
    digits = "[0-9]{1,9}" if not least else "(?=0*[1-9])[0-9]{1,9}"
    return _any_of(
        {"type": "integer", "minimum": least, "maximum": 999_999_999},
        {"type": "string", "pattern": f"^{digits}$"},
    )


def _nodes() -> Schema:
    number = "0*[1-9][0-9]*"
    return _any_of(*_count(1)["anyOf"], {"type": "string", "pattern": f"^{number}-{number}$"})


def _time() -> Schema:
    pattern = _to_javascript(values.TIME.pattern, "UNLIMITED", "INFINITE")
    return _any_of({"type": "integer", "minimum": 0}, {"type": "string", "pattern": pattern})


def _flag() -> Schema:
    words = [_any_case(word) for word in ("true", "yes", "on", "false", "no", "off")]
    return _any_of({"type": "boolean"}, {"type": "string", "pattern": f"^({'|'.join(words)})$"})


def _command() -> Schema:
    tools = "|".join(other_tools.FIRST_WORDS)
    no_tool = f"(?![ \\t\\r\\n]*({tools})([ \\t\\r\\n]|$))"
    line = {"type": _SCALAR, "pattern": f"^{no_tool}[^\\u0000]*[^ \\t\\r\\n\\u0000][^\\u0000]*$"}
    first = {**_FULL, "not": {"enum": other_tools.FIRST_WORDS}}
    words = {"type": "array", "minItems": 1, "items": [first], "additionalItems": _TEXT}
    return _any_of(line, words)


def _lines() -> Schema:
    blank = "[ \\t\\r\\n]*"
    return {"type": _SCALAR, "pattern": f"^{blank}[^ \\t\\r\\n\\u0000][^\\u0000]*$"}


def _requirements() -> Schema:
    line = {
        "type": "string",
        "pattern": f"^{requirements.PATTERN}$",
        "examples": ["requirements.txt", "einops==0.8.1"],
    }
    return _any_of(line, {"type": "array", "items": line})


def _mounts() -> Schema:
    target = "/[^:\\u0000]+"
    line = {
        "type": "string",
        "pattern": f"^({target}|[^:\\u0000]+:{target}(:r[ow])?)$",
        "examples": ["/data", "/data:/data:ro"],
    }
    absolute = {"type": "string", "pattern": "^/[^\\u0000]+$"}
    keys = {"source": _FULL, "target": absolute, "read_only": _flag(), "on_nodes": _flag()}
    whole = {
        **_mapping(keys),
        "required": ["source"],
        "anyOf": [{"required": ["target"]}, {"properties": {"source": absolute}}],
    }
    return _any_of(line, whole, {"type": "array", "items": _any_of(line, whole)})


def _variable() -> Schema:
    """Return the schema of the name of a variable that a job may set."""
    refused = {"enum": sorted(variables.OWNED | variables.BASH)}
    return {
        "pattern": _NAME,
        "not": _any_of(refused, {"pattern": f"^({_own_prefixes()}|BASH_FUNC_)"}),
    }


def _own_prefixes() -> str:
    return "|".join(_any_case(prefix) for prefix in variables.OWN_PREFIXES)


def _environment() -> Schema:
    return {"type": "object", "propertyNames": _variable(), "additionalProperties": _TEXT}


def _inherit() -> Schema:
    """Return the schema of a name or a pattern, or a list of them, but none that no job may set."""
    refused = {"enum": sorted({*inherit.FLAGS, *variables.OWNED, *variables.BASH})}
    word = {
        "type": "string",
        "pattern": _to_javascript(inherit.PATTERN.pattern),
        "not": _any_of(refused, {"pattern": f"^({_own_prefixes()}|BASH_FUNC_)[A-Za-z0-9_]*$"}),
    }
    return _any_of(word, {"type": "array", "items": word})


def _secrets() -> Schema:
    """Return the schema of a list of names, or of a mapping from names to sources."""
    keys = {"env": {"type": "string", "pattern": _NAME}, "file": _FULL, "command": _FULL}
    source = _any_of({"const": "env"}, {**_mapping(keys), "minProperties": 1, "maxProperties": 1})
    # To kit, which reads text alone, a truth value is a name as well.
    name = _any_of({"type": "string", **_variable()}, {"type": "boolean"})
    return _any_of(
        {"type": "array", "uniqueItems": True, "items": name},
        {"type": "object", "propertyNames": _variable(), "additionalProperties": source},
    )


def _notify() -> Schema:
    event = {"enum": list(notify.EVENTS)}
    text = "|".join(notify.EVENTS)
    events = {"type": "string", "pattern": f"^({text})(,({text}))*$"}
    words = {"type": "array", "minItems": 1, "items": [_FULL], "additionalItems": _TEXT}
    line = {"type": _SCALAR, "pattern": "^[^\\u0000]*[^ \\t\\r\\n\\u0000][^\\u0000]*$"}
    keys = {
        "webhook": {"type": "string", "pattern": _NAME},
        "command": _any_of(line, words),
        "on": _any_of(events, {"type": "array", "minItems": 1, "items": event}),
    }
    way = [{"required": ["webhook"]}, {"required": ["command"]}]
    return {**_mapping(keys), "anyOf": way}


def _array() -> Schema:
    pattern = _to_javascript(task_numbers.SYNTAX.pattern)
    return _any_of(
        {"type": "integer", "minimum": 0, "maximum": task_numbers.LAST},
        {"type": "string", "minLength": 1, "pattern": pattern},
    )


def _sweep() -> Schema:
    column: Schema = {"type": "array", "minItems": 1, "items": _TEXT}
    grid = {
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": _NAME},
        "additionalProperties": column,
    }
    point = {**grid, "additionalProperties": _TEXT}
    return _any_of(grid, {"type": "array", "minItems": 1, "items": point})


def _options() -> Schema:
    """Return the schema of sbatch options, unknown ones included: a site's plug-ins add some."""
    value = {"$ref": "#/definitions/option"}
    refused = "|".join(sorted(sbatch_options.refused()))
    names = {"pattern": "^(--|(?!--))[A-Za-z0-9-]{2,}$", "not": {"pattern": f"^(--)?({refused})$"}}
    return {
        "type": "object",
        "propertyNames": names,
        "properties": dict.fromkeys(sbatch_options.options(), value),
        "additionalProperties": value,
    }


def _expectation() -> Schema:
    above_0 = {"type": "number", "exclusiveMinimum": 0}
    digits = {"type": "string", "minLength": 1}
    keys = {
        "allreduce_busbw_GBps": _any_of(above_0, digits),
        "share": _any_of({**above_0, "maximum": 1}, digits),
    }
    return _mapping(keys)


def _to_javascript(pattern: str, *words: str) -> str:
    """Return a Python pattern for a whole text as JavaScript writes it, `words` in any case.

    JavaScript has no way to ignore the case of some words alone.
    """
    for word in words:
        pattern = pattern.replace(word, _any_case(word.lower()))
    return "^" + pattern.replace("\\d", "[0-9]").replace("\\Z", "") + "$"


def _any_case(word: str) -> str:
    return re.sub(r"[^\W\d_]", lambda found: f"[{found[0].upper()}{found[0].lower()}]", word)


_SHAPES: dict[Callable[..., Any], Schema] = {
    values.text: _PROSE,
    values.line: _LINE,
    command.parse: _command(),
    values.lines: _lines(),
    values.nodes: _nodes(),
    values.count: _count(1),
    values.count_or_zero: _count(0),
    values.time_limit: _time(),
    values.health: {"type": "string", "pattern": f"^({values.QUICK}|{_SIGN}*/{_SIGN}*)$"},
    values.duration: {"type": "string", "pattern": f"^{values.DURATION.pattern}$"},
    mount_list.parse: _mounts(),
    requirements.parse: _requirements(),
    variables.environment: _environment(),
    inherit.parse: _inherit(),
    secrets.parse: _secrets(),
    notify.parse: _notify(),
    values.array: _array(),
    sweeps.parse: _sweep(),
    values.options: _options(),
    bandwidth_target.parse: _expectation(),
    values.flag: _flag(),
    values.unpack: _any_of(_flag(), {"enum": ["auto"]}),
    profiles.scratch: {**_LINE, "pattern": "^[/$][^\\u0000-\\u001f\\u007f]*$"},
    profiles.host: {**_LINE, "pattern": f"^{profiles.HOST.pattern}$"},
    profiles.kits_folder: _LINE,
    profiles.python: {**_LINE, "pattern": f"^{profiles.PYTHON.pattern}$"},
}
