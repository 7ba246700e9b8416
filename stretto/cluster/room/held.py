"""Contexts that are held until there is room for them, the one that should enter next at hand.

Next is the one whose program is oldest for the tokens that it needs, which favours small ones without letting
large ones wait for ever. That order changes as time goes by. So contexts are sorted into classes of about
equal need, in each of which the oldest program stays first, and only the first of each class are compared.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator

from stretto.cluster.room.contexts import Context
from stretto.model.record import record
from stretto.model.sorted_queue import SortedQueue

_FACTOR = 1.25
_MOST_CREDIT_S = 300.0


@record
class Holding:
    """One request that is held, and why.

    Attributes:
        need: tokens that it would add to those inside.
        since_s: time from which it has been held.
    """

    key: Hashable
    context: Context
    need: float
    since_s: float

    @property
    def aged_from_s(self) -> float:
        """Time from which its age counts: since its program began, but no longer than `_MOST_CREDIT_S` before
        it was held, so that programs that live for hours leave room for others.
        """
        return max(self.context.program.start_s, self.since_s - _MOST_CREDIT_S)


class Held:
    """The requests that wait for room. All operations take O(log n) for n of them."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, Holding] = {}
        self._classes: dict[int, SortedQueue[Holding]] = {}
        self.need = 0.0
        """Tokens that all of them need together."""

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Holding]:
        """Iterate over them in the order in which they were held."""
        return iter(self._by_key.values())

    def get(self, key: Hashable) -> Holding | None:
        """Return how the request `key` is held; None if it is not."""
        return self._by_key.get(key)

    def add(self, holding: Holding) -> None:
        """Hold a request."""
        self._by_key[holding.key] = holding
        self.need += holding.need
        of_class = self._classes.setdefault(_class_of(holding), SortedQueue())
        of_class.add(_age_key(holding), holding)

    def remove(self, key: Hashable) -> Holding:
        """Hold a request no longer. Raises KeyError if it is not held."""
        holding = self._by_key.pop(key)
        self.need = self.need - holding.need if self._by_key else 0.0
        name = _class_of(holding)
        self._classes[name].remove(_age_key(holding))
        if not self._classes[name]:
            del self._classes[name]
        return holding

    def replace(self, holding: Holding, need: float) -> Holding:
        """Correct what a held request needs; return how it is held now."""
        changed = Holding(holding.key, holding.context, need, holding.since_s)
        before = self._by_key[holding.key]
        name, new_name = _class_of(before), _class_of(changed)
        self._by_key[holding.key] = changed
        self.need += need - before.need
        self._classes[name].remove(_age_key(before))
        if not self._classes[name]:
            del self._classes[name]
        self._classes.setdefault(new_name, SortedQueue()).add(_age_key(changed), changed)
        return changed

    def best(self, now_s: float, most_need: float = math.inf) -> Holding | None:
        """Return what should enter next, of those that need at most `most_need` tokens: the one whose program
        is oldest for its need.
        """
        best, most = None, -math.inf
        for of_class in self._classes.values():
            holding = of_class.first
            per_token_s = (now_s - holding.aged_from_s) / max(1.0, holding.need)
            if holding.need <= most_need and per_token_s > most:
                best, most = holding, per_token_s
        return best

    def check_invariants(self) -> None:
        """Check that the classes have what is held. For tests."""
        assert sum(map(len, self._classes.values())) == len(self._by_key)
        for name, of_class in self._classes.items():
            assert all(_class_of(one) == name and self._by_key[one.key] is one for one in of_class)
        assert abs(self.need - sum(one.need for one in self)) < 1e-3


def _class_of(holding: Holding) -> int:
    return int(math.log(max(1.0, holding.need)) / math.log(_FACTOR))


def _age_key(holding: Holding) -> tuple[float, float, int]:
    return holding.aged_from_s, holding.since_s, holding.context.number
