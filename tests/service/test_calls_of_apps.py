"""Apps in the calls of a session, with inputs, outputs and settings that do not fit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stretto import Input, Template
from stretto.apps.components.llm_call import LLMCall
from stretto.model.errors import StrettoError
from stretto.service.calls import Works
from stretto.service.prompt_room import PromptRoom
from stretto.service.schema import CallBody

ANSWER = LLMCall(prompt="Of {text}:\n", text=Input("text", "text"))
APPS = {"tell": Template("tell", ANSWER, {"answer": ANSWER["text"]})}
IN = {"name": "text", "in_out": False, "value": "1"}
OUT = {"name": "answer", "in_out": True}


def found(**call: Any) -> object:
    return Works(lambda _: None, APPS, PromptRoom({})).find(
        msgspec.convert({"app": "tell", **call}, CallBody)
    )


def test_an_app_is_found() -> None:
    assert found(placeholders=[IN, OUT])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({}, "no input 'text'"),
        ({"placeholders": [IN, {**IN, "name": "more"}]}, "no input 'more'"),
        ({"placeholders": [IN, {**OUT, "name": "more"}]}, "no output 'more'"),
        ({"placeholders": [IN, IN]}, "two placeholders"),
        ({"placeholders": [IN, {**OUT, "transforms": "strip"}]}, "no transforms"),
        ({"placeholders": [IN, OUT], "each": "text"}, "each item"),
        (
            {"placeholders": [IN, OUT], "settings": msgspec.Raw(b'{"llmcall": {"max_tokens": "x"}}')},
            "integer",
        ),
    ],
)
def test_what_does_not_fit_an_app_is_refused(call: dict[str, Any], said: str) -> None:
    with pytest.raises(StrettoError, match=said):
        found(**call)
