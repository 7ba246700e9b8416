"""Declarations of outputs and inputs of semantic functions: settings of what an LLM generates, transforms."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from stretto.errors import ConfigError
from stretto.tasks import Decode
from stretto.transforms.table import steps_of

_KNOWN: Mapping[str, dataclasses.Field[object]] = {
    field.name: field
    for field in dataclasses.fields(Decode)
    if field.name not in ("items", "max_items", "fallback", "schema_if_able", "logprobs")
}


class Output:
    """The declaration of an output of a semantic function: the default value of the parameter with its name.

        def joke(topic: Input, text: Output = Output(max_tokens=50, stop=("\\n",))) -> None: ...

    Args:
        transform: chain of transforms that makes the output's value of its text, such as 'json_path "$.name"'
            (see `stretto.transforms.table`). Within the same prompt the output stays as it is.
        settings: fields of `stretto.tasks.Decode` that say how to generate a text.

    Raises:
        ConfigError: there is no such setting or transform, or a value cannot be used.
    """

    def __init__(self, *, transform: str | Sequence[str] = (), **settings: object) -> None:
        self.steps = steps_of(transform)
        self.settings = checked(settings)

    def within(self, settings: Mapping[str, object]) -> Output:
        """Return this output with `settings` where it has none of its own."""
        return Output(transform=self.steps, **{**settings, **self.settings})


class Input:
    """The declaration of an input of a semantic function whose value is transformed before it stands in the
    prompt: the default value of the parameter with its name.

        def sum_up(parts: Input = Input(transform='join ", "')) -> None: ...

    Raises:
        ConfigError: there is no such transform, or its argument cannot be used.
    """

    def __init__(self, *, transform: str | Sequence[str]) -> None:
        self.steps = steps_of(transform)


def checked(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings of a generation, with lists as tuples.

    Raises:
        ConfigError: there is no such setting, or its value is of the wrong type or out of range.
    """
    found: dict[str, object] = {}
    for name, value in settings.items():
        if name not in _KNOWN:
            raise ConfigError(f"generation has no setting {name!r}; it has {', '.join(_KNOWN)}")
        if name in ("stop", "stop_tokens"):
            found[name] = _tuple(name, value)
        elif not _fits(value, str(_KNOWN[name].type)):
            raise ConfigError(f"{name} must be {_KNOWN[name].type}, got {value!r:.80}")
        else:
            found[name] = value
    for name, least in (("max_tokens", 1), ("temperature", 0), ("top_k", 0), ("min_p", 0), ("min_tokens", 0)):
        if name in found and found[name] < least:  # type: ignore[operator]
            raise ConfigError(f"{name} must be at least {least}, got {found[name]!r}")
    if not 0 < found.get("top_p", 1.0) <= 1:  # type: ignore[operator]
        raise ConfigError(f"top_p must be more than 0 and at most 1, got {found['top_p']!r}")
    return found


def _tuple(name: str, value: object) -> tuple[object, ...]:
    kind = str if name == "stop" else int
    values = (value,) if isinstance(value, kind) else value
    if not isinstance(values, list | tuple) or not all(type(item) is kind and item != "" for item in values):
        raise ConfigError(f"{name} must be a list of {kind.__name__}, none empty, got {value!r:.80}")
    return tuple(values)


def _fits(value: object, annotation: str) -> bool:
    match annotation:
        case "int":
            return type(value) is int
        case "float":
            return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
        case "bool":
            return isinstance(value, bool)
    return isinstance(value, str)
