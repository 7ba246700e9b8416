"""The transform yaml, which reads plain values: no aliases, no tags, no types but those of JSON."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import yaml

from stretto.model.errors import CapacityError, StrettoError
from stretto.transforms.json_text import unfenced
from stretto.transforms.refusals import MAX_DEPTH, check_depth, check_unicode, text_of, too_deep, unreadable

MAX_CHARS = 50_000
"""Largest number of characters that are read: the parser is slow."""

_INTEGER = re.compile(r"[-+]?\d{1,18}")
_DECIMAL = re.compile(r"[-+]?(?:\d{1,18}\.\d{0,18}|\.\d{1,18})(?:[eE][-+]?\d{1,2})?")
_WORDS: dict[str, object] = {"true": True, "false": False}


def yaml_value(_: object) -> Callable[[object], object]:
    """Return the transform `yaml`: the value of a text in YAML, which may stand in a Markdown code block."""
    return _read


def _read(value: object) -> object:
    text = unfenced(text_of(value))
    if len(text) > MAX_CHARS:
        raise CapacityError(f"a YAML of {len(text)} characters; at most {MAX_CHARS} are read")
    check_depth(text, has_strings=False)  # the parser's time grows with the square of the depth
    root: list[Any] = []
    stack: list[Any] = [root]
    keys: list[Any] = [None]
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            match event:
                case yaml.AliasEvent():
                    raise unreadable("plain YAML", text, "it has an alias")
                case yaml.ScalarEvent():
                    _put(stack, keys, _scalar(event))
                case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                    if len(stack) > MAX_DEPTH:
                        raise too_deep()
                    new: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
                    _put(stack, keys, new)
                    stack.append(new)
                    keys.append(None)
                case yaml.CollectionEndEvent():
                    stack.pop()
                    keys.pop()
    except StrettoError:
        raise
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise unreadable("YAML", text, " ".join(str(error).split())[:80]) from error
    if not root or root[0] is None:
        raise unreadable("YAML", text, "it is empty")
    check_unicode(text, root[0])
    return root[0]


def _put(stack: list[Any], keys: list[Any], value: Any) -> None:
    """Add a value to the innermost list; to a mapping, as a key or the value of the last key."""
    inner = stack[-1]
    if isinstance(inner, list):
        inner.append(value)
    elif keys[-1] is None:
        if isinstance(value, dict | list):
            raise ValueError("a key is a list or a mapping")
        keys[-1] = "null" if value is None else str(value)
    else:
        inner[keys[-1]] = value
        keys[-1] = None


def _scalar(event: Any) -> object:
    text: str = event.value
    if event.style is not None:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    if text.casefold() in _WORDS:
        return _WORDS[text.casefold()]
    return None if text.casefold() in ("", "null", "~") else text
