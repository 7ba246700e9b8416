"""The upper tier: one state machine per query.

Its rules, whole:

    A node *opens* when every in port that is not streaming is complete and all its ORDER predecessors
    have ended. If a required input is absent it ends at once and delivers absent.
    Open control flow is evaluated on the spot. Open engine work goes out as `Work`: once, or, when
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

from stretto.core import ABSENT, KV, Prompt, Segment, as_text
from stretto.errors import BadReply, CapacityError, EngineFailure, InternalError, StrettoError, UserError
from stretto.graph.compile import ExecutionGraph, Node, rebase
from stretto.graph.graph import HINT, WHEN, Constant
from stretto.sched.work import Work

MAX_NODES = 100_000
_CHARS_PER_TOKEN = 4


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET = _Unset()

Expand = Callable[[str, Mapping[str, object]], ExecutionGraph]
"""From the `body` of an `expand` and its inputs to the subgraph, optimised and compiled."""


@dataclass(slots=True)
class _Mapped:
    """Progress of an open mapped node over its items.

    `results[:flowed]` have been passed on; `total` is None while a stream may still grow.
    """

    inputs: Mapping[str, object]
    piece: int
    taken: int = 0
    flowed: int = 0
    num_done: int = 0
    total: int | None = None
    results: list[object] = field(default_factory=list)


@dataclass(slots=True)
class Outcome:
    """What one event led to: work for engines, text for the caller, and the end of the query."""

    work: list[Work] = field(default_factory=list)
    text: list[tuple[str, str]] = field(default_factory=list)
    ended: bool = False


class GraphScheduler:
    """Runs one `ExecutionGraph` for one query.

    Each public method handles one event and returns its `Outcome`.

    Raises:
        StrettoError: from any of them, when the query has failed; the error names the step.
    """

    def __init__(
        self, query: str, egraph: ExecutionGraph, inputs: Mapping[str, object], expand: Expand | None = None
    ) -> None:
        self.query = query
        self.nodes: list[Node] = list(egraph.nodes)
        self.values: list[object] = [UNSET] * egraph.num_values
        self._egraph = egraph
        self._inputs = inputs
        self._expand = expand
        self._readers: list[tuple[tuple[int, int], ...]] = list(egraph.readers)
        self._followers: list[tuple[int, ...]] = list(egraph.followers)
        self._blocking = [node.num_blocking for node in egraph.nodes]
        self._ended = [False] * len(egraph.nodes)
        self._opened = [False] * len(egraph.nodes)
        self._growing: dict[int, list[object]] = {}
        self._mapped: dict[int, _Mapped] = {}
        self._emitted: dict[tuple[int, str], int] = {}
        self._spliced: dict[int, tuple[int, int | None]] = {}
        self._returned: dict[int, object] = {}
        self._pending: deque[int] = deque()
        self._outstanding = {value for _, value, _ in egraph.outputs}
        self._num_effects = sum(node.spec.effect for node in egraph.nodes)
        self._outcome = Outcome()

    def start(self) -> Outcome:
        """Deliver the inputs and open what waits for nothing else."""
        for name, value in self._egraph.inputs.items():
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
        return {name: _item(self.values[value], index) for name, value, index in self._egraph.outputs}

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
            self._mapped[node.id] = _Mapped(inputs, min(pieces, default=1))
            self._feed(node)
        elif node.spec.evaluate is not None:
            self._end(node, self._evaluate(node, inputs))
        elif node.spec.runs_on is None:
            self._splice(node, inputs)
        else:
            self._outcome.work.append(self._work(node, inputs, 0, 1, ()))

    def _evaluate(self, node: Node, inputs: Mapping[str, object]) -> list[object]:
        """Control flow, perhaps registered by a user: whatever it raises is a failure of that step."""
        assert node.spec.evaluate is not None
        try:
            return _by_port(node, node.spec.evaluate(inputs, node.config))
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
            for start, end in _runs_present(columns, lo, available):
                inputs = {**mapped.inputs, **{port: items[start:end] for port, items in columns.items()}}
                self._outcome.work.append(self._work(node, inputs, start, end, tuple(columns)))
            absent = [i for i in range(lo, available) if any(c[i] is ABSENT for c in columns.values())]
            for i in absent:
                self._complete_items(node, i, [ABSENT])
        if not self._ended[node.id]:
            self._flow(node, mapped)

    def _work(
        self, node: Node, inputs: Mapping[str, object], lo: int, hi: int, each: tuple[str, ...]
    ) -> Work:
        if node.spec.runs_on == "llm":
            rows = [_row(inputs, each, i) for i in range(hi - lo)]
            prompts = tuple(self._prompt(node, row) for row in rows)
            last = node if node.fused is None else self.nodes[node.fused]
            decode = last.decode
            output = decode.max_tokens if decode else 0
            units = tuple(sum(map(_num_tokens, prompt)) + output for prompt in prompts)
            kv = rows[0].get(HINT, rows[0].get("kv")) if rows else None
            hint = kv.instance if isinstance(kv, KV) else None
            return Work(self.query, node, last.name, lo, lo, hi, inputs, each, prompts, decode, units, hint)
        units_of = node.spec.units
        units_each = tuple(units_of(_row(inputs, each, i)) for i in range(hi - lo)) if units_of else None
        return Work(self.query, node, node.name, lo, lo, hi, inputs, each, units=units_each)

    def _prompt(self, node: Node, row: Mapping[str, object]) -> Prompt:
        if node.op == "decode":
            kv = row["kv"]
            assert isinstance(kv, KV)
            return kv.prompt
        try:
            return tuple(
                Segment(part.text)
                if isinstance(part, Constant)
                else Segment(as_text(row[part.port]), part.port)
                for part in node.prompt
            )
        except TypeError as error:
            raise BadReply(str(error), step=node.name) from error

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
            self._end(node, [result])
        else:
            self._end(node, _by_port(node, result))

    def _check_pieces(self, node: Node, value: object) -> None:
        """What streamed out of a decode is the beginning of its value."""
        growing = self._growing.pop(node.outs[0], None)
        if growing is not None and (not isinstance(value, list) or value[: len(growing)] != growing):
            raise BadReply("the items it streamed are not those it returned", step=node.name)

    def _complete_items(self, node: Node, lo: int, results: Sequence[object]) -> None:
        mapped = self._mapped[node.id]
        for i, result in enumerate(results, lo):
            if mapped.results[i] is UNSET:
                mapped.results[i] = result
                mapped.num_done += 1
        self._flow(node, mapped)

    def _flow(self, node: Node, mapped: _Mapped) -> None:
        """Pass on finished items in order; end the node after the last."""
        start = mapped.flowed
        while mapped.flowed < len(mapped.results) and mapped.results[mapped.flowed] is not UNSET:
            mapped.flowed += 1
        outs = _item_outs(node, self.nodes)
        if mapped.flowed > start and not node.spec.effect:
            items = mapped.results[start : mapped.flowed]
            for place, out in enumerate(outs):
                self._growing.setdefault(out, []).extend(_column(node, items, place, len(outs)))
                self._grown(out)
        if mapped.total is None or mapped.num_done < mapped.total:
            return
        del self._mapped[node.id]
        if node.spec.effect:
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
        if node.spec.effect:
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
        for output in self._egraph.streamed.get(node.id, ()):
            emitted = self._emitted.get((node.id, output.name), 0)
            is_certain = all(self.values[value] is ABSENT for value in output.unless)
            if is_certain and offset <= emitted < offset + len(text):
                self._outcome.text.append((output.name, text[emitted - offset :]))
                self._emitted[node.id, output.name] = offset + len(text)

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
        self._num_effects += sum(new.spec.effect for new in nodes)
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


def _row(inputs: Mapping[str, object], each: tuple[str, ...], i: int) -> Mapping[str, object]:
    """Inputs of one application: item `i` of the `each` ports, the others as they are."""
    if not each:
        return inputs
    row = dict(inputs)
    for port in each:
        column = inputs[port]
        assert isinstance(column, Sequence)
        row[port] = column[i]
    return row


def _runs_present(columns: Mapping[str, Sequence[object]], lo: int, hi: int) -> list[tuple[int, int]]:
    """Half-open runs within `lo` to `hi` in which no column is absent."""
    runs: list[tuple[int, int]] = []
    start = lo
    for i in range(lo, hi):
        if any(column[i] is ABSENT for column in columns.values()):
            if i > start:
                runs.append((start, i))
            start = i + 1
    if hi > start:
        runs.append((start, hi))
    return runs


def _item_outs(node: Node, nodes: Sequence[Node]) -> tuple[int, ...]:
    """The values that grow with the results of a mapped node; a fused decode's too."""
    return node.outs if node.fused is None else (*node.outs, *nodes[node.fused].outs)


def _column(node: Node, results: Sequence[object], place: int, num_outs: int) -> list[object]:
    """What `results` of a mapped node add to the value at `place` of its outs."""
    column: list[object] = []
    for result in results:
        if num_outs == 1 or result is ABSENT:
            item = result
        elif node.fused is not None:
            assert isinstance(result, tuple)
            item = result[place]
        else:
            item = _by_port(node, result)[place]
        if not node.spec.flatten:
            column.append(item)
        elif isinstance(item, list):
            column.extend(item)
        elif item is not ABSENT:
            raise BadReply(f"a {type(item).__name__} instead of a list", step=node.name)
    return column


def _by_port(node: Node, result: object) -> list[object]:
    """The out values of an op with several out ports, from the mapping that its engine answers."""
    if not isinstance(result, Mapping) or any(port not in result for port in node.spec.outputs):
        raise BadReply(f"not a value for each of {', '.join(node.spec.outputs)}", step=node.name)
    return [result[port] for port in node.spec.outputs]


def _num_tokens(segment: Segment) -> int:
    return len(segment.text) // _CHARS_PER_TOKEN + 1
