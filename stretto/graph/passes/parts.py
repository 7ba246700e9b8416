"""Cuts the steps of a graph into the parts that can run at different times, for predictions.

A part is all of a step, a piece of the list that a step is applied to, or a share of a streamed decode.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.graph.graph import HINT, Graph, Primitive
from stretto.graph.ops import Ops
from stretto.graph.passes.base import DEFAULT_PROFILE, Profiles

_ASSUMED_ITEMS = 3
_MOST_ITEMS = 64
"""Largest length of a list whose settings allow more: predictions take a time that grows with its square."""


@dataclass(slots=True)
class Part:
    """A part of a primitive (step of an app).

    Attributes:
        num_items: number of items of a list that the primitive is applied to; 1 if it is not applied to a
            list.
        share: share of the primitive's work; less than 1 for a part of a streamed decode.
        num_waits: number of parts that must end first and have not ended.
        readers: places, in the list of all parts, of those that wait for this one.
    """

    primitive: Primitive
    num_items: int = 1
    share: float = 1.0
    num_waits: int = 0
    readers: list[int] = field(default_factory=list)


def cut(graph: Graph, profiles: Profiles, ops: Ops) -> list[Part]:
    """Cut each primitive (step) of a graph into parts, as its streamed arguments allow.

    Lengths of lists that are not known before a query runs are assumed: a document has two efficient batches
    of chunks, other lists as many items as their settings allow, at most 64, or three.
    """
    return _Cutter(graph, profiles, ops).parts


class _Cutter:
    def __init__(self, graph: Graph, profiles: Profiles, ops: Ops) -> None:
        self.parts: list[Part] = []
        self._graph, self._profiles, self._ops = graph, profiles, ops
        self._lengths: dict[str, int] = {}
        self._pieces: dict[str, list[tuple[int, int, int]]] = {}
        """Half-open range of items, and place of the part that yields them, by name of the value."""
        for primitive in graph:
            self._cut(primitive)
        for before, after in graph.order:
            for _, _, part in self._pieces[after]:
                self._wait(part, before)

    def _cut(self, primitive: Primitive) -> None:
        streamed = self._streamed_items(primitive)
        length = 1
        if streamed:
            ranges = [(item, item + 1) for item in range(streamed)]
        elif each := [arg for arg in primitive.args if arg.each]:
            length = min(self._lengths.get(arg.ref.name, 1) for arg in each)
            piece = min(arg.piece or length for arg in each)
            ranges = [(lo, min(lo + piece, length)) for lo in range(0, length, piece)]
        else:
            ranges = [(0, 1)]
        pieces = self._pieces[primitive.name] = []
        for lo, hi in ranges:
            place = len(self.parts)
            self.parts.append(Part(primitive, hi - lo, 1 / streamed if streamed else 1.0))
            if streamed and pieces:
                self._wait_for(place, pieces[-1][2])
            for arg in primitive.args:
                if arg.port != HINT or arg.each:
                    self._wait(place, arg.ref.name, (lo, hi) if arg.each and arg.piece else None)
            pieces.append((lo, hi, place))
        self._lengths[primitive.name] = self._length(primitive, length)
        if self._ops.spec(primitive).flatten:  # its items are not those of its pieces
            self._pieces[primitive.name] = [(0, self._lengths[primitive.name], place) for *_, place in pieces]

    def _wait(self, part: int, name: str, items: tuple[int, int] | None = None) -> None:
        """Let a part wait for those parts of a value that yield the items, a half-open range; None for
        all.
        """
        for lo, hi, source in self._pieces.get(name, ()):
            if items is None or (lo < items[1] and items[0] < hi):
                self._wait_for(part, source)

    def _wait_for(self, part: int, source: int) -> None:
        self.parts[source].readers.append(part)
        self.parts[part].num_waits += 1

    def _streamed_items(self, primitive: Primitive) -> int:
        """Return the number of items that leave a decode while it runs; 0 if none do."""
        if primitive.op != "decode":
            return 0
        readers = self._graph.consumers.get(primitive.name, ())
        if not any(arg.each and arg.piece is not None for _, arg in readers):
            return 0
        return self._length(primitive, 1)

    def _length(self, primitive: Primitive, length: int) -> int:
        """Return the assumed length of the list that a primitive yields; `length` is that of its inputs."""
        if self._ops.spec(primitive).flatten:
            readers = (reader for reader, arg in self._graph.consumers.get(primitive.name, ()) if arg.each)
            engine = next((reader.engine for reader in readers), None)
            return 2 * self._profiles.get(engine or "", DEFAULT_PROFILE).max_efficient_batch
        if primitive.is_mapped():
            return length
        known = (primitive.setting(key) for key in ("max_items", "best"))
        limits = (limit for limit in known if isinstance(limit, int) and limit > 0)
        return min(next(limits, _ASSUMED_ITEMS), _MOST_ITEMS)
