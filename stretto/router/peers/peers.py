"""The other routers before the same workers: the receiving half of the exchange, without IO.

Rules:

- A peer is known by the name of its process. Its batches have numbers. One that is the next is applied; one
  that has come before is ignored; after a gap all are, until a snapshot has come, which is asked for.
- A snapshot says all that runs and waits at a peer. What did and is not in it has ended.
- A peer that was silent for `SILENT_S`, or has said that it ends, is forgotten: what it ran counts no more.
  If it goes on after all, a snapshot brings it back.
- What a peer says can make prompts slower, and never wrong. What cannot be read is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from stretto.model.errors import BadReply
from stretto.router.announcing.announcer import GATHER_S, PRESSED_S, Announcer
from stretto.router.announcing.wire import (
    MOST_OWNERS,
    MOST_RUNNING,
    EndedRecord,
    LeftRecord,
    PeerBatch,
    PeerBye,
    PeerHistory,
    PeerRecord,
    PeerSnapshot,
    SentRecord,
    WaitingRecord,
    read_message,
)
from stretto.router.loads import RunningAtWorker
from stretto.router.messages import RouterAction, WorkerId
from stretto.router.peers.requests import PeerRequests
from stretto.router.peers.shares import Waiting

SILENT_S = 3.0
"""Seconds without a sign of life after which a peer is forgotten."""
_MOST_PEERS = 64
_MOST_FORGOTTEN = 256


@dataclass(slots=True, eq=False)
class Peer:
    """Another router, as far as it is known.

    Attributes:
        number: number of its last batch that was applied.
        is_behind: whether later ones are missing, so that a snapshot is wanted.
        behind_s: when that was noticed.
        running: attempts that run there.
        served: seconds of work that owners have got of it, as it last said.
        waits: requests that wait there for their turn.
        is_pressed: whether something waits there, for its turn or for room.
    """

    origin: str
    number: int = 0
    is_behind: bool = False
    behind_s: float = 0.0
    heard_s: float = 0.0
    running: dict[int, RunningAtWorker] = field(default_factory=dict)
    served: dict[str, float] = field(default_factory=dict)
    waits: Waiting = field(default_factory=dict)
    is_pressed: bool = False

    def newly_served(self, served: Mapping[str, float]) -> Iterator[tuple[str, float]]:
        """Yield what each owner has got of it since it last said so, and keep what it says now."""
        for owner, seconds in served.items():
            before = self.served.pop(owner, 0.0)
            self.served[owner] = seconds
            if len(self.served) > 2 * MOST_OWNERS:
                del self.served[next(iter(self.served))]  # its router has forgotten it before
            if seconds > before:
                yield owner, seconds - before


class Peers:
    """The state machine that follows a router's peers.

    Attributes:
        announcer: the sending half.
        requests: what counts the requests of peers.
        num_applied: number of records of peers that were applied.
        hears_itself: whether its own messages come back, so that its own address is among those of peers.

    Args:
        announcer: the sending half, which asks for snapshots and gives them.
        requests: what counts the requests of peers.
        freed: what follows when requests of peers have begun, and have ended at some workers.
    """

    def __init__(
        self,
        announcer: Announcer,
        requests: PeerRequests,
        freed: Callable[[Collection[WorkerId], float], list[RouterAction]],
    ) -> None:
        self.announcer = announcer
        self.num_applied = 0
        self.hears_itself = False
        self.requests = requests
        self._freed = freed
        self._keeps = False
        self._peers: dict[str, Peer] = {}
        self._served: dict[str, dict[str, float]] = {}
        """What peers that were forgotten had said of owners, so that nothing is charged twice."""

    @property
    def origins(self) -> Set[str]:
        """Names of the processes of peers."""
        return self._peers.keys()

    @property
    def gather_s(self) -> float:
        """Seconds for which what is to be told is gathered now."""
        is_pressed = self.announcer.is_pressed() or any(one.is_pressed for one in self._peers.values())
        return PRESSED_S if is_pressed else GATHER_S

    def receive(self, data: bytes, now_s: float) -> list[RouterAction]:
        """Take a message, and return what to do.

        Raises:
            BadReply: it is no message of a router.
        """
        return self._freed([*self._take(data, now_s), *self._keep_shares(now_s)], now_s)

    def _take(self, data: bytes, now_s: float) -> Collection[WorkerId]:
        """Take a message; return the workers where something has ended."""
        message = read_message(data)
        if message.origin == self.announcer.origin:
            self.hears_itself = True
            return ()
        if isinstance(message, PeerBye):
            gone = self._peers.get(message.origin)
            return () if gone is None else self._forget(gone, now_s)
        if (peer := self._peers.get(message.origin)) is None:
            if len(self._peers) >= _MOST_PEERS:
                raise BadReply(f"there are {_MOST_PEERS} other routers already")
            served = self._served.pop(message.origin, {})
            peer = self._peers[message.origin] = Peer(message.origin, served=served)
        peer.heard_s = now_s
        match message:
            case PeerBatch():
                return self._take_batch(peer, message, now_s)
            case PeerSnapshot():
                return self._take_snapshot(peer, message, now_s)
            case PeerHistory(prompts=prompts):
                for prompt in prompts:
                    self.requests.believe(prompt, now_s)
        return ()

    def forget_silent(self, now_s: float) -> list[RouterAction]:
        """Forget peers that have been silent for too long, and return what to do."""
        freed: list[WorkerId] = []
        for peer in [one for one in self._peers.values() if now_s >= one.heard_s + SILENT_S]:
            freed += self._forget(peer, now_s)
        return self._freed([*freed, *self._keep_shares(now_s)], now_s)

    def has_deaf(self, now_s: float) -> bool:
        """Return whether a peer is heard that does not give what it is asked for, as it does not hear us."""
        return any(one.is_behind and now_s >= one.behind_s + SILENT_S for one in self._peers.values())

    def _keep_shares(self, now_s: float) -> Collection[WorkerId]:
        """Keep free what peers are due of the workers; return those where less is kept than before."""
        peers = [one for one in self._peers.values() if one.waits]
        if not peers and not self._keeps:
            return ()
        self._keeps = bool(peers)
        running = [[*one.running.values()] for one in peers]
        return self.requests.keep_free(
            self.announcer.waiting.by_worker(now_s), [one.waits for one in peers], running
        )

    def check_invariants(self) -> None:
        """Check that what counts is what peers run. For tests."""
        assert len(self._peers) <= _MOST_PEERS
        self.requests.check_invariants(
            [one for peer in self._peers.values() for one in peer.running.values()]
        )
        behind = {peer.origin for peer in self._peers.values() if peer.is_behind}
        assert behind == self.announcer.wants.keys()

    def _take_batch(self, peer: Peer, batch: PeerBatch, now_s: float) -> Collection[WorkerId]:
        if batch.number >= peer.number:
            peer.is_pressed = batch.is_pressed
            peer.waits = peer.waits if batch.waits is None else batch.waits
        if (history := batch.wants.get(self.announcer.origin)) is not None:
            self.announcer.asked(peer.origin, history=history)
        if batch.number <= peer.number:
            return ()
        if peer.is_behind or not batch.records or batch.number > peer.number + 1:
            if not peer.is_behind:
                peer.is_behind, peer.behind_s = True, now_s
                self.announcer.want(peer.origin, history=peer.number == 0)
            return ()
        peer.number = batch.number
        self.requests.charge(peer.newly_served(batch.served))
        return self._apply(peer, batch.records, now_s)

    def _take_snapshot(self, peer: Peer, snapshot: PeerSnapshot, now_s: float) -> Collection[WorkerId]:
        if snapshot.number < peer.number:
            return ()
        is_new = peer.number == 0 and not peer.served
        peer.number, peer.is_behind = snapshot.number, False
        self.announcer.wants.pop(peer.origin, None)
        peer.waits = snapshot.waits
        if is_new:
            peer.served.update(snapshot.served)  # what they got before we began does not count here
        else:
            self.requests.charge(peer.newly_served(snapshot.served))
        running = {one.attempt: one for one in snapshot.running}
        freed = self._end_all(peer, [one for one in peer.running if one not in running], now_s)
        for record in running.values():
            if record.attempt not in peer.running:
                self._start(peer, record, now_s)
        for waiting in snapshot.waiting:
            self.requests.wait(peer.origin, waiting, now_s)
        kept = {one.request for one in (*snapshot.running, *snapshot.waiting)}
        self.requests.keep_only(peer.origin, kept, now_s)
        return freed

    def _apply(self, peer: Peer, records: Iterable[PeerRecord], now_s: float) -> list[WorkerId]:
        freed: list[WorkerId] = []
        for record in records:
            self.num_applied += 1
            match record:
                case SentRecord():
                    if record.attempt not in peer.running:
                        self._start(peer, record, now_s)
                case EndedRecord(attempt=attempt):
                    if (running := peer.running.pop(attempt, None)) is not None:
                        freed.append(running.worker)
                        self.requests.end(running, record, now_s)
                case WaitingRecord():
                    self.requests.wait(peer.origin, record, now_s)
                case LeftRecord():
                    self.requests.leave(peer.origin, record, now_s)
        return freed

    def _start(self, peer: Peer, record: SentRecord, now_s: float) -> None:
        if len(peer.running) >= MOST_RUNNING:
            return
        self.announcer.history.add(record)
        if (running := self.requests.start(peer.origin, record, now_s)) is not None:
            peer.running[record.attempt] = running

    def _end_all(self, peer: Peer, attempts: Iterable[int], now_s: float) -> list[WorkerId]:
        freed: list[WorkerId] = []
        for attempt in attempts:
            running = peer.running.pop(attempt)
            freed.append(running.worker)
            self.requests.end(running, None, now_s)
        return freed

    def _forget(self, peer: Peer, now_s: float) -> Collection[WorkerId]:
        del self._peers[peer.origin]
        self.announcer.wants.pop(peer.origin, None)
        self._served[peer.origin] = peer.served
        if len(self._served) > _MOST_FORGOTTEN:
            del self._served[next(iter(self._served))]
        freed = self._end_all(peer, list(peer.running), now_s)
        self.requests.keep_only(peer.origin, (), now_s)
        return freed
