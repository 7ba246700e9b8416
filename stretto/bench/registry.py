"""The benchmarks, by name, and how to run one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from stretto.bench.report import Report
from stretto.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Options:
    """What a benchmark is run with.

    Attributes:
        quick: fewer repetitions, under two minutes.
        data: a folder with real inputs; None for those that come with the project.
        seed: of everything random.
        say: told what is being done.
    """

    quick: bool = False
    data: Path | None = None
    seed: int = 0
    say: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One question, answered by `run_benchmark(options) -> Report` of `module`, imported when it is run.

    `charts` are the (table, column) pairs that a plot shows.
    """

    name: str
    summary: str
    module: str
    charts: tuple[tuple[str, str], ...] = ()

    def run(self, options: Options) -> Report:
        """Run it."""
        report: Report = import_module(self.module).run_benchmark(options)
        return report


_ALL = (
    Benchmark(
        "overhead",
        "What orchestration costs: per no-op primitive, per planned query, per second of waiting",
        "stretto.bench.overhead",
        (("chain of 10, then fan-out of 10", "median_us_per_node"),),
    ),
    Benchmark(
        "passes",
        "What the passes and policies save, end to end: in virtual time and with the engines of this machine",
        "stretto.bench.passes",
        (("end to end, one query", "none_s"), ("end to end, one query", "all_s")),
    ),
    Benchmark(
        "llm",
        "What the in-process LLM engine does with a small model, next to transformers",
        "stretto.bench.llm",
        (("tokens/s by concurrency", "median_tokens_per_s"),),
    ),
)

BENCHMARKS: Mapping[str, Benchmark] = {benchmark.name: benchmark for benchmark in _ALL}


def run(
    name: str,
    *,
    quick: bool = False,
    data: Path | None = None,
    seed: int = 0,
    say: Callable[[str], None] | None = None,
) -> Report:
    """Run one benchmark.

    Raises:
        ConfigError: there is no such benchmark.
    """
    if name not in BENCHMARKS:
        raise ConfigError(f"there is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    options = Options(quick, data, seed) if say is None else Options(quick, data, seed, say)
    return BENCHMARKS[name].run(options)
