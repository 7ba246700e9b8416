"""The replay of a recorded run in virtual time: as it was, or with other engines, policies and passes.

Arrivals, sizes and output lengths are those of the record; costs of engines are fitted to the times in it.
Texts are filler of the recorded sizes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stretto.apps.plan_cache import PlanCache
from stretto.apps.vocabulary import DEFAULT
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError, StrettoError, UserError
from stretto.model.profile import Profile
from stretto.model.replica import Engine, Replica
from stretto.sched.messages import Submit
from stretto.sched.observer import Observer
from stretto.sched.orders import check_policy
from stretto.sched.vocabulary import Vocabulary
from stretto.sim.driver import VirtualDriver
from stretto.sim.llm_instance import SimulatedModel
from stretto.sim.recorded_costs import (
    TimedSpan,
    batch_costs,
    fit_batch_spans,
    fit_llm_spans,
    spans_by_engine,
)
from stretto.sim.recorded_outputs import RecordedOutputs, inputs_like_recorded, recorded_chunk_sizes
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_batches import SyntheticBatch, SyntheticConfig
from stretto.trace.recorded_run import (
    SETTINGS,
    RecordedGraph,
    RecordedQuery,
    RecordedReplica,
    RecordedRun,
)

_BLOCK_TOKENS = 16
_NUM_BLOCKS = 1 << 14


@dataclass(frozen=True, slots=True)
class ReplayChanges:
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
        return self == ReplayChanges()


@dataclass(frozen=True, slots=True)
class Replayed:
    """The latencies of one query as measured in the recorded run and as simulated, in seconds.

    None stands for a query that failed; `reason` says why it did in simulation.
    """

    query: str
    measured_s: float | None
    simulated_s: float | None
    reason: str | None = None


def replay(
    run: RecordedRun,
    change: ReplayChanges = ReplayChanges(),
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
        batch_costs=batch_costs(run),
        observers=observers,
        vocabulary=vocabulary,
    )
    for query in run.queries:
        recorded = run.graphs[query.graph]
        passes = query.passes if change.passes is None else vocabulary.select_passes(change.passes)
        key = query.graph, passes
        if key not in plans:
            plans[key] = _plan(plan_cache, recorded, passes, changes_passes=change.passes is not None)
        inputs = inputs_like_recorded(recorded.graph, query)
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
    ends_s = {name: query.end_s for name, query in driver.recorder.queries.items()}
    return [_replayed(query, ends_s[query.query], replies[query.query].error) for query in run.queries]


def _replayed(query: RecordedQuery, end_s: float | None, error: StrettoError | None) -> Replayed:
    return Replayed(
        query.query,
        query.latency_s if query.error is None else None,
        end_s - query.arrival_s if error is None and end_s is not None else None,
        None if error is None else str(error),
    )


def replay_engines(
    run: RecordedRun, change: ReplayChanges, vocabulary: Vocabulary = DEFAULT
) -> list[Deployment]:
    """Return simulated engines like those of a recorded run, changed as `change` says.

    Their cost profiles are fitted to the recorded times.
    """
    instances = dict(change.instances or {})
    names = [engine.name for engine in run.engines]
    if unknown := [name for name in instances if name not in names]:
        raise ConfigError(f"there is no engine {unknown[0]!r} in the record; there are {', '.join(names)}")
    if change.policy is not None:
        check_policy(change.policy, vocabulary.policies)
    spans = spans_by_engine(run)
    engines = []
    for found in run.engines:
        is_llm = found.kind != "batch"
        settings = {key: getattr(found, key) for key in SETTINGS}
        config = SyntheticConfig(recorded_chunk_sizes(run), vocabulary.ops)
        profiles = _fitted(found.replicas, spans[found.name], fit_llm_spans if is_llm else fit_batch_spans)
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
    spans: Sequence[TimedSpan],
    fit: Callable[[Iterable[TimedSpan]], Profile | None],
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


def _model_of(deployment: Deployment, run: RecordedRun) -> Callable[[Replica], SimulatedModel]:
    """Return a function from a replica of an LLM to its simulated model."""
    repeats = RecordedOutputs(run, deployment.name)

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
