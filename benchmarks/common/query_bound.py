"""A lower bound of a query's time that no schedule can beat, to compare measured times with.

The query's graph is run once, op by op, with its own deterministic engines, and every item of every list gets
the earliest time at which it could exist:

    batch engines   each item by itself, on an instance of its own, as soon as its own inputs exist
    prompts         a token can be prefilled once it and all tokens before it are known, on an idle instance:
                    a call after segment i is known costs a base, and time for each token from i to the end
    decodes         at the speed of one sequence; items of a list exist as their last token does
    order           `>>` counts for nothing; effects count (all is ingested before anything is searched)

The latest output or effect ends the critical path: `critical_path_s`, with unlimited instances.

With the instances there are, a batch engine also has to do all its work: no earlier than its first item can
start, on all instances at once in full batches, and then the shortest way from it to the end of the query is
still to go. These sums are `work_s`. All are lower bounds, and `seconds` is the best of them.

`loads` is the query's work on each engine, for a bound of many queries that share them
(`benchmarks/common/latency_bound.py`).

Graphs with mapped prompts or with `expand` are not supported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.common.op_prices import Prices
from stretto.costs.mean_output import num_tokens
from stretto.engines.contract import SteppedLLM
from stretto.graph.compile import decode_of
from stretto.graph.graph import ANSWER, WHEN, Arg, Constant, Graph, Primitive, Ref
from stretto.graph.op_table import OPS
from stretto.graph.ops import Ops
from stretto.model.deployment import Deployment
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, Done, LLMTask, Piece, Task
from stretto.model.values import ABSENT, KV, Prompt, Segment
from stretto.sched.queries.prepare import value_segment

_QUERY = "bound"


@dataclass(frozen=True, slots=True)
class EngineWork:
    """The least work that a query causes on one engine, in seconds, for lower bounds of
    latencies.

    The instances together work `work_s` seconds for it, beginning no earlier than `head_s` after the query's
    arrival and ending at least `tail_s` before its end. Batches are assumed to be full, with work of other
    queries. An LLM has two such descriptions: in one, every token of a prompt after its leading constants is
    prefilled once, at the profile's `per_unit_s`; in the other, tokens are decoded side by side in as many
    sequences as may run. The two do not add up, as a step may do both.
    """

    head_s: float
    work_s: float
    tail_s: float


@dataclass(frozen=True, slots=True)
class QueryBound:
    """Lower bounds of the seconds that a query takes, which no schedule can beat, with
    its outputs and its work.

    Attributes:
        critical_path_s: lower bound with unlimited instances, in seconds.
        work_s: lower bounds that follow from the work on each engine, in seconds, by engine.
        outputs: values that the query returns.
        loads: least work of the query on each engine, for bounds of many queries.
    """

    critical_path_s: float
    work_s: Mapping[str, float]
    outputs: Mapping[str, object]
    loads: Mapping[str, EngineWork]

    @property
    def seconds(self) -> float:
        """The best (largest) lower bound of the time of the query, in seconds."""
        return max([self.critical_path_s, *self.work_s.values()])


@dataclass(slots=True)
class _Timed:
    """A value and when it exists; `items_s` for each item of a list that comes item by item."""

    value: object
    at_s: float
    items_s: Sequence[float] | None = None


@dataclass(slots=True)
class _Work:
    """The work of a batch engine: when its first item can start, all units, and seconds apart from calls."""

    head_s: float = math.inf
    units: int = 0
    seconds: float = 0.0
    base_s: float = math.inf
    primitives: list[str] = field(default_factory=list)


def lower_bound(
    graph: Graph,
    inputs: Mapping[str, object],
    engines: Iterable[Deployment],
    *,
    is_warm: bool = False,
    prices: Mapping[str, Prices] | None = None,
    ops: Ops = OPS,
) -> QueryBound:
    """Return lower bounds of the time of one query of `graph`, which no schedule can beat.

    The graph is run once, op by op (step by step). Rewritings of the graph do not matter, as only values
    count.

    Args:
        is_warm: whether the constants that prompts begin with are in the caches, from earlier queries.
        prices: costs of batch engines whose profile does not tell enough.
        ops: specifications of the ops of `graph`.
    """
    run = _Run(graph, {engine.name: engine for engine in engines}, is_warm, prices or {}, ops)
    for name, _ in graph.inputs:
        run.values[name, ""] = _Timed(inputs[name], 0.0)
    for primitive in graph:
        run.step(primitive)
    ends_s = [run.ref(ref).at_s for _, ref in graph.outputs]
    ends_s += [run.values[p.name, ""].at_s for p in graph if ops.is_effect(p)]
    outputs = {name: run.ref(ref).value for name, ref in graph.outputs}
    return QueryBound(max(ends_s), run.work_bounds_s(), outputs, run.loads())


class _Run:
    def __init__(
        self,
        graph: Graph,
        engines: Mapping[str, Deployment],
        is_warm: bool,
        prices: Mapping[str, Prices],
        ops: Ops,
    ) -> None:
        self._ops = ops
        self.values: dict[tuple[str, str], _Timed] = {}
        self._graph = graph
        self._engines = engines
        self._is_warm = is_warm
        self._prices = prices
        self._executables = {
            name: deployment.replicas[0].executable(deployment.replicas[0].config)
            for name, deployment in engines.items()
        }
        self._prompts: dict[str, list[tuple[float, int]]] = {}
        self._work: dict[str, _Work] = {}
        self._llm_work_s: dict[str, float] = {}
        self._prefixes: set[tuple[str, Prompt]] = set()
        self._least_s: dict[str, float] = {}

    def ref(self, ref: Ref) -> _Timed:
        """Return the value of a reference; an item of a list exists when that item does."""
        found = self.values[ref.name, ref.port]
        if ref.index is None or found.value is ABSENT:
            return found
        assert isinstance(found.value, Sequence)
        if ref.index >= len(found.value):
            return _Timed(ABSENT, found.at_s)
        at_s = found.at_s if found.items_s is None else found.items_s[ref.index]
        return _Timed(found.value[ref.index], at_s)

    def step(self, primitive: Primitive) -> None:
        """Run one primitive, and note its value and time."""
        spec = self._ops[primitive.op]
        args = {arg.port: self.ref(arg.ref) for arg in primitive.args}
        for arg in primitive.args:
            port = spec.port(arg.port)
            optional = arg.port != WHEN and port is not None and port.optional
            if args[arg.port].value is ABSENT and not optional:
                for out in spec.outputs:
                    self.values[primitive.name, out] = _Timed(ABSENT, args[arg.port].at_s)
                self._least_s[primitive.name] = 0.0
                return
        known = {port: value for port, value in args.items() if port != WHEN and value.value is not ABSENT}
        ready_s = max((value.at_s for value in args.values()), default=0.0)
        if spec.evaluate is not None:
            settings = dict(primitive.config)
            results = spec.evaluate({port: value.value for port, value in known.items()}, settings)
            for out in spec.outputs:
                self.values[primitive.name, out] = _Timed(results[out], ready_s)
            self._least_s[primitive.name] = 0.0
        elif primitive.op == "prefill":
            self._prefill(primitive, known)
        elif primitive.op == "decode":
            self._decode(primitive, args["kv"].value)
        elif spec.runs_on == "batch":
            self._batch(primitive, known, ready_s)
        else:
            raise NotImplementedError(f"no bound for graphs with {primitive.op}")

    def _profile(self, primitive: Primitive) -> Profile:
        return self._engines[primitive.engine or ""].profile

    def _batch(self, primitive: Primitive, args: Mapping[str, _Timed], ready_s: float) -> None:
        """Run all items in one call, as only the results are wanted; time each item by itself."""
        spec = self._ops[primitive.op]
        assert spec.outputs == ("",), f"no bound for the outputs of {primitive.op}"
        values = {port: value.value for port, value in args.items()}
        each = [arg.port for arg in primitive.args if arg.each]
        if not each:
            task = Task(0, _QUERY, primitive.name, primitive.op, values, dict(primitive.config))
            (result,) = self._executables[primitive.engine or ""].run([task])
            least_s = self._note_work(primitive, ready_s, values)
            self._least_s[primitive.name] = least_s
            self.values[primitive.name, ""] = _Timed(result, ready_s + least_s)
            return
        columns = {port: values[port] for port in each}
        assert all(isinstance(column, Sequence) for column in columns.values())
        num_items = min(len(column) for column in columns.values())  # type: ignore[arg-type]
        columns = {port: column[:num_items] for port, column in columns.items()}  # type: ignore[index]
        task = Task(
            *(0, _QUERY, primitive.name, primitive.op, {**values, **columns}, dict(primitive.config)),
            num_items,
            tuple(each),
        )
        results: list[object] = self._executables[primitive.engine or ""].run([task])[0] if num_items else []
        whole_s = max((args[port].at_s for port in args if port not in each), default=0.0)
        value: list[object] = []
        items_s: list[float] = []
        least_s = math.inf
        for i, result in enumerate(results):
            start_s = max(whole_s, *(_item_s(args[port], i) for port in each))
            row = {**values, **{port: column[i] for port, column in columns.items()}}  # type: ignore[index]
            item_s = self._note_work(primitive, start_s, row)
            least_s = min(least_s, item_s)
            parts = result if spec.flatten else [result]
            assert isinstance(parts, Sequence)
            value += parts
            items_s += [start_s + item_s] * len(parts)
        self._least_s[primitive.name] = least_s if results else 0.0
        end_s = max([ready_s, *items_s])
        self.values[primitive.name, ""] = _Timed(
            True if self._ops.is_effect(primitive) else value, end_s, items_s
        )

    def _note_work(self, primitive: Primitive, start_s: float, inputs: Mapping[str, object]) -> float:
        """Note one application as work; return the seconds of a call for it alone."""
        engine = primitive.engine or ""
        spec, profile, prices = self._ops[primitive.op], self._profile(primitive), self._prices.get(engine)
        units = spec.units(inputs) if spec.units else 1
        base_s = prices.base_s(primitive.op) if prices else profile.base_s
        item_s = prices.item_s(primitive.op, inputs) if prices else profile.per_unit_s * units
        work = self._work.setdefault(engine, _Work())
        work.head_s = min(work.head_s, start_s)
        work.units += units
        work.seconds += item_s
        work.base_s = min(work.base_s, base_s)
        if primitive.name not in work.primitives:
            work.primitives.append(primitive.name)
        return base_s + item_s

    def _prefill(self, primitive: Primitive, args: Mapping[str, _Timed]) -> None:
        assert not primitive.is_mapped(), "no bound for mapped prompts"
        prompt: list[Segment] = []
        timed: list[tuple[float, int]] = []
        known_s = 0.0
        for part in primitive.prompt:
            if isinstance(part, Constant):
                prompt.append(Segment(part.text, role=part.role))
            else:
                prompt.append(value_segment(args[part.port].value, part.port))
                known_s = max(known_s, args[part.port].at_s)
            is_held = self._is_warm and all(segment.name is None for segment in prompt)
            timed.append((known_s, 0 if is_held else num_tokens(prompt[-1].text)))
        self._note_prompt(primitive, tuple(prompt))
        end_s = self._prefilled_s(primitive, timed)
        self._prompts[primitive.name] = timed
        self.values[primitive.name, ""] = _Timed(KV(tuple(prompt)), end_s)

    def _note_prompt(self, primitive: Primitive, prompt: Prompt) -> None:
        """Note the work of prefilling a prompt, without the longest prefix of an earlier prompt."""
        engine = primitive.engine or ""
        for end, segment in enumerate(prompt, start=1):
            if (engine, prompt[:end]) in self._prefixes or all(s.name is None for s in prompt[:end]):
                continue
            self._prefixes.add((engine, prompt[:end]))
            token_s = self._profile(primitive).per_unit_s
            self._note_llm_work(primitive, "prompts", token_s * num_tokens(segment.text))

    def _note_llm_work(self, primitive: Primitive, what: str, seconds: float) -> None:
        engine = self._engines[primitive.engine or ""]
        name = f"{engine.name}, {what}"
        self._llm_work_s[name] = self._llm_work_s.get(name, 0.0) + seconds / len(engine.replicas)

    def _prefilled_s(self, primitive: Primitive, timed: Sequence[tuple[float, int]]) -> float:
        profile, end_s, tokens = self._profile(primitive), 0.0, 0
        for known_s, segment_tokens in reversed(timed):
            tokens += segment_tokens
            end_s = max(end_s, known_s + profile.batch_s(tokens))
        return end_s

    def _decode(self, primitive: Primitive, kv: object) -> None:
        assert isinstance(kv, KV)
        prefill = next(arg.ref.name for arg in primitive.args if arg.port == "kv")
        start_s = self._prefilled_s(primitive, self._prompts[prefill])
        llm: SteppedLLM = self._executables[primitive.engine or ""]
        pieces, done = _complete(llm, primitive.name, kv.prompt, decode_of(primitive))
        value = done.value
        token_s = self._profile(primitive).per_output_s
        times_s = [start_s]
        for piece in pieces:
            times_s.append(times_s[-1] + token_s * num_tokens(piece))
        max_running = self._engines[primitive.engine or ""].engine.max_running
        self._note_llm_work(primitive, "outputs", (times_s[-1] - start_s) / max_running)
        self._least_s[primitive.name] = times_s[-1] - start_s
        items_s = times_s[1:] if isinstance(value, list) else None
        self.values[primitive.name, ""] = _Timed(value, times_s[-1], items_s)
        if done.written is not None:
            kv = KV(kv.prompt, answer=done.written)
            self.values[primitive.name, ANSWER] = _Timed(kv, times_s[-1])

    def loads(self) -> dict[str, EngineWork]:
        """Return the query's work by engine; an LLM has two entries, for prompts and for outputs."""
        loads = {name: EngineWork(0.0, work_s, 0.0) for name, work_s in self._llm_work_s.items()}
        tails_s = self._tails_s()
        for name, work in self._work.items():
            engine = self._engines[name]
            busy_s = work.seconds + work.base_s * work.units / _batch_units(engine)
            tail_s = min(tails_s[primitive] for primitive in work.primitives)
            loads[name] = EngineWork(work.head_s, busy_s / len(engine.replicas), tail_s)
        return loads

    def work_bounds_s(self) -> dict[str, float]:
        """Return for each batch engine: its first start, plus all its work on all instances, plus the
        shortest way on.
        """
        tails_s = self._tails_s()
        bounds_s = {}
        for name, work in self._work.items():
            engine = self._engines[name]
            num_batches = math.ceil(work.units / _batch_units(engine))
            busy_s = work.base_s * num_batches + work.seconds
            tail_s = min(tails_s[primitive] for primitive in work.primitives)
            bounds_s[name] = work.head_s + busy_s / len(engine.replicas) + tail_s
        return bounds_s

    def _tails_s(self) -> dict[str, float]:
        """Return for each primitive the least time from the end of its last item to the end of the query."""
        tails_s: dict[str, float] = {}
        for primitive in reversed(self._graph.primitives):
            tails_s[primitive.name] = max(
                (
                    self._through_s(reader, arg) + tails_s[reader.name]
                    for reader, arg in self._graph.consumers.get(primitive.name, ())
                    if arg.ref.index is None or self.values[primitive.name, arg.ref.port].items_s is None
                ),
                default=0.0,
            )
        return tails_s

    def _through_s(self, reader: Primitive, arg: Arg) -> float:
        """Return the least time that `reader` needs after the value at `arg`, if that arrives last."""
        if reader.op != "prefill":
            return self._least_s[reader.name]
        if reader.name not in self._prompts:
            return 0.0
        first = next(
            (i for i, p in enumerate(reader.prompt) if not isinstance(p, Constant) and p.port == arg.port),
            None,
        )
        if first is None:
            return 0.0
        tokens = sum(tokens for _, tokens in self._prompts[reader.name][first:])
        return self._profile(reader).batch_s(tokens)


def _batch_units(deployment: Deployment) -> int:
    return deployment.engine.max_batch or deployment.profile.max_efficient_batch


def _item_s(value: _Timed, index: int) -> float:
    return value.at_s if value.items_s is None else value.items_s[index]


def _complete(llm: SteppedLLM, step: str, prompt: Prompt, decode: Decode) -> tuple[list[str], Done]:
    """Return the pieces and the end of the LLM's output for a prompt."""
    llm.admit(LLMTask(0, _QUERY, step, prompt, decode, is_continued=True), ())
    events = []
    while llm.has_work():
        events += llm.step()
    llm.release(_QUERY)
    last = events[-1]
    assert isinstance(last, Done), last
    return [event.value for event in events if isinstance(event, Piece)], last
