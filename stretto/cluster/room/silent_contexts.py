"""The contexts that are silent: when to look at each again, and which are remembered though they have no
room.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator

from stretto.cluster.room.context_index import ContextIndex
from stretto.cluster.room.contexts import Context, RoomRequest
from stretto.cluster.room.rooms import Rooms
from stretto.cluster.room.silences import NUM_BINS, Silences, end_s, silence_bin
from stretto.model.sorted_queue import SortedQueue

_MOST_OUTSIDE = 10_000
_MOST_OF_PROGRAM, _MOST_INSIDE = 256, 4096
"""Silent contexts of a program, and those that have room, for each instance."""
_MOST_PASSED = 2000
"""Bins of contexts without room that are counted at once: after an idle time there may be many."""
_LATE_S = 0.05
"""Seconds by which they may be counted late, so that many are counted together."""
_LONG_AGO = 2.0
"""Memories that an instance has computed since a context was used, from which on its prefix is gone for sure.
"""


class SilentContexts:
    """The silent contexts of all programs.

    A context without room is remembered as long as its prefix may be in a cache, and at most `_MOST_OUTSIDE`.
    Each is looked at at one time only, so that the machine takes no more memory the more is asked of it. Most
    are without room, and only counted. Those in the same bin wait in order, which is cheaper than a sorted
    queue; one that lost its room while it was silent comes behind them, and is counted a little late.
    """

    def __init__(self, index: ContextIndex, rooms: Rooms) -> None:
        self._index = index
        self._rooms = rooms
        self._edges = SortedQueue[Context]()
        self._inside: OrderedDict[Context, None] = OrderedDict()
        self._outside: OrderedDict[Context, None] = OrderedDict()
        self._by_bin: list[OrderedDict[Context, None]] = [OrderedDict() for _ in range(NUM_BINS)]
        """The silent contexts without room, by the bin that they are in."""
        self._passes_s = math.inf
        """Time at which the first of them passes to the next bin."""

    @property
    def next_s(self) -> float:
        """Time at which there is something to count, or a context to leave; infinite if there is none."""
        if not self._edges:
            return self._passes_s
        (look_s, _), passes_s = self._edges.first_key, self._passes_s
        return float(look_s if look_s < passes_s else passes_s)

    def patience(self, context: Context) -> int:
        """Return the bin of silences with whose begin a context inside leaves."""
        return context.silences.patience(self._rooms.around(context).keeps_for_s())

    def is_worth_room(self, silences: Silences) -> bool:
        """Return whether contexts of a kind are likely to come back after an answer while it is worth to keep
        them, wherever that is longest.
        """
        rooms = self._rooms.by_id
        within_s = 0.0 if rooms else math.inf
        for room in rooms.values():
            within_s = max(within_s, room.keeps_for_s())
        return silences.patience(within_s) > 0

    def begin(self, context: Context, now_s: float) -> Context | None:
        """Begin to wait for the next request of a context; return another one that is to be forgotten, if
        there are too many.
        """
        context.last_s, context.bin = now_s, 0
        context.silences.begin()
        context.program.silent[context] = None
        if context.is_inside:
            self._inside[context] = None
            self._watch(context)
        else:
            self._by_bin[0][context] = None
            self._passes_s = min(self._passes_s, now_s + end_s(0))
        if len(context.program.silent) > _MOST_OF_PROGRAM:
            return next(iter(context.program.silent))
        return next(iter(self._inside)) if len(self._inside) > _MOST_INSIDE * len(self._rooms.by_id) else None

    def end(self, context: Context, request: RoomRequest, common: int, now_s: float) -> None:
        """Learn from a context that goes on with a request, which has `common` blocks of the last prompt."""
        self.forget(context)
        is_useful = 2 * common >= len(context.blocks)
        number = silence_bin(now_s - context.last_s)
        for passed in range(context.bin, number):
            context.silences.pass_bin(passed)
        context.silences.end_in(number, is_useful=is_useful)
        growth = request.num_tokens - context.num_tokens
        if is_useful and growth >= 0:
            self._rooms.means.note_growth(growth)

    def overdue(self, now_s: float) -> Iterator[Context]:
        """Count the silences that have lasted until the end of a bin by now, and yield the contexts inside
        for which that is too long. The caller lets each leave before it asks for the next.
        """
        if self._passes_s <= now_s:
            self._pass_bins(now_s)
        while self._edges and (at_s := self._edges.first_key[0]) <= now_s:
            context = self._edges.first
            while context.last_s + end_s(context.bin) <= at_s:
                context.silences.pass_bin(context.bin)
                context.bin += 1
            self._watch(context)
            if context.bin >= self.patience(context):
                yield context

    def _pass_bins(self, now_s: float) -> None:
        """Count the silences without room that have lasted until the end of a bin by now, or some of them."""
        num_left, passes_s = _MOST_PASSED, math.inf
        for number, contexts in enumerate(self._by_bin[:-1]):
            length_s, later = end_s(number), self._by_bin[number + 1]
            passed: dict[Silences, int] = {}
            while contexts:
                context = next(iter(contexts))
                if num_left == 0 or context.last_s + length_s > now_s:
                    passes_s = min(passes_s, context.last_s + length_s)
                    break
                num_left -= 1
                del contexts[context]
                context.bin = number + 1
                later[context] = None
                passed[context.silences] = passed.get(context.silences, 0) + 1
            for silences, num in passed.items():
                silences.pass_bin(number, num)
        self._passes_s = max(passes_s, now_s + _LATE_S)

    def remember(self, context: Context) -> Context | None:
        """Remember a silent context without room; return another one that is to be forgotten, if there is
        one.
        """
        self._inside.pop(context, None)
        if context in context.program.silent:
            self._unwatch(context)
            self._by_bin[context.bin][context] = None
            self._passes_s = min(self._passes_s, context.last_s + end_s(context.bin))
        self._outside[context] = None
        self._outside.move_to_end(context)
        oldest = next(iter(self._outside))
        room = self._rooms.of(oldest)
        is_gone = room is None or room.computed - oldest.used_at > _LONG_AGO * room.belief.tokens
        is_forgotten = len(self._outside) > _MOST_OUTSIDE or (is_gone and oldest is not context)
        return oldest if is_forgotten else None

    def forget(self, context: Context) -> None:
        """Wait for a context no longer, if it was silent."""
        self._outside.pop(context, None)
        self._inside.pop(context, None)
        context.program.silent.pop(context, None)
        if context.look_s is not None:
            self._unwatch(context)
        else:
            self._by_bin[context.bin].pop(context, None)

    def check_invariants(self) -> None:
        """Check which contexts have room, and that each is looked at at one time at most. For tests."""
        assert all(one.request is None and one.is_inside for one in self._inside)
        assert all(self._index.get(one.number) is one and one.request is None for one in self._edges)
        assert all(one.is_inside for one in self._edges)
        assert all(one.request is None and not one.is_inside for one in self._outside)
        assert sum(map(len, self._by_bin)) == len(self._outside)
        for number, contexts in enumerate(self._by_bin):
            assert all(one.bin == number and one in self._outside for one in contexts)

    def _watch(self, context: Context) -> None:
        """Look at a silent context inside when it has been silent for too long to keep its room."""
        number = max(context.bin, self.patience(context) - 1)
        self._unwatch(context)
        if (edge_s := end_s(number)) < math.inf:
            context.look_s = context.last_s + edge_s
            self._edges.add((context.look_s, context.number), context)

    def _unwatch(self, context: Context) -> None:
        if context.look_s is not None:
            self._edges.remove((context.look_s, context.number))
            context.look_s = None
