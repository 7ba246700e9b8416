"""A record of when each participant last sent a message, which finds the silent ones without a search."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Who = TypeVar("Who")


class LastHeard(Generic[Who]):
    """The times of the last messages of participants (instances or tasks), from which the silent ones are
    found without a search.

    Times never go back, so the order of messages is the order of times.
    """

    def __init__(self) -> None:
        self._heard_s: OrderedDict[Who, float] = OrderedDict()

    def __contains__(self, who: Who) -> bool:
        return who in self._heard_s

    def note(self, who: Who, now_s: float) -> None:
        """Record that the participant `who` (an instance or task) has sent a message at the time `now_s`."""
        self._heard_s[who] = now_s
        self._heard_s.move_to_end(who)

    def forget(self, who: Who) -> None:
        """Stop expecting messages of the participant `who` (an instance or task); nothing happens if it is
        unknown.
        """
        self._heard_s.pop(who, None)

    def oldest(self) -> tuple[Who, float] | None:
        """Return which participant has been silent for longest, and the time of its last message; None if no
        messages are expected.
        """
        return next(iter(self._heard_s.items()), None)

    def silent_for(self, timeout_s: float, now_s: float) -> list[Who]:
        """Return all participants that have sent no message for at least `timeout_s` seconds, the longest
        silence first.
        """
        silent = []
        for who, heard_s in self._heard_s.items():
            if now_s < heard_s + timeout_s:
                break
            silent.append(who)
        return silent
