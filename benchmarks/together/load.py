"""The load: calls with Azure's arrivals and lengths, and offline calls that all wait from the beginning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from stretto.sim.traces import TraceRequest, read_azure

LONGEST_PROMPT = 3500
LONGEST_OUTPUT = 500
"""Both fit into the context of the model together."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request of the load: when it comes, and its lengths in tokens."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int


def azure_trace(data: Path) -> list[TraceRequest]:
    """Return the hour of conversations that Azure published."""
    return read_azure(data / "traces" / "azure_llm_2023_conv.csv")


def arrivals(trace: Sequence[TraceRequest], rate_per_s: float, seconds: float, seed: int) -> list[Call]:
    """Return the calls of the first `seconds` of a trace, of which a random part is kept, so that
    `rate_per_s` come in the mean of the whole trace.
    """
    draw = Random(f"arrivals {seed}")
    share = rate_per_s * trace[-1].arrival_s / len(trace)
    return [_call(one, one.arrival_s) for one in trace if one.arrival_s < seconds and draw.random() < share]


def waiting(trace: Sequence[TraceRequest], count: int, seed: int) -> list[Call]:
    """Return `count` calls of a trace's lengths that come at the beginning."""
    draw = Random(f"offline {seed}")
    return [_call(draw.choice(trace), 0.0) for _ in range(count)]


def _call(one: TraceRequest, arrival_s: float) -> Call:
    prompt_tokens = max(1, min(one.prompt_tokens, LONGEST_PROMPT))
    return Call(arrival_s, prompt_tokens, max(1, min(one.output_tokens, LONGEST_OUTPUT)))
