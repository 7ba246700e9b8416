"""Children of one node of a prefix cache: searches by the beginning of a block, however many there are."""

from __future__ import annotations

import random

from stretto.llm.cache.block_pool import BlockPool
from stretto.llm.cache.block_runs import BlockRun, Siblings
from stretto.llm.cache.prefix_cache import PrefixCache


def test_searches_find_what_a_look_at_all_children_finds() -> None:
    rng = random.Random(1)
    siblings = Siblings()
    for _ in range(600):
        block = tuple(rng.choices((1, 2), k=rng.randint(1, 5)))
        if rng.random() < 0.3 and siblings:
            del siblings[rng.choice(list(siblings))]
        siblings[block] = BlockRun("", list(block), [0], None)
        wanted = tuple(rng.choices((1, 2), k=rng.randint(1, 5)))
        found = siblings.beginning_with(wanted)
        known = [child for other, child in siblings.items() if other[: len(wanted)] == wanted]
        assert found in known if known else found is None
        shorter = [child for other, child in siblings.items() if wanted[: len(other)] == other]
        assert siblings.beginnings_of(wanted) == sorted(shorter, key=lambda child: len(child.tokens))


class Token(int):
    """A token that counts how often tokens are compared."""

    num_compared = 0

    def __eq__(self, other: object) -> bool:
        Token.num_compared += 1
        return int(self) == other

    def __lt__(self, other: int) -> bool:
        Token.num_compared += 1
        return int(self) < other

    __hash__ = int.__hash__


def test_prompts_that_share_only_their_first_token_cost_no_search_of_each_other() -> None:
    num_prompts, size = 1024, 4
    pool = BlockPool(2 * num_prompts)
    cache = PrefixCache(pool, size)
    for number in range(num_prompts):
        Token.num_compared = 0
        tokens: list[int] = [Token(token) for token in (1, number, 2, 3, 1, number)]
        node, _ = cache.store("", None, tokens[:size], pool.acquire(1), "q")
        last, _ = cache.store_tail("", None, [tokens[0], Token(-number - 1)], pool.acquire(1)[0], "q")
        cache.release(node)
        cache.release(last)
        assert Token.num_compared < 300
    cache.check_invariants()
