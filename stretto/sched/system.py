"""The machines, composed: graph schedulers above, engine schedulers below.

It turns one machine's reports into the other's events, so that drivers see only `Action`s. All work that
an event (or several at one instant) makes ready is queued before anything is scheduled, so that batches
are formed from the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TypeAlias

from stretto.cluster.messages import InstanceId, KVReport, LoadReport
from stretto.cluster.prompt_keys import SpaceOf, no_space
from stretto.deployment import Deployment, Replica
from stretto.errors import (
    ConfigError,
    DeadlineExceeded,
    InternalError,
    QueryCancelled,
    StrettoError,
)
from stretto.graph.compile import ExecutionGraph
from stretto.messages import (
    Action,
    AddInstance,
    BatchDone,
    BatchFailed,
    Cancel,
    Close,
    Drain,
    Drop,
    Emit,
    Event,
    Extend,
    InstanceLost,
    InstanceReady,
    InstanceStopped,
    InstanceSuspected,
    LLMReport,
    Open,
    Provide,
    Reply,
    SessionEvent,
    Settled,
    Submit,
    Suspended,
    Unwant,
    Wake,
    WakeAt,
    Want,
)
from stretto.sched.batch_scheduler import BatchScheduler
from stretto.sched.llm_scheduler import LLMScheduler
from stretto.sched.orders.sorted_queue import SortedQueue
from stretto.sched.outcome import Outcome
from stretto.sched.results import Completed, Report
from stretto.sched.session import Session
from stretto.sched.snapshot import Snapshot
from stretto.sched.splicing import Expand
from stretto.tasks import QueryRecord
from stretto.vocabulary import DEFAULT, Vocabulary

ExpandWith = Callable[[str, Mapping[str, object], tuple[str, ...]], ExecutionGraph]
"""From the `body` of an expand, its inputs and the query's passes to the compiled subgraph."""


_InstanceEvent: TypeAlias = (
    AddInstance
    | Drain
    | InstanceReady
    | InstanceSuspected
    | InstanceLost
    | InstanceStopped
    | Suspended
    | KVReport
    | LoadReport
)


