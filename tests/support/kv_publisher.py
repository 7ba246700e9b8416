"""The publishing side of vLLM's KV events: its messages, and a publisher that can lose some of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import zmq
import zmq.asyncio

END = (-1).to_bytes(8, "big", signed=True)


def stored(
    hashes: Sequence[bytes | int], parent: bytes | int | None, tokens: Sequence[int], **more: Any
) -> Any:
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **more,
    }


def removed(*hashes: bytes | int, **more: Any) -> Any:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", **more}


CLEARED = {"type": "AllBlocksCleared"}


class Publisher:
    """A stand-in for vLLM's publisher of KV events. `kept` answers replays; set it to lose something."""

    def __init__(self, context: zmq.asyncio.Context) -> None:
        self._pub = context.socket(zmq.XPUB)  # as PUB, but it hears of subscribers
        self._router = context.socket(zmq.ROUTER)
        self.endpoint = f"tcp://127.0.0.1:{self._pub.bind_to_random_port('tcp://127.0.0.1')}"
        self.replay_endpoint = f"tcp://127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        self.kept: dict[int, bytes] = {}
        self.asked: list[int] = []

    async def subscribed(self) -> None:
        await self._pub.recv()

    async def publish(self, number: int, *events: Any, is_lost: bool = False, payload: bytes = b"") -> None:
        payload = payload or msgspec.msgpack.encode([0.5, list(events), 0])
        self.kept[number] = payload
        if not is_lost:
            await self._pub.send_multipart([b"", number.to_bytes(8, "big"), payload])

    async def replay(self) -> None:
        """Serve replays for ever, the first in the form of older versions."""
        while True:
            client, _, start = await self._router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            topic = [b""] if len(self.asked) > 1 else []
            for number, payload in self.kept.items():
                if number >= self.asked[-1]:
                    frames = [client, b"", *topic, number.to_bytes(8, "big"), payload]
                    await self._router.send_multipart(frames)
            await self._router.send_multipart([client, b"", *topic, END, b""])


@asynccontextmanager
async def publishing() -> AsyncIterator[Publisher]:
    context = zmq.asyncio.Context()
    publisher = Publisher(context)
    replaying = asyncio.create_task(publisher.replay())
    try:
        yield publisher
    finally:
        replaying.cancel()
        await asyncio.wait([replaying])
        context.destroy(linger=0)
