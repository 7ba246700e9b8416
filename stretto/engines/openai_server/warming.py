"""A policy that decides whether a partial prefill is worth a request that warms the server's prefix cache.

The prefill is done ahead so that a later request finds it in the cache. It saves the time of
the tokens that are not in the cache yet; it costs a round trip. Both are learned from every
request's time to its first token,

    seconds = round_trip_s + new_s * (tokens to be computed) + held_s * (tokens thought to be cached),

by least squares over the last requests, in which slow ones, which may have met a hiccup, count less. A
warmed token saves `new_s - held_s`. Where nothing is cached the two are equal, where a further token takes no
longer both are nothing, and under load round trips get longer: warming then ends by itself. Until there is
evidence, cached tokens are taken to cost nothing, and the first few prefills are sent to learn from; later
one in 16 is done against the judgement, since only the difference tells. Where the server reports how many
tokens it has found, that share of the expected ones counts too; a share of none ends warming for good.

Source: Teola §4.2, pass 3, on servers that have no such request.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

_NUM_RECENT = 48
_MAX_SLOWNESS = 4.0
"""Largest ratio of a request's time to the median; slower ones count as this slow."""
_DOUBT = 0.01
"""Weight of the assumption that cached tokens cost nothing, relative to the requests'."""
_MIN_SPREAD = 0.005
"""Least spread of the computed tokens (variance by mean square): with less, their cost cannot be told."""
_NUM_TRIALS = 8
_CHECKED_EVERY = 16
_SHARE_STEP = 0.2
_MIN_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Speed:
    """A model of the time to a request's first token at an LLM server: the sum of three terms.

    Attributes:
        round_trip_s: seconds that every request takes.
        new_s: seconds for each prompt token to be computed.
        held_s: seconds for each prompt token found in the prefix cache.
    """

    round_trip_s: float
    new_s: float
    held_s: float

    def seconds(self, num_new: float) -> float:
        """Return the predicted seconds to the first token of a prompt of `num_new` tokens, none of which are
        cached.
        """
        return self.round_trip_s + self.new_s * num_new


class WarmingPolicy:
    """A policy that decides when to send an LLM server an extra request that only prefills a prompt's
    beginning, so that a later request finds it in the server's cache.

    It learns from the times of requests to their first token whether such requests pay.
    """

    def __init__(self) -> None:
        self.found_share = 1.0
        self._recent: deque[tuple[float, float, float]] = deque(maxlen=_NUM_RECENT)  # new, held, seconds
        self._has_begun = False
        self._num_trials = 0
        self._num_judged = 0

    def observe(self, num_tokens: int, num_held: int, num_found: int | None, seconds: float) -> None:
        """Learn from the time that a request took to its first token.

        The very first request, which may be slow, does not count.

        Args:
            num_tokens: tokens of the prompt.
            num_held: how many of them were thought to be in the server's cache.
            num_found: how many were, if the server says.
            seconds: time from sending the request to its first token.
        """
        if num_found is not None:
            if num_held > 0:
                share = min(1.0, num_found / num_held)
                self.found_share += _SHARE_STEP * (share - self.found_share)
            num_held = min(num_found, num_tokens)
        if self._has_begun:
            self._recent.append((num_tokens - num_held, num_held, max(seconds, 1e-6)))
        self._has_begun = True

    def speed(self) -> Speed | None:
        """Return the model of the time to the first token, fitted to the last requests.

        None if these are too few or too alike, or if more tokens took less time.
        """
        if len(self._recent) < 3:
            return None
        new, held, seconds = np.array(self._recent).T
        seconds = np.minimum(seconds, _MAX_SLOWNESS * np.median(seconds))
        weights = 1 / seconds
        if np.cov(new, aweights=weights, ddof=0) <= _MIN_SPREAD * np.average(new**2, weights=weights):
            return None
        rows = np.stack([np.ones_like(new), new, held])
        products, targets = (rows * weights) @ rows.T, rows @ (weights * seconds)
        products[2, 2] += _DOUBT * (products[1, 1] + products[2, 2])
        round_trip_s, new_s, held_s = np.linalg.solve(products, targets)
        if held_s < 0:
            (round_trip_s, new_s), held_s = np.linalg.solve(products[:2, :2], targets[:2]), 0.0
        if new_s <= 0:
            return None
        return Speed(max(0.0, float(round_trip_s)), float(new_s), float(held_s))

    def decide(self, num_missing: int) -> bool:
        """Return whether to send a request that only prefills a prompt's beginning into the server's cache.

        `num_missing` is the number of its tokens that are probably not cached yet.
        """
        if num_missing <= 0 or self.found_share < _MIN_SHARE:
            return False
        speed = self.speed()
        if speed is None and self._num_trials < _NUM_TRIALS:
            self._num_trials += 1
            return True
        self._num_judged += 1
        is_check = self._num_judged % _CHECKED_EVERY == 0
        return is_check != (speed is not None and self._gain_s(speed, num_missing) > speed.round_trip_s)

    def timeout_s(self, num_missing: int) -> float | None:
        """Return how many seconds to wait for a request that prefills `num_missing` tokens ahead.

        It is twice the predicted time, or None for no limit if that is unknown. A prefill that takes longer
        holds a connection that other requests need.
        """
        speed = self.speed()
        return None if speed is None else 2 * speed.seconds(num_missing)

    def _gain_s(self, speed: Speed, num_missing: int) -> float:
        return (speed.new_s - speed.held_s) * num_missing * self.found_share
