"""`stretto bench size`: the capacity that `stretto size` predicts, beside emulated servers in real time.

Draws of recorded traffic are given to one server: in virtual time until the largest load within the
objective is found, and then to an emulated server, over HTTP and in real time, at loads around it. Both see
the same jobs in the same order. No run is cut short, as the times of one that is depend on when. A percentile
is that of one draw; at each load the median over the draws counts.

    predicted_s, measured_s   statistic that the objective limits
    requests, predicted_requests    that were sent
    predicted                 capacity that is answered: the median over the draws
    predicted_at_same_loads   where predicted times cross the limit between the measured loads, as measured
                              ones do: what is left of the difference is that of the server
    hits                      share of the prompts' tokens that were found in caches
    lag                       lateness of the server, as a share of the time waited
    slipped_s                 seconds that the server stood still while jobs went on arriving, as this machine
                              did other things

Runs whose lag is above 0.05, or that stood still for more than 0.05 of the limit, do not count: this machine
was too slow for them.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value
from benchmarks.size.real_time import run_real
from stretto.sizing.asked import parse_servers
from stretto.sizing.first_guess import likely_levels
from stretto.sizing.load import Load, Unit
from stretto.sizing.objectives import parse_objectives
from stretto.sizing.sources import read_traffic
from stretto.sizing.study import Study, samples_for, shown_load
from stretto.sizing.traffic_of_trace import traffic_of
from stretto.sizing.trial import TriedFleet, run

MAX_LAG = 0.05
LATENCY = "latency: predicted and measured"
CAPACITY = "capacity: predicted and measured"
_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sessions.jsonl"
_SOURCES = (("traces/azure_llm_2023_c*.csv", 1.0), ("weka_agents/*.jsonl*", 16.0), ("apps/*.jsonl", 1.0))
"""Files in the folder with data, and by how much their tokens and seconds are divided."""
_LONGEST_PAUSE_S = 60.0
_NOTES = ("Real requests leave room for their answer alone, simulated ones for the longest of the traffic.",)


@dataclass(frozen=True, slots=True)
class SizeCheck:
    """Sizes of the comparison.

    Attributes:
        shares: loads, in those of the predicted capacity.
        draws: number of draws.
        num_samples: requests that a run measures, about; None for those of `stretto size`.
        speed: emulated seconds in a real one: a busy machine lags less behind slow servers.
    """

    shares: tuple[float, ...] = (0.85, 1.0, 1.15)
    draws: int = 3
    num_samples: int | None = None
    speed: float = 0.5
    slo: str = "p95 first_token 2s"
    gpu: str = "A100"
    model: str = "Llama-3.1-8B-Instruct"


QUICK = SizeCheck(shares=(1.0,), draws=1, num_samples=60, speed=1.0)


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Compare prediction and emulated servers for each trace."""
    size = QUICK if options.quick else SizeCheck()
    traces = [("sessions.jsonl", _EXAMPLE, 1.0)]
    if options.data is not None:
        for pattern, scale in _SOURCES:
            of = f" / {scale:g}" if scale > 1 else ""
            traces += [(path.name + of, path, scale) for path in sorted(options.data.glob(pattern))]
    rows: list[Row] = []
    goals: list[Goal] = []
    for name, path, scale in traces:
        study, fleet = _asked(size, name, path, scale, options)
        (*_, capacity) = study.capacities(fleet, likely_levels(study, fleet.servers[0][0]))
        points = [
            (_point(study, fleet, share * capacity.middle, draw, size.speed), share, draw)
            for draw in range(size.draws)
            for share in size.shares
        ]
        rows += [
            replace(row, name=f"{name}, {share:g} of capacity, draw {draw + 1}")
            for row, share, draw in points
        ]
        counted = [row.values for row, _, _ in points if not row.note]
        measured, at_same_loads = (
            next(crossings(medians(counted, kind), study.objectives[0].limit_s), None)
            for kind in ("measured_s", "predicted_s")
        )
        if measured is not None:
            values: dict[str, Value] = {
                "predicted": capacity.middle,
                "low": capacity.low,
                "high": capacity.high,
                "measured": round(measured, 2),
            }
            if at_same_loads is not None:
                values["predicted_at_same_loads"] = round(at_same_loads, 2)
            rows.append(Row(CAPACITY, name, values))
            error = abs(capacity.middle / measured - 1)
            goals.append(Goal(f"{name}: error of the predicted capacity", error, 0.1, "lower"))
    return Report("size", options.seed, asdict(size), tuple(rows), tuple(goals), _NOTES)


def _asked(
    size: SizeCheck, name: str, path: Path, scale: float, options: BenchmarkOptions
) -> tuple[Study, TriedFleet]:
    """Return what is asked of one server."""
    objectives = parse_objectives(size.slo)
    (server,) = parse_servers(size.gpu, size.model)
    traffic = traffic_of(read_traffic(path), scale, _LONGEST_PAUSE_S)
    traffic = traffic.fitting(min(server.kv_tokens, server.model.max_context_tokens))
    num_samples = size.num_samples or samples_for(objectives)

    def note(text: str) -> None:
        options.say(f"{name}: {text}")

    unit: Unit = "sessions" if traffic.is_of_sessions else "per_s"
    study = Study(traffic, objectives, unit, size.draws, num_samples, options.seed, note)
    return study, TriedFleet(((server, 1),))


def _point(study: Study, fleet: TriedFleet, amount: float, draw: int, speed: float) -> Row:
    """Run a load of one draw in virtual and in real time."""
    load = Load(study.unit, round(amount) if study.unit == "sessions" else amount)
    window = load.window(study.traffic, study.objectives, study.num_samples)
    seed = study.seed_of(draw)
    predicted = run(fleet, study.traffic, load, study.objectives, seed, study.num_samples, cuts=False)
    (server, _), (objective,) = fleet.servers[0], study.objectives
    study.note(f"{shown_load(load)} on an emulated server, draw {draw + 1}")
    jobs, lag, slipped_s = run_real(server, study.traffic, load, study.objectives, window, seed, speed)
    samples = jobs.samples
    values: dict[str, Value] = {
        "load": load.amount,
        "predicted_s": predicted.values_s[0],
        "measured_s": objective.value_s(samples.seconds[objective.time]),
        "requests": samples.num_sent,
        "predicted_requests": predicted.num_requests,
        "predicted_hits": predicted.cached_share,
        "measured_hits": samples.num_cached / max(1, samples.num_prompt),
        "lag": lag,
        "slipped_s": slipped_s,
    }
    counts = lag <= MAX_LAG and slipped_s <= MAX_LAG * objective.limit_s
    return Row(LATENCY, "", values, note="" if counts else "too slow a machine: does not count")


def medians(counted: Sequence[Mapping[str, Value]], kind: str) -> list[tuple[float, float]]:
    """Return the loads in order, each with the median of a value over the draws."""
    by_load: dict[float, list[float]] = defaultdict(list)
    for values in counted:
        by_load[float(values["load"] or 0)].append(float(values[kind] or 0))
    return [(load, statistics.median(found)) for load, found in sorted(by_load.items())]


def crossings(points: Sequence[tuple[float, float]], limit_s: float) -> Iterator[float]:
    """Yield the loads at which measured times rise above the limit, on straight lines between their
    logarithms.

    Args:
        points: loads in order, with their times.
    """
    for (load, value_s), (next_load, next_s) in pairwise(points):
        if value_s <= limit_s < next_s:
            part = math.log(limit_s / value_s) / math.log(next_s / value_s)
            yield load + part * (next_load - load)
