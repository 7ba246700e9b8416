"""Checks that an engine knows the decoding settings of a task: it refuses others, and never ignores one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace

from stretto.model.errors import ConfigError
from stretto.model.tasks import Decode

BASIC = frozenset(
    (
        "max_tokens",
        "fits_context",
        "items",
        "max_items",
        "fallback",
        "stop",
        "strip",
        "temperature",
        "seed",
        "tools",
    )
)
"""Names of the decoding settings that every LLM engine understands. One that cannot be sent tools goes by the
words of the prompt."""


def changed_settings(decode: Decode) -> dict[str, object]:
    """Return the decoding settings of an LLM task (length, form, sampling) that are not at their defaults, by
    name.
    """
    return {
        field.name: value
        for field in fields(decode)
        if (value := getattr(decode, field.name)) != field.default
    }


def refuse_others(decode: Decode, understood: Collection[str], engine: str) -> None:
    """Raise an error if a task has decoding settings that an engine does not support and would ignore.

    Args:
        understood: names of the settings that the engine knows; all others must have their defaults.
        engine: name of the engine, for the message.

    Raises:
        ConfigError: another setting is not at its default.
    """
    if others := [name for name in changed_settings(decode) if name not in understood]:
        raise ConfigError(f"{engine} does not know the decoding setting {', '.join(others)}")


def max_new_tokens(decode: Decode, num_prompt_tokens: int, context_tokens: int) -> int:
    """Return the largest number of tokens that may be generated after a prompt, in a model's context.

    At least 1: a prompt that leaves no room is refused by whoever adds both numbers.
    """
    if not decode.fits_context:
        return decode.max_tokens
    return max(1, min(decode.max_tokens, context_tokens - num_prompt_tokens))


def without_wishes(decode: Decode) -> Decode:
    """Return the decoding settings without a JSON schema that engines may do without."""
    if not decode.schema_if_able:
        return decode
    return replace(decode, json_schema=None, schema_if_able=False)
