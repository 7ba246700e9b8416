"""The benchmarks by name, and the options to run one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from benchmarks.report import Report
from stretto.model.nearest_name import check_name


@dataclass(frozen=True, slots=True)
class BenchmarkOptions:
    """Options of a benchmark's run.

    Attributes:
        quick: whether to repeat less, to stay under two minutes.
        data: folder with real inputs; None for the inputs that come with the project.
        seed: seed of all random choices.
        say: called with a text about the progress.
        vllm: Python interpreter of an environment with vLLM; None for that of `make vllm-env`. The benchmark
            router is run on two servers of it, if it is named.
        checkpoint: folder of an LLM; None for the benchmark's own.
        cells: folder that keeps finished runs, which are not repeated (door, fleet, placement, parrot,
            programs, answers); None for `runs/` and the name of the benchmark.
        faults: measure what faults of servers cost, instead of the benchmark's usual tables (fleet, router).
        virtual: run only what takes place in virtual time (fleet, placement, programs).
        fleet: compare routers before a fleet of emulated servers, instead of their cost (router); or run
            programs before such a fleet in real time, instead of in virtual time (parrot, programs).
        whole: run the whole grid or more seeds, which takes hours (answers, batches, door, fleet, offline,
            parrot, placement) or days (programs), instead of the part that `make benches` runs.
    """

    quick: bool = False
    data: Path | None = None
    seed: int = 0
    say: Callable[[str], None] = lambda _: None
    vllm: Path | None = None
    checkpoint: Path | None = None
    cells: Path | None = None
    faults: bool = False
    virtual: bool = False
    fleet: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One question, answered by `run_benchmark(options) -> Report` of `module`, which is imported when run.

    `charts` are the (table, column) pairs that a plot shows as bars. A benchmark with a picture of its own
    names the module in `picture`, which has `draw_into(figure, report)`.
    """

    name: str
    summary: str
    module: str
    charts: tuple[tuple[str, str], ...] = ()
    picture: str | None = None

    def run(self, options: BenchmarkOptions) -> Report:
        """Run the benchmark."""
        report: Report = import_module(self.module).run_benchmark(options)
        return report


