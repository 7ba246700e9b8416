"""Random apps made of the ready-made components, for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from stretto.apps.components.component import Component, Input, OutPort, Source
from stretto.apps.template import Template
from stretto.components import Agent, Condition, FirstPresent, LLMCall, MapReduce, Tool, ToolCall
from support.random_apps import App, query_inputs

TOOLS = (Tool("look", "look around", str), Tool("ask", "ask somebody", str))
QUESTION, NAMES = Input("question", "text"), Input("names", "list[text]")
_SYSTEM = "You answer in one sentence, and say so when you cannot. "


class _Parts:
    """The sources that a new component may read: texts, lists of texts, and guards."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.components: list[Component] = []
        self.texts: list[Source] = [QUESTION]
        self.lists: list[Source] = [NAMES]
        self.guards: list[OutPort] = []

    def one(self, options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def guarded(self) -> dict[str, OutPort]:
        return {"when": self.one(self.guards)} if self.guards and self.draw(st.booleans()) else {}

    def name(self) -> str:
        return f"part{len(self.components)}"

    def llm_call(self) -> None:
        if self.draw(st.booleans()):
            call = LLMCall(
                name=self.name(),
                prompt="{system:}" + _SYSTEM + "{user:}List {topic}, knowing {more}: ",
                topic=self.one(self.texts),
                more=self.one([*self.texts, *self.lists]),
                as_list=True,
                max_tokens=10,
                **self.guarded(),
            )
            self.lists.append(call["text"])
        else:
            call = LLMCall(
                name=self.name(),
                prompt="{system:}" + _SYSTEM + "{user:}{a}",
                a=self.one(self.texts),
                max_tokens=9,
                **self.guarded(),
            )
            self.texts.append(call["text"])
        self.components.append(call)

    def map_call(self) -> None:
        call = LLMCall(
            name=self.name(),
            prompt=_SYSTEM + "{a} of {b}",
            a=self.one(self.texts),
            b=self.one(self.lists),
            each="b",
            max_tokens=5,
        )
        self.lists.append(call["text"])
        self.components.append(call)

    def tool_call(self) -> None:
        call = ToolCall(
            name=self.name(),
            function="f",
            engine="cpu",
            a=self.one(self.texts),
            b=self.one(self.lists),
            each=self.one(("", "b")),
            **self.guarded(),
        )
        (self.lists if call.config.each else self.texts).append(call["result"])
        self.components.append(call)

    def condition(self) -> None:
        split = Condition(
            name=self.name(), value=self.one([*self.texts, *self.lists]), equals=self.one(("", "a", "7"))
        )
        self.guards += [split["yes"], split["no"]]
        self.components.append(split)

    def first(self) -> None:
        joined = FirstPresent(name=self.name(), a=self.one(self.texts), b=self.one(self.texts))
        self.texts.append(joined["value"])
        self.components.append(joined)

    def map_reduce(self) -> None:
        reduced = MapReduce(
            name=self.name(), items=self.one(self.lists), fan_in=self.one((2, 3)), max_tokens=5
        )
        self.texts.append(reduced["text"])
        self.components.append(reduced)

    def agent(self) -> None:
        agent = Agent(
            name=self.name(),
            question=self.one(self.texts),
            tools=TOOLS,
            tools_engine="cpu",
            max_turns=self.one((1, 2, 3)),
            max_calls=self.one((1, 3)),
            call_tokens=10,
            max_tokens=9,
        )
        self.texts.append(agent["answer"])
        self.components.append(agent)


STEPS = (
    _Parts.llm_call,
    _Parts.map_call,
    _Parts.tool_call,
    _Parts.condition,
    _Parts.first,
    _Parts.map_reduce,
    _Parts.agent,
)


@st.composite
def template_apps(draw: Any) -> App:
    """Draw an app of two to seven components, joined with `>>` or not, and a query's inputs."""
    parts = _Parts(draw)
    for _ in range(draw(st.integers(2, 7))):
        parts.one(STEPS)(parts)
    flow: Any = parts.components
    if draw(st.booleans()):
        flow = parts.components[0]
        for component in parts.components[1:]:
            flow = flow >> component
    last: list[Source] = [*parts.texts[-2:], parts.lists[-1]]
    template = Template("t", flow, {f"out{place}": source for place, source in enumerate(last)})
    inputs = draw(query_inputs())
    return App(template.lower({}), {name: inputs[name] for name, _ in template.inputs})
