"""Programs in real time before two engines in the process of the service: the small model that ships.

Clients are 250 ms away. Ours sends each workflow over HTTP, as one program on semantic variables. By hand,
each call is a request of its own, sent when the answers that it reads are there; it takes one trip and, in
our disfavour, no HTTP. Each run has engines that have seen nothing.

    mean_s, p90_s  seconds from the start of a workflow until its client has all results
    prompt         tokens of all prompts that the engines got, those that they prefilled ahead included
    cached         those that they found in their caches
    filled         the others, which they computed

Times are those of all runs, tokens those of the first one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from urllib.parse import urlsplit

import uvloop

from benchmarks.common.mini_model import MINI
from benchmarks.parrot.distance import distant
from benchmarks.parrot.real_clients import (
    Ended,
    Texts,
    arguments_of,
    function_of,
    run_as_program,
    start_all,
)
from benchmarks.parrot.workflows import Arrival, Call, Output, Workflow
from benchmarks.parrot.workloads import chain, map_reduce
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Row
from stretto.engines.catalogue import transforms_engine
from stretto.engines.llms import llm_engine
from stretto.model.tasks import Done
from stretto.programs import Client
from stretto.runtime.runtime import Runtime
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Event
from stretto.sched.observer import Observer
from stretto.service.config import ServiceConfig
from stretto.service.service import Service
from stretto.sim.synthetic_output import filler
from stretto.trace.summary import quantile

TABLE = "programs before two engines in process, clients 250 ms away"
OURS, BY_HAND = "service", "by hand"
TRIP_S = 0.25
_NUM_INSTANCES, _NUM_CALLS = 2, 10
_MOST_FILLED = 5000 / 4440
"""Largest number of times that a text which ten calls share may be filled."""


@dataclass(frozen=True, slots=True)
class InProcessSize:
    """Sizes of the workflows.

    Attributes:
        text_tokens: length of the text that ten calls share, and of documents, in units of four characters.
        num_output: length of answers in tokens.
        num_runs: number of runs of each workflow and program, by turns.
    """

    text_tokens: int = 800
    num_output: int = 30
    num_runs: int = 3


@dataclass(slots=True)
class _Tokens(Observer):
    """The prompt tokens of all requests that have ended, and those of them that were cached."""

    prompt: int = 0
    cached: int = 0

    def on_event(self, event: Event, now_s: float) -> None:
        match event:
            case LLMReport(event=Done(usage=usage)):
                self.prompt += usage.num_prompt_tokens
                self.cached += usage.num_cached_tokens


@dataclass(frozen=True, slots=True)
class _Ran:
    ended: list[Ended]
    tokens: _Tokens


def measure_in_process(size: InProcessSize, options: BenchmarkOptions) -> tuple[list[Row], list[Goal]]:
    """Return a table, and what ours must reach."""
    rows, goals, num_differing = list[Row](), list[Goal](), 0
    for name, arrivals in _loads(size).items():
        ran: dict[str, _Ran] = {}
        for contestant in (BY_HAND, OURS) * size.num_runs:
            options.say(f"in process: {name}, {contestant}")
            one = _run(contestant, arrivals)
            ran.setdefault(contestant, _Ran([], one.tokens)).ended.extend(one.ended)
        rows += [_row(f"{name}, {contestant}", found) for contestant, found in ran.items()]
        ours, by_hand = ran[OURS], ran[BY_HAND]
        num_differing += sum(
            mine.texts != theirs.texts for mine, theirs in zip(ours.ended, by_hand.ended, strict=True)
        )
        goals.append(
            Goal(f"mean, service over by hand, {name}", _mean_s(ours) / _mean_s(by_hand), 1.0, "lower")
        )
        if name.startswith("one text"):
            times = (ours.tokens.prompt - ours.tokens.cached) / (by_hand.tokens.prompt / _NUM_CALLS)
            goals.append(Goal(f"times filled, {name}", times, _MOST_FILLED, "lower"))
    goals.append(Goal("workflows in process with other texts", num_differing, 0, "lower"))
    return rows, goals


def _loads(size: InProcessSize) -> dict[str, list[Arrival]]:
    text = filler("a long text", size.text_tokens)
    calls = [
        Call(f"answer{number}", (text, filler(f"question {number}", 10)), size.num_output, 1)
        for number in range(_NUM_CALLS)
    ]
    readers = [
        Call(f"read{number}", (Output("write"), filler(f"task {number}", 20)), size.num_output)
        for number in range(8)
    ]
    writer = Call("write", (filler("write", 100),), 4 * size.num_output)
    chunk_tokens = max(1, size.text_tokens // 4)
    return {
        "one text in ten sessions": [Arrival(0.0, Workflow("one call", (call,))) for call in calls],
        "one text in one session": [Arrival(0.0, Workflow("ten calls", tuple(calls)))],
        "one answer, eight readers": [Arrival(0.0, Workflow("readers", (writer, *readers)))],
        "chain": [Arrival(0.0, chain("document", size.text_tokens, chunk_tokens, size.num_output))],
        "map-reduce": [Arrival(0.0, map_reduce("document", size.text_tokens, chunk_tokens, size.num_output))],
    }


def _run(contestant: str, arrivals: Sequence[Arrival]) -> _Ran:
    llm, tokens = llm_engine(str(MINI), instances=_NUM_INSTANCES), _Tokens()
    llm = replace(llm, engine=replace(llm.engine, placement="stretto"))
    with Runtime([llm, transforms_engine()], observers=[tokens]) as runtime:
        if contestant == BY_HAND:
            return _Ran(uvloop.run(start_all(arrivals, partial(_run_by_hand, runtime))), tokens)
        service = Service(runtime, ServiceConfig(port=0))
        runtime.run_on_loop(service.__aenter__)
        try:
            port = urlsplit(service.url).port
            assert port is not None
            return _Ran(uvloop.run(_as_programs(port, arrivals)), tokens)
        finally:
            runtime.run_on_loop(lambda: service.__aexit__(None, None, None))


async def _as_programs(port: int, arrivals: Sequence[Arrival]) -> list[Ended]:
    async with distant(port, TRIP_S) as near:
        return await start_all(arrivals, partial(run_as_program, f"http://127.0.0.1:{near}"))


async def _run_by_hand(runtime: Runtime, workflow: Workflow) -> Ended:
    """Run a workflow whose calls are sessions of their own. Its prompts have the same segments as ours, for
    each is tokenised by itself.
    """
    begin_s = asyncio.get_running_loop().time()
    tasks: dict[str, asyncio.Task[str]] = {}

    async def answer(call: Call) -> str:
        answers = {source: await tasks[source] for source in call.sources}
        await asyncio.sleep(TRIP_S / 2)
        found = await asyncio.to_thread(_answered, runtime, call, answers)
        await asyncio.sleep(TRIP_S / 2)
        return found

    async with asyncio.TaskGroup() as group:
        for call in workflow.calls:
            tasks[call.name] = group.create_task(answer(call))
    texts = {name: tasks[name].result() for name in workflow.results}
    return Ended(asyncio.get_running_loop().time() - begin_s, texts)


def _answered(runtime: Runtime, call: Call, answers: Texts) -> str:
    with Client(runtime, objective="latency"):
        found: str = function_of(call)(*arguments_of(call, answers)).get("latency")
        return found


def _mean_s(ran: _Ran) -> float:
    return fmean(one.latency_s for one in ran.ended)


def _row(name: str, ran: _Ran) -> Row:
    values = {
        "workflows": len(ran.ended),
        "mean_s": _mean_s(ran),
        "p90_s": quantile([one.latency_s for one in ran.ended], 0.9),
        "prompt": ran.tokens.prompt,
        "cached": ran.tokens.cached,
        "filled": ran.tokens.prompt - ran.tokens.cached,
    }
    return Row(TABLE, name, values)
