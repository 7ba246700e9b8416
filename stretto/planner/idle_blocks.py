"""The cached KV blocks that no running request uses, in the order in which they are evicted.

A request that has ended leaves a run of full blocks, and its last block if that is not full (the tail). A
preempted one leaves its full blocks, and finds again what is left of them. The order is that of the
production prefix cache: least recently used first, a tail before the run that it ends, and the last block of
a run first.

A stamp is a number that says when a run or a tail was last used; it contains the request's number.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

REQUEST_BITS = 24
REQUEST_MASK = (1 << REQUEST_BITS) - 1
PHASE_BITS = 2
_PREFILL_BITS = 24
HELD, STORED, ENDED = 0, 1, 2
"""Phases of a step in which blocks are used: found again, filled, or left as the tail of an ended request."""
MAX_REQUESTS = REQUEST_MASK


def stamp(step: int, is_decode: bool, prefill: int, phase: int, request: int) -> int:
    """Return the stamp of a use of blocks.

    Args:
        step: number of the decode step, or of the one that follows a step of prefills alone.
        is_decode: whether the step computes decodes, or may.
        prefill: number of the step among those with prefills alone.
    """
    moment = (2 * step + is_decode) << _PREFILL_BITS | prefill
    return (moment << PHASE_BITS | phase) << REQUEST_BITS | request


class IdleBlocks:
    """The idle blocks of one simulated LLM instance, by request.

    Attributes:
        num_kept: full blocks of each request that are still cached.
        used: stamp of each request's run.
    """

    def __init__(self) -> None:
        self.num_kept: list[int] = []
        self.used: list[int] = []
        self._heap: list[int] = []

    def add_request(self) -> None:
        """Make room for one more request, which has no blocks yet."""
        self.num_kept.append(0)
        self.used.append(0)

    def leave(self, request: int, num_full: int, used: int, tail: int) -> None:
        """Add the blocks of a request that has ended or was preempted.

        Args:
            used: stamp of its full blocks.
            tail: stamp of its last block, if that is not full; else 0.
        """
        self.num_kept[request] = num_full
        self.used[request] = used
        if tail or num_full:
            heappush(self._heap, tail or used)

    def hold(self, request: int, used: int) -> int:
        """Let a preempted request use its cached blocks again. Returns their number."""
        num_kept = self.num_kept[request]
        self.num_kept[request] = 0
        self.used[request] = used
        return num_kept

    def evict(self, num_blocks: int) -> None:
        """Evict blocks; there must be as many."""
        evict(self._heap, self.num_kept, self.used, num_blocks)


def evict(idle: list[int], kept: list[int], used: list[int], num_blocks: int) -> None:
    """Evict idle blocks, the least recently used first; there must be as many.

    Args:
        idle: heap of stamps of requests' last blocks that are not full, or of their full ones.
        kept: full blocks of each request that are still cached.
        used: stamp of each request's full blocks.
    """
    while num_blocks:
        first = idle[0]
        request = first & REQUEST_MASK
        if first >> REQUEST_BITS & 3 == ENDED:
            num_blocks -= 1
            if kept[request]:
                heapreplace(idle, used[request])
            else:
                heappop(idle)
        elif used[request] != first:
            heappop(idle)
        elif kept[request] > num_blocks:
            kept[request] -= num_blocks
            return
        else:
            num_blocks -= kept[request]
            kept[request] = 0
            heappop(idle)
