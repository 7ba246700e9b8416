"""The loop between the schedulers and everything that runs, in a runtime.

It feeds the schedulers events and carries out their actions (what they decide). Nothing
polls: an event wakes it, or a timer that the schedulers asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from stretto.cluster.messages import KVReport, StartInstance, StopInstance
from stretto.graph.execution_graph import ExecutionGraph
from stretto.model.foreign import bug_of, raised, typed
from stretto.model.references import load_inputs, load_references
from stretto.model.replica import Engine
from stretto.model.tasks import Done, Failed
from stretto.model.values import Failure
from stretto.runtime.running import RunningInstances
from stretto.runtime.worker import AdmitTask, ForgetQuery, RerankTask, RetainPrefixes, RunBatch, StopTask
from stretto.sched.actions import (
    Action,
    Admit,
    CancelTask,
    Emit,
    Release,
    Reply,
    Reprioritise,
    Retain,
    Settled,
    StartBatch,
    WakeAt,
)
from stretto.sched.engine_events import BatchFailed, InstanceLost, LLMReport
from stretto.sched.messages import Cancel, Event, Extend, Wake
from stretto.sched.observer import Observers
from stretto.sched.system import System

if TYPE_CHECKING:
    from stretto.runtime.instances.ray import RayCluster

_log = logging.getLogger(__name__)

_MAX_TURN_S = 0.005
_MAX_STEPS = 128
"""Largest number of steps that begin or go on at one instant, but for those of one graph: some ms of work."""
_END_STEPS = 8
"""Number of steps that the end of an LLM request is as much work as, with the admission of the next one."""
_STEP_INPUTS = 16
"""Number of inputs of a graph that are as much work as a step."""
_STEP_PARTS = 128
"""Number of parts of the prompts of a graph that are as much work as a step."""
_MAX_EVENTS = 512
"""Largest number of events that are handled at one instant: some ms of work."""
_MAX_ACTIONS = 256
"""Largest number of actions between two looks at the clock."""


class Pump:
    """The main loop of a runtime: it feeds events to the schedulers and carries out their
    actions (what they decide), on one event loop of asyncio.

    Args:
        answer: called with actions that concern callers: more text, a variable's value, or the end of a
            query.
        break_down: called once with an exception that the schedulers raised; no event is handled after that.
        watch: called with every event that an instance sends, and with the end of every instance that the
            schedulers have given up.
        cluster: Ray cluster for replicas that run there.
    """

    def __init__(
        self,
        system: System,
        engines: Mapping[str, Engine],
        observers: Observers,
        loop: asyncio.AbstractEventLoop,
        *,
        answer: Callable[[Emit | Settled | Reply], None],
        break_down: Callable[[BaseException], None],
        watch: Callable[[Event | StopInstance], None],
        cluster: RayCluster | None = None,
    ) -> None:
        self._system = system
        self._observers = observers
        self._loop = loop
        self._answer = answer
        self._break_down = break_down
        self._watch = watch
        self._inbox: list[Event] = []
        self._actions: deque[Action] = deque()
        self._handled_s = 0.0
        self._is_observed = False
        self._is_pumping = False
        self._has_stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._instances = RunningInstances(
            engines, self._post_from_instance, loop, system.engines.follows_prefixes, cluster
        )

    def post(self, event: Event) -> None:
        """Add an event to the inbox. Events are handed to the schedulers soon, in the
        order in which they were posted.
        """
        self._inbox.append(event)
        if not self._is_pumping:
            self._is_pumping = True
            self._loop.call_soon(self._pump)

    @property
    def waiting(self) -> Sequence[Event]:
        """The events that have been posted and not yet handed to the schedulers."""
        return tuple(self._inbox)

    def drain(self) -> None:
        """Hand all posted events to the schedulers now, and also those that are posted while this is done."""
        while (self._inbox or self._actions) and not self._has_stopped:
            self._pump()

    async def close(self) -> None:
        """Stop handling events and end every instance."""
        self._stop()
        await self._instances.close()

    def _post_from_instance(self, event: Event) -> None:
        self._watch(event)
        self.post(event)

    def _pump(self) -> None:
        """Handle events until there are none, or until others on the loop should have a turn."""
        if self._has_stopped:
            return
        self._is_pumping = True
        now_s = self._loop.time()
        turn_ends_s = now_s + _MAX_TURN_S
        while (self._inbox or self._actions) and now_s < turn_ends_s:
            try:
                if not self._actions:
                    self._handle(now_s)
            except raised() as error:
                self._stop()
                self._break_down(error)
                return
            self._carry_out_some()
            now_s = self._loop.time()
        self._is_pumping = bool(self._inbox or self._actions)
        if self._is_pumping:
            self._loop.call_soon(self._pump)

    def _handle(self, now_s: float) -> None:
        """Hand the next events to the schedulers, and keep the actions to be carried out."""
        events = self._next_events()
        self._handled_s = now_s
        self._is_observed = self._observers.are_any
        if self._is_observed:
            for event in events:
                if isinstance(event, KVReport):
                    self._observers.on_kv(event.engine, event.instance, event.events, now_s)
                self._observers.on_event(event, now_s)
        self._actions.extend(self._system.handle(events, now_s))

    def _carry_out_some(self) -> None:
        """Carry out actions, in order, at most so many that others have a turn soon."""
        actions, is_observed = self._actions, self._is_observed
        for _ in range(_MAX_ACTIONS):
            if not actions:
                break
            action = actions.popleft()
            if is_observed:
                self._observers.on_action(action, self._handled_s)
            try:
                self._carry_out(action)
            except raised() as error:
                self._not_carried_out(action, error)

    def _next_events(self) -> list[Event]:
        """Take the events that are handled next out of the inbox: only so many that others have a turn soon.
        Graphs that are added to sessions and reports of LLMs count most.
        """
        events = self._inbox
        if len(events) == 1:
            self._inbox = []
            return events
        num_steps = 0
        for place, event in enumerate(events):
            if isinstance(event, Extend):
                num_steps += _num_steps(event.egraph)
            elif isinstance(event, LLMReport):
                num_steps += _END_STEPS if isinstance(event.event, Done | Failed) else 1
            if (num_steps > _MAX_STEPS and place) or place >= _MAX_EVENTS:
                self._inbox = events[place:]
                return events[:place]
        self._inbox = []
        return events

    def _carry_out(self, action: Action) -> None:
        match action:
            case StartBatch():
                self._instances.send(action.engine, action.instance, RunBatch(action.batch, action.tasks))
            case Admit():
                self._instances.send(action.engine, action.instance, AdmitTask(action.task, action.rank))
            case Emit() | Settled() | Reply():
                self._answer(_with_values(action))
            case Reprioritise(engine, instance, task_id, rank):
                self._instances.send(engine, instance, RerankTask(task_id, rank))
            case CancelTask(engine, instance, task_id):
                self._instances.send(engine, instance, StopTask(task_id))
            case Release(engine, instance, query):
                self._instances.send(engine, instance, ForgetQuery(query))
            case Retain(engine, instance, reuse):
                self._instances.send(engine, instance, RetainPrefixes(reuse))
            case StartInstance():
                self._instances.start(action)
            case StopInstance():
                self._instances.stop(action)
                self._watch(action)
            case WakeAt(time_s):
                self._wake_at(time_s)

    def _not_carried_out(self, action: Action, error: BaseException) -> None:
        """Fail what an action was for, when carrying it out has raised something: the last fence, behind all
        others.
        """
        _log.error("%s was not carried out", type(action).__name__, exc_info=error)
        match action:
            case StartBatch(engine, instance, batch):
                self.post(BatchFailed(engine, instance, batch, typed(error)))
            case Admit(engine, instance, task):
                self.post(LLMReport(engine, instance, Failed(task.id, typed(error))))
            case Emit(query) | Settled(query):
                self.post(Cancel(query, bug_of(error)))
            case StartInstance() | StopInstance():
                self.post(InstanceLost(action.engine, action.instance, typed(error)))
            case _:
                pass  # the caller has its answer, or it was a hint

    def _wake_at(self, time_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(time_s, self.post, Wake())

    def _stop(self) -> None:
        self._has_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _with_values(action: Emit | Settled | Reply) -> Emit | Settled | Reply:
    """Return an action for a caller with the values that it refers to; one that is lost is a failure."""
    try:
        match action:
            case Settled(query, name, value):
                loaded = load_references(value)
                return action if loaded is value else Settled(query, name, loaded, action.usage)
            case Reply(query, outputs, None) if outputs:
                return Reply(query, load_inputs(outputs), None, action.usage, action.endings)
    except raised() as error:
        if isinstance(action, Settled):
            return replace(action, value=Failure(typed(error)))
        return Reply(action.query, None, typed(error))
    return action


def _num_steps(egraph: ExecutionGraph) -> int:
    """Return the number of usual steps that adding a graph to a session is as much work as."""
    num_parts = sum([len(node.prompt) for node in egraph.nodes])
    return len(egraph.nodes) + len(egraph.inputs) // _STEP_INPUTS + num_parts // _STEP_PARTS
