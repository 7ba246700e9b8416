"""The interface of the runtime, which runs queries with real engines in real time, on asyncio.

All of its methods belong to one event loop. The pump (`pump.py`) carries events to the schedulers and their
actions to the instances (`running.py`).
"""

from __future__ import annotations

import asyncio
import reprlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from stretto.apps.plan_cache import PlanCache
from stretto.apps.template import Configuration, Template
from stretto.apps.vocabulary import DEFAULT
from stretto.cluster.machine import Machine, check_deployments
from stretto.cluster.messages import DrainHow, InstanceId
from stretto.cluster.prompt_keys import prompt_space
from stretto.costs.learned_work import NOTHING_LEARNED, LearnedWork
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.graph import Graph
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError, InternalError, UserError
from stretto.model.foreign import described
from stretto.model.replica import Replica
from stretto.model.tasks import Objective
from stretto.runtime.conditions import idle_conditions
from stretto.runtime.home_process import HomeProcess
from stretto.runtime.input_checks import (
    Preparation,
    PreparedQuery,
    check_options,
    check_program,
    check_tenant,
)
from stretto.runtime.loop_thread import LoopThread, iterate_on, run_on
from stretto.runtime.pump import Pump
from stretto.runtime.query import Query, QueryOptions, StartedQuery
from stretto.runtime.replica_changes import ReplicaChanges
from stretto.runtime.running import FirstStarts
from stretto.runtime.running_queries import RunningQueries
from stretto.runtime.session import Session
from stretto.runtime.step_checks import StepChecks
from stretto.sched.actions import Reply
from stretto.sched.engine_events import AddInstance
from stretto.sched.messages import Cancel, EndProgram, Event, Open
from stretto.sched.observer import Observer, Observers
from stretto.sched.orders.tenants_served import NO_WEIGHTS
from stretto.sched.snapshot import Snapshot
from stretto.sched.system import System
from stretto.sched.vocabulary import Vocabulary

if TYPE_CHECKING:
    from stretto.runtime.instances.ray import RayCluster

T = TypeVar("T")


