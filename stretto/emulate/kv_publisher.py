"""The publisher of an emulated server's KV events on ZeroMQ, as vLLM has it.

Needs the packages of the extra `kv-events`.

Source: vLLM 0.32, `vllm/distributed/kv_events.py` (`ZmqEventPublisher`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

import zmq
import zmq.asyncio

from stretto.cluster.block_hashes import Hasher
from stretto.cluster.kv_events import KVEvent
from stretto.engines.openai_server.config import KVEventsConfig
from stretto.model.errors import BadReply, ConfigError
from stretto.wire.kv_events import write_batch
from stretto.wire.kv_frames import END_OF_REPLAY, read_replay_request, write_message

_MAX_KEPT = 10_000
_MAX_SALTS = 10_000
_AT_ONCE = 100
"""Number of messages that are sent again before the event loop does other work."""


class KVPublisher:
    """A publisher of KV events, which sends missed ones again.

    Args:
        config: where it publishes, and where missed events are asked for.

    Raises:
        ConfigError: an address cannot be used.
    """

    def __init__(self, config: KVEventsConfig) -> None:
        self.delay_s = 0.0
        """Real seconds by which messages are late, as a fault on request."""
        self.lost_share = 0.0
        """Share of the messages that nobody ever receives, as a fault on request."""
        self._topic = config.topic
        self._random = Random(0)
        self._hasher = Hasher(1)
        self._salts = {self._hasher.root(""): ""}
        self._number = 0
        self._num_restarts = 0
        self._kept: deque[tuple[int, list[bytes]]] = deque(maxlen=_MAX_KEPT)
        self._context = zmq.asyncio.Context()
        self._replaying: asyncio.Task[None] | None = None
        self._live = zmq.Context(self._context).socket(zmq.PUB)
        self._replays = self._context.socket(zmq.ROUTER)
        self._replays.sndhwm = _MAX_KEPT + 1  # else a long replay loses its end
        try:
            _bind(self._live, config.endpoint)
            if config.replay_endpoint is not None:
                _bind(self._replays, config.replay_endpoint)
                self._replaying = asyncio.get_running_loop().create_task(self._replay())
        except ConfigError:
            self.close()
            raise

    def know(self, salt: str) -> None:
        """Remember the salt of a tenant who has a request now, which events of the tenant's blocks carry.

        Only the last ten thousand tenants are remembered. The blocks of others follow a block that no
        subscriber knows.
        """
        salts, root = self._salts, self._hasher.root(salt)
        salts.pop(root, None)
        salts[root] = salt
        while len(salts) > _MAX_SALTS:
            oldest = next(iter(salts))
            if salts.pop(oldest) == "":  # all requests without a salt have it
                salts[oldest] = ""

    def publish(self, events: Sequence[KVEvent]) -> None:
        """Send a batch of changes of the prefix cache."""
        message = write_message(self._topic, self._number, write_batch(events, time.time(), self._salts))
        number, self._number = self._number, self._number + 1
        if self._random.random() < self.lost_share:
            return
        self._kept.append((number, message))
        if self.delay_s:
            asyncio.get_running_loop().call_later(self.delay_s, self._send, message, self._num_restarts)
        else:
            self._send(message, self._num_restarts)

    def restart(self) -> None:
        """Forget what was published, also what is late: numbers begin at 0 again, as after a restart of the
        server.
        """
        self._num_restarts += 1
        self._number = 0
        self._kept.clear()

    def close(self) -> None:
        """Close the sockets."""
        if self._replaying is not None:
            self._replaying.cancel()
        self._live.close()
        self._context.destroy(linger=0)

    def _send(self, message: list[bytes], num_restarts: int) -> None:
        if not self._live.closed and num_restarts == self._num_restarts:
            with suppress(zmq.Again):
                self._live.send_multipart(message, zmq.NOBLOCK)

    async def _replay(self) -> None:
        """Answer requests for missed messages."""
        while True:
            client, *frames = await self._replays.recv_multipart()
            with suppress(BadReply):
                first = read_replay_request(frames)
                wanted = [message for number, message in self._kept if number >= first]
                for place, (_, count, batch) in enumerate(wanted, 1):
                    await self._replays.send_multipart([client, b"", count, batch])
                    if place % _AT_ONCE == 0:
                        await asyncio.sleep(0)
                await self._replays.send_multipart([client, b"", END_OF_REPLAY, b""])


def _bind(socket: zmq.Socket[Any], endpoint: str) -> None:
    socket.linger = 0
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(f"KV events cannot be published at {endpoint!r}: {error}") from error
