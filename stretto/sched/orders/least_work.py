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

from stretto.model.sorted_queue import SortedQueue
from stretto.sched.orders.by_query import ByQuery, PlaceKey, Places
from stretto.sched.orders.earliest import Earliest
from stretto.sched.orders.order import OrderConfig, Rank
from stretto.sched.queries.request import QueueEntry


class LeastWork(ByQuery):
    """A queue order (rule for what goes next) that serves the query (run of an app) with the least predicted
    work waiting at this engine.

    Waiting counts like work that is done, so that no query starves. Sort keys are (work and arrival, seconds
    on the path to the end, depth in the graph).
    """

    def __init__(self, config: OrderConfig) -> None:
        super().__init__(lambda: _Query(config), config.age_limit_s)


class _Query:
    """One query's unstarted entries with their predicted seconds, and its waiting ones by path."""

    def __init__(self, config: OrderConfig) -> None:
        self._config = config
        self._num_unstarted: dict[QueueEntry, int] = {}
        self._ways: dict[QueueEntry, tuple[float, int, float, int]] = {}  # of the same entries
        self._seconds = 0.0
        self._unstarted = Earliest()
        self._waiting = SortedQueue[QueueEntry]()

    def add(self, entry: QueueEntry) -> None:
        self._num_unstarted[entry] = entry.hi - entry.lo
        self._seconds += self._price_s(entry, entry.lo, entry.hi)
        waits_since_s, hurry_s = (entry.since_s + entry.arrival_s) / 2, self._hurry_s(entry)
        self._unstarted.add(entry, waits_since_s - hurry_s)
        self._ways[entry] = way = _way(entry, hurry_s)
        self._waiting.add(way, entry)

    def all_taken(self, entry: QueueEntry) -> None:
        self._waiting.remove(self._ways[entry])

    def started(self, entry: QueueEntry, lo: int, hi: int) -> None:
        self._seconds -= self._price_s(entry, lo, hi)
        self._num_unstarted[entry] -= hi - lo
        if self._num_unstarted[entry] == 0:
            del self._num_unstarted[entry], self._ways[entry]
            self._unstarted.remove(entry)

    def is_empty(self) -> bool:
        return not self._num_unstarted

    def first(self) -> QueueEntry:
        return self._waiting.first

    def first_key(self) -> PlaceKey | None:
        return (self._key_s(), self._unstarted.first.number) if self._waiting else None

    def places(self) -> Places:
        key = self.first_key()
        if key is not None:
            yield key, self._waiting

    def rank(self, entry: QueueEntry) -> Rank:
        return self._key_s(), *self._ways[entry][:2]

    def _key_s(self) -> float:
        return self._seconds + self._config.ageing * self._unstarted.first_s

    def _price_s(self, entry: QueueEntry, lo: int, hi: int) -> float:
        """Return the predicted seconds of items, as if nothing of their prompts were cached."""
        num_output = entry.num_output * (hi - lo)
        return self._config.unit_s * entry.num_units(lo, hi) + self._config.output_s * num_output

    def _hurry_s(self, entry: QueueEntry) -> float:
        """Seconds that its slack fell short of the age limit when it arrived; 0 without a deadline."""
        slack_s = entry.sorted_as.start_by_s - entry.arrival_s
        return max(0.0, self._config.age_limit_s - slack_s)


def _way(entry: QueueEntry, hurry_s: float) -> tuple[float, int, float, int]:
    """Return the key of an entry within its query: the longest way first."""
    return -(entry.path_s + hurry_s), -entry.request.node.depth, entry.arrival_s, entry.number
