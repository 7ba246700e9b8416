"""The graphs that the graph of a query is made of, and the places of their LLM steps in the query."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stretto.graph.execution_graph import ExecutionGraph, Node

Place = tuple[str, int]
"""A step of a query: its name, and how many steps of this name were in the query's graph before it."""


@dataclass(slots=True)
class QueryPart:
    """A graph that has joined that of the query.

    Attributes:
        base: id of its first node in the query.
        outer: steps without whose answers it would not be there.
        reads: steps that each of its inputs comes of, besides.
        places: the place of each of its LLM steps, by the node's number in the part.
        grown: parts that its `expand` nodes have become, by the node's number.
    """

    egraph: ExecutionGraph
    base: int
    outer: frozenset[Place]
    places: dict[int, Place]
    reads: Sequence[frozenset[Place]] = ()
    grown: dict[int, QueryPart] = field(default_factory=dict)

    def before(self, node: Node) -> frozenset[Place]:
        """Return the steps that a node, by its number in the part, waits for."""
        found = self.outer
        for arg in node.ins:
            found |= self.behind(arg.value)
        return found

    def behind(self, value: int) -> frozenset[Place]:
        """Return the steps that a value comes of, up to the nearest answers."""
        inputs = len(self.egraph.inputs)
        if value < inputs:
            return self.outer | self.reads[value] if self.reads else self.outer
        node = next(node for node in self.egraph.nodes if value in node.outs)
        if node.id in self.places:
            return frozenset({self.places[node.id]})
        part = self.grown.get(node.id)
        if part is None:
            return self.before(node)
        outs = part.egraph.outputs
        inner = (part.behind(value) for _, value, _ in outs)
        return self.before(node).union(*inner)


class JoinedParts:
    """The graphs that have joined the graph of a query, in the order in which their nodes are numbered there.

    Attributes:
        num_of: number of LLM steps by name.
    """

    def __init__(self) -> None:
        self.num_of: Counter[str] = Counter()
        self._parts: list[QueryPart] = []
        self._num_nodes = 0

    def join(
        self, egraph: ExecutionGraph, outer: frozenset[Place], reads: Sequence[frozenset[Place]] = ()
    ) -> QueryPart:
        """Add a graph, which would not be there without the answers of the steps `outer`.

        Args:
            reads: steps that each of its inputs comes of, besides.
        """
        part = QueryPart(egraph, self._num_nodes, outer, _places(egraph, self.num_of), reads)
        self._num_nodes += len(egraph.nodes)
        self._parts.append(part)
        return part

    def find(self, node: int) -> tuple[QueryPart, Node]:
        """Return the graph that a node of the query is in, and the node as it is there."""
        part = self._parts[bisect_right(self._parts, node, key=lambda part: part.base) - 1]
        return part, part.egraph.nodes[node - part.base]

    def place(self, node: Node) -> Place:
        """Return the place of a decode, or of the prefill that one runs with."""
        part, _ = self.find(node.id)
        return part.places[(node.id if node.fused is None else node.fused) - part.base]


def first_steps(egraph: ExecutionGraph) -> Iterator[tuple[Place, Node, frozenset[Place]]]:
    """Yield the LLM steps of the graph that a query begins with: the decode, and the steps before it."""
    part = QueryPart(egraph, 0, frozenset(), _places(egraph, Counter()))
    for number, place in part.places.items():
        decode = egraph.nodes[number]
        prefill = decode if decode.fused_into is None else egraph.nodes[decode.fused_into]
        yield place, decode, part.before(prefill)


def _places(egraph: ExecutionGraph, num_of: Counter[str]) -> dict[int, Place]:
    """Return the places of a graph's LLM steps, and count them by name."""
    places: dict[int, Place] = {}
    for node in egraph.nodes:
        if node.decode is not None:
            places[node.id] = node.name, num_of[node.name]
            num_of[node.name] += 1
    return places
