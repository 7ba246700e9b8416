"""The asyncio driver: real engines, real time.

It feeds events to the `System` and carries out its actions, and that is all it does. Nothing polls: an
event wakes it, or a timer that the schedulers asked for. All of its methods belong to one event loop;
instances speak to it from their threads through `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from itertools import count
from types import TracebackType
from typing import Any, get_args

from stretto.engine import Engine
from stretto.errors import (
    ConfigError,
    DeadlineExceeded,
    EngineUnavailable,
    InternalError,
    Overloaded,
    QueryCancelled,
    StrettoError,
    UserError,
)
from stretto.frontend.plan_cache import PlanCache
from stretto.frontend.template import Configuration, Template
from stretto.graph.compile import ExecutionGraph
from stretto.messages import (
    Action,
    Admit,
    Cancel,
    CancelTask,
    Emit,
    Event,
    InstanceLost,
    Open,
    Release,
    Reply,
    Restart,
    Settled,
    StartBatch,
    Submit,
    Wake,
    WakeAt,
)
from stretto.runtime.checks import check_inputs, check_resources, pass_names
from stretto.runtime.instances import Instance, ProcessInstance, start_instance
from stretto.runtime.pace import Pace
from stretto.runtime.query import Query
from stretto.runtime.session import Session
from stretto.runtime.slots import Slots
from stretto.runtime.worker import AdmitTask, Command, ForgetQuery, NotReady, Ready, RunBatch, Said, StopTask
from stretto.sched.snapshot import Snapshot
from stretto.sched.system import System
from stretto.tasks import Objective, QueryRecord
from stretto.trace.recorder import Recorder

_MAX_PUMP_S = 0.005


class Runtime:
    """Runs queries of any number of apps on shared engines.

    Args:
        engines: as registered.
        recorder: notes what ran when, for traces; None costs nothing.
        max_queries: `submit` waits while this many queries are running (back-pressure).
        resources: what the machine has, by kind; engines that ask for more in all are refused.

    Use it with `async with`: entering starts every instance and waits until all are ready, leaving
    cancels what still runs and closes every engine.

    Raises:
        ConfigError: the engines do not fit each other, or the resources.
        StrettoError: from entering, when an engine cannot be constructed; it names the engine.
    """

    def __init__(
        self,
        engines: Iterable[Engine],
        *,
        recorder: Recorder | None = None,
        max_queries: int = 256,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        engines = tuple(engines)
        self.engines = {engine.name: engine for engine in engines}
        self.recorder = recorder
        self.plan_cache = PlanCache({engine.name: engine.profile for engine in engines})
        self.system = System(engines, self.plan_cache.expand)
        check_resources(engines, resources)
        if max_queries < 1:
            raise ConfigError(f"max_queries={max_queries} is less than 1")
        self._slots = Slots(max_queries)
        self._queries: dict[str, Query | Session] = {}
        self._pace = Pace()
        self._is_draining = False
        self._all_ended = asyncio.Event()
        self._ids = count(1)
        self._inbox: list[Event] = []
        self._is_pumping = False
        self._instances: dict[tuple[str, int], Instance] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._epochs: dict[tuple[str, int], int] = {}
        self._starting: dict[tuple[str, int], asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_open = False

    async def __aenter__(self) -> Runtime:
        if self._loop is not None:
            raise UserError("a runtime is entered once")
        self._loop = asyncio.get_running_loop()
        try:
            for engine in self.engines.values():
                for index in range(engine.instances):
                    self._starting[engine.name, index] = self._loop.create_future()
                    self._start(engine, index)
            await asyncio.gather(*self._starting.values())
        except BaseException:
            await self.aclose()
            raise
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def submit(
        self,
        app: Template | ExecutionGraph,
        inputs: Mapping[str, object],
        *,
        configuration: Configuration | None = None,
        passes: str | Iterable[str] = "all",
        deadline_s: float | None = None,
        tenant: str = "",
        objective: Objective = "throughput",
    ) -> Query:
        """Start a query; waits only while `max_queries` others are running.

        Args:
            configuration: settings of this query, by component.
            passes: "all", "none", or names of passes.
            deadline_s: seconds from now after which the query ends with `DeadlineExceeded`.
            tenant: whose query it is: tenants share no prefix caches.
            objective: "latency" keeps LLM instances that serve it less crowded, as they are configured.

        Raises:
            UserError: inputs, configuration or passes do not fit the app.
            DeadlineExceeded: the deadline passed while it waited.
        """
        record = self._record(tenant, objective, deadline_s)
        names = pass_names(passes)
        app = self._plan(app, configuration, names)
        check_inputs(app, inputs)
        await self._acquire_slot(record.deadline_s)
        return self._start_query(app, inputs, record, names)

    def try_submit(
        self,
        app: Template | ExecutionGraph,
        inputs: Mapping[str, object],
        *,
        configuration: Configuration | None = None,
        passes: str | Iterable[str] = "all",
        deadline_s: float | None = None,
        tenant: str = "",
        objective: Objective = "throughput",
    ) -> Query:
        """`submit`, without waiting.

        Raises:
            Overloaded: `max_queries` are running; it says when to come back.
        """
        record = self._record(tenant, objective, deadline_s)
        names = pass_names(passes)
        app = self._plan(app, configuration, names)
        check_inputs(app, inputs)
        if not self._slots.take():
            raise Overloaded(
                f"{len(self._queries)} queries are running", retry_after_s=self._pace.retry_after_s()
            )
        return self._start_query(app, inputs, record, names)

    async def open_session(
        self,
        *,
        passes: str | Iterable[str] = "all",
        deadline_s: float | None = None,
        tenant: str = "",
        objective: Objective = "throughput",
    ) -> Session:
        """Open a session, which counts as a query until it is closed. The arguments are those of `submit`."""
        record = self._record(tenant, objective, deadline_s)
        names = pass_names(passes)
        await self._acquire_slot(record.deadline_s)
        query_id = f"q{next(self._ids)}"

        def plan(app: Template | ExecutionGraph, configuration: Configuration | None) -> ExecutionGraph:
            self._running_loop()
            return self._plan(app, configuration, names)

        session = Session(query_id, self._post, plan, asyncio.get_running_loop())
        self._queries[query_id] = session
        self._post(Open(query_id, record, names))
        return session

    async def drain(self) -> None:
        """Take no new queries or sessions, and wait until those that run have ended."""
        self._is_draining = True
        while self._queries:
            self._all_ended.clear()
            await self._all_ended.wait()

    def snapshot(self) -> Snapshot:
        """What all queries and engines are doing now."""
        return self.system.snapshot()

    async def run(
        self,
        app: Template | ExecutionGraph,
        inputs: Mapping[str, object],
        *,
        configuration: Configuration | None = None,
        passes: str | Iterable[str] = "all",
        deadline_s: float | None = None,
        tenant: str = "",
        objective: Objective = "throughput",
    ) -> Mapping[str, Any]:
        """`submit`, and wait for the outputs. Cancelling this coroutine cancels the query."""
        query = await self.submit(
            app,
            inputs,
            configuration=configuration,
            passes=passes,
            deadline_s=deadline_s,
            tenant=tenant,
            objective=objective,
        )
        try:
            return await query
        except asyncio.CancelledError:
            query.cancel()
            raise

    async def aclose(self) -> None:
        """Cancel every query, end every instance. Idempotent."""
        self._is_open = False
        for query_id in list(self._queries):
            self._post(Cancel(query_id))
        while self._inbox:
            self._pump()
        self._hear_no_more()
        closing = [*self._closing, *(instance.close() for instance in self._instances.values())]
        self._instances.clear()
        await asyncio.gather(*closing, return_exceptions=True)  # one that cannot close keeps no other open

    def _record(self, tenant: str, objective: Objective, deadline_s: float | None) -> QueryRecord:
        loop = self._running_loop()
        if self._is_draining:
            raise UserError("the runtime is draining: it takes no new queries")
        if objective not in get_args(Objective):
            raise UserError(f"objective={objective!r} is none of {', '.join(get_args(Objective))}")
        if deadline_s is not None and not (isinstance(deadline_s, int | float) and deadline_s == deadline_s):
            raise UserError(f"deadline_s={deadline_s!r} is no number of seconds")
        return QueryRecord(tenant, objective, None if deadline_s is None else loop.time() + deadline_s)

    def _plan(
        self, app: Template | ExecutionGraph, configuration: Configuration | None, names: tuple[str, ...]
    ) -> ExecutionGraph:
        if isinstance(app, Template):
            app = self.plan_cache.plan(app, configuration or {}, names)
        self.system.check_engines(app)
        return app

    async def _acquire_slot(self, due_s: float | None) -> None:
        try:
            async with asyncio.timeout_at(due_s):
                await self._slots.acquire()
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed before the query could start") from None
        if not self._is_open or self._is_draining:
            self._slots.release()
            raise QueryCancelled("the runtime was closed before the query could start")

    def _start_query(
        self, app: ExecutionGraph, inputs: Mapping[str, object], record: QueryRecord, names: tuple[str, ...]
    ) -> Query:
        query_id = f"q{next(self._ids)}"
        query = Query(query_id, lambda: self._post(Cancel(query_id)), self._running_loop())
        self._queries[query_id] = query
        self._post(Submit(query_id, app, inputs, record.deadline_s, names, record.tenant, record.criteria))
        return query

    def _end_query(self, reply: Reply) -> None:
        assert self._loop is not None
        self._queries.pop(reply.query).on_reply(reply)
        self._slots.release()
        self._pace.note_end(self._loop.time())
        if not self._queries:
            self._all_ended.set()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or not self._is_open:
            raise UserError("the runtime is not running: use `async with Runtime(...)`")
        if self._loop is not asyncio.get_running_loop():
            raise UserError("the runtime belongs to another event loop")
        return self._loop

    # --- events in

    def _post(self, event: Event) -> None:
        self._inbox.append(event)
        if not self._is_pumping:
            self._is_pumping = True
            assert self._loop is not None
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Handle events until there are none, or until others on the loop should have a turn."""
        assert self._loop is not None
        self._is_pumping = True
        now_s = self._loop.time()
        turn_ends_s = now_s + _MAX_PUMP_S
        while self._inbox and now_s < turn_ends_s:
            events, self._inbox = self._inbox, []
            if self.recorder is not None:
                for event in events:
                    self.recorder.on_event(event, now_s)
            try:
                for action in self.system.handle(events, now_s):
                    if self.recorder is not None:
                        self.recorder.on_action(action, now_s)
                    self._carry_out(action)
            except Exception as error:
                self._break_down(error)
                return
            now_s = self._loop.time()
        self._is_pumping = bool(self._inbox)
        if self._is_pumping:
            self._loop.call_soon(self._pump)

    def _break_down(self, error: Exception) -> None:
        """A bug in schedulers, driver or a user's policy ends all queries: none would end by itself."""
        self._is_open = self._is_pumping = False
        self._hear_no_more()
        bug = InternalError(f"the schedulers broke down: {type(error).__name__}: {error}")
        bug.__cause__ = error
        for query_id in list(self._queries):
            self._end_query(Reply(query_id, None, bug))

    def _hear_no_more(self) -> None:
        self._epochs.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hear(self, key: tuple[str, int], epoch: int, said: Said) -> None:
        """An instance speaks; those that were given up are not heard."""
        if self._epochs.get(key) != epoch:
            return
        starting = self._starting.get(key)
        match said:
            case Ready():
                if starting is not None and not starting.done():
                    starting.set_result(None)
            case NotReady(error):
                if starting is not None and not starting.done():
                    starting.set_exception(_naming(key[0], error))
                else:
                    self._give_up(key)
                    self._post(InstanceLost(*key, EngineUnavailable(f"{key[0]} did not restart: {error}")))
            case InstanceLost():
                self._give_up(key)
                self._post(said)
            case _:
                self._post(said)

    # --- actions out

    def _carry_out(self, action: Action) -> None:
        match action:
            case StartBatch(engine, instance, batch, tasks):
                self._send((engine, instance), RunBatch(batch, tasks))
            case Admit(engine, instance, task, priority):
                self._send((engine, instance), AdmitTask(task, priority))
            case Emit(query, output, text):
                self._queries[query].on_text(output, text)
            case Settled(query, name, value):
                session = self._queries[query]
                assert isinstance(session, Session)
                session.on_settled(name, value)
            case Reply():
                self._end_query(action)
            case CancelTask(engine, instance, task_id):
                if (engine, instance) in self._instances:
                    self._instances[engine, instance].send(StopTask(task_id))
            case Release(engine, instance, query):
                if (engine, instance) in self._instances:
                    self._instances[engine, instance].send(ForgetQuery(query))
            case Restart(engine, instance):
                self._give_up((engine, instance))
            case WakeAt(time_s):
                self._wake_at(time_s)

    def _wake_at(self, time_s: float) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(time_s, self._post, Wake())

    def _start(self, engine: Engine, index: int) -> None:
        assert self._loop is not None
        loop, key = self._loop, (engine.name, index)
        epoch = self._epochs[key] = self._epochs.get(key, 0) + 1
        is_on_loop = engine.runs_in == "loop" or engine.kind == "llm_server"

        def say(said: Said) -> None:
            if is_on_loop and not isinstance(said, Ready | NotReady):
                self._hear(key, epoch, said)
            else:
                with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody listens
                    loop.call_soon_threadsafe(self._hear, key, epoch, said)

        self._instances[key] = start_instance(engine, index, say)

    def _send(self, key: tuple[str, int], command: Command) -> None:
        """Hand work to a replica, started anew if it was lost.

        Not sooner, so that an engine which dies as soon as it starts does so once for each attempt.
        """
        try:
            if key not in self._instances:
                self._start(self.engines[key[0]], key[1])
            self._instances[key].send(command)
        except Exception as error:
            self._give_up(key)
            lost = EngineUnavailable(f"{key[0]}/{key[1]} takes no work: {type(error).__name__}: {error}")
            lost.__cause__ = error
            self._post(InstanceLost(*key, lost))

    def _give_up(self, key: tuple[str, int]) -> None:
        """Leave an instance behind, unheard."""
        assert self._loop is not None
        self._epochs[key] += 1
        old = self._instances.pop(key, None)
        if old is None:
            return
        if isinstance(old, ProcessInstance):
            old.kill()
        closing = self._loop.create_task(old.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


def _naming(engine: str, error: StrettoError) -> StrettoError:
    named = type(error)(f"engine {engine!r}: {error.message}", step=error.step)
    named.__cause__ = error
    return named
