"""The system of schedulers: one graph scheduler for each query, one engine scheduler for each engine.

It turns the reports of engine schedulers into progress of queries and the requests of queries into work for
engines, so that a driver only sees `Action`s. All work that an event (or
several at one instant) makes ready is queued before anything is scheduled, so that batches are formed from
the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from stretto.cluster.prompt_keys import SpaceOf, no_space
from stretto.costs.learned_work import NOTHING_LEARNED, LearnedWork
from stretto.graph.execution_graph import ExecutionGraph, Node
from stretto.model.deployment import Deployment
from stretto.model.errors import DeadlineExceeded, InternalError, QueryCancelled, StrettoError
from stretto.model.foreign import bug_of, raised
from stretto.model.tasks import QueryRecord, Usage
from stretto.sched.actions import Action, Emit, Reply, Settled, WakeAt
from stretto.sched.deadlines import Deadlines, Expired
from stretto.sched.engine_events import EngineEvent
from stretto.sched.engine_tier import EngineTier
from stretto.sched.messages import (
    Cancel,
    Close,
    Drop,
    EndProgram,
    Event,
    Extend,
    Open,
    Provide,
    SessionEvent,
    Submit,
    Unwant,
    Wake,
    Want,
)
from stretto.sched.orders.tenants_served import NO_WEIGHTS
from stretto.sched.queries.attempts import Attempts
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.one_call import OneCall
from stretto.sched.queries.outcome import Outcome
from stretto.sched.queries.results import Completed, Delivered, Report
from stretto.sched.queries.session import SessionMachine
from stretto.sched.queries.splicing import Expand
from stretto.sched.queries.turn_work import EndingSessions, TurnWork
from stretto.sched.snapshot import HeldPicture, Snapshot
from stretto.sched.vocabulary import STANDARD, Vocabulary

ExpandWith = Callable[[str, Mapping[str, object], tuple[str, ...]], ExecutionGraph]
"""A function from the `body` of an expand, its inputs and the query's passes to the compiled subgraph."""


