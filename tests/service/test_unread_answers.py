"""Answers that clients do not read: a large value is held once, and each client holds a small part of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.programs import Desk, desk_llm
from support.services import served

from stretto.engines.catalogue import transforms_engine
from stretto.http.byte_budget import ByteBudget
from stretto.http.client_request import ClientRequest
from stretto.http.connection import ClientConnection
from stretto.http.refusals import Refused
from stretto.http.routes import Route
from stretto.model.errors import UserError
from stretto.model.values import ABSENT, Chunk, Document, Hit, Section
from stretto.programs.wire.json_parts import json_parts, value_parts
from stretto.programs.wire.values import value_to_wire
from stretto.service.app import ServiceApp
from stretto.service.config import Limits, ServiceConfig
from stretto.service.request import Admitted, ServiceRequest
from stretto.service.tenants import HeldValues, Tenant

MB = 1_000_000

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.just(ABSENT)
    | st.builds(Chunk, texts, st.integers(0, 9), texts)
    | st.builds(lambda text: Document("a", (Section(text),), "sha"), texts),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts | st.just("$type"), inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=20,
)


@given(values)
def test_parts_join_to_what_an_encoder_writes(value: Any) -> None:
    assert b"".join(value_parts(value)) == msgspec.json.encode(value_to_wire(value))
    assert b"".join(json_parts(value_to_wire(value))) == msgspec.json.encode(value_to_wire(value))


@pytest.mark.parametrize(
    "value",
    [
        'a"\u00fc\n\U0001f600' * 200_000,
        list(range(200_000)),
        [Hit(Chunk("a.txt", n, "text " * 100), 0.5) for n in range(2000)],
        {"a": ["b" * 1000] * 1000, "$type": {"c": "d" * MB}},
        Document("a.txt", (Section("s" * MB), Section("t" * MB, "T", 3)), "sha"),
    ],
    ids=["text", "numbers", "hits", "object", "document"],
)
def test_parts_of_long_values_are_small(value: Any) -> None:
    parts = list(value_parts(value))
    assert b"".join(parts) == msgspec.json.encode(value_to_wire(value))
    assert len(parts) > 5
    assert max(map(len, parts)) < 600_000


def test_a_value_without_a_form_is_refused_before_an_answer_begins() -> None:
    with pytest.raises(UserError, match="no form in JSON"):
        list(value_parts([1, object()]))


def test_a_value_counts_once_however_many_read_it() -> None:
    budget = ByteBudget(10 * MB)
    held = HeldValues(budget)
    value, other = "a" * MB, "b" * MB
    assert all(held.hold(value, MB) for _ in range(50))
    assert budget.num_held == MB
    assert held.hold(other, MB)
    assert budget.num_held == 2 * MB
    for _ in range(50):
        held.release(value)
    assert budget.num_held == MB
    assert not held.hold("c", 9 * MB)
    held.release(other)
    assert budget.num_held == 0


class SlowClient(asyncio.Transport):
    """The transport of a client that reads the head of an answer and a part, and then nothing until told."""

    def __init__(self, connection: ClientConnection) -> None:
        super().__init__()
        self.connection = connection
        self.sent: list[bytes] = []
        connection.connection_made(self)

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.sent.append(data)
        if len(self.sent) == 2:
            self.connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...


async def asked(handler: Callable[[ServiceRequest], Awaitable[None]]) -> tuple[ServiceApp, SlowClient]:
    """Ask a service with one route; return it and the client."""
    app = ServiceApp(ServiceConfig())
    app.routes.add(Route("GET", "/a", handler))
    client = SlowClient(ClientConnection(app, set()))
    client.connection.data_received(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
    return app, client


def test_parts_are_made_as_the_client_takes_them() -> None:
    made = 0

    def parts() -> Iterator[bytes]:
        nonlocal made
        for _ in range(100):
            made += 1
            yield b"x" * 65_536

    async def program() -> None:
        app, client = await asked(lambda request: request.answer_parts(parts))
        while len(client.sent) < 2:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert 101 <= made <= 102, "all to measure them, one that was sent, and one that waits"
        assert 0 < app.budget.num_held < MB
        client.connection.resume_writing()
        while app.num_open:
            await asyncio.sleep(0.001)
        assert app.budget.num_held == 0
        assert sum(map(len, client.sent[1:])) == 100 * 65_536
        assert b"content-length: 6553600\r\n" in client.sent[0]

    asyncio.run(program())


def test_a_value_is_asked_for_room_before_it_is_written() -> None:
    tenant = Tenant("", Limits(), ByteBudget(10 * MB))

    async def program() -> None:
        received = ClientRequest(method=b"GET")
        received.found = Admitted(Route("GET", "/a", lambda _: asyncio.sleep(0)), (), tenant)
        app = ServiceApp(ServiceConfig())
        request = ServiceRequest(ClientConnection(app, set()), received, "id", app.readers)
        with pytest.raises(Refused):
            request.hold_value("a", 9 * MB)
        request.hold_value("a", 4 * MB)
        assert tenant.budget.num_held == 4 * MB
        request.close()
        assert tenant.budget.num_held == 0

    asyncio.run(program())


def test_long_texts_are_streamed_in_several_events() -> None:
    text = "abc\u00fc" * 100_000
    with (
        served([desk_llm(Desk()), transforms_engine()]) as (_, url),
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        session = http.post("/v1/sessions", json={}).json()["session_id"]
        http.post("/v1/set", json={"session_id": session, "semantic_var_id": "v", "value": text})
        body = {"session_id": session, "semantic_var_id": "v", "stream": True}
        lines = [line for line in http.post("/v1/get", json=body).text.split("\n") if line]
        whole = http.post("/v1/get", json={**body, "stream": False}).json()["value"]
    events = [msgspec.json.decode(line.removeprefix("data: ")) for line in lines[:-1]]
    assert "".join(event["text"] for event in events) == whole == text
    assert max(len(event["text"]) for event in events) < 100_000
