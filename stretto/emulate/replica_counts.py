"""What an emulated replica counts for its `/metrics`."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.wire.engine_metrics import BETWEEN_TOKENS_BOUNDS_S, FIRST_TOKEN_BOUNDS_S, REQUEST_BOUNDS_S
from stretto.wire.metrics import Histogram


@dataclass(slots=True)
class ReplicaCounts:
    """Counts of a replica since it was started. Times are emulated seconds.

    Attributes:
        num_prompt_tokens, num_output_tokens: tokens of prompts and of answers that were computed or found.
        num_cached_tokens: tokens of prompts that were found in the prefix cache.
        num_finished_by: requests that were answered to the end, by the reason of their end.
    """

    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_steps: int = 0
    num_finished_by: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0})
    first_token_s: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_BOUNDS_S))
    between_tokens_s: Histogram = field(default_factory=lambda: Histogram(BETWEEN_TOKENS_BOUNDS_S))
    request_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_BOUNDS_S))
    queued_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_BOUNDS_S))
