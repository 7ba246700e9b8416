"""The last prompt of each program at each worker, for routers that have just begun."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from stretto.router.announcing.wire import PastPrompt, PeerHistory, SentRecord

_MOST_BYTES = 8_000_000
"""Bytes of hashes that are kept."""
_MESSAGE_BYTES = 500_000
"""Bytes of hashes in one message."""


class PromptHistory:
    """The hashes of past prompts, those of the latest last."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[tuple[str, str, str], bytes] = OrderedDict()
        self._num_bytes = 0

    def add(self, record: SentRecord) -> None:
        """Add a prompt in the place of an earlier one of its program at the worker."""
        if not record.blocks:
            return
        name = record.program or f"\n{record.attempt}"
        key = record.worker, record.owner, name
        self._num_bytes += len(record.blocks) - len(self._blocks.pop(key, b""))
        self._blocks[key] = record.blocks
        while self._num_bytes > _MOST_BYTES:
            _, blocks = self._blocks.popitem(last=False)
            self._num_bytes -= len(blocks)

    def messages(self, origin: str) -> Iterator[PeerHistory]:
        """Yield all of it in messages of a router."""
        prompts: list[PastPrompt] = []
        num_bytes = 0
        for (worker, _, _), blocks in self._blocks.items():
            prompts.append(PastPrompt(worker, blocks))
            num_bytes += len(blocks)
            if num_bytes >= _MESSAGE_BYTES:
                yield PeerHistory(origin, prompts)
                prompts, num_bytes = [], 0
        if prompts:
            yield PeerHistory(origin, prompts)
