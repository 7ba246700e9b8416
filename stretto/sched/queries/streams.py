"""The items that flow between mapped nodes, the steps that are applied to each item of a list.

Items are fed in as they arrive. Results are put in place by index, so the order of arrival never shows. An
item that is absent or has failed keeps its place. When a whole stream has failed, so has the node, once all
its streams have ended: one of them may still turn out to be absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stretto.graph.execution_graph import Node
from stretto.model.errors import BadReply
from stretto.model.record import record
from stretto.model.values import ABSENT, AbsentType, Failure
from stretto.sched.queries.live_values import UNSET, Values

_NO_RESULTS = frozenset((AbsentType, Failure))
"""Types of items that are not worked on, but passed on as they are."""


@dataclass(slots=True)
class Mapped:
    """The progress of a mapped node over its items.

    Attributes:
        piece: number of items with which work may start while an input list still grows.
        failure: failure of an input that is not a list of items, with the place of its port.
        taken: number of items that have arrived and were handed out.
        flowed: number of leading results that have been passed on to other steps.
        total: number of all items; None while an input list may still grow.
        has_more: whether more items had arrived than were handed out the last time.
    """

    inputs: Mapping[str, object]
    piece: int
    failure: tuple[int, Failure] | None = None
    taken: int = 0
    flowed: int = 0
    num_done: int = 0
    total: int | None = None
    has_more: bool = False
    results: list[object] = field(default_factory=list)

    def put(self, lo: int, results: Sequence[object]) -> None:
        """Store results of a mapped node, those of the items from `lo` on, in their places.

        An item that has a result already keeps it.
        """
        for i, result in enumerate(results, lo):
            if self.results[i] is UNSET:
                self.results[i] = result
                self.num_done += 1

    @property
    def is_done(self) -> bool:
        """Whether all items of the mapped node are done: the input
        lists have ended and every item has a result.
        """
        return self.total is not None and self.num_done == self.total


@record
class Items:
    """A range of items that a mapped node can run now.

    The range is `lo` to `hi` (half-open). `inputs` has the values of all ports; those at ports
    in `each` are lists of these items.
    """

    lo: int
    hi: int
    inputs: Mapping[str, object]
    each: tuple[str, ...]


class Streams:
    """The lists of one running graph that are processed item by item: the progress of its mapped nodes,
    and the lists that still grow.
    """

    def __init__(self) -> None:
        self.growing: dict[int, list[object]] = {}
        self.mapped: dict[int, Mapped] = {}

    def open(self, node: Node, inputs: Mapping[str, object], failure: tuple[int, Failure] | None) -> None:
        """Begin to track a mapped node. Its inputs that are not item by item have come, or one has failed."""
        pieces = [arg.piece for arg in node.ins if arg.piece is not None]
        self.mapped[node.id] = Mapped(inputs, min(pieces, default=1), failure)

    def feed(self, node: Node, values: Values, most: int | None = None) -> list[Items] | AbsentType | Failure:
        """Return the ranges of items that have arrived at a mapped node since the last call and can run, of
        the next `most` items if that is given; absent and failed items are left out.

        If a whole input list is absent or has failed, `ABSENT` or that failure is returned, as the node's own
        result.

        Raises:
            BadReply: a value that should be a list is not one.
        """
        mapped = self.mapped[node.id]
        mapped.has_more = False
        ended = [values[arg.value] for arg in node.ins if arg.each]
        if any(value is ABSENT for value in ended):
            return ABSENT
        failures = [] if mapped.failure is None else [mapped.failure]
        for place, arg in enumerate(node.ins):
            if arg.each and isinstance(value := values[arg.value], Failure):
                failures.append((place, value))
        if failures:
            has_ended = all(value is not UNSET for value in ended)
            return min(failures, key=lambda failure: failure[0])[1] if has_ended else []
        columns = self._columns(node, values)
        available = min(map(len, columns.values()))
        if all(value is not UNSET for value in ended):
            mapped.total = available
        lo = mapped.taken
        if most is not None and available > lo + most:
            available, mapped.has_more = lo + most, True
        if available == lo or (available - lo < mapped.piece and mapped.total is None):
            return []
        mapped.taken = available
        mapped.results.extend([UNSET] * (available - lo))
        arrived = [column[lo:available] for column in columns.values()]
        runs = [(lo, available)]
        if not all(_NO_RESULTS.isdisjoint(map(type, items)) for items in arrived):
            for i, row in enumerate(zip(*arrived, strict=True), lo):
                if any(item is ABSENT for item in row):
                    mapped.put(i, [ABSENT])
                elif failed := [item for item in row if isinstance(item, Failure)]:
                    mapped.put(i, failed[:1])
            runs = _runs_unset(mapped.results, lo, available)
        return [
            Items(
                start,
                end,
                {**mapped.inputs, **{port: items[start:end] for port, items in columns.items()}},
                tuple(columns),
            )
            for start, end in runs
        ]

    def flow(self, node: Node, nodes: Mapping[int, Node]) -> tuple[int, ...]:
        """Append finished results of a mapped node to its output lists, in order.

        Returns the ids of the lists that have grown.

        Raises:
            BadReply: a result lacks one of its parts.
        """
        mapped = self.mapped[node.id]
        start = mapped.flowed
        while mapped.flowed < len(mapped.results) and mapped.results[mapped.flowed] is not UNSET:
            mapped.flowed += 1
        if mapped.flowed == start or node.is_effect:
            return ()
        outs = _item_outs(node, nodes)
        items = mapped.results[start : mapped.flowed]
        for place, out in enumerate(outs):
            self.growing.setdefault(out, []).extend(_column_of(node, items, place, len(outs)))
        return outs

    def close(self, node: Node, nodes: Mapping[int, Node]) -> list[object]:
        """Stop tracking a mapped node whose items are all done; return its outputs.

        They are lists, those of a decode fused with it included; that of an effect
        is True, or the failure of its first failed item.
        """
        mapped = self.mapped.pop(node.id)
        if node.is_effect:
            return [next((result for result in mapped.results if isinstance(result, Failure)), True)]
        return [self.growing.pop(out, []) for out in _item_outs(node, nodes)]

    def drop(self, node: Node) -> None:
        """Forget a node that has ended, with its output lists that still grow."""
        self.mapped.pop(node.id, None)
        if self.growing:
            for out in node.outs:
                self.growing.pop(out, None)

    def append(self, value_id: int, offset: int, item: object) -> bool:
        """Append an item to a list that still grows; return False, and change nothing, if `offset` is not the
        list's next index.
        """
        growing = self.growing.setdefault(value_id, [])
        if offset != len(growing):
            return False
        growing.append(item)
        return True

    def end_pieces(self, node: Node, value: object) -> None:
        """Close the list whose items a decode has delivered one by one, and check that the
        decode's whole `value` begins with these items.

        Raises:
            BadReply: the value begins otherwise.
        """
        growing = self.growing.pop(node.outs[0], None)
        if growing is not None and (not isinstance(value, list) or value[: len(growing)] != growing):
            raise BadReply("the items it streamed are not those it returned", step=node.name)

    def check_invariants(self) -> None:
        """Check that the recorded number of finished items of each mapped node
        agrees with its results. For tests.
        """
        for node_id, mapped in self.mapped.items():
            assert mapped.flowed <= mapped.num_done <= mapped.taken <= len(mapped.results), node_id
            assert mapped.num_done == sum(1 for result in mapped.results if result is not UNSET), node_id

    def _columns(self, node: Node, values: Values) -> dict[str, Sequence[object]]:
        """Return the items of each stream that have come, by port."""
        columns: dict[str, Sequence[object]] = {}
        for arg in node.ins:
            if not arg.each:
                continue
            value = values[arg.value]
            if value is UNSET:
                value = self.growing.get(arg.value, ())
            if isinstance(value, str) or not isinstance(value, Sequence):
                raise BadReply(f"port {arg.port!r} got a {type(value).__name__}, not a list", step=node.name)
            columns[arg.port] = value
        return columns


def by_port(node: Node, result: object) -> list[object]:
    """Return the outputs of a step that has several, in the order of its out ports, from its
    engine's answer, which maps ports to values.
    """
    if not isinstance(result, Mapping) or any(port not in result for port in node.spec.outputs):
        raise BadReply(f"not a value for each of {', '.join(node.spec.outputs)}", step=node.name)
    return [result[port] for port in node.spec.outputs]


def _runs_unset(results: Sequence[object], lo: int, hi: int) -> list[tuple[int, int]]:
    """Return the half-open runs within `lo` to `hi` of items that have no result yet."""
    runs: list[tuple[int, int]] = []
    start = lo
    for i in range(lo, hi):
        if results[i] is not UNSET:
            if i > start:
                runs.append((start, i))
            start = i + 1
    if hi > start:
        runs.append((start, hi))
    return runs


def _item_outs(node: Node, nodes: Mapping[int, Node]) -> tuple[int, ...]:
    """Return the ids of the values that grow with a mapped node's results, those of a fused decode
    included.
    """
    return node.outs if node.fused is None else (*node.outs, *nodes[node.fused].outs)


def _column_of(node: Node, results: Sequence[object], place: int, num_outs: int) -> list[object]:
    """Return the items that `results` of a mapped node add to the value at `place` of its outs."""
    column: list[object] = []
    for result in results:
        if num_outs == 1 or result is ABSENT or isinstance(result, Failure):
            item = result
        elif node.spec.runs_on == "llm":
            assert isinstance(result, tuple)
            item = result[place]
        else:
            item = by_port(node, result)[place]
        if not node.spec.flatten or isinstance(item, Failure):
            column.append(item)
        elif isinstance(item, list):
            column.extend(item)
        elif item is not ABSENT:
            raise BadReply(f"a {type(item).__name__} instead of a list", step=node.name)
    return column
