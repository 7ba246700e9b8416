"""The apps that contestants run: prompts and settings for everybody, and templates for Stretto."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from benchmarks.baselines import with_baselines
from benchmarks.common.plain_prompts import PLAIN_PROMPTS
from stretto.apps import advanced_rag, naive_rag
from stretto.apps.components.builder import Builder
from stretto.apps.components.component import Component, Input
from stretto.apps.template import Template
from stretto.apps.vocabulary import DEFAULT
from stretto.graph.graph import Arg, Graph, Ref
from stretto.graph.ops import Port
from stretto.sched.vocabulary import Vocabulary

ANSWER_TOKENS = 128
FAN_IN = 6
MERGE = "Combine the summaries into one.\nSummaries: {summaries}\nSummary:"
_SUMMARISE = "summarise_all"


@dataclass(frozen=True, slots=True)
class FleetApp:
    """One app of the harness.

    Attributes:
        prompts: texts of its prompts by name.
        settings: numbers that all contestants use.
        configuration: the same numbers, as settings of the template's components.
        num_documents: documents that come with each query.
    """

    name: str
    template: Template
    prompts: Mapping[str, str]
    settings: Mapping[str, int]
    configuration: Mapping[str, Mapping[str, object]]
    num_documents: int


def summarise_all(inputs: Mapping[str, object]) -> Graph:
    """Return one LLM call for each passage, and a tree of calls over the summaries. Each of these waits for
    its own summaries alone.
    """
    passages = inputs["passages"]
    assert isinstance(passages, list)
    build = Builder()
    build.reserve("passages")
    root = summary_tree(build, [Ref("passages", index=place) for place in range(len(passages))])
    return Graph(
        "summarise", (("passages", "list[chunk]"),), tuple(build.primitives), (), (("summary", root),)
    )


def summary_tree(build: Builder, passages: Sequence[Ref]) -> Ref:
    """Add LLM calls that summarise passages, and the tree over them; return the last summary."""
    decode = {"max_tokens": ANSWER_TOKENS}
    return merge_tree(
        build,
        [
            build.complete("summary", PLAIN_PROMPTS["summarise"], {"text": p}, engine="llm", decode=decode)
            for p in passages
        ],
    )


def merge_tree(build: Builder, level: list[Ref]) -> Ref:
    """Add LLM calls that combine texts `FAN_IN` at a time until one is left, and return that."""
    while len(level) > 1:
        groups = [level[start : start + FAN_IN] for start in range(0, len(level), FAN_IN)]
        level = [_merged(build, group) for group in groups]
    return level[0]


def _merged(build: Builder, group: list[Ref]) -> Ref:
    joined = build.add("parts", "aggregate", tuple(Arg(str(r), r) for r in group), config={"join": "\n\n"})
    decode = {"max_tokens": ANSWER_TOKENS}
    return build.complete("merged", MERGE, {"summaries": joined}, engine="llm", decode=decode)


class MapReduce(Component):
    """A component that summarises each passage of the documents, then the summaries."""

    ports = (Port("files", "list[document]"),)
    outs: ClassVar[Mapping[str, str]] = {"summary": "text"}

    def lower(self, build: Builder, config: object) -> Mapping[str, Ref]:
        """Add a step that cuts the documents, and one that becomes a tree of calls when they are cut."""
        chunks = build.add("chunks", "chunk", (build.take("files", each=True),), engine="chunking")
        body = {"body": _SUMMARISE, "result": "text"}
        return {"summary": build.add("summary", "expand", (Arg("passages", chunks),), config=body)}


def map_reduce() -> Template:
    """Return the app that summarises documents, however many passages they have."""
    summarising = MapReduce(files=Input("files", "list[document]"))
    return Template("map_reduce", summarising, {"answer": summarising["summary"]})


VOCABULARY: Vocabulary = with_baselines(DEFAULT.with_expansion(_SUMMARISE, summarise_all))


def _prompts(*names: str) -> dict[str, str]:
    return {name: PLAIN_PROMPTS[name] for name in names}


_SYNTHESIS = {
    "max_tokens": ANSWER_TOKENS,
    "num_hits": 3,
    "prompt": PLAIN_PROMPTS["answer"],
    "refine_prompt": PLAIN_PROMPTS["refine"],
    "combine_prompt": PLAIN_PROMPTS["combine"],
}
APPS: Mapping[str, FleetApp] = {
    app.name: app
    for app in (
        FleetApp(
            "naive",
            naive_rag(),
            _prompts("answer", "combine"),
            {"top_k": 3, "answer_tokens": ANSWER_TOKENS},
            {"searching": {"top_k": 3}, "synthesis": _SYNTHESIS},
            4,
        ),
        FleetApp(
            "advanced",
            advanced_rag(),
            _prompts("expand", "answer", "refine"),
            {"top_k": 16, "best": 3, "num_queries": 3, "query_tokens": 200, "answer_tokens": ANSWER_TOKENS},
            {"synthesis": _SYNTHESIS, "query_expansion": {"prompt": PLAIN_PROMPTS["expand"]}},
            4,
        ),
        FleetApp(
            "map_reduce",
            map_reduce(),
            {**_prompts("summarise"), "merge": MERGE},
            {"fan_in": FAN_IN, "answer_tokens": ANSWER_TOKENS},
            {},
            2,
        ),
    )
}
