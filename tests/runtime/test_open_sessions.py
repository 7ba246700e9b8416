"""Sessions in a runtime, and what a runtime says of itself: full, draining, a picture."""

from __future__ import annotations

import asyncio
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from support.runtime_engines import COMPLETE, SHOUT, SHOUT_EACH, acting, graph, server
from support.virtual_loop import in_real_time, in_virtual_time

from stretto import Failure, Runtime
from stretto.apps.template import Template
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.graph import Graph
from stretto.model.errors import (
    ConfigError,
    DeadlineExceeded,
    EngineFailure,
    Overloaded,
    QueryCancelled,
    QueryEnded,
    UserError,
)
from stretto.model.values import ABSENT, Document
from stretto.runtime.session import Session
from stretto.runtime.session_state import Slots
from stretto.sched.messages import Event
from stretto.sched.queries.session import SessionMachine
from stretto.sched.snapshot import EnginePicture, InstancePicture

TWICE = graph(
    """
    graph twice(%loud: text)
      %louder = call(%loud) {result="text"} : text @acting
      return %louder
    """
)


@in_virtual_time
async def test_readers_of_a_dropped_variable_take_no_urgency_from_the_next_of_that_name() -> None:
    async def read(stream: bool) -> object:
        return [piece async for piece in session.stream("louder")] if stream else await session.get("louder")

    async with Runtime([acting(runs_in="loop")]) as runtime, await runtime.open_session() as session:
        session.extend(TWICE)
        early = [asyncio.create_task(read(stream)) for stream in (False, True)]
        await asyncio.sleep(1)
        session.drop("louder")
        session.extend(TWICE)
        late = asyncio.create_task(session.get("louder"))
        assert [type(one) for one in await asyncio.gather(*early, return_exceptions=True)] == (
            2 * [QueryCancelled]
        )
        await asyncio.sleep(1)
        machine = runtime.system.queries[session.id]
        assert isinstance(machine, SessionMachine)
        demands = machine.graph.demands
        assert demands is not None
        assert [demand.criteria for demand in demands.values()] == ["throughput"]
        session.provide("loud", "hello")
        assert await late == "HELLO"


@in_virtual_time
async def test_graphs_join_a_session_and_read_what_others_produce_or_will() -> None:
    async with Runtime([acting(runs_in="loop")]) as runtime, await runtime.open_session() as session:
        early = asyncio.create_task(session.get("louder"))
        session.extend(TWICE)
        await asyncio.sleep(1)
        session.extend(SHOUT, {"text": "greeting"})
        await asyncio.sleep(1)
        assert not early.done()
        session.provide("greeting", "hello")
        assert await early == "HELLO"
        assert await session.get("greeting") == "hello"
        assert await session.get("loud") == "HELLO"


@in_virtual_time
async def test_a_failure_is_of_a_variable_and_the_session_goes_on() -> None:
    async with Runtime([acting(runs_in="loop")]) as runtime, await runtime.open_session() as session:
        session.extend(SHOUT, {"loud": "one"})
        session.extend(TWICE, {"loud": "one", "louder": "two"})
        session.provide("text", "none")
        for name in ("one", "two"):
            with pytest.raises(EngineFailure, match="step 'loud'"):
                await session.get(name)
        session.extend(SHOUT, {"text": "other", "loud": "three"})
        session.provide("other", Failure(EngineFailure("never mind", step="elsewhere")))
        with pytest.raises(EngineFailure, match="step 'elsewhere': never mind"):
            await session.get("three")
        session.extend(SHOUT, {"text": "fine", "loud": "four"})
        session.provide("fine", "ok")
        assert await session.get("four") == "OK"


@in_virtual_time
async def test_a_failed_item_stays_a_failure_in_its_place_and_fails_a_one_shot_query() -> None:
    texts = ["a", "none", "c"]
    async with Runtime([acting(runs_in="loop")]) as runtime:
        async with await runtime.open_session() as session:
            session.extend(SHOUT_EACH)
            session.provide("texts", texts)
            loud = await session.get("loud")
            assert isinstance(loud, list)
            assert (loud[0], loud[2]) == ("A", "C")
            assert isinstance(loud[1], Failure)
        with pytest.raises(EngineFailure, match="step 'loud'"):
            await runtime.run(SHOUT_EACH, {"texts": texts})


@in_virtual_time
async def test_leaving_cancels_nothing() -> None:
    async with Runtime([acting(runs_in="loop")]) as runtime, await runtime.open_session() as session:
        session.extend(SHOUT)
        with pytest.raises(DeadlineExceeded, match="'loud' has not come within 2 s"):
            await session.get("loud", deadline_s=2)
        waiting = asyncio.create_task(session.get("loud"))
        await asyncio.sleep(1)
        waiting.cancel()
        session.provide("text", "x")
        assert await session.get("loud") == "X"


