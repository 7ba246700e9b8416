"""Keeps the key-value caches of finished prompts; a later prompt with the same beginning copies one."""

from __future__ import annotations

from collections import OrderedDict
from itertools import takewhile
from operator import eq
from typing import TypeAlias

from transformers.cache_utils import DynamicCache

_Key: TypeAlias = tuple[str, str, tuple[int, ...]]


class PrefixStore:
    """A store of the KV caches of finished prompts, from which later prompts of the same tenant with the same
    beginning start.

    It holds at most `max_tokens` tokens in all, and evicts the least recently used cache. A cache is copied
    when it is stored and when it is used, so that no sequence writes to another's.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._held: OrderedDict[_Key, DynamicCache] = OrderedDict()

    def keep(self, tenant: str, query: str, tokens: list[int], cache: DynamicCache) -> None:
        """Store a copy of the part of a KV cache that belongs to `tokens`.

        It replaces shorter prefixes of these tokens that were stored for the same query.
        """
        for key in list(self._held):
            if key[:2] == (tenant, query) and _num_shared(key[2], tokens) == len(key[2]):
                del self._held[key]
        self._held[tenant, query, tuple(tokens)] = _copy(cache, len(tokens))
        while sum(len(held) for _, _, held in self._held) > self._max_tokens:
            self._held.popitem(last=False)

    def fork(self, tenant: str, tokens: list[int]) -> DynamicCache:
        """Return a copy of the stored KV of the longest prefix of `tokens`, or an empty cache.

        The last token is never included, because it must be computed.
        """
        own = (key for key in self._held if key[0] == tenant)
        best = max(own, key=lambda key: _num_shared(key[2], tokens), default=None)
        num_shared = 0 if best is None else min(_num_shared(best[2], tokens), len(tokens) - 1)
        if best is None or num_shared <= 0:
            return DynamicCache()
        self._held.move_to_end(best)
        return _copy(self._held[best], num_shared)

    def release(self, query: str) -> None:
        """Drop the KV caches that were stored for a query, which has ended."""
        for key in [key for key in self._held if key[1] == query]:
            del self._held[key]


def _copy(cache: DynamicCache, num_tokens: int) -> DynamicCache:
    """Copy the first `num_tokens` of a cache."""
    return DynamicCache(
        [(keys[..., :num_tokens, :], values[..., :num_tokens, :]) for keys, values, _ in cache]
    )


def _num_shared(a: tuple[int, ...], b: list[int]) -> int:
    """Length of the common prefix."""
    return sum(1 for _ in takewhile(bool, map(eq, a, b)))
