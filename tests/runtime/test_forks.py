"""A runtime and a client in a forked child of their process: every call says why it cannot work there."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from support.runtime_engines import SHOUT, acting, fake_llm

from stretto import Runtime, programs
from stretto.model.errors import UserError


@programs.SemanticFunction
def greet(name: str) -> None:
    """Greet {{input:name}}: {{output:greeting}}"""


def in_child(act: Callable[[], object]) -> str:
    """Run a function in a forked child, and return the error that it raised there."""
    reading, writing = os.pipe()
    if child := os.fork():
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        _, status = os.waitpid(child, 0)
        assert status == 0, "the child hung, or died"
        return text
    signal.alarm(20)
    try:
        act()
        text = "nothing was raised"
    except UserError as error:
        text = f"UserError: {error}"
    except BaseException:
        text = traceback.format_exc()
    os.write(writing, text.encode())
    os._exit(0)


async def submitted(runtime: Runtime) -> object:
    return await (await runtime.submit(SHOUT, {"text": "a"}))


async def entered(runtime: Runtime) -> None:
    async with runtime:
        pass


RUNTIME_CALLS: dict[str, Callable[[Runtime], object]] = {
    "run_sync": lambda runtime: runtime.run_sync(SHOUT, {"text": "a"}),
    "close": lambda runtime: runtime.close(),
    "with": lambda runtime: runtime.__exit__(None, None, None),
    "run": lambda runtime: asyncio.run(runtime.run(SHOUT, {"text": "a"})),
    "submit": lambda runtime: asyncio.run(submitted(runtime)),
    "open_session": lambda runtime: asyncio.run(runtime.open_session()),
    "aclose": lambda runtime: asyncio.run(runtime.aclose()),
    "enter": lambda runtime: asyncio.run(entered(runtime)),
    "run_on_loop": lambda runtime: runtime.run_on_loop(lambda: asyncio.sleep(0)),
    "client": lambda runtime: programs.Client(runtime).__enter__(),
}


@pytest.mark.parametrize("call", RUNTIME_CALLS)
def test_a_runtime_in_a_fork_says_why_it_cannot_be_used(call: str) -> None:
    with Runtime([acting(runs_in="thread")]) as runtime:
        assert runtime.run_sync(SHOUT, {"text": "a"}) == {"loud": "A"}
        text = in_child(lambda: RUNTIME_CALLS[call](runtime))
        assert text.startswith(f"UserError: the runtime was started in process {os.getpid()}"), text
        assert runtime.run_sync(SHOUT, {"text": "b"}) == {"loud": "B"}


def test_a_runtime_that_was_not_started_before_the_fork_runs_in_the_child() -> None:
    runtime = Runtime([acting(runs_in="thread")])

    def run() -> None:
        raise UserError(str(runtime.run_sync(SHOUT, {"text": "a"})))

    assert in_child(run) == "UserError: {'loud': 'A'}"
    with runtime:
        assert runtime.run_sync(SHOUT, {"text": "b"}) == {"loud": "B"}


def together(client: programs.Client, variable: object) -> None:
    client.together().__enter__()
    client._soon(lambda: None)


CLIENT_CALLS: dict[str, Callable[[programs.Client, Any], object]] = {
    "call": lambda client, variable: greet("you"),
    "get": lambda client, variable: variable.get(),
    "aget": lambda client, variable: asyncio.run(variable.aget()),
    "together": together,
    "provide": lambda client, variable: client.provide("x", "y"),
    "exit": lambda client, variable: client.__exit__(None, None, None),
}


@pytest.mark.parametrize("call", CLIENT_CALLS)
def test_a_client_in_a_fork_says_why_it_cannot_be_used(call: str) -> None:
    with Runtime([fake_llm()]) as runtime, programs.Client(runtime) as client:
        variable = greet("me")
        assert variable.get()
        text = in_child(lambda: CLIENT_CALLS[call](client, variable))
        assert text.startswith("UserError: the "), text
        assert f"was started in process {os.getpid()} and cannot be used in its fork" in text
        assert greet("them").get()


def _run(runtime: Runtime, errors: Any) -> None:
    try:
        runtime.run_sync(SHOUT, {"text": "a"})
    except UserError as error:
        errors.put(str(error))


def test_a_child_of_multiprocessing_gets_the_error_too() -> None:
    context = multiprocessing.get_context("fork")
    with Runtime([acting(runs_in="thread")]) as runtime:
        errors = context.SimpleQueue()
        child = context.Process(target=_run, args=(runtime, errors))
        child.start()
        assert "was started in process" in errors.get()
        child.join(20)
        assert child.exitcode == 0
