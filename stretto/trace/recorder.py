"""A record of what ran when, made while the runtime or the simulator runs: spans of batches and LLM requests.

A span is one bar of the time line: a batch on an instance, or one request on an LLM instance.
Times are seconds, in the clock of the runtime or the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from stretto.cluster.messages import StopInstance
from stretto.graph.passes.weigh import Verdict
from stretto.model.errors import ConfigError
from stretto.model.tasks import Done, Failed, Finish, Piece, Started, Usage
from stretto.sched.actions import Action, Admit, CancelTask, Reply, StartBatch
from stretto.sched.engine_events import (
    BatchDone,
    BatchFailed,
    InstanceLost,
    InstanceStopped,
    LLMReport,
    Suspended,
)
from stretto.sched.messages import Event, Open, Submit
from stretto.sched.observer import Observer


@dataclass(frozen=True, slots=True)
class SpanPart:
    """The share of one query in a batch or LLM request: which of its steps ran in it, and on
    how many items.
    """

    query: str
    step: str
    op: str
    num_items: int


@dataclass(slots=True)
class Span:
    """One bar of the time line: a batch or an LLM request that ran on `instance` of `engine`.

    Attributes:
        start_s: when it began to run, in the clock of the runtime or simulator.
        end_s: when it ended; None while it runs.
        queued_s: when an LLM instance was handed the request, which it may start later; None for a batch.
        marks_s: times of the pieces of an output.
        outcome: how it ended.
        finish: how the answer of an LLM request ended.
        started: False for a request that ended in the instance's queue; `start_s` is then when it was handed
            over.
        held_tokens: tokens of an LLM request's prompt that the placement policy expected in the cache there.
        held_s: seconds for which the request was held before, as its program had no room in KV memory.
        reason: why the placement policy chose the instance for an LLM request, in words.
        terms: what the policy compared, by name; predicted seconds, where the name ends in "_s". Infinite
            ones are left out.
    """

    engine: str
    instance: int
    parts: tuple[SpanPart, ...]
    start_s: float
    end_s: float | None = None
    queued_s: float | None = None
    marks_s: list[float] = field(default_factory=list)
    outcome: str = "running"
    usage: Usage | None = None
    finish: Finish = "stop"
    started: bool = True
    held_tokens: int = 0
    held_s: float = 0.0
    reason: str = ""
    terms: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class QuerySpan:
    """The time of a query, from its submission to its reply.

    `end_s` is None while it runs, and `outcome` says how it ended. `verdicts` are the decisions about the
    passes that were weighed for its graph.
    """

    query: str
    graph: str
    start_s: float
    end_s: float | None = None
    outcome: str = "running"
    verdicts: tuple[Verdict, ...] = ()


MAX_SPANS = 100_000
"""Number of spans that a recorder keeps by default: about 50 MB, an hour of 30 spans a second."""


class Recorder(Observer):
    """An observer that records what ran when: every batch and LLM request, and every query.

    It reads the messages between the schedulers and the runtime or simulator that carries out what they
    decide.

    Args:
        max_spans: how many ended spans are kept, and how many ended queries. When there are more, the oldest
            eighth is dropped at once. None keeps all.

    `num_dropped_spans` and `num_dropped_queries` count what was dropped.

    Raises:
        ConfigError: `max_spans` is less than 1.
    """

    def __init__(self, *, max_spans: int | None = MAX_SPANS) -> None:
        if max_spans is not None and max_spans < 1:
            raise ConfigError(f"max_spans={max_spans}: a recorder keeps at least 1 span")
        self.spans: list[Span] = []
        self.queries: dict[str, QuerySpan] = {}
        self.num_dropped_spans = 0
        self.num_dropped_queries = 0
        self._max_spans = max_spans
        self._num_running_queries = 0
        self._batches: dict[tuple[str, int, int], Span] = {}
        self._requests: dict[tuple[str, int, int], Span] = {}

    def on_event(self, event: Event, now_s: float) -> None:
        """Record what a message to the schedulers says has happened, such as the end of a batch."""
        match event:
            case BatchDone(engine, instance, batch):
                self._close(self._batches.pop((engine, instance, batch), None), now_s, "done")
            case LLMReport(engine, instance, report):
                self._on_report((engine, instance, report.task), event, now_s)
            case Submit(query, egraph):
                self.queries[query] = QuerySpan(query, egraph.graph.name, now_s, verdicts=egraph.verdicts)
                self._num_running_queries += 1
            case Open(query):
                self.queries[query] = QuerySpan(query, "session", now_s)
                self._num_running_queries += 1
            case BatchFailed(engine, instance, batch, error):
                self._close(self._batches.pop((engine, instance, batch), None), now_s, f"failed: {error}")
            case InstanceLost(engine, instance, error):
                self._close_all(engine, instance, now_s, f"lost: {error}")
            case Suspended(engine, instance, task):
                self._close(self._requests.pop((engine, instance, task), None), now_s, "suspended")
            case InstanceStopped(engine, instance):
                self._close_all(engine, instance, now_s, "lost: the instance was stopped")

    def on_action(self, action: Action, now_s: float) -> None:
        """Record what the schedulers have decided, such as the start of a batch, before it is carried out."""
        match action:
            case StartBatch(engine, instance, batch, tasks):
                parts = tuple(
                    SpanPart(t.query, t.step, t.op, 1 if t.num_items is None else t.num_items) for t in tasks
                )
                span = Span(engine, instance, parts, now_s)
                self.spans.append(span)
                self._batches[engine, instance, batch] = span
            case Admit(engine, instance, task):
                part = SpanPart(task.query, task.step, "decode" if task.decode else "prefill", 1)
                span = Span(engine, instance, (part,), now_s, queued_s=now_s, started=False)
                span.reason, span.held_tokens = action.reason, action.held_tokens
                span.held_s = action.held_s
                span.terms = {name: term for name, term in action.terms.items() if math.isfinite(term)}
                self.spans.append(span)
                self._requests[engine, instance, task.id] = span
            case CancelTask(engine, instance, task_id):
                self._close(self._requests.pop((engine, instance, task_id), None), now_s, "cancelled")
            case StopInstance(engine, instance, "kill"):
                self._close_all(engine, instance, now_s, "lost: no answer in time")
            case Reply(query, _, error):
                if query in self.queries:
                    self.queries[query].end_s = now_s
                    self.queries[query].outcome = "done" if error is None else f"failed: {error}"
                    self._num_running_queries -= 1
                    self._bound_queries()

    def _on_report(self, key: tuple[str, int, int], report: LLMReport, now_s: float) -> None:
        span = self._requests.get(key)
        if span is None:
            return
        match report.event:
            case Started():
                span.start_s, span.started = now_s, True
            case Piece():
                span.marks_s.append(now_s)
            case Done(usage=usage, finish=finish):
                span.usage, span.finish = usage, finish
                self._close(self._requests.pop(key), now_s, "done")
            case Failed(error=error):
                self._close(self._requests.pop(key), now_s, f"failed: {error}")

    def _close(self, span: Span | None, now_s: float, outcome: str) -> None:
        if span is not None:
            span.end_s = now_s
            span.outcome = outcome
            self._bound_spans()

    def _close_all(self, engine: str, instance: int, now_s: float, outcome: str) -> None:
        """Close all spans of an instance: they ended with it."""
        for spans in (self._batches, self._requests):
            for key in [key for key in spans if key[:2] == (engine, instance)]:
                self._close(spans.pop(key), now_s, outcome)

    def _bound_spans(self) -> None:
        num_ended = len(self.spans) - len(self._batches) - len(self._requests)
        if (num_excess := self._num_excess(num_ended)) > 0:
            ended = (i for i, span in enumerate(self.spans) if span.end_s is not None)
            dropped = set(islice(ended, num_excess))
            self.spans = [span for i, span in enumerate(self.spans) if i not in dropped]
            self.num_dropped_spans += num_excess

    def _bound_queries(self) -> None:
        if (num_excess := self._num_excess(len(self.queries) - self._num_running_queries)) > 0:
            ended = (name for name, query in self.queries.items() if query.end_s is not None)
            for name in list(islice(ended, num_excess)):
                del self.queries[name]
            self.num_dropped_queries += num_excess

    def _num_excess(self, num_ended: int) -> int:
        """Return how many ended entries to drop when there are `num_ended`."""
        if self._max_spans is None or num_ended <= self._max_spans:
            return 0
        return num_ended - (self._max_spans - self._max_spans // 8)
