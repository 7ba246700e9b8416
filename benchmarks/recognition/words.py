"""Made-up texts, a few of which many sessions have."""

from __future__ import annotations

import random
from functools import cache
from itertools import accumulate

_NUM_WORDS = 3000


def _dictionary() -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choices("abcdefghijklmnoprstuvwz", k=rng.randint(2, 9))) for _ in range(_NUM_WORDS)]


_WORDS = _dictionary()
_WEIGHTS = list(accumulate(1 / (place + 5) for place in range(_NUM_WORDS)))


class Words:
    """Makes texts of made-up words, the first ones of which are frequent."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def text(self, least: int, most: int) -> str:
        """Return sentences of so many words."""
        words = self.rng.choices(_WORDS, cum_weights=_WEIGHTS, k=self.rng.randint(least, most))
        for place in range(8, len(words), 11):
            words[place] += ".\n" if place % 3 == 0 else "."
        return " ".join(words).capitalize()


@cache
def shared_text(name: str, least: int, most: int) -> str:
    """Return a text that several sessions have."""
    return Words(random.Random(name)).text(least, most)
