"""`stretto bench twin`: does the simulation of this machine predict what happens on it?

Every engine runs in a separate single-threaded process. Costs are measured with each engine alone
(`measuring.py`), on the batches and requests of other queries of the same apps. From these costs, and no time
of a whole query, the simulation predicts how long each query takes (`shared_cores.py`). Then the
same queries run on the real engines (`runs.py`), several times, and under different schemes: ours, and two of
the Teola paper's baselines. Results and outputs must be the same in both, which is checked.

    alone      one query after the other
    together   Poisson arrivals that keep the busiest engine, or all cores, at work for `utilisation` of the
               time, under the scheme with the most work
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from benchmarks.common.corpora import some_documents
from benchmarks.common.scripted_apps import fresh_questions
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Report, Row
from benchmarks.teola.schemes import OURS
from benchmarks.twin.compare import Cell, agreement_rows, goals, ranking_rows
from benchmarks.twin.costs import MachineCosts
from benchmarks.twin.machine import TOGETHER, TwinMachine
from benchmarks.twin.measuring import Effort, calibrate
from benchmarks.twin.runs import run_all

_THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True, slots=True)
class TwinSize:
    """Sizes of the benchmark.

    Attributes:
        num_queries: number of queries of each app, in each run.
        repeats: number of repeats of each run, if `max_s` allows.
        max_s: seconds for all real runs.
    """

    num_queries: Mapping[str, int]
    schemes: tuple[str, ...] = (OURS, "LlamaDistPC-TO", "LlamaDist-PO")
    repeats: int = 4
    max_s: float = 230.0
    utilisation: float = 0.7
    max_chars: int = 8_000
    answer_tokens: int = 24
    effort: Effort = Effort()


FULL = TwinSize({"search": 10, "naive": 6, "advanced": 6})
QUICK = TwinSize(
    {"search": 4, "naive": 3, "advanced": 3},
    (OURS, "LlamaDist-PO"),
    repeats=2,
    max_s=40.0,
    max_chars=3_000,
    effort=Effort(batches=8, rounds=1, step_s=4.0, batch_s=4.0),
)


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: about five minutes on a quiet machine, or one and a half if `quick`."""
    with _environment(_THREADS):
        return measure(QUICK if options.quick else FULL, options)


def measure(size: TwinSize, options: BenchmarkOptions) -> Report:
    """Measure as much as `size` says."""
    source, documents = some_documents(options.data, size.max_chars)
    machine = TwinMachine(documents, tuple(size.num_queries), size.schemes, size.answer_tokens)
    options.say("twin: which batches and requests the apps make")
    batches, requests = machine.rehearse(fresh_questions(documents, 3, f"rehearsal/{options.seed}"))
    costs = calibrate(machine, batches, requests, size.effort, options.say)
    options.say("twin: simulating")
    start_s = time.perf_counter()
    workloads = machine.workloads(size.num_queries, size.utilisation, costs, options.seed)
    simulated = {
        (workload.app, workload.name, name): machine.simulate(workload, name, costs)
        for workload in workloads
        for name in size.schemes
    }
    simulating_s = time.perf_counter() - start_s
    measured = asyncio.run(run_all(machine, workloads, size.repeats, size.max_s, options.say))
    cells = [Cell(*key, tuple(measured[key]), run) for key, run in simulated.items()]
    rows = [*agreement_rows(cells), *ranking_rows(cells), *_cost_rows(costs)]
    sharing = costs.sharing
    num_chars = sum(len(section.text) for document in documents for section in document.sections)
    notes = (
        f"{len(documents)} documents from {source}, {num_chars:,} characters, indexed anew by every query; "
        "one instance of every engine, one thread and process each",
        f"{sharing.cores} cores, processes not pinned: beside another busy process an LLM is "
        f"{sharing.of_llm:.3f} times slower (beside another LLM {sharing.of_llms:.3f}), any other engine "
        f"{sharing.of_batch:.3f} times (measured); more than {sharing.cores} busy ones share the cores; "
        "the work of the schedulers is not counted",
        f"{TOGETHER}: the busiest engine, or all cores, at {size.utilisation:.0%} by the simulated work of "
        "queries alone, under the scheme that has the most",
        "the LLM is the small model that ships with Stretto, with the words of the stand-in; what a query "
        "leaves in its cache is dropped with the query",
        f"{min(len(cell.measured) for cell in cells)} repeats; spread: between the slowest and the fastest "
        "of them; error: against the mean of the repeats",
        "99th percentile: of the queries of all repeats pooled, and of those simulated; of fewer than 100, "
        "it is the slowest: the goal is about the worst query",
        f"simulating all runs took {simulating_s:.1f} s",
    )
    return Report("twin", options.seed, asdict(size), tuple(rows), goals(cells), notes)


def _cost_rows(costs: MachineCosts) -> Iterator[Row]:
    for name, (error, count) in costs.errors.items():
        values = {"mean_error_percent": 100 * error, "measurements": count}
        yield Row("fitted costs, each engine alone", name, values)
    around = {
        "ms_per_request": 1e3 * costs.steps.per_request_s,
        "ms_per_token": 1e3 * costs.steps.per_token_s,
        "times_slower_beside_another": costs.sharing.of_llm,
        "times_slower_beside_an_llm": costs.sharing.of_llms,
    }
    note = "about 0 and 1 on a machine that does nothing else; if not, it was too busy to measure on"
    yield Row("what the fits of steps leave out", "llm", around, note=note)
    others = {"times_slower_beside_an_llm": costs.sharing.of_batch}
    yield Row("what the fits of steps leave out", "the busiest other engine", others)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Context with environment variables for the processes that are started in it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
