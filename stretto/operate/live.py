"""What the live page shows: workers, programs, tenants, batches, and the slowest programs of an hour."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from stretto.model.record import record
from stretto.operate.explanations import LABELS, summary_json
from stretto.operate.prefix.shown import faults_json
from stretto.operate.program_times import ProgramTime, ProgramTimes
from stretto.operate.request_metrics import Counted
from stretto.operate.watch import Watch
from stretto.sched.request_trace import TenantProgram

_MAX_PROGRAMS = 200
_MAX_SILENT = 50
"""Programs that are shown, and those among them that neither wait nor run."""
_MAX_BATCHES = 100
_SILENT_S = 300.0
"""Seconds without a request after which a program counts as one that goes on no more."""
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


class _PresentProgram(NamedTuple):
    """A program that has not been silent for long, since when it does what it does, and what it waits for."""

    since_s: float
    program: ProgramTime
    wait: LiveWait | None = None
    worker: str = ""


class _Present(NamedTuple):
    """The programs that have asked for something lately.

    Attributes:
        busy: programs that wait or run, by their state.
        num_silent: number of the other programs, by tenant.
        silent: some of the others, those that have been silent for longest.
    """

    busy: Mapping[str, list[_PresentProgram]]
    num_silent: Counter[str]
    silent: Sequence[ProgramTime]

    @property
    def num_by_state(self) -> Mapping[str, int]:
        """Number of programs in each state."""
        busy = {state: len(programs) for state, programs in self.busy.items()}
        return {**busy, "silent": self.num_silent.total()}


def program_gauge(watch: Watch, fleet: FleetView, now_s: float) -> Mapping[str, int]:
    """Return how many programs of the last minutes are in each state."""
    return _present(watch.programs, fleet, now_s).num_by_state


def live_json(watch: Watch, fleet: FleetView, now_s: float) -> dict[str, Any]:
    """Return what the live page shows."""
    present = _present(watch.programs, fleet, now_s)
    busy, num_silent, silent = present
    by_state = Counter((one.program.tenant, state) for state, programs in busy.items() for one in programs)
    by_state.update({(tenant, "silent"): num for tenant, num in num_silent.items()})
    rows: list[dict[str, Any]] = []
    for state, programs in busy.items():
        first = sorted(programs, key=attrgetter("since_s"))[: _MAX_PROGRAMS - len(rows)]
        rows += [_program_row(state, one, now_s) for one in first]
    longest = silent[: _MAX_PROGRAMS - len(rows)]
    rows += [_program_row("silent", _PresentProgram(one.last_s, one), now_s) for one in longest]
    slowest = watch.programs.slowest(now_s)
    by_worker, by_tenant = _counted(watch.metrics.totals())
    return {
        "now_s": round(now_s, 3),
        "workers": [_worker_row(one, by_worker[one.name]) for one in fleet.workers],
        "waiting": fleet.num_waiting,
        "held": fleet.num_held,
        "programs": rows,
        "states": present.num_by_state,
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


def _present(programs: ProgramTimes, fleet: FleetView, now_s: float) -> _Present:
    """Return the programs that have asked for something lately. They are not all looked at: nearly all are
    silent.
    """
    waits = {one.program: one for one in fleet.waits}
    active = dict(programs.open)
    active |= {key: found for key in waits if (found := programs.get(key)) is not None}
    busy: dict[str, list[_PresentProgram]] = {"held": [], "waiting": [], "running": []}
    for key, program in active.items():
        wait = waits.get(key)
        running = [one for one in program.open.values() if one.trace.tries]
        if running:
            since_s, worker = min(one.begun_s for one in program.open.values()), running[0].worker
            busy["running"].append(_PresentProgram(since_s, program, wait, worker))
        elif wait is not None:
            state = "held" if wait.is_held else "waiting"
            busy[state].append(_PresentProgram(wait.since_s, program, wait))
        else:
            since_s = min(one.begun_s for one in program.open.values())
            busy["waiting"].append(_PresentProgram(since_s, program))
    num_silent = Counter(programs.num_by_tenant)
    num_silent.subtract(tenant for tenant, _ in active)
    longest: list[ProgramTime] = []
    for program in programs:
        if (program.tenant, program.program) in active:
            continue
        if now_s - program.last_s >= _SILENT_S:
            num_silent[program.tenant] -= 1
        elif len(longest) < _MAX_SILENT:
            longest.append(program)
        else:
            break
    return _Present(busy, num_silent, longest)


def _program_row(state: str, one: _PresentProgram, now_s: float) -> dict[str, Any]:
    return {
        **summary_json(one.program, now_s),
        "state": state,
        "for_s": round(now_s - one.since_s, 3),
        "why": one.wait.why if one.wait is not None and state != "running" else "",
        "worker": one.worker,
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
