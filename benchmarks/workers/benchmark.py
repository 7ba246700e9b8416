"""`stretto bench workers`: programs before emulated servers, what is predicted that one more server would
change, and what one more server does change.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, replace
from statistics import fmean

import uvloop

from benchmarks.emulate.servers import DEVICE, MODEL, serving
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row
from benchmarks.workers.load import ProgramLoad, run_programs
from stretto.emulate.fleet import PlannedFleet, check_fleet
from stretto.emulate.wanted import WantedFleet, WantedServer
from stretto.operate.watch import Watch
from stretto.router.config import RouterConfig
from stretto.router.serve import RunningRouter
from stretto.router.what_if import WhatIfWorkers, with_more_workers
from stretto.router.worker_config import WorkerConfig

SPEED = 0.3
"""Emulated seconds per real second, so that a machine of two cores keeps the schedule."""
TABLE = "one more server: predicted and measured"
_MAX_LAG = 0.05
_CONTEXT_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Case:
    """A case: programs, and servers of so many sequences at once and so much of their memory."""

    load: ProgramLoad
    num_servers: int
    max_sequences: int
    memory_share: float = 0.9


CASES = {
    "agents, more than run at once": Case(ProgramLoad(20, 4.0, 3, 600, 300, 80, 1.0), 1, 8),
    "long agents, more than fit in memory": Case(ProgramLoad(12, 4.0, 3, 4000, 800, 60, 1.5), 1, 16, 0.34),
    "chats, two servers": Case(ProgramLoad(50, 14.0, 1, 800, 0, 160, 0.0), 2, 6),
}
QUICK = {"agents": Case(ProgramLoad(16, 2.0, 2, 300, 100, 40, 0.3), 1, 4)}


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark in real time: some minutes, or half of one if `quick`."""
    return measure(QUICK if options.quick else CASES, options)


def measure(cases: dict[str, Case], options: BenchmarkOptions) -> Report:
    """Make the table of some cases."""
    rows, errors = [], []
    for name, case in cases.items():
        options.say(name)
        before_s, lag, predicted = _run(case, case.num_servers, options.seed)
        after_s, lag_after, _ = _run(case, case.num_servers + 1, options.seed)
        assert predicted is not None, "there were enough requests"
        measured = after_s / before_s - 1.0
        ratio = (1.0 + predicted.mean_change) / (1.0 + measured)
        errors.append(100.0 * abs(ratio - 1.0))
        values = {
            "mean_s": before_s,
            "with_one_more_s": after_s,
            "measured_percent": 100.0 * measured,
            "predicted_percent": 100.0 * predicted.mean_change,
            "off_percent": errors[-1],
            "as_it_was_off_percent": 100.0 * predicted.error,
            "lag": max(lag, lag_after),
        }
        note = "too slow a machine" if max(lag, lag_after) > _MAX_LAG else ""
        rows.append(Row(TABLE, name, values, note=note))
    goals = (Goal("predicted time with one more server, most off (%)", max(errors), 15.0, "lower"),)
    notes = (f"{MODEL} on {DEVICE}; mean real seconds of a program, of which one is {SPEED} emulated ones",)
    config = {name: asdict(case) for name, case in cases.items()}
    return Report("workers", options.seed, config, tuple(rows), goals, notes)


def _run(case: Case, num_servers: int, seed: int) -> tuple[float, float, WhatIfWorkers | None]:
    """Run a case; return the mean seconds of a program, the lag, and the prediction for one more server."""
    with serving(_fleet(case, num_servers)) as servers:
        seconds, predicted = uvloop.run(_through_door(servers.urls, case.load, seed))
        spent = servers.spent()
    return fmean(seconds), spent.late_s / max(1e-9, spent.waited_s), predicted


async def _through_door(
    urls: list[str], load: ProgramLoad, seed: int
) -> tuple[list[float], WhatIfWorkers | None]:
    watch = Watch()
    config = RouterConfig(port=0, worker=tuple(WorkerConfig(url=url) for url in urls))
    async with RunningRouter(config, watch=watch) as router:
        seconds = await run_programs(router.url, MODEL, load, seed, SPEED)
        workers = router.front.router_state.view.workers()
        learned = (replace(one.config, num_slots=one.num_slots, kv_tokens=one.kv_tokens) for one in workers)
        as_it_is = replace(config, worker=tuple(learned))
        requests = watch.traffic.requests()
        predicted = await asyncio.to_thread(with_more_workers, requests, as_it_is)
    return seconds, predicted


def _fleet(case: Case, num_servers: int) -> PlannedFleet:
    servers = tuple(
        WantedServer(
            devices=(number,),
            model=MODEL,
            port=0,
            loading_s=0.0,
            max_sequences=case.max_sequences,
            max_context_tokens=_CONTEXT_TOKENS,
            memory_share=case.memory_share,
        )
        for number in range(num_servers)
    )
    return check_fleet(WantedFleet((DEVICE,) * num_servers, servers, speed=SPEED))
