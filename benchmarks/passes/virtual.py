"""Simulates passes and policies in virtual time, at the speeds of the paper's machine (`TIMINGS`).

The results are deterministic and equal on every machine.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.common.query_bound import QueryBound, lower_bound
from benchmarks.common.virtual_engines import (
    TIMINGS,
    TOY_PREFILL,
    Lengths,
    inputs,
    profiles_of,
    virtual_engines,
)
from benchmarks.report import Row, Value
from stretto.apps import APPS
from stretto.apps.plan_cache import PlanCache
from stretto.graph.passes.pipeline import PASSES
from stretto.model.deployment import Deployment
from stretto.model.profile import Profile
from stretto.sched.actions import Reply
from stretto.sched.orders import ORDERS
from stretto.sim.driver import VirtualDriver
from stretto.trace.summary import quantile

END_TO_END = "end to end, one query"
ABLATION = "each pass, one query"
POLICIES_ONE = "policies, one query"
TIMINGS_TABLE = "speeds in virtual time"
PAPER = "Teola, paper"
ALL = tuple(PASSES)


def policies_load_table(num_queries: int, per_s: float) -> str:
    """Name of the table that compares policies under load."""
    return f"policies, Poisson load of {num_queries} queries, {per_s:g} a second"


@dataclass(frozen=True, slots=True)
class Setting:
    """A case: the app, the lengths of outputs, and the speed of prefills."""

    app: str
    answer_tokens: int
    num_chunks: int
    llm: Profile | None = None

    @property
    def name(self) -> str:
        """Name of the case in the tables."""
        toy = "" if self.llm is None else ", slow prefill"
        return f"{self.app}, {self.answer_tokens} tokens{toy}"

    def engines(self, policy: str = "topology_aware") -> list[Deployment]:
        """Two LLM instances, one of every other engine."""
        return virtual_engines(Lengths(answer_tokens=self.answer_tokens), policy=policy, llm=self.llm)


def settings(num_chunks: int) -> list[Setting]:
    """Cases: both apps with short and long answers, and with the paper's slow prefill."""
    base = [Setting(app, tokens, num_chunks) for app in ("advanced", "naive") for tokens in (10, 40)]
    return [*base, replace(base[0], llm=TOY_PREFILL.profile), replace(base[2], llm=TOY_PREFILL.profile)]


def end_to_end_s(
    setting: Setting, passes: Sequence[str], bound: QueryBound | None, policy: str = "topology_aware"
) -> float:
    """Virtual seconds of one query; its time and outputs are checked against the bound."""
    ends_s, replies = _run(setting, passes, policy, [0.0])
    if bound is not None:
        assert ends_s[0] >= bound.seconds - 1e-9, f"{setting.name}: {ends_s[0]} beats its bound {bound}"
        assert replies[0].outputs == bound.outputs, f"{setting.name}: other outputs with passes {passes}"
    return ends_s[0]


def bound_of(setting: Setting) -> QueryBound:
    """Bound of the case's one query."""
    graph = APPS[setting.app]().lower({})
    return lower_bound(graph, inputs(setting.num_chunks), setting.engines())


def _run(
    setting: Setting, passes: Sequence[str], policy: str, arrivals_s: Sequence[float]
) -> tuple[list[float], list[Reply]]:
    """Run queries, each with its own document; returns latencies and replies."""
    engines = setting.engines(policy)
    egraph = PlanCache(profiles_of(engines)).plan(APPS[setting.app](), {}, tuple(passes))
    driver = VirtualDriver(engines)
    for number, arrival_s in enumerate(arrivals_s):
        driver.submit(f"q{number}", egraph, inputs(setting.num_chunks, number), at_s=arrival_s)
    replies = driver.run()
    latencies_s = []
    for number in range(len(arrivals_s)):
        error = replies[f"q{number}"].error
        if error is not None:
            raise error
        span = driver.recorder.queries[f"q{number}"]
        assert span.end_s is not None
        latencies_s.append(span.end_s - span.start_s)
    return latencies_s, [replies[f"q{number}"] for number in range(len(arrivals_s))]


