"""`stretto bench teola`: runs all simulations and makes a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context

from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Report, Row, Value
from benchmarks.teola.compare import Compared, RunAll, Scenario, compare
from benchmarks.teola.examples import example_rows
from benchmarks.teola.goals import goals
from benchmarks.teola.limits import limit_rows
from benchmarks.teola.overhead import orchestration_s
from benchmarks.teola.schemes import ALL, OURS, PARALLEL, PIPELINED, SCHEMES, Scheme
from benchmarks.teola.simulate import VERBOSE, Testbed
from benchmarks.teola.tables import (
    APPS,
    BATCHING,
    BATCHING_BOTH,
    HIGH,
    LOW,
    NEVER_WAITING,
    OVERHEAD,
    PAPER,
    PASSES,
    SHARING,
    VARIANTS,
    WAITING,
    end_to_end_rows,
    means,
    speed_rows,
    speed_ups,
)
from benchmarks.teola.workload import DatasetSizes, sizes
from stretto.engines.processor import num_cores
from stretto.graph.passes.weigh import WEIGHED
from stretto.model.replica import RunsIn


@dataclass(frozen=True, slots=True)
class TeolaSize:
    """Sizes of the benchmark.

    Attributes:
        shares: loads by name, see `Compared.share`.
        batching_queries: queries of the runs that compare policies; more, because policies differ when queues
            have grown.
    """

    models: tuple[str, ...] = ("7B", "13B", "30B")
    num_queries: int = 32
    seeds: int = 3
    shares: tuple[tuple[str, float], ...] = (("alone", 0.0), (LOW, 0.2), ("middle", 0.5), (HIGH, 0.8))
    ablation_model: str = "30B"
    batching_shares: tuple[tuple[str, float], ...] = (
        ("alone", 0.0),
        ("0.6", 0.6),
        ("0.8", 0.8),
        ("0.95", 0.95),
    )
    batching_queries: int = 96
    places: tuple[RunsIn, ...] = ("thread", "process")


QUICK = TeolaSize(models=("7B",), num_queries=16, shares=((LOW, 0.2), (HIGH, 0.8)), batching_queries=32)
_PLACES: Mapping[RunsIn, str] = {"thread": "threads", "process": "processes"}
_ORCHESTRATED = 20
"""Number of queries whose orchestration is measured."""


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: about ten minutes of one core, or one if `quick`."""
    return measure(QUICK if options.quick else TeolaSize(), options)


def measure(size: TeolaSize, options: BenchmarkOptions) -> Report:
    """Make all tables, as large as `size` says, with a process for each core."""
    seeds = tuple(range(options.seed, options.seed + size.seeds))
    with ProcessPoolExecutor(num_cores(), get_context("spawn")) as pool:
        return _measure(_Bench(size, sizes(options.data), seeds, options.say, pool.map), size, options)


def _measure(bench: _Bench, size: TeolaSize, options: BenchmarkOptions) -> Report:
    main = bench.main()
    rows = [
        *end_to_end_rows(main, [load for load, _ in size.shares]),
        *bench.passes(),
        *bench.batching(),
        *bench.overhead(),
    ]
    rows += limit_rows(main, rows)
    rows += [*bench.examples(), *bench.sharing(), *bench.variants(), *speed_rows()]
    return Report(
        "teola", options.seed, {**asdict(size), "quick": options.quick}, tuple(rows), goals(main, rows), NOTES
    )


