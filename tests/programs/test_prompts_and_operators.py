"""Prompts with several outputs, conversations, transforms, operators and native functions."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest
from support.programs import Desk, desk_llm
from support.virtual_loop import in_real_time, in_virtual_time

from stretto import ABSENT, Deployment, Failure, Runtime
from stretto import programs as P
from stretto.engines.catalogue import transforms_engine
from stretto.model.errors import BadReply, ConfigError, EngineFailure, StrettoError, TemplateError, UserError
from stretto.model.values import Document, Section, Segment
from stretto.runtime.session import Session


def engines(desk: Desk) -> list[Deployment]:
    return [desk_llm(desk, in_thread=False), transforms_engine().changed(runs_in="loop")]


def counting() -> Desk:
    """An LLM that answers o1, o2… in the order of its prompts' lengths."""
    return Desk(lambda prompt: f"o{prompt.count('o') + 1}")


@P.SemanticFunction
def acted(
    scene: P.SemanticVariable,
    line: P.Output = P.Output(max_tokens=7),
    reply: P.Output = P.Output(max_tokens=9, stop="!", temperature=0.5),
) -> None:
    """{{scene}} A: {{line}} B: {{reply}} End."""


@in_virtual_time
async def test_generate_fill_generate() -> None:
    desk = counting()
    async with Runtime(engines(desk)) as runtime, P.Client(runtime):
        line, reply = acted("S")
        assert (await line, await reply) == ("o1", "o2")
    assert [prompt for prompt in desk.prompts if prompt != "S A: "] == ["S A: o1 B: "]
    assert [(one.max_tokens, one.stop, one.temperature) for one in desk.decodes] == [
        (7, (), 0.0),
        (9, ("!",), 0.5),
    ]
    assert desk.tasks[-1].prompt == (
        Segment("S", "scene"),
        Segment(" A: "),
        Segment("o1", "answer"),
        Segment(" B: "),
    )


@in_virtual_time
async def test_outputs_stand_first_adjacent_and_their_text_may_be_repeated() -> None:
    @P.SemanticFunction(max_tokens=3)
    def free(x: P.SemanticVariable) -> None:
        """{{output:a}}{{output:b}}{{x}}{{input:a}}{{output:c}}"""

    desk = counting()
    async with Runtime(engines(desk)) as runtime, P.Client(runtime):
        a, b, c = free("-")
        assert (await a, await b, await c) == ("o1", "o2", "o4")
    assert [prompt for prompt in desk.prompts if prompt] == ["o1", "o1o2-o1"]
    assert {one.max_tokens for one in desk.decodes} == {3}


@in_virtual_time
async def test_a_prompt_runs_with_every_choice_of_passes_to_the_same_end() -> None:
    found = []
    for passes in ("all", "none", "weighed"):
        async with Runtime(engines(counting())) as runtime, P.Client(runtime, passes=passes):
            line, reply = acted("S")
            found.append((await line, await reply, await P.join(line, reply, separator="+")))
    assert found == 3 * [("o1", "o2", "o1+o2")]


@in_virtual_time
async def test_white_space_around_an_output_may_be_kept() -> None:
    @P.SemanticFunction
    def said(
        kept: P.Output = P.Output(strip=False, stop="."), stripped: P.Output = P.Output(stop=".")
    ) -> None:
        """Say:{{kept}}|{{stripped}}"""

    desk = Desk(lambda _: " \n a b\n . c")
    async with Runtime(engines(desk)) as runtime, P.Client(runtime, passes="none"):
        kept, stripped = said()
        assert (await kept, await stripped) == (" \n a b\n ", "a b")
    assert desk.prompts == ["Say:", "Say: \n a b\n |"]


# --- conversations


@in_virtual_time
async def test_messages_and_conversations() -> None:
    @P.SemanticFunction
    def chat(x: P.SemanticVariable) -> None:
        """{{system:}} Be kind.
        {{user:}} Tell {{x}}.
        {{assistant:}} {{output:joke}}
        {{user:}} Explain.
        {{assistant:}} It says {{output:why}}"""

    @P.SemanticFunction(conversation=P.Conversation("Be kind."))
    def by_model(x: P.SemanticVariable) -> None:
        """Tell {{x}}.
        {{output:joke}}
        Explain.
        {{output:why}}"""

    @P.SemanticFunction(conversation=P.VICUNA)
    def vicuna(x: P.SemanticVariable) -> None:
        """Tell {{x}}.
        {{output:joke}} Explain. {{output:why}}"""

    desk = Desk(lambda _: "ha")
    async with Runtime(engines(desk)) as runtime, P.Client(runtime, passes="none"):
        for function in (chat, by_model, vicuna):
            _, why = function("me")
            assert await why == "ha"
    shown = [
        "".join(f"|{one.role}:{one.text}" if one.role else one.text for one in task.prompt)
        for task in desk.tasks
    ]
    system = P.VICUNA.system
    assert shown == [
        "|system:Be kind.|user:Tell me.",
        "|system:Be kind.|user:Tell me.|assistant:ha|user:Explain.|assistant:It says ",
        "|system:Be kind.|user:Tell me.",
        "|system:Be kind.|user:Tell me.|assistant:ha|user:Explain.",
        f"{system}USER: Tell me. ASSISTANT: ",
        f"{system}USER: Tell me. ASSISTANT: ha</s>USER: Explain. ASSISTANT: ",
    ]


