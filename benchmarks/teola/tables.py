"""Names and rows of the report's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from benchmarks.report import Row, Value
from benchmarks.teola import costs
from benchmarks.teola.compare import Compared
from benchmarks.teola.schemes import HAND_WRITTEN, OURS, PAPERS
from stretto.model.profile import Profile

APPS = ("search", "naive", "advanced")
END_TO_END = "Figure 8: mean seconds end to end"
SPEED_UPS = "Figure 8: speed-up of ours"
TAILS = "p99 seconds end to end"
PASSES = "Figure 9: passes, advanced RAG, TruthfulQA"
BATCHING = "Figure 10: batching, advanced RAG, TruthfulQA, all passes"
BATCHING_BOTH = "batching, advanced RAG, both sets, all passes"
NEVER_WAITING, WAITING = "blind, never waiting", "blind, waiting (TO)"
OVERHEAD = "Figure 11: where the time goes, advanced RAG, TruthfulQA"
SHARING = "naive and advanced RAG on the same engines"
VARIANTS = "speed-up of ours, otherwise"
SPEEDS = "speeds in virtual time"
PAPER = "Teola, paper"
LOW, HIGH = "low", "high"

Main: TypeAlias = Mapping[tuple[str, str], Sequence[Compared]]
"""Comparisons of all schemes at every load, by app and model."""


def end_to_end_rows(main: Main, loads: Sequence[str]) -> list[Row]:
    """Rows with means, speed-ups and 99th percentiles."""
    rows = []
    for (app, model), compared in main.items():
        for load, one in zip(loads, compared, strict=True):
            name = f"{app}, {model}, {load}"
            rows.append(Row(END_TO_END, name, {"per_s": one.per_s, **means(one)}, "simulated"))
            rows.append(Row(SPEED_UPS, name, speed_ups(one), "simulated"))
            rows.append(Row(TAILS, name, dict(one.p99_s), "simulated"))
    return sorted(rows, key=lambda row: (END_TO_END, SPEED_UPS, TAILS).index(row.table))


def means(one: Compared) -> dict[str, Value]:
    values: dict[str, Value] = {name: one.mean_s(name) for name in one.means_s}
    return {
        **values,
        "query_bound_s": one.alone_s,
        "load_bound_s": one.bound_s,
        "ours_over_bound": one.mean_s(OURS) / one.bound_s,
    }


def speed_ups(one: Compared) -> dict[str, Value]:
    """Speed-ups over each scheme, the greatest over the paper's, and the spread by seed over the hand-written
    one."""
    values: dict[str, Value] = {name: one.speed_up(OURS, name) for name in one.means_s if name != OURS}
    return {
        **values,
        "greatest": max((one.speed_up(OURS, n) for n in PAPERS if n not in one.overloaded), default=None),
        "over_hand-written_by_seed": one.spread(OURS, HAND_WRITTEN),
        "possible": max(one.mean_s(n) for n in PAPERS if n not in one.overloaded) / one.bound_s
        if one.overloaded < set(PAPERS)
        else None,
        "overloaded": ", ".join(name for name in one.means_s if name in one.overloaded),
    }


def speed_rows() -> list[Row]:
    rows = [_profile_row(name, profile, costs.SOURCES[name]) for name, profile in costs.engines().items()]
    rows.append(
        _profile_row("embedding, the paper's examples", costs.PAPER_EMBEDDING, costs.PAPER_EMBEDDING_SOURCE)
    )
    for model in (*costs.models().values(), costs.SLOW, costs.PAPER):
        values: dict[str, Value] = {
            "decode_ms": model.cost.step_s(costs.one_token(512)) * 1e3,
            **{f"prefill_{n}_ms": model.cost.step_s(costs.prompt(n)) * 1e3 for n in (64, 256, 512)},
            "kv_tokens": model.kv_tokens,
        }
        rows.append(Row(SPEEDS, f"LLM {model.name}, a step", values, "computed", model.source))
    return rows


def _profile_row(name: str, profile: Profile, source: str) -> Row:
    values: dict[str, Value] = {
        "base_ms": profile.base_s * 1e3,
        "per_unit_ms": profile.per_unit_s * 1e3,
        "max_batch": profile.max_efficient_batch,
    }
    return Row(SPEEDS, name, values, "quoted", source)
