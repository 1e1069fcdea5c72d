"""Make the JSON schemas by which editors check and complete job files and cluster profiles.

A schema has the keys, their meanings, and the shapes of their values. It never refuses what kit
accepts; the parsers, which see text where a schema sees values, judge the rest. Draft 7 is what
yaml-language-server, and with it VS Code, Neovim and others, understand best.
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
    shell_words,
    sweeps,
    values,
    variables,
)
from kit.config.keys import Key
from kit.slurm import task_numbers

Schema = dict[str, Any]

DRAFT = "http://json-schema.org/draft-07/schema#"


def text(*, of_cluster: bool) -> str:
    """Return the schema of a cluster profile, or of a job file, as JSON."""
    title = f"A {'cluster profile' if of_cluster else 'job'} of kit"
    keys = _keys(profiles.KEYS if of_cluster else job.KEYS)
    needed: Schema = {} if of_cluster else {"oneOf": _required("command", "script")}
    schema = {"$schema": DRAFT, "title": title, **keys, **needed}
    return json.dumps(schema, indent=2, ensure_ascii=False)


def shape_of(key: Key) -> Schema:
    """Return the schema of a key's values, or {}; a test finds parsers without a shape."""
    if isinstance(key.parse, values.Pattern):
        of_text = _FULL if key.parse.may_be_number else _STRING
        return {**of_text, "pattern": key.parse.pattern}
    return {"enum": key.choices()} if key.choices else _SHAPES.get(key.parse, {})


def _keys(declared: dict[str, Key]) -> Schema:
    found = {}
    for name, key in declared.items():
        examples = {"examples": key.examples()} if key.examples else {}
        found[name] = {"description": key.meaning, **shape_of(key), **examples}
    return _mapping(found)


def _mapping(keys: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": keys, "additionalProperties": False}


def _required(*names: str) -> list[Schema]:
    return [{"required": [name]} for name in names]


def _variables(shape: Schema) -> Schema:
    """Return the schema of a mapping from names of variables to values of this shape."""
    return {"type": "object", "propertyNames": _NAME, "additionalProperties": shape}


def _list_of(shape: Schema, least: int = 0) -> Schema:
    return {"type": "array", "minItems": least, "items": shape}


def _any_of(*shapes: Schema) -> Schema:
    return {"anyOf": list(shapes)}


def _one_or_more(shape: Schema) -> Schema:
    return _any_of(shape, _list_of(shape))


def _number(least: int, pattern: str = "[0-9]+") -> Schema:
    """Return the schema of a number, or of a text; "pattern" is for texts alone."""
    return {"type": ["integer", "string"], "minimum": least, "pattern": f"^({pattern})$"}


def _words(words: str) -> str:
    """Return a pattern for words in any case of letters, which JavaScript has no sign for."""
    return re.sub("[a-z]", lambda found: f"[{found[0].upper()}{found[0]}]", words)


_SCALAR = ["string", "number", "boolean"]
_TEXT: Schema = {"type": _SCALAR}
# YAML reads `5` and `true` as no text, though a user may mean just that: kit takes them as text.
_FULL: Schema = {"type": _SCALAR, "minLength": 1}
# Where they can only be a mistake.
_STRING: Schema = {"type": "string", "minLength": 1}
_NAME: Schema = {"type": ["string", "boolean"], "pattern": f"^{shell_words.NAME}$"}
_ABOVE_0: Schema = {"type": ["number", "string"], "exclusiveMinimum": 0}
_WORDS = _list_of(_TEXT, 1)
_PROGRAM: Schema = {
    **_WORDS,
    "items": [{**_TEXT, "not": {"enum": list(other_tools.FIRST_WORDS)}}],
    "additionalItems": _TEXT,
}
_TOOLS = "|".join(other_tools.FIRST_WORDS)
_FLAG: Schema = {
    "type": ["boolean", "string"],
    "pattern": f"^({_words('|'.join(values.FLAGS))})$",
}
_TARGET: Schema = {"type": "string", "pattern": "^/"}
_MOUNT = _any_of(
    {
        "type": "string",
        "pattern": "^(/[^:]+|[^:]+:/[^:]+(:r[ow])?)$",
        "examples": ["/data", "/data:/data:ro"],
    },
    {
        **_mapping({"source": _FULL, "target": _TARGET, "read_only": _FLAG, "on_nodes": _FLAG}),
        "required": ["source"],
    },
)
_SECRET = {
    **_mapping({"env": _NAME, "file": _FULL, "command": _FULL}),
    "minProperties": 1,
    "maxProperties": 1,
}
_NOTIFY = _mapping(
    {
        "webhook": _NAME,
        "command": _any_of(_FULL, _WORDS),
        "on": _any_of(_STRING, _list_of({"enum": list(notify.EVENTS)}, 1)),
    }
)
_POINT = {**_variables(_TEXT), "minProperties": 1}
_OPTION: Schema = {"type": [*_SCALAR, "null"]}
_OPTIONS: Schema = {
    "type": "object",
    "propertyNames": {
        "pattern": "^(--|(?!--))[A-Za-z0-9-]{2,}$",
        "not": {"pattern": f"^(--)?({'|'.join(sorted(sbatch_options.refused()))})$"},
    },
    "properties": dict.fromkeys(sbatch_options.KNOWN, _OPTION),
    "additionalProperties": _OPTION,  # a site's plug-ins add some
}
_SHAPES: dict[Callable[..., Any], Schema] = {
    values.text: _FULL,
    values.line: _FULL,
    values.lines: _FULL,
    command.parse: _any_of({**_FULL, "pattern": f"^(?!({_TOOLS})( |$))"}, _PROGRAM),
    values.nodes: _number(1, "[0-9]+(-[0-9]+)?"),
    values.count: _number(1),
    values.count_or_zero: _number(0),
    values.time_limit: _number(
        0, f"([0-9]+-)?[0-9]+(:[0-9]+){{0,2}}|{_words('unlimited|infinite')}"
    ),
    values.duration: {**_STRING, "pattern": f"^{values.DURATION.pattern}$"},
    mount_list.parse: _one_or_more(_MOUNT),
    requirements.parse: _one_or_more(
        {**_STRING, "examples": ["requirements.txt", "einops==0.8.1"]}
    ),
    variables.environment: _variables(_TEXT),
    inherit.parse: _one_or_more(_STRING),
    secrets.parse: _any_of(
        {**_list_of(_NAME), "uniqueItems": True}, _variables(_any_of({"const": "env"}, _SECRET))
    ),
    notify.parse: {**_NOTIFY, "anyOf": _required("webhook", "command")},
    values.array: {**_number(0, task_numbers.SYNTAX.pattern), "minLength": 1},
    sweeps.parse: _any_of(
        {**_variables(_list_of(_TEXT, 1)), "minProperties": 1}, _list_of(_POINT, 1)
    ),
    values.options: _OPTIONS,
    bandwidth_target.parse: _mapping(dict.fromkeys(bandwidth_target.KEYS, _ABOVE_0)),
    values.flag: _FLAG,
    values.unpack: _any_of(_FLAG, {"const": "auto"}),
    profiles.mounts: _one_or_more(_MOUNT),
    profiles.scratch: {**_STRING, "pattern": "^[/$]"},
    profiles.kits_folder: _FULL,
}
