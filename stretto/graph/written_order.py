"""The part of the written order that no pass may drop: between steps that touch the same state.

Two effects keep the order in which `>>` puts them, whatever they change. An effect keeps its order to every
step that reads what it changes, and a step that reads comes before a later effect that changes it. The table
of ops says which steps these are (`OpSpec.reads`, `OpSpec.changes`); names say nothing.
"""

from __future__ import annotations

from collections.abc import Container

from stretto.graph.graph import HINT, Graph, Primitive
from stretto.graph.ops import Ops
from stretto.graph.verify import sort_topologically


def effect_edges(graph: Graph, ops: Ops, among: Container[str]) -> tuple[tuple[str, str], ...]:
    """Return the (before, after) pairs that keep the order of the steps in `among` which touch the same
    state.

    The order is that of all edges of the graph together, so two effects also keep it where other steps stand
    between them. What the edges of values and earlier pairs of the result imply is left out.
    """
    touching = [
        primitive
        for primitive in graph
        if primitive.name in among and (ops.reads(primitive) or ops.changes(primitive))
    ]
    if len(touching) < 2 or not graph.order or not any(map(ops.changes, touching)):
        return ()
    place = {primitive.name: bit for bit, primitive in enumerate(graph)}
    written_before: dict[str, list[str]] = {}
    for before, after in graph.order:
        written_before.setdefault(after, []).append(before)
    is_touching = {primitive.name for primitive in touching}
    earlier: list[Primitive] = []
    written: dict[str, int] = {}
    kept: dict[str, int] = {}
    pairs: list[tuple[str, str]] = []
    for primitive in sort_topologically(graph):
        name = primitive.name
        sources = [arg.ref.name for arg in primitive.args if arg.port != HINT and arg.ref.name in place]
        written[name] = _all_before([*sources, *written_before.get(name, ())], written, place)
        kept[name] = _all_before(sources, kept, place)
        if name not in is_touching:
            continue
        for other in reversed(earlier):
            bit = 1 << place[other.name]
            if written[name] & bit and not kept[name] & bit and ops.keep_order(other, primitive):
                pairs.append((other.name, name))
                kept[name] |= kept[other.name] | bit
        earlier.append(primitive)
    return tuple(sorted(pairs, key=lambda pair: (place[pair[1]], place[pair[0]])))


def whole_list_readers(graph: Graph, ops: Ops) -> frozenset[str]:
    """Return the names of steps that must not begin with the first items of a list while its last ones are
    still made: the items come of a step that touches the same state.

    An example is an effect on each of a list of search hits: streaming, it would change what is searched.
    """
    behind: dict[str, list[Primitive]] = {}
    found: set[str] = set()
    for primitive in graph:
        sources = [arg.ref.name for arg in primitive.args if arg.each]
        touching = list(dict.fromkeys(one for source in sources for one in behind.get(source, ())))
        if any(ops.keep_order(one, primitive) for one in touching):
            found.add(primitive.name)
        if sources and (ops.reads(primitive) or ops.changes(primitive)):
            touching.append(primitive)
        if touching:
            behind[primitive.name] = touching
    return frozenset(found)


def _all_before(names: list[str], before: dict[str, int], place: dict[str, int]) -> int:
    """Return the steps called `names` and all that stand before them, as a bit mask."""
    mask = 0
    for name in names:
        mask |= before[name] | 1 << place[name]
    return mask
