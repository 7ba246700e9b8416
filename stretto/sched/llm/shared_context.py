"""The parts of prompts that several requests at an instance have in common, so that they count once.

An instance that reports its prefix cache holds a block of KV once, however many requests read it. Only the
requests of jobs (what a caller of a session waits for) are compared. They come in groups whose prompts begin
alike, and would fill an instance's budget long before they fill its memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.messages import InstanceId
from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.prompt_keys import BYTES


class SharedContext:
    """The blocks of the prompts of some requests at each instance of an engine, and how many requests have
    each block.
    """

    def __init__(self) -> None:
        self._spaces: dict[InstanceId, str] = {}
        self._counts: dict[InstanceId, dict[BlockHash, int]] = {}

    def __bool__(self) -> bool:
        """Return whether some request has a block at some instance."""
        return any(self._counts.values())

    def join(self, instance: InstanceId, space: str) -> None:
        """Add an instance, with the name of its space.

        Nothing is shared at an instance that does not report its cache.
        """
        if space and space != BYTES.name:
            self._spaces[instance] = space
            self._counts[instance] = {}

    def leave(self, instance: InstanceId) -> None:
        """Remove an instance with all its requests."""
        self._spaces.pop(instance, None)
        self._counts.pop(instance, None)

    def add(self, instance: InstanceId, request: PlacementRequest) -> int:
        """Add a request at an instance; return how many tokens of its prompt others there have too."""
        blocks, block_tokens = self._blocks(instance, request)
        if not blocks:
            return 0
        counts, num_shared = self._counts[instance], 0
        for block in blocks:
            before = counts.get(block, 0)
            counts[block] = before + 1
            num_shared += before > 0
        return num_shared * block_tokens

    def remove(self, instance: InstanceId, request: PlacementRequest) -> int:
        """Remove a request from an instance; return how many tokens of its prompt others there have too."""
        blocks, block_tokens = self._blocks(instance, request)
        if not blocks:
            return 0
        counts, num_shared = self._counts[instance], 0
        for block in blocks:
            if left := counts[block] - 1:
                counts[block] = left
                num_shared += 1
            else:
                del counts[block]
        return num_shared * block_tokens

    def tokens(self, instance: InstanceId, request: PlacementRequest) -> int:
        """Return how many tokens of a request's prompt the requests at an instance have too."""
        blocks, block_tokens = self._blocks(instance, request)
        if not blocks:
            return 0
        counts = self._counts[instance]
        if blocks[0] not in counts:
            return 0
        return block_tokens * bisect_left(blocks, True, key=lambda block: block not in counts)

    def by_instance(self, request: PlacementRequest) -> dict[InstanceId, int]:
        """Return how many tokens of a request's prompt the requests at each instance have too, without the
        instances where it is none.
        """
        if not request.purpose.job:
            return {}
        found = ((instance, self.tokens(instance, request)) for instance in self._spaces)
        return {instance: num_tokens for instance, num_tokens in found if num_tokens}

    def num_repeated(self, instance: InstanceId, requests: Iterable[PlacementRequest]) -> int:
        """Return how many tokens of the prompts of some requests repeat what another of them has. For tests:
        computed anew.
        """
        seen, num_tokens = set[BlockHash](), 0
        for request in requests:
            blocks, block_tokens = self._blocks(instance, request)
            num_tokens += block_tokens * sum(block in seen for block in blocks)
            seen.update(blocks)
        return num_tokens

    def _blocks(self, instance: InstanceId, request: PlacementRequest) -> tuple[Sequence[BlockHash], int]:
        """Return the full blocks of a prompt, and the tokens of each. A request without a job has none.

        A prompt's number of tokens may be an estimate. Its blocks have no more tokens than that.
        """
        space = self._spaces.get(instance)
        if space is None or not request.purpose.job or (key := request.keys.get(space)) is None:
            return (), 0
        return key.blocks[: request.num_tokens // key.block_tokens], key.block_tokens
