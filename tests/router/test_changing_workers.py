"""Workers are listed and changed through `/admin/workers`, at a router and at a service."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from support.gated_worker import MODEL, GatedWorker
from support.routing import EVENTS, STREAM, WHOLE, StubServer, routing, run, until
from support.services import served

from stretto.engines.catalogue import transforms_engine
from stretto.router.config import RouterConfig
from stretto.router.worker_config import WorkerConfig
from stretto.service.config import ServiceConfig
from stretto.service.pool.pool import WorkerPool

BOTH = pytest.mark.parametrize("path", ["/admin/workers", "/router/workers"])


@BOTH
def test_a_worker_is_added_with_all_its_settings_resized_drained_and_removed(path: str) -> None:
    async def main() -> None:
        async with routing("well") as at:
            other = StubServer("waits")
            await other.open()
            settings = {
                "url": other.url,
                "num_slots": 3,
                "kv_tokens": 5000,
                "models": ["mine"],
                "api_key": "secret",
                "headers": {"x-more": "1"},
                "takes_priority": False,
                "profile": {"base_s": 0.1, "per_unit_s": 1e-4, "per_output_s": 0.02, "per_neighbour_s": 0.0},
                "api_key_env": None,
            }
            added = await at.client.post(path, json=settings)
            assert (added.status_code, added.json()) == (202, {"worker": 1})
            await until(lambda: at.router_state.view.worker(1).state == "serving")
            assert at.router_state.view.worker(1).config.profile.base_s == 0.1
            first, second = (await at.client.get(path)).json()
            assert (first["source"], second["source"]) == ("settings", "the admin")
            assert (second["num_slots"], second["models"], second["kv_tokens"]) == (3, ["mine"], 5000)
            assert "secret" not in (await at.client.get(path)).text
            asked = {"model": "mine", "prompt": "Hello", "stream": True}
            async with at.client.stream("POST", "/v1/completions", json=asked) as answer:
                parts = answer.aiter_bytes()
                assert await anext(parts) == EVENTS[0]
                sent = other.asked[0].headers
                assert (sent[b"authorization"], sent[b"x-more"]) == (b"Bearer secret", b"1")
                changed = await at.client.patch(f"{path}/1", json={"num_slots": 7})
                assert (changed.status_code, at.router_state.view.worker(1).num_slots) == (200, 7)
                drained = await at.client.post(f"{path}/1/drain")
                assert drained.json() == {"worker": 1, "left": [0, 1]}
                other.go_on.set()
                assert b"".join([part async for part in parts]) == STREAM[len(EVENTS[0]) :]
            await until(lambda: at.router_state.view.worker(1) is None)
            assert (await at.ask()).content == WHOLE
            assert (await at.client.delete(f"{path}/0")).json() == {"worker": 0, "left": []}
            assert (await at.client.get(path)).json() == []
            other.kill()

    run(main())


@BOTH
def test_changes_that_cannot_be_are_refused_and_change_nothing(path: str) -> None:
    async def main() -> None:
        async with routing("well", num_slots=5) as at:
            for method, rest, body, status, named in (
                ("PATCH", "/0", {"num_slots": 0}, 400, "num_slots is 0"),
                ("PATCH", "/0", {"num_slots": "9"}, 400, "num_slots is '9'"),
                ("PATCH", "/0", {"num_slots": 4, "url": "http://x"}, 400, "num_slots alone"),
                ("PATCH", "/0", {}, 400, "num_slots alone"),
                ("PATCH", "/0", [1], 400, "must be an object"),
                ("PATCH", "/7", {"num_slots": 4}, 400, "there is no worker 7"),
                ("PATCH", "", {"num_slots": 4}, 405, "takes GET, POST"),
                ("PUT", "/0", {}, 405, "takes PATCH, DELETE"),
                ("GET", "/0/drain", None, 405, "takes POST"),
                ("DELETE", "", None, 405, "takes GET, POST"),
                ("POST", "/0/dance", None, 404, "nothing at"),
                ("POST", "/0/drain/now", None, 404, "nothing at"),
                ("DELETE", "/x", None, 400, "no number of a worker"),
            ):
                answer = await at.client.request(method, path + rest, json=body)
                assert (answer.status_code, named in answer.text) == (status, True), answer.text
            broken = await at.client.post(path, content=b'{"url": ')
            assert (broken.status_code, "no JSON" in broken.text) == (400, True)
            (worker,) = at.router_state.view.workers()
            assert (worker.state, worker.num_slots) == ("serving", 5)

    run(main())


def test_more_slots_let_what_waits_go() -> None:
    async def main() -> None:
        async with routing("waits", num_slots=1, learns_slots=False) as at:
            body = {"model": "m", "prompt": "Hello", "stream": True}
            async with at.client.stream("POST", "/v1/completions", json=body) as first:
                assert first.status_code == 200
                second = asyncio.create_task(at.ask(stream=True))
                await until(lambda: at.router_state.view.num_waiting == 1)
                assert (await at.client.patch("/admin/workers/0", json={"num_slots": 2})).status_code == 200
                await until(lambda: len(at.servers[0].asked) == 2)
                at.servers[0].go_on.set()
                assert (await second).content == STREAM

    run(main())


@contextmanager
def pooled(config: ServiceConfig) -> Iterator[tuple[GatedWorker, httpx.Client]]:
    """Run a service with one worker; yields the worker, and a client."""
    with GatedWorker() as worker:
        worker.is_open = True
        pool = WorkerPool(RouterConfig(worker=(WorkerConfig(url=worker.url),)), config)
        with (
            served([transforms_engine()], config, pool=pool) as (_, url),
            httpx.Client(base_url=url, timeout=60) as client,
        ):
            yield worker, client


@BOTH
def test_a_service_changes_its_workers_too(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ADMIN_KEY", "k")
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    with (
        pooled(ServiceConfig(port=0, admin_key_env="TEST_ADMIN_KEY")) as (_, client),
        GatedWorker() as other,
    ):
        other.is_open = True
        admin = {"authorization": "Bearer k"}
        for headers in ({}, {"authorization": "Bearer x"}, {**admin, "origin": "https://example.com"}):
            for method, rest in (("GET", ""), ("POST", ""), ("DELETE", "/0"), ("POST", "/0/drain")):
                refused = client.request(method, path + rest, headers=headers, json={"url": other.url})
                assert refused.status_code == 403, refused.text
        added = client.post(path, headers=admin, json={"url": other.url, "num_slots": 4})
        assert (added.status_code, added.json()) == (202, {"worker": 1})
        assert client.patch(f"{path}/1", headers=admin, json={"num_slots": 9}).status_code == 200
        assert client.delete(f"{path}/0", headers=admin).json() == {"worker": 0, "left": [1]}
        (listed,) = client.get(path, headers=admin).json()
        assert (listed["num_slots"], listed["source"]) == (9, "the admin")
        assert client.post("/v1/chat/completions", json=chat).status_code == 200
        assert other.asked
        for method, rest, status in (("PUT", "", 405), ("DELETE", "/9", 400), ("POST", "/1/dance", 404)):
            assert client.request(method, path + rest, headers=admin).status_code == status
        wrong = client.post(path, headers=admin, json={"url": other.url, "colour": 1})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid")
