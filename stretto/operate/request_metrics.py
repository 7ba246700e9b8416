"""What is counted of requests that have ended, by door, tenant, model and worker.

A row has the counts of one combination of these labels. There are at most `max_rows`; what would need more is
counted in one row of its door whose other labels are "other". So names that clients or workers invent cost
bounded memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from stretto.sched.observer import Observer
from stretto.sched.request_trace import Door, RequestTrace
from stretto.wire import metric_table as table
from stretto.wire.metrics import Family, Histogram, Published, Sample

OTHER = "other"
"""Label of a model that no server lists, and of what is beyond the bounds."""
_MAX_ROWS = 500
_MAX_WORKERS = 500
MOST_TOKENS = 2**24
"""Largest count of tokens of one answer that is believed."""
_Labels: TypeAlias = tuple[str, str, str, str]


class Counted(NamedTuple):
    """Numbers of requests, and of tokens of their prompts and answers."""

    requests: float = 0
    prompt: float = 0
    cached: float = 0
    generated: float = 0


class _Row:
    """Counts of the requests with the same labels."""

    __slots__ = (
        "cached",
        "deadlines",
        "first_token_s",
        "generated",
        "held_s",
        "predicted",
        "prompt",
        "queue_s",
        "request_s",
        "statuses",
        "token_s",
    )

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.deadlines: Counter[bool] = Counter()
        self.prompt = self.cached = self.predicted = self.generated = 0
        self.held_s = Histogram(table.HELD_S.bounds)
        self.queue_s = Histogram(table.QUEUE_S.bounds)
        self.first_token_s = Histogram(table.FIRST_TOKEN_S.bounds)
        self.token_s = Histogram(table.TOKEN_S.bounds)
        self.request_s = Histogram(table.REQUEST_S.bounds)


_HISTOGRAMS: tuple[tuple[Family, Callable[[_Row], Histogram]], ...] = (
    (table.HELD_S, lambda row: row.held_s),
    (table.QUEUE_S, lambda row: row.queue_s),
    (table.FIRST_TOKEN_S, lambda row: row.first_token_s),
    (table.TOKEN_S, lambda row: row.token_s),
    (table.REQUEST_S, lambda row: row.request_s),
)
_COUNTS: tuple[tuple[Family, Callable[[_Row], int]], ...] = (
    (table.PROMPT, lambda row: row.prompt),
    (table.COMPUTED, lambda row: row.prompt - row.cached),
    (table.CACHED, lambda row: row.cached),
    (table.PREDICTED, lambda row: row.predicted),
    (table.GENERATED, lambda row: row.generated),
)


class RequestMetrics(Observer):
    """An observer that counts the requests of a door since its start.

    Args:
        max_rows: number of combinations of labels that are told apart.
    """

    def __init__(self, max_rows: int = _MAX_ROWS) -> None:
        self._max_rows = max_rows
        self._rows: dict[_Labels, _Row] = {}
        self._attempts: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._refused: Counter[tuple[Door, int]] = Counter()
        self._num_hedges = self._num_repaired = 0
        self._decision_s = 0.0

    def on_request_ended(self, trace: RequestTrace, now_s: float) -> None:
        """Count a request that has ended."""
        tries = trace.tries
        last = tries[-1] if tries else None
        worker = "" if last is None else last.name
        model = trace.model if trace.is_listed or not trace.model else OTHER
        labels = (trace.door, trace.tenant, model, worker)
        row = self._rows.get(labels) or self._new_row(labels)
        row.statuses[trace.status] += 1
        if last is not None:
            for one in tries:
                self._count_attempt(one.name, is_failure=bool(one.failure))
            row.held_s.observe(last.held_s)
            row.queue_s.observe(last.waited_s - last.held_s)
        if trace.deadline_s is not None:
            row.deadlines[trace.status == 200 and now_s <= trace.deadline_s] += 1
        self._count_tokens(row, trace)
        if trace.decided_s is not None and trace.placed_s is not None:
            self._decision_s += trace.decided_s - trace.placed_s
        self._num_hedges += trace.was_hedged
        self._num_repaired += bool(trace.repaired)
        if (first_s := trace.first_token_s) is not None:
            row.first_token_s.observe(first_s - trace.arrived_s)
            num_tokens = trace.output_tokens or 0
            if trace.status == 200 and 1 < num_tokens <= MOST_TOKENS:
                row.token_s.observe((now_s - first_s) / (num_tokens - 1))
        row.request_s.observe(now_s - trace.arrived_s)

    def count_refusal(self, door: Door, status: int) -> None:
        """Count a request that was refused before it was asked of anything."""
        self._refused[door, status] += 1

    def forget_worker(self, name: str) -> None:
        """Forget the counts of a worker that is gone, so that those that come find room."""
        self._rows = {labels: row for labels, row in self._rows.items() if labels[3] != name}
        self._attempts.pop(name, None)
        self._failed.pop(name, None)

    @property
    def num_rows(self) -> int:
        """Number of combinations of labels."""
        return len(self._rows)

    def totals(self) -> Mapping[tuple[str, str], Counted]:
        """Return the counts by tenant and worker."""
        found: dict[tuple[str, str], Counted] = {}
        for (_, tenant, _, worker), row in self._rows.items():
            before = found.get((tenant, worker), Counted())
            more = Counted(row.statuses.total(), row.prompt, row.cached, row.generated)
            found[tenant, worker] = Counted(*map(sum, zip(before, more, strict=True)))
        return found

    def published(self) -> list[Published]:
        """Return all counts. A thread may call this while requests are counted."""
        rows = list(self._rows.items())
        published: list[Published] = [(table.REQUESTS, list(_statuses(rows)))]
        for family, count_of in _COUNTS:
            published.append((family, [family.sample(count_of(row), *labels) for labels, row in rows]))
        for family, histogram_of in _HISTOGRAMS:
            lines = [one for labels, row in rows for one in histogram_of(row).samples(family, *labels)]
            published.append((family, lines))
        deadlines = [
            table.DEADLINES.sample(count, *labels, str(is_kept).lower())
            for labels, row in rows
            for is_kept, count in sorted(row.deadlines.items())
        ]
        return [
            *published,
            (table.DEADLINES, deadlines),
            (
                table.REFUSED,
                [table.REFUSED.sample(n, d, str(s)) for (d, s), n in sorted(self._refused.items())],
            ),
            _by_worker(table.ATTEMPTS, self._attempts),
            _by_worker(table.FAILED_ATTEMPTS, self._failed),
            (table.HEDGES, [table.HEDGES.sample(self._num_hedges)]),
            (table.REPAIRED, [table.REPAIRED.sample(self._num_repaired)]),
            (table.DECISION_S, [table.DECISION_S.sample(self._decision_s)]),
        ]

    def _new_row(self, labels: _Labels) -> _Row:
        """Return the row of a combination of labels that has none; one for all others of its door if there
        are too many.
        """
        if len(self._rows) >= self._max_rows:
            labels = (labels[0], OTHER, OTHER, OTHER)
        return self._rows.setdefault(labels, _Row())

    def _count_attempt(self, name: str, *, is_failure: bool) -> None:
        if name not in self._attempts and len(self._attempts) >= _MAX_WORKERS:
            name = OTHER
        self._attempts[name] += 1
        self._failed[name] += is_failure

    def _count_tokens(self, row: _Row, trace: RequestTrace) -> None:
        """Count the tokens that a worker has told, if they can be true."""
        if (num_prompt := trace.prompt_tokens) is not None:
            num_cached = trace.cached_tokens or 0
            if num_cached <= num_prompt <= MOST_TOKENS:
                row.prompt += num_prompt
                row.cached += num_cached
                row.predicted += trace.predicted_cached  # only these can be compared with what was found
        num_output = trace.output_tokens or 0
        row.generated += num_output if num_output <= MOST_TOKENS else 0


def _statuses(rows: list[tuple[_Labels, _Row]]) -> Iterator[Sample]:
    for labels, row in rows:
        for status, count in sorted(row.statuses.items()):
            yield table.REQUESTS.sample(count, *labels, str(status))


def _by_worker(family: Family, counts: Counter[str]) -> Published:
    return family, [family.sample(count, name) for name, count in sorted(counts.items())]
