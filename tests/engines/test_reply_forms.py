"""Replies of servers that were offered tools: text goes on at once, and calls are read at the end."""

from __future__ import annotations

import json

import pytest

from stretto.engines.openai_server.tool_use import ListReply, ObjectReply
from stretto.model.tools import ToolOffer

OFFER = ToolOffer("", ({"type": "function", "function": {"name": "look", "parameters": {}}},))
CALL = '{"name": "look", "arguments": {"x": 1}}'


def pieces(text: str) -> list[str]:
    return [text[at : at + 3] for at in range(0, len(text), 3)]


def test_a_text_goes_on_with_its_first_pieces() -> None:
    reply = ObjectReply(OFFER)
    shown = [part for piece in pieces('It is "so", says he.') for part in reply.feed(piece)]
    assert "".join(shown).startswith('{"answer": "It is')
    assert "".join([*shown, *reply.finish([])]) == reply.value
    assert json.loads(reply.value) == {"answer": 'It is "so", says he.'}


@pytest.mark.parametrize("before", ["", " " * 5000, "<tool_call>\n", "```json\n"])
def test_calls_are_held_until_the_end(before: str) -> None:
    reply, listed = ObjectReply(OFFER), ListReply(OFFER, None)
    for piece in pieces(before + CALL):
        assert reply.feed(piece) == listed.feed(piece) == []
    (whole,) = reply.finish([])
    (call,) = json.loads(whole)["tool_calls"]
    assert (call["name"], json.loads(call["arguments"])) == ("look", {"x": 1})
    assert len(listed.finish([])) == 1


@pytest.mark.parametrize("begin", ["", " ", "{"])
def test_a_piece_costs_the_same_wherever_it_stands(begin: str) -> None:
    """None is put behind a copy of all that came before: an answer of 800 kB took minutes."""
    reply, piece = ObjectReply(OFFER), "abcd" * 100
    reply.feed(begin)
    for _ in range(50):
        reply.feed(piece)
    assert len(reply._begin) < 2000
    assert max(map(len, (*reply._held, *reply._written))) < 2000
    reply.finish([])
    assert piece * 50 in reply.value
