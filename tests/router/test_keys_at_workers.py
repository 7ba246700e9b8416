"""Keys that workers refuse or limit: whose key it was decides whom it concerns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest
from support.early_placement import SoonestStart
from support.routing import run, until

from stretto.cluster.placement import Placement
from stretto.cluster.placements.round_robin import RoundRobin
from stretto.router.config import RouterConfig
from stretto.router.keys import KeyRests, client_key
from stretto.router.messages import Check, Refuse, RoutedRequest, RouterAction, Send, WorkerUsage
from stretto.router.router_state import RouterState
from stretto.router.serve import RunningRouter
from stretto.router.worker_config import WorkerConfig

KEY = "sk-secret-47-11"
MODELS = {"m": {"id": "m"}}
REQUEST = RoutedRequest(model="m", num_tokens=10)
MINE, YOURS = (RoutedRequest(model="m", num_tokens=10, client_key=key) for key in ("mine", "yours"))


def _router_state(
    num: int, placement: Placement | None = None, *, num_slots: int = 256, **settings: Any
) -> RouterState:
    router_state = RouterState(RouterConfig(**settings), placement or RoundRobin())
    for index in range(num):
        config = WorkerConfig(url=f"http://w{index}", num_slots=num_slots, api_key=KEY)
        router_state.membership.check_passed(router_state.membership.add(config).id, MODELS, None, 0.0)
    return router_state


def _sent(actions: list[RouterAction]) -> list[int]:
    return [action.worker for action in actions if isinstance(action, Send)]


# --- the router's own key


def test_a_worker_that_refuses_the_routers_key_is_left_and_suspect() -> None:
    router_state = _router_state(2)
    ticket, actions = router_state.arrive(REQUEST, 0.0)
    assert _sent(actions) == [0]
    assert router_state.refusing.is_about_own_key(ticket, 401)
    actions = router_state.refused(ticket, 401, 0.1)
    assert _sent(actions) == [1]
    assert Check(0, 0.1) in actions
    worker = router_state.view.workers()[0]
    assert worker.state == "suspect"
    assert "router's key (status 401)" in worker.reason
    assert "api_key" in worker.reason
    assert KEY not in worker.reason
    assert {_sent(router_state.arrive(REQUEST, 0.2)[1])[0] for _ in range(4)} == {1}
    router_state.check_invariants()


def test_all_workers_are_tried_before_a_request_fails_for_the_routers_key() -> None:
    """A refusal of the key is no attempt; also what may not be repeated goes elsewhere: nothing began."""
    router_state = _router_state(5, max_attempts=2)
    asked = RoutedRequest(model="m", num_tokens=10, is_repeatable=False)
    ticket, actions = router_state.arrive(asked, 0.0)
    for worker in range(1, 5):
        actions = router_state.refused(ticket, 401, 0.0)
        assert _sent(actions) == [worker]
    (refusal, *_) = router_state.refused(ticket, 401, 0.0)
    assert isinstance(refusal, Refuse)
    assert (refusal.status, refusal.message) == (
        502,
        "no worker is left that accepts the router's key (status 401)",
    )
    assert router_state.view.num_clients == 0
    router_state.check_invariants()


def test_status_403_has_the_key_checked_and_counts_as_other_failures_do() -> None:
    """It may be about one request alone, which must not keep all workers from others."""
    router_state = _router_state(2)
    for number in range(3):
        ticket, actions = router_state.arrive(REQUEST, 0.0)
        while _sent(actions) != [0]:
            router_state.answered(ticket, 200, WorkerUsage(), 0.0)
            ticket, actions = router_state.arrive(REQUEST, 0.0)
        actions = router_state.refused(ticket, 403, 0.1)
        assert _sent(actions) == [1]
        assert Check(0, 0.1) in actions
        router_state.answered(ticket, 200, WorkerUsage(), 0.1)
        assert router_state.view.workers()[0].state == ("serving" if number < 2 else "suspect")
    assert "router's key (status 403)" in router_state.view.workers()[0].reason


def test_a_status_about_the_clients_own_key_or_about_none_is_the_clients() -> None:
    router_state = _router_state(1)
    router_state.membership.check_passed(
        router_state.membership.add(WorkerConfig(url="http://free")).id, MODELS, None, 0.0
    )
    for request in (MINE, REQUEST):
        ticket, actions = router_state.arrive(request, 0.0)
        own = request is REQUEST and _sent(actions) == [0]
        assert router_state.refusing.is_about_own_key(ticket, 401) == own
        assert not router_state.refusing.is_about_own_key(ticket, 400)
        router_state.answered(ticket, 401, WorkerUsage(), 0.1)
    assert all(worker.state == "serving" for worker in router_state.view.workers())


# --- no key at all


def _without_keys(num: int, **settings: Any) -> RouterState:
    router_state = RouterState(RouterConfig(**settings), RoundRobin())
    for index in range(num):
        added = router_state.membership.add(WorkerConfig(url=f"http://w{index}"))
        router_state.membership.check_passed(added.id, MODELS, None, 0.0)
    return router_state


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("is_repeatable", [True, False])
def test_a_request_without_a_key_goes_on_from_a_worker_that_wants_one(
    status: int, is_repeatable: bool
) -> None:
    """Nothing began there, so that neither attempts nor what a request may change at a server matter."""
    router_state = _without_keys(4, max_attempts=1)
    asked = RoutedRequest(model="m", num_tokens=10, is_repeatable=is_repeatable)
    ticket, _ = router_state.arrive(asked, 0.0)
    for worker in range(1, 4):
        assert router_state.refusing.is_of_worker(ticket, status)
        assert _sent(router_state.refused(ticket, status, 0.1)) == [worker]
        router_state.check_invariants()
    assert [worker.wants_key for worker in router_state.view.workers()] == [True, True, True, False]
    assert {worker.state for worker in router_state.view.workers()} == {"serving"}


def test_a_request_that_moves_on_passes_workers_that_are_known_to_want_a_key() -> None:
    router_state = _without_keys(4)
    ticket, _ = router_state.arrive(REQUEST, 0.0)
    for _ in range(3):
        router_state.refused(ticket, 401, 0.0)
    router_state.answered(ticket, 200, WorkerUsage(), 0.0)
    for _ in range(3):
        ticket, actions = router_state.arrive(REQUEST, 1.0)
        if _sent(actions) != [3]:
            assert _sent(router_state.refused(ticket, 401, 1.0)) == [3]
        router_state.answered(ticket, 200, WorkerUsage(), 1.0)
    router_state.check_invariants()


def test_a_worker_wants_a_key_until_it_answers_a_request_that_has_none() -> None:
    router_state = _without_keys(1)
    ticket, _ = router_state.arrive(REQUEST, 0.0)
    (refusal, *_) = router_state.refused(ticket, 401, 0.0)
    assert isinstance(refusal, Refuse), "its answer is passed on, as no other worker is left"
    (worker,) = router_state.view.workers()
    assert worker.wants_key
    for request, status, wants_key in ((MINE, 200, True), (REQUEST, 400, True), (REQUEST, 200, False)):
        ticket, actions = router_state.arrive(request, 1.0)
        assert _sent(actions) == [0], "what comes first is sent there all the same"
        router_state.answered(ticket, status, WorkerUsage(), 1.0)
        assert worker.wants_key == wants_key
    router_state.check_invariants()


# --- limits of clients' keys


def test_a_limited_key_of_a_client_keeps_no_other_client_from_the_worker() -> None:
    router_state = _router_state(2)
    ticket, actions = router_state.arrive(MINE, 0.0)
    assert _sent(actions) == [0]
    assert _sent(router_state.refused(ticket, 429, 0.0, retry_after_s=9.0)) == [1]
    assert {_sent(router_state.arrive(MINE, 1.0)[1])[0] for _ in range(4)} == {1}
    for other in (YOURS, REQUEST):
        assert {_sent(router_state.arrive(other, 1.0)[1])[0] for _ in range(4)} == {0, 1}
    assert {_sent(router_state.arrive(MINE, 9.0)[1])[0] for _ in range(4)} == {0, 1}
    router_state.check_invariants()


def test_while_all_workers_rest_for_a_key_its_requests_alone_are_refused() -> None:
    router_state = _router_state(2)
    ticket, _ = router_state.arrive(MINE, 0.0)
    router_state.refused(ticket, 429, 0.0, retry_after_s=9.0)
    (refusal, *_) = router_state.refused(ticket, 429, 0.0, retry_after_s=4.0)
    assert isinstance(refusal, Refuse)
    assert refusal.retry_after_s == 4.0
    _, actions = router_state.arrive(MINE, 1.0)
    assert isinstance(actions[-1], Refuse)
    assert (actions[-1].status, actions[-1].retry_after_s) == (429, 3.0)
    assert len(_sent(router_state.arrive(YOURS, 1.0)[1])) == 1
    assert _sent(router_state.arrive(MINE, 4.0)[1]) == [1]


def test_a_request_that_waits_for_another_worker_than_its_limited_one_delays_nobody() -> None:
    router_state = _router_state(2, num_slots=1)
    mine, _ = router_state.arrive(MINE, 0.0)
    yours, _ = router_state.arrive(YOURS, 0.0)
    mine_too, _ = router_state.arrive(MINE, 0.1)
    yours_too, _ = router_state.arrive(YOURS, 0.2)
    actions = router_state.refused(mine, 429, 1.0, retry_after_s=30.0)
    assert [(action.ticket, action.worker) for action in actions if isinstance(action, Send)] == [
        (yours_too, 0)
    ], "the others of the key have to wait for worker 1"
    third, actions = router_state.arrive(YOURS, 1.1)
    actions = router_state.answered(yours_too, 200, WorkerUsage(), 1.2)
    assert [(action.ticket, action.worker) for action in actions if isinstance(action, Send)] == [(third, 0)]
    actions = router_state.answered(yours, 200, WorkerUsage(), 1.3)
    assert [action.ticket for action in actions if isinstance(action, Send)] == [mine]
    actions = router_state.refused(mine, 429, 1.4, retry_after_s=30.0)
    refused = [action.ticket for action in actions if isinstance(action, Refuse)]
    assert sorted(refused) == sorted((mine, mine_too)), "nothing is left that could take them"
    router_state.check_invariants()


@pytest.mark.parametrize("placement", [RoundRobin, SoonestStart])
def test_what_waits_meanwhile_goes_to_a_worker_when_its_rest_for_the_key_ends(
    placement: Callable[[], Placement],
) -> None:
    router_state = _router_state(3, placement(), num_slots=1)
    mine, actions = router_state.arrive(MINE, 0.0)
    (limited,) = _sent(actions)
    for _ in range(2):
        router_state.arrive(YOURS, 0.0)
    router_state.refused(mine, 429, 0.1, retry_after_s=1.0)
    waiting, actions = router_state.arrive(MINE, 0.2)
    assert not actions
    assert router_state.timers.next_due_s == 1.1
    assert not router_state.timers.expire(1.0)
    (sent,) = router_state.timers.expire(1.1)
    assert isinstance(sent, Send)
    assert (sent.ticket, sent.worker) == (waiting, limited)
    assert router_state.timers.next_due_s == 60.0, "nothing more is to come but the end of all waiting"
    router_state.check_invariants()


def test_what_is_bound_to_a_worker_that_limits_its_key_moves() -> None:
    router_state = _router_state(2, SoonestStart(), num_slots=1)
    running = [router_state.arrive(MINE, 0.0)[0] for _ in range(2)]
    waiting = [router_state.arrive(MINE, 0.1)[0] for _ in range(4)]
    router_state.refused(running[0], 429, 1.0, retry_after_s=30.0)
    router_state.check_invariants()
    ends = [running[1]]
    for _ in (*waiting, running[0]):
        sent = router_state.answered(ends[-1], 200, WorkerUsage(), 2.0)
        ends += [action.ticket for action in sent if isinstance(action, Send)]
        assert _sent(sent) == [1]
    assert sorted(ends) == sorted((*running, *waiting))


def test_the_memory_of_limited_keys_is_bounded() -> None:
    rests = KeyRests()
    for number in range(100_000):
        rests.rest(f"{number}", number)
    assert len(rests) == 1000
    assert rests.until_s("99999") == 99_999
    assert rests.until_s("1") == 0.0


def test_a_rest_is_not_cut_short_by_a_shorter_one() -> None:
    rests = KeyRests()
    rests.rest("k", 9.0)
    rests.rest("k", 4.0)
    assert rests.until_s("k") == 9.0


def test_a_key_is_known_by_a_digest_alone() -> None:
    first = client_key([(b"host", b"x"), (b"authorization", KEY.encode())])
    assert KEY not in first
    assert first == client_key([(b"authorization", KEY.encode()), (b"accept", b"*/*")])
    assert len({first, client_key([(b"x-api-key", KEY.encode())]), client_key([(b"host", b"x")])}) == 3
    assert client_key([(b"host", b"x")]) == ""


# --- over connections


class KeyedServer:
    """A server that takes one key, and limits others by status 429; its refusals show the key that came."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.limited: set[str] = set()
        self.asked: list[str] = []

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                await self._answer(reader, writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        await reader.readexactly(int(headers.get("content-length", 0)))
        came = headers.get("authorization", "").removeprefix("Bearer ")
        path = first.split()[1]
        status, body = 200, json.dumps({"data": [{"id": "m"}], "choices": [{"text": "a"}]})
        if "completions" in path:
            self.asked.append(came)
        if came in self.limited:
            status, body = 429, "{}"
        elif came != self.key and "/health" not in path:
            status, body = 401, json.dumps({"error": {"message": f"Incorrect API key: {came}"}})
        more = "retry-after: 30\r\n" if status == 429 else ""
        answer = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{more}"
        writer.write(f"{answer}content-length: {len(body)}\r\n\r\n{body}".encode())


async def _ask(client: httpx.AsyncClient, key: str = "") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return await client.post("/v1/completions", json={"model": "m", "prompt": "a"}, headers=headers)


@pytest.mark.parametrize("models", [(), ("m",)])
def test_a_key_that_a_worker_takes_no_more_costs_no_client_its_answer(models: tuple[str, ...]) -> None:
    """The models of a worker may be known from its settings, so that no check ever finds the key refused."""

    async def main() -> None:
        good, bad = KeyedServer(KEY), KeyedServer(KEY)
        await good.open()
        await bad.open()
        configs = tuple(WorkerConfig(url=one.url, api_key=KEY, models=models) for one in (bad, good))
        config = RouterConfig(worker=configs, port=0, placement="round_robin", max_wait_s=0.5)
        async with (
            RunningRouter(config) as router,
            httpx.AsyncClient(base_url=router.url, timeout=60.0) as client,
        ):
            bad.key = "another"
            assert {(await _ask(client)).status_code for _ in range(8)} == {200}
            (listed, _) = (await client.get("/router/workers")).json()
            assert (models and listed["state"] == "serving") or "router's key" in listed["reason"]
            assert len(bad.asked) < 8
            own = await _ask(client, "own")
            assert own.status_code in (200, 401)
            good.key = "another"
            last = await _ask(client)
            assert last.status_code in (502, 503)
            assert last.json()["error"]["type"] in ("UpstreamError", "ServiceUnavailableError")
            assert KEY not in last.text
            if not models:
                workers = router.front.router_state.view.workers
                await until(lambda: all(worker.state == "suspect" for worker in workers()))
        good.close()
        bad.close()

    run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_a_worker_that_wants_a_key_costs_clients_without_one_no_answer(stream: bool) -> None:
    async def main() -> None:
        free, locked = KeyedServer(""), KeyedServer(KEY)
        await free.open()
        await locked.open()
        configs = tuple(WorkerConfig(url=one.url, models=("m",)) for one in (locked, free))
        config = RouterConfig(worker=configs, port=0, placement="round_robin")
        async with (
            RunningRouter(config) as router,
            httpx.AsyncClient(base_url=router.url, timeout=60.0) as client,
        ):
            body = {"model": "m", "prompt": "a", "stream": stream}
            for _ in range(8):
                assert (await client.post("/v1/completions", json=body)).status_code == 200
            assert locked.asked, "it was tried"
            assert [one["wants_key"] for one in (await client.get("/router/workers")).json()] == [True, False]
            metrics = (await client.get("/metrics")).text
            assert f'wants_key{{worker="{locked.url}"}} 1' in metrics
            assert f'wants_key{{worker="{free.url}"}} 0' in metrics
            assert {(await _ask(client, KEY)).status_code for _ in range(2)} == {200, 401}, "a client's own"
            free.key = KEY
            refused = await client.post("/v1/completions", json=body)
            assert refused.status_code == 401
            assert "Incorrect API key" in refused.text, "the answer of a worker is passed on"
        free.close()
        locked.close()

    run(main())


def test_a_limited_key_over_connections_leaves_the_worker_to_others() -> None:
    async def main() -> None:
        first, second = KeyedServer(KEY), KeyedServer(KEY)
        await first.open()
        await second.open()
        first.limited.add("mine")
        second.limited.add("mine")
        configs = tuple(WorkerConfig(url=one.url, api_key=KEY) for one in (first, second))
        config = RouterConfig(worker=configs, port=0, placement="round_robin")
        async with (
            RunningRouter(config) as router,
            httpx.AsyncClient(base_url=router.url, timeout=60.0) as client,
        ):
            for _ in range(3):
                limited = await _ask(client, "mine")
                assert limited.status_code == 429
                assert 0 < int(limited.headers["retry-after"]) <= 30
                assert (await _ask(client)).status_code == 200
                assert (await _ask(client, KEY)).status_code == 200
            assert (first.asked.count("mine"), second.asked.count("mine")) == (1, 1)
        first.close()
        second.close()

    run(main())
