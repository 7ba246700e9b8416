"""`stretto bench batches`: what does a batch get beside people, and how much longer do they wait?

Three numbers say what people leave:

- the best fixed rule: so many lines at each server that people use, who go to so many of the servers, by a
  scan. The best is the one with the most lines of those with which people's 95th percentile is at most 1.1
  times as long as without the batch. It is found for each load and seed, which no rule knows beforehand;
- the lines of the batch without people, which bounds all rules;
- what of those full batches leave to people's tokens, which no rule can have: in a full batch, steps take
  much longer than 1.1 times.

Our constants were chosen with seed 1 and 2, 8, 16 and 32 people.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.batches.fixed import all_fixed
from benchmarks.batches.simulated import Found, Load, Run
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row
from stretto.router.offline_at_workers import USUAL_RULES, OfflineRules
from stretto.trace.summary import quantile

TABLE = "a batch beside people, Llama-2-7b on A100s"
LONGEST, LEAST = 1.1, 0.9
_CHATS = {"prompt": (50, 400), "output": (50, 200)}
_LONG = {"line_prompt": 1000, "line_output": 200}


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the benchmark: people, servers, repeats, and the end of each run in virtual seconds."""

    people: tuple[int, ...] = (1, 2, 8, 32)
    servers: tuple[int, ...] = (1, 2)
    kinds: tuple[str, ...] = ("short answers", "chats", "pauses", "long lines")
    repeats: int = 1
    end_s: float = 80.0


WHOLE = Size(repeats=3)
QUICK = Size((2,), (2,), ("short answers",), 1, 50.0)
KINDS: Mapping[str, Mapping[str, object]] = {
    "short answers": {},
    "chats": _CHATS,
    "pauses": {**_CHATS, "pause_s": 4.0},
    "long lines": {**_CHATS, **_LONG},
}


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: about 20 minutes, a minute if `quick`, or an hour if `whole`."""
    return measure(QUICK if options.quick else WHOLE if options.whole else Size(), options)


def measure(size: Size, options: BenchmarkOptions) -> Report:
    """Measure as much as `size` says."""
    rows, goals = [], []
    for name, load in loads(size):
        options.say(name)
        found = [compared(load, options.seed + repeat) for repeat in range(size.repeats)]
        values = {key: median(one[key] for one in found) for key in found[0]}
        values["longest_p95"] = max(one["p95_times"] for one in found)
        rows.append(Row(TABLE, name, values, "simulated"))
        goals.append(
            Goal(f"{name}: people's p95 over that without the batch", values["p95_times"], LONGEST, "lower")
        )
        goals.append(Goal(f"{name}: lines over the best fixed rule's", values["of_best"], LEAST, "higher"))
    notes = (
        "p50_times, p95_times: seconds of people's requests beside the batch over those without it",
        "lines_per_s: lines of the batch, best_lines_per_s: with the best fixed rule, alone_lines_per_s: "
        "without people",
        "of_best: lines over the best fixed rule's, counted from one line in ten seconds on",
        "people_share: people's tokens in a second over those of full batches",
    )
    return Report("batches", options.seed, {"size": str(size)}, tuple(rows), tuple(goals), notes)


def loads(size: Size) -> Iterator[tuple[str, Load]]:
    """Iterate over the loads with their names."""
    for kind in size.kinds:
        for servers in size.servers:
            for people in size.people:
                load = Load(people, servers, end_s=size.end_s, **KINDS[kind])  # type: ignore[arg-type]
                yield f"{kind}: {people} people, {servers} servers", load


def compared(load: Load, seed: int) -> dict[str, float]:
    """Return what a batch gets beside people in virtual time, and how much longer they wait for it."""
    without = Run(replace(load, with_batch=False), seed).run()
    ours = Run(load, seed, USUAL_RULES).run()
    alone = Run(replace(load, people=0), seed).run()
    best = 0.0
    for fixed in all_fixed(load.servers):
        found = _found(load, seed, fixed.rules())
        if _times(found, without, 0.95) <= LONGEST:
            best = max(best, found.lines_per_s)
    tokens_per_line = load.line_prompt + load.line_output
    return {
        "p50_times": _times(ours, without, 0.5),
        "p95_times": _times(ours, without, 0.95),
        "lines_per_s": ours.lines_per_s,
        "best_lines_per_s": best,
        "alone_lines_per_s": alone.lines_per_s,
        "of_best": (ours.lines_per_s + 0.1) / (best + 0.1),
        "people_share": without.tokens_per_s / (alone.lines_per_s * tokens_per_line),
    }


def _found(load: Load, seed: int, rules: OfflineRules) -> Found:
    return Run(load, seed, rules).run()


def _times(found: Found, without: Found, part: float) -> float:
    return quantile(sorted(found.seconds), part) / quantile(sorted(without.seconds), part)
