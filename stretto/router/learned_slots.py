"""How many requests a worker runs at once, learned from what it queues itself.

What waits at a worker waits there in order of arrival. So no more is sent than it runs, and the rest waits in
the router, in its order. A worker tells how many run and wait when it is looked at. Rules:

- Where some wait in several looks one after the other, while about as many run, the most of those is what it
  runs at once. A single look tells nothing. What has just come waits until the next step begins, so that it
  counts as waiting after `JUST_SENT_S` only: where requests are short, each look would show some.
- Fewer may have run for want of KV memory. So while the router has requests that wait, and the worker is full
  and has none, a little more is sent. If that waits there, the next trial comes after twice as many looks; if
  it runs, at the next look.
- A worker that was down may be another process, so that it is learned anew.
"""

from __future__ import annotations

_LOOKS = 3
"""Looks one after the other with some that wait, from which it is learned."""
JUST_SENT_S = 0.5
"""Time for which a request may wait at a worker though there is room, until a long step ends."""
_ALIKE = 0.75
"""Least part of the most that ran, in each of these looks."""
_MORE = 0.05
"""Part by which more is sent as a trial, at least one request."""
_MOST_BETWEEN = 64
"""Most looks between two trials."""


class LearnedSlots:
    """The number of requests that one worker runs at once, as far as it is known.

    Attributes:
        limit: number of requests that it runs at once; None while that is not known.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        self._queued: list[int] = []
        self._num_between = self._num_left = 1
        self._before_trial: int | None = None

    def look(self, num_running: int, num_waiting: int, *, are_held: bool) -> bool:
        """Take what a worker tells; return whether the limit has changed.

        Args:
            num_waiting: requests that have waited there for longer than `JUST_SENT_S`.
            are_held: whether the router has requests that wait.
        """
        before = self.limit
        if num_waiting > 0:
            self._queue(num_running)
        else:
            self._queued.clear()
            if are_held and self.limit is not None and num_running >= self.limit:
                self._try_more(self.limit)
        return self.limit != before

    def _queue(self, num_running: int) -> None:
        self._queued = [*self._queued[1 - _LOOKS :], max(1, num_running)]
        most = max(self._queued)
        if self.limit is not None and num_running > self.limit:
            self._learn(num_running)
        elif len(self._queued) == _LOOKS and min(self._queued) >= _ALIKE * most:
            self._learn(most)

    def _learn(self, num_running: int) -> None:
        if self._before_trial is not None:  # the trial has ended
            was_vain = num_running <= self._before_trial
            self._num_between = min(_MOST_BETWEEN, 2 * self._num_between) if was_vain else 1
            self._before_trial = None
        self._num_left = self._num_between
        self.limit = num_running

    def _try_more(self, limit: int) -> None:
        if self._before_trial is not None and limit > self._before_trial:  # as many run as were tried
            self._before_trial, self._num_between, self._num_left = limit, 1, 1
        self._num_left -= 1
        if self._num_left <= 0:
            self._num_left = self._num_between
            if self._before_trial is None:
                self._before_trial = limit
            self.limit = limit + max(1, round(_MORE * limit))
