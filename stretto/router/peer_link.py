"""The driver of the exchange between routers before the same workers: PUB and SUB sockets of ZeroMQ.

What a router has to tell is gathered for `Peers.gather_s`, and sent at once. A peer that cannot be reached is
tried again for ever; one that takes nothing is not waited for. Needs the packages of the extra `kv-events`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from uuid import uuid4

import zmq

from stretto.model.errors import BadReply, ConfigError
from stretto.router.announcing.announcer import BEAT_S
from stretto.router.announcing.wire import MOST_BYTES, TOPIC, TOPIC_PREFIX, PeerMessage, write_message
from stretto.router.config import RouterConfig
from stretto.router.front import Front
from stretto.router.peers.peers import SILENT_S

_MOST_MESSAGES = 300
"""Messages that wait for a router that takes none, or has no time to; after more it asks for a snapshot."""
_LAST_MS = 200
"""Milliseconds in which peers may still be told that this router ends."""
_log = logging.getLogger(__name__)


class PeerLink:
    """The exchange of one router with its peers, in the running event loop.

    Raises:
        ConfigError: an address cannot be used.
    """

    def __init__(self, front: Front, config: RouterConfig) -> None:
        self._front = front
        self._loop = asyncio.get_running_loop()
        self._peers = front.router_state.follow_peers(uuid4().hex)
        self._context = zmq.Context()
        self._has_warned = self._has_missed = self._has_warned_of_deaf = False
        self._num_given = len(config.peer)
        self._heard: set[str] = set()
        self._all_heard_s = monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._out = self._context.socket(zmq.PUB)
        self._in = self._context.socket(zmq.SUB)
        for socket in (self._out, self._in):
            socket.linger = 0
        self._out.sndhwm = self._in.rcvhwm = _MOST_MESSAGES
        self._in.maxmsgsize = 2 * MOST_BYTES
        self._in.subscribe(TOPIC_PREFIX)
        try:
            assert config.announce is not None, "the link is made only where it is given"
            _use(self._out, self._out.bind, config.announce)
            for address in config.peer:
                _use(self._in, self._in.connect, address)
        except ConfigError:
            self._out.close(linger=0)
            self._context.destroy(linger=0)
            raise
        self.address = self._out.getsockopt_string(zmq.LAST_ENDPOINT)
        """Where it announces, with the port that was taken."""
        _log.info("this router announces at %s: process %r", self.address, self._peers.announcer.origin)
        self._peers.announcer.on_news = self._soon
        self._fd = self._in.fileno()
        self._loop.add_reader(self._fd, self._read)
        self._more: asyncio.Handle = self._loop.call_soon(self._read)
        self._beat = self._loop.call_later(0.0, self._live_on)

    @property
    def num_peers(self) -> int:
        """Number of peers that are known now."""
        return len(self._peers.origins)

    @property
    def num_heard(self) -> int:
        """Number of records of peers that were applied."""
        return self._peers.num_applied

    async def close(self) -> None:
        """Say that this router ends, and close the sockets."""
        self._beat.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._peers.announcer.on_news = lambda: None
        self._loop.remove_reader(self._fd)
        self._more.cancel()
        self._send(self._peers.announcer.farewell())
        self._out.close(linger=_LAST_MS)
        self._context.destroy(linger=0)

    def _soon(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._peers.gather_s, self._tell)

    def _tell(self) -> None:
        self._timer = None
        for message in self._peers.announcer.messages(monotonic()):
            self._send(message)
        if self._peers.announcer.is_asked:
            self._soon()

    def _live_on(self) -> None:
        self._beat = self._loop.call_later(BEAT_S / 2, self._live_on)  # also after a bug
        self._tell_now()
        self._front.catch_up()
        self._front.act(self._peers.forget_silent(monotonic()))
        self._note_heard()
        self._note_missing(monotonic())

    def _note_heard(self) -> None:
        """Say once of each router that it is heard, and once that it is forgotten."""
        origins = self._peers.origins
        if self._heard == origins:
            return
        text = "another router is %s: process %r; routers that are heard now: %d, addresses in peer: %d"
        for verb, changed in (("heard", origins - self._heard), ("forgotten", self._heard - origins)):
            for origin in sorted(changed):
                _log.info(text, verb, origin, len(origins), self._num_given)
        self._heard = set(origins)

    def _note_missing(self, now_s: float) -> None:
        """Warn of routers that are not heard, once until all are, and of one that does not hear this one."""
        num_heard = len(self._peers.origins) + self._peers.hears_itself
        if num_heard >= self._num_given:
            self._all_heard_s, self._has_missed = now_s, False
        elif not self._has_missed and now_s >= self._all_heard_s + SILENT_S:
            self._has_missed = True
            _log.warning(
                "%d of %d other routers are heard; the others do not run, have other versions, or announce "
                "at other addresses than those that peer gives",
                num_heard,
                self._num_given,
            )
        if not self._has_warned_of_deaf and self._peers.has_deaf(now_s):
            self._has_warned_of_deaf = True
            _log.warning(
                "another router does not hear this one, so what it sends does not count here; "
                "each router has to name all others"
            )

    def _tell_now(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._tell()

    def _send(self, message: PeerMessage) -> None:
        with suppress(zmq.Again):
            self._out.send_multipart([TOPIC, write_message(message)], zmq.NOBLOCK)

    def _read(self) -> None:
        """Take a message that has come. The socket says once that there are some, and no more until all of
        them are taken; before each further one, others have their turn.
        """
        try:
            frames = self._in.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        self._more.cancel()
        self._more = self._loop.call_soon(self._read)
        self._take(frames)

    def _take(self, frames: list[bytes]) -> None:
        now_s = monotonic()
        try:
            if len(frames) != 2 or frames[0] != TOPIC:
                raise BadReply(f"it has {len(frames)} frames, and the topic {frames[0]!r:.60}")
            self._front.settle()
            self._front.act(self._peers.receive(frames[1], now_s))
            self._note_heard()
        except BadReply as error:
            self._warn(error.message)
        except Exception:
            _log.exception("what another router has said could not be noted")

    def _warn(self, reason: str) -> None:
        """Warn once of a message that cannot be read: whoever sends one sends many."""
        if not self._has_warned:
            self._has_warned = True
            text = "a message of another router is ignored: %s; further ones are ignored without a warning"
            _log.warning(text, reason)


def _use(socket: zmq.Socket[bytes], method: Callable[[str], object], address: str) -> None:
    """Bind or connect a socket."""
    socket.ipv6 = "[" in address  # with it, a host's name would stand for its IPv6 address first
    try:
        method(address)
    except zmq.ZMQError as error:
        raise ConfigError(f"router: {address!r} cannot be used to talk to other routers: {error}") from error
