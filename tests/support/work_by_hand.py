"""A fake engine loop for single queries: work waits until it is done by hand, one item after the other."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig, FakeLLM, FakeLLMConfig
from stretto.model.tasks import Done, LLMTask, Task
from stretto.model.values import KV, Failure
from stretto.sched.queries.outcome import Outcome
from stretto.sched.queries.request import StepRequest
from support.graph_oracle import fails, nonsense


class WorkByHand:
    """The work that a query has handed out and is waiting for, as (work, item)."""

    def __init__(self, failing: Collection[str] = ()) -> None:
        self.waiting: list[tuple[StepRequest, int]] = []
        self._failing = failing
        self._engine = FakeBatch(FakeBatchConfig())

    def take(self, outcome: Outcome) -> None:
        """Add what an event has made ready, and forget what it has withdrawn."""
        gone = {node.id for node in outcome.withdrawn}
        self.waiting = [one for one in self.waiting if one[0].node.id not in gone]
        self.waiting += [(work, item) for work in outcome.work for item in range(work.lo, work.hi)]

    def do(self, place: int) -> tuple[int, int, Sequence[object]]:
        """Do one item; return (node, item, results)."""
        work, item = self.waiting.pop(place % len(self.waiting))
        return work.node.id, item, [self._result(work, item)]

    def _result(self, work: StepRequest, item: int) -> object:
        node = work.node
        if node.spec.runs_on == "llm":
            return self._complete(work, item)
        inputs = {
            port: value[item - work.lo] if port in work.each else value  # type: ignore[index]
            for port, value in work.inputs.items()
        }
        if fails(self._failing, work.step, inputs):
            return Failure(nonsense(work.step))
        return self._engine.run([Task(1, work.query, node.name, node.op, inputs, node.config)])[0]

    def _complete(self, work: StepRequest, item: int) -> object:
        prompt = work.prompts[item - work.lo]
        if work.decode is None:
            return KV(prompt, 0)
        if fails(self._failing, work.step, prompt):
            return Failure(nonsense(work.step))
        llm = FakeLLM(FakeLLMConfig())
        llm.admit(LLMTask(1, work.query, work.step, prompt, work.decode), ())
        value: object = None
        while llm.has_work():
            for event in llm.step():
                if isinstance(event, Done):
                    value = event.value
        return value if work.node.fused is None else (KV(prompt, 0), value)
