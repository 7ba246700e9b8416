"""What the engines of a runtime are doing now, as metrics."""

from __future__ import annotations

from collections.abc import Collection

from stretto.cluster.transitions import TRANSITIONS
from stretto.operate.live import FleetView, LiveWait, WorkerPicture
from stretto.sched.snapshot import Snapshot
from stretto.wire import metric_table as table
from stretto.wire.metrics import Published, Sample

STATES = tuple(state for state in TRANSITIONS if state != "gone")


def engine_view(snapshot: Snapshot, apart: Collection[str] = ()) -> FleetView:
    """Return engines and instances as the live page shows them; those of the engines `apart` are left out."""
    engines = [one for one in snapshot.engines if one.engine not in apart]
    workers = [
        WorkerPicture(
            f"{engine.engine}/{one.instance}", one.state, one.num_running, kv_claimed=one.claimed_tokens
        )
        for engine in engines
        for one in engine.instances
    ]
    held = [one for engine in engines for one in engine.held]
    waits = [
        LiveWait((one.tenant, one.program or one.query), one.since_s, one.reason, is_held=True)
        for one in held
    ]
    return FleetView(workers, waits, sum(one.num_waiting for one in engines), len(held))


def engine_gauges(snapshot: Snapshot, apart: Collection[str] = ()) -> list[Published]:
    """Return the loads of engines and instances; those of the engines `apart` are seen elsewhere."""
    waiting: list[Sample] = []
    states: list[Sample] = []
    running: list[Sample] = []
    claimed: list[Sample] = []
    for engine in snapshot.engines:
        if engine.engine in apart:
            continue
        num_held = len(engine.held)
        waiting.append(table.WAITING.sample(engine.num_waiting - num_held, engine.engine, "turn"))
        waiting.append(table.WAITING.sample(num_held, engine.engine, "room"))
        for one in engine.instances:
            name = f"{engine.engine}/{one.instance}"
            running.append(table.RUNNING.sample(one.num_running, name))
            states += [table.STATE.sample(float(one.state == state), name, state) for state in STATES]
            if one.claimed_tokens:
                claimed.append(table.KV_CLAIMED.sample(one.claimed_tokens, name))
    return [
        (table.WAITING, waiting),
        (table.RUNNING, running),
        (table.STATE, states),
        (table.KV_CLAIMED, claimed),
    ]
