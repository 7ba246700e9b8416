"""A driver for one in-process LLM engine whose clock counts the engine's steps."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.engines.contract import SteppedLLM
from stretto.model.deployment import Deployment
from stretto.sched.actions import Action, Admit, CancelTask, Release, Reply, Reprioritise
from stretto.sched.engine_events import AddInstance, InstanceReady, LLMReport
from stretto.sched.messages import Event, Submit
from stretto.sched.system import System


class SteppingDriver:
    """A driver in which every step takes `step_s`, whatever it computes."""

    def __init__(self, engine: Deployment, step_s: float) -> None:
        self.now_s = 0.0
        self.actions: list[Action] = []
        self._engine = engine.name
        self._step_s = step_s
        self._system = System([engine])
        ready = [AddInstance(engine.name, replica) for replica in engine.replicas]
        self._system.handle(ready, 0.0)
        self._system.handle([InstanceReady(engine.name, i) for i in range(len(ready))], 0.0)
        self.llm: SteppedLLM = engine.replicas[0].executable(engine.replicas[0].config)

    def run(self, arrivals: Sequence[tuple[float, Submit]]) -> dict[str, float]:
        """Return the seconds from each query's arrival to its end."""
        coming = sorted(arrivals, key=lambda arrival: arrival[0])
        arrived_s = {submit.query: at_s for at_s, submit in coming}
        latencies_s: dict[str, float] = {}
        events: list[Event] = []
        while len(latencies_s) < len(arrivals):
            while coming and coming[0][0] <= self.now_s:
                events.append(coming.pop(0)[1])
            for action in self._system.handle(events, self.now_s):
                self.actions.append(action)
                if isinstance(action, Reply):
                    assert action.error is None, action.error
                    latencies_s[action.query] = self.now_s - arrived_s[action.query]
                self._carry_out(action)
            events = []
            if self.llm.has_work():
                events = [LLMReport(self._engine, 0, event) for event in self.llm.step()]
            self.now_s += self._step_s
        return latencies_s

    def _carry_out(self, action: Action) -> None:
        match action:
            case Admit(task=task, rank=rank):
                self.llm.admit(task, rank)
            case Reprioritise(task=task_id, rank=rank):
                self.llm.reprioritise(task_id, rank)
            case CancelTask(task=task_id):
                self.llm.cancel(task_id)
            case Release(query=query):
                self.llm.release(query)
