"""Cuts the steps of a graph into the parts that can run at different times, for predictions.

A part is all of a step, a piece of the list that a step is applied to, or a share of a streamed decode.
"""

from __future__ import annotations

from stretto.graph.graph import Graph
from stretto.graph.passes.base import DEFAULT_PROFILE
from stretto.graph.passes.steps import Step, Steps


class Part:
    """A part of a step of an app.

    Attributes:
        num_items: number of items of a list that the step is applied to; 1 if it is not applied to a list.
        share: share of the step's work; less than 1 for a part of a streamed decode.
        num_waits: number of parts that must end first and have not ended.
        readers: places, in the list of all parts, of those that wait for this one.
    """

    __slots__ = ("num_items", "num_waits", "readers", "share", "step")

    def __init__(self, step: Step, num_items: int = 1, share: float = 1.0) -> None:
        self.step = step
        self.num_items = num_items
        self.share = share
        self.num_waits = 0
        self.readers: list[int] = []


def cut(graph: Graph, steps: Steps) -> list[Part]:
    """Cut each step of a graph into parts, as its streamed arguments allow.

    Lengths of lists that are not known before a query runs are assumed: a document has two efficient batches
    of chunks, other lists as many items as their settings allow, at most 64, or three.
    """
    return _Cutter(graph, steps).parts


class _Cutter:
    def __init__(self, graph: Graph, steps: Steps) -> None:
        self.parts: list[Part] = []
        self._profiles = steps.conditions.profiles
        self._lengths: dict[str, int] = {}
        self._pieces: dict[str, list[tuple[int, int, int]]] = {}
        """Half-open range of items, and place of the part that yields them, by name of the value."""
        self._first_readers: dict[str, Step] = {}
        """The first of the steps that are applied to each item of a value, by name of the value."""
        self._streamed: set[str] = set()
        """Names of the values that are taken in pieces."""
        known = [steps.of(primitive) for primitive in graph.primitives]
        for step in known:
            for name, piece in step.each:
                self._first_readers.setdefault(name, step)
                if piece is not None:
                    self._streamed.add(name)
        for step in known:
            if step.each or step.flattens or (step.is_decode and step.primitive.name in self._streamed):
                self._cut(step)
            else:
                self._add(step)
        for before, after in graph.order:
            for _, _, part in self._pieces[after]:
                self._wait(part, before)

    def _add(self, step: Step) -> None:
        """Add a step that is a single part."""
        place = len(self.parts)
        part = Part(step)
        self.parts.append(part)
        pieces = self._pieces
        for name, _ in step.reads:
            for _, _, source in pieces.get(name, ()):
                self.parts[source].readers.append(place)
                part.num_waits += 1
        pieces[step.primitive.name] = [(0, 1, place)]
        self._lengths[step.primitive.name] = step.num_items

    def _cut(self, step: Step) -> None:
        """Add a step that is applied to a list, or makes one while it runs."""
        name = step.primitive.name
        num_streamed = self._length(step, 1) if step.is_decode and name in self._streamed else 0
        length = 1
        ranges = [(0, 1)]
        if num_streamed:
            ranges = [(item, item + 1) for item in range(num_streamed)]
        elif step.each:
            length = min([self._lengths.get(source, 1) for source, _ in step.each])
            piece = min([own or length for _, own in step.each])
            ranges = [(lo, min(lo + piece, length)) for lo in range(0, length, piece)]
        pieces: list[tuple[int, int, int]] = []
        self._pieces[name] = pieces
        for lo, hi in ranges:
            place = len(self.parts)
            self.parts.append(Part(step, hi - lo, 1 / num_streamed if num_streamed else 1.0))
            if num_streamed and pieces:
                self._wait_for(place, pieces[-1][2])
            for source, own in step.reads:
                self._wait(place, source, (lo, hi) if own else None)
            pieces.append((lo, hi, place))
        self._lengths[name] = length = self._length(step, length)
        if step.flattens:  # its items are not those of its pieces
            self._pieces[name] = [(0, length, place) for *_, place in pieces]

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

    def _length(self, step: Step, length: int) -> int:
        """Return the assumed length of the list that a step yields; `length` is that of its inputs."""
        if step.flattens:
            reader = self._first_readers.get(step.primitive.name)
            engine = None if reader is None else reader.engine
            return 2 * (DEFAULT_PROFILE if engine is None else engine.profile).max_efficient_batch
        return length if step.each else step.num_items
