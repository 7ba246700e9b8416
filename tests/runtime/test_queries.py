"""Queries from submission to reply: results, streams, configuration, limits."""

from __future__ import annotations

import asyncio
import resource
import time
from dataclasses import replace
from typing import Any

import pytest
from support.runtime_engines import (
    COMPLETE,
    SHOUT,
    SHOUT_EACH,
    ActingConfig,
    Log,
    acting,
    fake_llm,
    graph,
    server,
)
from support.virtual_loop import in_real_time, in_virtual_time

from stretto import ABSENT, Chunk, Document, Hit, Input, Runtime, Section, Template
from stretto.cluster.machine import Machine
from stretto.components import Synthesis, ToolCall
from stretto.model.deployment import deploy
from stretto.model.errors import ConfigError, DeadlineExceeded, EngineFailure, QueryCancelled, UserError
from stretto.trace.recorder import Recorder

TYPED = graph(
    """
    graph typed(%t: text, %n: number, %b: bool, %d: list[document], %h: list[list[hit]], %any: any)
      %all = aggregate(%t) : list[text]
      return %all
    """
)
HIT = Hit(Chunk("a", 0, "text"), 0.5)
TYPED_INPUTS = {
    "t": "x",
    "n": 1.5,
    "b": True,
    "d": [Document("a", (Section("text"),), "sha")],
    "h": ([HIT], [], (HIT, HIT)),
    "any": object(),
}


@in_virtual_time
async def test_a_query_returns_its_outputs_by_name() -> None:
    async with Runtime([acting(runs_in="loop")]) as runtime:
        assert await runtime.run(SHOUT, {"text": "hello"}) == {"loud": "HELLO"}
        query = await runtime.submit(SHOUT_EACH, {"texts": ["a", "b"]})
        assert not query.is_done()
        assert await query == {"loud": ["A", "B"]}
        assert query.is_done()


@in_real_time
async def test_threads_answer_as_inline_instances_do() -> None:
    async with Runtime([acting(), fake_llm()]) as runtime:
        assert await runtime.run(SHOUT, {"text": "hello"}) == {"loud": "HELLO"}
        assert await runtime.run(COMPLETE, {"text": "x"}) == await runtime.run(COMPLETE, {"text": "x"})


@in_virtual_time
async def test_a_query_can_be_awaited_twice_and_by_several() -> None:
    async with Runtime([acting(runs_in="loop")]) as runtime:
        query = await runtime.submit(SHOUT, {"text": "a"})
        first, second = await asyncio.gather(query, query)
        assert first is second
        assert await query is first
        failing = await runtime.submit(SHOUT, {"text": "raise"})
        for _ in range(2):
            with pytest.raises(EngineFailure, match="told to"):
                await failing


@in_virtual_time
async def test_a_waiter_that_is_cancelled_takes_nothing_from_the_others() -> None:
    async with Runtime([server()]) as runtime:
        query = await runtime.submit(COMPLETE, {"text": "one two"})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(query, 0.5)
        assert await query == {"answer": "ONE TWO "}


@in_virtual_time
async def test_an_error_names_the_step_and_its_cause() -> None:
    async with Runtime([acting(runs_in="loop")]) as runtime:
        with pytest.raises(EngineFailure) as caught:
            await runtime.run(SHOUT, {"text": "raise"})
    assert str(caught.value) == "step 'loud': ValueError: told to"
    assert isinstance(caught.value.__cause__, ValueError)


@in_virtual_time
async def test_a_query_without_hits_has_an_absent_answer() -> None:
    question, hits = Input("question", "text"), Input("hits", "list[hit]")
    synthesis = Synthesis(question=question, hits=hits)
    app = Template("nothing_found", synthesis, {"answer": synthesis["answer"]})
    async with Runtime([server()]) as runtime:
        query = await runtime.submit(app, {"question": "why?", "hits": []})
        assert [piece async for piece in query.stream("answer")] == []
        assert (await query)["answer"] is ABSENT


# --- streams


@in_virtual_time
async def test_pieces_arrive_when_they_are_decoded_and_join_to_the_value() -> None:
    loop = asyncio.get_running_loop()
    async with Runtime([server()]) as runtime:
        query = await runtime.submit(COMPLETE, {"text": "one two three"})
        pieces = [(loop.time(), piece) async for piece in query.stream("answer")]
        assert pieces == [(1.0, "ONE "), (2.0, "TWO "), (3.0, "THREE ")]
        assert (await query)["answer"] == "ONE TWO THREE "
        assert [piece async for piece in query.stream("answer")] == ["ONE TWO THREE "], "and again, later"