@in_virtual_time
async def test_a_dropped_variable_is_cancelled_and_its_name_is_free_again() -> None:
    async with Runtime([acting(runs_in="loop")]) as runtime, await runtime.open_session() as session:
        session.extend(SHOUT)
        waiting = asyncio.create_task(session.get("loud"))
        await asyncio.sleep(0)
        session.drop("loud")
        with pytest.raises(QueryCancelled, match="the variable 'loud' was dropped"):
            await waiting
        (query,) = runtime.snapshot().queries
        assert query.num_nodes == 0
        session.extend(SHOUT)
        session.provide("text", "x")
        assert await session.get("loud") == "X"
        session.drop("loud")
        session.drop("never heard of")


@in_virtual_time
async def test_closing_and_expiring_fail_what_has_not_come() -> None:
    async with Runtime([acting(runs_in="loop")]) as runtime:
        session = await runtime.open_session()
        session.extend(SHOUT)
        waiting = asyncio.create_task(session.get("loud"))
        await asyncio.sleep(0)
        await session.close()
        await session.close()
        with pytest.raises(QueryEnded, match="the session was closed"):
            await waiting
        with pytest.raises(UserError, match="the session is closed"):
            session.provide("text", "x")
        expiring = await runtime.open_session(deadline_s=3)
        expiring.extend(SHOUT)
        with pytest.raises(DeadlineExceeded):
            await expiring.get("loud")
        assert expiring.is_closed()
        assert runtime.system.is_idle()


@in_virtual_time
async def test_what_does_not_fit_a_session_is_refused_before_anything_runs() -> None:
    async with Runtime([acting(runs_in="loop")]) as runtime, await runtime.open_session() as session:
        session.extend(SHOUT)
        session.provide("text", "x")
        repeats: tuple[Callable[[], object], ...] = (
            lambda: session.extend(SHOUT),
            lambda: session.provide("text", "y"),
            lambda: session.provide("loud", "y"),
        )
        for again in repeats:
            with pytest.raises(UserError, match="has a value, or comes of a graph, already"):
                again()
        with pytest.raises(ConfigError, match="there is no engine 'llm'"):
            session.extend(COMPLETE)
        assert await session.get("loud") == "X"


@in_virtual_time
async def test_bad_arguments_are_refused_and_the_session_goes_on() -> None:
    async with Runtime([acting(runs_in="loop")]) as runtime, await runtime.open_session() as session:
        with pytest.raises(UserError, match="reads and produces the variable 'same'"):
            session.extend(SHOUT, {"text": "same", "loud": "same"})
        names: tuple[Any, ...] = (None, 3, [])
        for name in names:
            with pytest.raises(UserError, match="a variable's name must be a text"):
                session.provide(name, "x")
            with pytest.raises(UserError, match="a variable's name must be a text"):
                session.extend(SHOUT, {"text": name})
        for deadline_s in (math.nan, "soon"):
            with pytest.raises(UserError, match="deadline_s must be a number of seconds"):
                await session.get("loud", deadline_s=deadline_s)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="how must be one of finish, suspend, got 'gently'"):
            runtime.drain_instance("acting", 0, "gently")  # type: ignore[arg-type]
        session.extend(SHOUT)
        session.provide("text", "x")
        assert await session.get("loud", deadline_s=1.0) == "X"


@in_virtual_time
async def test_text_of_a_dropped_variable_is_not_that_of_the_next_one() -> None:
    """More text was on its way when the caller dropped the variable and took its name again."""
    events: list[Event] = []
    session = Session(
        "q1", events.append, lambda app, _: _compiled(app), asyncio.get_running_loop(), Slots(1)
    )
    session.extend(SHOUT)
    old = session.stream("loud")
    session.state.on_text("loud", "old")
    assert await anext(old) == "old"
    session.drop("loud")
    session.extend(SHOUT)
    new = session.stream("loud")
    session.state.on_text("loud", " text")
    session.state.on_settled("loud", Failure(QueryCancelled("dropped")))
    session.state.on_text("loud", "quite new")
    assert await anext(new) == "quite new"
    assert await anext(old) == " text"
    with pytest.raises(QueryCancelled):
        await anext(old)


def _compiled(app: Template | Graph | ExecutionGraph) -> ExecutionGraph:
    assert isinstance(app, ExecutionGraph)
    return app


@in_virtual_time
async def test_text_of_a_session_streams() -> None:
    async with Runtime([server()]) as runtime, await runtime.open_session() as session:
        session.extend(COMPLETE)
        session.provide("text", "one two three")
        pieces = [piece async for piece in session.stream("answer")]
        assert "".join(pieces) == await session.get("answer")
        assert len(pieces) > 1


