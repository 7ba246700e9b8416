"""`stretto bench placement`: what a decision costs, whether the workloads are like the paper's, and what each
policy makes of them in the simulator.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from benchmarks.baselines import PLACEMENTS
from benchmarks.placement.hits import HitScene, hit_scenes, measure_hits
from benchmarks.placement.latency import goals, rows, simulate_scenes, where_we_lose
from benchmarks.placement.scenes import Scene, full_scenes, quick_scenes
from benchmarks.placement.speed import (
    Deciding,
    buffers,
    bytes_per_token,
    decision_times_us,
    decisions_per_s,
    event_blocks_per_s,
    hashes_per_s,
    pieces_per_s,
)
from benchmarks.placement.workloads import SHAPES, make_requests, study
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row
from benchmarks.router.contestants import OTHERS_MISSING, others
from stretto.trace.agents.sharing import found_share, quantities
from stretto.trace.summary import quantile

SPEED = "decisions per second of a core, 2,000 tokens, 4 instances"
WORKLOADS = "workloads beside Table 1 of the Preble paper (mean, deviation)"
_NUM_TOKENS = 2000
_NUM_TOOLS = 200
TABLE_1: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "toolbench": {"prompt_tokens": (1835, 742), "shared_share": (0.85, 0.13), "key_share": (0.76, 0.16)},
    "embodied": {"prompt_tokens": (2285, 471), "shared_share": (0.97, 0.14), "key_share": (0.76, 0.12)},
    "programming": {"prompt_tokens": (3871, 1656), "shared_share": (0.97, 0.074), "key_share": (0.78, 0.13)},
    "video": {"prompt_tokens": (9865, 5976), "shared_share": (0.88, 0.32), "key_share": (0.99, 0.002)},
    "document": {"prompt_tokens": (23474, 6105), "shared_share": (0.91, 0.24), "key_share": (0.94, 0.15)},
}
OUTPUTS: Mapping[str, tuple[float, float]] = {
    "toolbench": (43, 16),
    "embodied": (16, 13),
    "programming": (190, 343),
    "video": (4, 1.5),
    "document": (16, 9.9),
}
SHARERS: Mapping[str, tuple[float, float]] = {
    "toolbench": (39, 64),
    "embodied": (48, 8),
    "programming": (126, 2157),
    "video": (8.6, 2),
    "document": (18, 8.6),
}


@dataclass(frozen=True, slots=True)
class PlacementSize:
    """Sizes of the benchmark.

    Attributes:
        policies: policies whose decisions are timed.
        decisions: decisions of one timed run.
        runs: number of timed runs; the best counts, because other work on the machine slows the rest down.
        history: decisions after which the speed is measured again.
        requests: requests of each workload that is compared with the paper.
        scenes: what is simulated; None for all that the data allow.
        seeds: number of seeds of each simulation.
        hits: scenes whose hits are counted; None for all that the data allow.
        hit_seeds: number of seeds of each of them.
    """

    policies: tuple[str, ...] = ("round_robin", "lmetric", "prefix_threshold", "e2", "stretto")
    decisions: int = 1000
    runs: int = 12
    history: tuple[int, int] = (10_000, 1_000_000)
    requests: Mapping[str, int] = field(
        default_factory=lambda: {name: 75_000 if name == "programming" else 4000 for name in SHAPES}
    )
    scenes: tuple[Scene, ...] | None = None
    seeds: int = 1
    hits: tuple[HitScene, ...] | None = None
    hit_seeds: int = 1


WHOLE = PlacementSize(seeds=5, hit_seeds=3)
QUICK = PlacementSize(
    policies=("round_robin", "stretto"),
    decisions=300,
    runs=5,
    history=(1000, 3000),
    requests=dict.fromkeys(SHAPES, 400),
    scenes=tuple(quick_scenes()),
    seeds=1,
    hits=(HitScene("50 tools", "toolbench", 400, 24.0, 50, 20_000),),
    hit_seeds=1,
)


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: about half an hour, a minute if `quick`, or some hours if `whole`."""
    return measure(QUICK if options.quick else WHOLE if options.whole else PlacementSize(), options)


