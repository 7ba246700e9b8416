"""Answers with status 200 that are none, and streams that end in odd ways: another worker answers, or nothing
is lost.
"""

from __future__ import annotations

import json

import pytest
from support.routing import COUNTS, DONE, EVENTS, STREAM, WHOLE, Routing, routing, run

from stretto.router.answers import ends_stream, failed_start, reported_failure, why_none

LOADING = b'{"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}'
WRONG = b'{"error": {"message": "too long", "type": "invalid_request_error", "code": 400}}'
PAGE = b"\n<!DOCTYPE html><html>Log in</html>"
CUT = b'data: {"id":"cut","cho'


def head(kind: bytes, length: int | None = None, *more: bytes) -> bytes:
    lines = [b"HTTP/1.1 200 OK", *([b"content-type: %b" % kind] if kind else []), *more]
    if length is not None:
        lines.append(b"content-length: %d" % length)
    return b"\r\n".join((*lines, b"", b""))


def whole(body: bytes, kind: bytes = b"application/json", more: int = 0) -> bytes:
    return head(kind, len(body) + more) + body


def events(body: bytes, more: int = 0) -> bytes:
    return whole(body, b"text/event-stream; charset=utf-8", more)


def chunks(body: bytes) -> bytes:
    return head(b"text/event-stream", None, b"transfer-encoding: chunked") + b"%x\r\n%b\r\n" % (
        len(body),
        body,
    )


async def answers(at: Routing, raw: bytes, num: int, *, stream: bool, hangs_up: bool = True) -> list[bytes]:
    at.servers[0].raw, at.servers[0].hangs_up = raw, hangs_up
    found = [await at.ask(stream=stream) for _ in range(num)]
    assert {one.status_code for one in found} == {200}
    assert at.servers[0].asked, "it was tried"
    at.router_state.check_invariants()
    assert at.router_state.view.num_clients == 0
    return [one.content for one in found]


