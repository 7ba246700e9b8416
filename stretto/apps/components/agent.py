"""Ready-made agent: an LLM calls tools, reads their results, and answers when it knows enough.

The graph grows by one turn at a time. In a turn the LLM writes a list of calls, and the tools run side by
side; with the pass `pipeline_decode` the first one runs while the LLM still writes the second. Tools with an
effect run when the list is complete. The step `expand` then becomes the next turn, or the answer if there
were no calls. Every prompt begins with the one before it, up to the results, so that its beginning is in the
prefix cache.

Source: Teola Figure 2b. Differs: the number of turns is not known before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stretto.apps.components.bounds import at_least
from stretto.apps.components.component import Builder, Component
from stretto.graph.graph import Arg, Graph, Ref
from stretto.graph.ops import Port
from stretto.model.errors import ConfigError
from stretto.model.tools import Tool

AGENT = "agent_turn"
"""Name of the expansion that makes the next turn of an agent."""

_INSTRUCTIONS = "Answer the question with the help of tools."
_ASK_CALLS = (
    "\nWrite the calls that you need next as a JSON list of strings, each one NAME: INPUT. "
    "Write [] if you can answer now.\nCalls:"
)
_ASK_ANSWER = "\nAnswer the question in plain words.\nAnswer:"
_RESULTS = re.compile(r"results(\d+)")
_MAX_CALL_CHARS = 400
_LIMITS = ("max_turns", "max_calls", "call_tokens", "max_tokens", "engine", "tools_engine")
_SETTINGS = ("introduction", "schema", "schema_if_able", "has_effects", *_LIMITS)


class Agent(Component):
    """A component of an app in which an LLM answers a question with the help of tools, in several turns.

        Agent(question=question, tools=(calculator, search))

    The functions of the tools run on the engine `tools`, which `stretto.engines.catalogue.tools_engine`
    makes. A function that raises an error is a result like any other: the LLM reads what was wrong. Calls may
    also be JSON objects with a name and arguments; a tool gets the arguments as JSON text. A reply
    in which no list of calls can be read counts as no calls: the LLM answers with what it has, unless a tool
    has an effect; then the query fails, as it does when the engine of the tools fails.
    """

    ports = (Port("question", "text"),)
    outs: ClassVar[Mapping[str, str]] = {"answer": "text"}

    @dataclass(frozen=True)
    class Config:
        """Settings of the component `Agent`.

        Attributes:
            tools: tools that the LLM may call.
            instructions: text with which every prompt begins; the list of tools follows.
            max_turns: largest number of turns with calls, after which the LLM must answer.
            max_calls: largest number of calls in one turn; further ones are not made.
            call_tokens: largest number of output tokens of a list of calls.
            max_tokens: largest number of output tokens of the answer.
            constrained: whether calls must follow a JSON schema that allows these tools only. None holds the
                models that run in this process or in its workers to it, where llguidance is installed. True
                has servers asked too, and an engine that cannot refuses it.
            engine: name of the LLM engine.
            tools_engine: name of the engine that runs the tools.
        """

        tools: tuple[Tool, ...] = ()
        instructions: str = _INSTRUCTIONS
        max_turns: int = 4
        max_calls: int = 4
        call_tokens: int = 128
        max_tokens: int = 256
        constrained: bool | None = None
        engine: str = "llm"
        tools_engine: str = "tools"

        def __post_init__(self) -> None:
            at_least(1, max_turns=self.max_turns, max_calls=self.max_calls)
            at_least(1, call_tokens=self.call_tokens, max_tokens=self.max_tokens)
            names = [tool.name for tool in self.tools]
            if len(set(names)) < len(names):
                raise ConfigError(f"two tools have the same name: {', '.join(names)}")

    def lower(self, build: Builder, config: Config) -> Mapping[str, Ref]:
        """Add the first turn to the app's graph, and a step that becomes the next turn or the answer.

        Raises:
            ConfigError: there are no tools.
        """
        if not config.tools:
            raise ConfigError("tools is empty; give the agent at least one tool")
        return {"answer": _add_turn(build, _settings(config), [build.value("question")])}


def _settings(config: Agent.Config) -> Mapping[str, object]:
    """Return the settings as an `expand` step keeps them: scalars only."""
    lines = [f"- {tool.name}: {tool.description}" for tool in config.tools]
    return {
        "introduction": "\n".join([config.instructions, "Tools:", *lines, "Question: "]),
        "schema": "" if config.constrained is False else _calls_schema(config),
        "schema_if_able": config.constrained is None,
        "has_effects": any(tool.has_effect for tool in config.tools),
        **{name: getattr(config, name) for name in _LIMITS},
    }


def _calls_schema(config: Agent.Config) -> str:
    names = "|".join(tool.name for tool in config.tools)
    call = {"type": "string", "pattern": f"^({names}): [^\\n]{{1,{_MAX_CALL_CHARS}}}$"}
    return json.dumps({"type": "array", "items": call, "maxItems": config.max_calls})


def agent_turn(inputs: Mapping[str, object]) -> Graph:
    """Return the graph of an agent's next turn, or of its answer if the last turn had no calls or was the
    last one allowed.

    It is the expansion `agent_turn`. Its inputs are `question` and the results of each turn so far,
    `results1`, `results2`…: a list, or any other value if the turn has failed. Further ones are the agent's
    settings.
    """
    turns = sorted((name for name in inputs if _RESULTS.fullmatch(name)), key=lambda name: int(name[7:]))
    last, max_turns = inputs[turns[-1]], inputs["max_turns"]
    assert isinstance(max_turns, int)
    has_called = isinstance(last, list) and bool(last)
    known = ["question", *(turns if has_called else turns[:-1])]
    build = Builder()
    for name in known:
        build.reserve(name)
    refs = [Ref(name) for name in known]
    if has_called and len(turns) < max_turns:
        answer = _add_turn(build, inputs, refs)
    else:
        answer = _complete(build, inputs, "answer", refs, _ASK_ANSWER, {"max_tokens": inputs["max_tokens"]})
    types = tuple((name, "text" if name == "question" else "list[text]") for name in known)
    return Graph(AGENT, types, tuple(build.primitives), (), (("answer", answer),))


def _add_turn(build: Builder, settings: Mapping[str, object], known: list[Ref]) -> Ref:
    """Add a turn: the LLM writes calls, the tools run, and a step becomes what follows.

    `known` are the values of the question and of the results so far.
    """
    decode = {
        "max_tokens": settings["call_tokens"],
        "items": "calls",
        "max_items": settings["max_calls"],
        "json_schema": settings["schema"] or None,
        "schema_if_able": settings["schema_if_able"],
    }
    calls = _complete(build, settings, "calls", known, _ASK_CALLS, decode, hints=("splittable",))
    each, engine = Arg("call", calls, each=True), str(settings["tools_engine"])
    results = build.add(
        "results", "call", (each,), engine=engine, config={"result": "text"}, hints=("batchable",)
    )
    # If the calls have failed, the question stands in their place, which is no list: then there are none.
    safe = build.add("known", "select", (Arg("results", results), Arg("question", known[0])))
    args = [Arg(_name(place), ref) for place, ref in enumerate((*known, safe))]
    if settings["has_effects"]:
        effects = build.add("effects", "call", (each,), engine=engine, config={"result": "effect"})
        args.append(Arg("effects", effects))
    config = {name: settings[name] for name in _SETTINGS}
    if not settings["has_effects"]:
        config["access"] = "reads"
    return build.add("answer", "expand", tuple(args), config={"body": AGENT, "result": "text", **config})


def _complete(
    build: Builder,
    settings: Mapping[str, object],
    name: str,
    known: list[Ref],
    ask: str,
    decode: Mapping[str, object],
    hints: tuple[str, ...] = (),
) -> Ref:
    """Add an LLM call whose prompt is the introduction, the question, the results so far, and `ask`."""
    variables = {_name(place): ref for place, ref in enumerate(known)}
    shown = "".join(f"\nResults:\n{{{variable}}}" for variable in list(variables)[1:])
    introduction = str(settings["introduction"]).replace("{", "{{").replace("}", "}}")
    return build.complete(
        name,
        f"{introduction}{{question}}{shown}{ask}",
        variables,
        engine=str(settings["engine"]),
        decode=decode,
        hints=hints,
    )


def _name(place: int) -> str:
    """Return the name of a value that a turn knows: the question, then the results of each turn."""
    return "question" if place == 0 else f"results{place}"
