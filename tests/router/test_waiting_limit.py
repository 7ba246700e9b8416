"""The requests that may wait are shared by clients: none can keep all others out, and none goes unused."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from stretto.router.waiting_limit import WaitingLimit


def arrive(limit: WaitingLimit, ticket: int, owner: str) -> int | None:
    limit.add(ticket, owner)
    if (excess := limit.excess(ticket)) is not None:
        limit.discard(excess)
    return excess


def test_one_client_may_use_all_of_it() -> None:
    limit = WaitingLimit(10, {})
    assert [arrive(limit, ticket, "one") for ticket in range(12)] == [None] * 10 + [10, 11]


def test_a_newcomer_takes_the_last_place_of_the_client_with_most() -> None:
    limit = WaitingLimit(4, {})
    owners = "aaaabbb"
    assert [arrive(limit, ticket, owner) for ticket, owner in enumerate(owners)] == [None] * 4 + [3, 2, 6]


def test_weights_count() -> None:
    limit = WaitingLimit(6, {"a": 2.0})
    for ticket in range(6):
        arrive(limit, ticket, "a")
    for ticket in range(6, 16):
        arrive(limit, ticket, "b")
    assert Counter(ticket < 6 for ticket in limit) == {True: 4, False: 2}


@pytest.mark.parametrize("seed", range(5))
def test_who_waits_with_less_than_a_share_is_never_refused(seed: int) -> None:
    rng = random.Random(seed)
    limit, owners, waiting = WaitingLimit(30, {}), {}, Counter[str]()
    for ticket in range(2000):
        owner = rng.choices("abcdef", (50, 20, 5, 1, 1, 1))[0]
        owners[ticket] = owner
        waiting[owner] += 1
        if (excess := arrive(limit, ticket, owner)) is not None:
            assert waiting[owners[excess]] == max(waiting.values()) >= 30 / 6
            waiting[owners[excess]] -= 1
        assert Counter(map(owners.__getitem__, limit)) == +waiting
        if rng.random() < 0.4:
            gone = rng.choice(list(limit))
            limit.discard(gone)
            waiting[owners[gone]] -= 1
