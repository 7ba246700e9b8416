"""`stretto bench router --fleet`: which router makes the best of a fleet's prefix caches?

Eight emulated servers stand behind one router after the other, each with the costs of a model of 13 billion
parameters on one GPU, and with a cache that holds a part of what the prompts share. Each router gets the same
requests at the same times: prompts like those of Preble's ToolBench, whose groups have a popularity by Zipf's
law. At each rate the routers start anew and the caches are empty.

    hits              share of the prompts' tokens that servers found in their caches, as they report it
    predicted         the same, as the router expected it when it sent the requests
    requests, tokens  the busiest server's part, as a multiple of the mean: of requests, of computed tokens
    lag               lateness of the emulated servers, as a share of the time waited: above 0.02 this machine
                      is too slow, and times are too long

What a router predicts of hits is read from its metrics; others' do not tell. Emulated servers answer a prompt
with the same text wherever it runs, so that a text that differs was damaged on its way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from urllib.request import Request, urlopen

import numpy as np

from benchmarks.emulate.servers import DEVICE, Measured, serving
from benchmarks.placement.workloads import BLOCK_TOKENS, BlockIds, make_requests
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value
from benchmarks.router.contestants import OTHERS_MISSING, Contestant, Running, contestants, running
from benchmarks.router.open_load import Asked, Streamed, ask_all
from stretto.emulate.fleet import PlannedFleet, check_fleet
from stretto.emulate.wanted import WantedFleet, WantedServer
from stretto.trace.summary import quantile
from stretto.wire.engine_metrics import VLLM_CACHE_HITS, VLLM_OUTPUT_TOKENS, VLLM_PROMPT_TOKENS
from stretto.wire.metric_table import PREDICTED
from stretto.wire.metrics import read_samples

ENDLESS = "one cache without an end"
MODEL = "Llama-2-13b-hf"
ZIPF = 1.1
MAX_PREDICTION_ERROR = 0.02
_MAX_TOKENS = 4096
"""Tokens of a prompt and its answer that the model takes; longer ones of the workload are left out."""
_FINISHED = "vllm:request_success_total"
_COUNTED = (_FINISHED, VLLM_PROMPT_TOKENS.name, VLLM_CACHE_HITS.name, VLLM_OUTPUT_TOKENS.name)


@dataclass(frozen=True, slots=True)
class FleetSize:
    """Sizes of the comparison.

    Attributes:
        rates_per_s: requests per second, of which each is kept up for `seconds`.
        memory_share: share of a device's memory that a server takes; what the model leaves is its cache.
        workload_requests: number of requests of the workload, from which the runs take theirs; it fixes how
            many groups there are.
    """

    servers: int = 8
    rates_per_s: tuple[float, ...] = (20.0, 35.0, 50.0)
    seconds: float = 24.0
    memory_share: float = 0.65
    workload_requests: int = 4000


QUICK_FLEET = FleetSize(seconds=4.0, workload_requests=1000)


def table_at(rate_per_s: float) -> str:
    """Return the name of the table of one rate."""
    return f"a fleet of emulated servers behind each router, {rate_per_s:g} requests/s"


def measure_fleet(size: FleetSize, options: BenchmarkOptions) -> Report:
    """Measure as much as `size` says, at one rate after the other."""
    entrants, rows, bench = contestants(), [], _Bench(size, options)
    with serving(_planned(size)) as servers:
        for number, rate_per_s in enumerate(size.rates_per_s):
            asked = bench.asked(number)
            values = {}
            for entrant in entrants:
                options.say(f"{entrant.name}: {rate_per_s:g} requests/s for {size.seconds:g} s")
                values[entrant.name] = bench.run(servers, entrant, asked)
            rows += [Row(table_at(rate_per_s), name, one) for name, one in values.items()]
            rows.append(Row(table_at(rate_per_s), ENDLESS, {"hits": _possible_hits(asked)}, "computed"))
    errors = [
        abs(float(predicted) / float(hits) - 1.0)
        for row in rows
        if (predicted := row.values.get("predicted")) and (hits := row.values["hits"])
    ]
    goals = (
        Goal("answers with another text", bench.num_damaged, 0, "lower"),
        Goal("ours: hits predicted, relative error", max(errors, default=1.0), MAX_PREDICTION_ERROR, "lower"),
        *_goals_of_hits(rows, size),
    )
    notes = () if len(entrants) > sum(_is_ours(one.name) for one in entrants) else (OTHERS_MISSING,)
    return Report("router", options.seed, asdict(size), tuple(rows), goals, notes)


class _Bench:
    def __init__(self, size: FleetSize, options: BenchmarkOptions) -> None:
        self._size = size
        self._seed = options.seed
        made = make_requests("toolbench", size.workload_requests, options.seed, options.data, zipf=ZIPF)
        self._workload = [one for one in made if one.num_tokens + one.output_tokens <= _MAX_TOKENS]
        self._texts: dict[tuple[str, int], str] = {}
        self.num_damaged = 0

    def asked(self, number: int) -> list[Asked]:
        """Return the requests of the run with a number: other ones at each rate, with Poisson arrivals."""
        draw = np.random.Generator(np.random.PCG64([self._seed, number]))
        rate_per_s = self._size.rates_per_s[number]
        num = round(rate_per_s * self._size.seconds)
        at_s = np.cumsum(draw.exponential(1 / rate_per_s, num))
        chosen = draw.permutation(len(self._workload))[:num]
        found = []
        for time_s, place in zip(at_s, chosen, strict=False):
            one = self._workload[place]
            found.append(Asked(float(time_s), one.text.decode("utf-8", "replace"), one.output_tokens))
        return found

    def run(self, servers: Measured, entrant: Contestant, asked: Sequence[Asked]) -> dict[str, Value]:
        """Send requests through a router to servers with empty caches."""
        for url in servers.urls:
            with urlopen(Request(f"{url}/reset_prefix_cache", method="POST"), timeout=30):
                pass
        before, spent = [_counts(url) for url in servers.urls], servers.spent()
        with running([entrant], [int(url.rsplit(":", 1)[1]) for url in servers.urls]) as (router,):
            begun_s = router.cpu_s()
            streamed = ask_all(router.port, MODEL, asked)
            router_s, predicted = router.cpu_s() - begun_s, _predicted(router)
        after, spent_now = [_counts(url) for url in servers.urls], servers.spent()
        loads = [
            {name: new[name] - old[name] for name in _COUNTED} for new, old in zip(after, before, strict=True)
        ]
        self._compare_texts(asked, streamed)
        prompt_tokens = sum(one.num_prompt for one in streamed)
        waited_s = spent_now.waited_s - spent.waited_s
        late_s = spent_now.late_s - spent.late_s
        first_s = [one.first_s for one in streamed]
        return {
            "hits": sum(one.num_cached for one in streamed) / prompt_tokens,
            "predicted": None if predicted is None else predicted / prompt_tokens,
            "first_token_p50_ms": 1000 * quantile(first_s, 0.5),
            "first_token_p99_ms": 1000 * quantile(first_s, 0.99),
            "whole_p99_ms": 1000 * quantile([one.whole_s for one in streamed], 0.99),
            "requests_max_per_mean": _max_per_mean([one[_FINISHED] for one in loads]),
            "tokens_max_per_mean": _max_per_mean([_computed(one) for one in loads]),
            "router_cpu_ms": 1000 * router_s / len(asked),
            "lag": late_s / waited_s if waited_s else 0.0,
        }

    def _compare_texts(self, asked: Sequence[Asked], streamed: Sequence[Streamed]) -> None:
        for one, answer in zip(asked, streamed, strict=True):
            first = self._texts.setdefault((one.prompt, one.output_tokens), answer.text)
            self.num_damaged += answer.text != first


def _planned(size: FleetSize) -> PlannedFleet:
    servers = tuple(
        WantedServer(devices=(n,), model=MODEL, port=0, loading_s=0.0, memory_share=size.memory_share)
        for n in range(size.servers)
    )
    return check_fleet(WantedFleet((DEVICE,) * size.servers, servers))


def _counts(url: str) -> dict[str, float]:
    with urlopen(f"{url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    counts = dict.fromkeys(_COUNTED, 0.0)
    for sample in read_samples(text, _COUNTED):
        counts[sample.name] += sample.value
    return counts


def _predicted(router: Running) -> float | None:
    """Return how many cached tokens our router has predicted; None of another one, or if it reads no keys."""
    if not _is_ours(router.name):
        return None
    with urlopen(f"http://127.0.0.1:{router.port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return sum(sample.value for sample in read_samples(text, (PREDICTED.name,))) or None


def _possible_hits(asked: Sequence[Asked]) -> float:
    """Return the share of tokens that a cache of all requests that never evicts would have found."""
    ids = BlockIds()
    seen: set[int] = set()
    found = total = 0
    for one in asked:
        data = one.prompt.encode()
        blocks = ids.of(data)
        total += len(data) // 4
        found += BLOCK_TOKENS * sum(block in seen for block in blocks)
        seen.update(blocks)
    return found / total


def _computed(counts: Mapping[str, float]) -> float:
    return counts[VLLM_PROMPT_TOKENS.name] - counts[VLLM_CACHE_HITS.name] + counts[VLLM_OUTPUT_TOKENS.name]


def _max_per_mean(values: Sequence[float]) -> float:
    return max(values) / (sum(values) / len(values))


def _is_ours(name: str) -> bool:
    return name.startswith("ours")


def _goals_of_hits(rows: Sequence[Row], size: FleetSize) -> list[Goal]:
    """Return the goals that our best router is to reach: as good as the best of the others at each rate."""
    goals = []
    for rate_per_s in size.rates_per_s:
        at_rate = [row for row in rows if row.table == table_at(rate_per_s)]
        ours = [row.values for row in at_rate if row.name == "ours, stretto"]
        others = [row.values for row in at_rate if row.origin == "measured" and not _is_ours(row.name)]
        if not ours or not others:
            continue
        hits, first_ms = "hits", "first_token_p99_ms"
        best_hits, best_ms = max(_numbers(others, hits)), min(_numbers(others, first_ms))
        at = f"{rate_per_s:g} requests/s"
        goals += [
            Goal(f"ours, stretto: hits at {at}", max(_numbers(ours, hits)), best_hits, "higher"),
            Goal(
                f"ours, stretto: p99 of first token (ms), {at}",
                min(_numbers(ours, first_ms)),
                best_ms,
                "lower",
            ),
        ]
    return goals


def _numbers(rows: Sequence[Mapping[str, Value]], name: str) -> list[float]:
    return [float(row[name] or 0.0) for row in rows]
