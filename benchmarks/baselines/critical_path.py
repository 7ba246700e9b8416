"""The order `critical_path`: round by round over all queries, the longest way to the end of each first."""

from __future__ import annotations

from stretto.sched.orders.by_query import ByQuery
from stretto.sched.orders.order import OrderConfig
from stretto.sched.orders.rounds import Rounds
from stretto.sched.queries.request import QueueEntry


class CriticalPath(ByQuery):
    """A queue order that serves the steps of every query (run of an app) with the longest way to the query's
    end first, then those of each with the next longest, and so on, round by round.

    The way is measured in predicted seconds (Teola §8 leaves it open).
    """

    def __init__(self, config: OrderConfig) -> None:
        super().__init__(lambda: Rounds(_way), config.age_limit_s)


def _way(entry: QueueEntry) -> float:
    return -entry.path_s