def test_a_prompt_with_messages_takes_no_conversation() -> None:
    with pytest.raises(TemplateError, match="f: the prompt has messages of its own"):

        @P.SemanticFunction(conversation=P.CHAT)
        def f() -> None:
            """{{user:}}Hi {{output:y}}"""

    with pytest.raises(TemplateError, match="marks for both user and assistant"):
        P.Conversation(user="U: ")


# --- transforms


@P.SemanticFunction
def extract(
    items: P.Input = P.Input(transform='join ", "'),
    names: P.Output = P.Output(transform=["json", 'json_path "$.names"']),
    more: P.Output = P.Output(),
) -> None:
    """From {{items}}: {{names}} More: {{more}}"""


@in_virtual_time
async def test_transforms_before_inputs_and_after_outputs() -> None:
    desk = Desk(lambda prompt: "done" if "More" in prompt else '{"names": ["x", "y"]}')
    async with Runtime(engines(desk)) as runtime, P.Client(runtime):
        names, more = extract(["a", "b"])
        assert await names == ["x", "y"]
        assert await more == "done"
        assert desk.prompts[-1] == 'From a, b: {"names": ["x", "y"]} More: ', "the text as generated"
        assert await P.transform(names, ["to_json"]) == '["x", "y"]'


@in_virtual_time
async def test_an_output_that_does_not_fit_fails_and_names_the_step() -> None:
    desk = Desk(lambda prompt: "no idea")
    async with Runtime(engines(desk)) as runtime, P.Client(runtime):
        names, more = extract(["a"])
        with pytest.raises(BadReply, match=r"step 'extract.names.transform': no JSON .*'no idea'"):
            await names
        assert await more == "no idea"


def test_arguments_are_bound_in_the_order_of_the_parameters() -> None:
    with pytest.raises(TemplateError, match="f: an input without a value follows one with a default value"):

        @P.SemanticFunction
        def f(first: str = "1", second: P.Input = P.Input(transform="strip")) -> None:
            """{{first}} {{second}} {{output:y}}"""

    @P.SemanticFunction
    def g(first: str = "1", *, second: P.Input = P.Input(transform="strip")) -> None:
        """{{first}} {{second}} {{output:y}}"""


@in_virtual_time
async def test_bad_transforms_and_a_missing_engine_are_refused() -> None:
    with pytest.raises(ConfigError, match="there is no transform 'shout'"):
        P.Output(transform="shout")
    with pytest.raises(ConfigError, match="join needs a separator"):
        P.Input(transform="join")
    async with Runtime([desk_llm(Desk(), in_thread=False)]) as runtime, P.Client(runtime):
        with pytest.raises(ConfigError, match=r"extract: .* there are llm; add transforms_engine"):
            extract(["a"])
        with pytest.raises(ConfigError, match="there is no transform 'x'"):
            P.transform("a", "x")


# --- operators


@P.SemanticFunction
def say(x: P.SemanticVariable, more: P.SemanticVariable = "?") -> None:  # type: ignore[assignment]
    """{{x}}{{more}} {{output:y}}"""


@in_virtual_time
async def test_map_gather_and_join_stay_at_the_runtime() -> None:
    desk = Desk(lambda prompt: prompt.strip().upper())
    async with Runtime(engines(desk)) as runtime, P.Client(runtime):
        items = P.SemanticVariable()
        mapped = say.map(items, "!")
        whole = say(P.join(mapped, separator=" "))
        both = P.gather(say("x"), say("z"))
        items.set(["a", "b"])
        assert await mapped == ["A!", "B!"]
        assert await whole == "A! B!?"
        assert await both == ["X?", "Z?"]
        first, second = acted.map(["p", "q"])
        assert (await first, await second) == (
            ["P A:", "Q A:"],
            ["P A: P A: B:", "Q A: Q A: B:"],
        )


