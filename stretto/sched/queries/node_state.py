"""The state of each node of a running graph, and the moves between states that are allowed.

    waiting ──▶ open ──▶ ended       a single application: handed out, or evaluated on the spot
       │         ├──▶ flowing ─▶ ended     a mapped node: handed out item by item
       │         └──▶ expanded ▶ ended     an `expand`: waits for the output of its subgraph
       └─────────────────────▶ ended       a fused decode, which ends with its prefill; an unneeded node

A node ends once, is forgotten then, and nothing leads back. A move that the table does not list is a bug.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from stretto.graph.execution_graph import Node
from stretto.model.errors import InternalError

NodeState: TypeAlias = Literal["waiting", "open", "flowing", "expanded", "ended"]
"""The state of a node of a running graph, from waiting for its inputs to ended."""

TRANSITIONS: Mapping[NodeState, tuple[NodeState, ...]] = {
    "waiting": ("open", "ended"),
    "open": ("ended", "flowing", "expanded"),
    "flowing": ("ended",),
    "expanded": ("ended",),
    "ended": (),
}
"""Table of the states that may follow each state."""


class NodeStates(dict[int, NodeState]):
    """The states of all nodes of one running graph, by node id. A node that is not in the table has ended."""

    def __missing__(self, node_id: int) -> NodeState:
        return "ended"

    def add(self, nodes: Iterable[Node]) -> None:
        """Add new nodes, in the state "waiting" (for their inputs)."""
        self.update(dict.fromkeys([node.id for node in nodes], "waiting"))

    def move(self, node: Node, to: NodeState) -> None:
        """Change the state of `node` to the state `to`.

        Raises:
            InternalError: the table of allowed changes does not have this one.
        """
        state = self[node.id]
        if to not in TRANSITIONS[state]:
            raise InternalError(f"node {node.id} cannot go from {state} to {to}", step=node.name)
        if to == "ended":
            del self[node.id]
        else:
            self[node.id] = to
