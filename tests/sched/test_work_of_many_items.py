"""Items of long lists cost no line of Python each, where none of them holds lists of lists."""

from __future__ import annotations

import pytest
from support.line_counts import num_lines
from support.machines import compiled

from stretto.model.errors import BadReply
from stretto.model.foreign import MAX_DEPTH, are_flat, check_nesting
from stretto.model.values import ABSENT, Chunk, Failure
from stretto.sched.queries.request import StepRequest
from stretto.sched.queries.results import completed_value
from stretto.sched.queries.session import SessionMachine

TEXT = """
    graph embedding(%xs: list[text])
      %v = embed(each %xs) : list[vector] @e
      return %v
"""


def begun(texts: list[object]) -> tuple[SessionMachine, list[StepRequest]]:
    session = SessionMachine("q")
    return session, session.submit(compiled(TEXT), {"xs": texts}).work


def lines_of(num_items: int) -> int:
    (request,) = begun(["text"] * num_items)[1]
    vectors = [(0.5, 0.5)] * num_items
    return num_lines(lambda: begun(["text"] * num_items)) + num_lines(
        lambda: completed_value(request, 0, num_items, vectors)
    )


def test_more_items_run_no_more_lines() -> None:
    assert lines_of(2000) == lines_of(1000)


def test_items_that_are_absent_or_have_failed_keep_their_places() -> None:
    failure = Failure(BadReply("no text"))
    assert [(one.lo, one.hi) for one in begun(["a", failure, "b", ABSENT])[1]] == [(0, 1), (2, 3)]
    session, work = begun([ABSENT, "a", ABSENT, "b"])
    assert [(one.lo, one.hi) for one in work] == [(1, 2), (3, 4)]
    session.complete(work[0].node.id, 3, ["B"])
    assert session.complete(work[0].node.id, 1, ["A"]).outputs == {"v": [ABSENT, "A", ABSENT, "B"]}


@pytest.mark.parametrize("deep", [[[[]]], ([1, (2,)],), {"a": 1}, {"a": [1]}])
def test_only_what_holds_lists_of_lists_is_looked_at_one_by_one(deep: object) -> None:
    assert are_flat([1, "a", None, Chunk("a", 0, "b")])
    assert are_flat([(0.5, 0.5), [1, "a"], []])
    assert not are_flat([1, deep])
    assert not are_flat([[1], deep])


def test_of_many_items_only_the_endless_one_fails() -> None:
    endless: list[object] = []
    endless.append(endless)
    (request,) = begun(["text"] * 4)[1]
    results = completed_value(request, 0, 4, [[1.0], endless, [2.0], [[3.0]]]).results
    assert [isinstance(result, Failure) for result in results] == [False, True, False, False]
    with pytest.raises(BadReply, match=f"more than {MAX_DEPTH} deep"):
        check_nesting(endless)
