"""The loops that run inside an instance: one for batch engines, one for stepped LLM engines.

The same loops serve threads and processes; only the way of commands and events differs. A worker constructs
its engine, posts `InstanceReady`, obeys commands until `CloseEngine`, and closes its engine.
"""

from __future__ import annotations

import contextlib
import reprlib
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from stretto.cluster.messages import KVReport
from stretto.engines.contract import BatchEngine, ProbedEngine, RetainingLLM, SteppedLLM, StoppableEngine
from stretto.engines.processor import COMPUTING
from stretto.model.errors import BadReply, EngineUnavailable, StrettoError
from stretto.model.foreign import described, typed
from stretto.model.record import record
from stretto.model.references import load_task
from stretto.model.tasks import Done, Failed, LLMTask, Piece, Reuse, Started, Task
from stretto.runtime.probing import ProbeTimes, Probing, asked_rest_s, is_suspicious
from stretto.sched.engine_events import (
    AllSuspended,
    BatchDone,
    BatchFailed,
    InstanceLost,
    InstanceReady,
    InstanceSuspected,
    LLMReport,
    Suspended,
)
from stretto.sched.messages import Event
from stretto.sched.queries.results import checked_results


@record
class RunBatch:
    """Command to an instance of a batch engine: run a batch, and answer with the event `BatchDone` or
    `BatchFailed`.
    """

    batch: int
    tasks: tuple[Task, ...]


@record
class AdmitTask:
    """Command to an LLM instance: put a task into its queue with the sort key `rank` (smaller goes first),
    and report on it with events `LLMReport`.
    """

    task: LLMTask
    rank: tuple[float, ...]


@record
class RerankTask:
    """Command to an LLM instance: change the rank of a task that has not started."""

    task: int
    rank: tuple[float, ...]


@record
class StopTask:
    """Command to an instance: stop a task, and report nothing more about it. Instances of batch engines in
    threads leave it out of their batch if their engine can; all others run it to its end.
    """

    task: int


@record
class SuspendTasks:
    """Command to an LLM instance: stop all tasks, and answer with an event `Suspended` for each, which has
    the tokens generated so far, and an event `AllSuspended` at the end.

    No other command than `CloseEngine` follows.
    """


@record
class ForgetQuery:
    """Command to an instance: a query has ended, so free what the engine keeps for it."""

    query: str


@record
class RetainPrefixes:
    """Command to an LLM instance: note when a query will need cached prefixes again."""

    reuse: Reuse


@record
class CloseEngine:
    """Command to an instance: close the engine and end."""


Command: TypeAlias = (
    RunBatch | AdmitTask | RerankTask | StopTask | SuspendTasks | ForgetQuery | RetainPrefixes | CloseEngine
)


class Inbox(Protocol):
    """The interface of a source of commands for an instance."""

    def get(self) -> Command:
        """Wait for the next command to the instance, and return it."""
        ...

    def empty(self) -> bool:
        """Return whether no command waits, so that `get` would wait for one."""
        ...


@record
class InstanceJob:
    """The orders for a new instance: the engine to construct, and the names under which it sends events."""

    engine: str
    instance: int
    is_llm: bool
    executable: Callable[[Any], Any]
    config: object


class StoppedTasks:
    """The tasks of an instance of a batch engine whose answers nobody wants any more.

    The event loop adds tasks to it, and the engine's thread asks while it runs a batch.
    """

    def __init__(self) -> None:
        self._tasks: set[int] = set()

    def __contains__(self, task: object) -> bool:
        return task in self._tasks

    def add(self, task: int) -> None:
        """Add a task of the batch that runs, or is about to."""
        self._tasks.add(task)

    def clear(self) -> None:
        """Forget all tasks, because their batch has ended."""
        self._tasks.clear()


def run_instance(
    job: InstanceJob, inbox: Inbox, post: Callable[[Event], None], stopped: StoppedTasks | None = None
) -> None:
    """Run an instance from its start to its end: construct its engine and carry out the commands from
    `inbox`.

    A batch engine that can stop tasks in mid-batch asks `stopped` which ones.

    Nothing is raised: errors are posted as events.
    """
    try:
        engine = job.executable(job.config)
    except BaseException as error:
        post(not_started(job, error))
        return
    post(InstanceReady(job.engine, job.instance))
    try:
        if job.is_llm:
            _serve_llm(job, engine, inbox, post)
        else:
            _serve_batches(job, engine, inbox, post, stopped or StoppedTasks())
    except BaseException as error:
        post(died(job, error))
    COMPUTING.end()
    with contextlib.suppress(Exception):  # nobody waits for it any more
        engine.close()