_ALL = (
    Benchmark(
        "overhead",
        "Cost of orchestration: per no-op primitive, per planned query, per second of waiting",
        "benchmarks.overhead.benchmark",
        (("chain of 10, then fan-out of 10", "median_us_per_node"),),
    ),
    Benchmark(
        "answers",
        "Quality of the ready-made apps' answers: known answers contained, F1, right first sources",
        "benchmarks.answers.benchmark",
        (("answers that contain the known one, F1 and right first sources (%)", "contains_percent"),),
    ),
    Benchmark(
        "passes",
        "Time that passes and policies save end to end: in virtual time and with the engines of this machine",
        "benchmarks.passes.benchmark",
        (("end to end, one query", "none_s"), ("end to end, one query", "all_s")),
    ),
    Benchmark(
        "teola",
        "Evaluation of the Teola paper in virtual time: its apps, models and baselines, and a stronger one",
        "benchmarks.teola.benchmark",
        (
            ("Figure 8: speed-up of ours", "greatest"),
            ("Figure 8: speed-up of ours", "hand-written"),
            ("Figure 9: passes, advanced RAG, TruthfulQA", "high_speed_up"),
            ("Figure 10: batching, advanced RAG, TruthfulQA, all passes", "0.8_speed_up"),
            ("batching, advanced RAG, both sets, all passes", "0.8_speed_up"),
            ("Figure 11: where the time goes, advanced RAG, TruthfulQA", "orchestration_share"),
            ("Figure 11: where the time goes, advanced RAG, TruthfulQA", "queueing_share"),
            ("Figure 11: where the time goes, advanced RAG, TruthfulQA", "execution_share"),
        ),
    ),
    Benchmark(
        "rag",
        "Schemes of the benchmark teola with the engines of this machine",
        "benchmarks.rag.benchmark",
        (
            ("median seconds of a query, engines of this machine", "hand-written"),
            ("median seconds of a query, engines of this machine", "ours"),
        ),
    ),
    Benchmark(
        "indexing",
        "Speed of embedding documents, next to sentence-transformers and onnxruntime, and what is found then",
        "benchmarks.indexing.benchmark",
        (("chunks embedded per second", "median"),),
    ),
    Benchmark(
        "twin",
        "Accuracy of the simulation: three apps with two workloads on this machine, real and simulated",
        "benchmarks.twin.benchmark",
        (
            ("end to end, real and simulated", "mean_s"),
            ("end to end, real and simulated", "simulated_mean_s"),
        ),
    ),
    Benchmark(
        "sim",
        "Speed of the simulator: LLM requests per second of a core, 64 instances at 70 % load",
        "benchmarks.sim.benchmark",
        (("simulated requests per second of a core", "requests_per_s_of_core"),),
    ),
    Benchmark(
        "llm",
        "Speed of the in-process LLM engine with a small model, next to transformers and vLLM",
        "benchmarks.llm.benchmark",
        (("tokens/s by concurrency", "median_tokens_per_s"),),
    ),
    Benchmark(
        "costs",
        "Accuracy of the cost models: steps of 13 models on A100, and recorded runs replayed",
        "benchmarks.costs.benchmark",
        (("mean error (%), all models", "decode"), ("mean error (%), all models", "unlike contexts")),
    ),
    Benchmark(
        "planner",
        "Plans for many models on eight GPUs: makespans of five planners, carried out by one simulation",
        "benchmarks.planner.benchmark",
        (("makespan", "makespan_s"), ("makespan", "to_bound")),
    ),
    Benchmark(
        "predictions",
        "Accuracy of plans' predictions: chain summaries measured on four and eight A100",
        "benchmarks.predictions.benchmark",
        (("predicted beside measured seconds, runs not fitted to", "absolute_error_percent"),),
    ),
    Benchmark(
        "offline",
        "Planned runs carried out: time predicted and taken, beside heuristics, emulated GPUs and two cores",
        "benchmarks.offline.benchmark",
        (("four small models on two cores", "took_s"), ("four small models on two cores", "planned_s")),
    ),
    Benchmark(
        "together",
        "Queries and offline work on the same simulated instances: what each of them loses",
        "benchmarks.together.benchmark",
        (
            ("queries and offline work together", "end_p99_ratio"),
            ("queries and offline work together", "share"),
        ),
    ),
    Benchmark(
        "profiles",
        "Accuracy of profiles: predicted times of batches of texts of mixed lengths, by size and by length",
        "benchmarks.profiles.benchmark",
        (("mean error of predicted times (%)", "by length"),),
    ),
    Benchmark(
        "emulate",
        "Emulated servers: lag behind schedule, memory, and distance from the simulator",
        "benchmarks.emulate.benchmark",
        (("keeping the schedule, steps of 30 ms", "lag"),),
    ),
    Benchmark(
        "truth",
        "Accuracy of an emulated server: times of requests beside the real vLLM server that it was fitted to",
        "benchmarks.truth.benchmark",
        (("a real vLLM server and the emulated one", "error_percent"),),
    ),
    Benchmark(
        "router",
        "Cost of the router: added latency, requests and events per second of a core, next to other routers",
        "benchmarks.router.benchmark",
        (("what a router costs, bodies of 8.7 kB", "added_ms"),),
    ),
    Benchmark(
        "watching",
        "Cost of metrics, traces and the live page: processor time of the router with and without them",
        "benchmarks.watching.benchmark",
    ),
    Benchmark(
        "batches",
        "What a batch gets beside people, and how much longer they wait, next to the best fixed rule",
        "benchmarks.batches.benchmark",
        (("a batch beside people, Llama-2-7b on A100s", "of_best"),),
    ),
    Benchmark(
        "door",
        "Agents and chats of unmodified clients in real time, behind our router and others",
        "benchmarks.door.benchmark",
        (("32 sessions a server", "tokens_per_s"), ("64 sessions a server", "tokens_per_s")),
    ),
    Benchmark(
        "size",
        "Capacity of a server that `stretto size` predicts, beside emulated servers in real time",
        "benchmarks.size.benchmark",
        (("capacity: predicted and measured", "predicted"), ("capacity: predicted and measured", "measured")),
    ),
    Benchmark(
        "recognition",
        "Programs recognised in plain traffic: calls joined rightly and wrongly, time and memory",
        "benchmarks.recognition.benchmark",
        (("calls joined with their program (%)", "right"), ("calls joined with their program (%)", "wrong")),
    ),
    Benchmark(
        "prefix",
        "Prompts that change before text that stays: planted faults found, hits restored, time of the guard",
        "benchmarks.prefix.benchmark",
        (("hits restored by repairs (%)", "restored"),),
    ),
    Benchmark(
        "workers",
        "Programs with one more server: what a simulation of a door's traffic predicts, and what is measured",
        "benchmarks.workers.benchmark",
        (("one more server: predicted and measured", "off_percent"),),
    ),
    Benchmark(
        "service",
        "Cost of the service: processor time of a call over HTTP, a chain of 10,000, memory of sessions",
        "benchmarks.service.benchmark",
        (("processor time of the service, one call", "cpu_ms"),),
    ),
    Benchmark(
        "vllm",
        "Time that passes 3 and 4 save on an unmodified vLLM server",
        "benchmarks.vllm.benchmark",
        (("advanced RAG on vLLM, float32", "median_s"), ("advanced RAG on vLLM, bfloat16", "median_s")),
    ),
    Benchmark(
        "placement",
        "Placement by prefixes: cost of a decision, workloads like Preble's, and policies in the simulator",
        "benchmarks.placement.benchmark",
        (("decisions per second of a core, 2,000 tokens, 4 instances", "best_per_s"),),
    ),
    Benchmark(
        "retain",
        "Eviction by what is needed again: blocks that a prefix cache misses, beside LRU and the optimum",
        "benchmarks.retain.benchmark",
        (
            ("blocks of prompts that were not cached", "over_optimum"),
            ("blocks of prompts that were not cached", "lru_over_optimum"),
        ),
    ),
    Benchmark(
        "parrot",
        "Evaluation of the Parrot paper in virtual time: its apps and baselines, and a stronger one",
        "benchmarks.parrot.benchmark",
        (
            ("times better than the paper's baselines", "paper"),
            ("times better than the paper's baselines", "stretto"),
            ("rate of GPTs with 100 ms for each token", "rate_per_s"),
        ),
    ),
    Benchmark(
        "fleet",
        "Programs on the same emulated fleet of GPU servers: Stretto and a hand-written one, under load",
        "benchmarks.fleet.benchmark",
        (
            ("mean seconds of a query, emulated servers", "by hand"),
            ("mean seconds of a query, emulated servers", "ours"),
            ("mean seconds of a query, emulated servers", "lower bound"),
            ("what could be won: mean seconds in virtual time", "by hand"),
            ("what could be won: mean seconds in virtual time", "ours"),
            ("what could be won: mean seconds in virtual time", "clairvoyant"),
            ("faults of one of the LLM servers", "mean_s"),
        ),
    ),
    Benchmark(
        "programs",
        "Whose turn it is: orders of service on mixtures of programs, beside arrival order and a clairvoyant",
        "benchmarks.programs.benchmark",
        picture="benchmarks.programs.picture",
    ),
)

BENCHMARKS: Mapping[str, Benchmark] = {benchmark.name: benchmark for benchmark in _ALL}


def run(name: str, options: BenchmarkOptions | None = None) -> Report:
    """Run one benchmark.

    Raises:
        ConfigError: there is no such benchmark.
    """
    check_name("benchmark", name, BENCHMARKS)
    return BENCHMARKS[name].run(options or BenchmarkOptions())
