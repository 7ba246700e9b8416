"""`stretto bench parrot`: the evaluation of the Parrot paper, its baselines and a stronger one, in virtual
time; with `--fleet` a part of it in real time, before emulated servers and engines in process.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from benchmarks.parrot import tables
from benchmarks.parrot.contestants import OURS, is_there
from benchmarks.parrot.repeated import repeated_rows
from benchmarks.parrot.runs import run_scenes
from benchmarks.parrot.scenes import Scene, full_scenes, quick_scenes
from benchmarks.parrot.sharing import measure_sharing
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Report


@dataclass(frozen=True, slots=True)
class ParrotSize:
    """Sizes of the benchmark.

    Attributes:
        scenes: what is simulated.
        seeds: number of seeds of each simulation.
        is_full: whether the scenes are those of the paper, so that ratios may be compared with it.
        num_teams: number of teams of agents that work at the same time with KV for two.
    """

    scenes: tuple[Scene, ...]
    seeds: int
    is_full: bool
    num_teams: int


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: ten minutes, less than one if `quick`, or half an hour with three seeds if `whole`.
    Runs that are stored are not repeated.

    With `options.fleet` it runs programs in real time instead, before emulated servers and before two engines
    in process: five minutes, or two if `quick`, on an otherwise idle machine.
    """
    if options.fleet:
        from benchmarks.parrot.in_process import InProcessSize, measure_in_process
        from benchmarks.parrot.real import FULL_REAL, QUICK_REAL, measure_real

        report = measure_real(QUICK_REAL if options.quick else FULL_REAL, options)
        rows, goals = measure_in_process(InProcessSize(), options)
        return replace(report, rows=(*report.rows, *rows), goals=(*report.goals, *goals))
    if options.quick:
        return measure(ParrotSize(quick_scenes(), 1, is_full=False, num_teams=0), options)
    return measure(ParrotSize(full_scenes(), 3 if options.whole else 1, is_full=True, num_teams=8), options)


def measure(size: ParrotSize, options: BenchmarkOptions) -> Report:
    """Make all tables, as large as `size` says."""
    runs = run_scenes(size.scenes, size.seeds, options)
    rows = [row for ran in runs for row in tables.scene_rows(ran)]
    claims, goals = tables.claim_rows(runs)
    rates, rate_goals = tables.rate_rows(runs)
    goals = [*goals, *rate_goals] if size.is_full else []
    shared, sharing_goals = measure_sharing(size.num_teams, options)
    goals += [*tables.order_goals(runs), *sharing_goals]
    return Report(
        "parrot",
        options.seed,
        asdict(size),
        (*rows, *tables.parts_rows(runs), *claims, *rates, *shared, *repeated_rows()),
        tuple(goals),
        (*_NOTES, *_missing(), *tables.losses(runs)),
    )


_NOTES = (
    "step times of Llama-2 on an A100 (fitted to vLLM) and on an A6000 (Preble's regression); the production "
    "schedulers, caches and policies run",
    "clients are 200 to 300 ms away and send a call the moment that its inputs are there; an answer is as "
    "long as its call says, which all schedulers know beforehand",
    "token_ms is the latency over the tokens of the results; filled is the share of prompt tokens that were "
    "computed; KV_GiB is the most that running requests held",
    "latency: requests wait in the service beyond 4,096 tokens on an instance, with ours beyond "
    "what it holds, shared context counted once; all others wait at the instance",
)


def _missing() -> list[str]:
    return [f"{name}: no such placement policy, left out" for name in OURS if not is_there(name)]
