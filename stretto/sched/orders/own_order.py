"""A fence around an order of service in a user's file: one that raises is replaced, and nothing is lost."""

from __future__ import annotations

import logging
import math
import reprlib

from stretto.model.errors import ConfigError, InternalError
from stretto.model.foreign import described, raised
from stretto.model.user_files import maker_in_file
from stretto.sched.orders.arrival import PerInvocation
from stretto.sched.orders.order import Fits, Hold, NewOrder, Order, OrderConfig, Rank, Take
from stretto.sched.queries.request import QueueEntry

_log = logging.getLogger(__name__)
_METHODS = ("add", "remove", "take", "taken", "started", "rank")


def order_in_file(name: str) -> NewOrder:
    """Return what makes the order that FILE.py:NAME names, inside the fence.

    Raises:
        ConfigError: there is no such file or name, or what it names makes no order.
    """
    made: NewOrder = maker_in_file(name, "order")
    try:
        order = made(OrderConfig())
        lacks = [one for one in _METHODS if not callable(getattr(order, one, None))]
    except raised() as error:  # it is a user's
        raise ConfigError(f"order {name}: it raised {described(error)}") from error
    if lacks:
        raise ConfigError(f"order {name}: what it makes has no method {lacks[0]!r}; it needs those of Order")
    return lambda config: OwnOrder(made, name, config)


class OwnOrder:
    """A queue order whose errors end its own work only.

    From its first error on, the order of arrival (`per_invocation`) takes its place in this queue, and a
    warning in the log says so. A choice of what does not wait counts as an error.
    """

    def __init__(self, made: NewOrder, name: str, config: OrderConfig) -> None:
        self._name = name
        self._config = config
        self._order = made(config)
        self._has_failed = False
        self._waiting: dict[QueueEntry, None] = {}
        self.takes_all = bool(getattr(self._order, "takes_all", False))

    def add(self, entry: QueueEntry) -> None:
        """Add an entry to those that this queue order sorts."""
        try:
            self._order.add(entry)
        except raised() as error:
            self._replace(error).add(entry)
        self._waiting[entry] = None

    def remove(self, entry: QueueEntry) -> None:
        """Remove an entry whose waiting items are no longer wanted."""
        del self._waiting[entry]
        try:
            self._order.remove(entry)
        except raised() as error:
            self._replace(error)
        entry.lo = entry.hi

    def take(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        """Choose which entry goes next, and how many of its items; None if none may go now."""
        try:
            chosen = self._order.take(to_fill, fits, now_s)
            self._check(chosen)
            return chosen
        except raised() as error:
            return self._replace(error).take(to_fill, fits, now_s)

    def taken(self, entry: QueueEntry, num_items: int) -> None:
        """Count the next `num_items` items of an entry as no longer waiting."""
        lo = entry.lo + num_items
        if lo == entry.hi:
            del self._waiting[entry]
        try:
            self._order.taken(entry, num_items)
            if entry.lo != lo:
                raise InternalError(f"taken() left the entry's `lo` at {entry.lo} instead of {lo}")
        except raised() as error:
            entry.lo = lo
            self._replace(error)

    def started(self, entry: QueueEntry, lo: int, hi: int) -> None:
        """Record that items `lo` to `hi` of an entry, which were taken, run now or were given up."""
        try:
            self._order.started(entry, lo, hi)
        except raised() as error:
            self._replace(error)

    def rank(self, entry: QueueEntry) -> Rank:
        """Return the sort key of an entry that has not started; the smaller goes first."""
        try:
            first, *others = self._order.rank(entry)
            return (float(first), *others)
        except raised() as error:
            return self._replace(error).rank(entry)

    def _check(self, chosen: object) -> None:
        match chosen:
            case None:
                return
            case Hold(until_s) if math.isfinite(until_s):
                return
            case Take(entry, num_items) if entry in self._waiting and 0 < num_items <= entry.hi - entry.lo:
                return
        raise InternalError(f"it chose {reprlib.repr(chosen)}, which does not wait")

    def _replace(self, error: BaseException) -> Order:
        """Put the order of arrival in the place of the user's, with all that waits; an error of the order of
        arrival itself is raised.
        """
        if self._has_failed:
            raise error
        self._has_failed = True
        self._order = PerInvocation(self._config)
        for entry in self._waiting:
            self._order.add(entry)
        _log.warning("order %s raised; the order of arrival takes its place", self._name, exc_info=error)
        return self._order
