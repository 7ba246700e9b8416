"""Ready-made agent: an LLM calls tools, reads their results, and answers when it knows enough.

The graph grows by one turn at a time. In a turn the LLM writes a list of calls, and the tools run side by
side; with the pass `pipeline_decode` the first one runs while the LLM still writes the second. Where a tool
has effects, all calls of a turn are one step, which runs once, when the list is complete. The step `expand`
then becomes the next turn, or the answer if there were no calls. Every prompt begins with the one before it,
up to the results, so that its beginning is in the prefix cache.

Source: Teola Figure 2b. Differs: the number of turns is not known before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from stretto.apps.components.builder import Builder
from stretto.apps.components.component import Component, at_least
from stretto.apps.components.tool_prompts import signature_of, turn_schema
from stretto.graph.graph import RECORD, Arg, Graph, Ref
from stretto.graph.ops import Port
from stretto.model.errors import ConfigError
from stretto.model.tools import Tool, ToolOffer, ToolResult
from stretto.transforms.function_tools import as_tools

AGENT = "agent_turn"
"""Name of the expansion that makes the next turn of an agent."""

_INSTRUCTIONS = "Answer the question with the help of tools."
_ASK_CALLS = (
    '\nWrite the calls that you need next as a JSON list of objects {{"name": …, "arguments": {{…}}}}. '
    "Write [] if you can answer now.\nCalls:"
)
_ASK_ANSWER = "\nAnswer the question in plain words.\nAnswer:"
_RESULTS = re.compile(r"results(\d+)")
_LIMITS = (
    "max_turns",
    "max_calls",
    "call_tokens",
    "max_tokens",
    "max_results_chars",
    "engine",
    "tools_engine",
)
_SETTINGS = (
    *("introduction", "tools", "offer", "last_offer", "schema", "schema_if_able", "has_effects"),
    *_LIMITS,
)


class Agent(Component):
    """A component of an app in which an LLM answers a question with the help of tools, in several turns.

        Agent(question=question, tools=[search, add])

    A tool is a Python function, whose name, docstring and annotations the LLM reads, or a `Tool`. The engine
    `tools`, which `stretto.engines.catalogue.tools_engine` makes of the same tools, runs them. What a tool
    raises, and arguments that do not fit, are results like any other: the LLM reads what was wrong. The run
    fails only as any app does: where an engine fails, or the conversation outgrows the LLM's context.

    A server's own tool calls are used where its API is "chat" and it takes them. Everywhere else the prompt
    says how to write calls, and a reply in which none can be read counts as no calls.

    Outputs are the `answer` and the `run`, an `AgentRun` that says how the run ended and has all calls. If
    `run_name` is connected, the run has that name: where the engine of the tools has records, a run of the
    same name and question goes on where one before broke off; another question is refused.
    """

    ports = (Port("question", "text"), Port("run_name", "text", optional=True))
    outs: ClassVar[Mapping[str, str]] = {"answer": "text", "run": "record"}

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
            max_results_chars: largest number of characters of all results together, which the context of the
                LLM must hold. What is over is cut off, and the LLM is told.
            constrained: whether calls must follow a JSON schema that allows these tools only. None holds the
                models that run in this process or in its workers to it, where llguidance is installed. True
                has servers asked too, which get the tools in words then; an engine that cannot refuses it.
            engine: name of the LLM engine.
            tools_engine: name of the engine that runs the tools.
        """

        tools: tuple[Tool, ...] = ()
        instructions: str = _INSTRUCTIONS
        max_turns: int = 4
        max_calls: int = 4
        call_tokens: int = 256
        max_tokens: int = 256
        max_results_chars: int = 12_000
        constrained: bool | None = None
        engine: str = "llm"
        tools_engine: str = "tools"

        def __post_init__(self) -> None:
            at_least(1, max_turns=self.max_turns, max_calls=self.max_calls)
            at_least(1, call_tokens=self.call_tokens, max_tokens=self.max_tokens)
            at_least(1, max_results_chars=self.max_results_chars)
            as_tools(self.tools)

    def __init__(self, *, name: str | None = None, **keywords: Any) -> None:
        if isinstance(keywords.get("tools"), list | tuple):
            keywords["tools"] = as_tools(keywords["tools"])
        super().__init__(name=name, **keywords)

    def lower(self, build: Builder, config: Config) -> Mapping[str, Ref]:
        """Add the first turn to the app's graph, and a step that becomes the next turn or the answer.

        Raises:
            ConfigError: there are no tools.
        """
        if not config.tools:
            raise ConfigError("tools is empty; give the agent at least one tool")
        run = build.value("run_name") if build.is_fed("run_name") else None
        answer = _add_turn(build, _settings(config), [build.value("question")], run)
        return {"answer": answer, "run": Ref(answer.name, RECORD)}