@in_virtual_time
async def test_several_readers_of_a_stream_each_see_all_of_it() -> None:
    async with Runtime([server()]) as runtime:
        query = await runtime.submit(COMPLETE, {"text": " ".join("abcdefgh")})

        async def read(pause_s: float) -> str:
            text = ""
            async for piece in query.stream("answer"):
                text += piece
                await asyncio.sleep(pause_s)
            return text

        texts = await asyncio.gather(*(read(pause_s) for pause_s in (0, 0, 0.3, 1.0, 2.5, 100)))
    assert set(texts) == {"A B C D E F G H "}


@in_virtual_time
async def test_a_stream_that_nobody_reads_to_its_end_keeps_nobody_waiting() -> None:
    async with Runtime([server()]) as runtime:
        query = await runtime.submit(COMPLETE, {"text": "one two"})
        async for piece in query.stream("answer"):
            assert piece == "ONE "
            break
        assert (await query)["answer"] == "ONE TWO "


@pytest.mark.parametrize("how", ["failure", "deadline", "cancel", "close"])
@in_virtual_time
async def test_a_stream_ends_by_raising_what_ended_the_query(how: str) -> None:
    kinds = {"failure": EngineFailure, "deadline": DeadlineExceeded}
    runtime = Runtime([server()])
    async with runtime:
        text = "raise" if how == "failure" else "one two three"
        query = await runtime.submit(COMPLETE, {"text": text}, deadline_s=2.5 if how == "deadline" else None)
        loop = asyncio.get_running_loop()
        if how == "cancel":
            loop.call_later(2.5, query.cancel)
        if how == "close":
            loop.call_later(2.5, lambda: asyncio.ensure_future(runtime.aclose()))
        pieces: list[str] = []
        with pytest.raises(kinds.get(how, QueryCancelled)):  # noqa: PT012
            async for piece in query.stream("answer"):
                pieces.append(piece)
    assert pieces == ([] if how == "failure" else ["ONE ", "TWO "])


@in_virtual_time
async def test_a_stream_of_no_output_says_so_and_a_list_streams_nothing() -> None:
    async with Runtime([acting(runs_in="loop")]) as runtime:
        query = await runtime.submit(SHOUT_EACH, {"texts": ["a"]})
        assert [piece async for piece in query.stream("loud")] == []
        with pytest.raises(UserError, match="there is no output 'quiet'; there are loud"):
            await anext(query.stream("quiet"))


# --- many queries


@in_virtual_time
async def test_apps_share_engines_and_their_batches() -> None:
    config = ActingConfig(log=Log())
    async with Runtime([acting(config, runs_in="loop"), server()]) as runtime:
        queries = [
            await runtime.submit(SHOUT, {"text": "a"}),
            await runtime.submit(SHOUT_EACH, {"texts": ["b", "c"]}),
            await runtime.submit(COMPLETE, {"text": "d"}),
        ]
        assert [dict(await query) for query in queries] == [
            {"loud": "A"},
            {"loud": ["B", "C"]},
            {"answer": "D "},
        ]
    assert config.log.batches == [["q1", "q2"]]


@in_real_time
async def test_three_hundred_queries_at_once_on_threads() -> None:
    async with Runtime([acting(instances=2), fake_llm(instances=2)], max_queries=300) as runtime:
        texts = [f"text {number}" for number in range(300)]
        answers = await asyncio.gather(
            *(runtime.run(SHOUT, {"text": text}) for text in texts[::2]),
            *(runtime.run(COMPLETE, {"text": text}) for text in texts[1::2]),
        )
        assert [answer["loud"] for answer in answers[:150]] == [text.upper() for text in texts[::2]]
        assert len({answer["answer"] for answer in answers[150:]}) > 140
        assert runtime.system.is_idle()


