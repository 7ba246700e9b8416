"""The translation between vLLM's batches of KV events and our own events.

vLLM publishes batches, numbered without gaps: `[time, events, rank]`, where an event is a record with its
type, or in older versions a list that begins with it. It names blocks by hashes of its own; they are mapped
to ours, so that one index serves every engine. Blocks that only some requests may use (an adapter, a salt, an
image) are skipped, and so are blocks whose parent is unknown. Copies in host memory or on disk may come
without tokens: they are known by the block that was computed.

Written batches name blocks by our hashes. The first block of a tenant's prompt carries its salt.

Source: vLLM, `vllm/distributed/kv_events.py` (0.9 to 0.32).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from stretto.cluster.block_hashes import BlockHash, Hasher
from stretto.cluster.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent, Medium
from stretto.model.errors import BadReply

Arrival: TypeAlias = Literal["take", "known", "gap", "restart"]

# Fields of an event that comes as a list, behind its type.
_STORED = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name")
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "BlockStored": (*_STORED, "extra_keys", "group_idx"),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}


_MEDIA: Mapping[str, Medium] = {
    "GPU": "device",
    "CPU": "host",
    "CPU_PINNED": "host",
    "DISK": "disk",
    "STORAGE": "disk",
}
"""Names of media in the events of vLLM and SGLang."""


@dataclass(slots=True)
class _Known:
    """A block that a server holds, by our hash, and its number of copies in all media."""

    hash: BlockHash
    num_copies: int = 0


class Sequencer:
    """Checks the numbers of received batches of KV events, which a server counts up without gaps.

    It detects missed and repeated batches, and a server that was restarted.
    """

    def __init__(self) -> None:
        self.next = 0
        """Number of the next batch that has not been read yet."""
        self._last_live = -1

    def arrive(self, number: int) -> Arrival:
        """Record that a batch was received as the server published it (not in a replay), and return what to
        do with it.

        "take": read it, it is the next one. "known": skip it, a replay has delivered it already. "gap":
        batches from `next` on were missed and should be fetched first. "restart": the server was restarted
        and counts from 0 again.
        """
        is_restart = number <= self._last_live
        self._last_live = number
        if is_restart:
            self.next = 0
            return "restart"
        if number < self.next:
            return "known"
        return "gap" if number > self.next else "take"


class KVEventReader:
    """A reader of the batches in which vLLM reports changes of its prefix cache (KV events); it translates
    vLLM's block hashes to ours.

    It remembers the hash that the server uses for each cached block, because evictions name only that. A
    server stores a block twice when two requests compute it side by side, and reports each copy's removal.
    """

    def __init__(self) -> None:
        self._hasher = Hasher(1)
        self._root = self._hasher.root("")
        self._ours: dict[bytes | int, _Known] = {}

    def clear(self) -> list[KVEvent]:
        """Forget all of the server's cached blocks; return the event that reports an empty cache."""
        self._ours.clear()
        return [AllBlocksCleared()]

    def read(self, batch: Any) -> list[KVEvent]:
        """Translate a decoded batch of KV events: return which blocks were stored and evicted, by our hashes.

        Raises:
            BadReply: the value is not a batch of KV events.
        """
        try:
            events = batch["events"] if isinstance(batch, dict) else batch[1]
            if not isinstance(events, list):
                raise TypeError
            return [ours for event in events for ours in self._read(_record(event))]
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise BadReply(f"not a batch of KV events: {batch!r:.200}") from error

    def _read(self, event: Mapping[str, Any]) -> list[KVEvent]:
        if event["type"] == "AllBlocksCleared":
            return self.clear()
        medium = _MEDIA.get(event.get("medium") or "GPU")
        if medium is None or event.get("group_idx") not in (None, 0):
            return []
        if event["type"] == "BlockRemoved":
            known = [self._take_copy(theirs) for theirs in event["block_hashes"]]
            return [BlockRemoved(ours, medium) for ours in known if ours is not None]
        if event["type"] != "BlockStored":
            return []
        return self._copied(event, medium) if not event["token_ids"] else self._stored(event, medium)

    def _take_copy(self, theirs: bytes | int) -> BlockHash | None:
        """Take away a copy of a block; return our hash, or None if the block is not known."""
        known = self._ours.get(theirs)
        if known is None:
            return None
        known.num_copies -= 1
        if not known.num_copies:
            del self._ours[theirs]
        return known.hash

    def _copied(self, event: Mapping[str, Any], medium: Medium) -> list[KVEvent]:
        """Return which known blocks have one more copy, of which the event tells no tokens."""
        copied: list[KVEvent] = []
        for theirs in event["block_hashes"]:
            if (known := self._ours.get(theirs)) is not None:
                known.num_copies += 1
                copied.append(BlockStored(known.hash, b"", (), medium))
        return copied

    def _stored(self, event: Mapping[str, Any], medium: Medium) -> list[KVEvent]:
        hashes, tokens, size = event["block_hashes"], event["token_ids"], event["block_size"]
        if len(tokens) != len(hashes) * size or event.get("lora_id") is not None or event.get("lora_name"):
            return []
        keys: Sequence[Any] = event.get("extra_keys") or [None] * len(hashes)
        theirs = event["parent_block_hash"]
        above = None if theirs is None else self._ours.get(theirs)
        parent = self._root if theirs is None else None if above is None else above.hash
        stored: list[KVEvent] = []
        for i, block_hash in enumerate(hashes):
            if parent is None or keys[i]:
                break
            block = tuple(tokens[i * size : (i + 1) * size])
            ours = self._hasher.chain(parent, block)
            self._ours.setdefault(block_hash, _Known(ours)).num_copies += 1
            stored.append(BlockStored(ours, parent, block, medium))
            parent = ours
        return stored


