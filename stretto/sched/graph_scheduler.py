"""The upper tier: one state machine per query.

Its rules, whole:

    A node *opens* when every in port that is not streaming is complete and all its ORDER predecessors
    have ended. If a required input is absent it ends at once and delivers absent.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stretto.core import ABSENT
from stretto.errors import BadReply, CapacityError, EngineFailure, InternalError, StrettoError, UserError
from stretto.graph.compile import ExecutionGraph, Node, rebase
from stretto.graph.graph import WHEN
from stretto.sched.mapped import UNSET, Mapped, by_port, column_of, item_outs, runs_present
from stretto.sched.prepare import prepare_request
from stretto.sched.request import Request
from stretto.tasks import Objective

MAX_NODES = 100_000


Expand = Callable[[str, Mapping[str, object]], ExecutionGraph]
"""From the `body` of an `expand` and its inputs to the subgraph, optimised and compiled."""


@dataclass(slots=True)
class Outcome:
    """What one event led to: work for engines, text for the caller, and the end of the query."""

    work: list[Request] = field(default_factory=list)
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
        self._ended = [False] * len(egraph.nodes)
        self._opened = [False] * len(egraph.nodes)
        self._growing: dict[int, list[object]] = {}
        self._mapped: dict[int, Mapped] = {}
        self._shown: dict[tuple[int, str], str] = {}
        self._spliced: dict[int, tuple[int, int | None]] = {}
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
        return self._take_outcome()

    def complete(self, node_id: int, lo: int, results: Sequence[object]) -> Outcome:
        """Work on items from `lo` on is done. A repeated result is ignored."""
        node = self.nodes[node_id]
        if not self._ended[node_id]:
            if node.is_mapped:
                self._complete_items(node, lo, results)
            else:
                self._complete_single(node, results[0])
        return self._take_outcome()

    def deliver(self, node_id: int, offset: int, piece: str) -> Outcome:
        """A running decode has produced a piece: item number `offset`, or text from that character on.

        What was delivered before (by an attempt that was lost) is passed over.
        """
        node = self.nodes[node_id]
        node = self.nodes[node.fused] if node.fused is not None else node
        if self._ended[node.id] or node.is_mapped or node.decode is None:
            return self._take_outcome()
        if node.decode.items is None:
            self._emit(node, offset, piece)
        else:
            growing = self._growing.setdefault(node.outs[0], [])
            if offset == len(growing):
                growing.append(piece)
                self._grown(node.outs[0])
        return self._take_outcome()

    def result(self) -> dict[str, object]:
        """Outputs by name, once the query has ended."""
        return {name: _item(self.values[value], index) for name, value, index in self.egraph.outputs}

    def check_invariants(self) -> None:
        """For tests: counters agree with the values they count."""
        for node in self.nodes:
            blocked = sum(1 for arg in node.ins if arg.piece is None and self.values[arg.value] is UNSET)
            blocked += sum(1 for other in node.after if not self._ended[other])
            assert self._blocking[node.id] == blocked, node.name
            assert not self._opened[node.id] or blocked == 0, node.name
            assert not self._ended[node.id] or all(self.values[out] is not UNSET for out in node.outs), (
                node.name
            )
        for node_id, mapped in self._mapped.items():
            assert mapped.flowed <= mapped.num_done <= mapped.taken <= len(mapped.results), node_id
            assert mapped.num_done == sum(1 for result in mapped.results if result is not UNSET), node_id

    # --- opening

    def _drain(self) -> None:
        """Open or feed what is pending. A queue, not recursion: chains of absent nodes may be long."""
        while self._pending:
            node_id = self._pending.popleft()
            if not self._opened[node_id]:
                self._open(self.nodes[node_id])
            elif node_id in self._mapped:
                self._feed(self.nodes[node_id])
            elif node_id in self._returned:
                self._end(self.nodes[node_id], [self._returned.pop(node_id)])

    def _unblock(self, node_id: int) -> None:
        self._blocking[node_id] -= 1
        if self._blocking[node_id] == 0:
            self._pending.append(node_id)

    def _open(self, node: Node) -> None:
        self._opened[node.id] = True
        inputs: dict[str, object] = {}
        values = self.values
        for arg in node.ins:
            value = values[arg.value]
            if arg.index is not None:
                try:
                    value = _item(value, arg.index)
                except BadReply as error:
                    raise error.at(node.name) from error
            if value is ABSENT:
                if not arg.optional:
                    self._end(node, [ABSENT] * len(node.outs))
                    return
            elif arg.port != WHEN and value is not UNSET:
                inputs[arg.port] = value
        if node.fused_into is not None:
            return
        if node.is_mapped:
            pieces = [arg.piece for arg in node.ins if arg.piece is not None]
            self._mapped[node.id] = Mapped(inputs, min(pieces, default=1))
            self._feed(node)
        elif node.spec.evaluate is not None:
            self._end(node, self._evaluate(node, inputs))
        elif node.spec.runs_on is None:
            self._splice(node, inputs)
        else:
            self._outcome.work.append(self._request(node, inputs, 0, 1, ()))

    def _evaluate(self, node: Node, inputs: Mapping[str, object]) -> list[object]:
        """Control flow, perhaps registered by a user: whatever it raises is a failure of that step."""
        assert node.spec.evaluate is not None
        try:
            return by_port(node, node.spec.evaluate(inputs, node.config))
        except StrettoError as error:
            raise error.at(node.name) from error
        except Exception as error:
            raise EngineFailure(f"{type(error).__name__}: {error}", step=node.name) from error

    def _feed(self, node: Node) -> None:
        """Hand out the items of an open mapped node that have arrived since the last time."""
        mapped = self._mapped[node.id]
        columns: dict[str, Sequence[object]] = {}
        available, is_closed = -1, True
        for arg in node.ins:
            if not arg.each:
                continue
            value = self.values[arg.value]
            if value is ABSENT:
                del self._mapped[node.id]
                self._end(node, [ABSENT] * len(node.outs))
                return
            if value is UNSET:
                is_closed = False
                value = self._growing.get(arg.value, ())
            if isinstance(value, str) or not isinstance(value, Sequence):
                raise BadReply(f"port {arg.port!r} got a {type(value).__name__}, not a list", step=node.name)
            columns[arg.port] = value
            available = len(value) if available < 0 else min(available, len(value))
        if is_closed:
            mapped.total = available
        lo = mapped.taken
        if available - lo >= mapped.piece or (is_closed and available > lo):
            mapped.taken = available
            mapped.results.extend([UNSET] * (available - lo))
            for start, end in runs_present(columns, lo, available):
                inputs = {**mapped.inputs, **{port: items[start:end] for port, items in columns.items()}}
                self._outcome.work.append(self._request(node, inputs, start, end, tuple(columns)))
            absent = [i for i in range(lo, available) if any(c[i] is ABSENT for c in columns.values())]
            for i in absent:
                self._complete_items(node, i, [ABSENT])
        if not self._ended[node.id]:
            self._flow(node, mapped)

    def _request(
        self, node: Node, inputs: Mapping[str, object], lo: int, hi: int, each: tuple[str, ...]
    ) -> Request:
        decode_node = None if node.fused is None else self.nodes[node.fused]
        return prepare_request(
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
        growing = self._growing.pop(node.outs[0], None)
        if growing is not None and (not isinstance(value, list) or value[: len(growing)] != growing):
            raise BadReply("the items it streamed are not those it returned", step=node.name)
        for output in self.egraph.streamed.get(node.id, ()):
            shown = self._shown.get((node.id, output.name), "")
            if not isinstance(value, str) or not value.startswith(shown):
                raise BadReply("the text it streamed is not what it returned", step=node.name)

    def _complete_items(self, node: Node, lo: int, results: Sequence[object]) -> None:
        mapped = self._mapped[node.id]
        for i, result in enumerate(results, lo):
            if mapped.results[i] is UNSET:
                mapped.results[i] = result
                mapped.num_done += 1
        self._flow(node, mapped)

    def _flow(self, node: Node, mapped: Mapped) -> None:
        """Pass on finished items in order; end the node after the last."""
        start = mapped.flowed
        while mapped.flowed < len(mapped.results) and mapped.results[mapped.flowed] is not UNSET:
            mapped.flowed += 1
        outs = item_outs(node, self.nodes)
        if mapped.flowed > start and not node.is_effect:
            items = mapped.results[start : mapped.flowed]
            for place, out in enumerate(outs):
                self._growing.setdefault(out, []).extend(column_of(node, items, place, len(outs)))
                self._grown(out)
        if mapped.total is None or mapped.num_done < mapped.total:
            return
        del self._mapped[node.id]
        if node.is_effect:
            self._end(node, [True])
            return
        lists = [self._growing.pop(out, []) for out in outs]
        if node.fused is None:
            self._end(node, lists)
        else:
            self._end(node, lists[:1])
            self._end(self.nodes[node.fused], lists[1:])

    def _end(self, node: Node, outputs: Sequence[object]) -> None:
        if self._ended[node.id]:
            raise InternalError("ended twice", step=node.name)
        self._ended[node.id] = True
        self._opened[node.id] = True
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
            if self.nodes[node_id].ins[position].piece is None:
                self._unblock(node_id)
            elif node_id in self._mapped:
                self._pending.append(node_id)
        if value_id in self._spliced:
            node_id, index = self._spliced.pop(value_id)
            self._returned[node_id] = _item(value, index)
            self._pending.append(node_id)

    def _grown(self, value_id: int) -> None:
        for node_id, position in self._readers[value_id]:
            if self.nodes[node_id].ins[position].piece is not None and node_id in self._mapped:
                self._pending.append(node_id)

    # --- text, expansion, the end

    def _emit(self, node: Node, offset: int, text: str) -> None:
        """Show text of a decode that is certain to be an output; once begun it goes on to its end."""
        for output in self.egraph.streamed.get(node.id, ()):
            shown = self._shown.get((node.id, output.name), "")
            again, new = text[: max(0, len(shown) - offset)], text[max(0, len(shown) - offset) :]
            if again and shown[offset : offset + len(again)] != again:
                raise BadReply("a second attempt decoded another text than was shown", step=node.name)
            is_certain = all(self.values[value] is ABSENT for value in output.unless)
            if is_certain and new and offset <= len(shown):
                self._outcome.text.append((output.name, new))
                self._shown[node.id, output.name] = shown + new

    def _splice(self, node: Node, inputs: Mapping[str, object]) -> None:
        """Grow the running graph by what `node` expands to; the subgraph's output becomes its own."""
        if self._expand is None:
            raise UserError("this query cannot expand", step=node.name)
        try:
            sub = self._expand(str(node.config.get("body")), inputs)
        except StrettoError as error:
            raise error.at(node.name) from error
        except Exception as error:
            raise EngineFailure(f"{type(error).__name__}: {error}", step=node.name) from error
        if not sub.outputs:
            raise UserError("it expands to a graph without an output", step=node.name)
        if len(self.nodes) + len(sub.nodes) > MAX_NODES:
            raise CapacityError(f"the graph has grown beyond {MAX_NODES} primitives", step=node.name)
        node_base, value_base = len(self.nodes), len(self.values)
        nodes = rebase(sub, node_base, value_base, node)
        self.nodes += nodes
        self.values += [UNSET] * sub.num_values
        self._readers += [tuple((n + node_base, p) for n, p in readers) for readers in sub.readers]
        self._followers += [tuple(n + node_base for n in followers) for followers in sub.followers]
        self._blocking += [new.num_blocking for new in nodes]
        self._ended += [False] * len(nodes)
        self._opened += [False] * len(nodes)
        self._num_effects += sum(new.is_effect for new in nodes)
        _, value, index = sub.outputs[0]
        self._spliced[value + value_base] = (node.id, index)
        for name, value_id in sub.inputs.items():
            self._set(value_id + value_base, inputs.get(name, ABSENT))
        self._pending.extend(new.id for new in nodes if new.num_blocking == 0)

    def _take_outcome(self) -> Outcome:
        self._drain()
        outcome = self._outcome
        outcome.ended = not self._outstanding and self._num_effects == 0
        self._outcome = Outcome()
        return outcome


def _item(value: object, index: int | None) -> object:
    """Item `index` of a list; absent beyond its end."""
    if index is None or value is ABSENT:
        return value
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise BadReply(f"item {index} of a {type(value).__name__}, which is not a list")
    return value[index] if index < len(value) else ABSENT
