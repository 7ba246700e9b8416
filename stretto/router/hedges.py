"""Which requests are sent a second time, because they wait for their first byte much longer than others.

Most of what is slow is slow for a reason that a second attempt shares. A *straggler* is not: it hangs at one
worker, while others answer requests like it at once. Rules:

- A request is a straggler when it has waited longer than 99 of 100 requests of its kind. A kind is a model,
  whether the answer is streamed, and the length of the prompt and the limit of the answer in steps of two.
- At most a share of the requests is sent a second time, counted as they come.
- Nothing is known of a kind before it was seen a hundred times; nothing is sent before.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TypeAlias

from stretto.router.messages import RoutedRequest, Ticket

_QUANTILE = 0.99
_LEAST_SEEN = 100.0
_MOST_SEEN = 2000.0
"""Requests of a kind after which all counts are halved, so that new ones tell more."""
_MOST_KINDS = 500
_MOST_SAVED = 10.0
"""Second attempts that may be saved up."""
_FIRST_S, _STEP = 0.001, 1.2
"""Upper end of the first bin of waits, and the factor from one bin to the next."""
_NUM_BINS = 90

_Kind: TypeAlias = tuple[str, bool, int, int]


@dataclass(slots=True)
class _Waits:
    """How long requests of one kind waited for their first byte."""

    counts: list[float] = field(default_factory=lambda: [0.0] * _NUM_BINS)
    num: float = 0.0

    def learn(self, seconds: float) -> None:
        place = math.ceil(math.log(max(seconds, _FIRST_S) / _FIRST_S, _STEP))
        self.counts[min(place, _NUM_BINS - 1)] += 1.0
        self.num += 1.0
        if self.num > _MOST_SEEN:
            self.counts = [count / 2.0 for count in self.counts]
            self.num /= 2.0

    def limit_s(self) -> float | None:
        if self.num < _LEAST_SEEN:
            return None
        above = self.num * (1.0 - _QUANTILE)
        for place in range(_NUM_BINS - 1, 0, -1):
            above -= self.counts[place]
            if above < 0.0:
                return float(_FIRST_S * _STEP**place)
        return _FIRST_S


class Hedges:
    """The waits of requests by kind, and the second attempts that are left.

    Args:
        share: largest share of requests that are sent a second time; 0 for none.

    Attributes:
        are_on: whether any are; else there is nothing to count or to learn.
    """

    def __init__(self, share: float) -> None:
        self._share, self.are_on = share, share > 0
        self._left = 0.0
        self._waits: OrderedDict[_Kind, _Waits] = OrderedDict()
        self._dues: list[tuple[float, Ticket, int]] = []

    @property
    def next_due_s(self) -> float | None:
        """Time at which the first request that was sent may be a straggler; None if there is none."""
        return self._dues[0][0] if self._dues else None

    def sent(self, ticket: Ticket, request: RoutedRequest, num_attempts: int, now_s: float) -> None:
        """Count a request that is sent, and watch how long it waits."""
        if not self._may_hedge(request):
            return
        self._left = min(_MOST_SAVED, self._left + self._share)
        waits = self._waits.get(_kind_of(request))
        if waits is not None and (limit_s := waits.limit_s()) is not None:
            heappush(self._dues, (now_s + limit_s, ticket, num_attempts))

    def _may_hedge(self, request: RoutedRequest) -> bool:
        """Return whether a request may be sent a second time. What is offline has no hurry: it waits for
        others, and may be withdrawn.
        """
        return self.are_on and request.may_hedge and request.objective != "offline"

    def due(self, now_s: float) -> list[tuple[Ticket, int]]:
        """Return the requests that are stragglers by now, unless their answers have begun, each with the
        number of its attempt.
        """
        found: list[tuple[Ticket, int]] = []
        while self._dues and self._dues[0][0] <= now_s:
            _, ticket, num_attempts = heappop(self._dues)
            found.append((ticket, num_attempts))
        return found

    def learn(self, request: RoutedRequest, seconds: float) -> None:
        """Learn how long a request waited for its first byte."""
        if not self._may_hedge(request):
            return
        kind = _kind_of(request)
        if (waits := self._waits.get(kind)) is None:
            waits = self._waits[kind] = _Waits()
            if len(self._waits) > _MOST_KINDS:
                self._waits.popitem(last=False)
        self._waits.move_to_end(kind)
        waits.learn(seconds)

    def take(self) -> bool:
        """Take one of the second attempts that are left; return whether there was one."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


def _kind_of(request: RoutedRequest) -> _Kind:
    """Return the kind of a request. Of a stream, the limit of the answer's length does not count."""
    limit = 0 if request.is_streamed or request.max_tokens is None else request.max_tokens
    return request.model, request.is_streamed, request.num_tokens.bit_length(), limit.bit_length()
