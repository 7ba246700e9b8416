"""Declarations of outputs and inputs of semantic functions: settings of what an LLM generates, transforms."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from stretto.graph.strategy import Strategy
from stretto.llm.output import output
from stretto.llm.output.sampling import check_sampling
from stretto.model.errors import ConfigError
from stretto.model.tasks import Decode
from stretto.transforms.annotations import Typed
from stretto.transforms.table import steps_of

_KNOWN = tuple(
    field.name
    for field in dataclasses.fields(Decode)
    if field.name
    not in ("items", "max_items", "fallback", "schema_if_able", "tools", "draws_seed", "logprobs")
)
_CHOICES = ("timeout_s", "retries", "backoff_s", "fallback")
_MOST = 64
"""Largest number of samples, and of times that the LLM is asked again."""
_ANY_VOCABULARY = 2**31
"""Size of a vocabulary that has any token."""


class Output:
    """The declaration of an output of a semantic function: the default value of the parameter with its name.

        def joke(topic: Input, text: Output = Output(max_tokens=50, stop=("\\n",))) -> None: ...

    Args:
        transform: chain of transforms that makes the output's value of its text, such as 'json_path "$.name"'
            (see `stretto.transforms.table`). Within the same prompt the output stays as it is.
        settings: fields of `stretto.model.tasks.Decode` that say how to generate a text; `n`, the number of
            samples, with which the value is a list of them; `ask_again`, the number of times that the LLM is
            asked again where a transform refuses its reply; and `timeout_s`, `retries`, `backoff_s` and
            `fallback` of `stretto.graph.strategy.Strategy`. Without a `seed`, equal calls with a temperature
            above 0 give different texts.

    Attributes:
        given: settings as they were given, for the way to a service.
        settings: settings of the generation.
        strategy: what happens if the generation fails.
        num_samples: number of samples of which the value is a list; None for one text.
        num_asks: number of times that the LLM is asked again.

    Raises:
        ConfigError: there is no such setting or transform, or a value cannot be used.
    """

    def __init__(self, *, transform: str | Sequence[str] = (), **settings: object) -> None:
        self.steps = steps_of(transform)
        self.given = dict(settings)
        self.strategy = Strategy.of({name: settings.pop(name) for name in _CHOICES if name in settings})
        if not isinstance(self.strategy.fallback, str | None):
            raise ConfigError(f"fallback must be the name of an engine, got {self.strategy.fallback!r}")
        self.num_samples = _number("n", settings.pop("n", None), 1)
        self.num_asks = _number("ask_again", settings.pop("ask_again", None), 0) or 0
        self.settings = checked(settings)

    @property
    def form(self) -> Hashable:
        """A key that is equal for outputs with equal settings of equal types (1 is not True)."""
        settings = tuple((name, type(value), value) for name, value in self.settings.items())
        return settings, self.strategy, self.num_samples, self.num_asks

    def sample_settings(self, sample: int) -> dict[str, Any]:
        """Return the settings of one sample, by its number: where a seed is given, each has its own."""
        seed = self.settings.get("seed")
        if not self.settings.get("temperature") or not isinstance(seed, int):
            return self.settings
        return {**self.settings, "seed": seed + sample}

    def within(self, settings: Mapping[str, object]) -> Output:
        """Return this output with `settings` where it has none of its own."""
        return Output(transform=self.steps, **{**settings, **self.given})

    def using(self, settings: Mapping[str, object]) -> Output:
        """Return this output with `settings` in place of its own."""
        return Output(transform=self.steps, **{**self.given, **settings})

    def of_type(self, kind: Typed) -> Output:
        """Return this output as one whose reply has a type: the LLM is held to it and, unless the output says
        otherwise, asked again once.

        Raises:
            ConfigError: it has a transform, a schema, a regular expression or choices of its own.
        """
        if self.steps or {"json_schema", "regex", "choices"} & self.given.keys():
            raise ConfigError("an output has either a type or a transform, json_schema, regex or choices")
        if kind.choices:
            step = f"enum {json.dumps(kind.choices)}"
            held: dict[str, object] = {"choices": kind.choices}
        else:
            step, held = f"json_schema {json.dumps(kind.checked)}", {"json_schema": json.dumps(kind.schema)}
        return Output(transform=[step], **{"ask_again": 1, **held, **self.given})


def _number(name: str, value: object, least: int) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not least <= value <= _MOST:
        raise ConfigError(f"{name} must be a whole number from {least} to {_MOST}, got {value!r}")
    return value


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
            known = ", ".join((*_KNOWN, "n", "ask_again", *_CHOICES))
            raise ConfigError(f"generation has no setting {name!r}; it has {known}")
        if name == "stop" and isinstance(value, str):
            value = (value,)
        found[name] = tuple(value) if isinstance(value, list) else value
    if found.get("temperature") and "seed" not in found:
        found["draws_seed"] = True
    decode = Decode(**found)
    output.DecodeOutput(decode)  # refuses what has no meaning
    check_sampling(decode, _ANY_VOCABULARY)
    return found
