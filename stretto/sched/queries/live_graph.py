"""The running graph of one query: its nodes, their connections, and the values that flow there.

A node is one step. A value that is set wakes the nodes that read it: they are listed, so that whoever runs
the nodes looks at them. It is also passed on along the links of graphs that have joined (`splicing.py`).
Nodes leave when they have ended. Nothing here knows what a node does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from stretto.graph.execution_graph import ConnectionTables, ExecutionGraph, Node, rebase
from stretto.model.errors import BadReply, CapacityError
from stretto.model.values import Failure
from stretto.sched.queries.live_values import UNSET, Values, item_of
from stretto.sched.queries.splicing import Dependencies, Link, ValueLinks

MAX_NODES = 100_000
"""Largest number of nodes of one query at a time."""


@dataclass(frozen=True, slots=True)
class JoinedGraph:
    """The result of adding a graph to a running one: the added nodes under their new ids, and the new
    ids of its values: value `i` of the added graph has the id `values[i]`.
    """

    nodes: Sequence[Node]
    values: Sequence[int]


class LiveGraph:
    """The graph of one query while it runs: the nodes that have not ended, their
    connections, and the values that may still be read.

    Attributes:
        nodes: nodes that have not ended, by id. Ids are never used again.
        effects: ids of the effects that have still to happen, in order
            of their coming.
        blocking: number of inputs and earlier nodes that a node still waits for, by its id.
        woken: ids of nodes that may go on, as something they wait for has come, perhaps more than once or in
            vain; the graph scheduler takes them out.
        settled: (name, value) of watched values that have been set; the graph scheduler takes them out.
        watched: names of the values that are kept until `unwatch` is called.
        dependencies: what comes of what.
        is_in_order: whether each node is known to have a larger id than all that it waits for. That ends with
            a graph whose output an earlier node waits for.
    """

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.values = Values()
        self.effects: dict[int, None] = {}
        self.woken: list[int] = []
        self.settled: list[tuple[str, object]] = []
        self.is_in_order = True
        self._num_ids = 0
        self._readers: dict[int, tuple[tuple[int, int], ...]] = {}
        self._producers: dict[int, int] = {}
        self._followers: dict[int, tuple[int, ...]] = {}
        self.blocking: dict[int, int] = {}
        self._links = ValueLinks()
        self.watched: dict[int, str] = {}
        self._returned: dict[int, dict[int, object]] = {}
        self.dependencies = Dependencies(
            self.nodes,
            self.values,
            self.effects,
            self.watched,
            self._readers,
            self._producers,
            self._followers,
            self._links,
        )

    # --- nodes come and go

    def join(
        self, egraph: ExecutionGraph, inputs: Mapping[str, int], under: Node | None = None
    ) -> JoinedGraph:
        """Add a graph to the one that is running; the added nodes and values get new ids.

        Args:
            inputs: id of the value of each of its inputs, by name.
            under: the `expand` node that the graph replaces, if any.

        Raises:
            CapacityError: too many nodes live.
        """
        if len(self.nodes) + len(egraph.nodes) > MAX_NODES:
            raise CapacityError(
                f"the graph has grown beyond {MAX_NODES} primitives", step=under.name if under else None
            )
        self.is_in_order = (self.is_in_order or not self.nodes) and under is None and egraph.is_in_order
        base, num_inputs = self._num_ids, len(egraph.inputs)
        self._num_ids += len(egraph.nodes)
        ids = [*(inputs[name] for name in egraph.inputs), *self.values.add(egraph.num_values - num_inputs)]
        if base == 0 and not self.values and ids == list(range(len(ids))):
            self._begin_with(egraph.tables)
            return JoinedGraph(egraph.nodes, ids)
        nodes = rebase(egraph, base, ids, under)
        for value_id, readers in zip(ids, egraph.readers, strict=True):
            if readers:
                self.values.use(value_id, len(readers))
                if self.values[value_id] is UNSET:
                    new = ((base + node, place) for node, place in readers)
                    self._readers[value_id] = (*self._readers.get(value_id, ()), *new)
        for node, followers in zip(nodes, egraph.followers, strict=True):
            self.nodes[node.id] = node
            if followers:
                self._followers[node.id] = tuple(base + follower for follower in followers)
            for out in node.outs:
                self._producers[out] = node.id
            if node.is_effect:
                self.effects[node.id] = None
            is_there = sum(1 for arg in node.ins if arg.blocks and self.values[arg.value] is not UNSET)
            blocking = self.blocking[node.id] = node.num_blocking - is_there
            if not blocking:
                self.woken.append(node.id)
        return JoinedGraph(nodes, ids)

    def retire(self, node: Node) -> None:
        """Remove a node that has ended. Nodes that were waiting only for its end may go on."""
        del self.nodes[node.id], self.blocking[node.id]
        if node.is_effect:
            self.effects.pop(node.id, None)
        for out in node.outs:
            del self._producers[out]
        values = self.values
        num_users = values.num_users
        for arg in node.ins:
            if (left := num_users[arg.value] - 1) > 0:
                num_users[arg.value] = left
            else:
                values.leave(arg.value)
        if node.id in self._followers:
            for follower in self._followers.pop(node.id):
                self._unblock(follower)
        if not self.nodes:  # an idle session keeps no empty tables
            for table in (self.nodes, self.blocking, self._producers, self._readers, self._followers):
                table.clear()

    def cut(self, node: Node) -> None:
        """Disconnect the outputs of a cancelled node, so that they will be neither read nor passed on."""
        for out in node.outs:
            self._readers.pop(out, None)
            self._links.take(out)

    # --- values come

    def bring(self, value_id: int, value: object) -> None:
        """Set a value, once, and wake what depends on it: nodes that read it may go on, and values
        linked to it are set too.
        """
        self.values.set(value_id, value)
        if (name := self.watched.get(value_id)) is not None:
            self.settled.append((name, value))
        nodes, blocking = self.nodes, self.blocking
        for node_id, place in self._readers.pop(value_id, ()):
            node = nodes.get(node_id)
            if node is None:
                continue
            if node.ins[place].blocks:
                blocking[node_id] -= 1
                if blocking[node_id]:
                    continue
            self.woken.append(node_id)
        if value_id in self._links.sources:
            for link in self._links.take(value_id):
                self._pass_on(value, link)

    def grown(self, value_id: int) -> None:
        """Wake the nodes that read a list while it grows, because the list has got more items."""
        for node_id, place in self._readers.get(value_id, ()):
            node = self.nodes.get(node_id)
            if node is not None and node.ins[place].piece is not None:
                self.woken.append(node_id)

    def watch(self, value_id: int, name: str) -> None:
        """Keep a value until `unwatch` is called; when it is set, add (`name`, value) to `settled`, so that
        the caller of the query learns it.
        """
        self.values.use(value_id)
        self.watched[value_id] = name

    def unwatch(self, value_id: int) -> None:
        """Stop keeping a value that was watched, and no longer add it to `settled` when it is set."""
        del self.watched[value_id]
        self.values.leave(value_id)
        if not self.values.is_used(value_id) and not self._links.sources.get(value_id):
            self._links.drop_value(value_id)

    def link(self, source: int, index: int | None, target: int) -> None:
        """Pass the value with id `source` (or only its item `index`) on to the value with id `target`, as
        soon as it is set.
        """
        if (value := self.values[source]) is not UNSET:
            self._pass_on(value, Link(index, value=target))
        else:
            if target in self._readers or target in self._links.sources:
                self.is_in_order = False
            self._links.add(source, Link(index, value=target))

    def link_to_node(self, source: int, index: int | None, node: Node, place: int) -> None:
        """Use the value with id `source` (or only its item `index`) as the result number `place` of an
        `expand` node, as soon as the value is set.
        """
        self._links.add(source, Link(index, node=node.id, place=place))

    def take_returned(self, node: Node) -> list[object] | None:
        """Return and forget the results of an `expand` node, which
        that subgraph has produced; None while one has not come.
        """
        if len(self._returned.get(node.id, ())) < len(node.outs):
            return None
        return [value for _, value in sorted(self._returned.pop(node.id).items(), key=itemgetter(0))]

    def check_invariants(self) -> None:
        """Check that each node's number of missing inputs and predecessors is right, and that the
        effects which have still to happen are nodes. For tests.
        """
        for node in self.nodes.values():
            blocked = sum(1 for arg in node.ins if arg.blocks and self.values[arg.value] is UNSET)
            blocked += sum(1 for other in node.after if other in self.nodes)
            assert self.blocking[node.id] == blocked, node.name
        assert list(self.effects) == [node.id for node in self.nodes.values() if node.is_effect]

    def _begin_with(self, tables: ConnectionTables) -> None:
        """Add the first graph, whose ids stay the same; none of its inputs is set yet."""
        self.nodes.update(tables.nodes)
        self.effects.update(tables.effects)
        self.blocking.update(tables.blocking)
        self.woken.extend(tables.unblocked)
        self._producers.update(tables.producers)
        self._readers.update(tables.readers)
        self._followers.update(tables.followers)
        self.values.use_all(tables.num_readers)

    def _unblock(self, node_id: int) -> None:
        blocking = self.blocking.get(node_id)
        if blocking is not None:
            self.blocking[node_id] = blocking - 1
            if blocking == 1:
                self.woken.append(node_id)

    def _pass_on(self, value: object, link: Link) -> None:
        try:
            value = item_of(value, link.index)
        except BadReply as error:
            value = Failure(error)
        if link.value is not None:
            self.bring(link.value, value)
        if link.node is not None and (node := self.nodes.get(link.node)) is not None:
            self._returned.setdefault(node.id, {})[link.place] = (
                Failure(value.error.at(node.name)) if isinstance(value, Failure) else value
            )
            self.woken.append(node.id)
