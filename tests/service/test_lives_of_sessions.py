"""How sessions, readers and services end."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import httpx
from support.programs import Desk, desk_llm
from support.services import served

from stretto.engines.catalogue import transforms_engine
from stretto.sched.messages import Unwant, Want
from stretto.sched.observer import Observer
from stretto.service.config import Limits, ServiceConfig
from stretto.service.service import Service

ECHO: dict[str, Any] = {
    "prompt": "[{{x}}] {{y}}",
    "placeholders": [
        {"name": "x", "in_out": False, "semantic_var_id": "in"},
        {"name": "y", "in_out": True, "semantic_var_id": "out"},
    ],
}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def opened(client: httpx.AsyncClient) -> str:
    answer = await client.post("/v1/sessions", json={})
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["session_id"]
    return found


class Wishes(Observer):
    """What callers wait for, and no longer."""

    def __init__(self) -> None:
        self.seen: list[type] = []

    def on_event(self, event: object, now_s: float) -> None:
        if isinstance(event, Want | Unwant):
            self.seen.append(type(event))


def run(service: Service, program: Callable[[httpx.AsyncClient], Any]) -> None:
    async def with_client() -> None:
        async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
            await program(client)

    asyncio.run(with_client())


def test_a_session_that_nobody_uses_expires() -> None:
    config = ServiceConfig(port=0, session_idle_s=0.3, limits=Limits(sessions=1))

    async def program(client: httpx.AsyncClient) -> None:
        for _ in range(50):  # on a busy machine, a session may end before somebody waits in it
            session = await opened(client)
            await client.post("/v1/submit", json={"session_id": session, **ECHO})
            body = {"session_id": session, "semantic_var_id": "out", "timeout_s": 1.0}
            waited = await client.post("/v1/get", json=body)
            if waited.status_code != 404:
                break
        assert waited.status_code == 408, "a session that somebody waits in stays"
        await until(lambda: not len(service.sessions))
        assert (await client.post("/v1/get", json=body)).status_code == 404
        await opened(client)

    with served([desk_llm(Desk()), transforms_engine()], config) as (service, _):
        run(service, program)


def test_a_reader_that_leaves_waits_no_more() -> None:
    wishes = Wishes()

    async def program(client: httpx.AsyncClient) -> None:
        session = await opened(client)
        await client.post("/v1/submit", json={"session_id": session, **ECHO})
        for more in ({}, {"stream": True}):
            body = {"session_id": session, "semantic_var_id": "out", **more}
            wishes.seen.clear()
            async with httpx.AsyncClient(base_url=service.url) as leaving:
                reading = asyncio.create_task(leaving.post("/v1/get", json=body, timeout=60))
                await until(lambda: wishes.seen == [Want])
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            await until(lambda: wishes.seen == [Want, Unwant])
        set_body = {"session_id": session, "semantic_var_id": "in", "value": "late"}
        assert (await client.post("/v1/set", json=set_body)).is_success
        found = await client.post("/v1/get", json={"session_id": session, "semantic_var_id": "out"})
        assert found.json()["value"] == "<[late] >"

    with served([desk_llm(Desk()), transforms_engine()], observers=[wishes]) as (service, _):
        run(service, program)


def test_a_draining_service_answers_what_is_open_and_takes_nothing_new() -> None:
    may_answer = threading.Event()

    def answer(prompt: str) -> str:
        assert may_answer.wait(60)
        return "done"

    async def program(client: httpx.AsyncClient) -> None:
        session = await opened(client)
        body = {"session_id": session, **ECHO, "values": {"in": "x"}}
        assert (await client.post("/v1/submit", json=body)).is_success
        get = {"session_id": session, "semantic_var_id": "out"}
        reading = asyncio.create_task(client.post("/v1/get", json=get))
        await until(lambda: service.app.num_open == 1)
        idle = httpx.AsyncClient(base_url=service.url)
        assert (await idle.get("/health")).json() == {"status": "ok"}
        draining = asyncio.create_task(asyncio.to_thread(runtime_of(service), service.drain))
        await until(lambda: service.is_draining)
        (refused,) = await asyncio.gather(idle.post("/v1/sessions", json={}), return_exceptions=True)
        assert isinstance(refused, httpx.TransportError) or getattr(refused, "status_code", None) == 503
        await idle.aclose()
        may_answer.set()
        assert (await reading).json()["value"] == "done"
        await draining

    with served([desk_llm(Desk(answer)), transforms_engine()]) as (service, _):
        run(service, program)


def runtime_of(service: Service) -> Callable[..., Any]:
    return service.runtime.run_on_loop


def test_what_is_given_up_leaves_nothing_behind() -> None:
    numbers: list[int] = []
    desk = Desk()

    async def program(client: httpx.AsyncClient) -> None:
        session = await opened(client)
        for turn in range(3):
            for number in range(20):
                calls = [
                    {
                        "prompt": "[{{x}}] {{y}}",
                        "placeholders": [
                            {"name": "x", "in_out": False, "value": "v"},
                            {"name": "y", "in_out": True, "semantic_var_id": f"y{turn}.{number}.{place}"},
                        ],
                    }
                    for place in range(10)
                ]
                body: dict[str, Any] = {"session_id": session, "calls": calls}
                made = [call["y"] for call in (await client.post("/v1/submit", json=body)).json()["calls"]]
                for name in made:
                    await client.post("/v1/get", json={"session_id": session, "semantic_var_id": name})
                await client.post("/v1/submit", json={"session_id": session, "dropped": made})
            desk.tasks.clear()
            gc.collect()
            numbers.append(len(gc.get_objects()))

    with served([desk_llm(desk), transforms_engine()]) as (service, _):
        run(service, program)
    assert numbers[2] - numbers[1] < 100, "200 calls"