NOTES = (
    "two instances of each LLM, one of every other engine; the same largest batches, KV room and chunked"
    " prefill for all; LLM instances step by step with the production local scheduler",
    "loads are shares of what the busiest engine can bear if nothing is done twice and all batches are full;"
    " 'alone' is one query at a time; questions and documents are sized as in the sets, arrivals Poisson",
    "every latency is checked to be no less than its query's bound, every mean no less than its load's, and"
    " all schemes to give the answers of the bound's own run of the graph",
    "baselines get the better of what the paper leaves open (benchmarks/teola/schemes.py says how): PO in"
    " particular batches LLM requests continuously, where the paper's takes one invocation at a time",
    "`greatest` is over the paper's schemes, `possible` what a schedule on the bound would gain over the"
    " slowest of them; both leave out the overloaded, which fall behind more with every query",
    "the paper's figures are the greatest over all models and its four schemes; it does not say the load of"
    " search",
    "ours applies the passes that are predicted to pay when a query arrives; `all of ours` applies all",
    "ours uses the policy least_work; topology_aware is the paper's Algorithm 2. Both are compared with"
    " blind batches that never wait; waiting to fill them (TO) is the paper's scheme, and costs by itself",
    "by_seed: least and greatest speed-up of the seeds. Each seed is another draw of queries and arrivals",
    "orchestration: wall time in which no engine computes, measured here with engines in threads of one"
    " process and in processes; what the paper quotes are remote procedure calls across servers",
    "assumed: web search takes 0.4 s; half of the drafts are judged good; where speeds are from stands in the"
    " last table",
    "left out: engines that slow each other down on one GPU; small prefills that fit beside decodes for free",
)