class System:
    """All schedulers of a process. One call of `handle` at a time; the driver carries out what it says.

    A bug, here or in code of a user's own, ends the queries that the event concerns, and no others.
    """

    def __init__(
        self,
        deployments: Iterable[Deployment],
        expand: ExpandWith | None = None,
        vocabulary: Vocabulary = DEFAULT,
        space_of: SpaceOf = no_space,
    ) -> None:
        """Start no instance: `AddInstance` does, of the deployments' replicas and of others.

        Args:
            space_of: returns the space in which the instances of a replica report what they hold.

        Raises:
            ConfigError: two engines have one name, or a policy or a placement is unknown.
        """
        policies, placements = vocabulary.policies, vocabulary.placements
        self.schedulers: dict[str, BatchScheduler | LLMScheduler] = {}
        ids = count(1)
        for deployment in deployments:
            engine, profile = deployment.engine, deployment.profile
            if engine.name in self.schedulers:
                raise ConfigError(f"two engines are called {engine.name!r}")
            if engine.policy not in policies:
                raise ConfigError(f"there is no policy {engine.policy!r}; there are {', '.join(policies)}")
            if engine.placement not in placements:
                known = ", ".join(placements)
                raise ConfigError(f"there is no placement {engine.placement!r}; there are {known}")
            self.schedulers[engine.name] = (
                LLMScheduler(engine, profile, placements[engine.placement](), ids, policies, space_of)
                if engine.is_llm
                else BatchScheduler(engine, profile, ids, policies)
            )
        self.queries: dict[str, Session] = {}
        self._expand = expand
        self._deadlines: dict[str, float] = {}
        self._by_deadline = SortedQueue[str]()
        self._engines_of: dict[str, dict[str, None]] = {}
        self._want_deadlines: dict[tuple[str, str], list[float]] = {}
        self._armed_s: float | None = None
        self._dirty: dict[str, None] = {}
        self._actions: list[Action] = []

    def handle(self, events: Sequence[Event], now_s: float) -> list[Action]:
        """All that is to be done after `events`, which happened at (or by) `now_s`, in order."""
        for event in events:
            self._handle(event, now_s)
        while self._dirty:
            name = next(iter(self._dirty))
            del self._dirty[name]
            self._schedule(name, now_s)
        actions, self._actions = self._actions, []
        return actions

    def is_idle(self) -> bool:
        """Whether no query is running and no engine has work."""
        return not self.queries and all(scheduler.is_idle() for scheduler in self.schedulers.values())

    def snapshot(self) -> Snapshot:
        """What all queries and engines are doing now."""
        return Snapshot(
            tuple(session.picture() for session in self.queries.values()),
            tuple(scheduler.picture() for scheduler in self.schedulers.values()),
        )

    def check_invariants(self) -> None:
        """For tests: those of every machine, and that every one-shot query has something to wait for."""
        for scheduler in self.schedulers.values():
            scheduler.check_invariants()
        for session in self.queries.values():
            session.check_invariants()
        waiting = any(not scheduler.is_idle() for scheduler in self.schedulers.values())
        stuck = sorted(query for query, session in self.queries.items() if session.is_one_shot)
        assert waiting or not stuck, f"{stuck} wait for nothing"

    def check_engines(self, egraph: ExecutionGraph) -> None:
        """Raises ConfigError when there is a node that nothing of the right kind runs."""
        for node in egraph.nodes:
            if node.engine is None:
                continue
            scheduler = self.schedulers.get(node.engine)
            if scheduler is None:
                raise ConfigError(f"there is no engine {node.engine!r}", step=node.name)
            if scheduler.engine.is_llm != (node.spec.runs_on == "llm"):
                raise ConfigError(f"engine {node.engine!r} does not run {node.op}", step=node.name)

    def check_drain(self, engine: str, instance: InstanceId) -> None:
        """Raises ConfigError when there is no such instance, or it is draining or gone."""
        self.schedulers[engine].instances.fleet.check_drain(instance)

    def placed_replicas(self) -> list[tuple[str, Replica]]:
        """Return every replica that holds its devices now, with the name of its instance."""
        fleets = (scheduler.instances.fleet for scheduler in self.schedulers.values())
        return [(f"{fleet.engine}/{i}", fleet.replica(i)) for fleet in fleets for i in fleet.live]

    # --- events

    def _handle(self, event: Event, now_s: float) -> None:
        match event:
            case BatchDone(engine, instance, batch, results):
                scheduler = self._batch_scheduler(engine)
                with self._bugs_end(scheduler.queries_in(instance)):
                    self._apply(scheduler.done(instance, batch, results), now_s)
            case LLMReport(engine, instance, llm_event):
                llm = self._llm_scheduler(engine)
                with self._bugs_end(llm.queries_in(instance, llm_event.task)):
                    self._apply(llm.report(instance, llm_event, now_s), now_s)
            case BatchFailed(engine, instance, batch, error):
                scheduler = self._batch_scheduler(engine)
                with self._bugs_end(scheduler.queries_in(instance)):
                    self._apply(scheduler.failed(instance, batch, error), now_s)
            case AddInstance():
                self._on_instance(event, now_s)
            case Drain() | InstanceReady() | InstanceSuspected() | InstanceLost() | InstanceStopped():
                with self._bugs_end(self.schedulers[event.engine].queries_in(event.instance)):
                    self._on_instance(event, now_s)
            case Suspended() | KVReport() | LoadReport():
                with self._bugs_end(self.schedulers[event.engine].queries_in(event.instance)):
                    self._on_instance(event, now_s)
            case Submit(query=query) | Open(query=query):
                if query in self.queries:
                    raise InternalError(f"query {query!r} is running already")
                with self._bugs_end([query]):
                    self._open(event, now_s)
            case Cancel(query) | Close(query):
                if query in self.queries:
                    is_closed = isinstance(event, Close)
                    self._end(query, None, None if is_closed else QueryCancelled("cancelled"))
            case Wake():
                self._wake(now_s)
            case _:
                if event.query in self.queries:
                    with self._bugs_end([event.query]):
                        self._in_session(event, now_s)

    def _on_instance(self, event: _InstanceEvent, now_s: float) -> None:
        """Handle what an instance reports of itself, or what is to be done with one."""
        scheduler = self.schedulers[event.engine]
        self._dirty[event.engine] = None
        match event:
            case AddInstance(_, replica):
                self._actions += scheduler.add_instance(replica, now_s)
            case Drain(_, instance, how):
                self._actions += scheduler.drain(instance, how, now_s)
            case InstanceReady(_, instance):
                scheduler.ready(instance, now_s)
            case InstanceSuspected(_, instance, reason):
                scheduler.suspected(instance, reason, now_s)
            case InstanceLost(_, instance, error):
                reports, actions = scheduler.lost(instance, error, now_s)
                self._actions += actions
                self._apply(reports, now_s)
            case InstanceStopped(_, instance):
                self._apply(scheduler.stopped(instance, now_s), now_s)
            case Suspended(_, instance, task, token_ids):
                if isinstance(scheduler, LLMScheduler):
                    scheduler.suspended(instance, task, token_ids)
            case KVReport() | LoadReport():
                if isinstance(scheduler, LLMScheduler):
                    scheduler.observe(event)

    @contextmanager
    def _bugs_end(self, queries: Iterable[str]) -> Iterator[None]:
        """Whatever but a `StrettoError` is raised within, is a bug that ends `queries`; those end too."""
        try:
            yield
        except Exception as error:
            if isinstance(error, StrettoError):
                ended_by = error
            else:
                ended_by = InternalError(f"{type(error).__name__}: {error}")
                ended_by.__cause__ = error
            for query in queries:
                if query in self.queries:
                    self._end(query, None, ended_by)

    def _open(self, event: Submit | Open, now_s: float) -> None:
        record = (
            event.record
            if isinstance(event, Open)
            else QueryRecord(event.tenant, event.objective, event.deadline_s)
        )
        session = Session(event.query, record, self._expand_for(event.passes))
        self.queries[event.query] = session
        self._engines_of[event.query] = {}
        if record.deadline_s is not None:
            self._deadlines[event.query] = record.deadline_s
            self._by_deadline.add((record.deadline_s, event.query), event.query)
            self._arm(record.deadline_s)
        if isinstance(event, Submit):
            self.check_engines(event.egraph)
            self._carry_on(session, session.submit(event.egraph, event.inputs), now_s)

    def _expand_for(self, passes: tuple[str, ...]) -> Expand | None:
        if self._expand is None:
            return None
        expand_with = self._expand

        def expand(body: str, inputs: Mapping[str, object]) -> ExecutionGraph:
            sub = expand_with(body, inputs, passes)
            self.check_engines(sub)
            return sub

        return expand

    def _in_session(self, event: SessionEvent, now_s: float) -> None:
        session = self.queries[event.query]
        match event:
            case Extend(_, egraph, bind):
                self.check_engines(egraph)
                outcome = session.extend(egraph, bind)
            case Provide(_, name, value):
                outcome = session.provide(name, value)
            case Want(query, name, deadline_s):
                outcome = session.want(name)
                if deadline_s is not None:
                    self._want_deadlines.setdefault((query, name), []).append(deadline_s)
                    self._arm(deadline_s)
            case Unwant(_, name):
                outcome = session.unwant(name)
            case Drop(_, name):
                outcome = session.drop(name)
            case Close():
                return
        self._carry_on(session, outcome, now_s)

    def _apply(self, reports: Sequence[Report], now_s: float) -> None:
        for report in reports:
            session = self.queries.get(report.query)
            if session is None:
                continue
            with self._bugs_end([report.query]):
                if isinstance(report, Completed):
                    outcome = session.complete(report.node, report.lo, report.results)
                else:
                    outcome = session.deliver(report.node, report.offset, report.piece)
                self._carry_on(session, outcome, now_s)

    def _carry_on(self, session: Session, outcome: Outcome, now_s: float) -> None:
        """Hand on what one step of a query has led to."""
        query = session.query
        for node in outcome.withdrawn:
            if node.engine is not None:
                self._actions += self.schedulers[node.engine].withdraw(query, node.id, now_s)
                self._dirty[node.engine] = None
        engines = self._engines_of[query]
        for request in outcome.work:
            engine = request.node.engine
            assert engine is not None
            self.schedulers[engine].add(request, now_s)
            self._dirty[engine] = engines[engine] = None
        if outcome.changes_wants and (wanted := session.graph.wanted) is not None:
            for engine in engines:
                self.schedulers[engine].want(query, wanted)
        for output, text in outcome.text:
            self._actions.append(Emit(query, output, text))
        for name, value in outcome.settled:
            self._actions.append(Settled(query, name, value))
        if outcome.error is not None or outcome.outputs is not None:
            self._end(query, outcome.outputs, outcome.error)

    def _end(self, query: str, outputs: Mapping[str, object] | None, error: StrettoError | None) -> None:
        session = self.queries.pop(query)
        deadline_s = self._deadlines.pop(query, None)
        if deadline_s is not None:
            self._by_deadline.remove((deadline_s, query))
        for key in [key for key in self._want_deadlines if key[0] == query]:
            del self._want_deadlines[key]
        for name in self._engines_of.pop(query):
            self._actions += self.schedulers[name].end_query(query)
            self._dirty[name] = None
        if not session.is_one_shot:
            ended = error or QueryCancelled("the session was closed")
            self._actions += [Settled(query, name, failure) for name, failure in session.close(ended)]
            outputs = {} if error is None else None
        self._actions.append(Reply(query, outputs, error))

    # --- engines and time

    def _batch_scheduler(self, engine: str) -> BatchScheduler:
        self._dirty[engine] = None
        scheduler = self.schedulers[engine]
        assert isinstance(scheduler, BatchScheduler)
        return scheduler

    def _llm_scheduler(self, engine: str) -> LLMScheduler:
        self._dirty[engine] = None
        scheduler = self.schedulers[engine]
        assert isinstance(scheduler, LLMScheduler)
        return scheduler

    def _schedule(self, name: str, now_s: float) -> None:
        """Let an engine start what it can. A bug there concerns all that have work at that engine."""
        scheduler = self.schedulers[name]
        with self._bugs_end(scheduler.queries()):
            has_deadline = self._deadlines.__contains__
            self._apply(scheduler.instances.fail_waiting(scheduler.queue, now_s, has_deadline), now_s)
            self._actions += scheduler.releases()
            self._actions += scheduler.schedule(now_s)
            if scheduler.not_before_s is not None:
                self._arm(scheduler.not_before_s)
            timeout_s = scheduler.engine.timeout_s
            if timeout_s is not None and not scheduler.is_idle():
                self._arm(now_s + timeout_s)
            if (due_s := scheduler.instances.next_due_s(scheduler.queue, now_s)) is not None:
                self._arm(due_s)

    def _arm(self, time_s: float) -> None:
        """Ask to be woken by then. Drivers keep the last time asked for, which is the earliest."""
        if self._armed_s is None or time_s < self._armed_s:
            self._armed_s = time_s
            self._actions.append(WakeAt(time_s))

    def _wake(self, now_s: float) -> None:
        self._armed_s = None
        while self._by_deadline and self._by_deadline.first_key[0] <= now_s:
            self._end(self._by_deadline.first, None, DeadlineExceeded("the deadline passed"))
        self._leave_wants(now_s)
        for name, scheduler in self.schedulers.items():
            reports, actions = scheduler.expire(now_s)
            self._actions += actions
            self._apply(reports, now_s)
            self._dirty[name] = None
            expiry_s = scheduler.next_expiry_s()
            if expiry_s is not None:
                self._arm(expiry_s)
        if self._by_deadline:
            self._arm(self._by_deadline.first_key[0])
        if wants_s := [s for many in self._want_deadlines.values() for s in many]:
            self._arm(min(wants_s))

    def _leave_wants(self, now_s: float) -> None:
        """Those whose deadline has passed wait no longer."""
        for (query, name), deadlines_s in list(self._want_deadlines.items()):
            for deadline_s in [deadline_s for deadline_s in deadlines_s if deadline_s <= now_s]:
                deadlines_s.remove(deadline_s)
                self._handle(Unwant(query, name), now_s)
            if not deadlines_s:
                self._want_deadlines.pop((query, name), None)
