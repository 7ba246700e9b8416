"""Growth of a running graph: an `expand` becomes a subgraph, whose output becomes its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stretto.errors import EngineFailure, StrettoError, UserError
from stretto.graph.compile import ExecutionGraph, Node

Expand = Callable[[str, Mapping[str, object]], ExecutionGraph]
"""From the `body` of an `expand` and its inputs to the subgraph, optimised and compiled."""


def subgraph_of(node: Node, inputs: Mapping[str, object], expand: Expand | None) -> ExecutionGraph:
    """What `node` expands to.

    Raises:
        StrettoError: it cannot be expanded; the error names the step.
    """
    if expand is None:
        raise UserError("this query cannot expand", step=node.name)
    try:
        sub = expand(str(node.config.get("body")), inputs)
    except StrettoError as error:
        raise error.at(node.name) from error
    except Exception as error:
        raise EngineFailure(f"{type(error).__name__}: {error}", step=node.name) from error
    if not sub.outputs:
        raise UserError("it expands to a graph without an output", step=node.name)
    return sub


class Splices:
    """The expanded nodes of one running graph, and the values that they wait for."""

    def __init__(self) -> None:
        self._awaited: dict[int, tuple[int, int | None]] = {}

    def add(self, node_id: int, value_id: int, index: int | None) -> None:
        """Let an expanded node wait for `value_id`, or for one item of it."""
        self._awaited[value_id] = node_id, index

    def take(self, value_id: int) -> tuple[int, int | None] | None:
        """The node that waited for this value, and the item that it wants."""
        return self._awaited.pop(value_id, None)
