"""The parser of workers' answers: what it refuses."""

from __future__ import annotations

import pytest

from stretto.http.client.answer_parser import AnswerParser
from stretto.model.errors import BadReply

PART = b"y" * 60_000


@pytest.mark.parametrize(
    "begin",
    [
        b"HTTP/1.1 200 OK\r\nx: ",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 ",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: ",
    ],
)
def test_a_head_without_an_end_is_no_answer(begin: bytes) -> None:
    parser = AnswerParser()
    parser.feed(begin)
    for _ in range(4):
        parser.feed(PART)
    with pytest.raises(BadReply, match="a head of more than"):
        parser.feed(PART)


def test_a_large_body_in_small_parts_is_no_large_head() -> None:
    parser = AnswerParser()
    parser.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 1200000\r\n\r\n")
    for _ in range(20):
        parser.feed(PART)
    assert parser.is_complete
    assert len(parser.take_body()) == 1_200_000


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-stub\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabHTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    ],
)
def test_what_could_be_read_in_two_ways_is_no_answer(data: bytes) -> None:
    with pytest.raises(BadReply):
        AnswerParser().feed(data)
