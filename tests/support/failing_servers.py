"""An observer of the calls of LLM servers that fail, whichever driver runs them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from stretto.cluster.messages import StopInstance
from stretto.model.tasks import Done, Failed
from stretto.sched.actions import Action, Admit, Reply
from stretto.sched.engine_events import InstanceLost, InstanceReady, InstanceSuspected, LLMReport
from stretto.sched.messages import Event
from stretto.sched.observer import Observer


@dataclass
class CallWatch(Observer):
    """An observer that notes what happens to calls, and what suspects get while another instance serves."""

    known_s: dict[str, float] = field(default_factory=dict)
    again_s: dict[str, float] = field(default_factory=dict)
    ended_s: dict[str, float] = field(default_factory=dict)
    serving: set[int] = field(default_factory=set)
    num_at_suspects: int = 0
    num_failures: Counter[tuple[str, int]] = field(default_factory=Counter)  # by call and instance
    _running: dict[int, tuple[str, int]] = field(default_factory=dict)

    def on_event(self, event: Event, now_s: float) -> None:
        match event:
            case InstanceReady(_, instance):
                self.serving.add(instance)
            case InstanceSuspected(_, instance):
                self.serving.discard(instance)
            case InstanceLost(_, instance):
                self._lose(instance, now_s)
            case LLMReport(_, _, Done(task)):
                self._running.pop(task, None)
            case LLMReport(_, _, Failed(task)):
                self._fail(*self._running.pop(task), now_s)

    def on_action(self, action: Action, now_s: float) -> None:
        match action:
            case Admit(_, instance, task):
                self.num_at_suspects += instance not in self.serving and bool(self.serving)
                self._running[task.id] = task.query, instance
                if task.query in self.known_s:
                    self.again_s[task.query] = now_s
            case StopInstance(_, instance, "kill"):
                self._lose(instance, now_s)
            case Reply(query):
                self.ended_s[query] = now_s

    @property
    def longest_s(self) -> float:
        """Longest time from a known failure to the end of its call."""
        return max((self.ended_s[query] - known_s for query, known_s in self.known_s.items()), default=0.0)

    def _lose(self, instance: int, now_s: float) -> None:
        self.serving.discard(instance)
        for task in [task for task, (_, at) in self._running.items() if at == instance]:
            self._fail(*self._running.pop(task), now_s)

    def _fail(self, query: str, instance: int, now_s: float) -> None:
        self.known_s[query] = now_s
        self.num_failures[query, instance] += 1
