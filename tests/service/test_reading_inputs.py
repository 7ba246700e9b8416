"""Documents of queries while they are read: deadlines, tenants' limits, parsers in use, lists of lists."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from support.programs import Desk, desk_llm
from support.services import served

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig, FakeLLM, FakeLLMConfig
from stretto.apps import naive_rag
from stretto.documents.parser_process import ParseLimits
from stretto.engines.catalogue import transforms_engine
from stretto.model.deployment import deploy
from stretto.model.errors import DocumentError
from stretto.model.values import Document
from stretto.service.apps import parsing
from stretto.service.apps.deployed_app import deploy_app
from stretto.service.apps.fetching import FetchRules
from stretto.service.apps.inputs import UnparsedDocument
from stretto.service.apps.limits import AppLimits
from stretto.service.apps.parsing import DocumentParsers
from stretto.service.apps.reading import InputReader
from stretto.service.config import Limits, ServiceConfig
from stretto.service.refusals import Misplaced

FETCH = FetchRules(hosts=("127.0.0.1",), allow_private=True)


@contextmanager
def slow_server(may_answer: threading.Event) -> Iterator[tuple[str, threading.Event]]:
    """Run a server that answers "The inn." after `may_answer`; yield its URL, and an event of its first
    request.
    """
    asked = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.set()
            may_answer.wait(30)
            self.send_response(200)
            self.send_header("Content-Length", "8")
            self.end_headers()
            self.wfile.write(b"The inn.")

        def log_message(self, *arguments: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/a.txt", asked
    finally:
        may_answer.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def service(limits: Limits | None = None) -> Iterator[httpx.Client]:
    names = ("chunking", "embedding", "vectors")
    fakes = [deploy(name, FakeBatch, FakeBatchConfig(), keeps_state=True) for name in names]
    engines = [*fakes, deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm")]
    config = ServiceConfig(port=0, limits=limits or Limits(), apps=AppLimits(fetch=FETCH))
    apps = {"naive": deploy_app("naive", naive_rag())}
    with served(engines, config, apps) as (_, url), httpx.Client(base_url=url, timeout=30) as http:
        yield http


def ask(http: httpx.Client, document: dict[str, str], **more: Any) -> httpx.Response:
    return http.post(
        "/v1/apps/naive/queries", json={"inputs": {"question": "Where?", "files": [document]}, **more}
    )


def test_a_deadline_ends_a_query_while_its_documents_are_read() -> None:
    with slow_server(threading.Event()) as (url, _), service() as http:
        began_s = time.monotonic()
        answer = ask(http, {"url": url}, deadline_s=0.3)
        assert time.monotonic() - began_s < 10  # the server would keep it waiting for longer
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (408, "deadline_exceeded")
        assert "while the documents were read" in error["message"]


@pytest.mark.parametrize("limits", [Limits(sessions=1), Limits(tokens_per_minute=150)])
def test_a_query_counts_while_its_documents_are_read(limits: Limits) -> None:
    may_answer = threading.Event()
    with (
        slow_server(may_answer) as (url, asked),
        service(limits) as http,
        ThreadPoolExecutor() as pool,
    ):
        try:
            first = pool.submit(ask, http, {"url": url})
            assert asked.wait(10)
            second = ask(http, {"name": "a.txt", "text": "The inn."})
        finally:
            may_answer.set()
        assert (second.status_code, second.json()["error"]["code"]) == (429, "over_limit")
        assert first.result().status_code == 200


def test_a_query_whose_documents_cannot_be_read_leaves_the_limits_as_they_were() -> None:
    with service(Limits(sessions=1, tokens_per_minute=150)) as http:
        for _ in range(2):
            assert ask(http, {"name": "a.pdf", "text": "no PDF"}).status_code == 422
        assert ask(http, {"name": "a.txt", "text": "The inn."}).status_code == 200


def test_the_documents_fetched_for_a_query_are_not_too_large_together() -> None:
    may_answer = threading.Event()
    may_answer.set()
    rules = FetchRules(hosts=("127.0.0.1",), allow_private=True, max_query_bytes=20)

    async def read(url: str, number: int) -> object:
        async with InputReader(AppLimits(fetch=rules)) as reader:
            return await reader.read(
                {"files": [UnparsedDocument(f"{i}", None, url, f"{i}") for i in range(number)]}, None
            )

    with slow_server(may_answer) as (url, _):
        asyncio.run(read(url, 2))
        with pytest.raises(Misplaced, match="have more than the 20 bytes allowed"):
            asyncio.run(read(url, 3))


def test_documents_in_lists_of_lists_are_read() -> None:
    def upload(name: str) -> UnparsedDocument:
        return UnparsedDocument(name, name.encode(), None, f"inputs.{name}")

    async def read() -> dict[str, Any]:
        async with InputReader(AppLimits(max_documents=3)) as reader:
            given: dict[str, object] = {
                "groups": [[upload("a"), upload("b")], [], [upload("c")]],
                "x": [["y"]],
            }
            found = await reader.read(given, None)
            with pytest.raises(Misplaced, match="4 documents; at most 3"):
                await reader.read({"groups": [[upload("a")] * 2] * 2}, None)
            return found

    found = asyncio.run(read())
    assert [[document.source for document in group] for group in found["groups"]] == [["a", "b"], [], ["c"]]
    assert found["x"] == [["y"]]


def test_a_parser_is_in_use_until_its_file_ends_though_its_caller_is_cancelled_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_end = threading.Event()
    num_at_once: list[int] = []
    busy: set[str] = set()

    def parse(parser: object, upload: UnparsedDocument, data: bytes) -> Document:
        busy.add(upload.name)
        num_at_once.append(len(busy))
        may_end.wait(10)
        busy.discard(upload.name)
        raise DocumentError("told to")

    monkeypatch.setattr(parsing, "_parse", parse)

    async def run() -> None:
        async with DocumentParsers(1, ParseLimits(), 100) as parsers:
            first = asyncio.create_task(parsers.parse(UnparsedDocument("a.pdf", b"x", None, "")))
            await until(lambda: "a.pdf" in busy)
            for _ in range(2):
                first.cancel()
                await asyncio.sleep(0)
            await asyncio.wait([first])
            assert first.cancelled()
            second = asyncio.create_task(parsers.parse(UnparsedDocument("b.pdf", b"x", None, "")))
            await asyncio.sleep(0.05)
            may_end.set()
            with pytest.raises(DocumentError, match="told to"):
                await second

    asyncio.run(run())
    assert num_at_once == [1, 1]


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    while not is_so():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("inputs", "place"),
    [
        ({"question": "x" * 11}, "inputs.question"),
        ({"list": ["x" * 6, "y" * 5]}, "inputs.list"),
        ({"lists": [["x" * 6], ["y" * 5]], "number": 7}, "inputs.lists"),
        ({"first": "x" * 6, "second": "日" * 5}, "inputs.second"),
    ],
)
def test_texts_beyond_the_limit_are_refused_before_anything_is_read(
    inputs: dict[str, Any], place: str
) -> None:
    """They go whole into prompts, and take many times their size in memory."""

    async def main() -> None:
        reader = InputReader(AppLimits(max_text_chars=10))  # not entered, so that it could read no document
        with pytest.raises(
            Misplaced, match="characters; all texts of a query together have at most 10"
        ) as refused:
            await reader.read({**inputs, "files": [UnparsedDocument("a.txt", b"text", None, "files")]}, None)
        assert refused.value.place == place

    asyncio.run(main())


def test_texts_within_the_limit_are_read_beside_longer_documents() -> None:
    async def main() -> None:
        async with InputReader(AppLimits(max_text_chars=10)) as reader:
            inputs = {"question": "x" * 10, "file": UnparsedDocument("a.txt", b"text " * 10, None, "file")}
            found = await reader.read(inputs, None)
        assert found["question"] == "x" * 10
        assert isinstance(found["file"], Document)

    asyncio.run(main())


def test_a_long_question_over_http_gets_a_typed_refusal() -> None:
    engines = [
        *(deploy(name, FakeBatch, FakeBatchConfig()) for name in ("chunking", "embedding", "vectors")),
        desk_llm(Desk()),
        transforms_engine(),
    ]
    with (
        served(engines, apps={"naive": deploy_app("naive", naive_rag())}) as (_, url),
        httpx.Client(base_url=url, timeout=300) as http,
    ):
        inputs = {"question": "why? " * 800_000, "files": [{"name": "a.txt", "text": "short"}]}
        refused = http.post("/v1/apps/naive/queries", json={"inputs": inputs})
    assert refused.status_code == 422
    error = refused.json()["error"]
    assert "at most 1000000" in error["message"]
    assert "inputs.question" in str(error)
