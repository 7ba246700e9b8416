"""The growth of a running graph: subgraphs are added to it, and their outputs are passed on to its other
values. And what comes of what in it: which nodes and values wait for which.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from stretto.graph.execution_graph import ExecutionGraph, Node
from stretto.model.errors import UserError
from stretto.model.record import record
from stretto.sched.queries.live_values import UNSET, Values

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


class Dependencies:
    """Looks things up in the tables of a running graph, which it does not change.

    Args:
        nodes, values, effects, watched: tables of `LiveGraph`, which explains them.
        readers: nodes that read each value, each with the number of its input.
        producers: node that sets each value.
        followers: nodes that have to wait for the end of each node.
        links: values that are passed on.
    """

    def __init__(
        self,
        nodes: Mapping[int, Node],
        values: Values,
        effects: Mapping[int, None],
        watched: Mapping[int, str],
        readers: Mapping[int, tuple[tuple[int, int], ...]],
        producers: Mapping[int, int],
        followers: Mapping[int, tuple[int, ...]],
        links: ValueLinks,
    ) -> None:
        self._nodes = nodes
        self._values = values
        self._effects = effects
        self._watched = watched
        self._readers = readers
        self._producers = producers
        self._followers = followers
        self._links = links

    def is_untouched(self, value_id: int) -> bool:
        """Return whether a watched value is not set, and no node and no link leads to or from it."""
        return (
            self._values[value_id] is UNSET
            and self._values.has_one_user(value_id)
            and value_id not in self._links.sources
            and value_id not in self._links.to_value
        )

    def producer(self, value_id: int) -> Node | None:
        """Return the node that will produce a value, itself or by a chain of linked values; None if
        there is none (yet).
        """
        source: int | None = value_id
        while source is not None:
            if (producer := self._producers.get(source)) is not None:
                return self._nodes[producer]
            source = self._links.to_value.get(source)
        return None

    def sources(self, node: Node) -> list[Node]:
        """Return the nodes that a node waits for: those whose outputs it reads, those it has to
        follow, and for an `expand` node (replaced by a subgraph) the one that produces its result.
        """
        found = [source for arg in node.ins if (source := self.producer(arg.value)) is not None]
        if node.after:
            found += [self._nodes[before] for before in node.after if before in self._nodes]
        for value_id in self._links.behind_node(node.id):
            if (source := self.producer(value_id)) is not None:
                found.append(source)
        return found

    def waits_for(self, value_id: int, other: int) -> bool:
        """Return whether the value `value_id` cannot be set before the value `other`: it comes of it, by
        links and nodes. It takes time in proportion to what has to come before `value_id`.
        """
        values, seen = [value_id], {value_id}
        while values:
            value = values.pop()
            if value == other:
                return True
            found = [self._links.to_value.get(value)]
            nodes = [self._producers[value]] if value in self._producers else []
            for node in (self._nodes[one] for one in nodes if one in self._nodes):
                found += [arg.value for arg in node.ins if not arg.is_hint]
                found += self._links.behind_node(node.id)
                nodes += [before for before in node.after if before not in nodes]
            new = [one for one in found if one is not None and one not in seen]
            seen.update(new)
            values += new
        return False

    def reached(self, node: Node) -> tuple[Sequence[int], Sequence[int]]:
        """Return the ids of the nodes that wait for a node, some of which may have ended, and the ids
        of all values that the node will set, itself or by a chain of linked values.

        The waiting nodes are those that have the node among their `sources`.
        """
        outs, links = node.outs, self._links.sources
        if len(outs) == 1 and outs[0] not in links and node.id not in self._followers:  # nearly all nodes
            readers = self._readers.get(outs[0], ())
            if len(readers) < 2:
                return [reader for reader, _ in readers], outs
            return list(dict.fromkeys([reader for reader, _ in readers])), outs
        nodes = dict.fromkeys(self._followers.get(node.id, ()))
        values = list(outs)
        for value_id in values:  # grows meanwhile
            nodes.update((reader, None) for reader, _ in self._readers.get(value_id, ()))
            for link in links.get(value_id, ()):
                if link.value is not None:
                    values.append(link.value)
                if link.node is not None:
                    nodes[link.node] = None
        return list(nodes), values

    def unneeded(self, end: Node) -> list[Node]:
        """Return the node `end` and all nodes behind it that serve nothing, readers first.

        A node serves nothing if it is no effect that has still
        to happen, sets no watched value, and no node waits for it, except nodes that are returned too. It
        takes time in proportion to the returned nodes and what is connected to them.
        """
        num_needing = {end.id: self._num_needing(end)}
        found = [] if num_needing[end.id] else [end]
        for node in found:  # grows meanwhile
            for source in {source.id: source for source in self.sources(node)}.values():
                if source.id not in num_needing:
                    num_needing[source.id] = self._num_needing(source)
                num_needing[source.id] -= 1
                if not num_needing[source.id]:
                    found.append(source)
        return found

    def _num_needing(self, node: Node) -> int:
        """Count the nodes that wait for a node, the watched values that it will set, and itself if it is an
        effect.
        """
        nodes, values = self.reached(node)
        num_waiting = sum(node_id in self._nodes for node_id in nodes)
        return num_waiting + sum(value in self._watched for value in values) + (node.id in self._effects)
