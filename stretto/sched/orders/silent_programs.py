"""The programs of several queries that are silent, of which nobody says whether they have ended.

After each query, a program is judged when as much time has passed as the longest silence that lately came
before a program of the kind went on, and 15 s at least: the first silences are few, and most are short. By
then it has gone on, or is taken to have ended until it goes on after all. If going on counted at once,
programs would seem longer than they are. A program that is silent for much longer than that is given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from itertools import chain

from stretto.sched.orders.program import Program
from stretto.sched.queries.request import ProgramKey

_MAX_KINDS = 1024
_MAX_ENDS = 8192
"""Queries of a kind that are not judged yet."""
_SILENCE_S = 15.0
"""Seconds that stand for the longest silence where that is shorter, or not known."""
_SILENCES = 3.0
"""Multiple of the longest recent silence after which a program is given up."""
_FORGETS = 0.998
"""Factor by which the longest silence is forgotten with each program that goes on."""


@dataclass(slots=True)
class _OfKind:
    """The programs of one kind.

    Attributes:
        since_s: times since which silent programs are silent, the longest silence first.
        ends: queries that are not judged yet: when each ended, its program, and its number.
        longest_s: longest silence lately before a program went on; None if none did.
    """

    since_s: dict[ProgramKey, float] = field(default_factory=dict)
    ends: deque[tuple[float, Program, int]] = field(default_factory=deque)
    longest_s: float | None = None


class SilentPrograms:
    """The programs of several queries, by kind, whose ends are not said."""

    def __init__(self) -> None:
        self._kinds: dict[str, _OfKind] = {}

    def query_ended(self, program: Program, number: int, now_s: float) -> None:
        """Note that a query has ended, and that its program is silent from now on if it was the last one."""
        of_kind = self._kinds.pop(program.kind, None) or _OfKind()
        self._kinds[program.kind] = of_kind
        of_kind.ends.append((now_s, program, number))
        if len(of_kind.ends) > _MAX_ENDS:
            of_kind.ends.popleft()
        if not program.queries:
            of_kind.since_s[program.name] = now_s
        if len(self._kinds) > _MAX_KINDS:
            self._forget_one()

    def went_on(self, program: Program, now_s: float) -> None:
        """Note that a program goes on, if it was silent, and learn for how long it was."""
        of_kind = self._kinds.get(program.kind)
        since_s = None if of_kind is None else of_kind.since_s.pop(program.name, None)
        if of_kind is not None and since_s is not None:
            of_kind.longest_s = max(now_s - since_s, _FORGETS * (of_kind.longest_s or 0.0))

    def give_up(self, program: Program) -> None:
        """Forget that a program is silent."""
        of_kind = self._kinds.get(program.kind)
        if of_kind is not None:
            of_kind.since_s.pop(program.name, None)

    def judged(self, kind: str, now_s: float) -> Iterator[tuple[Program, int]]:
        """Yield the programs of a kind that have gone on by now, or count as ended, after their query with
        the number beside.
        """
        of_kind = self._kinds.get(kind)
        if of_kind is None:
            return
        until_s = now_s - max(_SILENCE_S, of_kind.longest_s or 0.0)
        while of_kind.ends and of_kind.ends[0][0] < until_s:
            yield of_kind.ends.popleft()[1:]

    def overdue(self, kind: str, now_s: float) -> ProgramKey | None:
        """Return the program of a kind that has been silent for longest, if that is too long."""
        of_kind = self._kinds.get(kind)
        if of_kind is None or not of_kind.since_s:
            return None
        name = next(iter(of_kind.since_s))
        most_s = max(_SILENCE_S, _SILENCES * (of_kind.longest_s or _SILENCE_S))
        return name if now_s - of_kind.since_s[name] > most_s else None

    def check_invariants(self, expected: Set[ProgramKey]) -> None:
        """Check that only these programs are silent, and that tables keep within their limits. For tests."""
        assert set(chain.from_iterable(one.since_s for one in self._kinds.values())) <= expected
        assert len(self._kinds) <= _MAX_KINDS
        assert all(len(one.ends) <= _MAX_ENDS for one in self._kinds.values())

    def _forget_one(self) -> None:
        del self._kinds[next(iter(self._kinds))]
