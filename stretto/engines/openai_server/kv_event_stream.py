"""The subscription to vLLM's KV events over ZeroMQ: changes of its prefix cache, from now on, without gaps.

A subscriber comes late, and a publisher drops what it cannot send. Missed batches are requested from the
publisher's replay endpoint; without one, or if it does not reach back so far, all is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator

import zmq
import zmq.asyncio

from stretto.cluster.kv_events import KVEvent
from stretto.engines.openai_server.config import KVEventsConfig
from stretto.model.errors import ConfigError
from stretto.wire.kv_events import KVEventReader, Sequencer
from stretto.wire.kv_frames import decode_kv_batch, ends_replay, split_message, write_replay_request


class KVEventStream:
    """A subscription to the KV events that one vLLM server publishes, which say what its prefix cache stores
    and evicts.

    It can be iterated once. A vLLM server with several data-parallel ranks needs one subscription for each.
    """

    def __init__(self, config: KVEventsConfig) -> None:
        self._config = config
        self._reader = KVEventReader()
        self._sequencer = Sequencer()

    async def events(self) -> AsyncGenerator[list[KVEvent], None]:
        """Yield each batch of changes of the server's prefix cache, for ever.

        Where some were missed for good, `AllBlocksCleared` is yielded, because the contents are unknown then.

        Raises:
            ConfigError: an endpoint's address cannot be used.
            BadReply: a message does not contain KV events.
        """
        context = zmq.asyncio.Context()
        try:
            live = self._connect(context, zmq.SUB, self._config.endpoint)
            live.subscribe(self._config.topic.encode())
            for events in await self._catch_up(context):
                yield events
            last: tuple[int, bytes] | None = None
            while True:
                number, payload = message = split_message(await live.recv_multipart())
                if message == last:
                    continue  # it came twice: batches of a restarted server have other times
                last = message
                arrival = self._sequencer.arrive(number)
                if arrival == "known":
                    continue
                if arrival == "restart":
                    yield self._reader.clear()
                if number > self._sequencer.next:
                    for events in await self._catch_up(context):
                        yield events
                if number >= self._sequencer.next:
                    for events in self._take(number, payload):
                        yield events
        finally:
            context.destroy(linger=0)

    async def _catch_up(self, context: zmq.asyncio.Context) -> list[list[KVEvent]]:
        """Return the batches that the publisher still has, starting with `next`.

        If the publisher does not answer in time, the next batch shows the gap.
        """
        caught_up: list[list[KVEvent]] = []
        if self._config.replay_endpoint is None:
            return caught_up
        socket = self._connect(context, zmq.DEALER, self._config.replay_endpoint)
        try:
            async with asyncio.timeout(self._config.timeout_s):
                await socket.send_multipart(write_replay_request(self._sequencer.next))
                while not ends_replay(frames := await socket.recv_multipart()):
                    number, payload = split_message(frames)
                    if number >= self._sequencer.next:
                        caught_up += self._take(number, payload)
        except TimeoutError:
            pass
        finally:
            socket.close(linger=0)
        return caught_up

    def _take(self, number: int, payload: bytes) -> Iterator[list[KVEvent]]:
        """Yield the events of a batch. After a gap that cannot be filled, all before it is cleared."""
        if number > self._sequencer.next:
            yield self._reader.clear()
        self._sequencer.next = number + 1
        yield self._reader.read(decode_kv_batch(payload))

    def _connect(self, context: zmq.asyncio.Context, kind: int, endpoint: str) -> zmq.asyncio.Socket:
        socket = context.socket(kind)
        socket.ipv6 = "[" in endpoint  # with it, a host's name would stand for its IPv6 address first
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise ConfigError(f"cannot connect to {endpoint!r}: {error}") from error
        return socket