@in_virtual_time
async def test_a_failing_query_hurts_no_other_in_its_batch() -> None:
    async with Runtime([acting(runs_in="loop")]) as runtime:
        texts = ["a", "raise", "b", "none", "c", "exit quietly"]
        queries = [await runtime.submit(SHOUT, {"text": text}) for text in texts]
        ends = await asyncio.gather(*queries, return_exceptions=True)
        assert [end if isinstance(end, BaseException) else end["loud"] for end in ends][::2] == [
            "A",
            "B",
            "C",
        ]
        assert str(ends[1]) == "step 'loud': ValueError: told to"
        assert str(ends[3]) == "step 'loud': the engine returned None"
        assert ends[5] == {"loud": "EXIT QUIETLY"}


@in_virtual_time
async def test_submit_waits_while_too_many_queries_run() -> None:
    loop = asyncio.get_running_loop()
    async with Runtime([server()], max_queries=2) as runtime:
        started_s = []

        async def run(text: str) -> None:
            query = await runtime.submit(COMPLETE, {"text": text})
            started_s.append(loop.time())
            await query

        await asyncio.gather(*(run(text) for text in ("1 2 3", "1", "1 2", "1")))
    assert started_s == [0.0, 0.0, 1.0, 3.0]


@in_virtual_time
async def test_a_query_that_waits_for_room_keeps_its_deadline_and_can_be_cancelled() -> None:
    loop = asyncio.get_running_loop()
    async with Runtime([server()], max_queries=1) as runtime:
        running = await runtime.submit(COMPLETE, {"text": "1 2 3 4 5"})
        with pytest.raises(DeadlineExceeded):
            await runtime.submit(COMPLETE, {"text": "1"}, deadline_s=2)
        assert loop.time() == 2
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(runtime.submit(COMPLETE, {"text": "1"}), 1)
        await running
        assert await runtime.run(COMPLETE, {"text": "1"}, deadline_s=1.5) == {"answer": "1 "}


# --- deadlines and cancelling


@in_virtual_time
async def test_a_deadline_ends_its_query_and_stops_its_work() -> None:
    loop, log = asyncio.get_running_loop(), Log()
    async with Runtime([server(log)]) as runtime:
        late = await runtime.submit(COMPLETE, {"text": "1 2 3"}, deadline_s=2.5)
        other = await runtime.submit(COMPLETE, {"text": "1 2 3"}, deadline_s=3.5)
        with pytest.raises(DeadlineExceeded):
            await late
        assert loop.time() == 2.5
        await asyncio.sleep(0)
        assert log.released == ["q1"]
        assert await other == {"answer": "1 2 3 "}


@pytest.mark.parametrize("deadline_s", [0, -1, 1e-9])
@in_virtual_time
async def test_a_deadline_that_has_passed_ends_the_query_at_once(deadline_s: float) -> None:
    async with Runtime([server()]) as runtime:
        with pytest.raises(DeadlineExceeded):
            await runtime.run(COMPLETE, {"text": "1"}, deadline_s=deadline_s)
    assert asyncio.get_running_loop().time() < 0.001


@in_virtual_time
async def test_a_deadline_is_a_number() -> None:
    async with Runtime([server()]) as runtime:
        with pytest.raises(UserError, match="deadline"):
            await runtime.submit(COMPLETE, {"text": "1"}, deadline_s=float("nan"))
        assert await runtime.run(COMPLETE, {"text": "1"}, deadline_s=float("inf")) == {"answer": "1 "}


@in_virtual_time
async def test_a_cancelled_query_stops_what_runs_and_what_waits() -> None:
    log = Log()
    async with Runtime([server(log, max_running=1)]) as runtime:
        running = await runtime.submit(COMPLETE, {"text": "1 2 3"})
        waiting = await runtime.submit(COMPLETE, {"text": "1 2 3"})
        await asyncio.sleep(1.5)
        for query in (waiting, running, running):
            query.cancel()
        for query in (running, waiting):
            with pytest.raises(QueryCancelled):
                await query
        await asyncio.sleep(0)
        assert log.released == ["q1"], "the other was never admitted"
        assert runtime.system.is_idle()
        running.cancel()
        assert await runtime.run(COMPLETE, {"text": "1"}) == {"answer": "1 "}


@in_virtual_time
async def test_cancelling_who_awaits_run_cancels_the_query() -> None:
    log = Log()
    async with Runtime([server(log)]) as runtime:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(runtime.run(COMPLETE, {"text": "1 2 3"}), 1.5)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert log.released == ["q1"]
        assert runtime.system.is_idle()