class Runtime:
    """A runtime: it runs queries (each is one run of an app) of any number of apps on shared engines.

    Args:
        deployments: engines with their replicas.
        vocabulary: names that queries and engines may use, of ops, passes, policies and more.
        observers: told of everything as it happens, for example a `Recorder` for traces.
        max_queries: `submit` waits while this many queries are running (back-pressure). A session counts
            while it has something to produce.
        ray_address: host and port of the head of the Ray cluster where replicas with runs_in "ray" run. This
            machine must be one of its nodes.
        machine: devices that replicas may name, and their memory; None checks nothing.
        tenant_weights: shares of engines that tenants get relative to each other while they all have work;
            1 for a tenant that is not there.
        learned: what earlier runs have learned of programs, by engine, as `learned()` of their runtimes gave
            it, or `LearnedFile.read`. It learns on here.

    Use it with `async with`: entering starts every replica and waits until all are ready, leaving
    cancels what still runs and closes every engine. In code that is not asynchronous, use it with `with` and
    `run_sync`: an event loop on a thread of its own runs it then. In a notebook, `run_sync` alone does.

    Raises:
        ConfigError: the engines do not fit each other, or their replicas do not fit the machine at once.
        StrettoError: from entering, when an instance cannot be started; it names the engine.
    """

    def __init__(
        self,
        deployments: Iterable[Deployment],
        *,
        vocabulary: Vocabulary = DEFAULT,
        observers: Iterable[Observer] = (),
        max_queries: int = 256,
        machine: Machine | None = None,
        ray_address: str = "",
        tenant_weights: Mapping[str, float] = NO_WEIGHTS,
        learned: Mapping[str, LearnedWork] = NOTHING_LEARNED,
    ) -> None:
        given = _checked(deployments)
        self.deployments = {deployment.name: deployment for deployment in given}
        self.observers = Observers(observers)
        profiles = {name: deployment.profile for name, deployment in self.deployments.items()}
        self.vocabulary = vocabulary
        self.plan_cache = PlanCache(profiles, vocabulary, idle_conditions(given), lambda: len(self._queries))
        expand = self.plan_cache.expand
        self.system = System(given, expand, vocabulary, prompt_space, tenant_weights, learned)
        self.machine = machine
        self.ray_address = ray_address
        self._step_checks = StepChecks(self.system.engines, given)
        self._preparation = Preparation(self.plan_cache, vocabulary, self._step_checks.check)
        self._changes = ReplicaChanges(self.deployments, self.system.engines, machine, ray_address)
        for deployment in given:
            for replica in deployment.replicas:
                self._changes.check_ray(deployment.engine, replica)
        if machine is not None:
            check_deployments(machine, given)
        if type(max_queries) is not int or max_queries < 1:
            raise ConfigError(f"max_queries is {max_queries!r}; it must be a whole number of at least 1")
        self.max_queries = max_queries
        self._queries = RunningQueries(max_queries)
        self._starts: FirstStarts | None = None
        self._pump: Pump | None = None
        self._cluster: RayCluster | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_open = False
        self._bug: InternalError | None = None
        self._home: HomeProcess | None = None
        self._thread: LoopThread | None = None
        self._starting = threading.Lock()

    def __enter__(self) -> Runtime:
        self._started_loop()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Runtime:
        self._check_home()
        if self._loop is not None:
            raise UserError("a runtime is entered once")
        self._home = self._home or HomeProcess("the runtime")
        self._loop = asyncio.get_running_loop()
        if self.ray_address:
            self._cluster = await _joined(self.ray_address)
        num_starting = sum(len(deployment.replicas) for deployment in self.deployments.values())
        instances = {name: scheduler.instances for name, scheduler in self.system.schedulers.items()}
        self._starts = FirstStarts(num_starting, instances, self._loop)
        engines = {name: deployment.engine for name, deployment in self.deployments.items()}
        self._pump = Pump(
            self.system,
            engines,
            self.observers,
            self._loop,
            answer=self._queries.answer,
            break_down=self._break_down,
            watch=self._starts.watch,
            cluster=self._cluster,
        )
        try:
            for name, deployment in self.deployments.items():
                for replica in deployment.replicas:
                    self._pump.post(AddInstance(name, replica))
            await self._starts.opened
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
        **options: Unpack[QueryOptions],
    ) -> Query:
        """Start a query and return it; waits only while `max_queries` others are running.

        The keywords are those of `QueryOptions`.

        Raises:
            UserError: an argument is of the wrong type, or inputs, configuration or passes do not fit the
                app.
            DeadlineExceeded: the deadline passed while it waited.
        """
        prepared = self._prepare(app, inputs, options)
        await self._queries.acquire(prepared.record.deadline_s)
        return self._start_query(prepared)

    def try_submit(
        self,
        app: Template | ExecutionGraph,
        inputs: Mapping[str, object],
        **options: Unpack[QueryOptions],
    ) -> Query:
        """Start a query without waiting for others to end.

        The keywords are those of `QueryOptions`.

        Raises:
            Overloaded: `max_queries` are running; the error says when to try again.
        """
        prepared = self._prepare(app, inputs, options)
        self._queries.acquire_now()
        return self._start_query(prepared)

    def start(
        self,
        app: Template | ExecutionGraph,
        inputs: Mapping[str, object],
        on_end: Callable[[Reply], None],
        **options: Unpack[QueryOptions],
    ) -> Callable[[], None]:
        """Start a query without waiting for others to end, and return a function that cancels it.

        It costs less than `try_submit`, where many thousands of queries run: nobody awaits it. The keywords
        are those of `QueryOptions`.

        Args:
            on_end: called once with the end of the query, on the event loop. It must not raise.

        Raises:
            Overloaded: `max_queries` are running; the error says when to try again.
        """
        prepared = self._prepare(app, inputs, options)
        self._queries.acquire_now()
        started = StartedQuery(self._queries.new_id(), on_end)
        self._submit(started, prepared, is_streamed=False)
        return lambda: self._post(Cancel(started.id))

    async def open_session(
        self,
        *,
        passes: str | Iterable[str] = "weighed",
        deadline_s: float | None = None,
        tenant: str = "",
        objective: Objective = "throughput",
    ) -> Session:
        """Open a session: a query to which the caller adds graphs and values until it is closed.

        An idle session does not count as one of `max_queries`; one with work does, and never waits for that.

        The keywords are those of `QueryOptions`.
        """
        now_s = self._running_loop().time()
        self._queries.check_accepts()
        record = self._preparation.record(now_s, tenant, objective, deadline_s)
        names = self._preparation.pass_names(passes)
        query_id = self._queries.new_id()

        def plan(
            app: Template | Graph | ExecutionGraph, configuration: Configuration | None
        ) -> ExecutionGraph:
            self._running_loop()
            return self._preparation.plan(app, configuration, names, is_running=True)

        loop = asyncio.get_running_loop()
        usage = partial(self.system.usage, query_id)
        session = Session(query_id, self._post, plan, loop, self._queries.slots, names, usage)
        self._queries.add(query_id, session.state)
        self._post(Open(query_id, record, names))
        return session

    def end_program(self, program: str, tenant: str = "") -> None:
        """Say that a program (`QueryOptions.program`) of a tenant makes no more queries, which frees its room
        in KV memory sooner. It need not be said. Queries that still run go on.

        Raises:
            UserError: a name is no text, or the runtime is not running.
        """
        check_program(program)
        check_tenant(tenant)
        self._running_loop()
        self._post(EndProgram(program, tenant))

    async def drain(self) -> None:
        """Take no new queries or sessions, and wait until those that run have ended."""
        await self._queries.drain()

    def snapshot(self) -> Snapshot:
        """Return a snapshot of what all queries and engines are doing now."""
        return self.system.snapshot()

    def learned(self) -> dict[str, LearnedWork]:
        """Return what was learned of programs, by engine, in this run and those before."""
        return self.system.engines.learned()

    async def run(
        self,
        app: Template | ExecutionGraph,
        inputs: Mapping[str, object],
        **options: Unpack[QueryOptions],
    ) -> Mapping[str, Any]:
        """Run an app once and return its outputs by name. Cancelling this coroutine cancels the run.

        The keywords are those of `QueryOptions`.
        """
        prepared = self._prepare(app, inputs, options)
        await self._queries.acquire(prepared.record.deadline_s)
        query = self._start_query(prepared, is_streamed=False)
        try:
            return await query
        except asyncio.CancelledError:
            query.cancel()
            raise

    def run_sync(
        self,
        app: Template | ExecutionGraph,
        inputs: Mapping[str, object],
        **options: Unpack[QueryOptions],
    ) -> Mapping[str, Any]:
        """Run an app once and return its outputs by name, from code that is not asynchronous.

        The first call starts the engines, if the runtime has not been entered; later calls find them running,
        until `close`. Any thread may call it, also one with an event loop of its own, as in a notebook: the
        runtime's loop runs on another thread. An interrupt (KeyboardInterrupt) cancels the run. The keywords
        are those of `QueryOptions`.

        Raises:
            UserError: it is called on the event loop of the runtime or in a fork of its process, or the
                runtime has been closed.
            StrettoError: whatever ended the run; it names the step where there is one.
            TypeError: a keyword is unknown; no engine is started for that.
        """
        check_options(options)
        if self._loop is None:  # what does not fit is found before engines are started
            names = self._preparation.pass_names(options.get("passes", "weighed"))
            self._preparation.plan(app, options.get("configuration"), names)
        return run_on(self._started_loop(), lambda: self.run(app, inputs, **options))

    def stream_sync(
        self,
        app: Template | ExecutionGraph,
        inputs: Mapping[str, object],
        output: str,
        **options: Unpack[QueryOptions],
    ) -> Iterator[str]:
        """Run an app once and yield the text of one output as it is generated, from code that is not
        asynchronous. The run begins with the first text that is asked for, and is cancelled if the iterator
        is closed before its end; arguments and errors are those of `run_sync`.
        """
        check_options(options)
        begun: list[Query] = []

        async def start() -> AsyncIterator[str]:
            begun.append(await self.submit(app, inputs, **options))
            return begun[0].stream(output)

        async def end() -> None:
            for query in begun:
                query.cancel()

        def texts() -> Iterator[str]:
            try:
                yield from iterate_on(self.run_on_loop, start)
            finally:
                if begun:
                    self.run_on_loop(end)

        return texts()

    def run_on_loop(self, coroutine: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function on the event loop of the runtime, from code that is not asynchronous, and
        return its result.

        The first call starts the engines, if the runtime has not been entered.

        Raises:
            UserError: it is called on the event loop of the runtime or in a fork of its process, or the
                runtime has been closed.
        """
        return run_on(self._started_loop(), coroutine)

    def close(self) -> None:
        """Cancel every query and end every instance of a runtime that `with` or `run_sync` has started.

        It may be called again.

        Raises:
            UserError: it is called on the event loop of the runtime, which it would block, or in a fork of
                the runtime's process.
        """
        self._check_home()
        if self._thread is not None and self._thread.loop is _current_loop():
            raise UserError("close would block the runtime's own event loop; use `await runtime.aclose()`")
        with self._starting:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            try:
                run_on(thread.loop, self.aclose)
            finally:
                thread.close()

    def add_instance(self, engine: str, replica: Replica) -> None:
        """Start one more instance of an engine while the runtime runs; it gets work when it is ready.

        Raises:
            ConfigError: there is no such engine, or the replica does not fit it, or the devices that are free
                now do not suffice.
        """
        self._running_loop()
        assert self._pump is not None
        self._post(self._changes.add(engine, replica, self._pump.waiting))
        self._step_checks.add(engine, replica)

    def drain_instance(
        self, engine: str, instance: InstanceId, how: DrainHow = "finish", *, force: bool = True
    ) -> None:
        """Give an instance no more work, and end it when it is idle ("finish") or at once ("suspend").

        "suspend" lets its LLM tasks go on at other instances from the tokens that they have generated, after
        the step that is under way. That costs no attempt, however long the step takes.

        Args:
            force: whether it may be the last one of its engine. Code that acts for a person should pass
                False.

        Raises:
            ConfigError: there is no such instance, it is draining or gone, or it is the last one.
        """
        self._running_loop()
        assert self._pump is not None
        self._post(self._changes.drain(engine, instance, how, self._pump.waiting, force=force))

    async def aclose(self) -> None:
        """Cancel every query and end every instance. A second call does nothing.

        Raises:
            UserError: it is called in a fork of the runtime's process.
        """
        self._check_home()
        self._is_open = False
        self._queries.close()
        if self._pump is None:
            return
        for query_id in self._queries.ids:
            self._post(Cancel(query_id))
        self._pump.drain()
        await self._pump.close()
        if self._cluster is not None:
            cluster, self._cluster = self._cluster, None
            await cluster.leave()

    def _prepare(
        self,
        app: Template | ExecutionGraph,
        inputs: Mapping[str, object],
        options: QueryOptions,
    ) -> PreparedQuery:
        loop = self._running_loop()
        self._queries.check_accepts()
        return self._preparation.prepare(app, inputs, loop.time(), **options)

    def _start_query(self, prepared: PreparedQuery, *, is_streamed: bool = True) -> Query:
        query_id = self._queries.new_id()
        query = Query(
            query_id,
            lambda: self._post(Cancel(query_id)),
            self._running_loop(),
            lambda: self.system.held(query_id),
        )
        self._submit(query, prepared, is_streamed=is_streamed)
        return query

    def _submit(self, query: Query | StartedQuery, prepared: PreparedQuery, *, is_streamed: bool) -> None:
        self._queries.add(query.id, query)
        self._post(prepared.submit(query.id, is_streamed=is_streamed))

    def _check_home(self) -> None:
        if self._home is not None:
            self._home.check()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        self._check_home()
        if self._bug is not None:
            raise self._bug
        if self._loop is not None and not self._is_open:
            raise UserError("the runtime has been closed; make a new one")
        if self._loop is None:
            raise UserError("the runtime is not running: use `async with Runtime(...)`")
        if self._loop is not asyncio.get_running_loop():
            raise UserError(
                "the runtime belongs to another event loop: use `async with Runtime(...)` on this one"
            )
        return self._loop

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the runtime, which is started on a thread of its own if it has none."""
        self._check_home()  # before the lock, which another thread may have held at the fork
        with self._starting:
            if self._loop is None:
                self._home = HomeProcess("the runtime")
                thread = LoopThread()
                try:
                    run_on(thread.loop, self.__aenter__)
                except BaseException:
                    thread.close()
                    raise
                self._thread = thread
            loop = self._loop
        if self._bug is not None:
            raise self._bug
        if loop is None or not self._is_open:
            raise UserError("the runtime has been closed; make a new one")
        if loop is _current_loop():
            raise UserError(
                "this would block the runtime's own event loop; use `await runtime.run(...)` or `async with`"
            )
        return loop

    def _post(self, event: Event) -> None:
        self._check_home()
        assert self._pump is not None
        self._pump.post(event)

    def _break_down(self, error: BaseException) -> None:
        """End all queries after a bug in the schedulers: none would end by itself."""
        self._is_open = False
        bug = InternalError(f"the schedulers broke down: {described(error)}; make a new runtime")
        bug.__cause__ = error
        self._bug = bug
        if self._starts is not None:
            self._starts.fail(bug)
        self._queries.end_all(bug)


def _current_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs on this thread; None if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _checked(deployments: object) -> tuple[Deployment, ...]:
    """Return deployments as a tuple. Raises ConfigError if there is something else among them."""
    given = tuple(deployments) if isinstance(deployments, Iterable) else (deployments,)
    for deployment in given:
        if not isinstance(deployment, Deployment):
            raise ConfigError(
                f"a runtime takes Deployments, as `deploy` returns; got {reprlib.repr(deployment)}"
            )
    return given


async def _joined(address: str) -> RayCluster:
    """Join a Ray cluster. Raises ConfigError if Ray is missing, or no cluster answers."""
    from stretto.runtime.instances.ray import RayCluster

    cluster = RayCluster(address)
    await cluster.join()
    return cluster
