"""Declarations of outputs and inputs of semantic functions: settings of what an LLM generates, transforms."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from stretto.llm.output import output
from stretto.llm.output.sampling import check_sampling
from stretto.model.errors import ConfigError
from stretto.model.tasks import Decode
from stretto.transforms.table import steps_of

_KNOWN = tuple(
    field.name
    for field in dataclasses.fields(Decode)
    if field.name not in ("items", "max_items", "fallback", "schema_if_able", "tools", "logprobs")
)
_ANY_VOCABULARY = 2**31
"""Size of a vocabulary that has any token."""


class Output:
    """The declaration of an output of a semantic function: the default value of the parameter with its name.

        def joke(topic: Input, text: Output = Output(max_tokens=50, stop=("\\n",))) -> None: ...

    Args:
        transform: chain of transforms that makes the output's value of its text, such as 'json_path "$.name"'
            (see `stretto.transforms.table`). Within the same prompt the output stays as it is.
        settings: fields of `stretto.model.tasks.Decode` that say how to generate a text.

    Raises:
        ConfigError: there is no such setting or transform, or a value cannot be used.
    """

    def __init__(self, *, transform: str | Sequence[str] = (), **settings: object) -> None:
        self.steps = steps_of(transform)
        self.settings = checked(settings)

    @property
    def form(self) -> Hashable:
        """A key that is equal for outputs with equal settings of equal types (1 is not True)."""
        return tuple((name, type(value), value) for name, value in self.settings.items())

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
    """Return settings of a generation, with lists as tuples, and a single stop string as one.

    Raises:
        ConfigError: there is no such setting, or its value is of the wrong type or out of range.
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in _KNOWN:
            raise ConfigError(f"generation has no setting {name!r}; it has {', '.join(_KNOWN)}")
        if name == "stop" and isinstance(value, str):
            value = (value,)
        found[name] = tuple(value) if isinstance(value, list) else value
    decode = Decode(**found)
    output.DecodeOutput(decode)  # refuses what has no meaning
    check_sampling(decode, _ANY_VOCABULARY)
    return found