class System:
    """All schedulers of a process as one state machine, without clocks or IO.

    A driver calls `handle` with what has happened, and carries out the actions
    that it returns. A bug, here or in code of a user's own, ends the queries that the event concerns, and no
    others.

    Attributes:
        queries: running queries and sessions, by id.
        engines: the schedulers of engines, with checks of what is asked of them.
        schedulers: these schedulers, by name.
    """

    def __init__(
        self,
        deployments: Iterable[Deployment],
        expand: ExpandWith | None = None,
        vocabulary: Vocabulary = STANDARD,
        space_of: SpaceOf = no_space,
        tenant_weights: Mapping[str, float] = NO_WEIGHTS,
        learned: Mapping[str, LearnedWork] = NOTHING_LEARNED,
    ) -> None:
        """Start no instance yet: `AddInstance` events do, for the deployments' replicas and for others.

        Args:
            space_of: returns the space in which the instances of a replica report what they hold.
            tenant_weights: shares of tenants relative to each other; 1 for a tenant that is not there.
            learned: what earlier runs have learned of programs, by engine. It learns on here.

        Raises:
            ConfigError: two engines have one name, or a policy, a placement or an engine is unknown.
        """
        self.engines = EngineTier(deployments, vocabulary, space_of, tenant_weights, learned)
        self.schedulers = self.engines.schedulers
        self.queries: dict[str, SessionMachine | OneCall] = {}
        self._expand = expand
        self._deadlines = Deadlines()
        self._attempts = Attempts()
        self._engines_of: dict[str, dict[str, None]] = {}
        self._paused: dict[str, None] = {}
        self._turn = TurnWork()
        self._ending = EndingSessions()
        self._now_s = 0.0
        self._armed_s: float | None = None
        self._actions: list[Action] = []

    def handle(self, events: Sequence[Event], now_s: float) -> list[Action]:
        """Handle events (what has happened by `now_s`), and return the actions that the schedulers decide on,
        in order.
        """
        if self._turn.is_begun:
            self._turn.renew()
        if self._ending.is_begun:
            self._ending.renew()
        self._now_s = now_s
        for event in events:
            self._handle(event, now_s)
        dirty = self.engines.dirty
        while dirty:
            self._schedule(next(iter(dirty)), now_s)
        actions, self._actions = self._actions, []
        return actions

    def is_idle(self) -> bool:
        """Return whether no query or session is running and no engine has work."""
        return not self.queries and not self._ending and self.engines.is_idle()

    def open_nodes(self) -> Iterator[Node]:
        """Iterate over the nodes of all queries and sessions that have not ended."""
        for session in self.queries.values():
            yield from session.open_nodes()

    def snapshot(self) -> Snapshot:
        """Return a snapshot of what all queries and engines are doing now."""
        return Snapshot(
            tuple(session.picture() for session in self.queries.values()),
            tuple(scheduler.picture() for scheduler in self.schedulers.values()),
        )

    def held(self, query: str) -> list[HeldPicture]:
        """Return the requests of a query that are held for lack of room in KV memory."""
        names = self._engines_of.get(query, {})
        return [one for name in names for one in self.schedulers[name].held(query)]

    def check_invariants(self) -> None:
        """Check the state of every scheduler, and that no query waits for ever because no engine has work.

        For tests.
        """
        self.engines.check_invariants()
        for session in self.queries.values():
            session.check_invariants()
        going = {query: session for query, session in self.queries.items() if query not in self._paused}
        stuck = sorted(query for query, session in going.items() if session.is_one_shot)
        assert not self.engines.is_idle() or not stuck or self._attempts.next_s is not None, (
            f"{stuck} wait for nothing"
        )

    # --- events

    def _handle(self, event: Event, now_s: float) -> None:
        if isinstance(event, EngineEvent):
            concerned = self.engines.queries_of(event)
            try:
                reports, actions = self.engines.handle(event, now_s)
                self._actions += actions
                self._apply(reports, now_s)
            except raised() as error:
                self._end_all(concerned, error)
            return
        match event:
            case Submit(query=query) | Open(query=query):
                if query in self.queries:
                    raise InternalError(f"query {query!r} is running already")
                try:
                    self._open(event, now_s)
                except raised() as error:
                    self._end_all([query], error)
            case Cancel(query, reason):
                if query in self.queries:
                    self._end(query, None, reason or QueryCancelled("cancelled"))
            case EndProgram(program, tenant):
                self.engines.end_program(program, tenant)
            case Close(query):
                if query in self.queries:
                    self._end(query, None, None)
            case Wake():
                self._wake(now_s)
            case _:
                if event.query in self.queries:
                    try:
                        self._in_session(event, now_s)
                    except raised() as error:
                        self._end_all([event.query], error)

    @contextmanager
    def _bugs_end(self, queries: Iterable[str]) -> Iterator[None]:
        """Catch what is raised within this context: an error or a bug ends `queries`."""
        try:
            yield
        except raised() as error:
            self._end_all(queries, error)

    @contextmanager
    def _bugs_recover(self, engine: str) -> Iterator[None]:
        """Catch a bug within this context: an exception ends all queries with work at `engine`."""
        try:
            yield
        except raised() as error:
            self._recover(engine, error)

    def _end_all(self, queries: Iterable[str], error: BaseException) -> None:
        """End those of `queries` that still run, with the error, or with the bug that it is."""
        ended_by = error if isinstance(error, StrettoError) else bug_of(error)
        for query in queries:
            if query in self.queries:
                self._end(query, None, ended_by)

    def _open(self, event: Submit | Open, now_s: float) -> None:
        if isinstance(event, Submit):
            record = QueryRecord(
                event.tenant,
                event.objective,
                event.deadline_s,
                now_s,
                event.is_streamed,
                event.program,
                event.egraph.graph.name,
            )
        else:
            record = event.record
        session: SessionMachine | OneCall
        if isinstance(event, Submit) and event.egraph.is_one_call and not event.is_streamed:
            session = OneCall(event.query, record)
        else:
            session = SessionMachine(event.query, record, self._expand_for(event.passes), self._turn)
        self.queries[event.query] = session
        self._engines_of[event.query] = {}
        if record.deadline_s is not None:
            self._deadlines.add(record.deadline_s, Expired(event.query))
            self._arm(record.deadline_s)
        if isinstance(event, Submit):
            self.engines.check_engines(event.egraph)
            self._carry_on(session, session.submit(event.egraph, event.inputs), now_s)

    def _expand_for(self, passes: tuple[str, ...]) -> Expand | None:
        if self._expand is None:
            return None
        expand_with = self._expand

        def expand(body: str, inputs: Mapping[str, object]) -> ExecutionGraph:
            sub = expand_with(body, inputs, passes)
            self.engines.check_engines(sub)
            return sub

        return expand

    def _in_session(self, event: SessionEvent, now_s: float) -> None:
        session = self.queries[event.query]
        if isinstance(session, OneCall):
            return
        match event:
            case Extend(_, egraph, bind, values):
                self.engines.check_engines(egraph)
                outcome = session.extend(egraph, bind, values)
            case Provide(_, name, value):
                outcome = session.provide(name, value)
            case Want(query, name, criteria, deadline_s):
                outcome = session.want(name, criteria, deadline_s)
                if deadline_s is not None:
                    self._deadlines.add(deadline_s, Unwant(query, name, criteria, deadline_s))
                    self._arm(deadline_s)
            case Unwant(_, name, criteria, deadline_s):
                outcome = session.unwant(name, criteria, deadline_s)
                if deadline_s is not None:
                    self._deadlines.remove(deadline_s, event)
            case Drop(_, name):
                outcome = session.drop(name)
            case Close():
                return
        self._carry_on(session, outcome, now_s)

    def _apply(self, reports: Sequence[Report], now_s: float) -> None:
        if are_followed := bool(self._attempts.of_query):
            reports = self._attempts.judge(reports, now_s)
        together: list[Completed] = []
        for report in reports:
            if together and (not isinstance(report, Completed) or report.query != together[0].query):
                self._report(together, now_s)
                together = []
            if isinstance(report, Completed):
                together.append(report)
            else:
                self._report(report, now_s)
        if together:
            self._report(together, now_s)
        if are_followed:
            self._arm_attempts()

    def _report(self, report: Sequence[Completed] | Delivered, now_s: float) -> None:
        """Tell a query of a piece that was delivered, or of what was completed together."""
        query = report.query if isinstance(report, Delivered) else report[0].query
        session = self.queries.get(query)
        if session is None:
            return
        try:
            if isinstance(report, Delivered):
                outcome = session.deliver(report.node, report.offset, report.piece)
            else:
                outcome = session.complete_all(report)
            self._carry_on(session, outcome, now_s)
        except raised() as error:
            self._end_all([query], error)

    def _carry_on(self, session: SessionMachine | OneCall, outcome: Outcome, now_s: float) -> None:
        """Pass on the outcome of one step of a query."""
        query, engines = session.query, self._engines_of[session.query]
        for node in outcome.withdrawn:
            elsewhere = self._attempts.drop(query, node.id)
            for engine in dict.fromkeys(filter(None, (node.engine, *elsewhere))):
                self._actions += self.engines.withdraw(engine, query, node.id, now_s)
        for request in outcome.work:
            assert request.node.engine is not None
            engines[request.node.engine] = None  # first, as what an order raises at waits there too
            self.engines.add(request, now_s)
            if request.node.is_watched:
                self._attempts.sent(request, now_s)
                self._arm_attempts()
        if outcome.demands and isinstance(session, SessionMachine):
            self._ask(query, [one for one in outcome.demands if session.graph.has_opened(one[0])])
        for output, text in outcome.text:
            self._actions.append(Emit(query, output, text))
        for name, value in outcome.settled:
            usage = session.take_usage(name) if isinstance(session, SessionMachine) else Usage()
            self._actions.append(Settled(query, name, value, usage))
        if outcome.error is not None or outcome.outputs is not None:
            self._end(query, outcome.outputs, outcome.error)
        elif outcome.is_paused:
            self._paused[query] = None
            self._arm(now_s)

    def _ask(self, query: str, demands: Sequence[tuple[Node, Demand]]) -> None:
        """Tell the engines that have had work of a query what is asked of its nodes now."""
        asked: dict[str, dict[int, Demand]] = {}
        for node, demand in demands:
            if node.engine in self._engines_of[query]:
                asked.setdefault(node.engine, {})[node.id] = demand
        for engine, of_nodes in asked.items():
            self.engines.ask(engine, query, of_nodes)

    def usage(self, query: str) -> Usage:
        """Return the tokens of a query's LLM requests that have ended so far; of none if there is no such
        query (any more).
        """
        session = self.queries.get(query)
        return (session.usage if session is not None else None) or Usage()

    def _end(self, query: str, outputs: Mapping[str, object] | None, error: StrettoError | None) -> None:
        session = self.queries.pop(query)
        self._deadlines.end_query(query)
        self._attempts.end_query(query)
        for engine in self._engines_of.pop(query):
            try:
                self._actions += self.engines.end_query(engine, query)
            except raised() as bug:
                self._recover(engine, bug)
                self._actions += self.engines.end_query(engine, query)
        usage = session.usage or Usage()
        if isinstance(session, SessionMachine) and not session.is_one_shot:
            ended = error or QueryCancelled("the session was closed")
            reply = Reply(query, {} if error is None else None, error, usage, session.endings)
            self._ending.add(query, session.close_some, ended, reply)
            self._give_up_variables()
        else:
            self._actions.append(Reply(query, outputs, error, usage, session.endings))

    def _give_up_variables(self) -> None:
        self._actions += self._ending.give_up()
        if self._ending:
            self._arm(self._now_s)

    # --- engines and time

    def _schedule(self, name: str, now_s: float) -> None:
        """Let an engine start work, and remove its mark (dirty). A bug there ends all queries that have work
        at that engine.
        """
        del self.engines.dirty[name]
        scheduler = self.schedulers[name]
        instances, queue = scheduler.instances, scheduler.queue
        try:
            if instances.may_fail_waiting:
                late = instances.fail_waiting(queue, now_s, self._has_deadline)
                for one in late:
                    self._actions += scheduler.withdraw(one.query, one.node, now_s, one.items)
                self._apply(late, now_s)
            self._actions += scheduler.schedule(now_s)
            if (not_before_s := scheduler.not_before_s) is not None:
                self._arm(not_before_s)
            timeout_s, armed_s = scheduler.engine.timeout_s, self._armed_s
            if (
                timeout_s is not None
                and (armed_s is None or now_s + timeout_s < armed_s)
                and not scheduler.is_idle()
            ):
                self._arm(now_s + timeout_s)
            if instances.may_fail_waiting and (due_s := instances.next_due_s(queue, now_s)) is not None:
                self._arm(due_s)
        except raised() as error:
            self._recover(name, error)

    def _recover(self, name: str, error: BaseException) -> None:
        """End all queries with work at an engine whose scheduler had a bug, and let it begin anew."""
        queries, actions = self.schedulers[name].recover()
        self._actions += actions
        self._end_all(queries, error)

    def _has_deadline(self, query: str) -> bool:
        return query in self.queries and self.queries[query].record.deadline_s is not None

    def _arm(self, time_s: float) -> None:
        """Ask to be woken by that time. Drivers keep the last time asked for, which is the earliest."""
        if self._armed_s is None or time_s < self._armed_s:
            self._armed_s = time_s
            self._actions.append(WakeAt(time_s))

    def _wake(self, now_s: float) -> None:
        self._armed_s = None
        for due in self._deadlines.take(now_s):
            if isinstance(due, Unwant):
                self._handle(due, now_s)
            elif due.query in self.queries:
                self._end(due.query, None, DeadlineExceeded("the deadline passed"))
        self._carry_on_attempts(now_s)
        self._go_on_paused(now_s)
        self._give_up_variables()
        for name, scheduler in self.schedulers.items():
            with self._bugs_recover(name):
                reports, actions = scheduler.expire(now_s)
                self._actions += actions
                self._apply(reports, now_s)
            self.engines.dirty[name] = None
            if (expiry_s := scheduler.next_expiry_s()) is not None:
                self._arm(expiry_s)
        if (next_s := self._deadlines.next_s) is not None:
            self._arm(next_s)

    def _go_on_paused(self, now_s: float) -> None:
        """Let queries that have paused go on, as far as the work of one more instant allows."""
        self._turn.renew()
        paused, self._paused = self._paused, {}
        for query in paused:
            if self._turn.is_over:
                self._paused[query] = None
                self._arm(now_s)
                continue
            session = self.queries.get(query)
            if isinstance(session, SessionMachine):
                with self._bugs_end([query]):
                    self._carry_on(session, session.go_on(), now_s)

    def _carry_on_attempts(self, now_s: float) -> None:
        """Withdraw attempts that have taken too long, and send those whose time has come."""
        due = self._attempts.take(now_s)
        for (engine, query, node), items in due.withdrawn.items():
            with self._bugs_recover(engine):
                self._actions += self.engines.withdraw(engine, query, node, now_s, items)
        for request in due.requests:
            session = self.queries.get(request.query)
            if isinstance(session, SessionMachine) and request.node.id in session.graph.nodes:
                assert request.node.engine is not None
                self._engines_of[request.query][request.node.engine] = None
                with self._bugs_end([request.query]):
                    self.engines.add(request, now_s)
        self._apply(due.reports, now_s)

    def _arm_attempts(self) -> None:
        if (next_s := self._attempts.next_s) is not None:
            self._arm(next_s)
