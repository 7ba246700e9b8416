"""Who goes next: the order in which waiting sequences are considered for a batch."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from stretto.llm.sequence import TokenSequence


class WaitingQueue:
    """Sequences by priority; waiting raises it by one every `ageing_s` seconds.

    All age alike, so the order by aged priority does not depend on the time and one sorted list serves.
    Only the first `lookahead` of it are looked at closely, so a long queue costs no more than a short one.
    """

    def __init__(self, ageing_s: float, lookahead: int) -> None:
        self._ageing_s = ageing_s
        self._lookahead = lookahead
        self._sorted: list[tuple[float, int, TokenSequence]] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[TokenSequence]:
        return (sequence for _, _, sequence in self._sorted)

    def push(self, sequence: TokenSequence) -> None:
        """Add a sequence; its `order` breaks ties."""
        aged = sequence.arrived_s / self._ageing_s - sequence.priority
        insort(self._sorted, (aged, sequence.order, sequence))

    def remove(self, sequence: TokenSequence) -> None:
        """Take a sequence out."""
        self._sorted = [entry for entry in self._sorted if entry[2] is not sequence]

    def level(self, sequence: TokenSequence, now_s: float) -> float:
        """Its priority, raised by the whole periods it has waited."""
        return sequence.priority + max(0.0, now_s - sequence.arrived_s) // self._ageing_s

    def candidates(
        self, now_s: float, cached_share: Callable[[TokenSequence], float], num_groups: int
    ) -> Iterator[TokenSequence]:
        """Those to be considered now: level by level, and within one by groups of their cached share.

        Sequences that were preempted lead their level.
        """
        levels: dict[float, list[TokenSequence]] = {}
        for _, _, sequence in self._sorted[: self._lookahead]:
            levels.setdefault(self.level(sequence, now_s), []).append(sequence)
        for level in sorted(levels, reverse=True):
            members = levels[level]
            yield from (member for member in members if member.num_preemptions)
            fresh = [member for member in members if not member.num_preemptions]
            if len(fresh) > 1:
                fresh = in_proportion(fresh, cached_share, num_groups)
            yield from fresh


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
