"""`stretto bench truth`: an emulated server beside the real vLLM server that its costs were fitted to.

The steps of a vLLM server on this machine, with the small model on one thread, are measured from outside and
fitted. Then questions about XQuAD's paragraphs arrive at random, at shares of the real server's capacity: at
the real server, again at the real server, and at the emulated one. The requests are the same in all runs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate

import httpx

from benchmarks.common.vllm_server import MAX_RUNNING, NOT_INSTALLED, find_vllm
from benchmarks.common.vllm_server import serving as vllm_serving
from benchmarks.emulate.load import SentRequest, ask_all
from benchmarks.emulate.servers import DEVICE, SteadyCost, serving
from benchmarks.fleet.questions import Corpus, load_corpus, poisson_gaps_s
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value, versions
from benchmarks.truth.linear_cost import LinearCost, fit_linear
from benchmarks.truth.probe import ProbeSize, decode_steps, prompt_steps
from benchmarks.truth.times import STATISTICS, TIMES, Times, error, times_of
from stretto.costs.fit import MeasuredStep
from stretto.emulate.fleet import PlannedFleet, check_fleet
from stretto.emulate.llm_plan import PlannedLLM, load_tokens
from stretto.emulate.wanted import WantedFleet, WantedServer
from stretto.frontend.prompts import load_prompt
from stretto.models import MINI

STEPS = "steps of the real server, from outside, and the fitted cost"
ERRORS = "a real vLLM server and the emulated one"
_MOST = {"mean": 0.10, "p99": 0.20}
_OWN_STEP_S = 0.02
_BLOCK_TOKENS = 32
_MAX_CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class TruthSize:
    """Sizes of the benchmark.

    Attributes:
        num_requests: requests of one run.
        shares: loads, as shares of the real server's capacity.
        num_real: runs of the real server at each load.
        tokens: shortest and longest answer.
        probe: sizes of the measurement of steps.
    """

    num_requests: int = 300
    shares: tuple[float, ...] = (0.3, 0.7, 1.0)
    num_real: int = 2
    tokens: tuple[int, int] = (16, 64)
    probe: ProbeSize = ProbeSize()


QUICK = TruthSize(num_requests=80, shares=(0.7,))


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: about seven minutes, or two if `quick`.

    Raises:
        ConfigError: `options.vllm` has no vLLM, or there is no folder with XQuAD.
    """
    vllm = find_vllm(options.vllm)
    if vllm is None:
        return Report("truth", options.seed, {}, (), (), (NOT_INSTALLED,))
    size = QUICK if options.quick else TruthSize()
    corpus = load_corpus(options.data)
    with vllm_serving(vllm, MINI, dtype="float32", num_threads=1, say=options.say) as url:
        report = measure(size, url, corpus, options)
    return replace(report, versions={**versions(), "vllm": vllm.version})


def measure(size: TruthSize, url: str, corpus: Corpus, options: BenchmarkOptions) -> Report:
    """Fit an emulated server to the real one at `url`, and compare the two."""
    options.say("steps of the real server")
    own_s = _own_s(size.probe)
    steps = [replace(one, seconds=max(1e-4, one.seconds - own_s)) for one in prompt_steps(url, size.probe)]
    steps += decode_steps(url, size.probe)
    cost = fit_linear(steps)
    prompts, lengths = _requests(size, corpus, options.seed)
    options.say("capacity of the real server")
    _empty_cache(url)
    all_at_once = ask_all(_sent(url, prompts, lengths, [0.0] * len(prompts)))
    capacity_per_s = len(prompts) / max(one.begun_s + one.whole_s for one in all_at_once)
    rows = _step_rows(steps, cost)
    goals: list[Goal] = []
    for share in size.shares:
        gaps_s = poisson_gaps_s(len(prompts), share * capacity_per_s, f"truth/{share}/{options.seed}")
        at_s = list(accumulate(gaps_s))
        real = []
        for number in range(size.num_real):
            options.say(f"{100 * share:.0f} %, real, run {number + 1}")
            _empty_cache(url)
            real.append(_run(url, prompts, lengths, at_s))
        options.say(f"{100 * share:.0f} %, emulated")
        with serving(one_server(cost)) as servers:
            ask_all(_sent(servers.urls[0], prompts[:4], lengths[:4], [0.0] * 4))
            _empty_cache(servers.urls[0])
            emulated = _run(servers.urls[0], prompts, lengths, at_s)
            spent = servers.spent()
        found = list(_compared(f"{100 * share:.0f} %", real, emulated))
        rows += [row for row, _ in found]
        rows.append(
            Row(
                "the emulated server's own lateness",
                f"{100 * share:.0f} %",
                {"late_share_of_waiting": spent.late_s / spent.waited_s, "slipped_s": spent.slipped_s},
            )
        )
        goals += [goal for _, goal in found]
    notes = (
        f"capacity of the real server, all requests at once: {capacity_per_s:.1f} requests/s;"
        f" {MAX_RUNNING} sequences at once, prefix caching, one thread, float32, not compiled",
        f"{1000 * own_s:.1f} ms of each measured first token are the client's and HTTP's, which the emulated"
        " server has too: they are not part of the fitted steps",
        "a goal is met where the error is at most 10 % of the mean or 20 % at p99, or within the spread of"
        " the real server's runs, whichever is larger",
        "client and server share the cores of this machine",
    )
    config = {**asdict(size), "cost": asdict(cost), "capacity_per_s": capacity_per_s}
    return Report("truth", options.seed, config, tuple(rows), tuple(goals), notes)


