"""Runs from code that is not asynchronous: scripts, threads, and cells of notebooks."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
from support.runtime_engines import SHOUT, ActingConfig, Log, acting
from support.virtual_loop import in_real_time

from stretto import Runtime
from stretto.model.deployment import deploy
from stretto.model.errors import ConfigError, DeadlineExceeded, EngineFailure, StrettoError, UserError
from stretto.runtime.loop_thread import LoopThread, run_on


def test_a_script_runs_queries_one_after_another() -> None:
    with Runtime([acting()]) as runtime:
        assert runtime.run_sync(SHOUT, {"text": "hello"}) == {"loud": "HELLO"}
        assert runtime.run_sync(SHOUT, {"text": "again"}) == {"loud": "AGAIN"}


def test_engines_start_with_the_first_run_and_once() -> None:
    log = Log()
    runtime = Runtime([acting(ActingConfig(log=log))])
    assert not log.made
    for text in "ab":
        assert runtime.run_sync(SHOUT, {"text": text}) == {"loud": text.upper()}
    assert len(log.made) == 1
    runtime.close()
    runtime.close()
    assert len(log.closed) == 1
    with pytest.raises(UserError, match="has been closed"):
        runtime.run_sync(SHOUT, {"text": "a"})


def test_an_unknown_keyword_is_refused_before_an_engine_starts() -> None:
    log = Log()
    runtime = Runtime([acting(ActingConfig(log=log))])
    with pytest.raises(TypeError, match=r"no keyword 'deadline'; it takes .*deadline_s"):
        runtime.run_sync(SHOUT, {"text": "a"}, deadline=1.0)  # type: ignore[call-arg]
    runtime.close()
    assert not log.made


@in_real_time
async def test_it_works_where_an_event_loop_runs_already() -> None:
    with Runtime([acting()]) as runtime:
        assert runtime.run_sync(SHOUT, {"text": "cell"}) == {"loud": "CELL"}


@in_real_time
async def test_the_loop_of_the_runtime_is_not_blocked_but_other_threads_may_wait_for_it() -> None:
    async with Runtime([acting()]) as runtime:
        with pytest.raises(UserError, match=r"use `await runtime.run"):
            runtime.run_sync(SHOUT, {"text": "a"})
        outputs = await asyncio.to_thread(runtime.run_sync, SHOUT, {"text": "thread"})
        assert outputs == {"loud": "THREAD"}


def test_several_threads_share_one_runtime() -> None:
    log = Log()
    runtime = Runtime([acting(ActingConfig(log=log))])
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda text: runtime.run_sync(SHOUT, {"text": text}), "abcd"))
    runtime.close()
    assert found == [{"loud": text} for text in "ABCD"]
    assert len(log.made) == 1


def test_errors_are_those_of_run() -> None:
    with Runtime([acting()]) as runtime:
        with pytest.raises(UserError):
            runtime.run_sync(SHOUT, {"word": "a"})
        with pytest.raises(ConfigError):
            runtime.run_sync(SHOUT, {"text": "a"}, passes="no such pass")
        with pytest.raises(EngineFailure) as caught:
            runtime.run_sync(SHOUT, {"text": "raise"})
        assert caught.value.step == "loud"
        with pytest.raises(DeadlineExceeded):
            runtime.run_sync(SHOUT, {"text": "hang"}, deadline_s=0.05)


def test_an_engine_that_cannot_start_leaves_nothing_behind() -> None:
    def broken(config: object) -> object:
        raise ConfigError("no such model")

    runtime = Runtime([deploy("acting", broken)])
    for _ in range(2):
        with pytest.raises(StrettoError):
            runtime.run_sync(SHOUT, {"text": "a"})
    assert "stretto" not in {thread.name for thread in threading.enumerate()}


INTERRUPTED = """
import sys
import threading

from stretto import Input, Runtime, Template
from stretto.model.deployment import deploy
from stretto.sched.messages import Cancel
from support.runtime_engines import SHOUT, Acting, ActingConfig


class Heard:
    def on_event(self, event, now_s):
        if isinstance(event, Cancel):
            print("cancelled", flush=True)

    def on_action(self, action, now_s):
        if type(action).__name__ == "StartBatch":
            print("running", flush=True)

    def on_kv(self, *args): ...
    def on_step(self, *args): ...


runtime = Runtime([deploy("acting", Acting, ActingConfig())], observers=[Heard()])
try:
    runtime.run_sync(SHOUT, {"text": "hang"})
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_an_interrupt_cancels_the_run(tmp_path: Path) -> None:
    """The runtime is not closed either: a program that forgets it ends all the same."""
    tests = Path(__file__).resolve().parents[1]
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nsys.path[:0] = [{str(tests)!r}, {str(tests.parent)!r}]\n{INTERRUPTED}")
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()
    assert rest == "cancelled\ninterrupted\n"
    assert process.returncode == 0


async def nothing() -> None:
    pass


def test_a_loop_that_has_ended_is_no_endless_wait() -> None:
    thread = LoopThread()
    thread.close()
    with pytest.raises(UserError, match="the event loop of the runtime has ended"):
        run_on(thread.loop, nothing)


def test_a_loop_that_ends_before_it_begins_what_was_sent_is_no_endless_wait() -> None:
    class Ending:
        """An event loop that ends when something is sent to it."""

        def __init__(self) -> None:
            self._is_closed = False

        def is_closed(self) -> bool:
            return self._is_closed

        def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> None:
            self._is_closed = True

    with pytest.raises(UserError, match="the event loop of the runtime has ended"):
        run_on(cast("asyncio.AbstractEventLoop", Ending()), nothing)


def test_the_loop_of_a_runtime_is_not_closed_from_itself() -> None:
    with Runtime([acting()]) as runtime:
        runtime.run_sync(SHOUT, {"text": "a"})

        async def close() -> None:
            runtime.close()

        assert runtime._thread is not None
        with pytest.raises(UserError, match=r"use `await runtime.aclose\(\)`"):
            run_on(runtime._thread.loop, close)
        assert runtime.run_sync(SHOUT, {"text": "b"}) == {"loud": "B"}


class InterruptedLoop:
    """An event loop whose first call from another thread is interrupted, before or after it takes effect."""

    def __init__(self, loop: asyncio.AbstractEventLoop, takes_effect: bool) -> None:
        self._loop = loop
        self._takes_effect = takes_effect
        self._was_called = False

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> None:
        is_first, self._was_called = not self._was_called, True
        if self._takes_effect or not is_first:
            self._loop.call_soon_threadsafe(callback, *args)
        if is_first:
            raise KeyboardInterrupt

    def is_closed(self) -> bool:
        return self._loop.is_closed()


@pytest.mark.parametrize("takes_effect", [False, True])
def test_an_interrupt_before_the_wait_cancels_too(takes_effect: bool) -> None:
    seen: list[str] = []

    async def hang() -> None:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    thread = LoopThread()
    with pytest.raises(KeyboardInterrupt):
        run_on(cast("asyncio.AbstractEventLoop", InterruptedLoop(thread.loop, takes_effect)), hang)
    thread.close()
    assert seen in ([], ["begun", "cancelled"])
