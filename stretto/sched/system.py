"""The machines, composed: graph schedulers above, engine schedulers below.

It turns one machine's reports into the other's events, so that drivers see only `Action`s. All work that
an event (or several at one instant) makes ready is queued before anything is scheduled, so that batches
are formed from the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count

from stretto.engine import Engine
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
    BatchDone,
    BatchFailed,
    Cancel,
    Emit,
    Event,
    InstanceLost,
    LLMReport,
    Reply,
    Submit,
    Wake,
    WakeAt,
)
from stretto.sched.batch_scheduler import BatchScheduler
from stretto.sched.graph_scheduler import GraphScheduler
from stretto.sched.llm_scheduler import LLMScheduler
from stretto.sched.orders import ORDERS
from stretto.sched.orders.sorted_queue import SortedQueue
from stretto.sched.results import Broken, Completed, Delivered, Report

ExpandWith = Callable[[str, Mapping[str, object], tuple[str, ...]], ExecutionGraph]
"""From the `body` of an expand, its inputs and the query's passes to the compiled subgraph."""


class System:
    """All schedulers of a process. One call of `handle` at a time; the driver carries out what it says."""

    def __init__(self, engines: Iterable[Engine], expand: ExpandWith | None = None) -> None:
        self.schedulers: dict[str, BatchScheduler | LLMScheduler] = {}
        ids = count(1)
        for engine in engines:
            if engine.name in self.schedulers:
                raise ConfigError(f"two engines are called {engine.name!r}")
            if engine.policy not in ORDERS:
                raise ConfigError(f"there is no policy {engine.policy!r}; there are {', '.join(ORDERS)}")
            self.schedulers[engine.name] = (LLMScheduler if engine.is_llm else BatchScheduler)(engine, ids)
        self.queries: dict[str, GraphScheduler] = {}
        self._engines_of: dict[str, dict[str, None]] = {}
        self._expand = expand
        self._deadlines: dict[str, float] = {}
        self._by_deadline = SortedQueue[str]()
        self._armed_s: float | None = None
        self._dirty: dict[str, None] = {}
        self._actions: list[Action] = []

    def handle(self, events: Sequence[Event], now_s: float) -> list[Action]:
        """All that is to be done after `events`, which happened at (or by) `now_s`, in order."""
        for event in events:
            match event:
                case BatchDone(engine, instance, batch, results):
                    scheduler = self._batch_scheduler(engine)
                    self._apply(scheduler.done(instance, batch, results), now_s)
                case LLMReport(engine, instance, llm_event):
                    llm = self._llm_scheduler(engine)
                    self._apply(llm.report(instance, llm_event, now_s), now_s)
                case Submit():
                    self._submit(event, now_s)
                case BatchFailed(engine, instance, batch, error):
                    scheduler = self._batch_scheduler(engine)
                    self._apply(scheduler.failed(instance, batch, error), now_s)
                case InstanceLost(engine, instance, error):
                    self._dirty[engine] = None
                    self._apply(self.schedulers[engine].lost(instance, error), now_s)
                case Cancel(query):
                    if query in self.queries:
                        self._end(query, None, QueryCancelled("cancelled"))
                case Wake():
                    self._wake(now_s)
        for name in self._dirty:
            scheduler_ = self.schedulers[name]
            self._actions += scheduler_.releases()
            self._actions += scheduler_.schedule(now_s)
            if scheduler_.not_before_s is not None:
                self._arm(scheduler_.not_before_s)
            timeout_s = scheduler_.engine.timeout_s
            if timeout_s is not None and not scheduler_.is_idle():
                self._arm(now_s + timeout_s)
        self._dirty.clear()
        actions, self._actions = self._actions, []
        return actions

    def is_idle(self) -> bool:
        """Whether no query is running and no engine has work."""
        return not self.queries and all(scheduler.is_idle() for scheduler in self.schedulers.values())

    def check_invariants(self) -> None:
        """For tests: those of every machine, and that every live query has something to wait for."""
        for scheduler in self.schedulers.values():
            scheduler.check_invariants()
        for graph_scheduler in self.queries.values():
            graph_scheduler.check_invariants()
        waiting = any(not scheduler.is_idle() for scheduler in self.schedulers.values())
        assert waiting or not self.queries, f"{sorted(self.queries)} wait for nothing"

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

    def _submit(self, event: Submit, now_s: float) -> None:
        if event.query in self.queries:
            raise InternalError(f"query {event.query!r} is running already")
        expand = None
        if self._expand is not None:
            expand_with = self._expand

            def expand(body: str, inputs: Mapping[str, object]) -> ExecutionGraph:
                sub = expand_with(body, inputs, event.passes)
                self.check_engines(sub)
                return sub

        self.queries[event.query] = GraphScheduler(
            event.query,
            event.egraph,
            event.inputs,
            expand,
            tenant=event.tenant,
            objective=event.objective,
        )
        self._engines_of[event.query] = {}
        if event.deadline_s is not None:
            self._deadlines[event.query] = event.deadline_s
            self._by_deadline.add((event.deadline_s, event.query), event.query)
            self._arm(event.deadline_s)
        self._advance(event.query, None, now_s)

    def _apply(self, reports: list[Report], now_s: float) -> None:
        for report in reports:
            if report.query not in self.queries:
                continue
            if isinstance(report, Broken):
                self._end(report.query, None, report.error)
            else:
                self._advance(report.query, report, now_s)

    def _advance(self, query: str, report: Completed | Delivered | None, now_s: float) -> None:
        """Let one query take one step (None: its first); what goes wrong in it ends that query alone."""
        scheduler = self.queries[query]
        try:
            match report:
                case Completed(_, node, lo, results):
                    outcome = scheduler.complete(node, lo, results)
                case Delivered(_, node, offset, piece):
                    outcome = scheduler.deliver(node, offset, piece)
                case None:
                    self.check_engines(scheduler.egraph)
                    outcome = scheduler.start()
            outputs = scheduler.result() if outcome.ended else None
        except StrettoError as error:
            self._end(query, None, error)
            return
        except Exception as error:
            bug = InternalError(f"{type(error).__name__}: {error}")
            bug.__cause__ = error
            self._end(query, None, bug)
            return
        engines = self._engines_of[query]
        for request in outcome.work:
            engine = request.node.engine
            assert engine is not None
            self.schedulers[engine].add(request, now_s)
            self._dirty[engine] = engines[engine] = None
        for output, text in outcome.text:
            self._actions.append(Emit(query, output, text))
        if outputs is not None:
            self._end(query, outputs, None)

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

    def _end(self, query: str, outputs: Mapping[str, object] | None, error: StrettoError | None) -> None:
        del self.queries[query]
        deadline_s = self._deadlines.pop(query, None)
        if deadline_s is not None:
            self._by_deadline.remove((deadline_s, query))
        for name in self._engines_of.pop(query):
            self._actions += self.schedulers[name].end_query(query)
            self._dirty[name] = None
        self._actions.append(Reply(query, outputs, error))

    def _arm(self, time_s: float) -> None:
        """Ask to be woken by then. Drivers keep the last time asked for, which is the earliest."""
        if self._armed_s is None or time_s < self._armed_s:
            self._armed_s = time_s
            self._actions.append(WakeAt(time_s))

    def _wake(self, now_s: float) -> None:
        self._armed_s = None
        while self._by_deadline and self._by_deadline.first_key[0] <= now_s:
            self._end(self._by_deadline.first, None, DeadlineExceeded("the deadline passed"))
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
