"""Key-value caches of finished prompts, kept whole to be forked by later prompts that begin alike."""

from __future__ import annotations

from collections import OrderedDict
from itertools import takewhile
from operator import eq
from typing import TypeAlias

from transformers.cache_utils import DynamicCache

_Key: TypeAlias = tuple[str, tuple[int, ...]]


class PrefixStore:
    """Caches by query and tokens, the least recently used first, of at most `max_tokens` in all.

    A cache is never shared: it is copied on its way in and out, so nobody writes into another's.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._held: OrderedDict[_Key, DynamicCache] = OrderedDict()

    def keep(self, query: str, tokens: list[int], cache: DynamicCache) -> None:
        """Hold the part of `cache` that belongs to `tokens`, in place of the prefixes it extends."""
        for held_query, held in list(self._held):
            if held_query == query and _num_shared(held, tokens) == len(held):
                del self._held[held_query, held]
        self._held[query, tuple(tokens)] = _copy(cache, len(tokens))
        while sum(len(held) for _, held in self._held) > self._max_tokens:
            self._held.popitem(last=False)

    def fork(self, tokens: list[int]) -> DynamicCache:
        """A new cache of the longest held prefix of `tokens`, less than all, so that one is left to run."""
        best = max(self._held, key=lambda key: _num_shared(key[1], tokens), default=None)
        num_shared = 0 if best is None else min(_num_shared(best[1], tokens), len(tokens) - 1)
        if best is None or num_shared <= 0:
            return DynamicCache()
        self._held.move_to_end(best)
        return _copy(self._held[best], num_shared)

    def release(self, query: str) -> None:
        """Drop what was kept for `query`."""
        for key in [key for key in self._held if key[0] == query]:
            del self._held[key]


def _copy(cache: DynamicCache, num_tokens: int) -> DynamicCache:
    """A cache of the first `num_tokens` of `cache`, with tensors of its own."""
    return DynamicCache(
        [(keys[..., :num_tokens, :], values[..., :num_tokens, :]) for keys, values, _ in cache]
    )


def _num_shared(a: tuple[int, ...], b: list[int]) -> int:
    """Length of the common prefix."""
    return sum(1 for _ in takewhile(bool, map(eq, a, b)))
