"""The lengths of a run's answers, and how far the answers under way have come."""

from __future__ import annotations

from collections import Counter, defaultdict

from stretto.cluster.messages import InstanceId, StopInstance
from stretto.graph.one_call import node_of_step
from stretto.model.tasks import Done, Failed, Started
from stretto.sched.actions import Action, Admit, CancelTask
from stretto.sched.engine_events import InstanceLost, InstanceStopped, LLMReport, Suspended
from stretto.sched.messages import Event
from stretto.sched.observer import Observer


class AnswersWatch(Observer):
    """Notes the lengths of all answers of each node, and the calls under way.

    The step of a call is that of its node (`graph/one_call.py`).

    An answer is no longer under way when its call is taken off its instance, or the instance has ended: then
    the call begins again.

    Engines need not tell how many tokens they have generated. So an answer under way is taken to grow as fast
    as those of the same node that have ended.

    Attributes:
        lengths: number of answers of each length in tokens, by node.
    """

    def __init__(self) -> None:
        self.lengths: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._started: dict[str, dict[tuple[str, InstanceId, int], float]] = {}
        self._node_of: dict[tuple[str, int], str] = {}
        self._ended: dict[str, tuple[int, float]] = {}
        self._now_s = 0.0

    def running(self, node: str) -> list[int]:
        """Return about how many tokens each answer of a node under way has, in the order of their begins."""
        tokens, seconds = self._ended.get(node, (0, 0.0))
        rate = tokens / seconds if seconds > 0 else 0.0
        return [int((self._now_s - start_s) * rate) for start_s in self._started.get(node, {}).values()]

    def note(self, node: str, num_tokens: int) -> None:
        """Count an answer, which may be of an earlier run."""
        self.lengths[node][num_tokens] += 1

    def on_event(self, event: Event, now_s: float) -> None:
        """Note that an answer begins or ends, or is not under way any more."""
        self._now_s = now_s
        match event:
            case LLMReport():
                self._on_report(event, now_s)
            case Suspended(engine, instance, task):
                self._stop(engine, instance, task)
            case InstanceLost() | InstanceStopped():
                self._forget(event.engine, event.instance)

    def on_action(self, action: Action, now_s: float) -> None:
        """Note which calls are sent, and which answers are not under way any more without an event."""
        match action:
            case Admit(engine, _, task):
                self._node_of[engine, task.id] = node_of_step(task.step)
            case CancelTask(engine, instance, number):
                self._stop(engine, instance, number)
            case StopInstance(engine, instance, "kill"):
                self._forget(engine, instance)

    def _on_report(self, report: LLMReport, now_s: float) -> None:
        engine, instance = report.engine, report.instance
        match report.event:
            case Started(task):
                node = self._node_of[engine, task]
                self._started.setdefault(node, {})[engine, instance, task] = now_s
            case Done(task, _, usage):
                node = self._node_of[engine, task]
                self.note(node, usage.num_output_tokens)
                start_s = self._stop(engine, instance, task)
                if start_s is not None:
                    tokens, seconds = self._ended.get(node, (0, 0.0))
                    self._ended[node] = tokens + usage.num_output_tokens, seconds + now_s - start_s
                del self._node_of[engine, task]
            case Failed(task):
                self._stop(engine, instance, task)
                self._node_of.pop((engine, task), None)

    def _stop(self, engine: str, instance: InstanceId, task: int) -> float | None:
        """Note that an answer is not under way any more; return when it began, if it was."""
        started = self._started.get(self._node_of.get((engine, task), ""), {})
        return started.pop((engine, instance, task), None)

    def _forget(self, engine: str, instance: InstanceId) -> None:
        """Forget the answers under way at an instance that has ended."""
        for started in self._started.values():
            for key in [key for key in started if key[:2] == (engine, instance)]:
                del started[key]
