"""Engines that fail, hang, die or say nonsense: what becomes of their queries, and of the others'."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.runtime_engines import (
    COMPLETE,
    LET_GO,
    SHOUT,
    SHOUT_EACH,
    Acting,
    ActingConfig,
    Log,
    ServerEngine,
    acting,
    fake_llm,
    graph,
    server,
)
from support.virtual_loop import in_real_time, in_virtual_time

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto import Runtime
from stretto.model.deployment import deploy
from stretto.model.errors import (
    BadReply,
    ConfigError,
    EngineFailure,
    EngineTimeout,
    EngineUnavailable,
    InternalError,
    QueryCancelled,
    QueryEnded,
    StrettoError,
    UserError,
)
from stretto.model.tasks import Done, Failed, LLMEvent, LLMTask, Piece

PLACES = pytest.mark.parametrize("runs_in", ["loop", "thread"])


# --- answers that are none


@pytest.mark.parametrize(
    ("app", "text", "kind", "message"),
    [
        (SHOUT, "raise", EngineFailure, "ValueError: told to"),
        (SHOUT, "none", BadReply, "the engine returned None"),
        (SHOUT, "short", BadReply, "the engine answered 0 of 1 tasks"),
        (SHOUT, "no list", BadReply, "the engine answered a generator, not a list"),
        (SHOUT_EACH, "short list", BadReply, "the engine returned 1 results for 2 items"),
        (SHOUT_EACH, "none", BadReply, "the engine returned None for item 1"),
    ],
)
@PLACES
@in_real_time
async def test_an_answer_that_is_none_fails_its_query(
    app: Any, text: str, kind: type[StrettoError], message: str, runs_in: str
) -> None:
    async with Runtime([acting(runs_in=runs_in)]) as runtime:
        inputs = {"text": text} if app is SHOUT else {"texts": ["ok", text]}
        with pytest.raises(kind) as caught:
            await runtime.run(app, inputs)
        assert type(caught.value) is kind
        assert str(caught.value) == f"step 'loud': {message}"
        assert await runtime.run(SHOUT, {"text": "a"}) == {"loud": "A"}


@in_virtual_time
async def test_a_server_that_raises_or_ends_without_an_answer_fails_the_query() -> None:
    async with Runtime([server(timeout_s=None)]) as runtime:
        with pytest.raises(EngineFailure, match=r"^step 'answer': ValueError: told to$"):
            await runtime.run(COMPLETE, {"text": "raise"})
        with pytest.raises(BadReply, match=r"^step 'answer': the engine ended without an answer$"):
            await runtime.run(COMPLETE, {"text": "say nothing"})
        assert await runtime.run(COMPLETE, {"text": "end twice"}) == {"answer": "END"}
        assert await runtime.run(COMPLETE, {"text": "a"}) == {"answer": "A "}


# --- engines that cannot be constructed


def _fail_at(*numbers: int) -> ActingConfig:
    def make(number: int) -> None:
        if number in numbers:
            raise OSError(f"no model for number {number}")

    return ActingConfig(makes=make)


@PLACES
@in_real_time
async def test_an_engine_that_cannot_be_constructed_is_named_at_the_start(runs_in: str) -> None:
    config = _fail_at(2)
    runtime = Runtime([acting(config, runs_in=runs_in, instances=3), server()])
    with pytest.raises(EngineFailure) as caught:
        await runtime.__aenter__()
    assert str(caught.value) == "engine 'acting': OSError: no model for number 2"
    assert len(config.log.closed) == len(config.log.made) - 1 >= 2, "all others are closed"
    with pytest.raises(UserError, match="has been closed"):
        await runtime.submit(SHOUT, {"text": "a"})


@in_real_time
async def test_a_server_that_cannot_be_constructed_is_named_at_the_start() -> None:
    with pytest.raises(EngineFailure, match=r"^engine 'llm': TypeError"):
        await Runtime([deploy("llm", dict, 5, contract="llm", runs_in="loop")]).__aenter__()


@in_real_time
async def test_a_typed_error_of_a_constructor_stays_what_it_is() -> None:
    def refuse(config: object) -> None:
        raise ConfigError("no such model")

    with pytest.raises(ConfigError, match=r"^engine 'acting': no such model$"):
        await Runtime([deploy("acting", refuse)]).__aenter__()


@in_real_time
async def test_a_constructor_that_exits_keeps_nobody_waiting() -> None:
    def leave(config: object) -> None:
        raise SystemExit(3)

    with pytest.raises(EngineFailure, match=r"^engine 'acting': SystemExit: 3$"):
        await Runtime([deploy("acting", leave)]).__aenter__()


@in_real_time
async def test_a_stepped_llm_cannot_run_on_the_loop_and_places_have_names() -> None:
    with pytest.raises(EngineFailure, match=r"^engine 'llm': AttributeError: 'FakeLLM'"):
        await Runtime([acting(), fake_llm(runs_in="loop")]).__aenter__()
    with pytest.raises(ConfigError, match=r"^replica Acting: runs_in is 'cloud'; it must be one of 'loop', "):
        acting(runs_in="cloud")


# --- instances that die, and come back


@in_real_time
async def test_an_instance_that_dies_is_started_anew_and_the_work_tried_again(tmp_path: Path) -> None:
    config = ActingConfig(folder=tmp_path)
    async with Runtime([acting(config)]) as runtime:
        assert await runtime.run(SHOUT, {"text": "once exit"}) == {"loud": "ONCE EXIT"}
        assert len(config.log.made) == 2
        assert await runtime.run(SHOUT, {"text": "once unavailable"}) == {"loud": "ONCE UNAVAILABLE"}
        assert len(config.log.made) == 2, "it only said that it could not"
    assert len(config.log.closed) == 2


@in_real_time
async def test_work_that_always_kills_its_instance_fails_after_its_attempts() -> None:
    config = ActingConfig(log=Log())
    async with Runtime([acting(config, max_attempts=2)]) as runtime:
        deadly = await runtime.submit(SHOUT, {"text": "exit"})
        harmless = await runtime.submit(SHOUT, {"text": "a"})
        with pytest.raises(EngineUnavailable, match=r"^step 'loud': acting/1 died: SystemExit: 7$"):
            await deadly
        assert await harmless == {"loud": "A"}
    assert config.log.batches == [["q1", "q2"], ["q1"], ["q2"]]


@PLACES
@in_real_time
async def test_an_instance_that_does_not_come_back_fails_queries_and_not_hope(runs_in: str) -> None:
    """The second to fifth constructions fail: queries that wait too long fail, and a later one succeeds."""
    config = _fail_at(2, 3, 4, 5)
    engine = acting(config, runs_in=runs_in, max_attempts=1, keeps_state=True, recover_s=0.05)
    async with Runtime([engine]) as runtime:
        with pytest.raises(EngineUnavailable, match="acting/0 died: SystemExit: 7"):
            await runtime.run(SHOUT, {"text": "exit"})
        with pytest.raises(EngineUnavailable) as caught:
            await asyncio.wait_for(runtime.run(SHOUT, {"text": "a"}), 60)
        assert re.fullmatch(
            "step 'loud': engine 'acting' has no instance that serves; "
            "the last one was lost: OSError: no model for number [23]",
            str(caught.value),
        )
        assert 2 <= len(config.log.made) <= 4
        outputs = None
        while outputs is None:
            with contextlib.suppress(EngineUnavailable):
                outputs = await asyncio.wait_for(runtime.run(SHOUT, {"text": "a"}), 60)
        assert outputs == {"loud": "A"}
        assert len(config.log.made) == 6


@in_real_time
async def test_an_instance_that_cannot_even_be_started_fails_the_query_and_not_the_runtime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine has no process or thread left, say."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no threads left")

    async with Runtime([acting(max_attempts=2, recover_s=0.5)]) as runtime:
        with monkeypatch.context() as patched:
            patched.setattr("stretto.runtime.running.start_instance", refuse)
            with pytest.raises(EngineUnavailable, match="the last one was lost: OSError: no threads left"):
                await asyncio.wait_for(runtime.run(SHOUT, {"text": "exit"}), 60)
        assert await runtime.run(SHOUT, {"text": "a"}) == {"loud": "A"}


@in_real_time
async def test_an_instance_that_dies_at_once_does_not_start_over_and_over() -> None:
    """The instance is started with growing delays: at once, after 0.1 s, 0.2 s and so on."""
    made: list[int] = []

    class Doomed(FakeLLM):
        def has_work(self) -> bool:
            made.append(1)
            raise RuntimeError("doomed")

    engine = deploy("llm", Doomed, FakeLLMConfig(), contract="llm", max_attempts=3, recover_s=0.4)
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    async with Runtime([engine]) as runtime:
        with pytest.raises(EngineUnavailable, match="died: RuntimeError: doomed"):
            await runtime.run(COMPLETE, {"text": "a"})
        elapsed_s = loop.time() - start_s
        assert len(made) <= 3 + math.log2(1 + elapsed_s / 0.1)


@in_real_time
async def test_a_task_that_kills_every_instance_fails_alone_among_sixteen() -> None:
    """The others share its instance, and end well."""

    def kill(task: LLMTask) -> Exception | None:
        return ZeroDivisionError("poison") if "poison" in task.prompt[-1].text else None

    config = FakeLLMConfig(fail_on=kill)
    async with asyncio.timeout(100), Runtime([deploy("llm", FakeLLM, config, contract="llm")]) as runtime:
        texts = [f"text {number}" for number in range(16)]
        texts[5] = "poison"
        queries = [await runtime.submit(COMPLETE, {"text": text}) for text in texts]
        ended = await asyncio.gather(*queries, return_exceptions=True)
        failed = {text: end for text, end in zip(texts, ended, strict=True) if isinstance(end, BaseException)}
        assert list(failed) == ["poison"]
        assert isinstance(failed["poison"], EngineUnavailable)
        assert runtime.system.is_idle()


@in_real_time
async def test_a_stepped_llm_that_crashes_is_started_anew() -> None:
    crashes = iter([ZeroDivisionError("a bug"), None, None])
    config = FakeLLMConfig(fail_on=lambda task: next(crashes))
    async with Runtime([deploy("llm", FakeLLM, config, contract="llm")]) as runtime:
        assert (await runtime.run(COMPLETE, {"text": "a"}))["answer"]


@PLACES
@in_real_time
async def test_an_engine_that_fails_to_forget_is_lost_and_not_the_queries(runs_in: str) -> None:
    class Stubborn(Acting):
        def release(self, query: str) -> None:
            raise RuntimeError("I remember")

    config = ActingConfig(log=Log())
    engine = deploy("acting", Stubborn, config, runs_in=runs_in, keeps_state=True)
    async with Runtime([engine]) as runtime:
        for text in ("a", "b", "c"):
            assert await runtime.run(SHOUT, {"text": text}) == {"loud": text.upper()}


@PLACES
@in_real_time
async def test_an_engine_that_cannot_close_keeps_no_other_open(runs_in: str) -> None:
    class Stuck(Acting):
        def close(self) -> None:
            super().close()
            raise RuntimeError("the door is stuck")

    config = ActingConfig(log=Log())
    async with Runtime([deploy("acting", Stuck, config, runs_in=runs_in, instances=3)]) as runtime:
        await runtime.run(SHOUT, {"text": "a"})
    assert len(config.log.closed) == 3


# --- instances that hang


@in_real_time
async def test_an_instance_that_hangs_is_replaced(tmp_path: Path) -> None:
    config = ActingConfig(folder=tmp_path)
    async with Runtime([acting(config, timeout_s=0.1)]) as runtime:
        assert await runtime.run(SHOUT, {"text": "once hang"}) == {"loud": "ONCE HANG"}
        with pytest.raises(EngineTimeout, match=r"^step 'loud': engine 'acting' gave no answer for 0\.1 s$"):
            await runtime.run(SHOUT, {"text": "hang"})
        LET_GO.set()
        assert await runtime.run(SHOUT, {"text": "a"}) == {"loud": "A"}
        assert len(config.log.made) == 5


@in_real_time
async def test_a_thread_that_was_given_up_ends_when_it_can() -> None:
    config = ActingConfig(log=Log())
    async with Runtime([acting(config, timeout_s=0.05, max_attempts=1)]) as runtime:
        with pytest.raises(EngineTimeout):
            await runtime.run(SHOUT, {"text": "hang"})
        LET_GO.set()
        while len(config.log.closed) < 1:
            await asyncio.sleep(0.001)
        assert await runtime.run(SHOUT, {"text": "a"}) == {"loud": "A"}


@in_virtual_time
async def test_a_server_that_hangs_is_left_and_its_requests_with_it() -> None:
    log = Log()
    loop = asyncio.get_running_loop()
    async with Runtime([server(log, timeout_s=10, max_attempts=2)]) as runtime:
        with pytest.raises(EngineTimeout, match="engine 'llm' was silent for 10 s"):
            await runtime.run(COMPLETE, {"text": "hang"})
        assert loop.time() == 20
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert log.released == ["q1", "q1"], "both requests were aborted"
        assert log.closed == [1, 1], "both clients were closed"
        assert await runtime.run(COMPLETE, {"text": "a"}) == {"answer": "A "}
    assert log.closed == [1, 1, 1]


@in_virtual_time
async def test_a_server_that_speaks_now_and_then_is_not_given_up() -> None:
    log = Log()
    async with Runtime([server(log, timeout_s=1.5)]) as runtime:
        text = "a b c d e f g h"
        assert await runtime.run(COMPLETE, {"text": text}) == {"answer": text.upper() + " "}
    assert log.made == [1]


@in_virtual_time
async def test_text_is_streamed_once_though_its_request_is_repeated() -> None:
    """The first attempt falls silent after two words; the second says all of them again."""
    attempts = iter((2, 9))

    class Faltering(ServerEngine):
        def __init__(self, config: object) -> None: ...

        async def generate(self, task: LLMTask, emit: Any, rank: tuple[float, ...] = ()) -> None:
            from stretto.model.tasks import Done, Piece

            said: list[LLMEvent] = [Piece(task.id, word) for word in ("a ", "b ", "c")]
            for event in [*said, Done(task.id, "a b c")][: next(attempts)]:
                await asyncio.sleep(1)
                emit(event)
            await asyncio.sleep(100)

    async with Runtime([deploy("llm", Faltering, contract="llm", runs_in="loop", timeout_s=5)]) as runtime:
        query = await runtime.submit(COMPLETE, {"text": "x"})
        assert [piece async for piece in query.stream("answer")] == ["a ", "b ", "c"]
        assert await query == {"answer": "a b c"}


# --- everything at once


@in_real_time
async def test_whatever_happens_to_some_queries_the_others_are_answered() -> None:
    """Queries that fail, kill instances, are cancelled or late, among as many that are none of this."""
    random = Random(7)
    kinds = ("fine", "fine", "fine", "raise", "none", "exit", "cancelled", "late", "complete")
    engines = [
        acting(instances=3, max_batch=4, keeps_state=True),
        fake_llm(instances=2, max_running=3, keeps_state=True),
    ]
    async with Runtime(engines, max_queries=40) as runtime:

        async def run(number: int, kind: str) -> object:
            is_plain = kind in ("fine", "cancelled", "late")
            inputs = {"text": f"text {number}" if is_plain else kind}
            if kind == "complete":
                return (await runtime.run(COMPLETE, inputs))["answer"]
            query = await runtime.submit(SHOUT, inputs, deadline_s=0.0 if kind == "late" else None)
            if kind == "cancelled":
                await asyncio.sleep(random.random() / 100)
                query.cancel()
            return (await query)["loud"]

        chosen = [random.choice(kinds) for _ in range(300)]
        ends = await asyncio.gather(*map(run, range(300), chosen), return_exceptions=True)
        for number, (kind, end) in enumerate(zip(chosen, ends, strict=True)):
            match kind:
                case "fine":
                    assert end == f"TEXT {number}"
                case "complete":
                    assert isinstance(end, str), end
                case "cancelled" | "late":
                    assert isinstance(end, QueryEnded) or end == f"TEXT {number}", end
                case _:
                    assert isinstance(end, EngineFailure), end
        runtime.system.check_invariants()
        assert runtime.system.is_idle()


@in_virtual_time
async def test_schedulers_that_break_down_end_every_query() -> None:
    """A policy, say, that the user registered."""

    def break_down(*args: object) -> None:
        raise ZeroDivisionError("a bug")

    async with Runtime([server(Log())], max_queries=3) as runtime:
        queries = [await runtime.submit(COMPLETE, {"text": "a b"}, deadline_s=9) for _ in range(3)]
        waiting = asyncio.create_task(runtime.submit(COMPLETE, {"text": "a"}))
        await asyncio.sleep(0.5)
        runtime.system.handle = break_down  # type: ignore[method-assign, assignment]
        for query in queries:
            with pytest.raises(InternalError, match="the schedulers broke down: ZeroDivisionError: a bug"):
                await query
        with pytest.raises(QueryCancelled):
            await waiting
        with pytest.raises(InternalError, match=r"the schedulers broke down: .*make a new runtime"):
            await runtime.submit(COMPLETE, {"text": "a"})
        await asyncio.sleep(20)


# --- leaving


@in_real_time
async def test_leaving_cancels_every_query_whatever_it_is_doing() -> None:
    config = ActingConfig(log=Log())
    engines = [acting(config, keeps_state=True, max_batch=1), server(), fake_llm(instances=2, max_running=1)]
    engines[2] = deploy("other", FakeLLM, FakeLLMConfig(), contract="llm", max_running=1)
    async with Runtime(engines, max_queries=4) as runtime:
        queries = [await runtime.submit(SHOUT, {"text": "hang"}) for _ in range(2)]
        queries += [await runtime.submit(COMPLETE, {"text": "hang"}) for _ in range(2)]
        outside = asyncio.create_task(runtime.submit(SHOUT, {"text": "a"}))
        streaming = asyncio.ensure_future(anext(queries[2].stream("answer")))
        await asyncio.sleep(0.02)
        asyncio.get_running_loop().call_later(0.05, LET_GO.set)
    for query in queries:
        assert query.is_done()
        with pytest.raises(QueryCancelled):
            await query
    with pytest.raises(QueryCancelled):
        await streaming
    with pytest.raises(QueryCancelled, match="closed before the query could start"):
        await outside
    queries[0].cancel()
    await runtime.aclose()
    with pytest.raises(UserError, match="has been closed"):
        await runtime.submit(SHOUT, {"text": "a"})


@in_real_time
async def test_leaving_right_after_submitting_ends_the_query() -> None:
    async with Runtime([acting()]) as runtime:
        query = await runtime.submit(SHOUT, {"text": "a"})
    with pytest.raises(QueryCancelled):
        await query


def test_a_thread_that_hangs_at_the_end_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    """The thread reports after the loop has ended, and nothing listens."""
    config = ActingConfig(log=Log())

    async def leave() -> None:
        async with Runtime([acting(config)]) as runtime:
            await runtime.submit(SHOUT, {"text": "hang"})
            await asyncio.sleep(0.02)

    asyncio.run(leave())
    assert not config.log.closed
    LET_GO.set()
    for thread in threading.enumerate():
        if thread.name == "acting/0":
            thread.join(5)
    assert len(config.log.closed) == 1
    assert not caplog.records


@in_real_time
async def test_a_batch_that_ends_while_the_runtime_closes_disturbs_nobody() -> None:
    """What its instance then says finds no instance to send the rest to."""
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    config = ActingConfig(log=Log())
    async with Runtime([acting(config, keeps_state=True, instances=2)]) as runtime:
        for _ in range(3):
            await runtime.submit(SHOUT, {"text": "hang"})
        await asyncio.sleep(0.02)
        asyncio.get_running_loop().call_later(0.05, LET_GO.set)
    await asyncio.sleep(0.01)
    assert not problems
    assert len(config.log.closed) == 2


@in_real_time
async def test_an_instance_that_dies_while_the_runtime_closes_stays_dead(tmp_path: Path) -> None:
    class Dying(Acting):
        def run(self, tasks: Any) -> Any:
            LET_GO.wait(10)
            raise SystemExit(1)

    config = ActingConfig(log=Log())
    async with Runtime([deploy("acting", Dying, config)]) as runtime:
        await runtime.submit(SHOUT, {"text": "a"})
        await asyncio.sleep(0.02)
        asyncio.get_running_loop().call_later(0.05, LET_GO.set)
    await asyncio.sleep(0.01)
    assert len(config.log.made) == 1


@in_real_time
async def test_leaving_while_engines_are_still_being_constructed() -> None:
    def wait(number: int) -> None:
        LET_GO.wait(60)

    config = ActingConfig(log=Log(), makes=wait)
    runtime = Runtime([acting(config), server()])
    entering = asyncio.create_task(runtime.__aenter__())
    await asyncio.sleep(0.02)
    asyncio.get_running_loop().call_later(0.05, LET_GO.set)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert len(config.log.closed) == 1


@in_real_time
async def test_an_error_in_the_body_leaves_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with Runtime([acting()]) as runtime:
            await runtime.submit(SHOUT, {"text": "a"})
            raise ZeroDivisionError


@in_real_time
async def test_a_runtime_is_entered_once() -> None:
    runtime = Runtime([acting()])
    with pytest.raises(UserError, match="not running"):
        await runtime.submit(SHOUT, {"text": "a"})
    async with runtime:
        with pytest.raises(UserError, match="entered once"):
            await runtime.__aenter__()
        assert await runtime.run(SHOUT, {"text": "a"}) == {"loud": "A"}
    with pytest.raises(UserError, match="entered once"):
        await runtime.__aenter__()


@in_virtual_time
async def test_a_runtime_without_engines_runs_control_flow() -> None:
    app = graph("graph one(%t: text)\n  %all = aggregate(%t) : list[text]\n  return %all")
    async with Runtime([]) as runtime:
        assert await runtime.run(app, {"t": "x"}) == {"all": ["x"]}


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), GeneratorExit()])
@in_virtual_time
async def test_what_ends_an_inline_engine_does_not_end_the_loop(error: BaseException) -> None:
    class Deadly(Acting):
        def run(self, tasks: Any) -> Any:
            raise error

    engine = deploy("acting", Deadly, ActingConfig(), runs_in="loop", max_attempts=2)
    async with Runtime([engine]) as runtime:
        with pytest.raises(EngineUnavailable, match=f"acting/1 died: {type(error).__name__}"):
            await runtime.run(SHOUT, {"text": "a"}, deadline_s=5)


class Rambling(ServerEngine):
    """A server's engine that does what its task says."""

    def __init__(self, config: object) -> None: ...

    async def generate(self, task: LLMTask, emit: Any, rank: tuple[float, ...] = ()) -> None:
        match task.prompt[-1].text:
            case "nothing":
                emit(None)
            case "number":
                emit(Piece(task.id, 5))  # type: ignore[arg-type]
            case "no error":
                emit(Failed(task.id, None))  # type: ignore[arg-type]
            case "other task":
                emit(Done(task.id + 1, "x"))
            case "cancelled":
                raise asyncio.CancelledError
            case "well":
                emit(Done(task.id, "well"))


