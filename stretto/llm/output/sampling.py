"""Checks the sampling fields of a `Decode`, and derives what a sampler needs from them."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace
from zlib import crc32

from stretto.model.errors import ConfigError
from stretto.model.tasks import Decode

MAX_LOGPROBS = 20


def check_sampling(decode: Decode, vocabulary: int) -> None:
    """Check that the sampling settings of an LLM request (`decode`) are in range for a vocabulary of that
    many tokens.

    Raises:
        ConfigError: a setting is out of range; the message names it.
    """
    _check(decode, "temperature", decode.temperature, 0.0, math.inf)
    _check(decode, "top_p", decode.top_p, 0.0, 1.0, above=True)
    _check(decode, "top_k", decode.top_k, 0, math.inf)
    _check(decode, "min_p", decode.min_p, 0.0, 1.0)
    _check(decode, "repetition_penalty", decode.repetition_penalty, 0.0, math.inf, above=True)
    _check(decode, "presence_penalty", decode.presence_penalty, -2.0, 2.0)
    _check(decode, "frequency_penalty", decode.frequency_penalty, -2.0, 2.0)
    _check(decode, "min_tokens", decode.min_tokens, 0, decode.max_tokens)
    if decode.logprobs is not None:
        if type(decode.logprobs) is not int:
            raise ConfigError(f"logprobs must be an integer or None, got {decode.logprobs!r}")
        _check(decode, "logprobs", decode.logprobs, 0, min(MAX_LOGPROBS, vocabulary))
    if type(decode.seed) is not int:
        raise ConfigError(f"seed must be an integer, got {decode.seed!r}")
    if not isinstance(decode.stop_tokens, tuple):
        raise ConfigError(f"stop_tokens must be a tuple, got {decode.stop_tokens!r}")
    for token in decode.stop_tokens:
        if not (type(token) is int and 0 <= token < vocabulary):
            raise ConfigError(f"stop_tokens must be ids below {vocabulary}, got {token!r}")
    for name in ("json_schema", "regex"):
        if not isinstance(getattr(decode, name), str | None):
            raise ConfigError(f"{name} must be text, got {getattr(decode, name)!r}")
    choices = decode.choices
    if not isinstance(choices, tuple) or not all(isinstance(one, str) for one in choices):
        raise ConfigError(f"choices must be texts, got {choices!r}")
    if choices and (decode.json_schema, decode.regex, decode.items) != (None, None, None):
        raise ConfigError("choices cannot be combined with json_schema, regex or items")
    if not isinstance(decode.ignore_eos, bool):
        raise ConfigError(f"ignore_eos must be True or False, got {decode.ignore_eos!r}")


def _check(decode: Decode, name: str, value: float, low: float, high: float, *, above: bool = False) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if isinstance(getattr(Decode(), name), int) and not isinstance(value, int):
        is_number = False
    if not is_number or not low <= value <= high or (above and value == low):
        raise ConfigError(
            f"{name} must be {'above' if above else 'at least'} {low} and at most {high}, got {value!r}"
        )


def with_seed(decode: Decode, key: str) -> Decode:
    """Return the settings with a seed that follows from `key`, if they leave that open."""
    return replace(decode, seed=crc32(key.encode()), draws_seed=False) if decode.draws_seed else decode


def is_plain_greedy(decode: Decode) -> bool:
    """Return whether an LLM request always chooses the most likely token, so that no sampler is needed.

    It has no penalties, no schema, regular expression or choices, and reports no log-probabilities.
    """
    return (
        decode.temperature == 0
        and decode.repetition_penalty == 1
        and not (decode.presence_penalty or decode.frequency_penalty or decode.min_tokens)
        and decode.logprobs is None
        and decode.json_schema is None
        and decode.regex is None
        and not decode.choices
    )


def ending_tokens(decode: Decode, eos: Set[int]) -> frozenset[int]:
    """Return the ids of the tokens that end an output: the request's stop tokens, and the end-of-sequence
    tokens `eos` unless the request ignores them.
    """
    return frozenset(decode.stop_tokens) | (frozenset() if decode.ignore_eos else frozenset(eos))


def noise_seed(seed: int, position: int) -> int:
    """Return the random seed with which token number `position` of an output is sampled.

    It depends on the request's seed and on the position alone, so that results do not depend on the batch.
    """
    return (seed * 0x9E3779B97F4A7C15 + position * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**63
