"""Rules that must hold while instances come and go, whichever driver runs them."""

from __future__ import annotations

from collections import Counter

from stretto.cluster.messages import StartInstance, StopInstance
from stretto.model.tasks import Done, Failed
from stretto.sched.actions import Action, Admit, CancelTask, Reply, StartBatch
from stretto.sched.engine_events import (
    BatchDone,
    BatchFailed,
    Drain,
    InstanceLost,
    InstanceReady,
    InstanceStopped,
    InstanceSuspected,
    LLMReport,
    Suspended,
)
from stretto.sched.messages import Event, Submit
from stretto.sched.observer import Observer

Key = tuple[str, int]


class FleetWatch(Observer):
    """An observer that follows every instance from its start to its end, by messages alone.

    Work goes to instances that serve; while none does, one request at a time to suspect ones. An instance
    that finishes runs nothing when it is stopped. No id is used twice, and every query ends once.

    Attributes:
        state: "starting", "serving", "suspect", "draining" or "gone", of every instance there ever was.
        reached: number of starts, and of ends by their kind.
    """

    def __init__(self) -> None:
        self.state: dict[Key, str] = {}
        self.reached = Counter[str]()
        self.submitted: list[str] = []
        self.replies: dict[str, Reply] = {}
        self._running: dict[Key, set[int]] = {}
        self._has_served: set[Key] = set()

    def on_event(self, event: Event, now_s: float) -> None:
        match event:
            case Submit(query):
                self.submitted.append(query)
            case InstanceReady(engine, instance):
                self._become((engine, instance), "serving")
            case InstanceSuspected(engine, instance):
                if (engine, instance) in self._has_served:
                    self._become((engine, instance), "suspect")
                    self.reached["suspected"] += 1
            case Drain(engine, instance, how):
                if (engine, instance) not in self.state:  # it waited to be started
                    self.state[engine, instance] = "gone"
                    self._running[engine, instance] = set()
                elif self.state[engine, instance] not in ("draining", "gone"):
                    self.state[engine, instance] = "draining"
                    self.reached[f"drained: {how}"] += 1
            case InstanceLost(engine, instance):
                self._go((engine, instance), "lost")
            case InstanceStopped(engine, instance):
                self._go((engine, instance), "stopped")
            case BatchDone(engine, instance, number) | BatchFailed(engine, instance, number):
                self._end((engine, instance), number)
            case LLMReport(engine, instance, Done(number) | Failed(number)):
                self._end((engine, instance), number)
            case Suspended(engine, instance, number):
                self._end((engine, instance), number)
                self.reached["suspended"] += 1

    def on_action(self, action: Action, now_s: float) -> None:
        match action:
            case StartInstance(engine, instance):
                assert (engine, instance) not in self.state, "an id was used twice"
                self.state[engine, instance] = "starting"
                self._running[engine, instance] = set()
                self.reached["started"] += 1
            case StopInstance(engine, instance, how):
                if how == "finish":
                    assert not self._running[engine, instance], f"{engine}/{instance} was busy at its end"
                if how == "kill":
                    self._go((engine, instance), "killed")
            case StartBatch(engine, instance, number):
                assert self.state[engine, instance] == "serving", (engine, instance)
                assert not self._running[engine, instance], "one batch at a time"
                self._running[engine, instance].add(number)
            case Admit(engine, instance, task):
                if self.state[engine, instance] != "serving":
                    assert self.state[engine, instance] == "suspect"
                    assert not self._running[engine, instance], "one request at a time"
                    assert not self.of(engine, "serving"), "a suspect gets what no other can take"
                self._running[engine, instance].add(task.id)
            case CancelTask(engine, instance, number):
                self._end((engine, instance), number)
            case Reply(query):
                assert query not in self.replies, f"{query} ended twice"
                self.replies[query] = action

    def of(self, engine: str, *states: str) -> list[int]:
        """Return the instances of an engine that are in one of these states, oldest first."""
        return [i for (name, i), state in self.state.items() if name == engine and state in states]

    def check_end(self) -> None:
        """Check that every query has ended, and that nothing of it runs."""
        assert sorted(self.replies) == sorted(self.submitted)
        running = {key: left for key, left in self._running.items() if left and self.state[key] != "gone"}
        assert not any(running.values()), running

    def _become(self, key: Key, state: str) -> None:
        if self.state[key] not in ("draining", "gone"):
            self.state[key] = state
            self._has_served.add(key)

    def _go(self, key: Key, how: str) -> None:
        if self.state.get(key, "gone") != "gone":
            self.state[key] = "gone"
            self._running[key].clear()
            self.reached[how] += 1

    def _end(self, key: Key, number: int) -> None:
        self._running[key].discard(number)
