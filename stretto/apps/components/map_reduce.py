"""Ready-made component that lets an LLM read a list item by item, then combines what it has written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stretto.apps.components.builder import Builder
from stretto.apps.components.component import Component, at_least
from stretto.apps.components.prompt_segments import load_prompt, parse_prompt
from stretto.graph.graph import Arg, Graph, Ref
from stretto.graph.ops import Port

REDUCE = "reduce_tree"
"""Name of the expansion that makes the reducing part of the graph."""


class MapReduce(Component):
    """A component of an app that calls an LLM for each item of a list, and combines the outputs, a few at a
    time, until one is left.

    The graph grows while it runs, because the number of items is not known before. An empty list has no
    result.
    """

    ports = (Port("items", "list[text]|list[chunk]|list[hit]"),)
    outs: ClassVar[Mapping[str, str]] = {"text": "text", "parts": "list[text]"}

    @dataclass(frozen=True)
    class Config:
        """Settings of the component `MapReduce`.

        Attributes:
            map_prompt: name or text of a prompt with {text}, one item.
            reduce_prompt: name or text of a prompt with {text}, several outputs with blank lines between
                them.
            fan_in: largest number of outputs that one call combines.
            max_tokens: largest number of output tokens of a call.
            engine: name of the LLM engine.
        """

        map_prompt: str = "summarise"
        reduce_prompt: str = "summarise"
        fan_in: int = 4
        max_tokens: int = 96
        engine: str = "llm"

        def __post_init__(self) -> None:
            at_least(1, max_tokens=self.max_tokens)
            at_least(2, fan_in=self.fan_in)

    def lower(self, build: Builder, config: Config) -> Mapping[str, Ref]:
        """Add the LLM calls for the items, and a step that becomes the tree of combining calls, to the app's
        graph.

        Raises:
            ConfigError: a prompt does not use {text}, or uses something else.
        """
        parse_prompt(load_prompt(config.reduce_prompt), frozenset({"text"}))
        parts = build.complete(
            "parts",
            config.map_prompt,
            {"text": build.value("items")},
            engine=config.engine,
            decode={"max_tokens": config.max_tokens},
            each=frozenset({"text"}),
        )
        settings = {
            "body": REDUCE,
            "result": "text",
            "prompt": config.reduce_prompt,
            "fan_in": config.fan_in,
            "max_tokens": config.max_tokens,
            "engine": config.engine,
            "access": "none",
        }
        return {
            "text": build.add(self.name, "expand", (Arg("parts", parts),), config=settings),
            "parts": parts,
        }


def reduce_tree(inputs: Mapping[str, object]) -> Graph:
    """Return the graph that combines the texts in `parts`, up to `fan_in` at a time, until one is left.

    It is the expansion `reduce_tree`. Further inputs are the settings `prompt`, `max_tokens` and `engine`.
    """
    parts, fan_in = inputs["parts"], inputs["fan_in"]
    assert isinstance(parts, list)
    assert isinstance(fan_in, int)
    build = Builder()
    build.reserve("parts")
    level = [Ref("parts", index=place) for place in range(max(1, len(parts)))]
    while len(level) > 1:
        groups = [level[start : start + fan_in] for start in range(0, len(level), fan_in)]
        level = [_combine(build, inputs, group) if len(group) > 1 else group[0] for group in groups]
    return Graph("reduce", (("parts", "list[text]"),), tuple(build.primitives), (), (("text", level[0]),))


def _combine(build: Builder, settings: Mapping[str, object], group: list[Ref]) -> Ref:
    joined = build.add("joined", "aggregate", tuple(Arg(str(r), r) for r in group), config={"join": "\n\n"})
    return build.complete(
        "combined",
        str(settings["prompt"]),
        {"text": joined},
        engine=str(settings["engine"]),
        decode={"max_tokens": settings["max_tokens"]},
    )
