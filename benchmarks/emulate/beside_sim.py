"""The same app in virtual time and on emulated servers: how far their mean latencies are apart."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import httpx
import uvloop

from benchmarks.common.arrivals import poisson
from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from benchmarks.common.simulated_answers import as_max_tokens
from benchmarks.emulate.servers import MODEL
from stretto.emulate.fleet import PlannedFleet
from stretto.emulate.llm_plan import PlannedLLM
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.text import parse_graph
from stretto.model.deployment import Deployment
from stretto.model.replica import Engine, Replica
from stretto.runtime.runtime import Runtime
from stretto.sim.driver import VirtualDriver
from stretto.sim.simulated_model import SimulatedModel
from stretto.sim.synthetic_output import filler, filler_output
from stretto.wire.engine_metrics import VLLM_REQUEST_S
from stretto.wire.metrics import read_samples

_MAP_REDUCE = """graph summary(%texts: list[text], %question: text)
%reading = prefill([c"Summarise: ", each %texts]) : list[kv] @llm
%parts = decode(each %reading) {max_tokens=40} : list[text] @llm
%merging = prefill([c"Answer the question from these summaries. ", %question, %parts]) : kv @llm
%answer = decode(%merging) {max_tokens=80} : text @llm
return %answer"""
NUM_TEXTS = 4
NUM_LEVELS = 2
"""Number of LLM requests of a query that follow each other."""
_TEXT_TOKENS = 300


def app() -> ExecutionGraph:
    """Return a map-reduce summary: four texts are summarised at once, then the summaries."""
    return compile_graph(parse_graph(_MAP_REDUCE), {})


def inputs(number: int) -> dict[str, object]:
    """Return the inputs of query `number`."""
    texts = [filler(f"text {number}/{i}", _TEXT_TOKENS) for i in range(NUM_TEXTS)]
    return {"texts": texts, "question": filler(f"question {number}", 20)}


def arrivals_s(num_queries: int, rate_per_s: float, seed: int) -> list[float]:
    """Return Poisson arrivals of queries, in seconds."""
    return list(islice(poisson(rate_per_s, seed), num_queries))


def simulated_s(planned: PlannedFleet, arrivals: Sequence[float]) -> tuple[list[float], float]:
    """Return the latency of each query in virtual time, and the mean one of an LLM request, in seconds."""
    replicas = [Replica(FakeLLM, FakeLLMConfig(), num_slots=_slots(planned)) for _ in planned.servers]
    driver = VirtualDriver([Deployment(_engine(planned), tuple(replicas))], models={"llm": _model(planned)})
    graph = app()
    for number, at_s in enumerate(arrivals):
        driver.submit(f"q{number}", graph, inputs(number), at_s=at_s)
    driver.run()
    spans = [driver.recorder.queries[f"q{number}"] for number in range(len(arrivals))]
    requests_s = [
        span.end_s - (span.start_s if span.queued_s is None else span.queued_s)
        for span in driver.recorder.spans
        if span.end_s is not None
    ]
    latencies_s = [span.end_s - span.start_s for span in spans if span.end_s is not None]
    return latencies_s, statistics.fmean(requests_s)


@dataclass(frozen=True, slots=True)
class Served:
    """What came of queries in our runtime on emulated servers.

    Attributes:
        latencies_s: seconds of each query.
        request_s: mean seconds of an LLM request within the servers.
        cpu_s: seconds of processor time of our process, the client's.
    """

    latencies_s: list[float]
    request_s: float
    cpu_s: float


def served(
    planned: PlannedFleet, urls: Sequence[str], arrivals: Sequence[float], begun: Callable[[], None]
) -> Served:
    """Run all queries in our runtime on emulated servers. `begun` is called before the first of them."""
    return uvloop.run(_serve(planned, urls, arrivals, begun))


def _requests(urls: Sequence[str]) -> tuple[float, float]:
    """Return the seconds of all LLM requests that the servers have ended, and their number."""
    texts = [httpx.get(f"{url}/metrics").text for url in urls]
    seconds, number = (
        sum(
            sample.value for text in texts for sample in read_samples(text, [f"{VLLM_REQUEST_S.name}_{what}"])
        )
        for what in ("sum", "count")
    )
    return seconds, number


async def _serve(
    planned: PlannedFleet, urls: Sequence[str], arrivals: Sequence[float], begun: Callable[[], None]
) -> Served:
    replicas = [
        Replica(
            OpenAIServer,
            OpenAIServerConfig(
                url, api="completions", tokenizer="none", warms_prefixes=False, max_connections=256
            ),
            runs_in="loop",
            num_slots=_slots(planned),
        )
        for url in urls
    ]
    graph = app()
    async with Runtime([Deployment(_engine(planned), tuple(replicas))]) as runtime:
        await runtime.run(graph, inputs(-1))  # connections and plans
        seconds_before, number_before = _requests(urls)
        begun()
        cpu_before_s = time.process_time()
        begin_s = time.monotonic() + 0.1

        async def one(number: int, at_s: float) -> float:
            await asyncio.sleep(begin_s + at_s - time.monotonic())
            start_s = time.monotonic()
            await runtime.run(graph, inputs(number))
            return time.monotonic() - start_s

        latencies_s = await asyncio.gather(*(one(number, at_s) for number, at_s in enumerate(arrivals)))
        cpu_s = time.process_time() - cpu_before_s
        seconds, number = _requests(urls)
        return Served(latencies_s, (seconds - seconds_before) / (number - number_before), cpu_s)


def _engine(planned: PlannedFleet) -> Engine:
    model = _model(planned).scheduler
    return Engine("llm", contract="llm", max_batch=model.num_blocks * model.block_tokens, max_running=256)


def _slots(planned: PlannedFleet) -> int:
    return _model(planned).scheduler.max_running


def _model(planned: PlannedFleet) -> SimulatedModel:
    service = planned.servers[0].service
    assert isinstance(service, PlannedLLM)
    assert service.sizes.name == MODEL
    simulated = service.simulated
    return SimulatedModel(
        simulated.scheduler, simulated.cost, filler_output(as_max_tokens), keeps_released=True
    )