@pytest.mark.parametrize("text", ["nothing", "number", "no error", "other task", "cancelled"])
@in_virtual_time
async def test_an_llm_that_says_nonsense_fails_its_query_alone(text: str) -> None:
    async with Runtime([deploy("llm", Rambling, contract="llm", runs_in="loop")]) as runtime:
        other = await runtime.submit(COMPLETE, {"text": "well"})
        with pytest.raises(EngineFailure, match=r"^step 'answer': "):
            await runtime.run(COMPLETE, {"text": text}, deadline_s=5)
        assert await other == {"answer": "well"}
        assert await runtime.run(COMPLETE, {"text": "well"}) == {"answer": "well"}


class BadlyProbed(ServerEngine):
    """A server that refuses once; the first probe of it raises something that no probe should."""

    def __init__(self, config: None) -> None:
        self._num_probes = 0

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        emit(Done(task.id, "well") if self._num_probes else Failed(task.id, EngineUnavailable("refused")))

    async def probe(self) -> None:
        self._num_probes += 1
        if self._num_probes == 1:
            raise OSError("a bug in the adapter")


@in_virtual_time
async def test_a_probe_that_raises_is_no_answer_and_is_repeated() -> None:
    async with Runtime([deploy("llm", BadlyProbed, contract="llm", runs_in="loop")]) as runtime:
        assert await runtime.run(COMPLETE, {"text": "a"}) == {"answer": "well"}
        await asyncio.sleep(1)
        (engine,) = runtime.snapshot().engines
        assert [instance.state for instance in engine.instances] == ["serving"]


def test_a_runtime_belongs_to_one_event_loop() -> None:
    async def use(runtime: Runtime) -> None:
        await runtime.run(SHOUT, {"text": "a"})

    async def main() -> None:
        async with Runtime([acting(runs_in="loop")]) as runtime:
            with pytest.raises(UserError, match="another event loop"):
                await asyncio.to_thread(lambda: asyncio.run(use(runtime)))

    asyncio.run(main())
