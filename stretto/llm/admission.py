"""The waiting queue of an LLM instance: the order in which sequences are considered for a batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice

from stretto.llm.sequence import TokenSequence
from stretto.model.sorted_queue import SortedQueue


class WaitingQueue:
    """The waiting sequences of an LLM instance, sorted by rank (a tuple of numbers, the priority; smallest
    first), then by arrival.

    The first number of a rank counts as seconds, such as the time of arrival, or as e-folds of work.
    Sequences for which it falls into the same interval of `level_s` seconds, or e-folds, make a level; within
    a level, sequences with more of their prompt cached may go first. Only the first `lookahead` sequences are
    considered, so a long queue costs no more than a short one.
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
        """Add a sequence to the waiting sequences, at the place that its rank (priority) gives it."""
        self._sorted.add(sequence.place, sequence)

    def remove(self, sequence: TokenSequence) -> None:
        """Remove a sequence from the waiting ones; it must still have the rank (priority) with which it was
        added.
        """
        self._sorted.remove(sequence.place)

    def candidates(
        self, cached_share: Callable[[TokenSequence], float], num_groups: int
    ) -> Iterator[TokenSequence]:
        """Yield the waiting sequences in the order in which to start them.

        They come level by level: a level has the sequences whose ranks (priorities) differ by a few seconds
        only. Within a level those that were preempted come first, then the others, more of those with a
        larger share of their prompt cached.
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
    """Return waiting sequences in an order that prefers prompts with a large cached share but lets no
    sequence wait for ever.

    Group g of 0..num_groups has the sequences with g/num_groups of their prompt cached. The order is made in
    rounds, each of which takes g + 1 sequences from group g, first come first served.

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
