"""How long replicas that are ready have nothing to do while calls of their node wait."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from stretto.cluster.messages import StartInstance
from stretto.model.tasks import Done, Failed
from stretto.sched.actions import Action, Admit, CancelTask, Reply
from stretto.sched.engine_events import (
    Drain,
    InstanceLost,
    InstanceReady,
    InstanceStopped,
    LLMReport,
    Suspended,
)
from stretto.sched.messages import Event, Submit
from stretto.sched.observer import Observer

_Key = tuple[str, int]


@dataclass(slots=True)
class _Instance:
    """A replica that has been started.

    Attributes:
        weight: number of its devices.
        is_ready: whether it can take calls: it has started, and is not drained.
        tasks: calls that it has.
    """

    weight: int
    is_ready: bool = False
    tasks: set[int] = field(default_factory=set)


class IdleWatch(Observer):
    """Adds up the seconds in which replicas could work and do not.

    Attributes:
        idle_s: seconds in which a replica that is ready has no call while calls of its node wait for one,
            times the replica's devices.
    """

    def __init__(self) -> None:
        self.idle_s = 0.0
        self._instances: dict[_Key, _Instance] = {}
        self._engine_of: dict[str, str] = {}
        self._open: Counter[str] = Counter()
        self._now_s: float | None = None

    def on_event(self, event: Event, now_s: float) -> None:
        """Note what has happened."""
        self._advance(now_s)
        match event:
            case Submit(query, egraph):
                self._engine_of[query] = engine = egraph.nodes[0].engine or ""
                self._open[engine] += 1
            case InstanceReady(engine, instance):
                self._instances[engine, instance].is_ready = True
            case Drain(engine, instance):
                self._instances[engine, instance].is_ready = False
            case InstanceLost(engine, instance) | InstanceStopped(engine, instance):
                self._instances.pop((engine, instance), None)
            case LLMReport(engine, instance, Done(task) | Failed(task)):
                self._drop((engine, instance), task)
            case Suspended(engine, instance, task):
                self._drop((engine, instance), task)

    def on_action(self, action: Action, now_s: float) -> None:
        """Note what is done."""
        self._advance(now_s)
        match action:
            case StartInstance(engine, instance, replica):
                self._instances[engine, instance] = _Instance(replica.tp)
            case Admit(engine, instance, task):
                self._instances[engine, instance].tasks.add(task.id)
            case CancelTask(engine, instance, number):
                self._drop((engine, instance), number)
            case Reply(query):
                if query in self._engine_of:
                    self._open[self._engine_of.pop(query)] -= 1

    def _drop(self, key: _Key, task: int) -> None:
        if key in self._instances:
            self._instances[key].tasks.discard(task)

    def _advance(self, now_s: float) -> None:
        """Let the time since the last message pass."""
        passed_s = 0.0 if self._now_s is None else now_s - self._now_s
        self._now_s = now_s
        if not passed_s:
            return
        waiting = self._open.copy()
        for (engine, _), one in self._instances.items():
            waiting[engine] -= len(one.tasks)
        for (engine, _), one in self._instances.items():
            if one.is_ready and not one.tasks and waiting[engine] > 0:
                self.idle_s += passed_s * one.weight
