"""The table of transforms, by name, and the reading of their text form.

A transform is written as its name, or its name and an argument in JSON: `strip`, `split ","`,
`json_path "$.name"`, `enum ["yes", "no"]`. Several make a chain, one a line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

from stretto.model.errors import ConfigError
from stretto.transforms import json_text, lists, words
from stretto.transforms.regex import regex
from stretto.transforms.xml_text import xml
from stretto.transforms.yaml_text import yaml_value

Make: TypeAlias = Callable[[object], Callable[[object], object]]
"""A function from the argument of a transform (None if it is left out) to what it does to a value."""

TRANSFORMS: Mapping[str, Make] = MappingProxyType(
    {
        "strip": words.strip,
        "enum": words.enum,
        "boolean": words.boolean,
        "number": words.number,
        "datetime": words.date_and_time,
        "split": lists.split,
        "join": lists.join_items,
        "comma": lists.comma,
        "numbered": lists.numbered,
        "markdown": lists.markdown,
        "json": json_text.json_value,
        "json_path": json_text.json_path,
        "json_schema": json_text.json_schema,
        "to_json": json_text.to_json,
        "regex": regex,
        "xml": xml,
        "yaml": yaml_value,
    }
)
"""Table of the transforms that there are."""

_TAKES_NONE = frozenset(
    {"strip", "boolean", "number", "comma", "numbered", "markdown", "json", "to_json", "yaml"}
)


def steps_of(transforms: str | Sequence[str]) -> tuple[str, ...]:
    """Return the steps of a chain of transforms, checked.

    Raises:
        ConfigError: there is no such transform, or its argument cannot be used.
    """
    given = transforms.splitlines() if isinstance(transforms, str) else transforms
    if not isinstance(given, Sequence) or not all(isinstance(step, str) for step in given):
        raise ConfigError(f"transforms are texts such as 'strip' or 'split \",\"', got {given!r:.80}")
    steps = tuple(step.strip() for step in given if step.strip())
    chain(steps)
    return steps


@lru_cache(maxsize=256)
def chain(steps: tuple[str, ...]) -> Callable[[object], object]:
    """Return the function that applies a chain of transforms.

    It raises BadReply or CapacityError for a value that does not fit.

    Raises:
        ConfigError: there is no such transform, or its argument cannot be used.
    """
    functions = [_made(step) for step in steps]

    def apply(value: object) -> object:
        for function in functions:
            value = function(value)
        return value

    return apply


def _made(step: str) -> Callable[[object], object]:
    name, _, written = step.partition(" ")
    if name not in TRANSFORMS:
        raise ConfigError(f"there is no transform {name!r:.40}; there are {', '.join(TRANSFORMS)}")
    argument = None
    if written.strip():
        if name in _TAKES_NONE:
            raise ConfigError(f"{name} takes no argument, got {written!r:.80}")
        try:
            argument = json.loads(written)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"the argument of {name} is no JSON: {written!r:.80}") from error
    return TRANSFORMS[name](argument)
