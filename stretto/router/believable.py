"""Checks of numbers that workers report, before they enter a mean or a decision."""

from __future__ import annotations

from stretto.router.messages import RoutedRequest, WorkerUsage

MAX_REST_S = 60.0
"""Longest rest that a worker gets by one answer with status 429."""
_REST_S = 1.0
_MAX_MODEL_TOKENS = 2**24
_MAX_KV_TOKENS = 2**40


def rest_s(asked_s: float | None) -> float:
    """Return the seconds for which a worker rests after an answer with status 429, which may say how many."""
    return _REST_S if asked_s is None else min(MAX_REST_S, max(0.0, asked_s))


def kv_tokens(num_tokens: int) -> int | None:
    """Return a number of tokens that fit into a worker's KV memory; None if it cannot be true."""
    return num_tokens if 0 < num_tokens <= _MAX_KV_TOKENS else None


def model_tokens(card: object) -> int | None:
    """Return the longest prompt and answer of a model by its entry in a list of models; None if it tells none
    that can be true.
    """
    limit = card.get("max_model_len") if isinstance(card, dict) else None
    return limit if type(limit) is int and 0 < limit <= _MAX_MODEL_TOKENS else None


def usage_of(reported: WorkerUsage, request: RoutedRequest, most_tokens: int) -> WorkerUsage:
    """Return the counts of an answer, each at most as large as it can be.

    Args:
        most_tokens: longest prompt and answer together that the worker can hold.
    """
    most = most_tokens * request.num_answers
    most_output = most if request.max_tokens is None else min(most, request.max_tokens * request.num_answers)
    num_prompt, num_output, num_cached = reported.num_prompt, reported.num_output, reported.num_cached
    if num_prompt is not None and num_prompt > most:
        num_prompt = most
    if num_output is not None and num_output > most_output:
        num_output = most_output
    most_cached = most if num_prompt is None else num_prompt
    if num_cached is not None and num_cached > most_cached:
        num_cached = most_cached
    return WorkerUsage(num_prompt, num_output, num_cached, reported.is_older_api)