def _compared(name: str, real: Sequence[Times], emulated: Times) -> Iterator[tuple[Row, Goal]]:
    for what in TIMES:
        for statistic in STATISTICS:
            found = error(real, emulated, what, statistic)
            values: dict[str, Value] = {
                "real_ms": 1000 * found.real_s,
                "emulated_ms": 1000 * found.emulated_s,
                "error_percent": 100 * found.share,
                "spread_percent": 100 * found.spread,
            }
            label = f"{name}, {what}, {statistic}"
            most = max(_MOST[statistic], found.spread)
            goal = Goal(f"error of {label}, %", 100 * abs(found.share), 100 * most, "lower")
            yield Row(ERRORS, label, values), goal


def _run(
    url: str, prompts: Sequence[tuple[int, ...]], lengths: Sequence[int], at_s: Sequence[float]
) -> Times:
    """Send all requests at their times. Raises EngineFailure if one was refused."""
    answered = ask_all(_sent(url, prompts, lengths, at_s))
    return times_of(answered, lengths)


def _sent(
    url: str, prompts: Sequence[tuple[int, ...]], lengths: Sequence[int], at_s: Sequence[float]
) -> list[SentRequest]:
    return [
        SentRequest(one_s, url, prompt, length, is_streamed=True)
        for one_s, prompt, length in zip(at_s, prompts, lengths, strict=True)
    ]


def _requests(size: TruthSize, corpus: Corpus, seed: int) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return prompts as token ids, each a question with a passage of its document, and lengths of answers."""
    chance = random.Random(f"truth/{seed}")
    tokens, template = load_tokens(str(MINI)), load_prompt("answer")
    prompts = []
    for question, source in chance.sample(corpus.questions, size.num_requests):
        passage = chance.choice(corpus.documents[source].passages)
        prompts.append(tuple(tokens.encode(template.format(question=question, context=passage.text))))
    return prompts, [chance.randint(*size.tokens) for _ in prompts]


def _own_s(size: ProbeSize) -> float:
    """Return the seconds that a client sees in addition to the steps of an emulated server."""
    with serving(one_server(SteadyCost(_OWN_STEP_S))) as servers:
        return min(one.seconds for one in prompt_steps(servers.urls[0], size)) - _OWN_STEP_S


def one_server(cost: LinearCost | SteadyCost) -> PlannedFleet:
    """Return one server with the sizes and limits of the real one, and a given cost of its steps."""
    wanted = WantedServer(
        devices=(0,),
        model=str(MINI),
        port=0,
        loading_s=0.0,
        max_sequences=MAX_RUNNING,
        block_tokens=_BLOCK_TOKENS,
        max_context_tokens=_MAX_CONTEXT,
        tokenizer=str(MINI),
    )
    planned = check_fleet(WantedFleet((DEVICE,), (wanted,)))
    (server,) = planned.servers
    assert isinstance(server.service, PlannedLLM)
    service = replace(server.service, simulated=replace(server.service.simulated, cost=cost))
    return replace(planned, servers=(replace(server, service=service),))


def _empty_cache(url: str) -> None:
    httpx.post(f"{url}/reset_prefix_cache", timeout=60.0).raise_for_status()


def _step_rows(steps: Sequence[MeasuredStep], cost: LinearCost) -> list[Row]:
    rows = []
    for step in steps:
        shape = step.shape
        name = (
            f"a prompt of {shape.prefill_tokens} tokens"
            if shape.num_prefills
            else f"{shape.num_decodes} answers, {shape.max_context_tokens} tokens each"
        )
        values: dict[str, Value] = {
            "measured_ms": 1000 * step.seconds,
            "fitted_ms": 1000 * cost.step_s(shape),
        }
        rows.append(Row(STEPS, name, values))
    return rows
