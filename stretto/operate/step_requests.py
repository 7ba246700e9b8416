"""The requests of a runtime's steps to its engines, as other observers of a door see requests."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from stretto.cluster.messages import InstanceId, StopInstance
from stretto.cluster.placement import Choice
from stretto.model.tasks import Done, Failed, LLMTask, Piece, Task
from stretto.sched.actions import Action, Admit, CancelTask, Reply, StartBatch
from stretto.sched.engine_events import (
    BatchDone,
    BatchFailed,
    InstanceLost,
    InstanceStopped,
    LLMReport,
    Suspended,
)
from stretto.sched.messages import Event, Extend, Open, Provide, Submit
from stretto.sched.observer import Observer, Observers
from stretto.sched.request_trace import Door, RequestTrace, Try

_Place = tuple[str, InstanceId]
_LEFT, _FAILED = 499, 502
"""Statuses of what was cancelled, and of what has failed at an engine."""


@dataclass(slots=True)
class _Query:
    """A query that runs.

    Attributes:
        program: the program that it is a part of, or its own name.
        last_s: when a step of it ended last, or when it came: what begins later has waited since then.
    """

    door: Door
    tenant: str
    program: str
    deadline_s: float | None
    last_s: float


class StepRequests(Observer):
    """An observer of a runtime, which shows others a trace of each task of an engine.

    What one step of a query has waited is counted from the end of the step before it. Errors are shown by
    their names alone, since their messages may quote answers.

    Args:
        observers: receivers of the traces.
        apart: engines whose requests are seen elsewhere.
    """

    def __init__(self, observers: Observers, apart: Collection[str] = ()) -> None:
        self._observers = observers
        self._apart = apart
        self._queries: dict[str, _Query] = {}
        self._tasks: dict[_Place, dict[int, RequestTrace]] = {}
        self._batches: dict[tuple[str, InstanceId, int], list[int]] = {}
        self._of_query: dict[int, str] = {}

    def on_event(self, event: Event, now_s: float) -> None:
        """Follow queries, and the tasks that begin to answer, end or fail."""
        match event:
            case LLMReport(engine, instance, report):
                self._on_report((engine, instance), report, now_s)
            case BatchDone(engine, instance, batch):
                self._end_batch((engine, instance, batch), now_s, 200, "")
            case BatchFailed(engine, instance, batch, error):
                self._end_batch((engine, instance, batch), now_s, _FAILED, type(error).__name__)
            case Submit(query):
                self._queries[query] = _Query(
                    "apps", event.tenant, event.program or query, event.deadline_s, now_s
                )
            case Open(query, record):
                self._queries[query] = _Query(
                    "programs", record.tenant, record.program or query, record.deadline_s, now_s
                )
            case Extend(query) | Provide(query):
                if (found := self._queries.get(query)) is not None:
                    found.last_s = now_s  # what the client was busy with is no wait
            case Suspended(engine, instance, task):
                self._end((engine, instance), task, now_s, 0, "it goes on at another instance")
            case InstanceLost(engine, instance, error):
                self._end_all((engine, instance), now_s, type(error).__name__)
            case InstanceStopped(engine, instance):
                self._end_all((engine, instance), now_s, "the instance was stopped")

    def on_action(self, action: Action, now_s: float) -> None:
        """Follow the tasks that are sent to an engine, and the ends of queries."""
        match action:
            case Admit(engine, instance, task):
                if engine not in self._apart:
                    choice = Choice(instance, action.held_tokens, action.terms, action.reason)
                    self._begin(
                        engine, choice, task, "decode" if task.decode else "prefill", now_s, action.held_s
                    )
            case StartBatch(engine, instance, batch, tasks):
                self._batches[engine, instance, batch] = [one.id for one in tasks]
                for one in tasks:
                    self._begin(engine, Choice(instance), one, one.op, now_s)
            case CancelTask(engine, instance, task_id):
                self._end((engine, instance), task_id, now_s, _LEFT, "it is not wanted any more")
            case StopInstance(engine, instance, "kill"):
                self._end_all((engine, instance), now_s, "the instance has not answered in time")
            case Reply(query):
                self._queries.pop(query, None)

    def _begin(
        self,
        engine: str,
        choice: Choice,
        task: Task | LLMTask,
        operation: str,
        now_s: float,
        held_s: float = 0.0,
    ) -> None:
        query = self._queries.get(task.query)
        if query is None:
            return
        waited_s = now_s - query.last_s
        trace = RequestTrace(
            f"{task.query}/{task.id}",
            operation,
            now_s - waited_s,
            query.door,
            query.tenant,
            query.program,
            task.step,
            engine,
            is_listed=True,
            placed_s=now_s,
            deadline_s=query.deadline_s,
        )
        name = f"{engine}/{choice.instance}"
        why = "its program has no room" if held_s else "its turn"
        trace.tries.append(
            Try(
                choice.instance, name, choice, now_s, waited_s, min(held_s, waited_s), why if waited_s else ""
            )
        )
        self._tasks.setdefault((engine, choice.instance), {})[task.id] = trace
        self._of_query[task.id] = task.query
        self._observers.on_request_arrived(trace, now_s)

    def _on_report(self, place: _Place, report: object, now_s: float) -> None:
        match report:
            case Piece(task):
                trace = self._tasks.get(place, {}).get(task)
                if trace is not None and trace.first_token_s is None:
                    trace.first_token_s = now_s
            case Done(task, usage=usage):
                trace = self._tasks.get(place, {}).get(task)
                if trace is not None:
                    trace.prompt_tokens = usage.num_prompt_tokens
                    trace.cached_tokens = usage.num_cached_tokens
                    trace.output_tokens = usage.num_output_tokens
                self._end(place, task, now_s, 200, "")
            case Failed(task, error):
                self._end(place, task, now_s, _FAILED, type(error).__name__)

    def _end_batch(self, batch: tuple[str, InstanceId, int], now_s: float, status: int, error: str) -> None:
        for task in self._batches.pop(batch, ()):
            self._end(batch[:2], task, now_s, status, error)

    def _end(self, place: _Place, task: int, now_s: float, status: int, error: str) -> None:
        trace = self._tasks.get(place, {}).pop(task, None)
        if trace is None:
            return
        if (query := self._queries.get(self._of_query.pop(task))) is not None:
            query.last_s = now_s
        if error:
            trace.failed(error)
        trace.error = error
        trace.end(status, now_s)
        self._observers.on_request_ended(trace, now_s)

    def _end_all(self, place: _Place, now_s: float, error: str) -> None:
        """End all tasks of an instance, which has ended with them."""
        for task in list(self._tasks.get(place, ())):
            self._end(place, task, now_s, _FAILED, error)
        self._tasks.pop(place, None)
        for batch in [batch for batch in self._batches if batch[:2] == place]:
            del self._batches[batch]

    def check_invariants(self) -> None:
        """Check that what runs has a query that it belongs to. For tests."""
        running = {task for tasks in self._tasks.values() for task in tasks}
        assert running == self._of_query.keys()
