"""Replays calls on one prefix cache, and counts the blocks of prompts that it has to compute."""

from __future__ import annotations

import bisect
import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from benchmarks.retain.calls import Call
from stretto.cluster.block_hashes import Hasher
from stretto.llm.cache.block_pool import BlockPool
from stretto.llm.cache.prefix_cache import PrefixCache
from stretto.model.tasks import Reuse
from stretto.sched.llm.reuse_forecasts import ReuseForecasts
from stretto.sim.synthetic_output import prompt_ids

BLOCK_TOKENS = 16


def largest(calls: Sequence[Call]) -> int:
    """Return the number of blocks of the largest call, with which a cache must have room for it."""
    return max(-(-len(call.tokens()[0]) // BLOCK_TOKENS) for call in calls)


def cached(calls: Sequence[Call], num_blocks: int, *, forecasts: bool) -> int:
    """Replay calls on the production cache; return how many full blocks of prompts it did not have.

    Calls run one after the other, in the order of their starts. With `forecasts`, the cache is told after
    each call what the production forecaster says; else the least recently used leaves are evicted.
    """
    replay = _Replay(num_blocks, forecasts)
    num_left = Counter(call.request.query for call in calls)
    num_missed = 0
    for call in calls:
        query = call.request.query
        num_left[query] -= 1
        num_missed += replay.run(call)
        replay.end(call, is_last=not num_left[query])
    return num_missed


class _Replay:
    def __init__(self, num_blocks: int, forecasts: bool) -> None:
        self._cache = PrefixCache(BlockPool(num_blocks), BLOCK_TOKENS)
        self._forecasts = ReuseForecasts() if forecasts else None

    def run(self, call: Call) -> int:
        """Compute a call and leave its blocks to the cache; return how many of its prompt were not there."""
        cache, query = self._cache, call.request.query
        cache.now_s = call.start_s
        if self._forecasts is not None:
            self._forecasts.arrived(call.request, call.start_s)
        tokens, num_prompt = call.tokens()
        hit = cache.look_up("", tokens, num_prompt)
        num_held, num_full = len(hit.blocks), len(tokens) // BLOCK_TOKENS
        node = cache.hold(hit, query)
        new = cache.acquire(-(-len(tokens) // BLOCK_TOKENS) - num_held)
        if num_held < num_full:
            full = tokens[num_held * BLOCK_TOKENS : num_full * BLOCK_TOKENS]
            node, _ = cache.store("", node, full, new[: num_full - num_held], query)
        cache.pool.release(new[num_full - num_held :])
        cache.release(node)
        return num_prompt // BLOCK_TOKENS - num_held

    def end(self, call: Call, *, is_last: bool) -> None:
        """Tell the cache what the query will need again of a call that has ended."""
        cache, query, now_s = self._cache, call.request.query, call.end_s
        if self._forecasts is None:
            return
        reuse = self._forecasts.ended(call.request, call.prompt, call.answer, now_s)
        if is_last:
            self._forecasts.forget(query)
            cache.keep_released(query)
        elif reuse is not None:
            cache.retain("", prompt_ids(reuse.prompt), _in_tokens(reuse, now_s), query)


def _in_tokens(reuse: Reuse, now_s: float) -> list[tuple[int, float | None]]:
    return [
        (len(prompt_ids(reuse.prompt[:num])), None if in_s is None else now_s + in_s)
        for num, in_s in reuse.uses
    ]


def optimal(calls: Sequence[Call], num_blocks: int | None) -> int:
    """Return how many full blocks of prompts are missed if the block that is needed last is always evicted.

    None has no limit of blocks, so that only what was never computed is missed.

    Source: Bélády 1966. Differs: blocks of the running call stay, as it needs all of them at once.
    """
    hasher = Hasher(BLOCK_TOKENS)
    paths = []
    uses: dict[object, list[int]] = defaultdict(list)
    for number, call in enumerate(calls):
        tokens, num_prompt = call.tokens()
        path: list[object] = []
        above = hasher.root("")
        for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            above = hasher.chain(above, tokens[start : start + BLOCK_TOKENS])
            path.append(above)
        num_full = num_prompt // BLOCK_TOKENS
        paths.append((path, num_full, -(-len(tokens) // BLOCK_TOKENS)))
        for block in path[:num_full]:
            uses[block].append(number)
    held: dict[object, tuple[float, int]] = {}
    num_missed = 0
    for number, (path, num_full, num_needed) in enumerate(paths):
        num_held = next((i for i, block in enumerate(path[:num_full]) if block not in held), num_full)
        num_missed += num_full - num_held
        for depth, block in enumerate(path):
            later = bisect.bisect_right(uses[block], number)
            held[block] = (uses[block][later] if later < len(uses[block]) else math.inf, depth)
        if num_blocks is not None:
            running = set(path)
            room = num_blocks - (num_needed - len(path))
            others = sorted(((use, block) for block, use in held.items() if block not in running), key=_use)
            for _, block in others[: max(0, len(held) - room)]:
                del held[block]
    return num_missed


def _use(entry: tuple[tuple[float, int], object]) -> tuple[float, int]:
    (next_use, depth), _ = entry
    return -next_use, -depth
