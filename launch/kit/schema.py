"""What an editor needs to check and complete a job file or a cluster profile: a JSON schema, made from the parsers that read them.

Draft 7, which yaml-language-server and with it VS Code, Neovim and others understand best. A schema sees values where the
parsers see text, so it takes a number or a boolean wherever its text would do. It never refuses what kit takes; what it
cannot see, such as whether a file exists, kit still says.
"""

from __future__ import annotations

import json
from typing import Any, Callable

from kit import arrays, cluster, foreign, inherit, plugins, sbatch, values
from kit import job as jobs

Schema = dict[str, Any]

DRAFT = "http://json-schema.org/draft-07/schema#"
_NAME = "^[A-Za-z_][A-Za-z0-9_]*$"
_TEXT: Schema = {"type": ["string", "number", "boolean"], "pattern": "^[^\\u0000]*$"}  # a pattern says nothing of what is no string
_FULL: Schema = {**_TEXT, "minLength": 1}
_PROSE: Schema = {"type": _TEXT["type"], "minLength": 1}
_OPTION: Schema = {"type": ["string", "number", "boolean", "null"], "pattern": "^[^\\u0000-\\u001f\\u007f]*$"}
_LINE: Schema = {**_TEXT, "pattern": "^[^\\u0000-\\u001f\\u007f]+$"}


def text(*, of_cluster: bool) -> str:
    found = _of_cluster() if of_cluster else _of_job()
    return json.dumps({"$schema": DRAFT, **found, "definitions": {"option": _OPTION}}, indent=2, ensure_ascii=False)


def of(parse: Callable[..., Any]) -> Schema:
    """What one parser takes; anything where it is not known here, which a test finds."""
    return _SHAPES.get(parse, {})


def _of_job() -> Schema:
    choices = {
        "runtime": plugins.choices("runtimes"),
        "launcher": plugins.names("launchers"),
        "stage": plugins.choices("stages"),
        "on_preempt": plugins.names("preempt"),
    }
    keys = {key: _key(facts.parse, facts.meaning) for key, facts in jobs.KEYS.items()}
    for key, names in choices.items():
        keys[key] = {"description": keys[key]["description"], "enum": names}
    keys["cluster"]["examples"] = cluster.names()
    return {"title": "A job of kit", **_mapping(keys), "required": ["command"]}


def _of_cluster() -> Schema:
    keys = {key: _key(parse, cluster.MEANINGS.get(key, "")) for key, parse in cluster.parsers().items()}
    keys["runtime"] = {"description": keys["runtime"]["description"], "enum": plugins.choices("runtimes")}
    keys["gpu_directive"] = {"description": keys["gpu_directive"]["description"], "enum": list(cluster.GPU_DIRECTIVES)}
    keys["scratch"]["pattern"] = "^[/$][^\\u0000-\\u001f\\u007f]*$"
    return {"title": "A cluster profile of kit", **_mapping(keys)}


def _key(parse: Callable[..., Any], meaning: str) -> Schema:
    return {"description": meaning, **of(parse)}


