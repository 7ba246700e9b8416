"""The scheduler of one query, which decides when each node of its graph runs.

Its rules, whole:

    A node *opens* when every in port that is not streaming is complete and all its ORDER predecessors
    have ended. If a required input is absent it ends at once and delivers absent; if one has failed it ends
    with that failure (`live_values.py`). Hints are not waited for.
    A node whose value is only a hint is not sent unless a reader still waits. It is *withdrawn* when its only
    reader opens, or when all its readers have ended; it delivers absent then, as it does when it fails.
    Open control flow is evaluated on the spot. Open engine work goes out as a `StepRequest`: once, or, when
    mapped, piece by piece as its streams grow. A fused decode goes out with its prefill.
    Results of a mapped node are put in place by index and flow on in order, so arrival never shows.
    A node *ends* once; its out values are set once. An effect is set at the end of its stream.

What is connected to what, and the values, are the `LiveGraph`; this file says what nodes do there. Requests
refer to values, so anything that is lost can be run again from there. Nothing here knows engines, batches,
time, or the names of variables (`session.py`).

Source: Teola §5.1. Differs: streams, absent values, failures that flow, and graphs that grow while they run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stretto.graph.execution_graph import ExecutionGraph, Node, StreamedOutput
from stretto.model.foreign import check_nesting, raised, typed
from stretto.model.references import load_inputs
from stretto.model.tasks import Decode, QueryRecord
from stretto.model.values import ABSENT, AbsentType, Failure
from stretto.sched.queries.demand import NOBODY, Demand, usual
from stretto.sched.queries.live_graph import LiveGraph
from stretto.sched.queries.live_values import gather_inputs
from stretto.sched.queries.node_state import NodeStates
from stretto.sched.queries.outcome import Outcome
from stretto.sched.queries.prepare import prepare_request
from stretto.sched.queries.shown_text import ShownText
from stretto.sched.queries.splicing import Expand, given_to, subgraph_of
from stretto.sched.queries.streams import Streams, by_port
from stretto.sched.queries.task_groups import TaskGroups
from stretto.sched.queries.turn_work import TurnWork, most_items

TURN_PRIMITIVES = 8
"""Number of primitives that expansions may add before others have a turn: some ms of work."""


class GraphScheduler:
    """The scheduler of one query: it decides which nodes of the query's graph can run
    now, and what follows from their results.

    Each method handles one event and adds what follows from it, such as new requests for engines, to
    `outcome`.

    Attributes:
        live: nodes that have not ended, their connections, and the values.
        demands: how urgently each node that somebody needs is needed; None if all are needed by the query's
            end.
        groups: task groups of the requests that are needed, where there are demands.
        changed: ids of nodes that have come, or have lost a node that waited for them, since `demands` were
            computed. Kept only where there are demands.
        has_expanded: whether a subgraph has been added since `demands` were computed.
    """

    def __init__(
        self,
        query: str,
        record: QueryRecord | None = None,
        expand: Expand | None = None,
        turn: TurnWork | None = None,
    ) -> None:
        self.query = query
        self.live = LiveGraph()
        self.nodes = self.live.nodes
        self.values = self.live.values
        self.outcome = Outcome()
        self.demands: dict[int, Demand] | None = None
        self.groups = TaskGroups()
        self.changed: dict[int, None] = {}
        self.has_expanded = False
        self._num_spliced = 0
        self._turn = turn or TurnWork()
        self._record = record or QueryRecord()
        self._expand = expand
        self._states = NodeStates()
        self._streams = Streams()
        self._shown = ShownText()

    def grow(
        self,
        egraph: ExecutionGraph,
        inputs: Mapping[str, int],
        names: Mapping[str, str],
        under: Node | None = None,
    ) -> dict[str, tuple[int, int | None]]:
        """Add a graph to the graph that is running.

        Returns, for each output by its name, the id of the value that it is, and an index if it is only that
        item of the value, else None.

        Args:
            inputs: id of the value of each of the graph's inputs, by name.
            names: name under which the text of each output is shown, where it differs.
            under: the `expand` node that the graph replaces, if any.

        Raises:
            CapacityError: too many nodes live.
        """
        joined = self.live.join(egraph, inputs, under)
        self._states.add(joined.nodes)
        if self.demands is not None:
            self.changed.update((node.id, None) for node in joined.nodes)
        for place, streamed in egraph.streamed.items():
            own = [
                StreamedOutput(one.name, tuple([joined.values[value] for value in one.unless]))
                for one in streamed
            ]
            if under is None:
                shown = tuple([StreamedOutput(names.get(one.name, one.name), one.unless) for one in own])
            else:
                shown = self._shown.within(under, [one for one in own if one.name == egraph.outputs[0][0]])
            if self._record.is_streamed:
                self._shown.add(joined.nodes[place].id, shown)
        return {name: (joined.values[value], index) for name, value, index in egraph.outputs}

    # --- events

    def complete(self, node_id: int, lo: int, results: Sequence[object]) -> None:
        """Set the results of a node's items from `lo` on; some may be failures.

        A repeated result is ignored.
        """
        node = self.nodes.get(node_id)
        if node is None:
            return
        try:
            if node.is_mapped:
                self._streams.mapped[node_id].put(lo, results)
                self._flow(node)
            else:
                self._complete_single(node, results[0])
        except raised() as error:
            self._fail(node, error)

    def deliver(self, node_id: int, offset: int, piece: str) -> None:
        """Pass on a piece of output of a decode that still runs: item number `offset` of a
        list, or text from character `offset` on.

        What an earlier attempt, lost with its instance, delivered already is skipped.
        """
        node = self.nodes.get(node_id)
        if node is not None and node.fused is not None:
            node = self.nodes.get(node.fused)
        if node is None or node.is_mapped or node.decode is None:
            return
        if node.decode.items is not None:
            if self._streams.append(node.outs[0], offset, piece):
                self.live.grown(node.outs[0])
            return
        try:
            self.outcome.text += self._shown.show(node, offset, piece, self.values)
        except raised() as error:
            self._fail(self.nodes[node_id], error)

    def has_opened(self, node: Node) -> bool:
        """Return whether a node has begun and not ended, so that its work may be at an engine."""
        return self._states[node.id] in ("open", "flowing")

    def conceal(self, name: str) -> None:
        """Show callers no more text under the name of a variable, because that variable was given up."""
        self._shown.conceal(name)

    def cancel(self, nodes: Iterable[Node]) -> None:
        """Cancel nodes that serve nothing any more, and withdraw their work from the engines."""
        for node in nodes:
            self._retire(node)
            self.outcome.withdrawn.append(node)
            self.live.cut(node)

    def settle(self) -> None:
        """Start the nodes whose inputs have come, give more items to those that read a growing list,
        and repeat this for all nodes that become ready by it.

        It uses a queue instead of recursion, because chains of skipped nodes may be long. It begins in the
        order of the graph, so that a prefill goes before the calls that reuse its KV.

        It pauses where many primitives were added by expansions, so that a graph that grows without end does
        not hold up others, and where the work of this instant is done; the outcome says so, and the next call
        goes on.
        """
        self._num_spliced = 0
        woken = self.live.woken
        woken.sort()
        num_done = 0
        for node_id in woken:  # grows meanwhile
            if self._num_spliced >= TURN_PRIMITIVES or self._turn.is_over:
                break
            num_done += 1
            node = self.nodes.get(node_id)
            if node is None:
                continue
            try:
                self._go_on(node)
            except raised() as error:
                self._fail(node, error)
        del woken[:num_done]
        self.outcome.is_paused = bool(woken)

    def take_outcome(self) -> Outcome:
        """Return what has followed from all events since the last call (work for engines, news for the
        caller), and begin a new, empty `Outcome`.
        """
        outcome, self.outcome = self.outcome, Outcome()
        settled, self.live.settled = self.live.settled, []
        outcome.settled += settled
        return outcome

    def made_by(self, node_id: int) -> list[str]:
        """Return the watched values, by name, that come of what an LLM answers to a node, without a
        further request and without another watched value in between.
        """
        node = self.nodes.get(node_id)
        if node is None:
            return []
        begin = node if node.fused is None else self.nodes[node.fused]
        found: dict[str, None] = {}
        nodes = {begin.id: begin}
        for one in (todo := [begin]):  # grows meanwhile
            readers, values = self.live.dependencies.reached(one)
            names = [name for value in values if (name := self.live.watched.get(value)) is not None]
            found.update(dict.fromkeys(names))
            for reader in () if names else readers:
                other = self.nodes.get(reader)
                if other is not None and other.spec.runs_on != "llm" and other.id not in nodes:
                    nodes[other.id] = other
                    todo.append(other)
        return list(found)

    def check_invariants(self) -> None:
        """Check that the states of nodes agree with what they wait for and with their lists of items.
        For tests.
        """
        self.live.check_invariants()
        for node in self.nodes.values():
            state = self._states[node.id]
            assert state != "ended", node.name
            assert state == "waiting" or not self.live.blocking[node.id], node.name
            assert (state == "flowing") == (node.id in self._streams.mapped), node.name
        self._streams.check_invariants()

    # --- opening

    def _go_on(self, node: Node) -> None:
        match self._states[node.id]:
            case "waiting" if not self.live.blocking[node.id]:
                self._open(node)
            case "flowing":
                self._feed(node)
            case "expanded" if (results := self.live.take_returned(node)) is not None:
                self._end(node, results)

    def _open(self, node: Node) -> None:
        self._states.move(node, "open")
        if node.hints and not any(self._states[reader] == "waiting" for reader in node.hints):
            self._end_with(node, ABSENT)
            return
        if node.hint_from:
            self._withdraw_hint(node)
        inputs, is_absent, failure = gather_inputs(node, self.values)
        if is_absent:
            self._end_with(node, ABSENT)
        elif node.is_mapped:
            self._states.move(node, "flowing")
            self._streams.open(node, inputs, failure)
            self._feed(node)
        elif failure is not None:
            self._end_with(node, failure[1])
        elif node.spec.evaluate is not None:
            self._end(node, _evaluate(node, inputs))
        elif node.spec.runs_on is None:
            self._splice(node, inputs)
        else:
            self._send(node, inputs, 0, 1, ())

    def _withdraw_hint(self, reader: Node) -> None:
        """End the prefill ahead of `reader`, which has opened or ended, if it can help no other node.

        A mapped reader is several: some of its items may find in the cache what is computed for others.
        """
        if self._states[reader.hint_from[0]] != "open":
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
        self._turn.spend(node, len(inputs), hi - lo)
        decode_node = None if node.fused is None else self.nodes[node.fused]
        decode = (decode_node or node).decode
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
                demand=self._demand(node),
                shows=decode is not None and self._shows(decode_node or node, decode),
            )
        )

    def _shows(self, node: Node, decode: Decode) -> bool:
        """Return whether parts of the output of a decode are passed on before its end."""
        return self._shown.may_show(node) or (decode.items is not None and not node.is_mapped)

    def _demand(self, node: Node) -> Demand:
        if self.demands is not None:
            return self.groups.of(node, self.demands.get(node.id, NOBODY))
        return usual(self._record.criteria, node.path_s)

    def _feed(self, node: Node) -> None:
        """Hand out items of an open mapped node that have arrived since the last time. If there are too many
        for one time, the node is woken again.
        """
        arrived = self._streams.feed(node, self.values, most_items(node))
        if not isinstance(arrived, list):
            self._end_with(node, arrived)
            return
        if self._streams.mapped[node.id].has_more:
            self.live.woken.append(node.id)
        for items in arrived:
            try:
                self._send(node, items.inputs, items.lo, items.hi, items.each)
            except raised():
                self._send_one_by_one(node, items.inputs, items.lo, items.hi, items.each)
        self._flow(node)

    def _send_one_by_one(
        self, node: Node, inputs: Mapping[str, object], lo: int, hi: int, each: tuple[str, ...]
    ) -> None:
        """Send the items of a node one by one: one of them cannot stand in a prompt, and only that one
        fails.
        """
        for i in range(lo, hi):
            row = dict(inputs)
            for port in each:
                column = inputs[port]
                assert isinstance(column, Sequence)
                row[port] = column[i - lo : i - lo + 1]
            try:
                self._send(node, row, i, i + 1, each)
            except raised() as error:
                self._streams.mapped[node.id].put(i, [Failure(typed(error, node.name))])

    # --- results

    def _complete_single(self, node: Node, result: object) -> None:
        if isinstance(result, Failure):
            self._end_with(node, result)
        elif node.fused is not None:
            assert isinstance(result, tuple)
            kv, *decoded = result
            decode = self.nodes[node.fused]
            self._check_pieces(decode, decoded[0])
            self._end(node, [kv])
            self._end(decode, decoded)
        elif len(node.outs) == 1:
            if node.decode is not None:
                self._check_pieces(node, result)
            self._end(node, [True if node.is_effect else result])
        elif node.decode is not None:
            assert isinstance(result, tuple)
            self._check_pieces(node, result[0])
            self._end(node, result)
        else:
            self._end(node, by_port(node, result))

    def _check_pieces(self, node: Node, value: object) -> None:
        """Check that the pieces that streamed out of a decode are the beginning of its value."""
        self._streams.end_pieces(node, value)
        self._shown.check_end(node, value)

    def _flow(self, node: Node) -> None:
        """Pass on finished items in order; end the node after the last."""
        for value in self._streams.flow(node, self.nodes):
            self.live.grown(value)
        if not self._streams.mapped[node.id].is_done:
            return
        values = self._streams.close(node, self.nodes)
        if node.fused is None:
            self._end(node, values)
        else:
            decode = self.nodes[node.fused]
            self._end(node, values[:1])
            self._end(decode, values[1:])

    def _fail(self, node: Node, error: BaseException) -> None:
        """End a node that has failed as a whole, unless it has ended: a value or code of a user raised
        something, perhaps.
        """
        if node.id not in self.nodes:
            raise error
        self._end_with(node, Failure(typed(error, node.name)))

    def _end_with(self, node: Node, value: AbsentType | Failure) -> None:
        self._end(node, [value] * len(node.outs))

    def _end(self, node: Node, outputs: Sequence[object]) -> None:
        self._retire(node)
        if node.hint_from:
            self._withdraw_hint(node)
        for place, out in enumerate(node.outs):
            value = outputs[place]
            if isinstance(value, Failure):
                if node.is_effect:
                    self.outcome.failed_effects.append(value)
                if node.hints:
                    value = ABSENT
            self.live.bring(out, value)

    def _retire(self, node: Node) -> None:
        """Forget a node, and wake those that wait for it without reading it."""
        self._states.move(node, "ended")
        if node.is_mapped or node.decode is not None:
            self._streams.drop(node)
        if node.spec.runs_on is None or node.decode is not None:
            self._shown.drop(node)
        if self.demands is not None:
            self._note_loss(node)
        self.live.retire(node)

    def _note_loss(self, node: Node) -> None:
        """Note that a node waits no more for those of its sources that have not ended."""
        assert self.demands is not None
        self.demands.pop(node.id, None)
        self.groups.end(node)
        self.changed.pop(node.id, None)
        self.changed.update((source.id, None) for source in self.live.dependencies.sources(node))

    def _splice(self, node: Node, inputs: Mapping[str, object]) -> None:
        """Add the subgraph that `node` expands to; the subgraph's outputs become its own."""
        given = given_to(node, load_inputs(inputs))
        sub = subgraph_of(node, given, self._expand)
        ids = dict(zip(sub.inputs, self.values.add(len(sub.inputs)), strict=True))
        outputs = self.grow(sub, ids, {}, node)
        self._states.move(node, "expanded")
        self.has_expanded = True
        self._num_spliced += len(sub.graph.primitives)
        for place, (value_id, index) in zip(range(len(node.outs)), outputs.values(), strict=False):
            self.live.link_to_node(value_id, index, node, place)
        for name, value in ids.items():
            self.live.bring(value, given.get(name, ABSENT))


def _evaluate(node: Node, inputs: Mapping[str, object]) -> list[object]:
    """Evaluate control flow, perhaps a user's own op."""
    assert node.spec.evaluate is not None
    outputs = by_port(node, node.spec.evaluate(load_inputs(inputs), node.config))
    check_nesting(outputs)
    return outputs
