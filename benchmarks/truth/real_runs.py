"""Measures a real server: its capacity, its steps from outside, and runs at shares of the capacity.

The speed of a machine that others use too changes from one minute to the next. So steps are measured anew
before each run, and the means over all of them stand beside the means over all runs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import httpx

from benchmarks.common.mini_model import MINI
from benchmarks.common.plain_prompts import PLAIN_PROMPTS
from benchmarks.emulate.load import SentRequest, ask_all
from benchmarks.fleet.questions import Corpus, poisson_gaps_s
from benchmarks.registry import BenchmarkOptions
from benchmarks.truth.probe import Probed, ProbeSize, pooled, probe
from benchmarks.truth.times import Times, times_of
from stretto.emulate.llm_plan import load_tokens


@dataclass(frozen=True, slots=True)
class TruthSize:
    """Sizes of the benchmark.

    Attributes:
        num_requests: requests of a run at the whole capacity; a lower load has fewer in proportion, but at
            least half, so that runs last about equally long.
        shares: loads, as shares of the real server's capacity.
        num_real: runs of the real server at each load, each after a measurement of steps.
        tokens: shortest and longest answer.
        probe: sizes of the measurement of steps.
    """

    num_requests: int = 240
    shares: tuple[float, ...] = (0.3, 0.7, 1.0)
    num_real: int = 3
    tokens: tuple[int, int] = (16, 64)
    probe: ProbeSize = ProbeSize()


@dataclass(frozen=True, slots=True)
class Load:
    """What was measured of a real server at one load.

    Attributes:
        share: rate of arrivals, as a share of the server's capacity.
        probed: steps of the server, and the way of a request to its engine, measured before each run.
        requests: requests at given times.
        real: times of their answers in each run.
    """

    share: float
    probed: Probed
    requests: Sequence[SentRequest]
    real: Sequence[Times]


@dataclass(frozen=True, slots=True)
class RealRuns:
    """What was measured of a real server.

    Attributes:
        capacity_per_s: requests that the server answers a second when all come at once.
    """

    capacity_per_s: float
    loads: Sequence[Load]


def measure_real(size: TruthSize, url: str, corpus: Corpus, options: BenchmarkOptions) -> RealRuns:
    """Measure the real server at `url`, which nobody else uses.

    Raises:
        EngineFailure: it refused a request.
    """
    requests = _requests(size, url, corpus, options.seed)
    options.say("capacity of the real server")
    ask_all(requests[:4])  # the first requests of a server are slow
    empty_cache(url)
    all_at_once = ask_all(requests)
    capacity_per_s = len(requests) / max(one.begun_s + one.whole_s for one in all_at_once)
    return RealRuns(
        capacity_per_s,
        [_measure(size, share, capacity_per_s, requests, options) for share in size.shares],
    )


def _measure(
    size: TruthSize,
    share: float,
    capacity_per_s: float,
    requests: Sequence[SentRequest],
    options: BenchmarkOptions,
) -> Load:
    name, url = f"{100 * share:.0f} %", requests[0].url
    num = math.ceil(len(requests) * max(0.5, min(1.0, share)))
    gaps_s = poisson_gaps_s(num, share * capacity_per_s, f"truth/{share}/{options.seed}")
    timed = at_times(requests[:num], list(accumulate(gaps_s)), url)
    probed, real = [], []
    for number in range(size.num_real):
        options.say(f"{name}, real, steps {number + 1}")
        probed.append(probe(url, size.probe))
        options.say(f"{name}, real, run {number + 1}")
        real.append(run(timed))
    return Load(share, pooled(probed), timed, real)


def run(requests: Sequence[SentRequest]) -> Times:
    """Send requests of one server at their times, its cache empty. Raises EngineFailure if it refuses one."""
    empty_cache(requests[0].url)
    return times_of(ask_all(requests), [one.max_tokens for one in requests])


def at_times(requests: Sequence[SentRequest], at_s: Sequence[float], url: str) -> list[SentRequest]:
    """Return the same requests for another server or at other times."""
    return [
        SentRequest(one_s, url, one.prompt, one.max_tokens, one.is_streamed)
        for one_s, one in zip(at_s, requests, strict=True)
    ]


def empty_cache(url: str) -> None:
    """Evict all prefixes from a server's cache."""
    httpx.post(f"{url}/reset_prefix_cache", timeout=60.0).raise_for_status()


def _requests(size: TruthSize, url: str, corpus: Corpus, seed: int) -> list[SentRequest]:
    """Return requests, all at once, whose prompts are questions with a passage of their documents."""
    chance = random.Random(f"truth/{seed}")
    tokens, template = load_tokens(str(MINI)), PLAIN_PROMPTS["answer"]
    prompts = []
    for question, source in chance.sample(corpus.questions, size.num_requests):
        passage = chance.choice(corpus.documents[source].passages)
        prompts.append(tuple(tokens.encode(template.format(question=question, context=passage.text))))
    return [
        SentRequest(0.0, url, prompt, chance.randint(*size.tokens), is_streamed=True) for prompt in prompts
    ]