def _mapping(keys: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": keys, "additionalProperties": False}


def _count(least: int) -> Schema:
    digits = "[0-9]{1,9}" if not least else "(?=0*[1-9])[0-9]{1,9}"
    return {"anyOf": [{"type": "integer", "minimum": least, "maximum": 999_999_999}, {"type": "string", "pattern": f"^{digits}$"}]}


def _nodes() -> Schema:
    number = "0*[1-9][0-9]*"
    return {"anyOf": [*_count(1)["anyOf"], {"type": "string", "pattern": f"^{number}-{number}$"}]}


def _time() -> Schema:
    return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": _searched(values.TIME.pattern, "UNLIMITED", "INFINITE")}]}


def _flag() -> Schema:
    words = [_any_case(word) for word in ("true", "yes", "on", "false", "no", "off")]
    return {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": f"^({'|'.join(words)})$"}]}


def _command() -> Schema:
    tools = "|".join(foreign.FIRST_WORDS)
    line = {"type": ["string", "number", "boolean"], "pattern": f"^(?![ \\t\\r\\n]*({tools})([ \\t\\r\\n]|$))[^\\u0000]*[^ \\t\\r\\n\\u0000][^\\u0000]*$"}
    first = {**_FULL, "not": {"enum": foreign.FIRST_WORDS}}
    return {"anyOf": [line, {"type": "array", "minItems": 1, "items": [first], "additionalItems": _TEXT}]}


def _mounts() -> Schema:
    target = "/[^:\\u0000]+"
    line = {"type": "string", "pattern": f"^({target}|[^:\\u0000]+:{target}(:r[ow])?)$", "examples": ["/data", "/data:/data:ro"]}
    absolute = {"type": "string", "pattern": "^/[^\\u0000]+$"}
    keys = {"source": _FULL, "target": absolute, "read_only": _flag()}
    whole = {**_mapping(keys), "required": ["source"], "anyOf": [{"required": ["target"]}, {"properties": {"source": absolute}}]}
    one = {"anyOf": [line, whole]}
    return {"anyOf": [*one["anyOf"], {"type": "array", "items": one}]}


def _variable() -> Schema:
    """The name of one that a job may set."""
    not_free = [{"enum": sorted(values.OWNED | values.BASH)}, {"pattern": f"^({_ours()}|BASH_FUNC_)"}]
    return {"pattern": _NAME, "not": {"anyOf": not_free}}


def _ours() -> str:
    return "|".join(_any_case(prefix) for prefix in ("KIT_", "SLURM_", "SLURMD_", "TORCHELASTIC_"))


def _environment() -> Schema:
    return {"type": "object", "propertyNames": _variable(), "additionalProperties": _TEXT}


def _inherit() -> Schema:
    """A name or a pattern, or a list of them; what no job may set, no pattern takes."""
    not_free = [{"enum": sorted({*inherit.FLAGS, *values.OWNED, *values.BASH})}, {"pattern": f"^({_ours()}|BASH_FUNC_)[A-Za-z0-9_]*$"}]
    word = {"type": "string", "pattern": _searched(inherit.PATTERN.pattern), "not": {"anyOf": not_free}}
    return {"anyOf": [word, {"type": "array", "items": word}]}


def _secrets() -> Schema:
    """Their names, or for each where its value is; never the value."""
    keys = {"env": {"type": "string", "pattern": _NAME}, "file": _FULL, "command": _FULL}
    source = {"anyOf": [{"const": "env"}, {**_mapping(keys), "minProperties": 1, "maxProperties": 1}]}
    names = {"type": "array", "uniqueItems": True, "items": {"type": "string", **_variable()}}
    return {"anyOf": [names, {"type": "object", "propertyNames": _variable(), "additionalProperties": source}]}


def _array() -> Schema:
    return {
        "anyOf": [{"type": "integer", "minimum": 0, "maximum": arrays.LAST}, {"type": "string", "minLength": 1, "pattern": _searched(arrays.SYNTAX.pattern)}]
    }


def _sweep() -> Schema:
    column: Schema = {"type": "array", "minItems": 1, "items": _TEXT}
    grid = {"type": "object", "minProperties": 1, "propertyNames": {"pattern": _NAME}, "additionalProperties": column}
    point = {**grid, "additionalProperties": _TEXT}
    return {"anyOf": [grid, {"type": "array", "minItems": 1, "items": point}]}


def _options() -> Schema:
    """Options that nobody knows are taken, for a site's plug-ins may have added them."""
    value = {"$ref": "#/definitions/option"}
    refused = "|".join(sorted(sbatch.refused()))
    names = {"pattern": "^(--|(?!--))[A-Za-z0-9-]{2,}$", "not": {"pattern": f"^(--)?({refused})$"}}
    return {"type": "object", "propertyNames": names, "properties": dict.fromkeys(sbatch.options(), value), "additionalProperties": value}


def _expectation() -> Schema:
    above_0 = {"type": "number", "exclusiveMinimum": 0}
    digits = {"type": "string", "minLength": 1}
    return _mapping({"allreduce_busbw_GBps": {"anyOf": [above_0, digits]}, "share": {"anyOf": [{**above_0, "maximum": 1}, digits]}})


def _searched(pattern: str, *words: str) -> str:
    """A pattern of Python's that has to fit the whole text, as JavaScript writes it; it has no way to ignore the case of some words alone."""
    for word in words:
        pattern = pattern.replace(word, _any_case(word.lower()))
    return "^" + pattern.replace("\\d", "[0-9]").replace("\\Z", "") + "$"


def _any_case(word: str) -> str:
    return "".join(f"[{letter.upper()}{letter.lower()}]" if letter.isalpha() else letter for letter in word)


_SHAPES: dict[Callable[..., Any], Schema] = {
    values.text: _PROSE,
    values.line: _LINE,
    values.command: _command(),
    values.nodes: _nodes(),
    values.count: _count(1),
    values.count_or_zero: _count(0),
    values.time_limit: _time(),
    values.code: {"enum": list(values.CODE)},
    values.mounts: _mounts(),
    values.environment: _environment(),
    values.inherit: _inherit(),
    values.secrets: _secrets(),
    values.array: _array(),
    values.sweep: _sweep(),
    values.options: _options(),
    values.expectation: _expectation(),
    values.flag: _flag(),
}