def _settings(config: Agent.Config) -> Mapping[str, object]:
    """Return the settings as an `expand` step keeps them: scalars only."""
    lines = [f"- {signature_of(tool)}: {tool.description}" for tool in config.tools]
    max_tokens = max(config.call_tokens, config.max_tokens)
    functions = tuple(tool.declared.to_openai() for tool in config.tools)
    offer = ToolOffer(config.instructions, functions, max_tokens=max_tokens)
    last = ToolOffer(config.instructions, functions, "none", config.max_tokens)
    in_words = config.constrained is True  # servers do not hold calls of their own form to a schema
    return {
        "introduction": "\n".join([config.instructions, "Tools:", *lines]),
        "tools": " ".join(tool.name for tool in config.tools),
        "offer": "" if in_words else offer.to_json(),
        "last_offer": "" if in_words else last.to_json(),
        "schema": "" if config.constrained is False else turn_schema(config.tools, config.max_calls),
        "schema_if_able": config.constrained is None,
        "has_effects": any(tool.effects for tool in config.tools),
        **{name: getattr(config, name) for name in _LIMITS},
    }


def agent_turn(inputs: Mapping[str, object]) -> Graph:
    """Return the graph of an agent's next turn, or of its answer if the last turn had no calls or was the
    last one allowed.

    It is the expansion `agent_turn`. Its inputs are `question` and the results of each turn so far,
    `results1`, `results2`…, and perhaps `run_name`. Further ones are the agent's settings. Its outputs are
    the answer and the record of the run.
    """
    turns = sorted((name for name in inputs if _RESULTS.fullmatch(name)), key=lambda name: int(name[7:]))
    last, max_turns = inputs[turns[-1]], inputs["max_turns"]
    assert isinstance(last, list)
    assert isinstance(max_turns, int)
    has_called = any(isinstance(one, ToolResult) for one in last)
    has_answered = bool(last) and not has_called
    done = turns if has_called else turns[:-1]
    known = ["question", *done, *(turns[-1:] if has_answered else [])]
    build = Builder()
    for name in (*known, "run_name"):
        build.reserve(name)
    refs = [Ref(name) for name in ("question", *done)]
    run = Ref("run_name") if "run_name" in inputs else None
    if has_called and len(turns) < max_turns:
        answer = _add_turn(build, inputs, refs, run)
        record = Ref(answer.name, RECORD)
    else:
        if has_answered:
            answer = build.add("answer", "aggregate", (Arg("values", Ref(turns[-1])),), config={"join": ""})
        else:
            decode = {"max_tokens": inputs["max_tokens"], "tools": inputs["last_offer"]}
            answer = _complete(build, inputs, "answer", refs, _ASK_ANSWER, decode)
        args = (Arg("answer", answer), *(Arg(name, Ref(name)) for name in done))
        config = {"ended": "max_turns" if has_called else "answered"}
        record = build.add("run", "agent_run", args, config=config)
    types = [(name, "text" if name == "question" else "list[any]") for name in known]
    types += [("run_name", "text")] if run is not None else []
    outputs = (("answer", answer), ("run", record))
    return Graph(AGENT, tuple(types), tuple(build.primitives), (), outputs)


def _add_turn(build: Builder, settings: Mapping[str, object], known: list[Ref], run: Ref | None) -> Ref:
    """Add a turn: the LLM writes calls, the tools run, and a step becomes what follows.

    `known` are the values of the question and of the results so far.
    """
    decode = {
        "max_tokens": settings["call_tokens"],
        "items": "calls",
        "max_items": settings["max_calls"],
        "json_schema": settings["schema"] or None,
        "schema_if_able": settings["schema_if_able"],
        "tools": settings["offer"],
    }
    calls = _complete(build, settings, "calls", known, _ASK_CALLS, decode, hints=("splittable",))
    has_effects = settings["has_effects"]
    given = [Arg("calls" if has_effects else "call", calls, each=not has_effects)]
    given += [Arg(_name(place), ref) for place, ref in enumerate(known) if place > 0]
    named = () if run is None else (Arg("run_name", run),)
    asked = (Arg("question", known[0]),) if named and has_effects else ()  # recorded with the run's turns
    config = {
        "result": "list[any]" if has_effects else "any",
        "max_chars": settings["max_results_chars"],
        "max_calls": settings["max_calls"],
        "turn": len(known),
        "tools": settings["tools"],
    }
    results = build.add(
        "results",
        "call",
        (*given, *named, *asked),
        engine=str(settings["tools_engine"]),
        config={**config, "effects": True} if has_effects else config,
        hints=() if has_effects else ("batchable",),
    )
    args = [Arg(_name(place), ref) for place, ref in enumerate((*known, results))]
    grown = {name: settings[name] for name in _SETTINGS}
    if not has_effects:
        grown["access"] = "reads"
    return build.add("answer", "expand", (*args, *named), config={"body": AGENT, "result": "text", **grown})


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
        f"{{system:}}{introduction}{{user:}}Question: {{question}}{shown}{ask}",
        variables,
        engine=str(settings["engine"]),
        decode=decode,
        hints=hints,
    )


def _name(place: int) -> str:
    """Return the name of a value that a turn knows: the question, then the results of each turn."""
    return "question" if place == 0 else f"results{place}"
