"""The parser of workers' answers: what it refuses."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@given(st.lists(st.binary(min_size=0, max_size=40), max_size=12), st.randoms(use_true_random=False))
def test_chunks_that_pass_the_parser_by_are_read_as_if_it_had_seen_them(
    bodies: list[bytes], choices: random.Random
) -> None:
    """However the bytes of an answer are cut, `take_chunk` and `feed` together bring the same body."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = [b"%x\r\n%b\r\n" % (len(body), body) for body in bodies if body]
    cuts = sorted(choices.sample(range(len(b"".join(chunks)) + 1), choices.randrange(3)) if chunks else [])
    joined, parts, at = b"".join(chunks), [], 0
    ends = [sum(map(len, chunks[: number + 1])) for number in range(len(chunks))]
    for end in sorted({*cuts, *(end for end in ends if choices.random() < 0.8), len(joined)}):
        parts.append(joined[at:end])
        at = end
    answer, body = AnswerParser(), b""
    for part in (head, *(one for one in parts if one), b"0\r\n\r\n"):
        if taken := answer.take_chunk(part):
            body += taken
        else:
            answer.feed(part)
            body += answer.take_body()
    assert body == b"".join(bodies)
    assert answer.is_complete


def test_a_chunk_behind_the_first_digit_of_its_length_is_fed() -> None:
    answer = AnswerParser()
    answer.feed(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n1")
    assert not answer.take_chunk(b"1\r\nb\r\n")
    answer.feed(b"1\r\n0123456789abcdefg\r\n")
    assert answer.take_body() == b"a0123456789abcdefg"


def test_a_chunk_behind_the_last_one_is_no_part_of_the_answer() -> None:
    parser = AnswerParser()
    parser.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n")
    parser.feed(b"0\r\n\r\n")
    assert parser.is_complete
    assert parser.take_chunk(b"5\r\nhello\r\n") == b""
    with pytest.raises(BadReply, match="more than one answer"):
        parser.feed(b"5\r\nhello\r\n")
