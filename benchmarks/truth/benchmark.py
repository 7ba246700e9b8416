"""`stretto bench truth`: an emulated server beside the real vLLM server that its costs were fitted to.

For each load, the steps of a vLLM server on this machine, with the small model on one thread, are measured
from outside and fitted. Questions about XQuAD's paragraphs arrive at random, at a share of the real server's
capacity: at the real server, three times, and, when that one has ended, at the emulated one. The requests are
the same in all runs of a load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from benchmarks.common.mini_model import MINI
from benchmarks.common.vllm_server import MAX_RUNNING, NOT_INSTALLED, find_vllm
from benchmarks.common.vllm_server import serving as vllm_serving
from benchmarks.emulate.load import ask_all
from benchmarks.emulate.servers import DEVICE, SteadyCost, serving
from benchmarks.fleet.questions import load_corpus
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value, versions
from benchmarks.truth.linear_cost import LinearCost, fit_linear
from benchmarks.truth.probe import ProbeSize, probe
from benchmarks.truth.real_runs import RealRuns, TruthSize, at_times, measure_real, run
from benchmarks.truth.times import STATISTICS, TIMES, Times, error
from stretto.costs.fit import MeasuredStep
from stretto.emulate.fleet import PlannedFleet, check_fleet
from stretto.emulate.llm_plan import PlannedLLM
from stretto.emulate.wanted import WantedFleet, WantedServer

STEPS = "steps of the real server, from outside, and the fitted cost"
ARRIVAL = "seconds of a request's way to the engine and back, besides steps"
ERRORS = "a real vLLM server and the emulated one"
_MOST = {"mean": 0.10, "p99": 0.20}
_OWN_STEP_S = 0.02
_BLOCK_TOKENS = 32
_MAX_CONTEXT = 2048


QUICK = TruthSize(num_requests=80, shares=(0.7,))


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: ten to twenty minutes, or three if `quick`.

    Raises:
        ConfigError: `options.vllm` has no vLLM, or there is no folder with XQuAD.
    """
    vllm = find_vllm(options.vllm)
    if vllm is None:
        return Report("truth", options.seed, {}, (), (), (NOT_INSTALLED,))
    size = QUICK if options.quick else TruthSize()
    corpus = load_corpus(options.data)
    with vllm_serving(vllm, MINI, dtype="float32", num_threads=1, say=options.say) as url:
        real = measure_real(size, url, corpus, options)
    report = compare(size, real, options)  # with the cores for itself: vLLM has ended
    return replace(report, versions={**versions(), "vllm": vllm.version})


def compare(size: TruthSize, real: RealRuns, options: BenchmarkOptions) -> Report:
    """Fit an emulated server to a real one, send it the same requests, and compare the two."""
    options.say("the emulated server")
    own_s = _own_arrival_s(size.probe)
    rows: list[Row] = []
    goals: list[Goal] = []
    costs: dict[str, object] = {}
    for load in real.loads:
        name = f"{100 * load.share:.0f} %"
        options.say(f"{name}, emulated")
        steps = [*load.probed.decodes, *load.probed.prompts]
        cost = fit_linear(steps)
        costs[name] = asdict(cost)
        rows += _step_rows(name, steps, cost)
        arrival_s = load.probed.arrival_s
        way: dict[str, Value] = {"real_ms": 1000 * arrival_s, "emulated_ms": 1000 * own_s}
        rows.append(Row(ARRIVAL, name, way))
        with serving(one_server(cost, max(0.0, arrival_s - own_s))) as servers:
            requests = at_times(load.requests, [one.at_s for one in load.requests], servers.urls[0])
            ask_all(requests[:4])  # the first requests of a server are slow
            before = servers.spent()
            emulated = run(requests)
            spent = servers.spent()
        found = list(_compared(name, load.real, emulated))
        rows += [row for row, _ in found]
        lateness: dict[str, Value] = {
            "requests": len(requests),
            "late_share_of_waiting": (spent.late_s - before.late_s) / (spent.waited_s - before.waited_s),
            "slipped_s": spent.slipped_s - before.slipped_s,
            "cpu_s": spent.cpu_s - before.cpu_s,
            "core_wait_s": spent.core_wait_s - before.core_wait_s,
        }
        rows.append(Row("the emulated server's own lateness", name, lateness))
        goals += [goal for _, goal in found]
    notes = (
        f"capacity of the real server, all requests at once: {real.capacity_per_s:.1f} requests/s;"
        f" {MAX_RUNNING} sequences at once, prefix caching, one thread, float32, not compiled",
        "what the emulated server does not need of a request's way to the engine and back, it waits for",
        "steps are measured before each run of the real server, and their means are fitted",
        "a goal is met where the error is at most 10 % of the mean or 20 % at p99, or within the spread of"
        " the real server's runs, whichever is larger",
        "client and server share the cores of this machine; the emulated server runs when the real one has"
        " ended",
    )
    config = {**asdict(size), "costs": costs, "capacity_per_s": real.capacity_per_s}
    return Report("truth", options.seed, config, tuple(rows), tuple(goals), notes)


def _compared(name: str, real: Sequence[Times], emulated: Times) -> Iterator[tuple[Row, Goal]]:
    for what in TIMES:
        for statistic in STATISTICS:
            found = error(real, emulated, what, statistic)
            values: dict[str, Value] = {
                "real_ms": 1000 * found.real_s,
                "emulated_ms": 1000 * found.emulated_s,
                "error_percent": 100 * found.share,
                "spread_percent": 100 * found.spread,
            }
            label = f"{name}, {what}, {statistic}"
            most = max(_MOST[statistic], found.spread)
            goal = Goal(f"error of {label}, %", 100 * abs(found.share), 100 * most, "lower")
            yield Row(ERRORS, label, values), goal


def _own_arrival_s(size: ProbeSize) -> float:
    """Return the seconds of a request's way to an emulated server's engine and back, besides steps."""
    prompts_alone = replace(size, decodes=())
    with serving(one_server(SteadyCost(_OWN_STEP_S))) as servers:
        return probe(servers.urls[0], prompts_alone).arrival_s


def one_server(cost: LinearCost | SteadyCost, arrival_s: float = 0.0) -> PlannedFleet:
    """Return one server with the sizes and limits of the real one, a given cost of its steps, and additional
    seconds of a request's way to its engine.
    """
    wanted = WantedServer(
        devices=(0,),
        model=str(MINI),
        port=0,
        loading_s=0.0,
        max_sequences=MAX_RUNNING,
        block_tokens=_BLOCK_TOKENS,
        max_context_tokens=_MAX_CONTEXT,
        tokenizer=str(MINI),
    )
    planned = check_fleet(WantedFleet((DEVICE,), (wanted,)))
    (server,) = planned.servers
    assert isinstance(server.service, PlannedLLM)
    simulated = replace(server.service.simulated, cost=cost)
    service = replace(server.service, simulated=simulated, arrival_s=arrival_s)
    return replace(planned, servers=(replace(server, service=service),))


def _step_rows(name: str, steps: Sequence[MeasuredStep], cost: LinearCost) -> list[Row]:
    rows = []
    for step in steps:
        shape = step.shape
        what = (
            f"a prompt of {shape.prefill_tokens} tokens beside {shape.num_decodes} answers"
            if shape.num_prefills
            else f"{shape.num_decodes} answers, {shape.max_context_tokens} tokens each"
        )
        values: dict[str, Value] = {
            "measured_ms": 1000 * step.seconds,
            "fitted_ms": 1000 * cost.step_s(shape),
        }
        rows.append(Row(f"{STEPS}, {name}", what, values))
    return rows