def measure(size: PlacementSize, options: BenchmarkOptions) -> Report:
    """Make all tables, as large as `size` says."""
    made, to_reach = ([], []) if options.virtual else _speed(size, options)
    likeness, furthest = _workloads(size, options)
    has_azure = options.data is not None and (options.data / "traces").is_dir()
    scenes = tuple(full_scenes(has_azure)) if size.scenes is None else size.scenes
    hit_rows, hit_goals = measure_hits(
        tuple(hit_scenes(options.data)) if size.hits is None else size.hits, size.hit_seeds, options
    )
    results = simulate_scenes(scenes, size.seeds, options)
    notes = (
        "speeds are of CPU time, the best of several runs; a decision includes hashing, choosing, noting it",
        "per_piece_of_python compares machines: decisions in the time of a fixed piece of plain Python work",
        "texts are made up without --data" if options.data is None else f"texts of {options.data}",
        "a token is four bytes of text",
        "hits: a router by others decides on the same prompts, as many of them at once as the replay says",
        *(() if others() else (OTHERS_MISSING,)),
        "a policy is worse beyond the spread if the mean difference over seeds exceeds its standard "
        "deviation, and 1 %",
        *where_we_lose(results),
    )
    config = {**asdict(size), "scenes": [asdict(scene) for scene in scenes]}
    reached = (*to_reach, furthest, *hit_goals, *goals(results))
    tables = (*made, *likeness, *hit_rows, *rows(results))
    return Report("placement", options.seed, config, tables, reached, notes)


def _speed(size: PlacementSize, options: BenchmarkOptions) -> tuple[list[Row], list[Goal]]:
    gc.collect()
    gc.freeze()  # as a router does when it has started
    try:
        return _measured_speed(size, options)
    finally:
        gc.unfreeze()


def _measured_speed(size: PlacementSize, options: BenchmarkOptions) -> tuple[list[Row], list[Goal]]:
    rows, best = [], dict[str, float]()
    pieces = pieces_per_s(size.decisions, size.runs)
    stream = buffers(_NUM_TOOLS, _NUM_TOKENS, options.seed)
    for name in size.policies:
        options.say(f"decisions of {name}")
        deciding = Deciding(PLACEMENTS[name]())
        decisions_per_s(deciding, stream, size.decisions, 2)
        speeds = decisions_per_s(deciding, stream, size.decisions, size.runs)
        times_us = decision_times_us(deciding, stream, size.decisions)
        best[name] = max(speeds)
        values = {
            "best_per_s": max(speeds),
            "median_per_s": statistics.median(speeds),
            "p99_us": quantile(times_us, 0.99),
            "per_piece_of_python": max(speeds) / max(pieces),
        }
        rows.append(Row(SPEED, name, values))
    options.say("decisions after a long history")
    deciding, marks = Deciding(PLACEMENTS["stretto"]()), []
    done = 0
    for mark in size.history:
        for start in range(done, mark, size.decisions):
            decisions_per_s(deciding, stream, min(size.decisions, mark - start), 1)
        done = mark
        marks.append(max(decisions_per_s(deciding, stream, size.decisions, size.runs)))
    few, many = size.history
    p99_us = min(
        quantile(decision_times_us(deciding, stream, size.decisions), 0.99) for _ in range(size.runs)
    )
    rows.append(
        Row(
            SPEED,
            "stretto, after a history",
            {f"after_{few}_per_s": marks[0], f"after_{many}_per_s": marks[1], "p99_us": p99_us},
        )
    )
    hashes = max(hashes_per_s(_NUM_TOKENS, size.decisions, size.runs))
    blocks = max(event_blocks_per_s(20 * size.decisions, size.runs, options.seed))
    memory = bytes_per_token(5 * size.decisions, _NUM_TOKENS, _NUM_TOOLS, options.seed)
    rows.append(
        Row(
            "parts of a decision",
            "index",
            {"hashes_per_s": hashes, "event_blocks_per_s": blocks, "bytes_per_token": memory},
        )
    )
    return rows, [
        Goal("decisions of stretto per second of a core", best["stretto"], 30_000, "higher"),
        Goal(f"the same after {many} over after {few} requests", marks[1] / marks[0], 0.85, "higher"),
        Goal(f"99th percentile of a decision after {many} requests (us)", p99_us, 100.0, "lower"),
        Goal("blocks of KV events per second of a core", blocks, 100_000, "higher"),
        Goal("bytes of memory per token held", memory, 2.0, "lower"),
    ]


def _workloads(size: PlacementSize, options: BenchmarkOptions) -> tuple[list[Row], Goal]:
    rows, errors = [], list[float]()
    for name in SHAPES:
        options.say(f"workload {name}")
        studied = study(make_requests(name, size.requests[name], options.seed, options.data))
        wanted = {**TABLE_1[name], "output_tokens": OUTPUTS[name], "key_sharers": SHARERS[name]}
        values: dict[str, str | float] = {"found_share": found_share(studied)}
        for quantity, of in quantities(studied).items():
            if quantity in wanted:
                found = statistics.fmean(of), statistics.pstdev(of)
                errors += [abs(one / goal - 1) for one, goal in zip(found, wanted[quantity], strict=True)]
                values[quantity] = f"{found[0]:.3g}, {found[1]:.2g}"
                values[f"paper_{quantity}"] = "{:g}, {:g}".format(*wanted[quantity])
        rows.append(Row(WORKLOADS, name, values))
    return rows, Goal(
        "largest distance of a mean or deviation from Table 1, share", max(errors), 0.1, "lower"
    )
