"""Large bodies of clients and workers are read beside the event loop that serves all others."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from support.routing import PATIENCE_S, STREAM, WHOLE, Routing, routing, run, until

from stretto.http import body_readers
from stretto.http.body_readers import LARGE_BYTES, BodyReaders
from stretto.http.refusals import Refused
from stretto.model.child_process import ChildProcess
from stretto.router import door as door_module
from stretto.router import health, prompts, resumption, worker_pages
from stretto.router.messages import RoutedRequest
from stretto.router.reading import ReadingRules, RequestHead

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
LARGE = 2 * LARGE_BYTES


def note_threads(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[bool]:
    """Note of each call of a function whether it is made by the main thread."""
    found: list[bool] = []
    called = getattr(module, name)

    def noting(*arguments: Any, **named: Any) -> Any:
        found.append(threading.current_thread() is threading.main_thread())
        return called(*arguments, **named)

    monkeypatch.setattr(module, name, noting)
    return found


@pytest.mark.parametrize("num_bytes", [100, LARGE, 3_000_000])
def test_a_large_body_is_read_by_another_process(num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    ask = ChildProcess.ask

    def noting(self: ChildProcess, head: bytes, body: bytes) -> bytes | None:
        if b"read_request" in head:  # the guard of prompts may look at a body again
            asked.append(len(body))
        return ask(self, head, body)

    monkeypatch.setattr(ChildProcess, "ask", noting)

    async def main() -> None:
        async with routing("well") as at:
            for stream in (False, True):
                reply = await at.ask(prompt="x" * num_bytes, stream=stream)
                assert reply.content == (STREAM if stream else WHOLE)
            assert len(json.loads(at.servers[0].asked[0].body)["prompt"]) == num_bytes
        assert len(asked) == (0 if num_bytes <= LARGE_BYTES else 2)

    run(main())


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[" * LARGE, 400),
        (b'{"model": 1, "prompt": "' + b"x" * LARGE + b'"}', 400),
        (b'{"a":[' + b"1," * 5_000_000 + b"1]}", 413),
    ],
)
def test_a_large_body_that_is_wrong_is_refused_and_the_connection_goes_on(body: bytes, status: int) -> None:
    async def main() -> None:
        async with routing("well") as at:
            reply = await at.client.post("/v1/completions", content=body)
            assert reply.status_code == status
            assert not at.servers[0].asked
            assert (await at.ask()).content == WHOLE
            assert await at.total("stretto_refused_total", status=str(status)) == 1
            await until(lambda: at.router.front.budget.num_held == 0)

    run(main())


def bug(*_: object) -> RoutedRequest:
    raise ZeroDivisionError


def test_a_bug_in_reading_a_large_body_is_answered_with_500(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(door_module, "read_request", bug)

    async def main() -> None:
        async with routing("well") as at:
            assert (await at.ask(prompt="x" * LARGE)).status_code == 500

    run(main())
    assert "ZeroDivisionError" in caplog.text


def endless(body: bytes) -> None:
    while True:
        pass


def vast(body: bytes) -> int:
    return len(bytearray(2 * body_readers.MEMORY_BYTES))


def deadly(body: bytes) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("read", [endless, vast, deadly])
def test_a_body_that_takes_too_much_is_refused_and_the_next_one_is_read(
    read: Callable[[bytes], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_readers, "READ_S", 2.0 if read is endless else PATIENCE_S)

    async def main() -> None:
        readers = BodyReaders()
        with pytest.raises(Refused, match="the body") as raised:
            await readers.read(LARGE, lambda: b"x", read)
        assert raised.value.status == 413
        if read is not endless:
            assert await readers.read(LARGE, lambda: b"x", len) == 1
        readers.close()

    asyncio.run(main())


def test_owners_of_bodies_take_turns() -> None:
    async def main() -> None:
        readers, begun = BodyReaders(), list[str]()

        def content(owner: str) -> bytes:
            begun.append(owner)
            return b"x"

        reads = [
            asyncio.create_task(readers.read(LARGE, partial(content, owner), len, owner))
            for owner in ("one", "one", "one", "two")
        ]
        await asyncio.gather(*reads)
        readers.close()
        assert begun == ["one", "one", "two", "one"]

    asyncio.run(main())


def hold_threads(at: Routing) -> threading.Event:
    """Keep the router's threads busy until the event is set."""
    go_on = threading.Event()
    for num_bytes in (LARGE, 3_000_000):
        at.router.front.readers.run(num_bytes, go_on.wait)
    return go_on