class _Bench:
    def __init__(
        self,
        size: TeolaSize,
        known: Mapping[str, DatasetSizes],
        seeds: tuple[int, ...],
        say: Callable[[str], None],
        run_all: RunAll,
    ) -> None:
        self._size = size
        self._known = known
        self._seeds = seeds
        self._say = say
        self._run_all = run_all

    def _setting(self, testbed: Testbed, *apps: str, dataset: str | None = None) -> Scenario:
        return Scenario(testbed, apps, self._size.num_queries, self._seeds, dataset)

    def _compare(
        self, setting: Scenario, schemes: Sequence[Scheme], shares: Sequence[tuple[str, float]] = ()
    ) -> list[Compared]:
        """Compare schemes at these loads; without any, at those of the benchmark."""
        loads = [share for _, share in shares or self._size.shares]
        return compare(setting, self._known, schemes, loads, self._run_all)

    def main(self) -> dict[tuple[str, str], list[Compared]]:
        """Run every app with every model under every scheme."""
        found = {}
        for app in APPS:
            for model in self._size.models:
                self._say(f"teola: {app}, {model}")
                setting = self._setting(Testbed(model), app)
                found[app, model] = self._compare(setting, list(SCHEMES.values()))
        return found

    def passes(self) -> list[Row]:
        """Rows of our scheme without some of its passes."""
        ours = SCHEMES[OURS]
        cases = {
            "none": (),
            "parallelisation (passes 1 and 3)": PARALLEL,
            "pipelining (passes 2 and 4)": PIPELINED,
            "both": (*PARALLEL, *PIPELINED),
            "all of ours": ALL,
            "weighed": WEIGHED,
        }
        schemes = [Scheme(n, passes, ours.policy) for n, passes in cases.items()]
        return self._ablation(PASSES, schemes, "none", self._size.shares, self._size.num_queries)

    def batching(self) -> list[Row]:
        """Rows of our scheme with other policies: as in the paper, and with documents of very different
        sizes."""
        schemes = [
            Scheme("PO", ALL, "per_invocation"),
            Scheme(WAITING, ALL, "throughput"),
            Scheme(NEVER_WAITING, ALL, "throughput", fill_timeout_s=0.0),
            Scheme("topology_aware", ALL, "topology_aware"),
            SCHEMES[OURS],
        ]
        shares, count = self._size.batching_shares, self._size.batching_queries
        note = "1.15: single query; 1.24: 19.2 % less mean latency, up to, under load"
        return [
            *self._ablation(BATCHING, schemes, NEVER_WAITING, shares, count),
            Row(BATCHING, PAPER, {"alone_speed_up": 1.15, "0.8_speed_up": 1 / (1 - 0.192)}, "quoted", note),
            *self._ablation(BATCHING_BOTH, schemes, NEVER_WAITING, shares, count, self._size.models[0], None),
        ]

    def _ablation(
        self,
        table: str,
        schemes: Sequence[Scheme],
        base: str,
        shares: Sequence[tuple[str, float]],
        num_queries: int,
        model: str | None = None,
        dataset: str | None = "truthfulqa",
    ) -> list[Row]:
        self._say(f"teola: {table}")
        testbed = Testbed(model or self._size.ablation_model)
        setting = Scenario(testbed, ("advanced",), num_queries, self._seeds, dataset)
        compared = self._compare(setting, schemes, shares)
        loads = {name: one for (name, _), one in zip(shares, compared, strict=True)}
        rows = []
        for scheme in schemes:
            values: dict[str, Value] = {}
            for name, one in loads.items():
                values[f"{name}_s"] = one.mean_s(scheme.name)
                values[f"{name}_p99_s"] = one.p99_s[scheme.name]
                values[f"{name}_speed_up"] = one.speed_up(scheme.name, base)
                values[f"{name}_by_seed"] = one.spread(scheme.name, base)
            rows.append(Row(table, scheme.name, values, "simulated"))
        bounds: dict[str, Value] = {f"{name}_s": one.bound_s for name, one in loads.items()}
        rows.append(Row(table, "lower bound", bounds, "computed"))
        return rows

    def overhead(self) -> list[Row]:
        """Rows with the shares of simulated latency: measured orchestration, queueing, engines."""
        testbed = Testbed(self._size.ablation_model)
        setting = self._setting(testbed, "advanced", dataset="truthfulqa")
        asked = setting.asked(self._known, 0.0, self._seeds[0])
        shares = [("alone", 0.0), *(one for one in self._size.shares if one[1])]
        alone, *loaded = self._compare(setting, [SCHEMES[OURS]], shares)
        rows = []
        for runs_in, name in _PLACES.items():
            if runs_in not in self._size.places:
                continue
            self._say(f"teola: orchestration, engines in {name}")
            taken_s = orchestration_s(testbed, asked[:_ORCHESTRATED], runs_in)
            for one in (alone, *loaded):
                mean_s = one.mean_s(OURS) + taken_s
                values: dict[str, Value] = {
                    "per_s": one.per_s,
                    "mean_s": mean_s,
                    "orchestration_ms": taken_s * 1e3,
                    "orchestration_share": taken_s / mean_s,
                    "queueing_share": (one.mean_s(OURS) - alone.mean_s(OURS)) / mean_s,
                    "execution_share": alone.mean_s(OURS) / mean_s,
                }
                rows.append(Row(OVERHEAD, f"{name}, load {one.share:g}", values, "simulated"))
        note = "graph optimisation 1.3-3 %, communication 3.1-6.2 %: remote procedure calls across servers"
        rows.append(Row(OVERHEAD, PAPER, {"orchestration_share": "0.044-0.092"}, "quoted", note))
        return rows

    def examples(self) -> list[Row]:
        """Rows of the paper's introductory examples."""
        self._say("teola: Figures 1, 3 and 4")
        return example_rows(self._known, min(8, self._size.num_queries), self._seeds[0])

    def sharing(self) -> list[Row]:
        """Rows of two apps at once."""
        self._say("teola: apps that share engines")
        setting = self._setting(Testbed(self._size.models[0]), "naive", "advanced")
        compared = self._compare(setting, list(SCHEMES.values()))
        return [
            Row(SHARING, name, means(one), "simulated")
            for (name, _), one in zip(self._size.shares, compared, strict=True)
        ]

    def variants(self) -> list[Row]:
        """Rows with longer answers, where decoding takes most of the time, and with the speeds of the paper's
        examples."""
        model = self._size.models[0]
        testbeds = {
            "answers of 24 to 64 tokens": Testbed(model, VERBOSE),
            "7B on an RTX 3090": Testbed("7B", speeds="RTX 3090"),
            "speeds of the paper's examples": Testbed("7B", speeds="paper"),
        }
        shares = (self._size.shares[0], self._size.shares[-1])
        rows = []
        for name, testbed in testbeds.items():
            for app in APPS:
                self._say(f"teola: {app}, {name}")
                setting = Scenario(testbed, (app,), self._size.num_queries, self._seeds[:1])
                compared = self._compare(setting, list(SCHEMES.values()), shares)
                for (load, _), one in zip(shares, compared, strict=True):
                    rows.append(Row(VARIANTS, f"{name}: {app}, {load}", speed_ups(one), "simulated"))
        return rows
