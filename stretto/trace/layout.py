"""Lays out a small graph: places of nodes in columns from left to right, and routes of edges.

A node is one column right of its latest predecessor. Edges that skip columns pass through *bends*, which are
ordered like nodes. The edges of one bundle share their bends, so that a value with many readers leaves as one
line. Columns are ordered by barycentres; then every node moves towards its neighbours as far as the order
allows.

Source: Sugiyama, Tagawa and Toda 1981, in its simplest form.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import TypeAlias

_SWEEPS = 12
_BEND_HEIGHT = 10.0
_BEND_WEIGHT = 6.0
_GAP_X, _GAP_Y = 64.0, 18.0
"""Distances between columns, and between nodes of a column."""

Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """A node of a graph's drawing with its place: `x` of the left edge, `y` of the centre, and size."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of a graph's drawing, from node `tail` to node `head`.

    Edges with the same tail and `bundle` are drawn as one line as far as possible.
    """

    tail: str
    head: str
    bundle: Hashable = None


@dataclass(frozen=True, slots=True)
class _Bend:
    """The point where the edges of a bundle pass through a column."""

    tail: str
    bundle: Hashable
    column: int


_Stop: TypeAlias = str | _Bend
_Links: TypeAlias = Mapping[_Stop, list[_Stop]]


@dataclass(frozen=True, slots=True)
class Layout:
    """The finished layout of a graph's drawing: where its nodes stand and how its edges run.

    Attributes:
        boxes: place of each node, by name.
        routes: points of each edge, from the box where it begins to the box where it ends.
    """

    boxes: Mapping[str, Box]
    routes: Sequence[Sequence[Point]]
    width: float
    height: float


def lay_out(sizes: Mapping[str, tuple[float, float]], edges: Sequence[Edge]) -> Layout:
    """Lay out a graph for drawing, in columns from left to right. The edges must form no cycle.

    Args:
        sizes: width and height of each node, by name.
    """
    column_of = _columns(sizes, edges)
    chains = [_chain(edge, column_of) for edge in edges]
    columns: list[list[_Stop]] = [[] for _ in range(max(column_of.values(), default=-1) + 1)]
    for node in sizes:
        columns[column_of[node]].append(node)
    bends = dict.fromkeys(stop for chain in chains for stop in chain if isinstance(stop, _Bend))
    for bend in bends:
        columns[bend.column].append(bend)
    before: dict[_Stop, list[_Stop]] = {stop: [] for column in columns for stop in column}
    after: dict[_Stop, list[_Stop]] = {stop: [] for stop in before}
    for tail, head in dict.fromkeys(link for chain in chains for link in pairwise(chain)):
        before[head].append(tail)
        after[tail].append(head)
    columns = _order(columns, before, after)
    heights = dict.fromkeys(before, _BEND_HEIGHT) | {node: height for node, (_, height) in sizes.items()}
    ys = _heights(columns, before, after, heights)
    widths = [
        max((sizes[stop][0] for stop in column if isinstance(stop, str)), default=0) for column in columns
    ]
    lefts = [sum(widths[:i]) + i * _GAP_X for i in range(len(widths))]
    boxes = {node: Box(lefts[column_of[node]], ys[node], *sizes[node]) for node in sizes}
    routes: list[list[Point]] = []
    for edge, chain, arrival in zip(edges, chains, _arrivals(chains, boxes, ys), strict=True):
        box, right = boxes[edge.tail], lefts[column_of[edge.tail]] + widths[column_of[edge.tail]]
        route: list[Point] = [(box.x + box.width, box.y), (right, box.y)]
        for stop in chain:
            if isinstance(stop, _Bend):
                left = lefts[stop.column]
                route += [(left, ys[stop]), (left + widths[stop.column], ys[stop])]
        routes.append([*route, (boxes[edge.head].x, arrival)])
    bottoms = [y + heights[stop] / 2 for stop, y in ys.items()]
    return Layout(boxes, routes, lefts[-1] + widths[-1] if columns else 0.0, max(bottoms, default=0.0))


def _columns(nodes: Iterable[str], edges: Sequence[Edge]) -> dict[str, int]:
    """Column of each node: the length of the longest path to it, in edges."""
    tails: dict[str, list[str]] = {node: [] for node in nodes}
    for edge in edges:
        tails[edge.head].append(edge.tail)
    columns: dict[str, int] = {}
    for node in TopologicalSorter(tails).static_order():
        columns[node] = 1 + max((columns[tail] for tail in tails[node]), default=-1)
    return columns


def _chain(edge: Edge, column_of: Mapping[str, int]) -> list[_Stop]:
    between = range(column_of[edge.tail] + 1, column_of[edge.head])
    return [edge.tail, *(_Bend(edge.tail, edge.bundle, column) for column in between), edge.head]


def _order(columns: list[list[_Stop]], before: _Links, after: _Links) -> list[list[_Stop]]:
    """Order the columns: sweep right and left, sort each by the mean place of its neighbours, keep the
    best."""
    best, fewest = columns, _num_crossings(columns, after)
    current = [list(column) for column in columns]
    for sweep in range(_SWEEPS):
        neighbours = before if sweep % 2 == 0 else after
        for column in current if sweep % 2 == 0 else reversed(current):
            places = {stop: at for other in current for at, stop in enumerate(other)}
            means = {stop: _mean([places[n] for n in neighbours[stop]], places[stop]) for stop in column}
            column.sort(key=means.__getitem__)
        if (crossings := _num_crossings(current, after)) < fewest:
            best, fewest = [list(column) for column in current], crossings
    return best


def _num_crossings(columns: list[list[_Stop]], after: _Links) -> int:
    total = 0
    for column, following in pairwise(columns):
        place = {node: at for at, node in enumerate(following)}
        heads = [at for node in column for at in sorted(place[head] for head in after[node])]
        total += sum(1 for i, a in enumerate(heads) for b in heads[i + 1 :] if b < a)
    return total


def _heights(
    columns: list[list[_Stop]], before: _Links, after: _Links, heights: Mapping[_Stop, float]
) -> dict[_Stop, float]:
    """Vertical centres, from 0 down: in order, at least `_GAP_Y` apart, and near those of the neighbours."""
    ys: dict[_Stop, float] = {}
    steps = {
        (a, b): (heights[a] + heights[b]) / 2 + _GAP_Y for column in columns for a, b in pairwise(column)
    }
    for column in columns:
        y = 0.0
        for stop in column:
            ys[stop] = y + heights[stop] / 2
            y += heights[stop] + _GAP_Y
    for sweep in range(2 * _SWEEPS):
        for column in columns if sweep % 2 == 0 else reversed(columns):
            down = {stop: _pull(stop, ys, before, after) for stop in column}
            up = dict(down)
            for a, b in pairwise(column):
                down[b] = max(down[b], down[a] + steps[a, b])
            for b, a in pairwise(reversed(column)):
                up[a] = min(up[a], up[b] - steps[a, b])
            ys |= {stop: (down[stop] + up[stop]) / 2 for stop in column}
    _straighten(ys, columns, steps)
    top = min((ys[stop] - heights[stop] / 2 for stop in ys), default=0.0)
    return {stop: y - top for stop, y in ys.items()}


def _pull(stop: _Stop, ys: Mapping[_Stop, float], before: _Links, after: _Links) -> float:
    """Preferred height of a stop: the mean of its neighbours, in which bends of a bundle weigh more."""
    total = weight = 0.0
    for other in (*before[stop], *after[stop]):
        own = _BEND_WEIGHT if isinstance(stop, _Bend) and isinstance(other, _Bend) else 1.0
        total += own * ys[other]
        weight += own
    return total / weight if weight else ys[stop]


def _straighten(
    ys: dict[_Stop, float], columns: list[list[_Stop]], steps: Mapping[tuple[_Stop, _Stop], float]
) -> None:
    """Put consecutive bends of a bundle at one height, as many as their columns have room for."""
    runs: dict[tuple[str, Hashable], list[tuple[_Bend, float, float]]] = {}
    for column in columns:
        for above, stop, below in zip([None, *column], column, [*column[1:], None], strict=False):
            if isinstance(stop, _Bend):
                lowest = -math.inf if above is None else ys[above] + steps[above, stop]
                highest = math.inf if below is None else ys[below] - steps[stop, below]
                run = runs.setdefault((stop.tail, stop.bundle), [])
                low = max([lowest, *(low for _, low, _ in run)])
                high = min([highest, *(high for _, _, high in run)])
                if low > high:
                    run.clear()
                run.append((stop, lowest, highest))
                low = max(low for _, low, _ in run)
                high = min(high for _, _, high in run)
                middle = sum(ys[bend] for bend, _, _ in run) / len(run)
                ys |= {bend: min(max(middle, low), high) for bend, _, _ in run}


def _arrivals(chains: list[list[_Stop]], boxes: Mapping[str, Box], ys: Mapping[_Stop, float]) -> list[float]:
    """Heights at which edges arrive on the left side of their heads: apart, and in the order of origin."""
    of_head: dict[_Stop, list[int]] = {}
    for i, chain in enumerate(chains):
        of_head.setdefault(chain[-1], []).append(i)
    arrivals = [0.0] * len(chains)
    for head, own in of_head.items():
        assert isinstance(head, str)
        own.sort(key=lambda i: ys[chains[i][-2]])
        box = boxes[head]
        step = min(14.0, (box.height - 12) / max(1, len(own) - 1))
        for at, i in enumerate(own):
            arrivals[i] = box.y + (at - (len(own) - 1) / 2) * step
    return arrivals


def _mean(values: Sequence[int], default: float) -> float:
    return sum(values) / len(values) if values else default
