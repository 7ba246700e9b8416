"""The upper tier: the running graph of one query.

Its rules, whole:

    A node *opens* when every in port that is not streaming is complete and all its ORDER predecessors
    have ended. If a required input is absent it ends at once and delivers absent; if one has failed it ends
    with that failure (`gathering.py`). Hints are not waited for.
    A node whose value is only a hint is not sent unless a reader still waits. It is *withdrawn* when its only
    reader opens, or when all its readers have ended; it delivers absent then, as it does when it fails.
    Open control flow is evaluated on the spot. Open engine work goes out as a `Request`: once, or, when
    mapped, piece by piece as its streams grow. A fused decode goes out with its prefill.
    Results of a mapped node are put in place by index and flow on in order, so arrival never shows.
    A node *ends* once; its out values are set once. An effect is set at the end of its stream.

The per-query object store is `values`: inputs and results by value id, each as long as somebody may read it.
Requests refer to it, so anything that is lost can be run again from there. Nothing here knows engines,
batches, time, or the names of variables (`session.py`).

Source: Teola §5.1. Differs: streams, absent values, failures that flow, and graphs that grow while they run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from stretto.core import ABSENT, AbsentType, Failure
from stretto.errors import BadReply, CapacityError, EngineFailure, StrettoError
from stretto.graph.compile import ExecutionGraph, In, Node, rebase
from stretto.sched.gathering import gather, item_of
from stretto.sched.node_state import NodeState, NodeStates
from stretto.sched.outcome import Outcome
from stretto.sched.prepare import prepare_request
from stretto.sched.shown_text import ShownText
from stretto.sched.splicing import Expand, Link, Links, subgraph_of
from stretto.sched.streams import Streams, by_port
from stretto.sched.values import UNSET, Values
from stretto.tasks import QueryRecord

MAX_NODES = 100_000
"""Nodes that may live at a time."""


class GraphScheduler:
    """Nodes and values of one query. What its methods lead to is noted in `outcome`, until it is taken.

    Attributes:
        nodes: those that have not ended, by id. Ids are never used again.
        wanted: ids of the nodes that somebody asks for; None for all.
        num_effects: how many effects have still to happen.
    """

    def __init__(self, query: str, record: QueryRecord | None = None, expand: Expand | None = None) -> None:
        self.query = query
        self.nodes: dict[int, Node] = {}
        self.values = Values()
        self.outcome = Outcome()
        self.wanted: Collection[int] | None = None
        self.num_effects = 0
        self._record = record or QueryRecord()
        self._expand = expand
        self._num_ids = 0
        self._readers: dict[int, tuple[tuple[int, int], ...]] = {}
        self._producers: dict[int, int] = {}
        self._followers: dict[int, tuple[int, ...]] = {}
        self._blocking: dict[int, int] = {}
        self._states = NodeStates()
        self._streams = Streams()
        self._shown = ShownText()
        self._links = Links()
        self._watched: dict[int, str] = {}
        self._returned: dict[int, object] = {}
        self._pending: deque[int] = deque()

    # --- growing

    def grow(
        self,
        egraph: ExecutionGraph,
        inputs: Mapping[str, int],
        names: Mapping[str, str],
        under: Node | None = None,
    ) -> dict[str, tuple[int, int | None]]:
        """Let a graph join the running one; the values of its outputs, each with an item index.

        Args:
            inputs: the value that each of its inputs is.
            names: what text of its outputs is shown as.
            under: the node that has expanded to it.

        Raises:
            CapacityError: too many nodes live.
        """
        if len(self.nodes) + len(egraph.nodes) > MAX_NODES:
            raise CapacityError(
                f"the graph has grown beyond {MAX_NODES} primitives", step=under.name if under else None
            )
        base, num_inputs = self._num_ids, len(egraph.inputs)
        self._num_ids += len(egraph.nodes)
        ids = [*(inputs[name] for name in egraph.inputs), *self.values.add(egraph.num_values - num_inputs)]
        is_same = base == 0 and ids == list(range(len(ids)))
        for value_id, readers in zip(ids, egraph.readers, strict=True):
            self._add_readers(value_id, [(base + node, place) for node, place in readers])
        for node in egraph.nodes if is_same else rebase(egraph, base, ids, under):
            self._add(node, [base + follower for follower in egraph.followers[node.id - base]])
        for node_id, streamed in egraph.streamed.items() if under is None else ():
            shown = (
                replace(one, name=names.get(one.name, one.name), unless=tuple(ids[v] for v in one.unless))
                for one in streamed
            )
            self._shown.add(base + node_id, tuple(shown))
        return {name: (ids[value], index) for name, value, index in egraph.outputs}

    def _add_readers(self, value_id: int, readers: Sequence[tuple[int, int]]) -> None:
        for _ in readers:
            self.values.use(value_id)
        if readers and self.values[value_id] is UNSET:
            self._readers[value_id] = (*self._readers.get(value_id, ()), *readers)

    def _add(self, node: Node, followers: Iterable[int]) -> None:
        self.nodes[node.id] = node
        self._states.add(node)
        self._followers[node.id] = tuple(followers)
        self._producers.update(dict.fromkeys(node.outs, node.id))
        self.num_effects += node.is_effect
        there = sum(1 for arg in node.ins if _blocks(arg) and self.values[arg.value] is not UNSET)
        self._blocking[node.id] = node.num_blocking - there
        if self._blocking[node.id] == 0:
            self._pending.append(node.id)

    # --- events

    def bring(self, value_id: int, value: object) -> None:
        """A value comes from outside."""
        self._set(value_id, value)

    def watch(self, value_id: int, name: str) -> None:
        """Keep a value, and note under `name` that it has come."""
        self.values.use(value_id)
        self._watched[value_id] = name

    def unwatch(self, value_id: int) -> None:
        """The opposite of `watch`."""
        del self._watched[value_id]
        self.values.leave(value_id)
        if not self.values.is_used(value_id):
            self._links.drop_value(value_id)

    def link(self, source: int, index: int | None, target: int) -> None:
        """Let value `source`, or an item of it, become value `target` too."""
        if (value := self.values[source]) is not UNSET:
            self._pass_on(value, Link(index, value=target))
        else:
            self._links.add(source, Link(index, value=target))

    def complete(self, node_id: int, lo: int, results: Sequence[object]) -> None:
        """Work on items from `lo` on is done; some results may be failures. A repeated result is ignored."""
        node = self.nodes.get(node_id)
        if node is None:
            return
        try:
            if node.is_mapped:
                self._streams.mapped[node_id].put(lo, results)
                self._flow(node)
            else:
                self._complete_single(node, results[0])
        except StrettoError as error:
            self._fail(node, error)

    def deliver(self, node_id: int, offset: int, piece: str) -> None:
        """A running decode has produced a piece: item number `offset`, or text from that character on.

        What was delivered before (by an attempt that was lost) is passed over.
        """
        node = self.nodes.get(node_id)
        if node is not None and node.fused is not None:
            node = self.nodes.get(node.fused)
        if node is None or node.is_mapped or node.decode is None:
            return
        if node.decode.items is not None:
            if self._streams.append(node.outs[0], offset, piece):
                self._grown(node.outs[0])
            return
        try:
            self.outcome.text += self._shown.show(node, offset, piece, self.values)
        except BadReply as error:
            self._fail(self.nodes[node_id], error)

    def cancel_all_but(self, needed: Collection[int]) -> None:
        """Let every node that is not `needed` leave, with its work."""
        for node in [node for node_id, node in self.nodes.items() if node_id not in needed]:
            self._retire(node)
            self.outcome.withdrawn.append(node)
            for out in node.outs:
                self._readers.pop(out, None)
                self._links.take(out)

    def behind(self, values: Iterable[int], *, and_effects: bool = True) -> set[int]:
        """The live nodes that `values` (and effects) come of."""
        found: set[int] = set()
        nodes = [node.id for node in self.nodes.values() if and_effects and node.is_effect]
        open_values = list(values)
        while nodes or open_values:
            while open_values:
                value = open_values.pop()
                if (source := self._links.behind_value(value)) is not None:
                    open_values.append(source)
                if (producer := self._producers.get(value)) is not None:
                    nodes.append(producer)
            while nodes:
                node = self.nodes.get(nodes.pop())
                if node is None or node.id in found:
                    continue
                found.add(node.id)
                nodes += node.after
                open_values += [arg.value for arg in node.ins]
                if (source := self._links.behind_node(node.id)) is not None:
                    open_values.append(source)
        return found

    def settle(self) -> None:
        """Open or feed what is pending, and what that leads to.

        A queue, not recursion: chains of absent nodes may be long. It begins in the order of the graph, so
        that a prefill goes before those that it is a hint for.
        """
        self._pending = deque(sorted(self._pending))
        while self._pending:
            node = self.nodes.get(self._pending.popleft())
            if node is None:
                continue
            try:
                self._go_on(node)
            except StrettoError as error:
                self._fail(node, error)

    def check_invariants(self) -> None:
        """For tests: counters agree with the values they count."""
        for node in self.nodes.values():
            state = self._states[node.id]
            blocked = sum(1 for arg in node.ins if _blocks(arg) and self.values[arg.value] is UNSET)
            blocked += sum(1 for other in node.after if other in self.nodes)
            assert self._blocking[node.id] == blocked, node.name
            assert state is not NodeState.ENDED, node.name
            assert state is NodeState.WAITING or blocked == 0, node.name
            assert (state is NodeState.FLOWING) == (node.id in self._streams.mapped), node.name
        assert self.num_effects == sum(node.is_effect for node in self.nodes.values())
        self._streams.check_invariants()

    # --- opening

    def _go_on(self, node: Node) -> None:
        match self._states[node.id]:
            case NodeState.WAITING if self._blocking[node.id] == 0:
                self._open(node)
            case NodeState.FLOWING:
                self._feed(node)
            case NodeState.EXPANDED:
                self._end(node, [self._returned.pop(node.id)])

    def _open(self, node: Node) -> None:
        self._states.move(node, NodeState.OPEN)
        if node.hints and not any(self._states[reader] is NodeState.WAITING for reader in node.hints):
            self._end_with(node, ABSENT)
            return
        self._withdraw_hint(node)
        found = gather(node, self.values)
        if found.is_absent:
            self._end_with(node, ABSENT)
        elif node.is_mapped:
            self._states.move(node, NodeState.FLOWING)
            self._streams.open(node, found)
            self._feed(node)
        elif found.failure is not None:
            self._end_with(node, found.failure[1])
        elif node.spec.evaluate is not None:
            self._end(node, _evaluate(node, found.inputs))
        elif node.spec.runs_on is None:
            self._splice(node, found.inputs)
        else:
            self._send(node, found.inputs, 0, 1, ())

    def _withdraw_hint(self, reader: Node) -> None:
        """`reader` has opened or ended: end the prefill ahead of it if that can help nobody any more.

        A mapped reader is several: some of its items may find in the cache what is computed for others.
        """
        if not reader.hint_from or self._states[reader.hint_from[0]] is not NodeState.OPEN:
            return
        node = self.nodes[reader.hint_from[0]]
        is_only = len(node.hints) == 1 and not reader.is_mapped
        if not node.hints or not (is_only or all(map(self._has_ended, node.hints))):
            return
        work = self.outcome.work
        self.outcome.work = [one for one in work if one.node.id != node.id]
        if len(self.outcome.work) == len(work):
            self.outcome.withdrawn.append(node)
        self._end_with(node, ABSENT)

    def _has_ended(self, node_id: int) -> bool:
        return node_id not in self.nodes

    def _send(
        self, node: Node, inputs: Mapping[str, object], lo: int, hi: int, each: tuple[str, ...]
    ) -> None:
        decode_node = None if node.fused is None else self.nodes[node.fused]
        last = decode_node or node
        has_items = last.decode is not None and last.decode.items is not None
        self.outcome.work.append(
            prepare_request(
                self.query,
                node,
                decode_node,
                inputs,
                lo,
                hi,
                each,
                self._record,
                is_wanted=self.wanted is None or node.id in self.wanted,
                shows=self._shown.may_show(last) or (has_items and not node.is_mapped),
            )
        )

    def _feed(self, node: Node) -> None:
        """Hand out the items of an open mapped node that have arrived since the last time."""
        arrived = self._streams.feed(node, self.values)
        if isinstance(arrived, AbsentType | Failure):
            self._end_with(node, arrived)
            return
        for items in arrived:
            try:
                self._send(node, items.inputs, items.lo, items.hi, items.each)
            except StrettoError:
                self._send_one_by_one(node, items.inputs, items.lo, items.hi, items.each)
        self._flow(node)

    def _send_one_by_one(
        self, node: Node, inputs: Mapping[str, object], lo: int, hi: int, each: tuple[str, ...]
    ) -> None:
        """Some item cannot stand in a prompt: that one alone has failed."""
        for i in range(lo, hi):
            row = dict(inputs)
            for port in each:
                column = inputs[port]
                assert isinstance(column, Sequence)
                row[port] = column[i - lo : i - lo + 1]
            try:
                self._send(node, row, i, i + 1, each)
            except StrettoError as error:
                self._streams.mapped[node.id].put(i, [Failure(error.at(node.name))])

    # --- results

    def _complete_single(self, node: Node, result: object) -> None:
        if isinstance(result, Failure):
            self._end_with(node, result)
        elif node.fused is not None:
            assert isinstance(result, tuple)
            kv, decoded = result
            decode = self.nodes[node.fused]
            self._check_pieces(decode, decoded)
            self._end(node, [kv])
            self._end(decode, [decoded])
        elif len(node.outs) == 1:
            self._check_pieces(node, result)
            self._end(node, [True if node.is_effect else result])
        else:
            self._end(node, by_port(node, result))

    def _check_pieces(self, node: Node, value: object) -> None:
        """What streamed out of a decode is the beginning of its value."""
        self._streams.end_pieces(node, value)
        self._shown.check_end(node, value)

    def _flow(self, node: Node) -> None:
        """Pass on finished items in order; end the node after the last."""
        for value in self._streams.flow(node, self.nodes):
            self._grown(value)
        if not self._streams.mapped[node.id].is_done:
            return
        values = self._streams.close(node, self.nodes)
        if node.fused is None:
            self._end(node, values)
        else:
            decode = self.nodes[node.fused]
            self._end(node, values[:1])
            self._end(decode, values[1:])

    def _fail(self, node: Node, error: StrettoError) -> None:
        """A node has failed as a whole; unless it has ended, that is its end."""
        if node.id in self.nodes:
            self._end_with(node, Failure(error.at(node.name)))

    def _end_with(self, node: Node, value: AbsentType | Failure) -> None:
        self._end(node, [value] * len(node.outs))

    def _end(self, node: Node, outputs: Sequence[object]) -> None:
        self._retire(node)
        self._withdraw_hint(node)
        for out, value in zip(node.outs, outputs, strict=True):
            if isinstance(value, Failure):
                if node.is_effect:
                    self.outcome.failed_effects.append(value)
                if node.hints:
                    value = ABSENT
            self._set(out, value)

    def _retire(self, node: Node) -> None:
        """Forget a node, and let those go on that only follow it."""
        self._states.move(node, NodeState.ENDED)
        del self.nodes[node.id], self._blocking[node.id]
        self.num_effects -= node.is_effect
        self._streams.drop(node)
        self._shown.drop(node)
        for out in node.outs:
            del self._producers[out]
        for arg in node.ins:
            self.values.leave(arg.value)
        for follower in self._followers.pop(node.id):
            self._unblock(follower)

    def _unblock(self, node_id: int) -> None:
        if node_id in self.nodes:
            self._blocking[node_id] -= 1
            if self._blocking[node_id] == 0:
                self._pending.append(node_id)

    def _set(self, value_id: int, value: object) -> None:
        self.values.set(value_id, value)
        if value_id in self._watched:
            self.outcome.settled.append((self._watched[value_id], value))
        for node_id, place in self._readers.pop(value_id, ()):
            node = self.nodes.get(node_id)
            if node is None:
                continue
            if _blocks(node.ins[place]):
                self._unblock(node_id)
            elif self._states[node_id] is NodeState.FLOWING:
                self._pending.append(node_id)
        for link in self._links.take(value_id):
            self._pass_on(value, link)

    def _pass_on(self, value: object, link: Link) -> None:
        try:
            value = item_of(value, link.index)
        except BadReply as error:
            value = Failure(error)
        if link.value is not None:
            self._set(link.value, value)
        if link.node is not None and (node := self.nodes.get(link.node)) is not None:
            self._returned[node.id] = (
                Failure(value.error.at(node.name)) if isinstance(value, Failure) else value
            )
            self._pending.append(node.id)

    def _grown(self, value_id: int) -> None:
        for node_id, place in self._readers.get(value_id, ()):
            node = self.nodes.get(node_id)
            is_streaming = node is not None and node.ins[place].piece is not None
            if is_streaming and self._states[node_id] is NodeState.FLOWING:
                self._pending.append(node_id)

    def _splice(self, node: Node, inputs: Mapping[str, object]) -> None:
        """Grow by what `node` expands to; the subgraph's output becomes its own."""
        sub = subgraph_of(node, inputs, self._expand)
        ids = dict(zip(sub.inputs, self.values.add(len(sub.inputs)), strict=True))
        outputs = self.grow(sub, ids, {}, node)
        self._states.move(node, NodeState.EXPANDED)
        if self.wanted is not None:
            self.outcome.changes_wants = True
        value_id, index = next(iter(outputs.values()))
        self._links.add(value_id, Link(index, node=node.id))
        for name, value in ids.items():
            self._set(value, inputs.get(name, ABSENT))


def _blocks(arg: In) -> bool:
    """Whether a node waits for the whole value at this port before it opens."""
    return arg.piece is None and not arg.is_hint


def _evaluate(node: Node, inputs: Mapping[str, object]) -> list[object]:
    """Control flow, perhaps registered by a user: whatever it raises is a failure of that step."""
    assert node.spec.evaluate is not None
    try:
        return by_port(node, node.spec.evaluate(inputs, node.config))
    except StrettoError as error:
        raise error.at(node.name) from error
    except Exception as error:
        raise EngineFailure(f"{type(error).__name__}: {error}", step=node.name) from error