@pytest.mark.parametrize(
    "raw",
    [
        whole(b""),
        whole(b"null"),
        whole(b"{}"),
        whole(b'{"foo": 1}'),
        whole(b'{"id":"x","choices":[]}'),
        whole(b'{"choices" : null, "usage":{"completion_tokens":9}}'),
        whole(b'{"object":"text_completion","choices":[ ]}', b""),
        whole(WHOLE[: len(WHOLE) // 2]),
        whole(PAGE),
        whole(PAGE, b"text/plain"),
        whole(PAGE, b""),
        whole(PAGE, b"application/xhtml+xml"),
        head(b"application/json"),
        head(b"application/json") + WHOLE[:50],
        head(b"application/json", 400),
        whole(LOADING),
        whole(WHOLE, more=50),
    ],
)
def test_another_worker_answers_where_a_whole_answer_is_none(raw: bytes) -> None:
    async def main() -> None:
        async with routing("raw", "well", placement="round_robin") as at:
            assert await answers(at, raw, 4, stream=False) == [WHOLE] * 4

    run(main())


@pytest.mark.parametrize(
    "raw",
    [
        events(b""),
        events(b": keep-alive\n\n"),
        events(DONE),
        events(b"data: null\n\n" + DONE),
        events(b"data: %b\n\n" % LOADING),
        events(b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"x"}}\n\n'),
        events(b"", 400),
        head(b"text/event-stream"),
        head(b"text/event-stream") + CUT,
        head(b"text/event-stream", None, b"transfer-encoding: chunked"),
        chunks(CUT),
        whole(PAGE, b""),
    ],
)
def test_another_worker_answers_where_a_stream_brings_nothing(raw: bytes) -> None:
    """Its head has been passed on by then, but no event."""

    async def main() -> None:
        async with routing("raw", "well", placement="round_robin") as at:
            found = await answers(at, raw, 4, stream=True)
            assert [one.removeprefix(b": keep-alive\n\n") for one in found] == [STREAM] * 4

    run(main())


@pytest.mark.parametrize(
    ("raw", "hangs_up"),
    [
        (events(STREAM, 50), True),
        (chunks(STREAM), True),
        (head(b"text/event-stream") + STREAM, True),
        (events(STREAM, 50), False),
    ],
)
def test_after_the_last_event_nothing_is_lost(raw: bytes, hangs_up: bool) -> None:
    """A worker that does not end the stream then is given a second."""

    async def main() -> None:
        async with routing("raw") as at:
            assert await answers(at, raw, 1, stream=True, hangs_up=hangs_up) == [STREAM]
            assert await at.total("stretto_requests_total", status="200") == 1

    run(main())


@pytest.mark.parametrize("raw", [head(b"text/event-stream") + EVENTS[0] + CUT, chunks(EVENTS[0] + COUNTS)])
def test_a_stream_that_ends_with_its_connection_before_its_last_event_is_cut(raw: bytes) -> None:
    async def main() -> None:
        async with routing("raw", "well", placement="round_robin") as at:
            (content,) = await answers(at, raw, 1, stream=True)
            assert content.startswith(EVENTS[0])
            assert b"the answer was cut" in content
            assert DONE not in content
            assert CUT not in content

    run(main())


def test_a_report_about_the_request_is_passed_on() -> None:
    async def main() -> None:
        async with routing("raw", "well", placement="round_robin") as at:
            assert await answers(at, whole(WRONG), 2, stream=False) == [WRONG, WHOLE]
            at.servers[0].asked.clear()
            wrong = b"data: %b\n\n" % WRONG
            assert set(await answers(at, events(wrong), 2, stream=True)) == {wrong, STREAM}

    run(main())


@pytest.mark.parametrize(
    ("raw", "stream"), [(whole(b""), False), (events(b""), True), (whole(LOADING), False)]
)
def test_without_another_worker_it_is_an_error(raw: bytes, stream: bool) -> None:
    async def main() -> None:
        async with routing("raw", max_attempts=2) as at:
            at.servers[0].raw = raw
            answer = await at.ask(stream=stream)
            error = json.loads(answer.text.removeprefix("data: "))["error"]
            assert (answer.status_code, error["code"]) == (200 if stream else 502, 502)
            assert "502" not in error["message"], "the worker has not said so"
            at.router_state.check_invariants()

    run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_no_client_is_sent_where_a_worker_redirects_to(stream: bool) -> None:
    async def main() -> None:
        async with routing("301", "307", placement="round_robin") as at:
            answer = await at.ask(stream=stream)
            assert (answer.status_code, answer.json()["error"]["code"]) == (502, 502)
            assert "location" not in answer.headers

    run(main())


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        (b"application/json; charset=utf-8", b' {"a": 1} \n', True),
        (b"application/json", b'[{"a": 1}]', True),
        (b"application/json", b"[]", False),
        (b"application/json", b'{"a": [1]', False),
        (b"application/json", json.dumps({"choices": [{"text": '"choices": []'}]}).encode(), True),
        (b"application/json", b'{"choices": 5}', False),
        (b"application/json", b'{"choices": "none"}', False),
        (b"application/json", b'{"choices": {"text": "a"}}', False),
        (b"application/json", b'{"choices": [5]}', False),
        (b"application/json", b'{"choices": [ ]}', False),
        (b"application/json", b'{"choices": null}', False),
        (b"application/json", b'{"tools": [{"properties": {"choices": {"type": "array"}}}]}', True),
        (b"text/plain", b"What was said", True),
        (b"text/vtt", b"<v Roger> Hello", True),
        (b"audio/mpeg", b"", True),
    ],
)
def test_what_may_be_an_answer(kind: bytes, body: bytes, expected: bool) -> None:
    assert (not why_none("/v1/embeddings", kind, body)) is expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"foo": 1}', "its answer has no choices"),
        (b'[{"foo": 1}]', "its answer has no choices"),
        (b'{"foo": "%b"}' % (b"x" * 20_000), "its answer has no choices"),
        (b'{"foo": 1, "error": null}', "its answer has no choices"),
        (b'{"choices": []}', "its answer has no choices"),
        (WRONG, ""),
        (WHOLE, ""),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_what_must_have_choices(path: str, body: bytes, expected: str) -> None:
    assert why_none(path, b"application/json", body) == expected
    assert why_none("/v1/embeddings", b"application/json", b'{"foo": 1}') == ""


def test_text_about_errors_and_ends_is_neither() -> None:
    told = json.dumps({"choices": [{"text": '"error": {"code": 503}\ndata: [DONE] "type":"message_stop"'}]})
    assert reported_failure(told.encode()) == ""
    assert failed_start(f"data: {told}\n\n".encode()) == ""
    assert not ends_stream(f"data: {told}\n\n".encode())
    assert reported_failure(b'{"id": "resp_1", "error": null}') == ""
    assert reported_failure(b'{"error": ') == ""


@pytest.mark.parametrize(
    "last",
    [
        DONE,
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
        b'event: response.completed\r\ndata: {"type": "response.completed"}\r\n\r\n',
        b'data: {"type":"response.incomplete"}\n\n',
    ],
)
def test_last_events_of_each_api(last: bytes) -> None:
    assert ends_stream(EVENTS[0] + last)
