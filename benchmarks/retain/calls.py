"""The LLM calls whose prompts are replayed: agents that write a program together, and agents with tools.

Times of calls do not depend on what is cached, so that every way to evict sees the same calls.
"""

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from pathlib import Path
from typing import TypeAlias

from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import Node
from stretto.graph.graph import Arg, Constant, Graph, Primitive, Ref, Slot
from stretto.graph.text import parse_graph
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, QueryRecord
from stretto.model.values import Prompt, Segment
from stretto.sched.queries.request import StepRequest
from stretto.sim.synthetic_output import filler, prompt_ids

TOKEN_S = 0.02
"""Seconds of a decode step."""
START_S = 0.3
"""Seconds of a prefill."""
_PROFILE = Profile(base_s=START_S, per_unit_s=0.0, per_output_s=TOKEN_S)
_TURN = "graph turn(%q: text)\n%k = prefill([%q]) : kv @llm\n%a = decode(%k) : text @llm\nreturn %a"
_TOOLS: Mapping[str, tuple[float, float]] = {
    "Lookup": (0.5, 0.3),
    "Search": (1.5, 0.4),
    "Run": (12.0, 0.6),
    "Ask": (60.0, 0.8),
}
"""Median seconds of each tool, and deviation of their logarithm."""

_Row: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Call:
    """One LLM call of a query: when it starts and ends, its prompt, and the text that it writes."""

    start_s: float
    end_s: float
    request: StepRequest
    prompt: Prompt
    answer: str

    def tokens(self) -> tuple[list[int], int]:
        """Return the token ids of prompt and answer, and how many of them the prompt has."""
        prompt = prompt_ids(self.prompt)
        return prompt + prompt_ids((Segment(self.answer, "answer"),)), len(prompt)


def coding_calls(num_queries: int, seed: int, data: Path | None) -> list[Call]:
    """Return the 57 calls of a query in which agents design, write, review and revise eight files, for each
    of some queries that begin half a minute apart.

    Source: the calls that ParrotServe recorded of MetaGPT; without `data` made-up texts of like lengths.
    """
    draw = random.Random(f"coding/{seed}")
    rounds = [list(rows) for _, rows in groupby(_coding_rows(data), lambda row: row["round"])]
    nodes, contexts = _coding_nodes(rounds)
    calls: list[Call] = []
    for number in range(num_queries):
        start_s = 30.0 * number + draw.random()
        for place, rows in enumerate(rounds):
            ends_s = []
            for row in rows:
                own = row["user"][len(contexts[place]) :]
                context = f"{number} {contexts[place]}"
                prompt = (Segment(row["system"]), Segment(context, "context"), Segment(own))
                node = nodes[f"k{place}.{row['file']}"]
                record = QueryRecord(arrival_s=0.0)
                begin_s = start_s + 0.1 * draw.random()
                calls.append(
                    _call(f"q{number}", node, prompt, f"{number} {row['response']}", begin_s, record)
                )
                ends_s.append(calls[-1].end_s)
            start_s = max(ends_s)
    return sorted(calls, key=lambda call: call.start_s)


def _coding_rows(data: Path | None) -> Sequence[_Row]:
    if data is not None:
        path = data / "multi_agent_coding" / "metagpt_pytorch_calls.jsonl.gz"
        return [json.loads(line) for line in gzip.open(path, "rt", encoding="utf-8")]
    rows = [
        {"round": "0", "file": "", "system": "Help.", "user": filler("task", 180), "response": "a" * 2800}
    ]
    for number in range(1, 8):
        system = filler(("write", "review", "revise")[number > 1 and 2 - number % 2], 60)
        context = filler(f"round {number}", 3200)
        for file in range(8):
            answer = filler(f"answer {number}/{file}", 365)
            rows.append(
                {"round": str(number), "file": str(file), "system": system, "user": f"{context} {file}"}
                | {"response": answer}
            )
    return rows


