"""Prefixes whose requests wait too long get more copies, until they are calm again.

A prefix is named by the hash of its last block. Rules:

- Requests count from when they are sent out, the last `history` of all prefixes together.
- A prefix wants a copy when its requests wait too long: those of the newer half of its history waited at
  least twice as long on average as those of the older half. A copy begins this history anew.
- What follows a copied prefix is split by load: each next part goes to the copy that was chosen for it first.
- The youngest copy is retired when hardly anybody waits for the prefix and its requests come at less than
  half of the highest rate since the copy was made. A retired copy gets no more requests, so that it ages out
  of the cache.

Source: Preble §4.2, post-assignment load adjustment (autoscaling). Differs: copies are undone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.messages import InstanceId

LEAST_WAIT_S = 0.5
"""Mean wait in seconds below which a prefix is calm, whatever the growth."""
GROWTH = 2.0
"""Growth of the mean wait from which a prefix wants a copy, and fall of its rate from which a copy goes."""
LEAST_REQUESTS = 5
"""Number of requests of a prefix, in each half of its history, that a mean wait needs."""


@dataclass(slots=True)
class _Waits:
    """Waits in seconds in two halves, the older and the newer, with their sums."""

    old: deque[float] = field(default_factory=deque)
    new: deque[float] = field(default_factory=deque)
    old_s: float = 0.0
    new_s: float = 0.0

    def add(self, wait_s: float) -> None:
        self.new.append(wait_s)
        self.new_s += wait_s
        if len(self.new) > len(self.old) + 1:
            moved_s = self.new.popleft()
            self.new_s -= moved_s
            self.old.append(moved_s)
            self.old_s += moved_s

    def drop_oldest(self) -> None:
        if self.old:
            self.old_s -= self.old.popleft()
        elif self.new:
            self.new_s -= self.new.popleft()

    @property
    def mean_s(self) -> float:
        """Mean wait of the newer half."""
        return self.new_s / len(self.new) if self.new else 0.0

    @property
    def have_doubled(self) -> bool:
        return (
            len(self.old) >= LEAST_REQUESTS
            and self.mean_s >= LEAST_WAIT_S
            and self.mean_s >= GROWTH * self.old_s / len(self.old)
        )


@dataclass(slots=True)
class _Prefix:
    """A prefix that requests of the history have.

    Attributes:
        num: number of its requests in the history.
        generation: number of times that its waits began anew.
        copies: instances that have copies of it, with the prefix's highest rate (requests per second)
            since each was made.
        retired: instances whose copies are to get no more requests.
        parts: instance that gets the requests with a certain next block.
    """

    num: int = 0
    generation: int = 0
    waits: _Waits = field(default_factory=_Waits)
    copies: dict[InstanceId, float] = field(default_factory=dict)
    retired: set[InstanceId] = field(default_factory=set)
    parts: dict[BlockHash, InstanceId] = field(default_factory=dict)

    def begin_anew(self) -> None:
        self.generation += 1
        self.waits = _Waits()
        self.parts.clear()


class HotPrefixes:
    """A record of how long requests of each prefix wait, and of the copies that were made because of it.

    Args:
        history: number of requests that count.
    """

    def __init__(self, history: int) -> None:
        self._most = history
        self._history: deque[tuple[BlockHash, int, float]] = deque()
        self._prefixes: dict[BlockHash, _Prefix] = {}

    def __len__(self) -> int:
        """Return the number of prefixes that are remembered."""
        return len(self._prefixes)

    def wants_copy(self, prefix: BlockHash) -> bool:
        """Return whether the wait of a prefix's requests has doubled."""
        found = self._prefixes.get(prefix)
        return found is not None and found.waits.have_doubled

    def copies(self, prefix: BlockHash) -> Sequence[InstanceId]:
        """Return the instances that have copies of a prefix, oldest first."""
        found = self._prefixes.get(prefix)
        return () if found is None else tuple(found.copies)

    def is_retired(self, prefix: BlockHash, instance: InstanceId) -> bool:
        """Return whether an instance's copy of a prefix is to get no more requests."""
        found = self._prefixes.get(prefix)
        return found is not None and instance in found.retired

    def home_of(self, prefix: BlockHash, part: BlockHash) -> InstanceId | None:
        """Return the instance that gets the requests which go on with the block `part` after a prefix; None
        if there is none yet, or the prefix has no copies.
        """
        found = self._prefixes.get(prefix)
        return None if found is None else found.parts.get(part)

    def sent(
        self,
        prefix: BlockHash,
        part: BlockHash | None,
        instance: InstanceId,
        wait_s: float,
        now_s: float,
        *,
        is_copy: bool,
    ) -> None:
        """Note a request that was sent out after `wait_s` seconds.

        Args:
            part: block that follows the prefix, if there is one.
            is_copy: whether the instance did not hold the prefix before.
        """
        found = self._prefixes.setdefault(prefix, _Prefix())
        found.num += 1
        found.waits.add(wait_s)
        self._history.append((prefix, found.generation, now_s))
        if is_copy:
            found.begin_anew()
            found.retired.discard(instance)
            found.copies[instance] = self._rate_per_s(found, now_s)
        elif found.copies:
            self._retire(found, now_s)
        if part is not None and found.copies and len(found.parts) < self._most:
            found.parts.setdefault(part, instance)
        if len(self._history) > self._most:
            self._forget_oldest()

    def left(self, instance: InstanceId) -> None:
        """Forget the copies of an instance that takes no more work, or whose cache is empty."""
        for found in self._prefixes.values():
            found.copies.pop(instance, None)
            found.retired.discard(instance)
            found.parts = {part: home for part, home in found.parts.items() if home != instance}

    def check_invariants(self) -> None:
        """Check that the sums are those of the history. For tests."""
        assert len(self._history) <= self._most
        assert sum(found.num for found in self._prefixes.values()) == len(self._history)
        for prefix, found in self._prefixes.items():
            waits = found.waits
            assert found.num == sum(one[0] == prefix for one in self._history) > 0
            assert len(waits.old) + len(waits.new) == sum(
                one[:2] == (prefix, found.generation) for one in self._history
            )
            assert abs(waits.old_s - sum(waits.old)) + abs(waits.new_s - sum(waits.new)) < 1e-6
            assert not found.retired & found.copies.keys()

    def _retire(self, found: _Prefix, now_s: float) -> None:
        """Retire the youngest copy of a prefix that is calm."""
        rate_per_s = self._rate_per_s(found, now_s)
        for instance, highest_per_s in found.copies.items():
            found.copies[instance] = max(highest_per_s, rate_per_s)
        instance, highest_per_s = next(reversed(found.copies.items()))
        is_known = len(found.waits.new) >= LEAST_REQUESTS
        if not is_known or found.waits.mean_s >= LEAST_WAIT_S:
            return
        if GROWTH * rate_per_s < highest_per_s:
            del found.copies[instance]
            found.begin_anew()
            found.retired.add(instance)

    def _rate_per_s(self, found: _Prefix, now_s: float) -> float:
        """Return the requests of a prefix per second of the history."""
        seconds = now_s - self._history[0][2]
        return found.num / seconds if seconds > 0 else 0.0

    def _forget_oldest(self) -> None:
        prefix, generation, _ = self._history.popleft()
        found = self._prefixes[prefix]
        found.num -= 1
        if generation == found.generation:
            found.waits.drop_oldest()
        if not found.num:
            del self._prefixes[prefix]
