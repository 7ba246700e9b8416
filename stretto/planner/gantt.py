"""Draws a carried-out plan as text: one line for each device, one column for each part of the time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stretto.planner.execute import Execution, ReplicaSpan
from stretto.planner.machine import PlanMachine

LOADING = "·"
IDLE = " "
_WIDTH = 80
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def letters(nodes: Sequence[str]) -> dict[str, str]:
    """Return a letter for each node; beyond 52 nodes, letters repeat."""
    return {node: _LETTERS[at % len(_LETTERS)] for at, node in enumerate(nodes)}


def gantt(done: Execution, nodes: Sequence[str], machine: PlanMachine) -> Iterator[str]:
    """Yield the lines of the chart: the node's letter while a replica runs, dots while it loads."""
    names = letters(nodes)
    width = len(f"{machine.device} {machine.num_devices - 1} ")
    for device in range(machine.num_devices):
        spans = [span for span in done.spans if device in span.replica.devices]
        cells = (_cell(spans, (at + 0.5) * done.makespan_s / _WIDTH, names) for at in range(_WIDTH))
        yield f"{f'{machine.device} {device}':<{width}}|{''.join(cells)}|"
    end = f"{done.makespan_s:.0f} s"
    yield f"{'':{width}}0{end:>{_WIDTH}}"


def _cell(spans: Sequence[ReplicaSpan], at_s: float, names: dict[str, str]) -> str:
    for span in spans:
        if span.start_s <= at_s < span.end_s:
            return LOADING if at_s < span.ready_s else names[span.replica.node]
    return IDLE
