"""Who has been silent for longest: the basis of timeouts, without looking at all."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Who = TypeVar("Who")


class LastHeard(Generic[Who]):
    """When each was last heard of. Times never go back, so the order of notes is the order of times."""

    def __init__(self) -> None:
        self._heard_s: OrderedDict[Who, float] = OrderedDict()

    def __contains__(self, who: Who) -> bool:
        return who in self._heard_s

    def note(self, who: Who, now_s: float) -> None:
        """Somebody is heard of now."""
        self._heard_s[who] = now_s
        self._heard_s.move_to_end(who)

    def forget(self, who: Who) -> None:
        """Nothing more is expected of somebody, who may be unknown."""
        self._heard_s.pop(who, None)

    def oldest(self) -> tuple[Who, float] | None:
        """Who has been silent for longest, and since when."""
        return next(iter(self._heard_s.items()), None)

    def silent_for(self, timeout_s: float, now_s: float) -> list[Who]:
        """All who have been silent for so long, the most silent first."""
        silent = []
        for who, heard_s in self._heard_s.items():
            if now_s < heard_s + timeout_s:
                break
            silent.append(who)
        return silent
