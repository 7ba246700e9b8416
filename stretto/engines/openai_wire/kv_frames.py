"""Messages of KV events as they cross ZeroMQ: frames of bytes, with a batch in msgpack as the last.

Publishers send topic, number and batch, numbered without gaps. A subscriber that has missed some asks with an
empty frame and the first number it lacks; it is sent number and batch of each that is still kept, and at last
a message whose number is -1.

Needs the package msgspec (the extra `kv-events`).

Source: vLLM 0.32, `vllm/distributed/kv_events.py` (`ZmqEventPublisher`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stretto.errors import BadReply

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
"""Frame with the number of the message that ends a replay."""


def write_message(topic: str, number: int, batch: Any) -> list[bytes]:
    """Return the frames that publish a batch."""
    return [topic.encode(), number.to_bytes(8, "big"), msgspec.msgpack.encode(batch)]


def split_message(frames: Sequence[bytes]) -> tuple[int, bytes]:
    """Return the number and payload of a message, with or without a topic before them. Raises BadReply."""
    if len(frames) < 2 or len(frames[-2]) != 8:
        raise BadReply(f"not a message of KV events: {frames!r:.200}")
    return int.from_bytes(frames[-2], "big"), frames[-1]


def ends_replay(frames: Sequence[bytes]) -> bool:
    """Return whether a message is the last of a replay."""
    return list(frames[-2:-1]) == [END_OF_REPLAY]


def read_batch(payload: bytes) -> Any:
    """Decode the payload of a message into plain values. Raises BadReply."""
    try:
        return msgspec.msgpack.decode(payload)
    except msgspec.DecodeError as error:
        raise BadReply(f"not msgpack: {payload[:100]!r}") from error


def write_replay_request(first: int) -> list[bytes]:
    """Return the frames that ask for the batches from number `first` on."""
    return [b"", first.to_bytes(8, "big")]


def read_replay_request(frames: Sequence[bytes]) -> int:
    """Return the first number that a replay request asks for, from the frames after the subscriber's
    identity.

    Raises:
        BadReply: the frames are not a request for a replay.
    """
    if len(frames) != 2 or frames[0] or len(frames[1]) != 8:
        raise BadReply(f"not a request for a replay: {frames!r:.200}")
    return int.from_bytes(frames[1], "big")
