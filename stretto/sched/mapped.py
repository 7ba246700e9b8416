"""Progress of a mapped primitive over the items of its streams.

Results are put in place by index and flow on in order, so the order of arrival never shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stretto.core import ABSENT
from stretto.errors import BadReply
from stretto.graph.compile import Node


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET = _Unset()
"""In place of a value or result that is still to come. (`None` and `ABSENT` are values.)"""


@dataclass(slots=True)
class Mapped:
    """Progress of an open mapped node over its items.

    `results[:flowed]` have been passed on; `total` is None while a stream may still grow.
    """

    inputs: Mapping[str, object]
    piece: int
    taken: int = 0
    flowed: int = 0
    num_done: int = 0
    total: int | None = None
    results: list[object] = field(default_factory=list)


def runs_present(columns: Mapping[str, Sequence[object]], lo: int, hi: int) -> list[tuple[int, int]]:
    """Half-open runs within `lo` to `hi` in which no column is absent."""
    runs: list[tuple[int, int]] = []
    start = lo
    for i in range(lo, hi):
        if any(column[i] is ABSENT for column in columns.values()):
            if i > start:
                runs.append((start, i))
            start = i + 1
    if hi > start:
        runs.append((start, hi))
    return runs


def item_outs(node: Node, nodes: Sequence[Node]) -> tuple[int, ...]:
    """The values that grow with the results of a mapped node; a fused decode's too."""
    return node.outs if node.fused is None else (*node.outs, *nodes[node.fused].outs)


def column_of(node: Node, results: Sequence[object], place: int, num_outs: int) -> list[object]:
    """What `results` of a mapped node add to the value at `place` of its outs."""
    column: list[object] = []
    for result in results:
        if num_outs == 1 or result is ABSENT:
            item = result
        elif node.fused is not None:
            assert isinstance(result, tuple)
            item = result[place]
        else:
            item = by_port(node, result)[place]
        if not node.spec.flatten:
            column.append(item)
        elif isinstance(item, list):
            column.extend(item)
        elif item is not ABSENT:
            raise BadReply(f"a {type(item).__name__} instead of a list", step=node.name)
    return column


def by_port(node: Node, result: object) -> list[object]:
    """The out values of an op with several out ports, from the mapping that its engine answers."""
    if not isinstance(result, Mapping) or any(port not in result for port in node.spec.outputs):
        raise BadReply(f"not a value for each of {', '.join(node.spec.outputs)}", step=node.name)
    return [result[port] for port in node.spec.outputs]