@in_virtual_time
async def test_a_query_cancelled_before_anything_happened_starts_nothing() -> None:
    config = ActingConfig(log=Log())
    async with Runtime([acting(config, runs_in="loop")]) as runtime:
        query = await runtime.submit(SHOUT, {"text": "a"})
        query.cancel()
        with pytest.raises(QueryCancelled):
            await query
    assert config.log.batches == []


@in_real_time
async def test_what_a_batch_still_says_of_a_cancelled_query_is_not_heard() -> None:
    config = ActingConfig(log=Log())
    async with Runtime([acting(config, keeps_state=True)]) as runtime:
        query = await runtime.submit(SHOUT, {"text": "a"})
        await asyncio.sleep(0)
        query.cancel()
        with pytest.raises(QueryCancelled):
            await query
        assert await runtime.run(SHOUT, {"text": "b"}) == {"loud": "B"}
    assert config.log.released[-1] == "q2"
    assert len(set(config.log.released)) == len(config.log.released), "at most once for each query"


# --- what is refused


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "typed: the query brings no input 't'"),
        ({**TYPED_INPUTS, "more": 1}, "typed has no input 'more'"),
        ({**TYPED_INPUTS, "t": 5}, "typed: input 't' takes text, not 5"),
        ({**TYPED_INPUTS, "n": "5"}, "typed: input 'n' takes number, not '5'"),
        ({**TYPED_INPUTS, "b": "yes"}, "typed: input 'b' takes bool, not 'yes'"),
        ({**TYPED_INPUTS, "d": "path"}, "typed: input 'd' takes list[document], not 'path'"),
        ({**TYPED_INPUTS, "d": ["path"]}, "typed: input 'd' takes list[document], not ['path']"),
        ({**TYPED_INPUTS, "h": [[1]]}, "typed: input 'h' takes list[list[hit]], not [[1]]"),
        ({**TYPED_INPUTS, "h": ["ab"]}, "typed: input 'h' takes list[list[hit]], not ['ab']"),
    ],
)
@in_virtual_time
async def test_inputs_that_do_not_fit_are_refused(inputs: dict[str, object], message: str) -> None:
    async with Runtime([]) as runtime:
        with pytest.raises(UserError) as caught:
            await runtime.submit(TYPED, inputs)
        assert str(caught.value) == message
        assert await runtime.run(TYPED, TYPED_INPUTS) == {"all": ["x"]}


@in_virtual_time
async def test_an_engine_that_is_not_registered_is_refused_at_once_by_its_step() -> None:
    async with Runtime([acting(runs_in="loop")]) as runtime:
        with pytest.raises(ConfigError, match=r"^step 'kv': there is no engine 'llm'; there are acting$"):
            await runtime.submit(COMPLETE, {"text": "a"})


def test_a_misspelt_engine_is_named_with_the_nearest_before_any_engine_is_started() -> None:
    """The step's own engine, and the one that it falls back on."""
    started: list[object] = []

    def start(config: object) -> Any:
        started.append(config)
        raise AssertionError("it must not start")

    runtime = Runtime([deploy(name, start, None) for name in ("calls", "embedding")])
    for choices, wrong in (({"engine": "cals"}, "cals"), ({"retries": 1, "fallback": "call"}, "call")):
        call = ToolCall(name="call", function="f", text=Input("text", "text"), **choices)
        app = Template("app", call, {"out": call["result"]})
        problem = (
            f"step 'call': there is no engine '{wrong}'; there are calls, embedding; did you mean calls?"
        )
        with pytest.raises(ConfigError) as caught:
            runtime.run_sync(app, {"text": "a"})
        assert str(caught.value) == problem
    assert not started


@in_virtual_time
async def test_an_engine_of_the_wrong_kind_fails_the_query() -> None:
    llm = deploy("llm", lambda config: None, runs_in="loop")
    async with Runtime([llm]) as runtime:
        with pytest.raises(ConfigError, match="engine 'llm' does not run"):
            await runtime.run(COMPLETE, {"text": "a"})


