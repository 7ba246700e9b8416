"""An instance that sends its requests to an LLM server, with one asyncio task for each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence

from stretto.cluster.kv_events import KVEvent
from stretto.cluster.messages import KVReport
from stretto.engines.contract import AsyncLLM
from stretto.model.errors import BadReply, EngineBusy, EngineTimeout, EngineUnavailable, StrettoError
from stretto.model.foreign import raised, typed
from stretto.model.tasks import Done, Failed, LLMEvent, LLMTask
from stretto.runtime.instances.instance import Post
from stretto.runtime.probing import ProbeTimes, asked_rest_s, is_suspicious
from stretto.runtime.worker import (
    AdmitTask,
    Command,
    InstanceJob,
    StopTask,
    SuspendTasks,
    check_event,
    died,
    not_started,
)
from stretto.sched.engine_events import AllSuspended, InstanceReady, InstanceSuspected, LLMReport, Suspended

_ANSWER_S = 10.0
"""Seconds in which a server that has been silent must answer a health check."""


class ServerInstance:
    """An instance of an LLM engine that sends its requests to an LLM server.

    A request that finds the server unavailable, or that another server might answer better, makes the
    instance suspect. Then the server is asked, ever less often, whether it answers again; not
    before the time is over for which it has asked to be left alone.

    A server that says nothing for `quiet_s` seconds of its configuration, though it has requests, is asked,
    too. If it does not answer, it hangs, and all its requests fail at once: they need not wait for their own
    time limits.
    """

    def __init__(self, job: InstanceJob, post: Post) -> None:
        self._job = job
        self._post = post
        self._quiet_s: float | None = getattr(job.config, "quiet_s", None)
        self._heard_s = 0.0
        self._is_watched = False
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()
        self._is_suspect = False
        self._probe_times = ProbeTimes()
        self._engine: AsyncLLM | None = None
        try:
            self._engine = job.executable(job.config)
        except raised() as error:
            post(not_started(job, error))
        else:
            self._run(self._serve(self._engine))

    def send(self, command: Command) -> None:
        """Carry out a command, such as to send a task to the server or to stop one, without waiting for
        anything.
        """
        match command:
            case AdmitTask(task, rank) if self._engine is not None:
                if not self._tasks:
                    self._heard_s = asyncio.get_running_loop().time()
                self._tasks[task.id] = asyncio.create_task(self._generate(self._engine, task, rank))
                if self._quiet_s is not None and not self._is_watched:
                    self._is_watched = True
                    self._run(self._watch_silence(self._engine, self._quiet_s))
            case StopTask(task_id):
                if task_id in self._tasks:
                    self._abort(task_id)
            case SuspendTasks() if self._engine is not None:
                for task_id in list(self._tasks):
                    tokens = self._engine.written(task_id)
                    self._abort(task_id)
                    self._post(Suspended(self._job.engine, self._job.instance, task_id, tokens))
                self._post(AllSuspended(self._job.engine, self._job.instance))

    async def close(self) -> None:
        """Cancel every request to the server, and close the engine that talks to the server."""
        tasks = [*self._tasks.values(), *self._others]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._engine is not None:
            await self._engine.aclose()

    def kill(self) -> None:
        """Do nothing: `close`, which must follow, cancels every request."""

    def _abort(self, task_id: int) -> None:
        task = self._tasks.pop(task_id)
        self._keep(task)
        task.cancel()

    async def _serve(self, engine: AsyncLLM) -> None:
        """Start the engine and pass on what it reports, until it ends by itself."""
        try:
            await engine.start()
        except asyncio.CancelledError:
            raise
        except raised() as error:
            self._post(not_started(self._job, error))
            return
        self._post(InstanceReady(self._job.engine, self._job.instance))
        try:
            await engine.watch(self._report)
        except asyncio.CancelledError:
            raise
        except raised() as error:
            self._post(died(self._job, error))

    def _report(self, events: Sequence[KVEvent]) -> None:
        self._post(KVReport(self._job.engine, self._job.instance, events))

    async def _generate(self, engine: AsyncLLM, task: LLMTask, rank: tuple[float, ...]) -> None:
        has_ended = False

        def emit(event: LLMEvent) -> None:
            nonlocal has_ended
            self._heard_s = asyncio.get_running_loop().time()
            check_event(event)
            if event.task != task.id:
                raise BadReply(f"the engine answered task {event.task} instead of {task.id}")
            has_ended = has_ended or isinstance(event, Done | Failed)
            if isinstance(event, Failed) and is_suspicious(event.error, others_serve=task.others_serve):
                self._suspect(engine, event.error)
            elif isinstance(event, Done) and task.decode is not None:
                self._probe_times.worked()
            self._post(LLMReport(self._job.engine, self._job.instance, event))

        try:
            await engine.generate(task, emit, rank)
            if not has_ended:
                emit(Failed(task.id, BadReply("the engine ended without an answer")))
        except raised() as error:
            if self._tasks.get(task.id) is not asyncio.current_task():
                raise  # it was stopped, and nobody waits for it
            emit(Failed(task.id, typed(error)))
        finally:
            self._tasks.pop(task.id, None)

    async def _watch_silence(self, engine: AsyncLLM, quiet_s: float) -> None:
        """Ask a silent server whether it answers, as long as it has requests."""
        clock = asyncio.get_running_loop().time
        while self._tasks:
            if (left_s := self._heard_s + quiet_s - clock()) > 0:
                await asyncio.sleep(left_s)
                continue
            try:
                async with asyncio.timeout(_ANSWER_S):
                    await engine.probe()
            except EngineBusy:
                pass  # it has answered
            except (EngineUnavailable, EngineTimeout, TimeoutError) as error:
                reason = EngineTimeout(f"the server was silent for {quiet_s:g} s and answers no health check")
                reason.__cause__ = error
                self._lose_all(engine, reason)
            except raised():
                pass  # it has answered something
            self._heard_s = clock()
        self._is_watched = False

    def _lose_all(self, engine: AsyncLLM, reason: EngineTimeout) -> None:
        """Fail all requests at a server that hangs."""
        self._suspect(engine, reason)
        for task_id in list(self._tasks):
            self._abort(task_id)
            self._post(LLMReport(self._job.engine, self._job.instance, Failed(task_id, reason)))

    def _suspect(self, engine: AsyncLLM, error: StrettoError) -> None:
        seconds = asked_rest_s(error)
        self._probe_times.rest(asyncio.get_running_loop().time() + seconds)
        self._post(InstanceSuspected(self._job.engine, self._job.instance, error.message, seconds))
        if not self._is_suspect:
            self._is_suspect = True
            self._run(self._probe(engine))

    async def _probe(self, engine: AsyncLLM) -> None:
        times, clock = self._probe_times, asyncio.get_running_loop().time
        while self._is_suspect:
            due_s = times.next_s(clock(), random.uniform(1.0, 1.5))  # not all at once
            while (wait_s := max(due_s, times.rests_until_s) - clock()) > 0:
                await asyncio.sleep(wait_s)
            try:
                await engine.probe()
            except Exception:  # also a bug of the adapter: without probes it would be suspect for ever
                continue
            self._is_suspect = False
            self._post(InstanceReady(self._job.engine, self._job.instance))

    def _run(self, coroutine: Coroutine[None, None, None]) -> None:
        self._keep(asyncio.ensure_future(coroutine))

    def _keep(self, task: asyncio.Task[None]) -> None:
        """Keep a task, so that `close` waits for it."""
        self._others.add(task)
        task.add_done_callback(self._others.discard)
