"""A query knows which of its answers did not end by themselves."""

from __future__ import annotations

import asyncio

import pytest

from stretto import Input, Runtime, Template
from stretto.components import LLMCall
from stretto.engines.llms import llm_engine
from stretto.model.tasks import Ending
from stretto.sched.queries.outcome import endings_of
from stretto.trace.chrome import chrome_trace
from stretto.trace.recorder import Recorder


@pytest.mark.parametrize(("max_tokens", "finish"), [(2, "length"), (60, "stop")])
def test_a_cut_answer_is_known_by_its_output_and_in_the_trace(max_tokens: int, finish: str) -> None:
    call = LLMCall(
        prompt="Context: {context}\nAnswer: {question}",
        context=Input("context", "text"),
        question=Input("question", "text"),
        max_tokens=max_tokens,
    )
    app = Template("app", call, outputs={"answer": call["text"]})
    recorder = Recorder()

    async def main() -> tuple[object, tuple[Ending, ...]]:
        async with Runtime([llm_engine("stand-in")], observers=[recorder]) as runtime:
            query = await runtime.submit(
                app, {"context": "The lighthouse becomes green.", "question": "What becomes green?"}
            )
            return (await query)["answer"], query.endings

    answer, endings = asyncio.run(main())
    expected = (Ending("llmcall", "length", 2, ("answer",)),) if finish == "length" else ()
    assert endings == expected, answer
    reasons = [
        event["args"]["finish_reason"]
        for event in chrome_trace(recorder)["traceEvents"]
        if "finish_reason" in event.get("args", {})
    ]
    assert finish in reasons


def test_an_answer_is_found_among_outputs_by_identity() -> None:
    cut, other = "".join(["cut ", "text"]), "".join(["cut ", "text"])
    ending = Ending("step", "length", 9)
    outputs = {"a": cut, "b": other, "c": [other, cut], "d": 3}
    assert endings_of([(ending, cut)], outputs) == (Ending("step", "length", 9, ("a", "c")),)
    assert endings_of([(ending, ("kv", cut))], {"a": cut}) == (Ending("step", "length", 9, ("a",)),)
    assert endings_of([(ending, "gone")], outputs) == (ending,)
