"""`stretto workload`: shows what the prompts of a trace share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli import options

if TYPE_CHECKING:
    from stretto.trace.agents.sharing import KnownPrompt

_LABELS = {
    "prompt_tokens": "prompt, tokens",
    "output_tokens": "output, tokens",
    "prompt_to_output": "prompt / output",
    "shared_share": "shared part / prompt",
    "key_share": "key portion / prompt",
    "key_sharers": "requests of a key portion",
    "gap_ms": "between arrivals, ms",
}


def workload(
    file: Annotated[
        Path,
        typer.Argument(
            help="Trace of requests, in any format that `stretto load` takes; or a .csv file of Azure's.",
            metavar="FILE",
        ),
    ],
    as_json: options.AsJson = False,
) -> None:
    """Show what the prompts of a trace share: the numbers that decide what placement by prefixes can save.

    A part of a prompt is shared if another prompt begins with it too. The key portion is the deepest such
    part, or own part, that is longer than all before it. Requests that wait for others have no time of
    arrival.
    """
    from rich.console import Console
    from rich.table import Table

    from stretto.trace.agents.sharing import found_share, quantities, study_prompts

    prompts, arrivals_s = _read(file)
    studied = study_prompts(prompts)
    found = dict(quantities(studied))
    if len(arrivals_s) > 1:
        found["gap_ms"] = [1000 * (after - before) for before, after in pairwise(sorted(arrivals_s))]
    table = {name: _distribution(values) for name, values in found.items()}
    share = found_share(studied)
    if as_json:
        print(json.dumps({"requests": len(studied), "found_share": share, **table}, indent=2))
        return
    shown = Table("", box=None, pad_edge=False)
    for heading in ("mean", "deviation", "p10", "p50", "p90", "largest"):
        shown.add_column(heading, justify="right")
    for name, distribution in table.items():
        shown.add_row(_LABELS[name], *(f"{value:.4g}" for value in distribution.values()))
    console = Console(emoji=False)
    console.print(shown)
    console.print(
        f"{len(studied)} requests; a cache without limit would find {share:.1%} of all tokens",
        highlight=False,
    )


def _read(file: Path) -> tuple[Iterable[KnownPrompt], Sequence[float]]:
    """Return the prompts of a trace, and the times of arrival of requests that wait for no other."""
    from stretto.sim.traces import read_azure
    from stretto.trace.agents.formats import read_agent_trace
    from stretto.trace.agents.known_prompts import known_prompts
    from stretto.trace.agents.sharing import KnownPrompt

    if file.suffix == ".csv":
        requests = read_azure(file)
        prompts = [
            KnownPrompt((number,), one.prompt_tokens, max(1, one.prompt_tokens), one.output_tokens)
            for number, one in enumerate(requests)
        ]
        return prompts, [one.arrival_s for one in requests]
    trace = read_agent_trace(file)
    return known_prompts(trace), [one.arrival_s for one in trace.requests if not one.after]


def _distribution(values: Sequence[float]) -> Mapping[str, float]:
    from stretto.trace.summary import quantile

    mean = sum(values) / len(values)
    return {
        "mean": mean,
        "deviation": (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5,
        "p10": quantile(values, 0.1),
        "p50": quantile(values, 0.5),
        "p90": quantile(values, 0.9),
        "largest": max(values),
    }
