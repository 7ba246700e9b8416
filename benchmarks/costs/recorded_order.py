"""Reconstructs the order of requests, which a log does not have, from the prompts in its prefill steps.

For each step, the number of prompts, their total length and the longest are known. They determine a step of
one or two prompts exactly, so these steps choose their requests first. For other steps, any choice with the
right total is taken. Outputs of equal prompts remain a guess.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from stretto.costs.shape import StepShape

_MOST_TRIES = 2000

Requests = dict[int, list[tuple[int, int]]]
"""Requests (prompt tokens, output tokens) that are not assigned to a step yet, by prompt tokens."""


def in_order_of(
    prefills: Sequence[StepShape], requests: Sequence[tuple[int, int]], seed: int
) -> list[tuple[int, int]]:
    """Order all `requests` so that they make these prefill steps; where none fits, take any that are left."""
    draw = random.Random(seed)
    waiting: Requests = {}
    for request in draw.sample(requests, len(requests)):
        waiting.setdefault(request[0], []).append(request)
    places: list[list[tuple[int, int]]] = [[] for _ in prefills]
    for index in sorted(range(len(prefills)), key=lambda index: prefills[index].num_prefills):
        shape = prefills[index]
        longest = shape.max_prefill_tokens
        if first := _take(waiting, [longest]):
            rest = _Search(waiting, draw).prompts(
                shape.num_prefills - 1, shape.prefill_tokens - longest, longest
            )
            places[index] = first + _take(waiting, rest or [])
    left = [request for requests in waiting.values() for request in requests]
    draw.shuffle(left)
    for shape, place in zip(prefills, places, strict=True):
        while left and len(place) < shape.num_prefills:
            place.append(left.pop())
    return [request for place in places for request in place] + left


def _take(waiting: Requests, prompts: Sequence[int]) -> list[tuple[int, int]]:
    return [waiting[prompt].pop() for prompt in prompts if waiting.get(prompt)]


class _Search:
    """Bounded search, in random order, for prompts with a given total length."""

    def __init__(self, waiting: Requests, draw: random.Random) -> None:
        self._counts = {prompt: len(requests) for prompt, requests in waiting.items() if requests}
        self._candidates = list(self._counts)
        draw.shuffle(self._candidates)
        self._num_tries = 0

    def prompts(self, num: int, total: int, longest: int) -> list[int] | None:
        """Find `num` prompts of `total` tokens, none longer than `longest`; None if none were found."""
        if num == 0:
            return [] if total == 0 else None
        if num == 1:
            return [total] if total <= longest and self._counts.get(total) else None
        for prompt in self._candidates:
            if prompt > longest or not num - 1 <= total - prompt <= (num - 1) * longest:
                continue
            if not self._counts[prompt]:
                continue
            self._num_tries += 1
            if self._num_tries > _MOST_TRIES:
                return None
            self._counts[prompt] -= 1
            rest = self.prompts(num - 1, total - prompt, longest)
            if rest is not None:
                return [prompt, *rest]
            self._counts[prompt] += 1
        return None
