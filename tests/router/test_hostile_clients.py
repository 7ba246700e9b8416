"""Clients that want more of the router than is theirs: memory, time, paths, connections."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable

import pytest
from support.routing import STREAM, WHOLE, Routing, routing, run, until

from stretto.http.byte_budget import ByteBudget
from stretto.http.client_request import RequestLimits
from stretto.http.request_reader import RequestReader
from stretto.model.errors import ConfigError
from stretto.router.config import RouterConfig
from stretto.router.routes import is_passed_on, read_target
from stretto.wire.errors import RequestRefused

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
MB = 1_000_000


def _reader(budget: ByteBudget, max_body_bytes: int = 64 * MB) -> RequestReader:
    limits = RequestLimits(max_body_bytes, 60.0, budget)
    return RequestReader(lambda _: limits, budget, lambda: None)


def _statuses(reader: RequestReader) -> list[int]:
    return [0 if one.refusal is None else one.refusal.status for one in reader.read]


def test_unfinished_bodies_of_many_clients_leave_room_for_small_ones() -> None:
    budget = ByteBudget(100 * MB)
    readers = [_reader(budget) for _ in range(20)]
    for reader in readers:
        reader.feed(POST + b"Transfer-Encoding: chunked\r\n\r\n", 0.0)
    for _ in range(60):
        for reader in readers:
            reader.feed(b"f4240\r\n" + b"x" * MB + b"\r\n", 0.0)
            assert budget.num_held <= 100 * MB
    assert any(429 in _statuses(reader) for reader in readers)
    small = _reader(budget)
    small.feed(POST + b"Content-Length: 2000\r\n\r\n" + b"x" * 2000, 0.0)
    assert _statuses(small) == [0]
    for reader in (*readers, small):
        reader.close()
    assert budget.num_held == 0


def test_a_body_that_is_announced_as_larger_than_what_is_free_is_refused_before_it_comes() -> None:
    budget = ByteBudget(100 * MB)
    first, second = _reader(budget), _reader(budget)
    first.feed(POST + b"Content-Length: 45000000\r\n\r\n" + b"x" * (44 * MB), 0.0)
    second.feed(POST + b"Content-Length: 40000000\r\n\r\n", 0.0)
    assert (_statuses(first), _statuses(second)) == ([], [429])


@pytest.mark.parametrize("num_bytes", [1, 100_000])
def test_pipelined_requests_count_together(num_bytes: int) -> None:
    budget = ByteBudget(MB)
    reader = _reader(budget)
    reader.feed((POST + b"Content-Length: %d\r\n\r\n" % num_bytes + b"x" * num_bytes) * 1000, 0.0)
    assert _statuses(reader)[-1] == 429
    assert budget.num_held <= MB // 2
    assert sum(one.num_held for one in reader.read) == budget.num_held


@pytest.mark.parametrize("part_bytes", [2, 3, 30])
def test_a_body_in_tiny_parts_takes_hardly_more_than_its_length(part_bytes: int) -> None:
    reader = _reader(ByteBudget(512 * MB))
    part = b"%x\r\n%b\r\n" % (part_bytes, b"x" * part_bytes)
    num_parts = 300_000 // part_bytes
    tracemalloc.start()
    try:
        reader.feed(POST + b"Transfer-Encoding: chunked\r\n\r\n", 0.0)
        for _ in range(num_parts // 100):
            reader.feed(part * 100, 0.0)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    reader.feed(b"0\r\n\r\n", 0.0)
    assert reader.read[0].body == b"x" * part_bytes * (num_parts // 100 * 100)
    assert held_bytes < 1.5 * len(reader.read[0].body)


@pytest.mark.parametrize("part_bytes", [(1, 5000, 2, 3), (5000, 1, 1, 5000), (4096, 4095, 4096)])
def test_a_body_in_long_and_short_parts_comes_as_it_was_sent(part_bytes: tuple[int, ...]) -> None:
    reader = _reader(ByteBudget(512 * MB))
    parts = [bytes([65 + place]) * num for place, num in enumerate(part_bytes)]
    reader.feed(POST + b"Content-Length: %d\r\n\r\n" % sum(part_bytes), 0.0)
    for part in parts:
        reader.feed(part, 0.0)
    assert reader.read[0].body == b"".join(parts)
    assert type(reader.read[0].body) is bytes


def test_headers_of_one_letter_count_as_the_memory_that_they_take() -> None:
    budget = ByteBudget(100 * MB)
    reader = _reader(budget)
    reader.feed(b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 200, 0.0)
    assert budget.num_held > 200 * 100
    reader.feed(b"a:b\r\n" * 200, 0.0)
    assert _statuses(reader) == [431]
    assert budget.num_held == 0


@pytest.mark.parametrize(
    ("data", "late_s"),
    [
        (b"GET / HTTP/1.1\r\nx", 31.0),
        (POST + b"Content-Length: 9\r\n\r\n1234", 61.0),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n", 61.0),
    ],
)
def test_a_head_or_body_that_trickles_is_refused_with_408(data: bytes, late_s: float) -> None:
    budget = ByteBudget(MB)
    reader = _reader(budget)
    reader.feed(data, 100.0)
    reader.refuse_late(100.0 + late_s - 2.0, 30.0)
    assert _statuses(reader) == []
    reader.refuse_late(100.0 + late_s, 30.0)
    assert _statuses(reader) == [408]
    assert budget.num_held == 0


def test_an_idle_client_and_one_that_is_not_read_are_not_late() -> None:
    reader = _reader(ByteBudget(MB))
    reader.refuse_late(1000.0, 30.0)
    reader.feed(b"GET / HTTP/1.1\r\n\r\nGET", 1000.0)
    reader.go_on(1029.0)
    reader.refuse_late(1040.0, 30.0)
    assert _statuses(reader) == [0]


def test_all_bytes_are_given_back_when_all_is_answered() -> None:
    async def main() -> None:
        async with routing("well", "chunks", "503") as at:
            for number in range(6):
                await at.ask(prompt="x" * 1000 * number, stream=number % 2 == 1)
            await at.client.post("/nowhere", json={})
            await at.client.get("/health")
            _, writer = await asyncio.open_connection("127.0.0.1", at.router.port)
            writer.write(POST + b"Content-Length: 900000\r\n\r\n" + b"x" * 500_000)
            await until(lambda: at.router.front.budget.num_held >= 500_000)
            writer.close()
            await until(lambda: at.router.front.budget.num_held == 0)

    run(main())


def test_answers_that_do_not_fit_are_passed_on_as_they_come() -> None:
    async def main() -> None:
        async with routing("waits") as at:
            budget = at.router.front.budget
            for number, (stream, expected) in enumerate(((False, WHOLE), (True, STREAM)), start=1):
                at.servers[0].go_on.clear()
                asked = asyncio.create_task(at.ask(stream=stream))
                await until(lambda: len(at.servers[0].asked) == number)  # noqa: B023
                budget.count(budget.max_bytes)
                at.servers[0].go_on.set()
                assert (await asked).content == expected
                budget.count(-budget.max_bytes)
                await until(lambda: budget.num_held == 0)

    run(main())


def test_a_body_of_millions_of_values_is_refused_before_it_is_read() -> None:
    async def main() -> None:
        async with routing("well") as at:
            for body in (b'{"a":[' + b"1," * 5 * MB + b"1]}", b'{"a":' + b"[" * 3 * MB + b"]" * 3 * MB):
                reply = await at.client.post("/v1/completions", content=body)
                assert reply.status_code in (400, 413)
                assert not at.servers[0].asked
            text = b'{"model":"m","prompt":"' + b"word word " * MB + b'"}'
            assert (await at.client.post("/v1/completions", content=text)).content == WHOLE

    run(main())


def test_the_budget_has_room_for_two_bodies() -> None:
    with pytest.raises(ConfigError, match="at least twice max_body_bytes, which is 64000000"):
        RouterConfig(max_held_bytes=100 * MB)


@pytest.mark.parametrize(
    "target",
    [
        *("/v1/load_lora_adapter#x", "/v1/unload_lora_adapter#/../completions", "/v1/LOAD_lora_adapter"),
        *("/v1/load_lora_adapter?x#y", "/v1/load_lora_adapter;x=1", "/v1/load_lora_adapter;/"),
        *("http://h/v1/load_lora_adapter", "HTTPS://h:1/v1//load_lora_adapter", "/v1/%256coad_lora_adapter"),
        *("/v1/x/..;/load_lora_adapter", "/v1%2fload_lora_adapter", "/v1/load_lora_adapter%20"),
        *("/v1/load_lora_adapter%23", "/./v1/load_lora_adapter//", "/v1/%2e/load_lora_adapter"),
    ],
)
def test_no_form_of_a_path_that_changes_a_worker_is_passed_on(target: str) -> None:
    async def main() -> None:
        async with routing("well") as at:
            assert (
                await _status_of(at, b"POST " + target.encode() + b" HTTP/1.1\r\nContent-Length: 2\r\n")
                == 404
            )
            assert not at.servers[0].asked

    run(main())


@pytest.mark.parametrize(
    "target", ["/v1/a%00b", "/v1/a%0d%0ab", "/v1/a%5cb", "/v1/a\\b", "*", "/v1/%2525252541"]
)
def test_strange_targets_are_refused_with_400(target: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        read_target(target.encode())
    assert refused.value.answer.status == 400


@pytest.mark.parametrize(
    ("target", "sent"),
    [
        ("http://h:1/v1/models?x=1", "/v1/models?x=1"),
        ("/v1//chat/completions/?a=%2F#b", "/v1/chat/completions?a=%2F"),
        ("/v1/models/a%2Fb", "/v1/models/a%2Fb"),
        ("/v1/files/x/../y%20z", "/v1/files/y%20z"),
        ("http://h", "/"),
    ],
)
def test_a_worker_gets_the_path_by_which_the_router_decides(target: str, sent: str) -> None:
    route = read_target(target.encode())
    assert route.target == sent.encode()
    assert read_target(route.target).path == route.path
    assert is_passed_on(route.path) == route.path.startswith("/v1/")


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/v1/files", "/router/workers"])
def test_head_works_where_get_does(path: str) -> None:
    async def main() -> None:
        async with routing("well") as at:
            got, head = await at.client.get(path), await at.client.head(path)
            assert (head.status_code, head.content) == (got.status_code, b"")
            assert head.headers["content-type"] == got.headers["content-type"]
            assert (await at.client.get("/health")).status_code == 200

    run(main())


@pytest.mark.parametrize("mode", ["well", "waits", "chunks"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_sends_no_more_gets_its_answer(mode: str, stream: bool) -> None:
    async def main() -> None:
        async with routing(mode) as at:
            body = b'{"prompt":"a","stream":%s}' % (b"true" if stream else b"false")
            reader, writer = await asyncio.open_connection("127.0.0.1", at.router.port)
            writer.write(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            writer.write_eof()
            await until(lambda: bool(at.servers[0].asked))
            at.servers[0].go_on.set()
            answer = await asyncio.wait_for(reader.read(), 30.0)
            assert b"HTTP/1.1 200 " in answer
            assert answer.endswith(b"0\r\n\r\n") or answer.endswith(WHOLE)
            writer.close()
            await until(lambda: not at.router.door.server.connections)

    run(main())


def test_all_requests_of_a_client_that_sends_no_more_are_answered() -> None:
    async def main() -> None:
        async with routing("well") as at:
            reader, writer = await asyncio.open_connection("127.0.0.1", at.router.port)
            writer.write(b"GET /v1/files HTTP/1.1\r\nHost: x\r\n\r\n" * 3 + b"GET /v1")
            writer.write_eof()
            answer = await asyncio.wait_for(reader.read(), 30.0)
            assert answer.count(WHOLE) == 3
            writer.close()

    run(main())


def _reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize("leave", [_reset, _close])
@pytest.mark.parametrize(("mode", "stream"), [("waits", False), ("waits", True), ("silent", False)])
def test_a_client_that_has_left_ends_its_attempt(
    leave: Callable[[asyncio.StreamWriter], None], mode: str, stream: bool
) -> None:
    async def main() -> None:
        async with routing("well") as at:
            at.servers[0].mode = mode
            body = b'{"prompt":"a","stream":%s}' % (b"true" if stream else b"false")
            _, writer = await asyncio.open_connection("127.0.0.1", at.router.port)
            writer.write(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await until(lambda: bool(at.servers[0].asked))
            leave(writer)
            await until(lambda: at.servers[0].num_left == 1 and not at.router.door.server.connections)
            assert at.router.front.budget.num_held == 0

    run(main())


async def _status_of(at: Routing, head: bytes) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", at.router.port)
    writer.write(head + b"Host: x\r\nContent-Type: application/json\r\n\r\n{}")
    line = await asyncio.wait_for(reader.readline(), 30.0)
    writer.close()
    return int(line.split()[1])
