"""What workers report of their caches: events in, tokens of a prompt out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stretto.cluster.block_hashes import Hasher
from stretto.cluster.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from stretto.cluster.placement_request import PromptKey
from stretto.cluster.placements.e2 import E2
from stretto.cluster.placements.table import PLACEMENTS
from stretto.router.config import RouterConfig
from stretto.router.held_blocks import HeldByWorkers
from stretto.router.messages import RoutedRequest, Send, WorkerUsage
from stretto.router.prompts import read_request
from stretto.router.reading import ReadingRules, RequestHead
from stretto.router.router_state import RouterState
from stretto.router.worker_config import WorkerConfig

IDS = list(range(100, 200))


def stored(ids: Sequence[int], block_tokens: int = 16) -> list[BlockStored]:
    """The events of a cache that has computed a prompt."""
    hasher, events = Hasher(block_tokens), []
    parent = hasher.root("")
    for start in range(0, len(ids) - block_tokens + 1, block_tokens):
        block = tuple(ids[start : start + block_tokens])
        events.append(BlockStored(hasher.chain(parent, block), parent, block))
        parent = events[-1].hash
    return events


def test_a_prompt_is_found_as_far_as_blocks_are_held_in_a_row() -> None:
    caches = HeldByWorkers()
    assert not caches
    caches.apply(0, stored(IDS))
    caches.apply(1, stored(IDS[:50], 8))
    assert caches.held(IDS, (0, 1, 2)) == {0: 96, 1: 48}
    assert caches.held(IDS[:40] + [7] * 60, (0, 1)) == {0: 32, 1: 40}
    assert caches.held(IDS, (1,)) == {1: 48}
    assert caches.held(IDS[1:], (0, 1)) == {}
    caches.check_invariants()


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    caches = HeldByWorkers()
    caches.apply(0, stored(IDS[:64]))
    assert caches.held(IDS[:64], (0,)) == {0: 48}


def test_removed_blocks_and_forgotten_workers_hold_nothing() -> None:
    caches, events = HeldByWorkers(), stored(IDS)
    caches.apply(0, events)
    assert not caches.apply(0, [BlockRemoved(events[2].hash)])
    assert caches.held(IDS, (0,)) == {0: 32}
    assert caches.apply(0, [AllBlocksCleared(), *events[:1]])
    assert caches.held(IDS, (0,)) == {0: 16}
    caches.forget(0)
    assert caches.held(IDS, (0,)) == {}
    assert not caches


def router_state_of(*cards: dict[str, object], placement: str = "stretto") -> RouterState:
    router_state = RouterState(RouterConfig(), PLACEMENTS[placement]())
    for number, card in enumerate(cards):
        worker = router_state.membership.add(WorkerConfig(url=f"http://w{number}")).id
        router_state.membership.check_passed(worker, {str(card["id"]): card}, 100_000, 0.0)
    return router_state


def sent(router_state: RouterState, request: RoutedRequest, now_s: float = 1.0) -> Send:
    (action,) = router_state.arrive(request, now_s)[1]
    assert isinstance(action, Send)
    router_state.check_invariants()
    return action


def test_a_prompt_goes_where_it_was_reported_and_the_prediction_is_what_was_reported() -> None:
    router_state = router_state_of({"id": "m"}, {"id": "m"}, {"id": "m"})
    request = RoutedRequest(model="m", ids=IDS, num_tokens=1)
    router_state.reported(1, stored(IDS))
    assert router_state.view.has_reports
    action = sent(router_state, request)
    assert (action.worker, action.choice.held_tokens) == (1, 96)
    router_state.answered(action.ticket, 200, WorkerUsage(100, 5, 96), 2.0)
    router_state.forget_reports(1)
    assert sent(router_state, request, 3.0).choice.held_tokens == 0


def test_texts_are_looked_up_only_where_the_tokenizer_agrees() -> None:
    router_state = router_state_of({"id": "m"}, {"id": "m"})
    router_state.reported(0, stored(IDS))
    router_state.reported(1, stored(IDS))
    worker = router_state.view.worker(1)
    assert worker is not None
    worker.shares_tokenizer = True
    action = sent(router_state, RoutedRequest(model="m", text="hello", ids=IDS))
    assert (action.worker, action.choice.held_tokens) == (1, 96)


def test_an_adapter_does_not_use_the_blocks_of_its_model() -> None:
    router_state = router_state_of({"id": "a", "parent": "m"}, {"id": "m"})
    for worker in (0, 1):
        router_state.reported(worker, stored(IDS))
    assert sent(router_state, RoutedRequest(model="a", ids=IDS)).choice.held_tokens == 0
    assert sent(router_state, RoutedRequest(model="m", ids=IDS)).choice.held_tokens == 96


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_a_cleared_cache_is_forgotten_while_requests_run(placement: str) -> None:
    router_state = router_state_of({"id": "m"}, {"id": "m"}, placement=placement)
    body = b'{"model": "m", "prompt": "%b"}' % (b"a long prompt " * 200)
    request = read_request(RequestHead("/v1/completions"), ReadingRules(), body)
    first = sent(router_state, request)
    running = sent(router_state, request, 1.5)
    router_state.answered(first.ticket, 200, WorkerUsage(700, 5, 0), 2.0)
    for worker in (0, 1):
        router_state.reported(worker, [AllBlocksCleared()])
    router_state.answered(running.ticket, 200, WorkerUsage(700, 5, 0), 3.0)
    router_state.check_invariants()
    assert sent(router_state, request, 4.0).choice.held_tokens == 0


def test_a_cleared_cache_costs_a_worker_no_history_of_its_load() -> None:
    """A gap in its events that cannot be filled says nothing about the work that it got."""
    policy = E2()
    router_state = RouterState(RouterConfig(), policy)
    worker = router_state.membership.add(WorkerConfig(url="http://w")).id
    router_state.membership.check_passed(worker, {"m": {"id": "m"}}, 100_000, 0.0)
    for number in range(3):
        key = PromptKey((b"block %d" % number,), 64)
        router_state.arrive(RoutedRequest(model="m", num_tokens=64, key=key), 1.0)
    view = router_state._loads.table.get(worker)
    assert view is not None
    load_s = policy.load_s(view)
    router_state.reported(worker, [AllBlocksCleared()])
    assert policy.load_s(view) == load_s > 0
    policy.check_invariants()
    policy.index.check_invariants()


@pytest.mark.parametrize(
    "fields",
    ['"cache_salt": "s"', '"add_special_tokens": false', '"messages": []', '"x": 1, "prompt": ["a", "b"]'],
)
def test_prompts_whose_blocks_no_report_names_are_not_looked_up(fields: str) -> None:
    body = f'{{"model": "m", "prompt": "hello", {fields}}}'.encode()
    request = read_request(RequestHead("/v1/completions"), ReadingRules(has_reports=True), body)
    assert (request.text, request.ids) == ("", ())


def test_texts_and_ids_of_completions_are_looked_up() -> None:
    found = [
        read_request(
            RequestHead("/v1/completions"),
            ReadingRules(has_reports=True),
            b'{"model": "m", "prompt": %b}' % prompt,
        )
        for prompt in (b'"hello"', b"[1, 2, 3]")
    ]
    assert [(one.text, list(one.ids)) for one in found] == [("hello", []), ("", [1, 2, 3])]
