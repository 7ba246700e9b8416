"""The growth of a running graph: subgraphs are added to it, and their outputs are passed on to its other
values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from stretto.graph.execution_graph import ExecutionGraph, Node
from stretto.model.errors import UserError
from stretto.model.record import record

Expand = Callable[[str, Mapping[str, object]], ExecutionGraph]
"""A function from the `body` of an `expand` and its inputs to the subgraph, optimised and compiled."""


_NONE: Mapping[int, int] = {}
_OF_THE_NODE = ("body", "result", "access")


def given_to(node: Node, inputs: Mapping[str, object]) -> Mapping[str, object]:
    """Return what an `expand` node gives to the
    function that makes its graph: its inputs by port, and its settings by name.

    An input hides a setting of the same name. The name of that function, the type of the result and what the
    graph may touch outside are left out.
    """
    settings = {name: value for name, value in node.config.items() if name not in _OF_THE_NODE}
    return {**settings, **inputs}


def subgraph_of(node: Node, inputs: Mapping[str, object], expand: Expand | None) -> ExecutionGraph:
    """Return the subgraph that replaces an `expand` node,
    built from the node's inputs. Its outputs are those of the node, in their order.

    `inputs` are the values that `given_to` returns.

    Raises:
        Exception: the node cannot be expanded, or a user's function raised.
    """
    if expand is None:
        raise UserError("this query cannot expand", step=node.name)
    sub = expand(str(node.config.get("body")), inputs)
    if len(sub.outputs) < len(node.outs):
        few = "an output" if len(node.outs) == 1 else f"the {len(node.outs)} outputs that are read"
        raise UserError(f"it expands to a graph without {few}", step=node.name)
    return sub


@record
class Link:
    """A link in a running graph: when a value is set, it (or only its item `index`) is passed on along the
    link.

    The target is another value, or an `expand` node, of which it
    becomes the result number `place`.
    """

    index: int | None
    value: int | None = None
    node: int | None = None
    place: int = 0


class ValueLinks:
    """All links of one running graph, by source and by target. A link passes a value on when it is set.

    Attributes:
        sources: links by the id of the value that they pass on.
        to_value: id of the value that a link passes on, by the id of the value that it is passed on to.
    """

    def __init__(self) -> None:
        self.sources: dict[int, list[Link]] = {}
        self.to_value: dict[int, int] = {}
        self._to_node: dict[int, dict[int, int]] = {}

    def add(self, source: int, link: Link) -> None:
        """Add a link: when the value with id `source` is set, it is passed on to the link's target."""
        self.sources.setdefault(source, []).append(link)
        if link.value is not None:
            self.to_value[link.value] = source
        if link.node is not None:
            self._to_node.setdefault(link.node, {})[link.place] = source

    def take(self, source: int) -> list[Link]:
        """Remove and return the links from the value with id `source`, because it has been set."""
        links = self.sources.pop(source, [])
        for link in links:
            if link.value is not None:
                del self.to_value[link.value]
            if link.node is not None:
                places = self._to_node[link.node]
                del places[link.place]
                if not places:
                    del self._to_node[link.node]
        return links

    def drop_value(self, value_id: int) -> None:
        """Remove the link that leads to the value with id `value_id`, which nobody needs any more."""
        source = self.to_value.pop(value_id, None)
        if source is not None:
            self.sources[source] = [link for link in self.sources[source] if link.value != value_id]

    def behind_node(self, node_id: int) -> Collection[int]:
        """Return the ids of the values that links will make the results of an `expand` node."""
        return self._to_node.get(node_id, _NONE).values()
