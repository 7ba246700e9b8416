"""Text that is generated piece by piece is never joined anew for each piece."""

from __future__ import annotations

import asyncio

from support.line_counts import num_lines
from support.machines import compiled
from support.virtual_loop import in_virtual_time

from stretto.runtime.query import Query
from stretto.runtime.session import Session
from stretto.runtime.session_state import Slots
from stretto.sched.actions import Reply
from stretto.sched.queries.session import SessionMachine as Machine

SAY = compiled(
    """
    graph say(%x: text)
      %kv = prefill([%x]) : kv @llm
      %y = decode(%kv) {max_tokens=10} : text @llm
      return %y
    """
)


class Piece(str):
    """A text that cannot be appended to another one, which would copy that one."""

    def __radd__(self, other: str) -> str:
        raise AssertionError("a piece was appended to a text")

    def __getitem__(self, part: object) -> str:
        return Piece(super().__getitem__(part))  # type: ignore[index]


PIECES = [Piece("one"), Piece(" two"), Piece(" three")]
WHOLE = "one two three"


@in_virtual_time
async def test_a_query_streams_pieces_that_are_not_joined_before() -> None:
    query = Query("1", lambda: None, asyncio.get_running_loop())
    for piece in PIECES:
        query.on_text("y", piece)
    stream = query.stream("y")
    assert await anext(stream) == WHOLE
    query.on_text("y", " four")
    query.on_reply(Reply("1", {"y": f"{WHOLE} four five"}))
    assert [piece async for piece in stream] == [" four", " five"]
    assert [piece async for piece in query.stream("y")] == [f"{WHOLE} four", " five"]


@in_virtual_time
async def test_a_variable_streams_pieces_that_are_not_joined_before() -> None:
    session = Session("s", lambda event: None, lambda app, _: SAY, asyncio.get_running_loop(), Slots(1))
    for piece in PIECES:
        session.state.on_text("y", piece)
    stream = session.stream("y")
    assert await anext(stream) == WHOLE
    session.state.on_text("y", " four")
    session.state.on_settled("y", f"{WHOLE} four five")
    assert [piece async for piece in stream] == [" four five"]


def test_shown_text_is_kept_as_it_comes_and_compared_where_it_comes_again() -> None:
    machine = Machine("q")
    machine.extend(SAY, {})
    (work,) = machine.provide("x", "x").work
    offset = 0
    for piece in PIECES:
        assert machine.deliver(work.node.id, offset, piece).text == [("y", piece)]
        offset += len(piece)
    assert machine.deliver(work.node.id, 2, "e two").text == []
    assert machine.deliver(work.node.id, 7, " three four").text == [("y", " four")]
    assert machine.deliver(work.node.id, 18, " five").text == [("y", " five")]
    ((name, value),) = machine.complete(work.node.id, 0, [("kv", f"{WHOLE} four five")]).settled
    assert (name, value) == ("y", f"{WHOLE} four five")


def test_dropping_a_variable_looks_at_no_other_texts() -> None:
    def work(num_open: int) -> int:
        machine = Machine("q")
        for number in range(num_open):
            machine.extend(SAY, {"y": f"y{number}"})
        return num_lines(lambda: machine.drop("y5"))

    assert work(300) <= 1.1 * work(20)
