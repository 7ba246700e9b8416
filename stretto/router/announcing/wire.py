"""The messages by which routers before the same workers tell each other what they send there.

They are arrays of MessagePack. A message has two frames: the topic, which names the version of this format,
and the message. Routers of several versions ignore each other. A new field stands at the end of a message,
and has a default: routers that do not know it read the others. Any other change makes a new version.

Workers are named by their addresses, and owners of requests by name or by the digest of their key. No text of
a prompt is sent, only hashes of its blocks.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from stretto.cluster.prefix_hashes import HASH_BYTES
from stretto.model.errors import BadReply
from stretto.model.tasks import Objective

TOPIC_PREFIX = b"stretto-peers-"
TOPIC = TOPIC_PREFIX + b"2"
MOST_BYTES = 16_000_000
"""Bytes of hashes in one message; one of more than twice as many bytes is not read."""
MOST_RECORDS = 4096
"""Records of one message."""

MOST_LETTERS = 512
"""Letters of a name; longer ones are cut."""
MOST_RUNNING = 100_000
"""Attempts of one router that count; more are left out."""
MOST_OWNERS = 4096
"""Owners whose work a router tells. Those who listen remember twice as many."""
RoomThere: TypeAlias = Literal["inside", "outside", "held", "unknown"]
_Name = Annotated[str, Meta(max_length=MOST_LETTERS)]
_Origin = Annotated[str, Meta(min_length=1, max_length=64)]
_Count = Annotated[int, Meta(ge=0, le=2**40)]
_Seconds = Annotated[float, Meta(ge=0.0, le=1e12)]
_Blocks = Annotated[bytes, Meta(max_length=8_000_000)]


class WaitingRecord(Struct, array_like=True, tag="waiting", frozen=True):
    """Record: a request waits at its router, for room in KV memory or for its turn.

    Attributes:
        request: number that no other request of its router has.
        num_output: tokens that the answer is expected to have.
        blocks: hashes of the full blocks of its prompt, joined.
        room: whether its program has room in a worker's memory ("inside"), has none ("outside"), waits for it
            ("held"), or is not known to the account of that ("unknown").
    """

    request: _Count
    model: _Name
    owner: _Name
    program: _Name
    has_returned: bool
    is_final: bool
    num_tokens: _Count
    num_output: _Count
    blocks: _Blocks
    room: RoomThere


class SentRecord(WaitingRecord, array_like=True, tag="sent", frozen=True):
    """Record: a request was sent to a worker.

    Attributes:
        attempt: number that no other attempt of its router has; a request may have several.
        worker: address of the worker.
        held_tokens: tokens of its prompt that the worker is believed to hold.
    """

    attempt: _Count
    worker: _Name
    held_tokens: _Count
    objective: Objective


class EndedRecord(Struct, array_like=True, tag="ended", frozen=True):
    """Record: an attempt has ended. Counts are those that its worker told; None where it did not."""

    attempt: _Count
    num_prompt: _Count | None
    num_output: _Count | None
    num_cached: _Count | None
    is_older_api: bool
    is_timed: bool
    was_refused: bool


class LeftRecord(Struct, array_like=True, tag="left", frozen=True):
    """Record: a request has left its router. Only those are told that the account of room knows."""

    request: _Count
    num_prompt: _Count | None
    num_cached: _Count
    num_output: _Count
    was_refused: bool


PeerRecord: TypeAlias = WaitingRecord | SentRecord | EndedRecord | LeftRecord
_Records = Annotated[list[PeerRecord], Meta(max_length=MOST_RECORDS)]
_Served = Annotated[dict[_Name, _Seconds], Meta(max_length=2 * MOST_OWNERS)]


_Waits = Annotated[dict[_Name, Annotated[dict[_Name, _Count], Meta(max_length=8192)]], Meta(max_length=8192)]


class PeerBatch(Struct, array_like=True, tag="batch", frozen=True):
    """Message: what has happened at a router since its last batch. Without records it is a sign of life.

    Attributes:
        origin: name of the router's process, which no other one has.
        number: number of this batch, from 1 on; without records, that of the last batch that had some.
        served: seconds of work that owners have got of this router since it began, of those that got some.
        wants: routers of which a snapshot is wanted, with whether all that they remember is.
        waits: requests that wait for their turn, by worker and owner; None if nothing has changed.
        is_pressed: whether something waits there, for its turn or for room.
    """

    origin: _Origin
    number: _Count
    records: _Records = []
    served: _Served = {}
    wants: Annotated[dict[_Origin, bool], Meta(max_length=256)] = {}
    waits: _Waits | None = None
    is_pressed: bool = False


class PeerSnapshot(Struct, array_like=True, tag="snapshot", frozen=True):
    """Message: all that runs of a router after the batch `number`, and what waits there."""

    origin: _Origin
    number: _Count
    running: Annotated[list[SentRecord], Meta(max_length=MOST_RUNNING)]
    served: _Served
    waits: _Waits
    waiting: Annotated[list[WaitingRecord], Meta(max_length=MOST_RUNNING)] = []


class PastPrompt(Struct, array_like=True, frozen=True):
    """A prompt that a worker has got, and probably holds in its cache."""

    worker: _Name
    blocks: _Blocks


class PeerHistory(Struct, array_like=True, tag="history", frozen=True):
    """Message: prompts that workers have got, the latest last."""

    origin: _Origin
    prompts: Annotated[list[PastPrompt], Meta(max_length=100_000)]


class PeerBye(Struct, array_like=True, tag="bye", frozen=True):
    """Message: a router ends."""

    origin: _Origin


PeerMessage: TypeAlias = PeerBatch | PeerSnapshot | PeerHistory | PeerBye

write_message = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(PeerMessage)


def short_name(name: str) -> str:
    """Return a name that every router reads: clients may choose any, of any length."""
    if len(name) > MOST_LETTERS:
        name = name[:MOST_LETTERS]
    return name if name.isascii() else name.encode("utf-8", "replace").decode()


def read_message(data: bytes) -> PeerMessage:
    """Return the message that some bytes are.

    Raises:
        BadReply: they are none.
    """
    try:
        message: PeerMessage = _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadReply(f"this is no message of a router: {error}") from error
    for blocks in _all_blocks(message):
        if len(blocks) % HASH_BYTES:
            raise BadReply(f"{len(blocks)} bytes are no hashes of {HASH_BYTES} bytes")
    return message


def _all_blocks(message: PeerMessage) -> list[bytes]:
    match message:
        case PeerBatch(records=records):
            return [one.blocks for one in records if isinstance(one, WaitingRecord)]
        case PeerSnapshot(running=running, waiting=waiting):
            return [one.blocks for one in (*running, *waiting)]
        case PeerHistory(prompts=prompts):
            return [one.blocks for one in prompts]
    return []
