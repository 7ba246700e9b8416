"""Workloads for the simulator: when requests arrive, how long they are, and which prefixes they share.

Everything random comes from a seed. Lengths are those of a trace, or drawn from it.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import accumulate

from stretto.graph.compile import ExecutionGraph, compile_graph
from stretto.graph.text import parse_graph
from stretto.sched.messages import Submit
from stretto.sim.synthetic_output import filler
from stretto.sim.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest

_BURST_S = 2.0
_BURSTS_SHARE = 0.2


def poisson(rate_per_s: float, seed: int) -> Iterator[float]:
    """Yield the arrival times of a Poisson process, in seconds, with a mean of `rate_per_s` arrivals a
    second, without end.
    """
    draw = random.Random(f"poisson/{seed}")
    at_s = 0.0
    while True:
        at_s += draw.expovariate(rate_per_s)
        yield at_s


def bursts(rate_per_s: float, seed: int) -> Iterator[float]:
    """Yield arrival times in seconds, at a mean rate of `rate_per_s`, all of them within bursts that take up
    a fifth of the time, without end.

    Bursts last 2 s on average, and the pauses 8 s; within a burst arrivals are Poisson.
    """
    draw = random.Random(f"bursts/{seed}")
    start_s = 0.0
    while True:
        end_s = start_s + draw.expovariate(1 / _BURST_S)
        at_s = start_s + draw.expovariate(rate_per_s / _BURSTS_SHARE)
        while at_s < end_s:
            yield at_s
            at_s += draw.expovariate(rate_per_s / _BURSTS_SHARE)
        start_s = end_s + draw.expovariate(_BURSTS_SHARE / (_BURST_S * (1 - _BURSTS_SHARE)))


def zipf(num: int, exponent: float, seed: int) -> Iterator[int]:
    """Yield random numbers from 0 to `num` - 1 of a Zipf distribution, without end: number k has a weight of
    1 / (k + 1) ** `exponent`.
    """
    draw = random.Random(f"zipf/{seed}")
    ends = list(accumulate((k + 1) ** -exponent for k in range(num)))
    while True:
        yield min(bisect_left(ends, draw.random() * ends[-1]), num - 1)


def lognormal_lengths(num: int, seed: int) -> list[tuple[int, int]]:
    """Return `num` random pairs (prompt tokens, output tokens), distributed like those in Azure's trace of
    conversations, which is not needed for it.

    Prompts have a median of 1020 tokens and a mean of 1155, outputs 129 and 211; at most 4096 and 1000.
    """
    draw = random.Random(f"lognormal/{seed}")
    return [
        (
            min(4096, max(2, round(draw.lognormvariate(6.93, 0.62)))),
            min(1000, max(1, round(draw.lognormvariate(4.92, 0.93)))),
        )
        for _ in range(num)
    ]


def prompt_text(name: str, request: TraceRequest) -> str:
    """Return a meaningless text of as many tokens as a trace request's prompt has; requests that share blocks
    of the prompt share text.
    """
    if not request.blocks:
        return filler(name, request.prompt_tokens)
    text = "".join(map(_block_text, request.blocks))
    return text[: 4 * request.prompt_tokens - 1]


@lru_cache(maxsize=4096)
def _block_text(block: int) -> str:
    """Return the text of a block of a prompt, which may be part of many requests."""
    return filler(f"block {block}", MOONCAKE_BLOCK_TOKENS) + "|"


def request_graph(max_tokens: int, engine: str = "llm") -> ExecutionGraph:
    """Return the smallest app as a compiled graph: one prompt, completed by the LLM with at most `max_tokens`
    tokens.
    """
    text = (
        f"graph request(%prompt: text)\n%kv = prefill([%prompt]) : kv @{engine}\n"
        f"%text = decode(%kv) {{max_tokens={max_tokens}}} : text @{engine}\nreturn %text"
    )
    return compile_graph(parse_graph(text), {})


def submits(
    requests: Iterable[TraceRequest],
    egraph: ExecutionGraph,
    note_length: Callable[[str, int], None],
) -> Iterator[tuple[float, Submit]]:
    """Yield queries for the simulator: for each LLM request of a trace an (arrival in seconds, `Submit`) pair
    of a query that runs `egraph`.

    Args:
        note_length: function that is called with each query's name and output length, in tokens.
    """
    for number, request in enumerate(requests):
        query = f"r{number}"
        note_length(query, request.output_tokens)
        yield request.arrival_s, Submit(query, egraph, {"prompt": prompt_text(query, request)})
