"""Draws a carried-out plan as text: one line for each device, one column for each part of the time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stretto.planner.execution import Execution, ReplicaSpan
from stretto.planner.machine import PlanMachine

LOADING, WAITING, IDLE = "·", "-", " "
_WIDTH = 80
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def letters(models: Sequence[str]) -> dict[str, str]:
    """Return a letter for each model; beyond 52 models, letters repeat."""
    return {model: _LETTERS[at % len(_LETTERS)] for at, model in enumerate(models)}


def gantt(done: Execution, models: Sequence[str], machine: PlanMachine) -> Iterator[str]:
    """Yield the lines of the chart: the model's letter while a replica computes, dots while it loads, dashes
    while it is loaded and waits for input.
    """
    names = letters(models)
    each_s = done.makespan_s / _WIDTH
    width = len(f"{machine.device} {machine.num_devices - 1} ")
    for device in range(machine.num_devices):
        spans = [span for span in done.spans if device in span.replica.devices]
        cells = (_cell(spans, at * each_s, (at + 1) * each_s, names) for at in range(_WIDTH))
        yield f"{f'{machine.device} {device}':<{width}}|{''.join(cells)}|"
    end = f"{done.makespan_s:.0f} s"
    yield f"{'':{width}}0{end:>{_WIDTH}}"


def _cell(spans: Sequence[ReplicaSpan], from_s: float, until_s: float, names: dict[str, str]) -> str:
    """Return what a device does for the longest part of a time."""
    middle_s = (from_s + until_s) / 2
    for span in spans:
        if span.start_s <= middle_s < span.end_s:
            if middle_s < span.ready_s:
                return LOADING
            waits_s = sum(
                max(0.0, min(end_s, until_s) - max(begin_s, from_s)) for begin_s, end_s in span.waits_s
            )
            return WAITING if waits_s > (until_s - from_s) / 2 else names[span.replica.model]
    return IDLE
