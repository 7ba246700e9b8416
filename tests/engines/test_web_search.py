"""Web search over HTTP, against a server in this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from support.search_service import results, search_service

from stretto.engines.batch.web_search import WebSearch, WebSearchConfig
from stretto.model.errors import BadReply, ConfigError, EngineTimeout, EngineUnavailable
from stretto.model.tasks import Task
from stretto.model.values import Hit


def page(number: int) -> dict[str, str]:
    return {"url": f"https://example.org/{number}", "title": f"Page {number}", "content": f"Text {number}."}


def search(engine: WebSearch, *queries: str, k: int = 4) -> list[list[Hit]]:
    task = Task(1, "q", "s", "web_search", {"queries": list(queries)}, {"k": k}, len(queries), ("queries",))
    (found,) = engine.run([task])
    assert isinstance(found, list)
    return found


@contextmanager
def engine_for(
    url: str, sleep: Callable[[float], None] = lambda seconds: None, **settings: float
) -> Iterator[WebSearch]:
    async def pause(seconds: float) -> None:
        sleep(seconds)

    engine = WebSearch(WebSearchConfig(url, **settings), sleep=pause)  # type: ignore[arg-type]
    try:
        yield engine
    finally:
        engine.close()


def test_results_are_hits_in_the_services_order() -> None:
    replies = results(*map(page, range(9)))
    with search_service(lambda query, number: (200, replies)) as (url, asked), engine_for(url) as engine:
        first, second = search(engine, "who is it?", "what & where", k=3)
    assert sorted(asked.queries) == ["what & where", "who is it?"]
    assert [hit.chunk.source for hit in first] == [f"https://example.org/{i}" for i in range(3)]
    assert [hit.chunk.text for hit in first[:1]] == ["Page 0\n\nText 0."]
    assert first[0].score > first[1].score > first[2].score
    assert first == second


def test_what_has_no_url_or_text_is_passed_over() -> None:
    rows = (
        {"title": "no URL"},
        {"url": "https://example.org/a"},
        page(1),
        {"url": 3, "content": "x"},
        page(2),
    )
    with search_service(lambda query, number: (200, results(*rows))) as (url, _), engine_for(url) as engine:
        (found,) = search(engine, "q")
    assert [hit.chunk.title for hit in found] == ["Page 1", "Page 2"]


def test_a_text_of_any_length_and_kind_is_a_query() -> None:
    with search_service(lambda query, number: (200, results())) as (url, asked), engine_for(url) as engine:
        assert search(engine, "ü & ? # \n x", "y" * 3000) == [[], []]
    assert sorted(asked.queries) == ["y" * 3000, "ü & ? # \n x"]


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRETTO_SEARCH_KEY", "a-key")
    with search_service(lambda query, number: (200, results())) as (url, asked), engine_for(url) as engine:
        search(engine, "q")
    assert asked.keys == ["Bearer a-key"]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_refusals_are_tried_again_later_each_time(status: int) -> None:
    slept: list[float] = []

    def answer(query: str, number: int) -> tuple[int, bytes]:
        return (200, results(page(1))) if number == 3 else (status, b"")

    with search_service(answer) as (url, _), engine_for(url, slept.append) as engine:
        (found,) = search(engine, "q")
    assert len(found) == 1
    assert slept == [0.5, 1.0]


def test_after_the_last_attempt_the_service_is_unavailable() -> None:
    with (
        search_service(lambda query, number: (503, b"down")) as (url, asked),
        engine_for(url) as engine,
        pytest.raises(EngineUnavailable, match=r"503.*down"),
    ):
        search(engine, "q")
    assert len(asked.queries) == 3


@pytest.mark.parametrize(
    "reply",
    [(404, b"no"), (200, b"<html>"), (200, b"[]"), (200, b'{"results": 3}'), (200, b'{"results": ["x"]}')],
)
def test_what_no_retry_would_mend_is_a_bad_reply(reply: tuple[int, bytes]) -> None:
    with (
        search_service(lambda query, number: reply) as (url, asked),
        engine_for(url) as engine,
        pytest.raises(BadReply),
    ):
        search(engine, "q")
    assert len(asked.queries) == 1


def test_silence_is_a_timeout() -> None:
    answered = threading.Event()

    def answer(query: str, number: int) -> tuple[int, bytes]:
        answered.wait(5)
        return 200, results()

    with search_service(answer) as (url, asked), engine_for(url, timeout_s=0.5, max_retries=1) as engine:
        with pytest.raises(EngineTimeout, match=r"0\.5 s"):
            search(engine, "q")
        answered.set()
    assert len(asked.queries) == 2


def test_headers_that_come_in_drops_are_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                for number in range(100):
                    try:
                        connection.sendall(b"x-%d: y\r\n" % number)
                    except OSError:
                        break
                    if ended.wait(0.05):
                        break

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://user:secret@127.0.0.1:{server.getsockname()[1]}"
        with (
            engine_for(url, timeout_s=0.2, max_retries=0) as engine,
            pytest.raises(EngineTimeout, match=r"0\.2 s") as raised,
        ):
            search(engine, "q")
        ended.set()
        thread.join(5)
    assert "secret" not in str(raised.value)


def test_nobody_there_is_unavailable() -> None:
    with search_service(lambda query, number: (200, b"")) as (url, _):
        pass
    with engine_for(url) as engine, pytest.raises(EngineUnavailable, match="cannot reach"):
        search(engine, "q")


@pytest.mark.parametrize(
    "config",
    [
        WebSearchConfig("http://x", timeout_s=0),
        *map(
            WebSearchConfig,
            (
                "ftp://x",
                "http://",
                "http://x:port",
                "http://[::1",
                "http://a..b",
                "http://\0",
                "http://x/?q=1",
            ),
        ),
    ],
)
def test_what_cannot_work_is_refused(config: WebSearchConfig) -> None:
    with pytest.raises(ConfigError):
        WebSearch(config)
