"""Transforms of JSON: json, json_path, json_schema and to_json."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from stretto.model.errors import BadReply, ConfigError
from stretto.transforms.json_schema import Schema
from stretto.transforms.refusals import check_depth, check_unicode, text_of, unreadable

_FENCE = re.compile(r"```[a-zA-Z]{0,16}[ \t]{0,8}\n")
_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\[(\d{1,9})\]|\[(\*)\]|\[('[^']*'|\"[^\"]*\")\]")


def json_value(_: object) -> Callable[[object], object]:
    """Return the transform `json`: the value of a text in JSON, which may stand in a Markdown code block."""
    return json_of_text


def json_path(path: object) -> Callable[[object], object]:
    """Return the transform `json_path "$.a[0]['b c'][*].d"`: a part of a JSON value, or of a text in JSON.
    The values that `[*]` leads to become a list.

    Raises:
        ConfigError: the path is of another form.
    """
    steps = _steps(path)

    def find(value: object) -> object:
        values: list[Any] = [json_of_text(value) if isinstance(value, str) else value]
        for step in steps:
            values = [inner for one in values for inner in _inner(one, step, str(path))]
        if "*" in steps:
            return values
        if values[0] is None:
            raise BadReply(f"the value at {path} is null")
        return values[0]

    return find


def json_schema(schema: object) -> Callable[[object], object]:
    """Return the transform `json_schema {...}`: a JSON value that follows a schema.

    Raises:
        ConfigError: the schema uses a keyword or a type that is not known.
    """
    checked = Schema(schema)

    def check(value: object) -> object:
        found = json_of_text(value) if isinstance(value, str) else value
        checked.check(found)
        return found

    return check


def to_json(_: object) -> Callable[[object], object]:
    """Return the transform `to_json`: a value as a text in JSON."""

    def write(value: object) -> object:
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise BadReply(f"a {type(value).__name__} cannot be written as JSON: {error}") from error

    return write


def json_of_text(value: object) -> object:
    """Return the value of a text in JSON, which may stand in a Markdown code block.

    Raises:
        BadReply: it is no JSON, or null.
        CapacityError: it is too long, or nested too deeply.
    """
    text = unfenced(text_of(value))
    check_depth(text)
    try:
        found = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise unreadable("JSON", text, str(error)[:80]) from error
    if found is None:
        raise unreadable("value", text, "it is null")
    check_unicode(text, found)
    return found


def unfenced(text: str) -> str:
    """Return what stands in the first code block of a text; all of the text if there is none."""
    if (fence := _FENCE.search(text)) is None:
        return text.strip()
    end = text.find("```", fence.end())
    return text[fence.end() : end if end >= 0 else len(text)].strip()


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is no number")


def _finite(number: str) -> float:
    if not math.isfinite(found := float(number)):
        raise ValueError(f"{number} is too large")
    return found


def _steps(path: object) -> tuple[str | int, ...]:
    if not isinstance(path, str) or not path.startswith("$"):
        raise ConfigError(f"json_path needs a path such as '$.name' or '$[0]', got {path!r:.80}")
    steps: list[str | int] = []
    end = 1
    while end < len(path):
        match = _STEP.match(path, end)
        if match is None:
            raise ConfigError(f"json_path: {path[end:]!r:.40} in {path!r:.80} is no step like .a, [0] or [*]")
        name, index, star, quoted = match.groups()
        steps.append(int(index) if index else star or (f".{quoted[1:-1]}" if quoted else f".{name}"))
        end = match.end()
    return tuple(steps)


def _inner(value: Any, step: str | int, path: str) -> list[Any]:
    """Return what a step of a path leads to: names of members begin with a dot."""
    match value, step:
        case list(), "*":
            return value
        case dict(), "*":
            return list(value.values())
        case list(), int() if step < len(value):
            return [value[step]]
        case dict(), str() if step != "*" and step[1:] in value:
            return [value[step[1:]]]
    raise BadReply(f"nothing at {path}: no {str(step)!r} in {_shown(value)}")


def _shown(value: object) -> str:
    try:
        return json.dumps(value)[:80]
    except TypeError:  # it is, or has in it, no value of JSON, such as a chunk of a document
        return f"{value!r:.80}"
