"""The order `least_work`: serve the query with the least predicted work waiting at this engine.

Within the query, the primitive on the longest path to an output goes first.

On one machine the least remaining work first has the least mean latency; what a query still has to do
elsewhere adds the same to it in any order. Nobody starves: a second of waiting counts as `ageing` seconds of
work done, so that a query with L seconds of work is overtaken only by those that come within 2 L / `ageing`
seconds of it; and beyond the age limit by none. What does not fit into the room that is left may be passed
until then. LLM engines age less: a request's price there is its share of the steps of a full batch, far less
than the time that it runs and that others wait for it.

A step counts as waiting since the middle of the time between the arrival of its query and its own. If only
its own counted, the last steps of an old query would queue up behind the first steps of younger ones that
have waited longer. If only its query's counted, a query of one step would wait for all steps of longer ones
that came a moment before it. Steps of a session, which may live for long, count from their own arrival.

A request with a deadline may wait until its predicted way to the end would begin too late. If that is less
than the age limit, it counts as older, and its way as longer, by the difference: of requests alike in all
else, the one with the least slack goes first. (That one wanted for latency goes before one wanted for
throughput is the queue's rule, whatever the order: `sched/engines/queue.py`.)

All queries age alike, so the order of their keys does not depend on the time: a query is put in its place
anew only when its own work changes.

Source: Schrage 1968, for one machine; the ageing is ours. Where costs are not known, queries go by arrival
and their primitives by depth.
"""

from __future__ import annotations

from stretto.sched.orders.by_query import ByQuery
from stretto.sched.orders.by_way import ByWay
from stretto.sched.orders.order import OrderConfig
from stretto.sched.queries.request import QueueEntry


class LeastWork(ByQuery):
    """A queue order that serves the query with the least predicted work waiting at this engine.

    Waiting counts like work that is done, so that no query starves. Sort keys are (work and arrival, seconds
    on the path to the end, depth in the graph).
    """

    def __init__(self, config: OrderConfig) -> None:
        super().__init__(lambda: _Query(config), config.age_limit_s)


class _Query(ByWay):
    """One query's work, priced as if nothing of its prompts were cached."""

    def __init__(self, config: OrderConfig) -> None:
        super().__init__(config.output_s)
        self._config = config

    def add(self, entry: QueueEntry) -> None:
        hurry_s = self._hurry_s(entry)
        waits_since_s = (entry.since_s + entry.arrival_s) / 2
        self.put(entry, self._config.unit_s, waits_since_s - hurry_s, hurry_s)

    def key_s(self) -> float:
        return self.seconds + self._config.ageing * self.unstarted.first_s

    def _hurry_s(self, entry: QueueEntry) -> float:
        """Seconds that its slack fell short of the age limit when it arrived; 0 without a deadline."""
        slack_s = entry.sorted_as.start_by_s - entry.arrival_s
        return max(0.0, self._config.age_limit_s - slack_s)
