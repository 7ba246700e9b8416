"""Cuts the steps of a graph into the parts that can run at different times, for predictions.

A part is all of a step, a piece of the list that a step is applied to, or a share of a streamed decode.
"""

from __future__ import annotations

from stretto.graph.graph import Graph
from stretto.graph.passes.base import DEFAULT_PROFILE
from stretto.graph.passes.steps import PredictedStep, Steps, num_items


class StepPart:
    """A part of a step of an app.

    Attributes:
        num_items: number of items of a list that the step is applied to; 1 if it is not applied to a list.
        share: share of the step's work; less than 1 for a part of a streamed decode.
        num_waits: number of parts that must end first and have not ended.
        readers: places, in the list of all parts, of those that wait for this one.
    """

    __slots__ = ("num_items", "num_waits", "readers", "share", "step")

    def __init__(self, step: PredictedStep, num_items: int = 1, share: float = 1.0) -> None:
        self.step = step
        self.num_items = num_items
        self.share = share
        self.num_waits = 0
        self.readers: list[int] = []


def cut(graph: Graph, steps: Steps) -> list[StepPart]:
    """Cut each step of a graph into parts, as its streamed arguments allow.

    Lengths of lists that are not known before a query runs are assumed: a document has two efficient batches
    of chunks, other lists as many items as their settings allow, at most 64, or three.
    """
    return _Cutter(graph, steps).parts


class _Cutter:
    def __init__(self, graph: Graph, steps: Steps) -> None:
        self.parts: list[StepPart] = []
        self._lengths: dict[str, int] = {}
        """Assumed lengths of the values of steps that are applied to lists or make them, by name."""
        self._whole: dict[str, int] = {}
        """Places of the parts that are all of a step, by its name."""
        self._pieces: dict[str, list[tuple[int, int, int]]] = {}
        """Half-open range of items, and place of the part that yields them, by name of the other steps."""
        known = [steps.of(primitive) for primitive in graph.primitives]
        readers: dict[str, PredictedStep] = {}
        """The first of the steps that are applied to each item of a value, by name of the value."""
        streamed: set[str] = set()
        for step in known:
            for name, piece in step.each:
                readers.setdefault(name, step)
                if piece is not None:
                    streamed.add(name)
        for step in known:
            if step.is_decode and step.name in streamed:
                self._add_streamed(step)
            elif step.takes_pieces or step.flattens:
                self._add_pieces(step, readers.get(step.name))
            else:
                self._add_whole(step)
        for before, after in graph.order:
            for part in self._places(after):
                self._wait(part, before)

    def _add_whole(self, step: PredictedStep) -> None:
        place = len(self.parts)
        part = StepPart(step)
        if step.each:
            part.num_items = self._lengths[step.name] = self._input_length(step)
        self.parts.append(part)
        for name, _ in step.reads:
            if (source := self._whole.get(name)) is not None:
                self.parts[source].readers.append(place)
                part.num_waits += 1
            elif name in self._pieces:
                self._wait(place, name)
        self._whole[step.name] = place

    def _add_streamed(self, step: PredictedStep) -> None:
        """Add a decode whose items leave it while it runs."""
        length = 1 if step.each else num_items(step.primitive)
        self._lengths[step.name] = length
        pieces = self._pieces[step.name] = []
        for item in range(length):
            place = len(self.parts)
            self.parts.append(StepPart(step, 1, 1 / length))
            if item:
                self._wait_for(place, place - 1)
            for name, piece in step.reads:
                self._wait(place, name, (item, item + 1) if piece else None)
            pieces.append((item, item + 1, place))

    def _add_pieces(self, step: PredictedStep, reader: PredictedStep | None) -> None:
        """Add a step that is applied to the pieces of lists, or makes a list for each item.

        `reader` is the first step that is applied to each item of its value.
        """
        pieces = self._pieces[step.name] = []
        length = self._input_length(step) if step.each else 1
        piece = min([own or length for _, own in step.each], default=1)
        for lo in range(0, length, piece):
            hi = min(lo + piece, length)
            place = len(self.parts)
            self.parts.append(StepPart(step, hi - lo))
            for name, own in step.reads:
                self._wait(place, name, (lo, hi) if own else None)
            pieces.append((lo, hi, place))
        if step.flattens:  # its items are not those of its pieces
            engine = None if reader is None else reader.engine
            length = 2 * (DEFAULT_PROFILE if engine is None else engine.profile).max_efficient_batch
            pieces[:] = [(0, length, place) for *_, place in pieces]
        self._lengths[step.name] = length

    def _input_length(self, step: PredictedStep) -> int:
        """Return the assumed number of items that a step is applied to."""
        lengths = []
        for name, _ in step.each:
            length = self._lengths.get(name)
            if length is None:
                place = self._whole.get(name)
                length = 1 if place is None else num_items(self.parts[place].step.primitive)
            lengths.append(length)
        return min(lengths)

    def _places(self, name: str) -> list[int]:
        whole = self._whole.get(name)
        return [place for *_, place in self._pieces[name]] if whole is None else [whole]

    def _wait(self, part: int, name: str, items: tuple[int, int] | None = None) -> None:
        """Let a part wait for those parts of a value that yield the items, a half-open range; None for
        all.
        """
        if (whole := self._whole.get(name)) is not None:
            self._wait_for(part, whole)
        for lo, hi, source in self._pieces.get(name, ()):
            if items is None or (lo < items[1] and items[0] < hi):
                self._wait_for(part, source)

    def _wait_for(self, part: int, source: int) -> None:
        self.parts[source].readers.append(part)
        self.parts[part].num_waits += 1
