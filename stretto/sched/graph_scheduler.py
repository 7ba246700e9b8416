"""The upper tier: one state machine per query.

Its rules, whole:

    A node *opens* when every in port that is not streaming is complete and all its ORDER predecessors
    have ended. If a required input is absent it ends at once and delivers absent. Hints are not waited for.
    A node whose value is only a hint is not sent unless a reader still waits. It is *withdrawn* when its only
    reader opens, or when all its readers have ended; it delivers absent then, as it does when it fails.
    Open control flow is evaluated on the spot. Open engine work goes out as a `Request`: once, or, when
    mapped, piece by piece as its streams grow. A fused decode goes out with its prefill.
    Results of a mapped node are put in place by index and flow on in order, so arrival never shows.
    A node *ends* once; its out values are set once. An effect is set at the end of its stream.
    The query ends when every output is set and every effect has happened.

The per-query object store is `values`: inputs and results by value id. Work refers to it, so anything
that is lost can be run again from there. Nothing here knows engines, batches or time.

Source: Teola §5.1. Differs: streams, absent values, and graphs that grow while they run (`expand`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stretto.core import ABSENT
from stretto.errors import BadReply, CapacityError, EngineFailure, StrettoError, UserError
from stretto.graph.compile import ExecutionGraph, Node, rebase
from stretto.graph.graph import WHEN
from stretto.sched.node_state import NodeState, NodeStates
from stretto.sched.prepare import prepare_request
from stretto.sched.request import Request
from stretto.sched.shown_text import ShownText
from stretto.sched.splicing import Expand, Splices, subgraph_of
from stretto.sched.streams import UNSET, Streams, by_port
from stretto.tasks import Objective

MAX_NODES = 100_000


@dataclass(slots=True)
class Outcome:
    """What one event led to: work for engines, text for the caller, and the end of the query.

    Of the nodes in `withdrawn` nothing is wanted any more, wherever their work is.
    """

    work: list[Request] = field(default_factory=list)
    withdrawn: list[int] = field(default_factory=list)
    text: list[tuple[str, str]] = field(default_factory=list)
    ended: bool = False


class GraphScheduler:
    """Runs one `ExecutionGraph` for one query.

    Each public method handles one event and returns its `Outcome`.

    Raises:
        StrettoError: from any of them, when the query has failed; the error names the step.
    """

    def __init__(
        self,
        query: str,
        egraph: ExecutionGraph,
        inputs: Mapping[str, object],
        expand: Expand | None = None,
        *,
        tenant: str = "",
        objective: Objective = "throughput",
    ) -> None:
        self.query = query
        self.tenant = tenant
        self.objective = objective
        self.nodes: list[Node] = list(egraph.nodes)
        self.values: list[object] = [UNSET] * egraph.num_values
        self.egraph = egraph
        self._inputs = inputs
        self._expand = expand
        self._readers: list[tuple[tuple[int, int], ...]] = list(egraph.readers)
        self._followers: list[tuple[int, ...]] = list(egraph.followers)
        self._blocking = [node.num_blocking for node in egraph.nodes]
        self._states = NodeStates(len(egraph.nodes))
        self._streams = Streams()
        self._shown = ShownText(egraph.streamed)
        self._splices = Splices()
        self._returned: dict[int, object] = {}
        self._pending: deque[int] = deque()
        self._outstanding = {value for _, value, _ in egraph.outputs}
        self._num_effects = sum(node.is_effect for node in egraph.nodes)
        self._outcome = Outcome()

    def start(self) -> Outcome:
        """Deliver the inputs and open what waits for nothing else."""
        for name, value in self.egraph.inputs.items():
            if name not in self._inputs:
                raise UserError(f"the query brings no input {name!r}")
            self._set(value, self._inputs[name])
        self._pending.extend(node.id for node in self.nodes if node.num_blocking == 0)
        self._pending = deque(sorted(self._pending))  # a prefill before those that it is a hint for
        return self._take_outcome()

    def complete(self, node_id: int, lo: int, results: Sequence[object]) -> Outcome:
        """Work on items from `lo` on is done. A repeated result is ignored."""
        node = self.nodes[node_id]
        if not self._has_ended(node_id):
            if node.is_mapped:
                self._streams.mapped[node_id].put(lo, results)
                self._flow(node)
            else:
                self._complete_single(node, results[0])
        return self._take_outcome()

    def fail(self, node_id: int, error: StrettoError) -> Outcome:
        """Work of a node has failed for good. Raises `error` unless the node only feeds hints."""
        if not self._has_ended(node_id):
            self._fail(self.nodes[node_id], error)
        return self._take_outcome()

    def deliver(self, node_id: int, offset: int, piece: str) -> Outcome:
        """A running decode has produced a piece: item number `offset`, or text from that character on.

        What was delivered before (by an attempt that was lost) is passed over.
        """
        node = self.nodes[node_id]
        node = self.nodes[node.fused] if node.fused is not None else node
        if not self._has_ended(node.id) and not node.is_mapped and node.decode is not None:
            if node.decode.items is None:
                self._outcome.text += self._shown.show(node, offset, piece, self.values)
            elif self._streams.append(node.outs[0], offset, piece):
                self._grown(node.outs[0])
        return self._take_outcome()

    def result(self) -> dict[str, object]:
        """Outputs by name, once the query has ended."""
        return {name: _item(self.values[value], index) for name, value, index in self.egraph.outputs}

    def check_invariants(self) -> None:
        """For tests: counters agree with the values they count."""
        for node in self.nodes:
            state = self._states[node.id]
            needed = [arg for arg in node.ins if arg.piece is None and not arg.is_hint]
            blocked = sum(1 for arg in needed if self.values[arg.value] is UNSET)
            blocked += sum(1 for other in node.after if not self._has_ended(other))
            assert self._blocking[node.id] == blocked, node.name
            assert state is NodeState.WAITING or blocked == 0, node.name
            assert (state is NodeState.FLOWING) == (node.id in self._streams.mapped), node.name
            if state is NodeState.ENDED:
                assert all(self.values[out] is not UNSET for out in node.outs), node.name
        self._streams.check_invariants()

    def _has_ended(self, node_id: int) -> bool:
        return self._states[node_id] is NodeState.ENDED

    # --- opening

    def _drain(self) -> None:
        """Open or feed what is pending. A queue, not recursion: chains of absent nodes may be long."""
        while self._pending:
            node = self.nodes[self._pending.popleft()]
            try:
                self._go_on(node)
            except StrettoError as error:
                self._fail(node, error)

    def _go_on(self, node: Node) -> None:
        match self._states[node.id]:
            case NodeState.WAITING:
                self._open(node)
            case NodeState.FLOWING:
                self._feed(node)
            case NodeState.EXPANDED:
                self._end(node, [self._returned.pop(node.id)])

    def _fail(self, node: Node, error: StrettoError) -> None:
        """Let a node that only feeds hints end without a value; any other failure is the query's."""
        if not node.hints or self._has_ended(node.id):
            raise error
        self._streams.drop(node)
        self._end(node, [ABSENT] * len(node.outs))

    def _unblock(self, node_id: int) -> None:
        self._blocking[node_id] -= 1
        if self._blocking[node_id] == 0:
            self._pending.append(node_id)

    def _open(self, node: Node) -> None:
        self._states.move(node, NodeState.OPEN)
        if node.hints and not self._is_awaited(node):
            self._end(node, [ABSENT] * len(node.outs))
            return
        self._withdraw_hint(node)
        inputs = self._inputs_of(node)
        if inputs is None:
            self._end(node, [ABSENT] * len(node.outs))
        elif node.is_mapped:
            self._states.move(node, NodeState.FLOWING)
            self._streams.open(node, inputs)
            self._feed(node)
        elif node.spec.evaluate is not None:
            self._end(node, _evaluate(node, inputs))
        elif node.spec.runs_on is None:
            self._splice(node, inputs)
        else:
            self._send(node, inputs, 0, 1, ())

    def _is_awaited(self, node: Node) -> bool:
        """Whether a reader of its hint has not opened yet."""
        return any(self._states[reader] is NodeState.WAITING for reader in node.hints)

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
        work = self._outcome.work
        self._outcome.work = [one for one in work if one.node.id != node.id]
        if len(self._outcome.work) == len(work):
            self._outcome.withdrawn.append(node.id)
        self._end(node, [ABSENT] * len(node.outs))

    def _inputs_of(self, node: Node) -> dict[str, object] | None:
        """The values at its ports, as far as they are there; None if a required one is absent."""
        inputs: dict[str, object] = {}
        for arg in node.ins:
            value = self.values[arg.value]
            if arg.index is not None:
                try:
                    value = _item(value, arg.index)
                except BadReply as error:
                    raise error.at(node.name) from error
            if value is ABSENT:
                if not arg.optional:
                    return None
            elif arg.port != WHEN and value is not UNSET:
                inputs[arg.port] = value
        return inputs

    def _send(
        self, node: Node, inputs: Mapping[str, object], lo: int, hi: int, each: tuple[str, ...]
    ) -> None:
        decode_node = None if node.fused is None else self.nodes[node.fused]
        self._outcome.work.append(
            prepare_request(
                self.query,
                node,
                decode_node,
                inputs,
                lo,
                hi,
                each,
                template=self.egraph.graph.name,
                tenant=self.tenant,
                objective=self.objective,
            )
        )

    def _feed(self, node: Node) -> None:
        """Hand out the items of an open mapped node that have arrived since the last time."""
        arrived = self._streams.feed(node, self.values)
        if arrived is None:
            self._end(node, [ABSENT] * len(node.outs))
            return
        for items in arrived:
            self._send(node, items.inputs, items.lo, items.hi, items.each)
        self._flow(node)

    # --- results

    def _complete_single(self, node: Node, result: object) -> None:
        outs = node.spec.outputs
        if node.fused is not None:
            assert isinstance(result, tuple)
            kv, decoded = result
            self._end(node, [kv])
            decode = self.nodes[node.fused]
            self._check_pieces(decode, decoded)
            self._end(decode, [decoded])
        elif len(outs) == 1:
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
        lists = self._streams.close(node, self.nodes)
        if node.is_effect:
            self._end(node, [True])
        elif node.fused is None:
            self._end(node, lists)
        else:
            self._end(node, lists[:1])
            self._end(self.nodes[node.fused], lists[1:])

    def _end(self, node: Node, outputs: Sequence[object]) -> None:
        self._states.move(node, NodeState.ENDED)
        self._withdraw_hint(node)
        if node.is_effect:
            self._num_effects -= 1
        for out, value in zip(node.outs, outputs, strict=True):
            self._set(out, value)
        for follower in self._followers[node.id]:
            self._unblock(follower)

    def _set(self, value_id: int, value: object) -> None:
        self.values[value_id] = value
        self._outstanding.discard(value_id)
        for node_id, position in self._readers[value_id]:
            arg = self.nodes[node_id].ins[position]
            if arg.is_hint:
                continue
            if arg.piece is None:
                self._unblock(node_id)
            elif self._states[node_id] is NodeState.FLOWING:
                self._pending.append(node_id)
        awaited = self._splices.take(value_id)
        if awaited is not None:
            node_id, index = awaited
            self._returned[node_id] = _item(value, index)
            self._pending.append(node_id)

    def _grown(self, value_id: int) -> None:
        for node_id, position in self._readers[value_id]:
            is_streaming = self.nodes[node_id].ins[position].piece is not None
            if is_streaming and self._states[node_id] is NodeState.FLOWING:
                self._pending.append(node_id)

    # --- expansion, the end

    def _splice(self, node: Node, inputs: Mapping[str, object]) -> None:
        """Grow the running graph by what `node` expands to; the subgraph's output becomes its own."""
        sub = subgraph_of(node, inputs, self._expand)
        if len(self.nodes) + len(sub.nodes) > MAX_NODES:
            raise CapacityError(f"the graph has grown beyond {MAX_NODES} primitives", step=node.name)
        self._states.move(node, NodeState.EXPANDED)
        node_base, value_base = len(self.nodes), len(self.values)
        nodes = rebase(sub, node_base, value_base, node)
        self.nodes += nodes
        self.values += [UNSET] * sub.num_values
        self._readers += [tuple((n + node_base, p) for n, p in readers) for readers in sub.readers]
        self._followers += [tuple(n + node_base for n in followers) for followers in sub.followers]
        self._blocking += [new.num_blocking for new in nodes]
        self._states.add(nodes)
        self._num_effects += sum(new.is_effect for new in nodes)
        _, value, index = sub.outputs[0]
        self._splices.add(node.id, value + value_base, index)
        for name, value_id in sub.inputs.items():
            self._set(value_id + value_base, inputs.get(name, ABSENT))
        self._pending.extend(new.id for new in nodes if new.num_blocking == 0)

    def _take_outcome(self) -> Outcome:
        self._drain()
        outcome = self._outcome
        outcome.ended = not self._outstanding and self._num_effects == 0
        self._outcome = Outcome()
        return outcome


def _evaluate(node: Node, inputs: Mapping[str, object]) -> list[object]:
    """Control flow, perhaps registered by a user: whatever it raises is a failure of that step."""
    assert node.spec.evaluate is not None
    try:
        return by_port(node, node.spec.evaluate(inputs, node.config))
    except StrettoError as error:
        raise error.at(node.name) from error
    except Exception as error:
        raise EngineFailure(f"{type(error).__name__}: {error}", step=node.name) from error


def _item(value: object, index: int | None) -> object:
    """Item `index` of a list; absent beyond its end."""
    if index is None or value is ABSENT:
        return value
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise BadReply(f"item {index} of a {type(value).__name__}, which is not a list")
    return value[index] if index < len(value) else ABSENT
