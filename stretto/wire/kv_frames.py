"""ZeroMQ messages in which vLLM publishes what its prefix cache stored and evicted (KV events).

A message is a list of frames: topic, number (8 bytes, counting up without gaps), and a batch of events in
msgpack. A subscriber that has missed some sends a replay request: an empty frame, and the first number it
lacks. It is sent number and batch of each message that is still kept, and at last one whose number is -1.

Needs the package msgspec (the extra `kv-events`).

Source: vLLM 0.32, `vllm/distributed/kv_events.py` (`ZmqEventPublisher`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stretto.model.errors import BadReply

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
"""Frame with the number of the message that ends a replay."""


def write_message(topic: str, number: int, batch: Any) -> list[bytes]:
    """Return the frames of the message that publishes a batch of KV events: topic, number and batch."""
    return [topic.encode(), number.to_bytes(8, "big"), msgspec.msgpack.encode(batch)]


def split_message(frames: Sequence[bytes]) -> tuple[int, bytes]:
    """Return the number and the batch (still encoded) of a ZeroMQ message with KV events, which report
    changes of a prefix cache.

    A topic before them, as in published messages, is ignored.

    Raises:
        BadReply: the frames are no such message.
    """
    if len(frames) < 2 or len(frames[-2]) != 8:
        raise BadReply(f"not a message of KV events: {frames!r:.200}")
    return int.from_bytes(frames[-2], "big"), frames[-1]


def ends_replay(frames: Sequence[bytes]) -> bool:
    """Return whether a message says that the replay of missed KV event messages is over."""
    return list(frames[-2:-1]) == [END_OF_REPLAY]


def decode_kv_batch(payload: bytes) -> Any:
    """Decode a message's batch of KV events from msgpack to plain values. Raises BadReply if it cannot be
    decoded.
    """
    try:
        return msgspec.msgpack.decode(payload)
    except msgspec.DecodeError as error:
        raise BadReply(f"not msgpack: {payload[:100]!r}") from error


def write_replay_request(first: int) -> list[bytes]:
    """Return the frames of a request to a server to send its KV event messages from number `first` on
    again.
    """
    return [b"", first.to_bytes(8, "big")]


def read_replay_request(frames: Sequence[bytes]) -> int:
    """Return the number of the first KV event message that a subscriber asks to be sent again.

    `frames` are those of the request, after the subscriber's identity, which ZeroMQ adds.

    Raises:
        BadReply: the frames are not a request for a replay.
    """
    if len(frames) != 2 or frames[0] or len(frames[1]) != 8:
        raise BadReply(f"not a request for a replay: {frames!r:.200}")
    return int.from_bytes(frames[1], "big")
