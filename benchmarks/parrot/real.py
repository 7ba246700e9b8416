"""`stretto bench parrot --fleet`: the same programs in real time, before four emulated servers.

The clients are 250 ms away from the service, there and back: each request and each answer takes 125 ms. Ours
sends each workflow as one program on semantic variables to `stretto serve`. The other is written by hand with
the `openai` client and sends each call by itself to `stretto route`, which places it by prefixes. The servers
cache prefixes; each run gets servers, and a service or a router, that have seen one short request and nothing
else.

    mean_s, p90_s  seconds from the start of a workflow until its client has all results
    prompt         tokens of all prompts that the servers got
    cached         those that the servers found in their caches, as they report it
    filled         the others, which they computed
    lag            lateness of the emulated servers, as a share of the time waited: above 0.02 this machine is
                   too slow, and times are too long
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from statistics import fmean
from typing import Any, TypeAlias

import uvloop

from benchmarks.emulate.servers import Measured, serving
from benchmarks.fleet.cells import CellKey, Cells
from benchmarks.parrot.distance import distant
from benchmarks.parrot.real_clients import (
    Complete,
    Ended,
    openai_completions,
    run_as_program,
    run_by_hand,
    start_all,
)
from benchmarks.parrot.real_servers import (
    DEVICE,
    MODEL,
    Front,
    front,
    planned_servers,
    prompt_and_cached_tokens,
)
from benchmarks.parrot.runs import DEFAULT_CELLS
from benchmarks.parrot.workflows import Arrival, Call, Workflow
from benchmarks.parrot.workloads import make_load
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value
from stretto.trace.summary import quantile

Completions: TypeAlias = Callable[[str, str], AbstractAsyncContextManager[Complete]]
"""A function that makes a context with a client of completions, given a URL and the name of a model."""

TABLE = "programs before emulated servers, clients 250 ms away"
OURS, BY_HAND = "service", "by hand, router"
TRIP_S = 0.25
_FRONTS: Mapping[str, Front] = {OURS: "serve", BY_HAND: "route"}
_WARM_UP = Workflow("warm-up", (Call("answer", ("Good morning.",), 1),))


@dataclass(frozen=True, slots=True)
class RealLoad:
    """One load: a function of `benchmarks.parrot.workloads` and its settings. Prompts have to fit into the
    4,096 tokens of the model.
    """

    name: str
    load: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RealSize:
    """Sizes of the comparison: the loads, which run one after the other, and the number of servers."""

    loads: tuple[RealLoad, ...]
    num_servers: int = 4


FULL_REAL = RealSize(
    (
        RealLoad("chains", "chains_at_once", {"num": 6, "num_output": 25}),
        RealLoad("map-reduce", "map_reduces", {"num": 6, "every_s": 2.5}),
        RealLoad("GPTs", "gpts", {"rate_per_s": 2.0, "num": 32, "length_share": 0.4}),
        RealLoad("agents", "teams", {"num": 2, "num_files": 6, "length_share": 0.2}),
    )
)
QUICK_REAL = RealSize(
    (
        RealLoad("chains", "chains_at_once", {"num": 2, "chunk_tokens": 2048, "num_output": 10}),
        RealLoad("map-reduce", "map_reduces", {"num": 2, "every_s": 1.0, "num_output": 10}),
        RealLoad("GPTs", "gpts", {"rate_per_s": 4.0, "num": 8, "length_share": 0.2}),
        RealLoad("agents", "teams", {"num": 1, "num_files": 2, "length_share": 0.05}),
    )
)


def measure_real(
    size: RealSize, options: BenchmarkOptions, completions: Completions = openai_completions
) -> Report:
    """Measure as much as `size` says. Runs that are stored are not repeated.

    Args:
        completions: the client of the program by hand.

    Raises:
        ConfigError: the package `openai` is not installed.
    """
    cells = Cells(options.cells or DEFAULT_CELLS)
    rows, goals, num_differing = [], [], 0
    for load in size.loads:
        found = {}
        for name in (BY_HAND, OURS):
            options.say(f"{load.name}, {name}")
            settings = {**asdict(load), "num_servers": size.num_servers, "model": MODEL, "device": DEVICE}
            key = CellKey(name, load.load, 0.0, options.seed, {**settings, "trip_s": TRIP_S, "is_real": True})
            run = partial(_run, name, load, size.num_servers, options.seed, completions)
            found[name] = cells.get(key, run)
            rows.append(Row(TABLE, f"{load.name}, {name}", _figures(found[name])))
        pairs = zip(found[OURS]["results"], found[BY_HAND]["results"], strict=True)
        num_differing += sum(mine != theirs for mine, theirs in pairs)
        mean_s = {name: fmean(one["latencies_s"]) for name, one in found.items()}
        goals.append(
            Goal(f"mean, service over by hand, {load.name}", mean_s[OURS] / mean_s[BY_HAND], 1.0, "lower")
        )
    goals.append(Goal("workflows with other texts", num_differing, 0, "lower"))
    return Report("parrot", options.seed, asdict(size), tuple(rows), tuple(goals), _notes())


def _figures(result: Mapping[str, Any]) -> dict[str, Value]:
    latencies_s, prompt, cached = result["latencies_s"], result["prompt_tokens"], result["cached_tokens"]
    return {
        "workflows": len(latencies_s),
        "mean_s": fmean(latencies_s),
        "p90_s": quantile(latencies_s, 0.9),
        "prompt": prompt,
        "cached": cached,
        "filled": prompt - cached,
        "lag": result["lag"],
    }


def _notes() -> tuple[str, ...]:
    return (
        f"{MODEL} on emulated {DEVICE} servers (`stretto emulate`), tokens of four characters, texts made up",
        f"a client's network: {1000 * TRIP_S / 2:.0f} ms for each way of data, in a port of the client's "
        "process; connections open at once",
        "service: one trip opens the session of a workflow and submits all its calls, whose results are "
        "asked for while they run; by hand each stage takes one trip",
        "both place by the policy stretto with the same predicted seconds; prompt, cached and filled include "
        "the service's requests that prefill a prefix ahead",
    )


def _run(
    name: str, load: RealLoad, num_servers: int, seed: int, completions: Completions
) -> Mapping[str, Any]:
    arrivals = make_load(load.load, seed, load.settings)
    with serving(planned_servers(num_servers)) as servers, front(_FRONTS[name], servers.urls) as port:
        return uvloop.run(_measure(name, port, servers, arrivals, completions))


async def _measure(
    name: str, port: int, servers: Measured, arrivals: Sequence[Arrival], completions: Completions
) -> Mapping[str, Any]:
    async with AsyncExitStack() as stack:
        near = await stack.enter_async_context(distant(port, TRIP_S))
        url = f"http://127.0.0.1:{near}"
        run: Callable[[Workflow], Awaitable[Ended]] = partial(run_as_program, url)
        if name == BY_HAND:
            complete = await stack.enter_async_context(completions(url, MODEL))
            run = partial(run_by_hand, complete)
        await run(_WARM_UP)
        spent, tokens = servers.spent(), await _tokens(servers)
        ended = await start_all(arrivals, run)
        spent_now, tokens_now = servers.spent(), await _tokens(servers)
    waited_s = spent_now.waited_s - spent.waited_s
    return {
        "latencies_s": [one.latency_s for one in ended],
        "results": [_digest(one) for one in ended],
        "prompt_tokens": tokens_now[0] - tokens[0],
        "cached_tokens": tokens_now[1] - tokens[1],
        "lag": (spent_now.late_s - spent.late_s) / waited_s if waited_s else 0.0,
    }


async def _tokens(servers: Measured) -> tuple[int, int]:
    return await asyncio.to_thread(prompt_and_cached_tokens, servers.urls)


def _digest(ended: Ended) -> str:
    """Return a short text that differs for results that differ."""
    return blake2b(repr(sorted(ended.texts.items())).encode(), digest_size=12).hexdigest()
