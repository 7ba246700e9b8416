"""Who goes next: the order in which waiting sequences are considered for a batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice

from stretto.llm.sequence import TokenSequence
from stretto.sched.orders.sorted_queue import SortedQueue


class WaitingQueue:
    """Sequences by rank, smallest first, and among equals in the order in which they came.

    Ranks whose first elements, in seconds, lie in the same `level_s` make a level: within one, what is
    cached may change the order. Levels do not depend on the time. Only the first `lookahead` sequences are
    looked at closely, so a long queue costs no more than a short one.
    """

    def __init__(self, level_s: float, lookahead: int) -> None:
        self._level_s = level_s
        self._lookahead = lookahead
        self._sorted = SortedQueue[TokenSequence]()

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[TokenSequence]:
        return iter(self._sorted)

    def push(self, sequence: TokenSequence) -> None:
        """Add a sequence."""
        self._sorted.add(sequence.place, sequence)

    def remove(self, sequence: TokenSequence) -> None:
        """Take a sequence out."""
        self._sorted.remove(sequence.place)

    def candidates(
        self, cached_share: Callable[[TokenSequence], float], num_groups: int
    ) -> Iterator[TokenSequence]:
        """Those to be considered now: level by level, and within one by groups of their cached share.

        Sequences that were preempted lead their level.
        """
        for _, level in groupby(list(islice(self._sorted, self._lookahead)), self._level):
            members = list(level)
            yield from (member for member in members if member.num_preemptions)
            fresh = [member for member in members if not member.num_preemptions]
            if len(fresh) > 1:
                fresh = in_proportion(fresh, cached_share, num_groups)
            yield from fresh

    def _level(self, sequence: TokenSequence) -> float:
        return sequence.place[0][0] // self._level_s


def in_proportion(
    sequences: Sequence[TokenSequence], cached_share: Callable[[TokenSequence], float], num_groups: int
) -> list[TokenSequence]:
    """First come first served within groups of like cached share; of a round, the better a group the more.

    Group g of 0..num_groups has those with g/num_groups of their prompt cached, and g + 1 of it go in each
    round: reuse is preferred, and nobody starves.

    Source: Preble §4.3. Differs: there is a group for prompts of which nothing is cached.
    """
    groups: list[deque[TokenSequence]] = [deque() for _ in range(num_groups + 1)]
    for sequence in sequences:
        groups[int(cached_share(sequence) * num_groups)].append(sequence)
    ordered: list[TokenSequence] = []
    while len(ordered) < len(sequences):
        for share in range(num_groups, -1, -1):
            group = groups[share]
            ordered.extend(group.popleft() for _ in range(min(share + 1, len(group))))
    return ordered
