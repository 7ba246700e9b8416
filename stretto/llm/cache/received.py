"""KV that another instance has computed, put into the cache of this one."""

from __future__ import annotations

from stretto.llm.cache.prefix_cache import PrefixCache


def num_missing(cache: PrefixCache, salt: str, tokens: list[int], block_tokens: int) -> int:
    """Return how many of the tokens have no full block in the cache."""
    return len(tokens) - len(cache.look_up(salt, tokens, len(tokens)).blocks) * block_tokens


def receive(cache: PrefixCache, salt: str, tokens: list[int], block_tokens: int, owner: str) -> None:
    """Put the full blocks of some tokens into the cache, for the tenant `salt`, as the last ones used. If
    there is no room for them, nothing changes but the order of evictions.
    """
    whole = tokens[: len(tokens) // block_tokens * block_tokens]
    hit = cache.look_up(salt, whole, len(whole))
    node = cache.hold(hit, owner)
    num_held = len(hit.blocks)
    num_new = len(whole) // block_tokens - num_held
    if 0 < num_new <= cache.num_available:
        blocks = cache.acquire(num_new)
        node, _ = cache.store(salt, node, whole[num_held * block_tokens :], blocks, owner)
    cache.release(node)
