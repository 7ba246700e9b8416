"""The graphs of the kinds of programs, and the engines beside the LLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from benchmarks.programs.work import FAN_IN, MAP_REDUCE, ONE_CALL_KINDS
from stretto.apps.components.builder import Builder
from stretto.engines.batch.applications import OpApplication, answer_batch
from stretto.engines.contract import BatchEngine
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.graph import Arg, Graph, Ref
from stretto.model.deployment import Deployment, deploy
from stretto.model.profile import Profile
from stretto.model.tasks import Task
from stretto.sim.synthetic_output import filler

MOST_TOKENS = 2048
"""Limit of all answers, far above what they have."""
NUM_HITS = 4
REWRITE = filler("Rewrite the question for a search.", 60) + "|{question}"
READ = filler("Say what the passage tells about the question.", 80) + "|{question} {passage}"
MERGE = filler("Answer the question from the notes.", 80) + "|{question} {notes}"
SUMMARISE = filler("Summarise the passage.", 60) + "|{passage}"
COMBINE = filler("Combine the summaries into one.", 60) + "|{summaries}"
BETWEEN = "\n"
"""Text between the notes, and between the summaries, of one prompt."""
SEARCHED = Profile(0.03, 0.004, max_efficient_batch=32)
RANKED = Profile(0.014, 0.027, max_efficient_batch=8)
_PASSAGE_TOKENS = 250


class MadeUpSearch(BatchEngine):
    """A batch engine that finds made-up passages for a question, or puts found ones in order."""

    def __init__(self, config: object) -> None:
        """Make the engine. It has no settings."""

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Answer all tasks."""
        return answer_batch(tasks, {"call": lambda several: [_found(one) for one in several]})


def search_engines() -> list[Deployment]:
    """Return the engines for search and for ranking, fast enough for all loads."""
    return [
        deploy("search", MadeUpSearch, profile=SEARCHED, max_batch=32),
        deploy("ranking", MadeUpSearch, profile=RANKED, max_batch=8, instances=2),
    ]


@lru_cache(maxsize=1024)
def graph_of(
    kind: str, width: int, profiles: tuple[tuple[str, Profile], ...] = (), max_tokens: int = MOST_TOKENS
) -> ExecutionGraph:
    """Return the compiled graph of a kind of program, for a number of passages.

    Args:
        max_tokens: limit of all answers.
    """
    decode = {"max_tokens": max_tokens}
    if kind in ONE_CALL_KINDS:
        graph = _one_call(kind, decode)
    else:
        graph = _map_reduce(width, decode) if kind == MAP_REDUCE else _rag(decode)
    return compile_graph(graph, dict(profiles))


def _one_call(kind: str, decode: Mapping[str, object]) -> Graph:
    build = Builder()
    build.reserve("prompt")
    text = build.complete("text", "{prompt}", {"prompt": Ref("prompt")}, engine="llm", decode=decode)
    return Graph(kind, (("prompt", "text"),), tuple(build.primitives), (), (("answer", text),))


def _rag(decode: Mapping[str, object]) -> Graph:
    build = Builder()
    build.reserve("question")
    question = Ref("question")
    queries = build.complete("queries", REWRITE, {"question": question}, engine="llm", decode=decode)
    found = _call(build, "found", "search", queries)
    ranked = _call(build, "ranked", "ranking", found)
    readings = build.complete(
        *("reading", READ, {"question": question, "passage": ranked}),
        engine="llm",
        decode=decode,
        each=frozenset({"passage"}),
    )
    joined = build.add("notes", "aggregate", (Arg("notes", readings),), config={"join": BETWEEN})
    variables = {"question": question, "notes": joined}
    answer = build.complete("answer", MERGE, variables, engine="llm", decode=decode)
    return Graph("rag", (("question", "text"),), tuple(build.primitives), (), (("answer", answer),))


def _call(build: Builder, name: str, engine: str, value: Ref) -> Ref:
    config = {"function": engine, "result": "list[text]"}
    return build.add(name, "call", (Arg("value", value),), engine=engine, config=config)


def _map_reduce(width: int, decode: Mapping[str, object]) -> Graph:
    build = Builder()
    build.reserve("passages")
    summaries = build.complete(
        *("summary", SUMMARISE, {"passage": Ref("passages")}),
        engine="llm",
        decode=decode,
        each=frozenset({"passage"}),
    )
    level = [Ref(summaries.name, index=place) for place in range(width)]
    while len(level) > 1:
        groups = [level[start : start + FAN_IN] for start in range(0, len(level), FAN_IN)]
        level = [_merged(build, group, decode) for group in groups]
    inputs = (("passages", "list[text]"),)
    return Graph(MAP_REDUCE, inputs, tuple(build.primitives), (), (("answer", level[0]),))


def _merged(build: Builder, group: Sequence[Ref], decode: Mapping[str, object]) -> Ref:
    args = tuple(Arg(f"part{place}", ref) for place, ref in enumerate(group))
    joined = build.add("parts", "aggregate", args, config={"join": BETWEEN})
    return build.complete("merged", COMBINE, {"summaries": joined}, engine="llm", decode=decode)


def passages_for(text: str) -> list[str]:
    """Return the made-up passages that a search for a text finds."""
    return [filler(f"{text}/{place}", _PASSAGE_TOKENS) for place in range(NUM_HITS)]


def _found(application: OpApplication) -> list[str]:
    value = application.require("value", object)
    return value if isinstance(value, list) else passages_for(str(value))