@in_virtual_time
async def test_configuration_is_of_the_query_and_an_unknown_engine_of_it_is_named() -> None:
    question, hits = Input("question", "text"), Input("hits", "list[hit]")
    synthesis = Synthesis(question=question, hits=hits, mode="one_shot", prompt="{context}{question}")
    app = Template("answering", synthesis, {"answer": synthesis["answer"]})
    inputs = {"question": "why", "hits": [HIT]}
    async with Runtime([server()]) as runtime:
        assert await runtime.run(app, inputs) == {"answer": "WHY "}
        prompt = {"synthesis": {"prompt": "{question}{context}"}}
        assert await runtime.run(app, inputs, configuration=prompt) == {"answer": "TEXT "}
        with pytest.raises(ConfigError, match="there is no engine 'judge'"):
            await runtime.run(app, inputs, configuration={"synthesis": {"engine": "judge"}})
        with pytest.raises(ConfigError, match="there is no pass 'faster'"):
            await runtime.submit(app, inputs, passes=["faster"])


def test_engines_that_cannot_be_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="two engines are called 'acting'"):
        Runtime([acting(), acting()])
    with pytest.raises(ConfigError, match="there is no policy 'fastest'"):
        Runtime([acting(policy="fastest")])
    with pytest.raises(ConfigError, match="max_queries"):
        Runtime([acting()], max_queries=0)


@in_virtual_time
async def test_replicas_ask_for_no_more_than_the_machine_has() -> None:
    """All replicas are checked together at the start; a later one beside those that hold their devices
    then.
    """
    gpu0, gpu1 = (acting(runs_in="process", devices=(f"cuda:{n}",)) for n in range(2))
    both = gpu0.changed(instances=2)
    Runtime([both])
    Runtime([gpu0], machine=Machine(("cuda:0",)))
    with pytest.raises(ConfigError, match=r"replica 1: device cuda:0 holds engine 'acting', replica 0"):
        Runtime([both], machine=Machine(("cuda:0", "cuda:1")))
    with pytest.raises(ConfigError, match=r"device 'cuda:1' is not of this machine, which has cuda:0$"):
        Runtime([gpu1], machine=Machine(("cuda:0",)))
    async with Runtime([server(devices=("cuda:0",))], machine=Machine(("cuda:0", "cuda:1"))) as runtime:
        (first,) = server(devices=("cuda:0",)).replicas
        with pytest.raises(ConfigError, match=r"engine 'llm', new replica: device cuda:0 holds llm/0"):
            runtime.add_instance("llm", first)
        runtime.add_instance("llm", replace(first, devices=("cuda:1",)))


# --- what is noted, and what is not spent


@in_virtual_time
async def test_the_recorder_notes_what_ran_when() -> None:
    recorder = Recorder()
    async with Runtime([acting(runs_in="loop"), server()], observers=[recorder]) as runtime:
        await runtime.run(SHOUT, {"text": "a"})
        await runtime.run(COMPLETE, {"text": "1 2"})
        with pytest.raises(EngineFailure):
            await runtime.run(SHOUT, {"text": "raise"})
        with pytest.raises(DeadlineExceeded):
            await runtime.run(COMPLETE, {"text": "1 2"}, deadline_s=1.5)
    spans = [
        (span.engine, span.parts[0].step, span.start_s, span.end_s, span.outcome) for span in recorder.spans
    ]
    assert spans == [
        ("acting", "loud", 0.0, 0.0, "done"),
        ("llm", "answer", 0.0, 2.0, "done"),
        ("acting", "loud", 2.0, 2.0, "failed: ValueError: told to"),
        ("llm", "answer", 2.0, 3.5, "cancelled"),
    ]
    assert [span.marks_s for span in recorder.spans] == [[], [1.0, 2.0], [], [3.0]]
    assert [(q.query, q.start_s, q.end_s) for q in recorder.queries.values()] == [
        ("q1", 0.0, 0.0),
        ("q2", 0.0, 2.0),
        ("q3", 2.0, 2.0),
        ("q4", 2.0, 3.5),
    ]


@in_real_time
async def test_a_query_that_waits_costs_no_time_of_the_processor() -> None:
    config = ActingConfig()
    async with Runtime([acting(config, instances=2), server()]) as runtime:
        queries = [
            await runtime.submit(SHOUT, {"text": "hang"}, deadline_s=60),
            await runtime.submit(COMPLETE, {"text": "hang"}, deadline_s=60),
        ]
        await asyncio.sleep(0.05)
        before_s, started_s = _cpu_s(), time.monotonic()
        await asyncio.sleep(1)
        share = (_cpu_s() - before_s) / (time.monotonic() - started_s)
        for query in queries:
            query.cancel()
        await asyncio.gather(*queries, return_exceptions=True)
    assert share < 0.05


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
