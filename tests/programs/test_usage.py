"""Tokens of queries and of clients are counted, those that end a text included."""

from __future__ import annotations

import asyncio

import pytest
from support.programs import Desk, desk_llm
from support.services import served

from stretto import Input, Runtime, Template
from stretto import programs as P
from stretto.components import LLMCall
from stretto.engines.catalogue import transforms_engine
from stretto.model.errors import UserError
from stretto.model.tasks import Usage
from stretto.service.config import ServiceConfig


@P.SemanticFunction
def echo(x: P.SemanticVariable) -> None:
    """{{x}} words: {{output:y}}"""


def test_a_client_counts_the_tokens_of_its_calls() -> None:
    with Runtime([desk_llm(Desk(lambda prompt: "one two three"))]) as runtime:
        client = P.Client(runtime)
        with pytest.raises(UserError, match="no session yet"):
            _ = client.usage
        with client:
            assert client.usage == Usage()
            echo("some").get()
            assert client.usage.num_output_tokens == 4
            echo("other").get()
            assert client.usage.num_output_tokens == 8
            assert client.usage.num_prompt_tokens == 4
        assert client.usage.num_output_tokens == 8, "also when it is closed"


def test_a_variable_counts_the_tokens_of_its_own_call() -> None:
    replies = iter(["one two", "one", "many", "7", "a", "b", "c", "d e"])
    engines = [desk_llm(Desk(lambda prompt: next(replies))), transforms_engine()]
    with Runtime(engines) as runtime, P.Client(runtime) as client:
        first = echo("some")
        second = echo(first)
        assert second.get() == "one"
        assert (first.usage.num_output_tokens, second.usage.num_output_tokens) == (3, 2)
        assert second.usage.num_prompt_tokens == 3

        @P.SemanticFunction
        def count(x: P.SemanticVariable, y: P.Output = P.Output(transform="number", ask_again=1)) -> None:
            """{{x}} {{y}}"""

        counted = count("x")
        assert counted.get() == 7
        assert counted.usage.num_output_tokens == 4, "the reply that did not fit, too"
        samples = echo.using(n=2)("x")
        mapped = echo.map(["x", "y"])
        assert (len(samples.get()), len(mapped.get())) == (2, 2)
        made = (first, second, counted, samples, mapped)
        assert P.join(first, second).usage == P.SemanticVariable("x").usage == Usage()
        assert sum(one.usage.num_output_tokens for one in made) == client.usage.num_output_tokens
        first.drop()
        with pytest.raises(UserError, match="was dropped"):
            _ = first.usage


def test_a_query_counts_its_tokens() -> None:
    async def main() -> Usage:
        call = LLMCall(prompt="Say {x}", x=Input("x", "text"))
        async with Runtime([desk_llm(Desk(lambda prompt: "one two"), in_thread=False)]) as runtime:
            query = await runtime.submit(Template("say", call, {"text": call["text"]}), {"x": "it"})
            await query
            return query.usage

    usage = asyncio.run(main())
    assert (usage.num_prompt_tokens, usage.num_output_tokens) == (2, 3)


def test_a_service_tells_the_tokens_of_a_client() -> None:
    engines = [desk_llm(Desk(lambda prompt: "one two"))]
    with served(engines, ServiceConfig(port=0)) as (service, _):
        with P.Client(service.url) as client:
            assert client.usage == Usage(), "nothing has been sent"
            assert echo("some").get() == "one two"
            assert echo.using(n=2, temperature=1.0)("some").get() == ["one two", "one two"]
            assert client.usage.num_output_tokens == 9
            assert client.usage.num_prompt_tokens > 0
        with pytest.raises(UserError, match="only while the session of the client lasts"):
            _ = client.usage
        with pytest.raises(UserError, match="only while the session of the client lasts"):
            asyncio.run(client.ausage())

        async def on_a_loop() -> Usage:
            async with P.Client(service.url) as client:
                assert await echo("some") == "one two"
                with pytest.raises(UserError, match=r"await client\.ausage"):
                    _ = client.usage
                return await client.ausage()

        assert asyncio.run(on_a_loop()).num_output_tokens == 3


def test_both_ways_to_ask_for_tokens_work_in_process() -> None:
    async def main() -> Usage:
        engines = [desk_llm(Desk(lambda prompt: "one two"), in_thread=False)]
        async with Runtime(engines) as runtime, P.Client(runtime) as client:
            await echo("some")
            assert client.usage == await client.ausage()
            return client.usage

    assert asyncio.run(main()).num_output_tokens == 3


def test_a_closed_client_says_so_on_other_event_loops_too() -> None:
    with Runtime([desk_llm(Desk(lambda prompt: "one two"))]) as runtime, P.Client(runtime) as client:
        echoed = echo("some")
        echoed.get()
    assert asyncio.run(client.ausage()) == client.usage
    with pytest.raises(UserError, match="the session is closed"):
        asyncio.run(echoed.aget())
