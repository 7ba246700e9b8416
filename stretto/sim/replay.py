"""The replay of a recorded run in virtual time: as it was, or with other engines, policies and passes.

Arrivals, sizes and output lengths are those of the record; costs of engines are fitted to the times in it.
Texts are filler of the recorded sizes.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from stretto.apps.plan_cache import PlanCache
from stretto.apps.vocabulary import DEFAULT
from stretto.costs.fit_profile import LEAST_S, fit_profile
from stretto.costs.output_lengths import LengthsBySource, output_lengths
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.graph import Graph
from stretto.graph.types import item_type
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import Deployment, Engine, Replica
from stretto.model.errors import ConfigError, UserError
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, LLMTask
from stretto.model.values import Document, Section
from stretto.sched.messages import Submit
from stretto.sched.observer import Observer
from stretto.sched.orders import check_policy
from stretto.sched.vocabulary import Vocabulary
from stretto.sim.driver import BatchCost, VirtualDriver
from stretto.sim.llm_instance import SimulatedModel
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_batches import SyntheticBatch, SyntheticConfig
from stretto.sim.synthetic_output import SyntheticOutput, chars, drawn_lengths
from stretto.trace.recorded_run import (
    SETTINGS,
    RecordedGraph,
    RecordedQuery,
    RecordedReplica,
    RecordedRun,
    RecordedSpan,
)
from stretto.trace.recorded_sizes import num_chars, total_size

_BLOCK_TOKENS = 16
_NUM_BLOCKS = 1 << 14

_TimedSpan: TypeAlias = tuple[float, RecordedSpan]
"""Start of a span in the run's time, and the span."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Changes for the replay of a recorded run: the number of instances of each engine, the queue policy of
    all engines, the passes of all queries.

    None leaves a setting as recorded.
    """

    instances: Mapping[str, int] | None = None
    policy: str | None = None
    passes: str | None = None

    @property
    def is_as_recorded(self) -> bool:
        """Whether nothing is changed, so that the run is replayed as it was recorded."""
        return self == WhatIf()


@dataclass(frozen=True, slots=True)
class Replayed:
    """The latencies of one query as measured in the recorded run and as simulated, in
    seconds.

    None stands for a query that failed; `reason` says why it did in simulation.
    """

    query: str
    measured_s: float | None
    simulated_s: float | None
    reason: str | None = None


def replay(
    run: RecordedRun,
    change: WhatIf = WhatIf(),
    vocabulary: Vocabulary = DEFAULT,
    *,
    observers: Iterable[Observer] = (),
) -> list[Replayed]:
    """Simulate a recorded run again, with `change`; return the measured and simulated latency of each of its
    queries.

    Args:
        vocabulary: ops, passes and policies that the record or the change may name.
        observers: notified of everything as it happens.

    Raises:
        UserError: an engine or policy is unknown; or the passes are to change, and the record has no graphs
            from before the passes.
    """
    engines = replay_engines(run, change, vocabulary)
    plan_cache = PlanCache({engine.name: engine.profile for engine in engines}, vocabulary)
    plans: dict[tuple[int, tuple[str, ...]], ExecutionGraph] = {}
    models = {engine.name: _model_of(engine, run) for engine in engines if engine.engine.is_llm}
    driver = VirtualDriver(
        engines,
        expand=plan_cache.expand,
        models=models,
        batch_costs=_batch_costs(run),
        observers=observers,
        vocabulary=vocabulary,
    )
    for query in run.queries:
        recorded = run.graphs[query.graph]
        passes = query.passes if change.passes is None else vocabulary.select_passes(change.passes)
        key = query.graph, passes
        if key not in plans:
            plans[key] = _plan(plan_cache, recorded, passes, changes_passes=change.passes is not None)
        inputs = _inputs(recorded.graph, query)
        deadline_s = None if query.deadline_s is None else query.arrival_s + query.deadline_s
        submit = Submit(
            query.query,
            plans[key],
            inputs,
            deadline_s,
            passes,
            query.tenant,
            query.objective,
            program=query.program,
        )
        driver.send(submit, query.arrival_s)
    replies = driver.run()
    replayed = []
    for query in run.queries:
        end_s = driver.recorder.queries[query.query].end_s
        error = replies[query.query].error
        replayed.append(
            Replayed(
                query.query,
                query.latency_s if query.error is None else None,
                end_s - query.arrival_s if error is None and end_s is not None else None,
                None if error is None else str(error),
            )
        )
    return replayed


def replay_engines(run: RecordedRun, change: WhatIf, vocabulary: Vocabulary = DEFAULT) -> list[Deployment]:
    """Return simulated engines like those of a recorded run, changed as `change` says.

    Their cost profiles are fitted to the recorded times.
    """
    instances = dict(change.instances or {})
    names = [engine.name for engine in run.engines]
    if unknown := [name for name in instances if name not in names]:
        raise ConfigError(f"there is no engine {unknown[0]!r} in the record; there are {', '.join(names)}")
    if change.policy is not None:
        check_policy(change.policy, vocabulary.policies)
    spans = _by_engine(run)
    engines = []
    for found in run.engines:
        is_llm = found.kind != "batch"
        settings = {key: getattr(found, key) for key in SETTINGS}
        config = SyntheticConfig(_chunk_sizes(run))
        profiles = _fitted(found.replicas, spans[found.name], _fit_llm if is_llm else _fit_batch)
        replicas = tuple(
            Replica(
                SyntheticBatch,
                config,
                runs_in="loop",
                tp=recorded.tp,
                profile=profiles[recorded],
                num_slots=recorded.num_slots,
                kv_tokens=recorded.kv_tokens,
            )
            for recorded in found.replicas
        )
        engine = Deployment(Engine(found.name, "llm" if is_llm else "batch", **settings), replicas)
        if found.name in instances:
            engine = engine.changed(instances=instances[found.name])
        if change.policy is not None:
            engine = engine.changed(policy=change.policy)
        engines.append(engine)
    return engines


def _fitted(
    replicas: Sequence[RecordedReplica],
    spans: Sequence[_TimedSpan],
    fit: Callable[[Iterable[_TimedSpan]], Profile | None],
) -> dict[RecordedReplica, Profile]:
    """Return the profile of each kind of replica, fitted to what its instances did.

    Instance `n` of a record is of replica `n`. Later instances count only where all replicas are equal.
    """
    instances: dict[RecordedReplica, set[int]] = defaultdict(set)
    for instance, replica in enumerate(replicas):
        instances[replica].add(instance)
    profiles = {}
    for replica, its_own in instances.items():
        fitted = fit(spans if len(instances) == 1 else [s for s in spans if s[1].instance in its_own])
        recorded = replica.profile
        profiles[replica] = (
            recorded if fitted is None else replace(fitted, max_efficient_batch=recorded.max_efficient_batch)
        )
    return profiles


def _plan(
    plan_cache: PlanCache, recorded: RecordedGraph, passes: tuple[str, ...], *, changes_passes: bool
) -> ExecutionGraph:
    if not recorded.is_optimised:
        return plan_cache.compile(recorded.graph, passes)
    if changes_passes:
        raise UserError(f"{recorded.graph.name} was recorded without its graph from before the passes")
    return compile_graph(recorded.graph, plan_cache.profiles, plan_cache.vocabulary.ops)


def _by_engine(run: RecordedRun) -> dict[str, list[_TimedSpan]]:
    """Return spans by engine."""
    found: dict[str, list[_TimedSpan]] = defaultdict(list)
    for query in run.queries:
        for span in query.spans:
            found[span.engine].append((query.arrival_s + span.start_s, span))
    return found


def _batches(spans: Iterable[_TimedSpan]) -> list[RecordedSpan]:
    """Return one span of each batch: queries that share a batch have the same start on the same instance."""
    return list({(round(start_s, 6), span.instance): span for start_s, span in spans}.values())


def _fit_batch(spans: Iterable[_TimedSpan]) -> Profile | None:
    return _fit([(max(1, s.num_units), s.end_s - s.start_s) for s in _batches(spans)])


def _batch_costs(run: RecordedRun) -> dict[str, BatchCost]:
    """Return the costs of batches that profiles do not tell, by engine. Unlike replicas have none."""
    spans = _by_engine(run)
    alike = [f.name for f in run.engines if f.kind == "batch" and len(set(f.replicas)) == 1]
    costs = {name: _batch_cost(spans[name]) for name in alike}
    return {name: cost for name, cost in costs.items() if cost is not None}


def _batch_cost(spans: Iterable[_TimedSpan]) -> BatchCost | None:
    """Return the cost by characters read, if they predict the time of a batch better than its units."""
    batches = [span for span in _batches(spans) if span.end_s - span.start_s >= LEAST_S]
    by_chars = _fit([(max(1, s.num_chars), s.end_s - s.start_s) for s in batches])
    by_units = _fit([(max(1, s.num_units), s.end_s - s.start_s) for s in batches])
    if by_chars is None or by_units is None:
        return None

    def error(profile: Profile, sizes: Iterable[int]) -> float:
        times = zip(batches, sizes, strict=True)
        return sum(abs(profile.batch_s(size) / (s.end_s - s.start_s) - 1) for s, size in times)

    if error(by_units, [s.num_units for s in batches]) <= error(by_chars, [s.num_chars for s in batches]):
        return None
    return lambda batch: by_chars.batch_s(num_chars(batch.tasks))


def _fit(samples: Sequence[tuple[int, float]]) -> Profile | None:
    samples = [(units, seconds) for units, seconds in samples if seconds >= LEAST_S]
    if not samples:
        return None
    if len({units for units, _ in samples}) < 2:
        return Profile(base_s=statistics.fmean(seconds for _, seconds in samples))
    return fit_profile([units for units, _ in samples], [seconds for _, seconds in samples])


def _fit_llm(spans: Iterable[_TimedSpan]) -> Profile | None:
    """Fit prompts by their uncached tokens, up to the first piece; then take the median time for a token.

    A list's first piece is its first item, and that of a whole answer is all of it. The time of their prompts
    is what is left without their tokens' time.
    """
    listed = [span for _, span in spans]
    whole = [s for s in listed if s.num_output > 1 and s.first_s is not None and s.end_s > s.first_s]
    per_output_s = statistics.median(
        [(s.end_s - (s.first_s or 0.0)) / (s.num_output - 1) for s in whole if len(s.sizes) == 1] or [0.0]
    )
    prompts = []
    for span in listed:
        missing = max(1, span.num_units - span.num_cached)
        seconds = span.end_s - span.start_s - per_output_s * span.num_output
        is_text = span.num_output > 0 and span.first_s is not None and len(span.sizes) == 1
        if is_text and span.first_s is not None and (span.first_s < span.end_s or span.num_output == 1):
            seconds = span.first_s - span.start_s
        prompts.append((missing, seconds))
    fitted = _fit(prompts)
    return None if fitted is None else replace(fitted, per_output_s=per_output_s)


def _model_of(deployment: Deployment, run: RecordedRun) -> Callable[[Replica], SimulatedModel]:
    """Return a function from a replica of an LLM to its simulated model."""
    repeats = _Repeats(run, deployment.name)

    def model_of(replica: Replica) -> SimulatedModel:
        max_running = replica.num_slots or deployment.engine.max_running
        scheduler = SchedulerConfig(
            _NUM_BLOCKS if replica.kv_tokens is None else -(-replica.kv_tokens // _BLOCK_TOKENS),
            block_tokens=_BLOCK_TOKENS,
            max_running=max_running,
            max_batch_tokens=512 + max_running,
        )
        return SimulatedModel(scheduler, ProfileCost(replica.profile), repeats)

    return model_of


class _Repeats:
    """An output source with the recorded lengths: item k of a step is answered as its k-th request was.

    The length for a step that only other passes make is drawn from all lengths of the engine.
    """

    def __init__(self, run: RecordedRun, engine: str) -> None:
        self._of_step: dict[tuple[str, str], list[RecordedSpan]] = defaultdict(list)
        counts: Counter[int] = Counter()
        for query in run.queries:
            for span in query.spans:
                if span.engine == engine and span.num_output > 0:
                    self._of_step[query.query, span.step].append(span)
                    counts[span.num_output] += 1
        known = LengthsBySource({(engine, ""): output_lengths(counts or {1: 1})})
        self._drawn = drawn_lengths(known, engine, seed=0)

    def __call__(self, task: LLMTask, decode: Decode) -> SyntheticOutput:
        spans = self._of_step.get((task.query, task.step))
        name = f"{task.query}/{task.step}/{task.item}"
        if not spans:
            num_tokens, word = max(1, self._drawn(task, decode)), ""
            sizes: Sequence[Any] = [4 * num_tokens]
        else:
            span = spans[min(task.item, len(spans) - 1)]
            sizes, num_tokens, word = span.sizes, span.num_output, span.word
        if decode.items is None:
            return SyntheticOutput(chars(name, int(sum(sizes)), word), num_tokens)
        items = [chars(f"{name}/{n}", int(size)) for n, size in enumerate(sizes)]
        total = sum(len(item) for item in items) or 1
        ends = []
        done = 0
        for item in items:
            done += len(item)
            ends.append(max(1, num_tokens * done // total))
        return SyntheticOutput(items, num_tokens, tuple(ends))


def _chunk_sizes(run: RecordedRun) -> Any:
    """Return a function that gives the recorded lengths of the chunks of a query's document."""
    sizes: dict[str, list[list[int]]] = {}
    for query in run.queries:
        of_query = sizes.setdefault(query.query, [])
        for span in query.spans:
            if span.op == "chunk":
                of_query += [list(map(total_size, s)) for s in span.sizes if isinstance(s, list)]

    def chunk_chars(query: str, document: Document) -> Sequence[int]:
        of_query = sizes.get(query, [])
        number = int(document.source)
        return of_query[number] if number < len(of_query) else [max(1, len(document.sections[0].text))]

    return chunk_chars


def _inputs(graph: Graph, query: RecordedQuery) -> dict[str, object]:
    """Return filler inputs with the sizes that the query's inputs had."""
    types = dict(graph.inputs)
    inputs: dict[str, object] = {}
    for name, size in query.inputs.items():
        if name in types:
            inputs[name] = _filled(f"{query.query}/{name}", types[name], size)
    return inputs


def _filled(name: str, type_: str, size: Any) -> object:
    if isinstance(size, dict):
        return chars(str(size["id"]), int(size["chars"]))
    item = item_type(type_)
    if item == "document":
        return [
            Document(str(n), (Section(chars(f"{name}/{n}", total_size(sections))),), f"{n:064x}")
            for n, sections in enumerate(size if isinstance(size, list) else [size])
        ]
    if isinstance(size, list):
        return [_filled(f"{name}/{n}", item or "text", one) for n, one in enumerate(size)]
    return chars(name, int(size))
