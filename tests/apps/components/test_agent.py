"""An agent calls tools side by side, turn by turn, and answers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from support.template_runs import LLM, TemplateRun, text_of, variables

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig
from stretto import Runtime
from stretto.apps import agent
from stretto.apps.components.agent import agent_turn
from stretto.apps.components.component import Input
from stretto.apps.plan_cache import PlanCache
from stretto.apps.template import Template
from stretto.components import Agent, AgentRun, Tool, ToolResult
from stretto.engines.batch.calculator import CALCULATOR
from stretto.engines.catalogue import tools_engine
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.graph.passes.pipeline import PASSES
from stretto.model.deployment import deploy
from stretto.model.errors import BadReply, ConfigError, QueryCancelled, StrettoError
from stretto.model.tasks import Decode, LLMTask
from stretto.sim.driver import VirtualDriver

LOOK_UP = Tool("look_up", "what is known of a name", {"Ann": "Ann is 30.", "Bob": "Bob is 12."}.__getitem__)
TOOLS = (CALCULATOR, LOOK_UP)
RESULT = ToolResult("look_up", "Ann", "Ann is 30.")
QUESTION = {"question": "How old are Ann and Bob together?"}
PLANS = (["look_up: Ann", "look_up: Bob"], ["calculate: 30 + 12"])


def plan(*turns: list[str] | str, answer: str = "They are 42 years old.") -> Callable[[LLMTask, Decode], str]:
    """Return what an LLM writes: the calls of each turn, then nothing more; and its answer."""

    def write(task: LLMTask, decode: Decode) -> str:
        if decode.items is None:
            return answer
        num_done = sum(name.startswith("results") for name in variables(task))
        calls = turns[num_done] if num_done < len(turns) else []
        return calls if isinstance(calls, str) else json.dumps(calls)

    return write


def test_the_ready_made_app_is_that_agent() -> None:
    assert agent(TOOLS, max_turns=2).lower({}).primitives == app(max_turns=2).lower({}).primitives


def app(*, tools: tuple[Tool, ...] = TOOLS, **settings: Any) -> Template:
    asking = Agent(question=Input("question", "text"), tools=tools, **settings)
    return Template("asking", asking, {"answer": asking["answer"], "run": asking["run"]})


def run(
    write: Callable[[LLMTask, Decode], str],
    *,
    tools: tuple[Tool, ...] = TOOLS,
    passes: tuple[str, ...] = tuple(PASSES),
    **settings: object,
) -> tuple[TemplateRun, list[LLMTask]]:
    """Run the agent; return the run and what the LLM was asked for."""
    asked: list[LLMTask] = []

    def remember(task: LLMTask, decode: Decode) -> str:
        asked.append(task)
        return write(task, decode)

    engines = (tools_engine(tools),)
    template = app(tools=tools, **settings)
    return TemplateRun(template, QUESTION, answer=remember, engines=engines, passes=passes), asked


@pytest.mark.parametrize("passes", [(), tuple(PASSES)])
def test_it_calls_tools_until_it_can_answer(passes: tuple[str, ...]) -> None:
    done, asked = run(plan(*PLANS), passes=passes)
    assert done.outputs["answer"] == "They are 42 years old."
    assert done.outputs["run"] == AgentRun(
        "They are 42 years old.",
        "answered",
        (
            (RESULT, ToolResult("look_up", "Bob", "Bob is 12.")),
            (ToolResult("calculate", "30 + 12", "42"),),
        ),
    )
    assert variables(asked[-1]) == {
        **QUESTION,
        "results1": "look_up: Ann\nAnn is 30.\n\nlook_up: Bob\nBob is 12.",
        "results2": "calculate: 30 + 12\n42",
    }
    assert len(asked) == 4, "two turns with calls, one without, and the answer"


def test_each_prompt_begins_with_the_one_before() -> None:
    _, asked = run(plan(*PLANS))
    texts = [text_of(task) for task in asked]
    for earlier, later in pairwise(texts):
        shared = earlier[: earlier.rindex("\nWrite the calls")]
        assert later.startswith(shared)
    assert "- calculate(input: string): the value of an expression of numbers" in texts[0]


def test_the_answer_streams_and_the_calls_do_not() -> None:
    done, _ = run(plan(*PLANS))
    assert done.streamed == {"answer": "They are 42 years old."}


def test_tools_run_side_by_side_and_before_the_list_of_calls_has_ended() -> None:
    names = ["look_up: Ann", "look_up: Bob", "look_up: Ann", "look_up: Bob"]
    done, _ = run(plan(names))
    first_reply = min(done.spans("llm"))
    calls = sorted(done.spans("tools"))
    assert calls[0][0] < first_reply[1]
    plain, _ = run(plan(names), passes=())
    spans = plain.spans("tools")
    assert len({start for start, _ in spans}) == 1, "four instances take one call each"


def test_turns_and_calls_are_bounded() -> None:
    endless = plan(*[["look_up: Ann", "look_up: Bob", "look_up: Ann"]] * 20, answer="I give up.")
    done, asked = run(endless, max_turns=3, max_calls=2)
    assert done.outputs["answer"] == "I give up."
    assert done.outputs["run"].ended == "max_turns"
    assert len(done.spans("tools")) == 3 * 2
    assert len(asked) == 3 + 1


@pytest.mark.parametrize("reply", ["I think that they are old.", "", "{}"])
def test_calls_that_cannot_be_read_are_no_calls(reply: str) -> None:
    done, asked = run(plan(["look_up: Ann"], reply, answer="Perhaps 30."))
    assert done.outputs["answer"] == "Perhaps 30."
    assert variables(asked[-1]).keys() == {"question", "results1"}


def test_what_a_tool_did_wrong_is_told_to_the_llm() -> None:
    _, asked = run(plan(["look_up: Eve", "calculate: 1 / 0", "fly: away", "look_up"]))
    assert variables(asked[-1])["results1"].split("\n\n") == [
        "look_up: Eve\nThis failed: KeyError: 'Eve'",
        "calculate: 1 / 0\nThis failed: ZeroDivisionError: division by zero",
        "fly: away\nThere is no such tool; there are calculate, look_up.",
        "look_up\nThis failed: KeyError: ''",
    ]


def test_a_tool_with_an_effect_runs_once_and_the_next_turn_waits_for_it() -> None:
    sent: list[str] = []
    seen: list[int] = []

    def write(task: LLMTask, decode: Decode) -> str:
        seen.append(len(sent))
        return plan(["look_up: Ann", "send: Hello Ann"])(task, decode)

    send = Tool("send", "send a letter", sent.append, effects=True)
    done, asked = run(write, tools=(LOOK_UP, send))
    assert done.error is None
    assert sent == ["Hello Ann"]
    assert seen == [0, 1, 1]
    assert variables(asked[-1])["results1"].endswith("send: Hello Ann\nThis has been done.")
    lowered = app(tools=(LOOK_UP, send)).lower({})
    assert [p.name for p in lowered if p.setting("effects")] == ["results"]
    assert not [p for p in app().lower({}) if p.setting("effects")]


def test_the_llm_reads_what_an_effect_has_returned_or_raised() -> None:
    def send(text: str) -> str:
        if "Bob" in text:
            raise PermissionError("no stamps")
        return "letter 17"

    calls = ["send: Hello Ann", "send: Hello Bob"]
    done, asked = run(plan(calls), tools=(Tool("send", "send a letter", send, effects=True),))
    assert done.error is None
    assert variables(asked[-1])["results1"].split("\n\n") == [
        "send: Hello Ann\nletter 17",
        "send: Hello Bob\nThis failed: PermissionError: no stamps",
    ]


def test_calls_may_be_held_to_the_tools_there_are() -> None:
    graph = app(constrained=True, max_calls=3).lower({})
    (schema,) = [p.setting("json_schema") for p in graph if p.op == "decode"]
    assert json.loads(str(schema)) == {
        "type": "array",
        "items": {"anyOf": [call_of("calculate", "tool0"), call_of("look_up", "tool1")]},
        "minItems": 0,
        "maxItems": 3,
        "$defs": {"tool0": GIVEN, "tool1": GIVEN},
    }


GIVEN = {
    "type": "object",
    "properties": {"input": {"type": "string", "maxLength": 400}},
    "required": ["input"],
    "additionalProperties": False,
}


def call_of(tool: str, definition: str) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {"name": {"const": tool}, "arguments": {"$ref": f"#/$defs/{definition}"}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("constrained", "expected"), [(None, (True, True)), (True, (True, False)), (False, (False, False))]
)
def test_engines_that_can_hold_every_turn_to_the_tools_unless_told_otherwise(
    constrained: bool | None, expected: tuple[bool, bool]
) -> None:
    held = []
    graph = app(constrained=constrained).lower({})
    settings = dict(next(p for p in graph if p.op == "expand").config)
    for turn in (graph, agent_turn({**settings, "question": "?", "results1": [RESULT]})):
        (decode,) = (p for p in turn if p.op == "decode")
        held.append((bool(decode.setting("json_schema")), bool(decode.setting("schema_if_able"))))
    assert held == [expected] * 2


def test_turns_of_all_queries_share_their_plans() -> None:
    plans = PlanCache({})
    settings = dict(next(p for p in app().lower({}) if p.op == "expand").config)
    for question, results in (("a?", [RESULT]), ("b?", [RESULT, replace(RESULT, text="z: 3")])):
        inputs = {**settings, "question": question, "results1": results}
        assert plans.expand("agent_turn", inputs, ()) is plans.expand("agent_turn", dict(inputs), ())
    one, two = (
        agent_turn({**settings, "question": "?", "results1": [replace(RESULT, text=text)]}) for text in "ab"
    )
    assert one == two


def test_a_cancelled_agent_calls_no_more_tools() -> None:
    called: list[str] = []
    look = Tool("look", "look around", called.append)
    write = plan(*[["look: here", "look: there"]] * 20)
    llm = deploy("llm", lambda config: ScriptedLLM(write, 4), contract="llm", profile=LLM, keeps_state=True)
    engines = [llm, tools_engine((look,))]
    plans = PlanCache({engine.name: engine.profile for engine in engines})
    driver = VirtualDriver(engines, expand=plans.expand, check=True)
    driver.submit("q", plans.plan(app(tools=(look,), max_turns=20), {}, ()), QUESTION)
    driver.cancel("q", 0.5)
    reply = driver.run()["q"]
    assert isinstance(reply.error, QueryCancelled)
    assert 0 < len(called) < 20
    assert driver.system.is_idle()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: app(tools=()), "tools is empty"),
        (lambda: app(tools=(CALCULATOR, CALCULATOR)), "two tools have the same name"),
        (lambda: app(max_turns=0), "max_turns=0"),
        (lambda: app(max_calls=0), "max_calls=0"),
        (lambda: Tool("two words", "x", str), "letters, digits"),
        (lambda: Tool("one", "two\nlines", str), "one line of text"),
    ],
)
def test_unusable_agents_are_refused(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(StrettoError, match=problem) as raised:
        make()
    assert isinstance(raised.value, ConfigError)


def test_tools_of_a_turn_run_at_the_same_time() -> None:
    """Each of the calls waits for the other one, on the real runtime."""
    barrier = threading.Barrier(2, timeout=30)
    meet = Tool("meet", "meet somebody", lambda name: f"{name} was there {barrier.wait() >= 0}")
    write = plan(["meet: Ann", "meet: Bob"])

    def reply(task: LLMTask, decode: Decode) -> str:
        return write(task, decode) if decode.items else variables(task)["results1"]

    llm = deploy("llm", lambda config: ScriptedLLM(reply, 4), contract="llm", keeps_state=True)

    async def main() -> tuple[str, str]:
        async with Runtime([llm, tools_engine((meet,))]) as runtime:
            query = await runtime.submit(app(tools=(meet,)), QUESTION)
            shown = "".join([text async for text in query.stream("answer")])
            return shown, (await query)["answer"]

    shown, answer = asyncio.run(main())
    assert shown == answer == "meet: Ann\nAnn was there True\n\nmeet: Bob\nBob was there True"


def test_an_engine_of_tools_that_fails_fails_the_query() -> None:
    broken = FakeBatchConfig(fail_on=lambda task: BadReply("no tools today"))
    engines = (deploy("tools", FakeBatch, broken),)
    done = TemplateRun(app(), QUESTION, answer=plan(*PLANS), engines=engines)
    assert isinstance(done.error, BadReply)
    assert done.error.step == "results"


def test_a_reply_without_a_list_calls_nothing_also_if_tools_have_effects() -> None:
    sent: list[str] = []
    send = Tool("send", "send a letter", sent.append, effects=True)
    done, _ = run(plan("I have sent it."), tools=(send,))
    assert done.outputs["answer"] == "They are 42 years old."
    assert not sent


def test_of_a_list_that_breaks_off_the_whole_calls_are_made() -> None:
    sent: list[str] = []
    send = Tool("send", "send a letter", sent.append, effects=True)
    done, _ = run(plan('["send: Hello Ann", "send: Hel'), tools=(send,))
    assert done.error is None
    assert sent == ["Hello Ann"]