@in_virtual_time
async def test_what_has_come_is_there_after_the_end_as_a_value_and_as_text() -> None:
    async with Runtime([server()]) as runtime:
        async with await runtime.open_session() as session:
            session.extend(COMPLETE)
            session.provide("text", "a b")
            assert await session.get("answer") == "A B "
        assert await session.get("answer") == "A B "
        assert [piece async for piece in session.stream("answer")] == ["A B "]
        with pytest.raises(UserError, match="the session is closed"):
            await session.get("other")
        with pytest.raises(UserError, match="the session is closed"):
            await anext(session.stream("other"))


@in_real_time
async def test_a_full_runtime_says_when_to_come_back() -> None:
    async with Runtime([acting()], max_queries=1) as runtime:
        first = runtime.try_submit(SHOUT, {"text": "a"})
        with pytest.raises(Overloaded, match="1 queries are running") as raised:
            runtime.try_submit(SHOUT, {"text": "b"})
        assert raised.value.retry_after_s > 0
        assert pickle.loads(pickle.dumps(raised.value)).retry_after_s == raised.value.retry_after_s
        assert await first == {"loud": "A"}
        assert await runtime.try_submit(SHOUT, {"text": "b"}) == {"loud": "B"}


@in_virtual_time
async def test_draining_takes_nothing_new_and_waits_for_the_rest() -> None:
    async with Runtime([acting(runs_in="loop")], max_queries=1) as runtime:
        session = await runtime.open_session()
        session.extend(SHOUT)
        waiting = asyncio.create_task(runtime.run(SHOUT, {"text": "b"}))
        await asyncio.sleep(0)
        draining = asyncio.create_task(runtime.drain())
        await asyncio.sleep(1)
        assert not draining.done()
        with pytest.raises(UserError, match="the runtime is draining"):
            await runtime.submit(SHOUT, {"text": "c"})
        session.provide("text", "x")
        assert await session.get("loud") == "X"
        await session.close()
        await draining
        with pytest.raises(QueryCancelled):
            await waiting


@in_virtual_time
async def test_a_snapshot_shows_queries_and_queues_and_stays_as_it_is() -> None:
    async with Runtime([acting(runs_in="loop")]) as runtime:
        async with await runtime.open_session(tenant="acme") as session:
            session.extend(SHOUT)
            await asyncio.sleep(0)
            before = runtime.snapshot()
            (query,) = before.queries
            assert (query.tenant, query.is_session, query.num_nodes) == ("acme", True, 1)
            assert query.open_variables == ("text", "loud")
            assert before.engines[0] == EnginePicture("acting", 0, (InstancePicture(0, "serving", 0),))
            session.provide("text", "x")
            await session.get("loud")
            assert before.queries == (query,)
            assert runtime.snapshot().queries[0].num_nodes == 0
        assert runtime.snapshot().queries == ()


@in_virtual_time
async def test_an_idle_session_holds_no_slot_and_one_with_work_holds_one() -> None:
    async with Runtime([acting(runs_in="loop")], max_queries=1) as runtime:
        sessions = [await runtime.open_session() for _ in range(5)]
        assert await runtime.try_submit(SHOUT, {"text": "a"}) == {"loud": "A"}, "all are idle"
        for session in sessions[:2]:
            session.extend(SHOUT)
        for session in sessions[:2]:
            with pytest.raises(Overloaded):
                runtime.try_submit(SHOUT, {"text": "b"})
            session.provide("text", "x")
            assert await session.get("loud") == "X"
        assert await runtime.try_submit(SHOUT, {"text": "b"}) == {"loud": "B"}
        sessions[3].extend(SHOUT)
        waiting = asyncio.create_task(runtime.run(SHOUT, {"text": "c"}))
        await asyncio.sleep(1)
        assert not waiting.done()
        await sessions[3].close()
        assert await waiting == {"loud": "C"}
        sessions[4].extend(SHOUT)
        sessions[4].drop("loud")
        assert await runtime.run(SHOUT, {"text": "d"}) == {"loud": "D"}


@in_virtual_time
async def test_values_that_are_no_text_stream_as_they_stand_in_a_prompt() -> None:
    async with Runtime([acting(runs_in="loop")]) as runtime, await runtime.open_session() as session:
        shown = {"number": 7, "list": ["a", "b"], "absent": ABSENT, "object": {"a": 1}}
        for name, value in {**shown, "document": Document("a.txt", (), "")}.items():
            session.provide(name, value)
        found = {name: [piece async for piece in session.stream(name)] for name in shown}
        assert found == {"number": ["7"], "list": ["a\n\nb"], "absent": [], "object": ['{"a": 1}']}
        with pytest.raises(UserError, match="cannot be streamed"):
            await anext(session.stream("document"))
