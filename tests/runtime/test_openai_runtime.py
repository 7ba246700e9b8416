"""Queries on a server that breaks off in mid-answer, and what was passed on by then."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from support.openai_stub import OpenAIStub, Reply
from support.runtime_engines import COMPLETE, graph

from stretto import Runtime
from stretto.engines.batch.calls import Calls, CallsConfig
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.graph.execution_graph import ExecutionGraph
from stretto.model.deployment import deploy
from stretto.model.errors import BadReply, EngineUnavailable

ITEMS = graph(
    """
    graph items(%text: text)
      %kv    = prefill([c"A JSON list of: ", %text]) : kv @llm
      %words = decode(%kv) {items="json_list", max_tokens=50} : list[text] @llm #splittable
      %loud  = call(text=each~1 %words) {function="upper", result="text"} : list[text] @calls
      return %loud
    """
)
PREFILLED = graph(
    """
    graph prefilled(%text: text)
      %head   = prefill([c"Some rules, long enough to fill a block or two of the server's prefix cache: "]) : kv @llm
      %it     = call(text=%text) {function="wait", result="text"} : text @calls
      %kv     = prefill([c"Some rules, long enough to fill a block or two of the server's prefix cache: ", %it], hint=%head) : kv @llm
      %answer = decode(%kv) {max_tokens=50} : text @llm
      return %answer
    """  # noqa: E501
)


def run(app: ExecutionGraph, replies: Sequence[Reply]) -> tuple[Any, list[str], list[Any]]:
    """Return the output, the pieces of it that were shown, and the requests.

    The function `wait` returns its text once the server has been asked for something.
    """
    is_asked = threading.Event()

    def wait(text: str) -> str:
        assert is_asked.wait(10)
        return text

    async def main() -> tuple[Any, list[str], list[Any]]:
        rest = iter(replies)

        def answer(_: object) -> Reply:
            is_asked.set()
            return next(rest)

        async with OpenAIStub(answer) as stub:
            engines = [
                deploy(
                    "llm",
                    OpenAIServer,
                    OpenAIServerConfig(stub.url, api="completions"),
                    contract="llm",
                    runs_in="loop",
                ),
                deploy("calls", Calls, CallsConfig({"upper": lambda text: text.upper(), "wait": wait})),
            ]
            async with asyncio.timeout(100), Runtime(engines) as runtime:
                query = await runtime.submit(app, {"text": "it"})
                (name,) = (name for name, _ in app.graph.outputs)
                pieces = [piece async for piece in query.stream(name)]
                result = await query
        return result[name], pieces, stub.requests

    return asyncio.run(main())


def test_text_goes_on_where_it_broke_off() -> None:
    answer, pieces, requests = run(COMPLETE, [Reply(("It", " is"), "cut"), Reply(("It", " is", " so."))])
    assert answer == "".join(pieces) == "It is so."
    assert len(requests) == 2


def test_items_that_were_passed_on_are_not_again() -> None:
    loud, _, requests = run(ITEMS, [Reply(('["a", "b", ',), "stop"), Reply(('["a", "b", "c"]',))])
    assert loud == ["A", "B", "C"]
    assert len(requests) == 2


@pytest.mark.parametrize(
    ("app", "replies"),
    [
        (COMPLETE, [Reply(("It", " is"), "cut"), Reply(("They", " are"))]),
        (ITEMS, [Reply(('["a", "b", ',), "cut"), Reply(('["a", "x"]',))]),
    ],
)
def test_what_was_passed_on_cannot_be_taken_back(app: ExecutionGraph, replies: list[Reply]) -> None:
    with pytest.raises(BadReply, match=r"streamed|another text"):
        run(app, replies)


def test_a_server_that_always_breaks_off_fails_the_query() -> None:
    with pytest.raises(EngineUnavailable, match="step 'answer'"):
        run(COMPLETE, [Reply(("It",), "cut")] * 3)


@pytest.mark.parametrize("warming", [Reply(("x",)), Reply(status=500), Reply(("x",), "cut")])
def test_a_partial_prefill_goes_first_and_cannot_fail_the_query(warming: Reply) -> None:
    answer, _, requests = run(PREFILLED, [warming, Reply(("It is so.",))])
    assert answer == "It is so."
    first, second = requests
    assert first["max_tokens"] == 1
    assert second["prompt"].startswith(first["prompt"])


def test_queries_survive_a_restart_of_the_server_also_when_text_was_shown() -> None:
    """The server breaks all of them off, is away for two seconds and comes back at the same port."""

    async def main() -> list[Any]:
        def cut(_: object) -> Reply:
            return Reply(("It", " is"), "cut", delta_s=0.05)

        async with contextlib.AsyncExitStack() as stack:
            first = await stack.enter_async_context(OpenAIStub(cut))
            config = OpenAIServerConfig(first.url, api="completions", warms_prefixes=False)
            engines = [deploy("llm", OpenAIServer, config, contract="llm", runs_in="loop")]
            runtime = await stack.enter_async_context(Runtime(engines))
            queries = [await runtime.submit(COMPLETE, {"text": "it"}) for _ in range(8)]
            while len(first.requests) < len(queries):
                await asyncio.sleep(0.01)
            await first.__aexit__()
            await asyncio.sleep(2)
            port = int(first.url.rpartition(":")[2])
            await stack.enter_async_context(OpenAIStub(lambda _: Reply(("It", " is", " so.")), port=port))
            async with asyncio.timeout(100):
                return [(await query)["answer"] for query in queries]

    assert asyncio.run(main()) == ["It is so."] * 8
