"""The latency of an engine as a function of the work in a batch.

One form serves passes, load balancing and simulation: seconds = `base_s` + `per_unit_s` * units, where a
unit is what the engine batches (texts, pairs, rows; prompt tokens for an LLM). Where the lengths of the texts
are known, `per_token_s` is added for each token beyond `unit_tokens` a unit, and taken off for each below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stretto.model.errors import ConfigError

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Profile:
    """A simple prediction of the latency of one engine, linear in the work of a call. `stretto profile`
    measures its numbers.

    Attributes:
        base_s: fixed seconds of each call.
        per_unit_s: seconds per unit of work.
        max_efficient_batch: units beyond which throughput no longer grows (Teola §4.2, pass 2).
        per_output_s: seconds per generated token of a sequence that decodes by itself; LLM engines only.
        per_neighbour_s: seconds that each further sequence adds to a step of decodes; LLM engines only.
        per_token_s: share of `per_unit_s` that is due to each token of a unit; batch engines only. 0 where
            times do not depend on lengths, or that is not known.
        host_token_s: seconds to load the KV of a token from host memory; LLM engines only. 0 if not known.
        disk_token_s: the same from disk.
        unit_tokens: tokens of the unit that `per_unit_s` is the time of, as estimated from characters.
        reads_shared_once: whether a step of decodes reads the context that several sequences share only once;
            LLM engines only.
    """

    base_s: float = 0.0
    per_unit_s: float = 0.0
    max_efficient_batch: int = 32
    per_output_s: float = 0.0
    per_neighbour_s: float = 0.0
    per_token_s: float = 0.0
    unit_tokens: float = 0.0
    host_token_s: float = 0.0
    disk_token_s: float = 0.0
    reads_shared_once: bool = False

    def __post_init__(self) -> None:
        times_s = (self.base_s, self.per_unit_s, self.per_output_s, self.per_neighbour_s, self.per_token_s)
        loading_s = (self.host_token_s, self.disk_token_s)
        if not all(0 <= time_s < math.inf for time_s in (*times_s, *loading_s, self.unit_tokens)):
            raise ConfigError(f"a profile's times must be finite and not negative: {self}")
        if self.per_token_s * self.unit_tokens > self.per_unit_s * (1 + _ROUNDING):
            raise ConfigError(f"a unit's tokens must not take longer than the unit: {self}")
        if self.max_efficient_batch < 1:
            raise ConfigError(f"max_efficient_batch must be at least 1: {self}")

    @property
    def depends_on_length(self) -> bool:
        """Whether a prediction is better where the tokens of a call's texts are known."""
        return self.per_token_s > 0

    def batch_s(self, units: int, tokens: int | None = None) -> float:
        """Return the predicted seconds of one call of the engine with `units` of work (texts, pairs, tokens).

        Args:
            tokens: estimated tokens of all texts of the call; None takes units of the usual length.
        """
        seconds = self.base_s + self.per_unit_s * units
        if tokens is None or not self.per_token_s:
            return seconds
        return max(self.base_s, seconds + self.per_token_s * (tokens - self.unit_tokens * units))

    def decode_s(self, num_sequences: int) -> float:
        """Return the predicted seconds of a step in which `num_sequences` sequences decode a token each."""
        return self.per_output_s + self.per_neighbour_s * (num_sequences - 1)


UNKNOWN_LLM = Profile(base_s=0.005, per_unit_s=1e-4, per_output_s=0.02, per_neighbour_s=2e-4)
"""Costs of an LLM instance of which none are given: those of a model of 7 billion parameters on one GPU,
rounded.
"""
