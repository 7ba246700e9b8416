"""The graphs of the kinds of programs, and the engines beside the LLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from benchmarks.programs.work import FAN_IN, MAP_REDUCE, ONE_CALL_KINDS
from stretto.apps.components.component import Builder
from stretto.engines.batch.applications import OpApplication, answer_batch
from stretto.graph.compile import ExecutionGraph, compile_graph
from stretto.graph.graph import Arg, Graph, Ref
from stretto.model.deployment import Deployment, deploy
from stretto.model.profile import Profile
from stretto.model.tasks import Task
from stretto.sim.synthetic_output import filler

MOST_TOKENS = 2048
"""Limit of all answers, far above what they have."""
NUM_HITS = 4
_PASSAGE_TOKENS = 250
_DECODE: Mapping[str, object] = {"max_tokens": MOST_TOKENS}
_SEARCHED = Profile(0.03, 0.004, max_efficient_batch=32)
_RANKED = Profile(0.014, 0.027, max_efficient_batch=8)


class MadeUpSearch:
    """A batch engine that finds made-up passages for a question, or puts found ones in order."""

    def __init__(self, config: object) -> None:
        """Make the engine. It has no settings."""

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Answer all tasks."""
        return answer_batch(tasks, {"call": lambda several: [_found(one) for one in several]})

    def release(self, query: str) -> None:
        """Do nothing: nothing is kept for a query."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def search_engines() -> list[Deployment]:
    """Return the engines for search and for ranking, fast enough for all loads."""
    return [
        deploy("search", MadeUpSearch, profile=_SEARCHED, max_batch=32),
        deploy("ranking", MadeUpSearch, profile=_RANKED, max_batch=8, instances=2),
    ]


@lru_cache(maxsize=1024)
def graph_of(kind: str, width: int, profiles: tuple[tuple[str, Profile], ...] = ()) -> ExecutionGraph:
    """Return the compiled graph of a kind of program, for a number of passages."""
    if kind in ONE_CALL_KINDS:
        graph = _one_call(kind)
    else:
        graph = _map_reduce(width) if kind == MAP_REDUCE else _rag()
    return compile_graph(graph, dict(profiles))


def _one_call(kind: str) -> Graph:
    build = Builder()
    build.reserve("prompt")
    text = build.complete("text", "{prompt}", {"prompt": Ref("prompt")}, engine="llm", decode=_DECODE)
    return Graph(kind, (("prompt", "text"),), tuple(build.primitives), (), (("answer", text),))


def _rag() -> Graph:
    build = Builder()
    build.reserve("question")
    question = Ref("question")
    rewrite = filler("Rewrite the question for a search.", 60) + "|{question}"
    queries = build.complete("queries", rewrite, {"question": question}, engine="llm", decode=_DECODE)
    found = _call(build, "found", "search", queries)
    ranked = _call(build, "ranked", "ranking", found)
    read = filler("Say what the passage tells about the question.", 80) + "|{question} {passage}"
    readings = build.complete(
        *("reading", read, {"question": question, "passage": ranked}),
        engine="llm",
        decode=_DECODE,
        each=frozenset({"passage"}),
    )
    joined = build.add("notes", "aggregate", (Arg("notes", readings),), config={"join": "\n"})
    merge = filler("Answer the question from the notes.", 80) + "|{question} {notes}"
    variables = {"question": question, "notes": joined}
    answer = build.complete("answer", merge, variables, engine="llm", decode=_DECODE)
    return Graph("rag", (("question", "text"),), tuple(build.primitives), (), (("answer", answer),))


def _call(build: Builder, name: str, engine: str, value: Ref) -> Ref:
    config = {"function": engine, "result": "list[text]"}
    return build.add(name, "call", (Arg("value", value),), engine=engine, config=config)


def _map_reduce(width: int) -> Graph:
    build = Builder()
    build.reserve("passages")
    summarise = filler("Summarise the passage.", 60) + "|{passage}"
    summaries = build.complete(
        *("summary", summarise, {"passage": Ref("passages")}),
        engine="llm",
        decode=_DECODE,
        each=frozenset({"passage"}),
    )
    level = [Ref(summaries.name, index=place) for place in range(width)]
    while len(level) > 1:
        groups = [level[start : start + FAN_IN] for start in range(0, len(level), FAN_IN)]
        level = [_merged(build, group) for group in groups]
    inputs = (("passages", "list[text]"),)
    return Graph(MAP_REDUCE, inputs, tuple(build.primitives), (), (("answer", level[0]),))


def _merged(build: Builder, group: Sequence[Ref]) -> Ref:
    args = tuple(Arg(f"part{place}", ref) for place, ref in enumerate(group))
    joined = build.add("parts", "aggregate", args, config={"join": "\n"})
    merge = filler("Combine the summaries into one.", 60) + "|{summaries}"
    return build.complete("merged", merge, {"summaries": joined}, engine="llm", decode=_DECODE)


def _found(application: OpApplication) -> list[str]:
    value = application.require("value", object)
    if isinstance(value, list):
        return value
    return [filler(f"{application.task.query}/{place}", _PASSAGE_TOKENS) for place in range(NUM_HITS)]
