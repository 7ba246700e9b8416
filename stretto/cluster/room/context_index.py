"""The contexts that are known, and which of them a request goes on with.

A request goes on with the context whose last prompt it begins with: first among those of the program that it
names, then, by its blocks alone, among all that are inside. The second needs more of the last prompt, as two
programs may have the same opening.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from itertools import islice

from stretto.cluster.room.contexts import Context, Program, RoomRequest
from stretto.cluster.room.instance_room import InstanceRoom
from stretto.cluster.room.silences import Returns, Silences

_SAME, _SURELY_SAME = 0.5, 0.9
"""Part of a context's last prompt with which a request must begin to go on with it, if it names the program
of the context, and if it does not.
"""
_MOST_KINDS = 256
_MOST_COMPARED = 16
"""Silent contexts of a program, the latest ones, whose prompts a request is compared with. Others are found
by their blocks, if they are inside.
"""


class ContextIndex:
    """All contexts, by program and by number."""

    def __init__(self) -> None:
        self.programs: dict[Hashable, Program] = {}
        self._contexts: dict[int, Context] = {}
        self._kinds: OrderedDict[tuple[str, Returns], Silences] = OrderedDict()
        self._num_added = 0

    def get(self, number: int) -> Context | None:
        """Return the context with a number; None if it was forgotten."""
        return self._contexts.get(number)

    def __len__(self) -> int:
        return len(self._contexts)

    def find(self, request: RoomRequest, rooms: Iterable[InstanceRoom]) -> tuple[Context | None, int]:
        """Return the silent context that a request goes on with, and how many blocks the two have in common;
        None if there is none.
        """
        program = self.programs.get(request.program)
        best, most = None, -1
        silent = program.silent if program else {}
        for context in islice(reversed(silent), _MOST_COMPARED):
            common = context.common(request.blocks)
            if common > most and common >= _SAME * len(context.blocks):
                best, most = context, common
        is_own = best is not None
        if is_own and len(silent) <= _MOST_COMPARED:
            return best, most
        for room in rooms:
            common, number = room.blocks.find(request.blocks)
            if common > max(most, 0) and number is not None:
                context = self._contexts[number]
                least = _SAME if context.program is program else _SURELY_SAME
                is_better = context.program is program or not is_own
                if context.request is None and is_better and common >= least * len(context.blocks):
                    best, most = context, common
        return best, max(most, 0)

    def add(self, request: RoomRequest, now_s: float) -> Context:
        """Return a new context for a request that goes on with none."""
        program = self.programs.get(request.program)
        if program is None:
            program = self.programs[request.program] = Program(request.program, now_s)
        self._num_added += 1
        context = Context(self._num_added, program, self.silences(request))
        program.contexts[context] = None
        self._contexts[context.number] = context
        return context

    def forget(self, context: Context) -> None:
        """Forget a context, which has no room; and its program, if it has no other."""
        assert not context.is_inside
        del self._contexts[context.number]
        del context.program.contexts[context]
        if not context.program.contexts and self.programs.get(context.program.name) is context.program:
            del self.programs[context.program.name]

    def silences(self, request: RoomRequest) -> Silences:
        """Return what is known of the silences after answers of a request's kind."""
        kind = request.kind, request.returns
        found = self._kinds.pop(kind, None) or Silences(request.returns)
        self._kinds[kind] = found
        if len(self._kinds) > _MOST_KINDS:
            self._kinds.popitem(last=False)
        return found

    def known_silences(self, kind: str, returns: Returns) -> Silences | None:
        """Return what is known of the silences after answers of a kind; None if nothing is."""
        return self._kinds.get((kind, returns))

    def check_invariants(self) -> None:
        """Check that programs and numbers agree. For tests."""
        by_program = [one for program in self.programs.values() for one in program.contexts]
        over = [one for one in self._contexts.values() if one.program.is_over]
        assert {*by_program, *over} == {*self._contexts.values()}
        assert all(one.request is not None for one in over)
