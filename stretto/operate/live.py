"""What the live page shows: workers, programs, tenants, and the slowest programs of the last hour."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stretto.model.record import record
from stretto.operate.explanations import LABELS, summary_json
from stretto.operate.program_times import ProgramTime
from stretto.operate.request_metrics import Counted
from stretto.operate.watch import Watch

_MAX_PROGRAMS = 200
_MAX_SLOW = 25
_SILENT_S = 300.0
"""Seconds without a request after which a program counts as one that goes on no more."""
_HOUR_S = 3600.0


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
    """What a request waits for, since when, and whether it is held for room in KV memory."""

    program: str
    since_s: float
    why: str
    is_held: bool


class FleetView(NamedTuple):
    """The present state of a door, taken at one time."""

    workers: Sequence[WorkerPicture]
    waits: Sequence[LiveWait]
    num_waiting: int
    num_held: int


def program_gauge(watch: Watch, fleet: FleetView, now_s: float) -> Mapping[str, int]:
    """Return how many programs of the last minutes are in each state."""
    counts = dict.fromkeys(("running", "waiting", "held", "silent"), 0)
    waits = {one.program: one for one in fleet.waits}
    for program in watch.programs:
        if (state := _state_of(program, waits.get(program.program), now_s)) is not None:
            counts[state] += 1
    return counts


def live_json(watch: Watch, fleet: FleetView, now_s: float) -> dict[str, Any]:
    """Return what the live page shows."""
    waits = {one.program: one for one in fleet.waits}
    rows = [_program_row(one, waits.get(one.program), now_s) for one in watch.programs]
    present = [row for row in rows if row is not None]
    order = {"held": 0, "waiting": 1, "running": 2, "silent": 3}
    present.sort(key=lambda row: (order[row["state"]], -row["for_s"]))
    ended = [one for one in watch.programs if now_s - one.last_s < _HOUR_S and one.requests]
    slowest = sorted(ended, key=lambda one: -one.wall_s)[:_MAX_SLOW]
    by_worker, by_tenant = _counted(watch.metrics.totals())
    return {
        "now_s": round(now_s, 3),
        "workers": [_worker_row(one, by_worker[one.name]) for one in fleet.workers],
        "waiting": fleet.num_waiting,
        "held": fleet.num_held,
        "programs": present[:_MAX_PROGRAMS],
        "num_programs": len(present),
        "tenants": [_tenant_row(name, one, present) for name, one in sorted(by_tenant.items())],
        "slowest": [summary_json(one, now_s) for one in slowest],
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


def _tenant_row(name: str, counted: Counted, programs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    own = [row["state"] for row in programs if row.get("tenant", "") == name]
    return {
        "tenant": name,
        "programs": len(own),
        "running": own.count("running"),
        "held": own.count("held"),
        **counted._asdict(),
    }


def _state_of(program: ProgramTime, wait: LiveWait | None, now_s: float) -> str | None:
    """Return what a program does; None if it has been silent for long."""
    if program.open:
        if any(one.trace.tries for one in program.open.values()):
            return "running"
        return "held" if wait is not None and wait.is_held else "waiting"
    if wait is not None:
        return "held" if wait.is_held else "waiting"
    return "silent" if now_s - program.last_s < _SILENT_S else None


def _program_row(program: ProgramTime, wait: LiveWait | None, now_s: float) -> dict[str, Any] | None:
    state = _state_of(program, wait, now_s)
    if state is None:
        return None
    if state in ("held", "waiting") and wait is not None:
        since_s = wait.since_s
    elif program.open:
        since_s = min(one.begun_s for one in program.open.values())
    else:
        since_s = program.last_s
    running = next((one.trace.tries[-1].name for one in program.open.values() if one.trace.tries), "")
    return {
        **summary_json(program, now_s),
        "state": state,
        "for_s": round(now_s - since_s, 3),
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
