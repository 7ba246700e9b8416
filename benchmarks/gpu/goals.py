"""Goals for the results on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.gpu.checks import KERNELS, TOKENS
from benchmarks.gpu.model import DECODING, PARROT, SHARING
from benchmarks.report import Goal, Row


def goals(rows: Sequence[Row]) -> tuple[Goal, ...]:
    """Goals that can be judged from the rows so far."""
    found = []

    def numbers(table: str, column: str, prefix: str = "") -> list[float]:
        values = [
            row.values.get(column)
            for row in rows
            if row.table == table and row.name.startswith(prefix) and row.origin == "measured"
        ]
        return [value for value in values if isinstance(value, int | float)]

    def at_most(name: str, values: list[float], worst: Callable[[list[float]], float], goal: float) -> None:
        if values:
            found.append(Goal(name, worst(values), goal, "lower"))

    def at_least(name: str, values: list[float], goal: float) -> None:
        if values:
            found.append(Goal(name, min(values), goal, "higher"))

    at_most("kernels' largest error, float32", numbers(KERNELS, "max_error", "float32"), max, 1e-5)
    at_most("tokens that differ from transformers", numbers(TOKENS, "wrong"), sum, 0)
    at_least("share of the memory bandwidth in a decode step", numbers(DECODING, "share_of_bandwidth"), 0.7)
    for batch, goal in PARROT.items():
        name = f"time per token of {batch} behind a prefix, each by itself over together"
        at_least(name, numbers(SHARING, "ratio", f"{batch} behind"), goal)
    return tuple(found)
