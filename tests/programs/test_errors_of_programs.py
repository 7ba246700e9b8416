"""Errors say which function of a program they are about, and what could be given instead."""

from __future__ import annotations

import pytest
from support.programs import Desk, desk_llm
from support.services import served

from stretto import Runtime
from stretto import programs as P
from stretto.engines.catalogue import transforms_engine
from stretto.model.errors import BadReply, UserError
from stretto.service.config import ServiceConfig


@P.SemanticFunction
def echo(x: P.SemanticVariable) -> None:
    """[{{x}}] {{output:y}}"""


@P.SemanticFunction
def count(x: P.SemanticVariable, y: P.Output = P.Output(transform="number", ask_again=1)) -> None:
    """{{x}} {{y}}"""


@pytest.mark.parametrize("tries", [0, 1, 2])
def test_a_reply_that_never_fits_names_the_function(tries: int) -> None:
    with Runtime([desk_llm(Desk(lambda prompt: "many")), transforms_engine()]) as runtime, P.Client(runtime):
        counted = count.using(ask_again=tries)("x")
        with pytest.raises(BadReply, match=r"step 'count\.y\."):
            counted.get()


def test_unknown_criteria_fail_their_get_alone_at_a_service() -> None:
    with served([desk_llm(Desk())], ServiceConfig(port=0)) as (service, _), P.Client(service.url):
        said, unknown = echo("x"), "fast"
        with pytest.raises(UserError, match=r"criteria must be one of latency, .*, got 'fast'"):
            said.get(unknown)
        with pytest.raises(UserError, match="criteria must be one of"):
            list(said.stream_sync(unknown))
        assert said.get() == "<[x] >"


def test_an_object_that_cannot_stand_in_a_prompt_is_told_how_it_could() -> None:
    refused = pytest.raises(UserError, match=r"echo: x must be .* a dict, .* model_dump\(\)")
    with Runtime([desk_llm(Desk())]) as runtime, P.Client(runtime), refused:
        echo(object())