def write_batch(events: Sequence[KVEvent], published_s: float, salts: Mapping[BlockHash, str]) -> list[Any]:
    """Return changes of a prefix cache as a batch of KV events in vLLM's form.

    Stored blocks that follow each other become one record.

    Args:
        published_s: seconds since the epoch.
        salts: cache salt of each tenant, by the root hash with which the hashes of the tenant's first blocks
            are chained; "" is the salt of the root that all share.
    """
    records: list[dict[str, Any]] = []
    last: BlockHash | None = None
    for event in events:
        match event:
            case BlockStored(block_hash, parent, tokens):
                if parent == last and records[-1]["block_size"] == len(tokens):
                    records[-1]["block_hashes"].append(block_hash)
                    records[-1]["token_ids"].extend(tokens)
                    if "extra_keys" in records[-1]:
                        records[-1]["extra_keys"].append(None)
                else:
                    records.append(_stored_record(block_hash, parent, tokens, salts))
                last = block_hash
            case BlockRemoved(block_hash):
                records.append({"type": "BlockRemoved", "block_hashes": [block_hash], "medium": "GPU"})
                last = None
            case AllBlocksCleared():
                records.append({"type": "AllBlocksCleared"})
                last = None
    return [published_s, records, 0]


def _stored_record(
    block_hash: BlockHash, parent: BlockHash, tokens: Sequence[int], salts: Mapping[BlockHash, str]
) -> dict[str, Any]:
    salt = salts.get(parent)
    return {
        "type": "BlockStored",
        "block_hashes": [block_hash],
        "parent_block_hash": parent if salt is None else None,
        "token_ids": list(tokens),
        "block_size": len(tokens),
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **({"extra_keys": [[salt]]} if salt else {}),
    }


def _record(event: Any) -> Mapping[str, Any]:
    if isinstance(event, dict):
        return event
    if not isinstance(event, list):
        raise TypeError
    kind, *values = event
    return {"type": kind, **dict(zip(_FIELDS.get(kind, ()), values, strict=False))}
