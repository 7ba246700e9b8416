"""What a router tells its peers of its own requests: the sending half of the exchange, without IO.

Records are gathered and sent together as a *batch* with a number. A peer that has missed one asks for a
*snapshot* in its own next batch: all that runs here, as of the number of the last batch. One that has just
begun also gets the *history*: the last prompt of each program at each worker, also of programs that came
through other routers, so that a router which is started again learns what its own past has left in caches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

from msgspec.structs import replace

from stretto.router.announcing.history import PromptHistory
from stretto.router.announcing.waits import WaitingHere
from stretto.router.announcing.wire import (
    MOST_BYTES,
    MOST_OWNERS,
    MOST_RECORDS,
    MOST_RUNNING,
    EndedRecord,
    LeftRecord,
    PeerBatch,
    PeerBye,
    PeerMessage,
    PeerRecord,
    PeerSnapshot,
    SentRecord,
    WaitingRecord,
    short_name,
)

GATHER_S = 0.03
"""Seconds for which what is to be told is gathered while nothing waits: longer ones cost less, and are known
later.
"""
PRESSED_S = 0.001
"""Seconds for which it is gathered while something waits at a router: less than a client needs to come back
with its next request, at another router.
"""
BEAT_S = 0.5
"""Seconds between two signs of life of a router that has nothing to say."""
_SNAPSHOT_EVERY_S = 0.1


class Announcer:
    """The state machine that says what a router's peers are told.

    Args:
        origin: name of the router's process, which no other one has.

    Attributes:
        on_news: called when there is something to tell that should not wait for the next sign of life.
        is_pressed: returns whether something waits here, for its turn or for room.
        waiting: who waits here for which worker.
        history: prompts of the past, also of those that came through other routers.
        wants: routers of which a snapshot is wanted, with whether their history is too.
    """

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.on_news: Callable[[], None] = lambda: None
        self.is_pressed: Callable[[], bool] = lambda: False
        self.waiting = WaitingHere(self._waits_changed)
        self.history = PromptHistory()
        self.wants: dict[str, bool] = {}
        self._served: OrderedDict[str, float] = OrderedDict()
        self._charged: set[str] = set()
        self._number = 0
        self._records: list[PeerRecord] = []
        self._has_new_waits = False
        self._told_waits: dict[str, frozenset[str]] = {}
        self._running: dict[int, SentRecord] = {}
        self._waiting: dict[int, WaitingRecord] = {}
        self._asked: set[str] = set()
        self._gives_history = False
        self._snapshot_s = self._beat_s = self._waits_s = 0.0

    def waits(self, record: WaitingRecord) -> None:
        """Note that a request waits, for room or for its turn. That is told with what comes next."""
        self._waiting[record.request] = record
        self._records.append(record)

    def sent(self, record: SentRecord) -> None:
        """Note that a request was sent."""
        self._waiting.pop(record.request, None)
        self._running[record.attempt] = record
        self.history.add(record)
        self._add(record)

    def ended(self, record: EndedRecord) -> None:
        """Note that an attempt has ended."""
        if self._running.pop(record.attempt, None) is not None:
            self._add(record)

    def left(self, record: LeftRecord) -> None:
        """Note that a request has left."""
        self._waiting.pop(record.request, None)
        self._add(record)

    def _waits_changed(self) -> None:
        if not self._has_new_waits:
            self._has_new_waits = True
            self.on_news()

    def charged(self, owner: str, seconds: float) -> None:
        """Note that an owner has got so many seconds of work, or fewer than was thought."""
        owner = short_name(owner)
        served = max(0.0, self._served.pop(owner, 0.0) + seconds)
        self._served[owner] = served
        self._charged.add(owner)
        if len(self._served) > MOST_OWNERS:
            self._served.popitem(last=False)

    def want(self, origin: str, *, history: bool = False) -> None:
        """Ask a peer for a snapshot."""
        if origin not in self.wants:
            self.wants[origin] = history
            self.on_news()

    def asked(self, origin: str, *, history: bool) -> None:
        """Note that a peer wants a snapshot, with or without the history."""
        self._asked.add(origin)
        self._gives_history |= history
        self.on_news()

    def messages(self, now_s: float) -> Iterator[PeerMessage]:
        """Yield what is to be sent now."""
        while len(self._records) > MOST_RECORDS:
            first, self._records = self._records[:MOST_RECORDS], self._records[MOST_RECORDS:]
            self._number += 1
            yield PeerBatch(self.origin, self._number, first)
        waits = self._waits_to_tell(now_s)
        if self._records or self.wants or waits is not None or now_s >= self._beat_s + BEAT_S:
            records, self._records = self._records, []
            self._number += bool(records)
            self._beat_s = now_s
            served, wants = self._newly_served(), dict(self.wants)
            yield PeerBatch(self.origin, self._number, records, served, wants, waits, self.is_pressed())
        if self._asked and now_s >= self._snapshot_s + _SNAPSHOT_EVERY_S:
            self._snapshot_s = now_s
            self._asked.clear()
            if self._gives_history:
                self._gives_history = False
                yield from self.history.messages(self.origin)
            running = _within_limits(self._running, MOST_BYTES)
            waiting = _within_limits(self._waiting, MOST_BYTES // 2)
            waits = self.waiting.announced(now_s)
            yield PeerSnapshot(self.origin, self._number, running, dict(self._served), waits, waiting)

    @property
    def is_asked(self) -> bool:
        """Whether a snapshot is still to be given."""
        return bool(self._asked)

    def farewell(self) -> PeerMessage:
        """Return what is sent last."""
        return PeerBye(self.origin)

    def _add(self, record: PeerRecord) -> None:
        self._records.append(record)
        self.on_news()

    def _waits_to_tell(self, now_s: float) -> dict[str, dict[str, int]] | None:
        """Return who waits for which worker now; None if it was told of late and has not changed. Numbers of
        requests may have: shares of workers depend on who waits alone.
        """
        is_due = now_s >= self._waits_s + BEAT_S
        if not (self._has_new_waits or is_due):
            return None
        self._has_new_waits = False
        waits = self.waiting.announced(now_s)
        who = {worker: frozenset(owners) for worker, owners in waits.items()}
        if who == self._told_waits and not is_due:
            return None
        self._told_waits, self._waits_s = who, now_s
        return waits

    def _newly_served(self) -> dict[str, float]:
        """Return what owners have got, of those for whom it has changed since it was told."""
        changed = {owner: self._served[owner] for owner in self._charged if owner in self._served}
        self._charged.clear()
        return changed


_RecordT = TypeVar("_RecordT", bound=WaitingRecord)


def _within_limits(records: Mapping[int, _RecordT], most_bytes: int) -> list[_RecordT]:
    """Return as many records as one message has room for: the last prompts without their hashes, if those of
    all are longer than `most_bytes`.
    """
    found: list[_RecordT] = []
    num_bytes = 0
    for record in islice(records.values(), MOST_RUNNING):
        num_bytes += len(record.blocks)
        found.append(record if num_bytes <= most_bytes else replace(record, blocks=b""))
    return found