def end_to_end_rows(num_chunks: int) -> list[Row]:
    """Rows with no passes and with all passes, and their distance from the bound."""
    rows = []
    for setting in settings(num_chunks):
        bound = bound_of(setting)
        none_s, all_s = (end_to_end_s(setting, passes, bound) for passes in ((), ALL))
        values: dict[str, Value] = {
            "none_s": none_s,
            "all_s": all_s,
            "speed_up": none_s / all_s,
            "critical_path_s": bound.critical_path_s,
            "bound_s": bound.seconds,
            "all_over_bound": all_s / bound.seconds,
            "possible_speed_up": none_s / bound.seconds,
        }
        rows.append(Row(END_TO_END, setting.name, values, "simulated"))
    note = "up to, over all apps, workloads and models; the baseline is another program (LlamaIndex modules)"
    rows.append(Row(END_TO_END, PAPER, {"speed_up": 2.09}, "quoted", note))
    return rows


def ablation_rows(num_chunks: int) -> list[Row]:
    """Rows with no passes, each pass alone, all but each, and all passes."""
    chosen = [setting for setting in settings(num_chunks) if setting.answer_tokens == 10]
    bounds = [bound_of(setting) for setting in chosen]
    cases: dict[str, tuple[str, ...]] = {"none": ()}
    cases |= {f"only {name}": (name,) for name in ALL}
    cases |= {f"all but {name}": tuple(other for other in ALL if other != name) for name in ALL}
    cases["all"] = ALL
    return [
        Row(
            ABLATION,
            case,
            {
                f"{setting.name}, s": end_to_end_s(setting, passes, bound)
                for setting, bound in zip(chosen, bounds, strict=True)
            },
            "simulated",
        )
        for case, passes in cases.items()
    ]


def policy_rows(num_chunks: int, num_queries: int, per_s: float, seeds: Sequence[int]) -> list[Row]:
    """Rows for each policy, with all passes and with none: one query alone, and many at random times."""
    rows = []
    setting = Setting("advanced", 10, num_chunks)
    bound = bound_of(setting)
    for policy in ORDERS:
        values: dict[str, Value] = {
            f"{name}_s": end_to_end_s(setting, passes, bound, policy)
            for name, passes in (("none", ()), ("all", ALL))
        }
        rows.append(Row(POLICIES_ONE, policy, values, "simulated"))
    table = policies_load_table(num_queries, per_s)
    for name, passes in (("none", ()), ("all", ALL)):
        for policy in ORDERS:
            latencies_s = [_load_s(setting, passes, policy, num_queries, per_s, seed) for seed in seeds]
            means_s = [statistics.fmean(latencies) for latencies in latencies_s]
            every_s = [latency for latencies in latencies_s for latency in latencies]
            values = {
                "mean_s": statistics.fmean(means_s),
                "least_mean_s": min(means_s),
                "greatest_mean_s": max(means_s),
                "p50_s": quantile(every_s, 0.5),
                "p99_s": quantile(every_s, 0.99),
            }
            rows.append(Row(table, f"{policy}, passes {name}", values, "simulated"))
    return rows


def _load_s(
    setting: Setting, passes: Sequence[str], policy: str, num_queries: int, per_s: float, seed: int
) -> list[float]:
    generator = random.Random(seed)
    arrivals_s = [0.0]
    while len(arrivals_s) < num_queries:
        arrivals_s.append(arrivals_s[-1] + generator.expovariate(per_s))
    return _run(setting, passes, policy, arrivals_s)[0]


def timing_rows() -> list[Row]:
    """Rows with the speeds and their sources."""
    rows = []
    for timing in (*TIMINGS, TOY_PREFILL):
        profile = timing.profile
        values: dict[str, Value] = {
            "base_ms": profile.base_s * 1e3,
            "per_unit_ms": profile.per_unit_s * 1e3,
            "per_output_ms": profile.per_output_s * 1e3,
            "max_efficient_batch": profile.max_efficient_batch,
        }
        name = "llm, slow prefill" if timing is TOY_PREFILL else timing.engine
        rows.append(Row(TIMINGS_TABLE, name, values, "quoted", timing.source))
    return rows


def virtual_rows(
    num_chunks: int, num_queries: int, per_s: float, seeds: Sequence[int], say: Callable[[str], None]
) -> list[Row]:
    """All rows of the simulation."""
    say("virtual time: end to end and bounds")
    rows = end_to_end_rows(num_chunks)
    say("virtual time: each pass")
    rows += ablation_rows(num_chunks)
    say("virtual time: policies")
    return rows + policy_rows(num_chunks, num_queries, per_s, seeds) + timing_rows()