@in_virtual_time
async def test_a_failed_item_stays_in_its_place() -> None:
    def answer(prompt: str) -> str:
        if "bad" in prompt:
            raise EngineFailure("no")
        return "ok"

    async with Runtime(engines(Desk(answer))) as runtime, P.Client(runtime):
        good, bad = await say.map(["good", "bad"])
        assert good == "ok"
        assert isinstance(bad, Failure)


@in_virtual_time
async def test_what_is_no_list_is_one_that_has_failed() -> None:
    async with Runtime(engines(Desk())) as runtime, P.Client(runtime):
        with pytest.raises(StrettoError):
            await say.map("no list")


@in_virtual_time
async def test_conditions_choose_and_what_is_skipped_costs_nothing() -> None:
    desk = Desk(lambda prompt: "Yes." if "judge" in prompt else prompt.strip())
    async with Runtime(engines(desk)) as runtime, P.Client(runtime):
        good = P.condition(say("judge"), equals="yes")
        kept, improved = say("kept", when=good.yes), say("improved", when=good.no)
        assert await P.first_present(improved, kept) == "kept?"
        assert await improved is ABSENT
        assert await P.gather(improved, kept) == ["kept?"]
        assert await P.condition([]).yes is ABSENT
    assert sorted(desk.prompts) == ["judge? ", "kept? "]


@in_virtual_time
async def test_results_of_operators_have_the_operators_names() -> None:
    async with Runtime(engines(Desk())) as runtime, P.Client(runtime) as client:
        made = [P.gather("a"), P.join("a"), P.transform("a", "strip"), P.first_present("a"), P.join("b")]
        assert [variable.name_in(client) for variable in made] == [
            "gather",
            "join",
            "transform",
            "first_present",
            "join.2",
        ]
        assert await made[-1] == "b"


@in_virtual_time
async def test_an_object_is_joined_as_json_and_what_has_no_text_is_not() -> None:
    async with Runtime(engines(Desk())) as runtime, P.Client(runtime):
        item = P.transform('{"a": 1}', "json")
        assert await P.join("all: ", item, separator="") == 'all: {"a": 1}'
        assert await P.join("all: ", P.transform(item, "to_json"), separator="") == 'all: {"a": 1}'
        document = Document("a.txt", (Section("text"),), "")
        with pytest.raises(BadReply, match="a Document has no textual form; the transform to_json") as raised:
            await P.join("all: ", document)
        assert raised.value.step == "join"


@in_virtual_time
async def test_a_name_that_was_given_may_be_given_again_when_its_variable_was_dropped() -> None:
    async with Runtime(engines(Desk())) as runtime, P.Client(runtime):
        for turn in range(3):
            variable = P.SemanticVariable(f"turn {turn}", name="turn")
            with pytest.raises(UserError, match="there is a variable 'turn' already"):
                P.SemanticVariable("other", name="turn")
            assert await say(variable) == f"<turn {turn}? >"
            variable.drop()
            await asyncio.sleep(0.1)


@in_virtual_time
async def test_bad_operators_are_refused() -> None:
    async with Runtime(engines(Desk())) as runtime, P.Client(runtime):
        for call in (P.gather, P.join, P.first_present):
            with pytest.raises(UserError, match="needs at least one value"):
                call()
        with pytest.raises(UserError, match="the separator must be a text"):
            P.join("a", separator=1)  # type: ignore[arg-type]
        with pytest.raises(UserError, match="equals must be a text"):
            P.condition("a", equals=1)  # type: ignore[arg-type]
        with pytest.raises(UserError, match="when must be a SemanticVariable"):
            say("a", when="b")  # type: ignore[arg-type]

        @P.SemanticFunction
        def backwards(x: P.SemanticVariable) -> None:
            """{{output:y}} {{x}} {{output:z}}"""

        with pytest.raises(UserError, match="map takes items of 'x', but an output stands before it"):
            backwards.map(["a"])


# --- native functions


@in_real_time
async def test_native_functions_run_in_the_client() -> None:
    @P.NativeFunction
    def shout(text: str, mark: str = "!") -> str:
        if text == "bad?":
            raise ValueError("oh")
        threads.append(threading.current_thread())
        return text.upper() + mark

    @P.NativeFunction
    async def slow(text: str) -> object:
        await asyncio.sleep(0)
        return object() if text == "odd?" else text

    threads: list[threading.Thread] = []
    desk = Desk(lambda prompt: prompt.strip())
    async with Runtime([desk_llm(desk)]) as runtime:
        async with P.Client(runtime):
            assert await say(shout(say("a"), mark="#")) == "A?#?"
            assert await slow(shout("b")) == "B!"
            with pytest.raises(EngineFailure, match="step 'shout': the function raised ValueError: oh"):
                await say(shout(say("bad")))
            with pytest.raises(UserError, match="the result of slow"):
                await slow(say("odd"))
            with pytest.raises(UserError, match="shout: missing a required argument"):
                shout()
            with pytest.raises(UserError, match="a native function must be a function"):
                P.NativeFunction(3)  # type: ignore[arg-type]
            skipped = P.SemanticVariable()
            skipped.set(ABSENT)
            assert await shout(skipped) is ABSENT
            with pytest.raises(UserError, match="for the output 'line' has a value, or a call produces it"):
                acted("S", line=(both := P.SemanticVariable()), reply=both)
            never = shout(P.SemanticVariable())
        with pytest.raises(UserError, match="the session is closed"):
            await never
    assert threading.current_thread() not in threads