@pytest.mark.parametrize("num_bytes", [LARGE, 3_000_000])
def test_a_client_that_leaves_while_its_body_waits_to_be_read_leaves_nothing(num_bytes: int) -> None:
    async def main() -> None:
        async with routing("well") as at:
            go_on = hold_threads(at)
            _, writer = await asyncio.open_connection("127.0.0.1", at.router.port)
            body = b'{"prompt":"%b"}' % (b"x" * num_bytes)
            writer.write(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await until(lambda: at.router.front.budget.num_held >= num_bytes)
            writer.close()
            await until(lambda: not at.router.door.server.connections)
            assert at.router.front.budget.num_held == 0
            go_on.set()
            assert (await at.ask(prompt="x" * num_bytes)).content == WHOLE
            assert len(at.servers[0].asked) == 1

    run(main())


def test_small_requests_are_answered_while_large_bodies_wait_to_be_read() -> None:
    async def main() -> None:
        async with routing("well") as at:
            go_on = hold_threads(at)
            large = [asyncio.create_task(at.ask(prompt="x" * num)) for num in (LARGE, 3_000_000)]
            for _ in range(5):
                assert (await at.ask()).content == WHOLE
            assert not any(task.done() for task in large)
            go_on.set()
            assert {reply.content for reply in await asyncio.gather(*large)} == {WHOLE}

    run(main())


def test_a_body_of_moderate_size_does_not_wait_for_a_huge_one() -> None:
    async def main() -> None:
        readers, go_on = BodyReaders(), threading.Event()
        huge = readers.run(3_000_000, go_on.wait)
        assert await readers.run(LARGE, lambda: "read") == "read"
        go_on.set()
        assert await huge
        readers.close()

    run(main())


def test_a_long_list_of_models_is_read_and_written_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = note_threads(monkeypatch, health, "read_models")
    writes = note_threads(monkeypatch, worker_pages, "json_body")
    names = [f"model-{number}" for number in range(20_000)]

    async def main() -> None:
        server = ListServer(names)
        await server.open()
        async with routing(urls=(server.url,)) as at:
            for path in ("/v1/models", "/router/workers"):
                listed = (await at.client.get(path)).json()
                found = listed["data"] if path == "/v1/models" else listed[0]["models"]
                assert [one["id"] if isinstance(one, dict) else one for one in found] == names
            assert not any((*reads, *writes))
            assert (await at.client.get(f"/v1/models/{names[-1]}")).json() == {"id": names[-1]}
            head = await at.client.head("/v1/models")
            assert (head.status_code, head.content) == (200, b"")
            reader, writer = await asyncio.open_connection("127.0.0.1", at.router.port, limit=10_000_000)
            writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            writer.write_eof()
            assert names[-1].encode() in await asyncio.wait_for(reader.read(), 60.0)
            writer.close()
        server.close()

    run(main())


class ListServer:
    """A server that lists models."""

    def __init__(self, names: list[str]) -> None:
        self._body = json.dumps({"data": [{"id": name} for name in names]}).encode()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                body = self._body if b"/models" in head else b"{}"
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                writer.write(b"content-length: %d\r\n\r\n" % len(body) + body)


def test_a_large_stream_that_is_cut_goes_on_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = note_threads(monkeypatch, resumption, "_fields")
    prompt = list(range(LARGE // 5))
    asked = {"prompt": prompt, "max_tokens": 9, "return_token_ids": True}

    async def main() -> None:
        async with routing("greedy", "greedy", placement="round_robin") as at:
            whole = (await at.ask(stream=True, **asked)).content
            assert not reads
            at.servers[1].num_streamed = 4
            found = (await at.ask(stream=True, **asked)).content
            assert texts(found) == texts(whole)
            assert [len(server.asked) for server in at.servers] == [2, 1]
            assert reads == [False]

    run(main())


def texts(stream: bytes) -> str:
    events = [line[6:] for line in stream.splitlines() if line.startswith(b"data: {")]
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


def test_the_rest_of_a_large_answer_is_that_of_a_small_one() -> None:
    fields = {"model": "m", "prompt": list(range(LARGE)), "max_tokens": 9, "stream": True}
    body = json.dumps({**fields, "return_token_ids": True}).encode()
    found = resumption.resumable("/v1/completions", body)
    assert found is not None
    assert found.num_read == len(body)
    event = {"id": "a", "choices": [{"index": 0, "text": "b", "token_ids": [7], "finish_reason": None}]}
    found.feed(b"data: %b\n\n" % json.dumps(event).encode())
    rest = found.rest()
    assert rest is not None
    assert json.loads(rest)["prompt"] == [*range(LARGE), 7]
    assert json.loads(rest)["max_tokens"] == 8


@pytest.mark.parametrize("more", [{"n": 2}, {"seed": 1}, {"return_token_ids": False}, {"max_tokens": None}])
def test_a_large_request_whose_answer_cannot_be_joined_does_not_go_on(more: dict[str, object]) -> None:
    fields = {"model": "m", "prompt": list(range(LARGE)), "max_tokens": 9, "stream": True}
    body = json.dumps({**fields, "return_token_ids": True, **more}).encode()
    found = resumption.resumable("/v1/completions", body)
    assert found is None or found.rest() is None


def test_the_key_of_a_prompt_covers_at_most_a_million_tokens_by_estimate() -> None:
    def num_blocks(prompt: object) -> int:
        body = json.dumps({"prompt": prompt}).encode()
        routed = prompts.read_request(RequestHead("/v1/completions"), ReadingRules(), body)
        assert routed.key is not None
        return len(routed.key.blocks)

    assert num_blocks("x" * 5_000_000) == num_blocks("x" * 2**22) == 2**22 // 256
