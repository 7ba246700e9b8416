"""The state of each node (step) of a running graph, and the moves between states that are allowed.

    WAITING ──▶ OPEN ──▶ ENDED       a single application: handed out, or evaluated on the spot
       │         ├──▶ FLOWING ─▶ ENDED     a mapped node: handed out item by item
       │         └──▶ EXPANDED ▶ ENDED     an `expand`: waits for the output of its subgraph
       └─────────────────────▶ ENDED       a fused decode, which ends with its prefill; an unneeded node

A node ends once, is forgotten then, and nothing leads back. A move that the table does not list is a bug.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from stretto.errors import InternalError
from stretto.graph.compile import Node


class NodeState(Enum):
    """The state of a node (one step) of a running graph, from waiting for its inputs to ended."""

    WAITING = "waiting"
    OPEN = "open"
    FLOWING = "flowing"
    EXPANDED = "expanded"
    ENDED = "ended"

    __hash__ = object.__hash__  # that of Enum is written in Python, and every move looks states up


TRANSITIONS: Mapping[NodeState, frozenset[NodeState]] = {
    NodeState.WAITING: frozenset((NodeState.OPEN, NodeState.ENDED)),
    NodeState.OPEN: frozenset((NodeState.FLOWING, NodeState.EXPANDED, NodeState.ENDED)),
    NodeState.FLOWING: frozenset((NodeState.ENDED,)),
    NodeState.EXPANDED: frozenset((NodeState.ENDED,)),
    NodeState.ENDED: frozenset(),
}
"""Table of the states that may follow each state."""


class NodeStates(dict[int, NodeState]):
    """The states of all nodes (steps) of one running graph, by node id. A node that is not in the table has
    ended.
    """

    def __missing__(self, node_id: int) -> NodeState:
        return NodeState.ENDED

    def add(self, nodes: Iterable[Node]) -> None:
        """Add new nodes (steps of a running graph), in the state WAITING (for their inputs)."""
        self.update(dict.fromkeys([node.id for node in nodes], NodeState.WAITING))

    def move(self, node: Node, to: NodeState) -> None:
        """Change the state of `node` (a step of a running graph) to the state `to`.

        Raises:
            InternalError: the table of allowed changes does not have this one.
        """
        state = self[node.id]
        if to not in TRANSITIONS[state]:
            raise InternalError(f"node {node.id} cannot go from {state.value} to {to.value}", step=node.name)
        if to is NodeState.ENDED:
            del self[node.id]
        else:
            self[node.id] = to
