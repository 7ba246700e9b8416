"""What the live page shows: workers, programs, tenants, batches, and the slowest programs of an hour."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest, nsmallest
from typing import Any, NamedTuple

from stretto.model.record import record
from stretto.operate.explanations import LABELS, summary_json
from stretto.operate.prefix.shown import faults_json
from stretto.operate.program_times import ProgramTime
from stretto.operate.request_metrics import Counted
from stretto.operate.watch import Watch
from stretto.sched.request_trace import TenantProgram

_MAX_PROGRAMS = 200
_MAX_SLOW = 25
_MAX_BATCHES = 100
_SILENT_S = 300.0
"""Seconds without a request after which a program counts as one that goes on no more."""
_HOUR_S = 3600.0
_STATES = ("held", "waiting", "running", "silent")
"""States of programs, in the order in which the page shows them."""


@record
class WorkerPicture:
    """What is shown of a worker, or of an instance of an engine.

    Attributes:
        kv_tokens: size of its KV memory; None if it is not known.
        num_slots: requests that it runs at once; None if it is not known.
    """

    name: str
    state: str
    num_running: int
    num_slots: int | None = None
    kv_claimed: int = 0
    kv_tokens: int | None = None
    models: Sequence[str] = ()
    reason: str = ""


class LiveWait(NamedTuple):
    """What a request of a program waits for, since when, and whether it is held for room in KV memory."""

    program: TenantProgram
    since_s: float
    why: str
    is_held: bool


class BatchPicture(NamedTuple):
    """What is shown of a batch that has not ended.

    Attributes:
        completed, failed, total: numbers of its lines; `total` is 0 until its file was read.
        running: lines that run at engines.
        left_s: seconds that are left of its window.
        why: what it waits for; "" for nothing.
    """

    batch: str
    tenant: str
    status: str
    completed: int
    failed: int
    total: int
    running: int
    left_s: float
    why: str


class FleetView(NamedTuple):
    """The present state of a door, taken at one time."""

    workers: Sequence[WorkerPicture]
    waits: Sequence[LiveWait]
    num_waiting: int
    num_held: int
    batches: Sequence[BatchPicture] = ()


def program_gauge(watch: Watch, fleet: FleetView, now_s: float) -> Mapping[str, int]:
    """Return how many programs of the last minutes are in each state."""
    counts = dict.fromkeys(_STATES, 0)
    for state, _, _ in _present(watch, fleet, now_s):
        counts[state] += 1
    return counts


def live_json(watch: Watch, fleet: FleetView, now_s: float) -> dict[str, Any]:
    """Return what the live page shows."""
    present = list(_present(watch, fleet, now_s))
    by_state = Counter((program.tenant, state) for state, program, _ in present)
    shown = nsmallest(_MAX_PROGRAMS, present, key=lambda one: (_STATES.index(one[0]), _since_s(*one)))
    ended = [one for one in watch.programs if now_s - one.last_s < _HOUR_S and one.requests]
    slowest = nlargest(_MAX_SLOW, ended, key=lambda one: one.wall_s)
    by_worker, by_tenant = _counted(watch.metrics.totals())
    return {
        "now_s": round(now_s, 3),
        "workers": [_worker_row(one, by_worker[one.name]) for one in fleet.workers],
        "waiting": fleet.num_waiting,
        "held": fleet.num_held,
        "programs": [_program_row(*one, now_s) for one in shown],
        "num_programs": len(present),
        "tenants": [
            {"tenant": name, **{state: by_state[name, state] for state in _STATES}, **counts._asdict()}
            for name, counts in sorted(by_tenant.items())
        ],
        "batches": [one._asdict() for one in fleet.batches[:_MAX_BATCHES]],
        "num_batches": len(fleet.batches),
        "slowest": [summary_json(one, now_s) for one in slowest],
        "faults": faults_json(watch.prompts),
        "labels": LABELS,
    }


def _worker_row(one: WorkerPicture, counted: Counted) -> dict[str, Any]:
    return {
        "name": one.name,
        "state": one.state,
        "reason": one.reason,
        "running": one.num_running,
        "slots": one.num_slots,
        "kv_claimed": one.kv_claimed,
        "kv_tokens": one.kv_tokens,
        "models": list(one.models),
        **counted._asdict(),
    }


def _present(
    watch: Watch, fleet: FleetView, now_s: float
) -> Iterator[tuple[str, ProgramTime, LiveWait | None]]:
    """Yield the programs that have not been silent for long, each with its state and what it waits for."""
    waits = {one.program: one for one in fleet.waits}
    for program in watch.programs:
        wait = waits.get((program.tenant, program.program))
        if (state := _state_of(program, wait, now_s)) is not None:
            yield state, program, wait


def _state_of(program: ProgramTime, wait: LiveWait | None, now_s: float) -> str | None:
    """Return what a program does; None if it has been silent for long."""
    if program.open:
        if any(one.trace.tries for one in program.open.values()):
            return "running"
        return "held" if wait is not None and wait.is_held else "waiting"
    if wait is not None:
        return "held" if wait.is_held else "waiting"
    return "silent" if now_s - program.last_s < _SILENT_S else None


def _since_s(state: str, program: ProgramTime, wait: LiveWait | None) -> float:
    """Return since when a program is in its state."""
    if state in ("held", "waiting") and wait is not None:
        return wait.since_s
    return min(one.begun_s for one in program.open.values()) if program.open else program.last_s


def _program_row(state: str, program: ProgramTime, wait: LiveWait | None, now_s: float) -> dict[str, Any]:
    running = next((one.trace.tries[-1].name for one in program.open.values() if one.trace.tries), "")
    return {
        **summary_json(program, now_s),
        "state": state,
        "for_s": round(now_s - _since_s(state, program, wait), 3),
        "why": wait.why if wait is not None and state != "running" else "",
        "worker": running,
    }


def _counted(
    totals: Mapping[tuple[str, str], Counted],
) -> tuple[defaultdict[str, Counted], defaultdict[str, Counted]]:
    """Return the counts by worker and by tenant."""
    by_worker: defaultdict[str, Counted] = defaultdict(Counted)
    by_tenant: defaultdict[str, Counted] = defaultdict(Counted)
    for (tenant, worker), more in totals.items():
        for counts, name in ((by_worker, worker), (by_tenant, tenant)):
            counts[name] = Counted(*map(sum, zip(counts[name], more, strict=True)))
    return by_worker, by_tenant