def _coding_nodes(rounds: Sequence[Sequence[_Row]]) -> tuple[Mapping[str, Node], list[str]]:
    """Return the prefills of a graph with these calls, by name, and what the texts of each round share."""
    contexts = [_common_prefix([row["user"] for row in rows]) for rows in rounds]
    primitives: list[Primitive] = []
    written = ["task"]
    for place, rows in enumerate(rounds):
        answers = tuple(Arg(f"x{i}", Ref(name)) for i, name in enumerate(written))
        primitives.append(Primitive(f"context{place}", "call", answers, engine="tools"))
        written = []
        for row in rows:
            name = f"{place}.{row['file']}"
            parts = (Constant(row["system"]), Slot("context"), Constant(row["user"][len(contexts[place]) :]))
            context = (Arg("context", Ref(f"context{place}")),)
            primitives.append(Primitive(f"k{name}", "prefill", context, parts, engine="llm"))
            limit = (("max_tokens", 400),)
            primitives.append(
                Primitive(f"a{name}", "decode", (Arg("kv", Ref(f"k{name}")),), config=limit, engine="llm")
            )
            written.append(f"a{name}")
    outputs = tuple((name, Ref(name)) for name in written)
    graph = Graph("coding", (("task", "text"),), tuple(primitives), (), outputs)
    return {node.name: node for node in compile_graph(graph, {"llm": _PROFILE}).nodes}, contexts


def _common_prefix(texts: Sequence[str]) -> str:
    equal = takewhile(lambda chars: len(set(chars)) == 1, zip(*texts, strict=False))
    return "".join(chars[0] for chars in equal)


def agent_calls(num_sessions: int, rate_per_s: float, seed: int, data: Path | None) -> list[Call]:
    """Return the calls of some agents that think, call a tool and go on from its result, 6 to 16 times.

    Sessions begin at random times, with one of three instructions with examples; each prefers one tool.
    """
    draw = random.Random(f"agents/{seed}")
    node = compile_graph(parse_graph(_TURN), {"llm": _PROFILE}).nodes[0]
    examples = _examples(data)
    calls: list[Call] = []
    begin_s = 0.0
    for number in range(num_sessions):
        begin_s += draw.expovariate(rate_per_s)
        question = Segment(filler(f"question {number}", draw.randint(60, 300)), "question")
        prompt: Prompt = (Segment(draw.choice(examples)), question)
        calls += _session(draw, f"s{number}", node, prompt, begin_s)
    return sorted(calls, key=lambda call: call.start_s)


def _session(draw: random.Random, name: str, node: Node, prompt: Prompt, start_s: float) -> Iterator[Call]:
    favourite, num_turns = draw.choice(list(_TOOLS)), draw.randint(6, 16)
    for turn in range(num_turns):
        tool = favourite if draw.random() < 0.6 else draw.choice(list(_TOOLS))
        said = filler(f"{name}/{turn}", draw.randint(30, 120))
        answer = said if turn == num_turns - 1 else f"{tool}[{said}]"
        call = _call(name, node, prompt, answer, start_s, QueryRecord())
        yield call
        median_s, deviation = _TOOLS[tool]
        start_s = call.end_s + draw.lognormvariate(math.log(median_s), deviation)
        result = Segment(filler(f"{name}/{turn} result", draw.randint(40, 400)), "result")
        prompt = (*prompt, Segment(answer, "answer"), result)


def _examples(data: Path | None) -> list[str]:
    if data is None:
        return [filler(f"examples {number}", 900 + 200 * number) for number in range(3)]
    texts = json.loads((data / "agent_prompts" / "hotpotqa_fewshot.json").read_text("utf-8"))
    react = json.loads((data / "agent_prompts" / "alfworld_fewshot.json").read_text("utf-8"))
    return [texts["webthink_simple"], *(react[name] for name in ("react_put_0", "react_clean_0"))]


def _call(query: str, node: Node, prompt: Prompt, answer: str, start_s: float, record: QueryRecord) -> Call:
    request = StepRequest(query, node, "answer", 0, 1, {}, prompts=(prompt,), decode=Decode(), record=record)
    return Call(start_s, start_s + START_S + TOKEN_S * len(answer) / 4, request, prompt, answer)