@in_real_time
async def test_whatever_a_native_function_raises_fails_its_variable() -> None:
    @P.NativeFunction
    def first(items: list[object]) -> object:
        return next(iter(items))

    @P.NativeFunction
    def leave() -> str:
        sys.exit("enough")

    @P.NativeFunction
    async def leave_too() -> str:
        sys.exit("enough")

    async with Runtime([desk_llm(Desk())]) as runtime, P.Client(runtime):
        with pytest.raises(EngineFailure, match="step 'first': the function raised StopIteration"):
            await first([]).aget(timeout_s=5)
        for function in (leave, leave_too):
            with pytest.raises(EngineFailure, match="the function raised SystemExit: enough"):
                await function().aget(timeout_s=5)


@in_real_time
async def test_a_native_function_gets_what_is_dropped_after_its_call() -> None:
    @P.NativeFunction
    def joined(*texts: str) -> str:
        return "+".join(texts)

    async with (
        Runtime([desk_llm(Desk(lambda prompt: prompt.strip()))]) as runtime,
        P.Client(runtime) as client,
    ):
        said, given = say("a"), P.SemanticVariable()
        result = joined(said, given, said)
        said.drop()
        await asyncio.sleep(0)
        given.set("b")
        assert await result == "a?+b+a?"
        assert not is_kept(client, said)
        assert client._native.is_idle()


@in_virtual_time
async def test_a_native_call_that_is_dropped_does_not_wait_any_more() -> None:
    async with Runtime(engines(Desk())) as runtime, P.Client(runtime) as client:
        late = P.SemanticVariable()
        said = say(late)
        never = P.NativeFunction(again)(said)
        said.drop()
        never.drop()
        await asyncio.sleep(1)
        assert client._native.is_idle()
        assert not is_kept(client, said)
        late.set("x")


@in_virtual_time
async def test_a_native_call_whose_result_is_dropped_runs_on_for_those_that_read_it() -> None:
    @P.NativeFunction
    async def function(text: str) -> str:
        return text

    async with Runtime(engines(Desk())) as runtime, P.Client(runtime) as client:
        for is_wanted in (True, False):
            late = P.SemanticVariable()
            first = function(late)
            second = function(first)
            first.drop()
            await asyncio.sleep(1)
            if is_wanted:
                late.set("x")
                assert await second.aget(timeout_s=5) == "x"
            else:
                second.drop()
                await asyncio.sleep(1)
            assert client._native.is_idle()
            assert not is_kept(client, first)


@in_virtual_time
@pytest.mark.parametrize("dropped", ["first", "first and told", "all"])
async def test_a_native_call_whose_result_is_dropped_runs_on_for_calls_of_an_llm(dropped: str) -> None:
    @P.NativeFunction
    async def function(text: str) -> str:
        return text

    async with Runtime(engines(Desk(lambda prompt: "told"))) as runtime, P.Client(runtime) as client:
        late = P.SemanticVariable()
        first = function(late)
        told = say(first)
        again = say(told)
        first.drop()
        if dropped != "first":
            told.drop()
        if dropped == "all":
            again.drop()
            await asyncio.sleep(1)
        else:
            await asyncio.sleep(1)
            assert not client._native.is_idle()
            late.set("x")
            assert await again.aget(timeout_s=5) == "told"
        assert client._native.is_idle()
        assert not client.ledger.natives._readers
        session = client._opened()
        assert isinstance(session, Session)
        assert session._variables.known(first._name) is None


@in_virtual_time
async def test_a_circle_through_a_native_function_is_refused() -> None:
    async with Runtime(engines(Desk())) as runtime, P.Client(runtime):
        a = P.SemanticVariable(name="a")
        with pytest.raises(UserError, match="a cycle through the variables a, again"):
            say(P.NativeFunction(again)(a), y=a)


def is_kept(client: P.Client, variable: P.SemanticVariable) -> bool:
    """Return whether a client's session still has a variable."""
    session = client._opened()
    assert isinstance(session, Session)
    return session._variables.known(variable._name) is not None


def again(text: str) -> str:
    return text