def not_started(job: InstanceJob, error: BaseException) -> InstanceLost:
    """Return the event that an instance is lost because its engine could not be constructed."""
    return InstanceLost(job.engine, job.instance, typed(error))


def died(job: InstanceJob, error: BaseException) -> InstanceLost:
    """Return the event that an instance is lost because its engine has raised `error`."""
    unavailable = EngineUnavailable(f"{job.engine}/{job.instance} died: {described(error)}")
    unavailable.__cause__ = error
    return InstanceLost(job.engine, job.instance, unavailable)


def _serve_batches(
    job: InstanceJob, engine: BatchEngine, inbox: Inbox, post: Callable[[Event], None], stopped: StoppedTasks
) -> None:
    probing: Probing | None = None
    if isinstance(engine, StoppableEngine):
        engine.heed(stopped.__contains__)
    times = ProbeTimes()
    while True:
        if probing is not None and probing.has_answered(inbox):
            probing = None
            post(InstanceReady(job.engine, job.instance))
        match inbox.get():
            case RunBatch(batch, tasks):
                COMPUTING.begin()
                event = run_batch(job, engine, batch, tasks)
                COMPUTING.end()
                stopped.clear()
                if (trouble := _trouble(event, tasks)) is None:
                    times.worked()
                elif isinstance(engine, ProbedEngine):
                    seconds = asked_rest_s(trouble)
                    times.rest(time.monotonic() + seconds)
                    post(InstanceSuspected(job.engine, job.instance, trouble.message, seconds))
                    probing = Probing(engine, times)
                post(event)
                del batch, tasks, event, trouble  # an instance that waits keeps no documents alive
            case ForgetQuery(query):
                engine.release(query)
            case CloseEngine():
                return


def _trouble(event: Event, tasks: tuple[Task, ...]) -> StrettoError | None:
    """Return why a batch failed, if its instance may be down; else None."""
    others_serve = any(task.others_serve for task in tasks)
    match event:
        case BatchFailed(error=error) if is_suspicious(error, others_serve=others_serve):
            return error
    return None


def run_batch(job: InstanceJob, engine: BatchEngine, batch: int, tasks: tuple[Task, ...]) -> Event:
    """Fetch the values that the tasks refer to, and run them on an engine as one batch; return the event that
    reports its results (`BatchDone`) or its failure (`BatchFailed`).
    """
    try:
        results = checked_results(engine.run(tuple(map(load_task, tasks))), len(tasks))
        return BatchDone(job.engine, job.instance, batch, results)
    except Exception as error:
        return BatchFailed(job.engine, job.instance, batch, typed(error))


def _serve_llm(job: InstanceJob, engine: SteppedLLM, inbox: Inbox, post: Callable[[Event], None]) -> None:
    while True:
        while not engine.has_work() or not inbox.empty():
            if not engine.has_work():
                COMPUTING.end()
            match inbox.get():
                case AdmitTask(task, rank):
                    engine.admit(task, rank)
                    del task  # the engine keeps it as long as it needs it
                case RerankTask(task_id, rank):
                    engine.reprioritise(task_id, rank)
                case StopTask(task_id):
                    engine.cancel(task_id)
                case SuspendTasks():
                    for suspended, token_ids in engine.suspend():
                        post(Suspended(job.engine, job.instance, suspended, token_ids))
                    post(AllSuspended(job.engine, job.instance))
                case ForgetQuery(query):
                    engine.release(query)
                case RetainPrefixes(reuse):
                    if isinstance(engine, RetainingLLM):
                        engine.retain(reuse)
                case CloseEngine():
                    return
            _report_kv(job, engine, post)
        COMPUTING.begin()
        for event in engine.step():
            check_event(event)
            post(LLMReport(job.engine, job.instance, event))
        _report_kv(job, engine, post)


def _report_kv(job: InstanceJob, engine: SteppedLLM, post: Callable[[Event], None]) -> None:
    if events := engine.take_kv_events():
        post(KVReport(job.engine, job.instance, events))


def check_event(event: object) -> None:
    """Check that a value that an LLM engine has sent is one of the events of an LLM, with the right types, as
    schedulers rely on its contents.

    Raises:
        BadReply: the value is not an event of an LLM.
    """
    match event:
        case Started(int()) | Piece(int(), str()) | Done(int()) | Failed(int(), StrettoError()):
            return
    raise BadReply(f"the engine returned {reprlib.repr(event)}, which is not an event")
